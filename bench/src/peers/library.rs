//! Programs that do TLS themselves: the two load programs with a library in them.
//!
//! They are a package of their own (`bench/inprocess`), so that neither the libraries nor their
//! headers are needed to build and test tacit.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;

use super::check;
use super::peer::Peer;
use super::plan::Setting;
use super::running::{Client, Far, Running};
use crate::inprocess;
use crate::load::{LoadServer, server_words};
use crate::terms::Terms;

/// Starts the server end and looks at what the two negotiate.
pub(super) fn start(
    peer: &'static Peer,
    library: &'static str,
    terms: Terms,
    setting: &Setting<'_>,
) -> Result<Running, String> {
    let program = inprocess::program(&setting.target);
    let version = Command::new(&program).args(["version", library]).output().map_err(|error| {
        format!("cannot run {}: {error}; `cargo xtask bench` builds it", program.display())
    })?;
    let mut command = Command::new(&program);
    let any_port = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0);
    command.args(inprocess::words(library, terms, &setting.dir)).args(&server_words(any_port)[1..]);
    let server = LoadServer::adopt(&command, &setting.dir)?;
    check::refuses_without_certificate(server.address, &setting.dir)?;

    let tap = check::Tap::new(server.address).map_err(|error| format!("the tap: {error}"))?;
    let client = Client::InProcess { library };
    let mut running = Running {
        peer,
        terms,
        version: String::from_utf8_lossy(&version.stdout).trim().to_owned(),
        negotiated: String::new(),
        entry: server.address,
        client,
        proxies: None,
        far: Far::Own(server),
    };
    running.knock_twice(tap.address, setting)?;
    running.negotiated = tap.negotiated(terms.second_handshake())?;
    Ok(running)
}
