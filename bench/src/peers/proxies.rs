//! Starts pairs of proxies, either on ordinary loopback or in a network namespace whose loopback
//! has large TCP segments.

use std::net::{SocketAddr, TcpListener};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use super::check::{self, Tap};
use super::peer::Peer;
use super::plan::{Plan, Proxy, Setting, Side, command, command_of};
use super::running::{Client, Far, Running};
use crate::load::{self, LoadServer, probe, probe_words, server_words};
use crate::peer_network;
use crate::process::Process;
use crate::tls_settings::TlsSettings;
use crate::workspace::own_program;

/// A pair that does not relay a byte within this time after its start has failed.
const START_TIME_MAX: Duration = Duration::from_secs(15);

/// Starts a pair as installed, and checks it.
pub(super) fn start(
    peer: &'static Peer,
    proxy: &Proxy,
    settings: TlsSettings,
    setting: &Setting<'_>,
) -> Result<Running, String> {
    let version = proxy.version(setting)?;
    let start = |part: &str, plan: &Plan<'_>| {
        proxy.start(&format!("{}-{}-{part}", peer.name, settings.name()), plan, &[])
    };
    let entry = free_address()?;
    let tls = free_address()?;
    let connect = setting.application;
    let plan = Plan { side: Side::Server, listen: tls, connect, settings, setting };
    let mut server = start("server", &plan)?;
    let plan = Plan { side: Side::Client, listen: entry, connect: tls, settings, setting };
    let mut client = start("client", &plan)?;
    wait_ready(entry, &mut client, &mut server)?;

    check::refuses_without_certificate(tls, &setting.dir)?;
    let tap = Tap::new(tls).map_err(|error| {
        format!("cannot start the relay that records the handshakes between the proxies: {error}")
    })?;
    let entry_of_probe = free_address()?;
    let plan = Plan { listen: entry_of_probe, connect: tap.address, ..plan };
    let mut probe = start("probe", &plan)?;
    wait_ready(entry_of_probe, &mut probe, &mut server)?;
    load::probe(entry_of_probe)?;
    let negotiated = tap.negotiated(settings.second_handshake())?;

    client.count_descendants()?;
    server.count_descendants()?;
    Ok(Running {
        peer,
        settings,
        version,
        negotiated,
        entry,
        client: Client::Plain(Vec::new()),
        proxies: Some([client, server]),
        far: Far::Shared,
    })
}

/// Starts two relays without TLS.
pub(super) fn start_relays(
    peer: &'static Peer,
    settings: TlsSettings,
    setting: &Setting<'_>,
) -> Result<Running, String> {
    let own = own_program()?;
    let start = |part: &str, listen: SocketAddr, connect: SocketAddr| {
        let mut command = Command::new(&own);
        command.args(["relay", &listen.to_string(), &connect.to_string()]);
        Process::start(format!("{}-{part}", peer.name), &command, &setting.dir)
    };
    let entry = free_address()?;
    let between = free_address()?;
    let mut server = start("server", between, setting.application)?;
    let mut client = start("client", entry, between)?;
    wait_ready(entry, &mut client, &mut server)?;
    let version = "part of this benchmark";
    Ok(Running::in_clear(peer, settings, version, entry, Some([client, server])))
}

/// Starts the same configuration in a `PeerNetwork`. It was checked as the peer as installed.
pub(super) fn start_in_network(
    peer: &'static Peer,
    number: u8,
    proxy: &Proxy,
    settings: TlsSettings,
    setting: &Setting<'_>,
) -> Result<Running, String> {
    let peer_network = setting.peer_network.ok_or(
        "cannot create a network namespace whose loopback interface uses large TCP segments: this \
         machine does not allow network namespaces",
    )?;
    let entry = peer_network::address(number, peer_network::ENTRY);
    let tls = peer_network::address(number, peer_network::TLS);
    let application = peer_network::address(number, peer_network::APPLICATION);
    let mut command = command(&peer_network.words(Side::Server.cpu()));
    command.arg(&setting.load).args(server_words(application));
    let far = LoadServer::adopt(&command, &setting.dir)?;
    let start = |side: Side, listen, connect| {
        let plan = Plan { side, listen, connect, settings, setting };
        let words = peer_network.words(side.cpu());
        proxy.start(&format!("{}-{}", peer.name, side.name()), &plan, &words)
    };
    let mut server = start(Side::Server, tls, application)?;
    let mut client = start(Side::Client, entry, tls)?;
    let words = peer_network.words(Side::Client.cpu());
    let mut probe = command_of(&words, &setting.load);
    probe.arg("workload").args(probe_words(1)).args(["--connect", &entry.to_string()]);
    wait_until(&mut client, &mut server, || {
        let output = probe.output().map_err(|error| error.to_string())?;
        if output.status.success() {
            return Ok(());
        }
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    })?;
    client.count_descendants()?;
    server.count_descendants()?;
    Ok(Running {
        peer,
        settings,
        version: proxy.version(setting)?,
        negotiated: "as above".to_owned(),
        entry,
        client: Client::Plain(words),
        proxies: Some([client, server]),
        far: Far::Own(far),
    })
}

/// A loopback address at which no socket listens.
fn free_address() -> Result<SocketAddr, String> {
    let address = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    address.map_err(|error| format!("cannot find a free port on loopback: {error}"))
}

/// Waits until a connection through both proxies succeeds.
fn wait_ready(entry: SocketAddr, client: &mut Process, server: &mut Process) -> Result<(), String> {
    wait_until(client, server, || probe(entry))
}

fn wait_until(
    client: &mut Process,
    server: &mut Process,
    mut try_once: impl FnMut() -> Result<(), String>,
) -> Result<(), String> {
    let start = Instant::now();
    loop {
        let Err(error) = try_once() else { return Ok(()) };
        client.check_running()?;
        server.check_running()?;
        if start.elapsed() > START_TIME_MAX {
            let client = client.log_tail();
            let server = server.log_tail();
            return Err(format!("the proxies do not relay data: {error}\n{client}\n{server}"));
        }
        thread::sleep(Duration::from_millis(50));
    }
}
