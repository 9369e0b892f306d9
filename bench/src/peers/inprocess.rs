//! Programs that do TLS themselves: the two load programs with a library in them.
//!
//! They are a package of their own (`bench/inprocess`), so that neither the libraries nor their
//! headers are needed to build and test tacit.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Client, Far, Peer, Running, Setting, check};
use crate::load::terms::Terms;
use crate::measure::LoadServer;

/// The program with both ends and both libraries.
pub(super) fn program(target: &Path) -> PathBuf {
    target.join("release/inprocess")
}

/// The words before an address: which end, by which library, on which terms.
pub(super) fn words(end: &str, library: &str, terms: Terms, dir: &Path) -> Vec<String> {
    let dir = dir.to_string_lossy();
    [end, library, terms.name(), &dir].map(str::to_owned).to_vec()
}

/// Starts the server end and looks at what the two negotiate.
pub(super) fn start(
    peer: &'static Peer,
    library: &'static str,
    terms: Terms,
    setting: &Setting<'_>,
) -> Result<Running, String> {
    let program = program(&setting.target);
    let version = Command::new(&program).args(["version", library]).output().map_err(|error| {
        format!("cannot run {}: {error}; `cargo xtask bench` builds it", program.display())
    })?;
    let mut command = Command::new(&program);
    command.args(words("server", library, terms, &setting.dir)).arg("127.0.0.1:0");
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
    knock_twice(&running, tap.address, setting)?;
    running.negotiated = tap.negotiated(terms.resumes())?;
    Ok(running)
}

/// Two connections of the client end past the tap.
pub(super) fn knock_twice(
    running: &Running,
    tap: SocketAddr,
    setting: &Setting<'_>,
) -> Result<(), String> {
    let output = running.client_command(setting, "knock", &[&tap.to_string(), "2"]).output();
    let output = output.map_err(|error| format!("the load client: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = [output.stdout, output.stderr].concat();
    Err(format!("the load client: {}", String::from_utf8_lossy(&said).trim()))
}
