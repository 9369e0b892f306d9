//! Sets up the network of `bench host`: a host, a second machine with servers, and the policies.
//! Both machines are network namespaces.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::addresses::{ECHO, SERVER};
use super::policies;
use crate::certs;
use crate::load::LoadServer;
use crate::process::Process;
use crate::workspace::own_program;

/// The network. Ports are reused early, because short connections occupy them for a minute. The
/// agent's ports are not among them.
const NETWORK: &str = "set -e
ip link add bench0 type veth peer name bench1
ip link set bench1 netns $FAR
ip link set bench0 up
ip addr add 192.0.2.1/24 dev bench0
in_far() { nsenter -t $FAR -n \"$@\"; }
in_far ip link set lo up
in_far ip link set bench1 up
in_far ip addr add 192.0.2.2/24 dev bench1
for in in '' in_far; do
    $in sh -c 'echo 16000 65000 >/proc/sys/net/ipv4/ip_local_port_range
               echo 1 >/proc/sys/net/ipv4/tcp_tw_reuse'
done";

/// A nftables rule that looks at each packet's connection, and changes nothing.
const CONNTRACK: &str = "add table inet bench
add chain inet bench output { type filter hook output priority 0; }
add rule inet bench output ct state invalid accept";

/// How long a process may take until it is ready, and a removal until the helper has ended.
const READY_MAX: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// What is installed during a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    Nothing,
    /// Rules that match nothing.
    Rules(u32),
    /// The same, and a rule for clients of the host.
    RulesAndInbound(u32),
    /// Filter rules for single packets, of which every packet needs a lookup.
    Filters(u32),
    /// Nothing of tacit; connection tracking by another program.
    Conntrack,
    /// Nothing any more.
    Removed,
    /// A forwarding rule.
    Forwarding,
    /// A rule that captures the traffic.
    Captured,
}

/// One of the compared subjects.
#[derive(Clone, Copy, Debug)]
pub(super) struct Subject {
    pub(super) name: &'static str,
    pub(super) content: Content,
}

const fn subject(name: &'static str, content: Content) -> Subject {
    Subject { name, content }
}

impl Subject {
    /// The first two are equal, and the others are compared with them.
    pub(super) fn unmatched() -> Vec<Self> {
        let mut all = vec![
            subject("none", Content::Nothing),
            subject("none again", Content::Nothing),
            subject("10 rules", Content::Rules(10)),
            subject("1,000 rules", Content::Rules(1000)),
            subject("1,000 filters", Content::Filters(1000)),
            subject("10,000 filters", Content::Filters(10_000)),
            subject("10 and inbound", Content::RulesAndInbound(10)),
            subject("removed", Content::Removed),
        ];
        if Command::new("nft").arg("--version").output().is_ok() {
            all.push(subject("conntrack", Content::Conntrack));
        }
        all
    }
    /// As [`unmatched`](Self::unmatched).
    pub(super) const PROTECTED: [Self; 3] = [
        subject("forwarding", Content::Forwarding),
        subject("forwarding again", Content::Forwarding),
        subject("captured", Content::Captured),
    ];
}

/// Both machines.
pub(super) struct World {
    pub(super) tacit: PathBuf,
    pub(super) dir: PathBuf,
    pub(super) server: LoadServer,
    pub(super) echo: Process,
    /// It keeps the namespace of the far machine.
    _far: Process,
    _far_agent: Process,
}

impl World {
    pub(super) fn set_up(tacit: &Path, dir: PathBuf) -> Result<Self, String> {
        certs::make(&dir)?;
        let mut hold = Command::new("unshare");
        hold.args(["--net", "sleep", "infinity"]);
        let far = Process::start("far".to_owned(), &hold, &dir)?;
        let pid = far.id().to_string();
        wait_until("the far namespace", &far, || is_apart(&pid))?;
        let mut network = Command::new("sh");
        succeed(network.args(["-c", NETWORK]).env("FAR", &pid))?;
        let in_far = |program: &Path| {
            let mut command = Command::new("nsenter");
            command.args(["-t", &pid, "-n"]).arg(program);
            command
        };
        let mut serve = in_far(tacit);
        serve.args(crate::load::server_words(SERVER));
        let server = LoadServer::adopt(&serve, &dir)?;
        let mut answer = in_far(&own_program()?);
        answer.args(["host-echo", &ECHO.to_string()]);
        let echo = Process::start("echo".to_owned(), &answer, &dir)?;
        write(&dir, "far.toml", &policies::far())?;
        let mut agent = in_far(tacit);
        agent.args(["agent", "--policy", "far.toml", "--control", "far.sock"]);
        let far_agent = Process::start("far-agent".to_owned(), &agent, &dir)?;
        wait_until("the far agent", &far_agent, || has_line(&dir, "far-agent", "serving"))?;
        Ok(Self { tacit: tacit.to_owned(), dir, server, echo, _far: far, _far_agent: far_agent })
    }

    /// Installs what a subject needs; the agent, if it has one.
    pub(super) fn install(&self, subject: Subject) -> Result<Option<Process>, String> {
        let policy = match subject.content {
            Content::Nothing => return Ok(None),
            Content::Rules(count) => policies::rules(count),
            Content::RulesAndInbound(count) => policies::rules_and_inbound(count),
            Content::Filters(count) => policies::filters(count),
            Content::Removed => {
                let agent = self.capture(&policies::rules(10))?;
                self.remove_capture(agent)?;
                return Ok(None);
            }
            Content::Conntrack => {
                succeed(Command::new("nft").arg(CONNTRACK))?;
                return Ok(None);
            }
            Content::Captured => policies::captured(),
            Content::Forwarding => return self.forward().map(Some),
        };
        self.capture(&policy).map(Some)
    }

    /// Starts an agent that captures the host.
    pub(super) fn capture(&self, policy: &str) -> Result<Process, String> {
        write(&self.dir, "host.toml", policy)?;
        self.agent("host", &["--host"], "run-began run=host")
    }

    fn forward(&self) -> Result<Process, String> {
        write(&self.dir, "forward.toml", &policies::forwarding())?;
        self.agent("forward", &[], "serving")
    }

    fn agent(&self, name: &str, words: &[&str], ready: &str) -> Result<Process, String> {
        let mut command = Command::new(&self.tacit);
        command.args(["agent", "--policy", &format!("{name}.toml")]).args(words);
        command.args(["--control", &format!("{name}.sock")]);
        let mut agent = Process::start(name.to_owned(), &command, &self.dir)?;
        wait_until("the agent", &agent, || has_line(&self.dir, name, ready))?;
        agent.count_descendants()?;
        Ok(agent)
    }

    /// Ends the agent, and removes what is installed.
    pub(super) fn remove(&self, subject: Subject, agent: Option<Process>) -> Result<(), String> {
        if subject.content == Content::Conntrack {
            succeed(Command::new("nft").arg("delete table inet bench"))?;
        }
        agent.map_or(Ok(()), |agent| self.remove_capture(agent))
    }

    /// Ends an agent, and removes what it captured.
    pub(super) fn remove_capture(&self, agent: Process) -> Result<(), String> {
        drop(agent);
        let mut remove = Command::new(&self.tacit);
        remove.args(["agent", "--host", "--remove"]).current_dir(&self.dir);
        let begin = Instant::now();
        // The helper ends once it sees that its agents have ended.
        while let Err(error) = succeed(&mut remove) {
            if begin.elapsed() > READY_MAX {
                return Err(error);
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }
}

fn is_apart(pid: &str) -> bool {
    let namespace = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/net")).ok();
    let far = namespace(pid);
    far.is_some() && far != namespace("self")
}

fn has_line(dir: &Path, name: &str, part: &str) -> bool {
    fs::read_to_string(dir.join(format!("{name}.log"))).is_ok_and(|log| log.contains(part))
}

fn write(dir: &Path, name: &str, text: &str) -> Result<(), String> {
    fs::write(dir.join(name), text).map_err(|error| format!("cannot write {name}: {error}"))
}

fn wait_until(what: &str, process: &Process, is_ready: impl Fn() -> bool) -> Result<(), String> {
    let begin = Instant::now();
    while !is_ready() {
        if begin.elapsed() > READY_MAX {
            return Err(format!("{what} is not ready\n{}", process.log_tail()));
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

fn succeed(command: &mut Command) -> Result<(), String> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("cannot run {command:?}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{command:?} failed: {}", String::from_utf8_lossy(&output.stderr)))
}
