//! Takes one sample of one workload of `bench host`. A sample is the CPU time that all processes
//! together use for one operation.

use std::net::SocketAddr;
use std::process::Command;

use tacit_sys::cpu;

use super::addresses::{ECHO, FAR_AGENT, FORWARD, SERVER};
use super::datagrams::{self, DATAGRAMS};
use super::world::{Content, Subject, World};
use crate::load::LoadClient;
use crate::process::Process;
use crate::workload::{Length, workload};

/// One of the compared workloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Task {
    /// A workload of the comparison with other proxies.
    Load { name: &'static str, unit: &'static str },
    /// A datagram in each direction.
    Datagrams,
}

const TRANSACTION: Task = Task::Load { name: "2k", unit: "us/op" };
const STREAM: Task = Task::Load { name: "bulk", unit: "us/MB" };
const CONNECT: Task = Task::Load { name: "connect", unit: "us/connect" };

impl Task {
    pub(super) const UNMATCHED: [Self; 4] = [TRANSACTION, STREAM, Self::Datagrams, CONNECT];
    pub(super) const PROTECTED: [Self; 3] = [TRANSACTION, STREAM, CONNECT];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Load { name, .. } => name,
            Self::Datagrams => "udp",
        }
    }

    pub(super) fn unit(self) -> &'static str {
        match self {
            Self::Load { unit, .. } => unit,
            Self::Datagrams => "us/exchange",
        }
    }
}

/// CPU time per operation, in microseconds: of client, server and agent; without the server if an
/// agent protects the traffic.
pub(super) fn sample(
    world: &World,
    subject: Subject,
    agent: Option<&Process>,
    task: Task,
) -> Result<f64, String> {
    let agent_ns = || agent.map_or(Ok(0), Process::cpu_ns);
    let before = agent_ns()?;
    let (ns, units) = match task {
        Task::Datagrams => datagram_ns(world)?,
        Task::Load { name, .. } => load_ns(world, subject, name)?,
    };
    let of_agent = agent_ns()?.saturating_sub(before);
    let protects = matches!(subject.content, Content::Captured | Content::Forwarding);
    if protects && of_agent < ns / 4 {
        return Err(format!(
            "{}: the traffic did not pass through the agent, so the measurement is not valid: \
             check the policy",
            subject.name
        ));
    }
    Ok((ns + of_agent) as f64 / 1000.0 / units)
}

fn datagram_ns(world: &World) -> Result<(u64, f64), String> {
    let clocks = || Ok::<_, String>(cpu::thread_ns() + world.echo.cpu_ns()?);
    let before = clocks()?;
    datagrams::exchange(ECHO, DATAGRAMS)?;
    Ok((clocks()?.saturating_sub(before), f64::from(DATAGRAMS)))
}

fn load_ns(world: &World, subject: Subject, name: &str) -> Result<(u64, f64), String> {
    let workload = workload(name).ok_or_else(|| format!("there is no workload {name}"))?;
    let (address, has_server): (SocketAddr, bool) = match subject.content {
        Content::Captured => (FAR_AGENT, false),
        Content::Forwarding => (FORWARD, false),
        _ => (SERVER, true),
    };
    let mut command = Command::new(&world.tacit);
    command.arg("workload").args(workload.words(Length::Whole));
    command.args(["--connect", &address.to_string()]);
    let mut client = LoadClient::start(command)?;
    let clocks = |client: &LoadClient| {
        let server_ns = if has_server { world.server.cpu_ns()?.own } else { 0 };
        Ok::<_, String>(client.cpu_ns()?.own + server_ns)
    };
    let before = clocks(&client)?;
    let result = client.go()?;
    let ns = clocks(&client)?.saturating_sub(before);
    client.end()?;
    let units = result["figures"][workload.kind.figure()].as_f64();
    Ok((ns, units.ok_or_else(|| format!("unexpected report of the load client: {result}"))?))
}
