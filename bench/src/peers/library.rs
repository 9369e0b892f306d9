//! Starts the peers that need no proxy: a client and a server that call a TLS library themselves.
//!
//! These programs are a separate package (`bench/inprocess`), so that tacit can be built without
//! these TLS libraries.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;

use super::check;
use super::peer::Peer;
use super::plan::Setting;
use super::running::{Client, Far, Running};
use crate::inprocess;
use crate::load::{LoadServer, server_words};
use crate::tls_settings::TlsSettings;

/// Starts the load server, and checks what the two sides negotiate.
pub(super) fn start(
    peer: &'static Peer,
    library: &'static str,
    settings: TlsSettings,
    setting: &Setting<'_>,
) -> Result<Running, String> {
    let program = inprocess::program(&setting.target);
    let version = Command::new(&program).args(["version", library]).output().map_err(|error| {
        format!(
            "cannot run {}: {error}: build this program with `cargo xtask bench`",
            program.display()
        )
    })?;
    let mut command = Command::new(&program);
    let any_port = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0);
    command
        .args(inprocess::words(library, settings, &setting.dir))
        .args(&server_words(any_port)[1..]);
    let server = LoadServer::adopt(&command, &setting.dir)?;
    check::refuses_without_certificate(server.address, &setting.dir)?;

    let tap = check::Tap::new(server.address).map_err(|error| {
        format!(
            "cannot start the relay that records the handshakes between client and server: {error}"
        )
    })?;
    let client = Client::InProcess { library };
    let mut running = Running {
        peer,
        settings,
        version: String::from_utf8_lossy(&version.stdout).trim().to_owned(),
        negotiated: String::new(),
        entry: server.address,
        client,
        proxies: None,
        far: Far::Own(server),
    };
    running.connect_twice(tap.address, setting)?;
    running.negotiated = tap.negotiated(settings.second_handshake())?;
    Ok(running)
}
