//! Measures tacit as most users run it: two programs without TLS, each under its own `tacit run`.
//! An ordinary user starts both programs.
//!
//! ```text
//! tacit run -- load client == mutual TLS on the loopback of the host ==> tacit run -- load server
//! ```
//! The load client and its `tacit run` start again for each sample. The load server and its `tacit
//! run` serve all samples.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use super::check;
use super::peer::Peer;
use super::plan::Setting;
use super::running::{Client, Far, Running};
use super::tacit::tls;
use crate::certs::SERVER_NAME;
use crate::load::{LoadServer, server_words};
use crate::process::guarded;
use crate::tls_settings::TlsSettings;

/// The port at which the program listens inside its run.
const LOCAL_PORT: u16 = 9000;

/// Starts the server's run, and checks what the two sides negotiate.
pub(super) fn start(
    peer: &'static Peer,
    placement: Option<&str>,
    settings: TlsSettings,
    setting: &Setting<'_>,
) -> Result<Running, String> {
    let directory = setting.directory.ok_or(
        "cannot start `tacit run`: this machine does not allow network namespaces; `tacit doctor` \
         reports the cause",
    )?;
    let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    let listen = free.map_err(|error| format!("cannot find a free port on loopback: {error}"))?;
    let tap = check::Tap::new(listen).map_err(|error| {
        format!("cannot start the relay that records the handshakes between the two runs: {error}")
    })?;
    let ports = [listen.port(), tap.address.port()];
    let policies = policies(&setting.congestion, placement, settings, listen, ports);
    let [client, server] =
        ["client", "server"].map(|side| format!("{}-{}-{side}.toml", peer.name, settings.name()));
    for (name, text) in [&client, &server].into_iter().zip(&policies) {
        let text = &setting.policy(text);
        let parsed = tacit_core::policy::parse(text);
        if parsed.policy.is_none() {
            let messages =
                parsed.diagnostics.iter().map(|one| one.message.clone()).collect::<Vec<_>>();
            return Err(format!(
                "this version of tacit rejects the policy that the benchmark has written: {}",
                messages.join("; ")
            ));
        }
        directory.write(name, text)?;
    }
    let inside = server_words(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), LOCAL_PORT));
    let mut words = vec!["run", "--policy", &server, "--", "./load"];
    words.extend(inside.iter().map(String::as_str));
    let mut server = LoadServer::adopt(&directory.ordinary("./tacit", &words), &directory.dir)?;
    server.process.count_descendants()?;
    let version = guarded(&std::process::Command::new(directory.dir.join("tacit")))
        .arg("--version")
        .output()
        .map_err(|error| format!("cannot run tacit: {error}"))?;
    check::refuses_without_certificate(listen, &setting.dir)?;
    let mut running = Running {
        peer,
        settings,
        version: String::from_utf8_lossy(&version.stdout).trim().to_owned(),
        negotiated: String::new(),
        entry: listen,
        client: Client::Run { policy: client },
        proxies: None,
        far: Far::Run(server),
    };
    running.connect_twice(tap.address, setting)?;
    running.negotiated = tap.negotiated(settings.second_handshake())?;
    Ok(running)
}

/// The policies of the client's run and of the server's run.
fn policies(
    congestion: &str,
    placement: Option<&str>,
    settings: TlsSettings,
    listen: SocketAddr,
    remote_ports: [u16; 2],
) -> [String; 2] {
    // The CPU is fixed: an agent would avoid CPUs of the agents of other peers, which are idle.
    let placed = |cpu: u32| match placement {
        Some("split") => {
            format!("workers = 1\nplacement = \"split\"\nplacement-cpus = \"{cpu}\"\n")
        }
        Some(word) => format!("workers = 1\nplacement = \"{word}\"\n"),
        // The default.
        None => String::new(),
    };
    let head = |name: &str, placement: String| {
        format!(
            "version = 1\n\n[agent]\ncongestion-control = \"{congestion}\"\n\
             {placement}\n[identity.{name}]\ncert = \"{name}.pem\"\nkey = \"{name}.own.key\"\n\n\
             [trust.bench]\nca = \"ca.pem\"\n\n[[rule]]\nname = \"bench\"\n"
        )
    };
    let tls = tls(settings);
    [
        format!(
            "{}direction = \"outbound\"\nremote = \"{}\"\nremote-ports = {remote_ports:?}\n\n\
             [rule.tls]\nidentity = \"client\"\ntrust = \"bench\"\n\
             server-name = \"{SERVER_NAME}\"\n{tls}",
            head("client", placed(0)),
            listen.ip(),
        ),
        format!(
            "{}direction = \"inbound\"\nlisten = \"{listen}\"\nlocal-ports = {LOCAL_PORT}\n\n\
             [rule.tls]\nidentity = \"server\"\ntrust = \"bench\"\n\
             client-cert = \"required\"\n{tls}",
            head("server", placed(1)),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tacit_takes_both_policies_on_all_terms() {
        let listen = "127.0.0.1:7002".parse().unwrap();
        for settings in TlsSettings::ALL {
            for placement in [None, Some("split"), Some("one-cpu")] {
                for text in policies("cubic", placement, settings, listen, [7002, 7003]) {
                    let parsed = tacit_core::policy::parse(&text);
                    assert!(parsed.policy.is_some(), "{parsed:?}\n{text}");
                }
            }
        }
    }
}
