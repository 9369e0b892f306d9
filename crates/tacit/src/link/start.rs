//! `tacit link start`: starts a link server in the background.

use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tacit_sys::process;

use super::{path_of, query};
use crate::run::link::protocol::LinkStatus;

/// How long a server may take until it serves.
const START_WAIT_MAX: Duration = Duration::from_secs(10);
/// The time between two looks.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);
/// The maximum length of the error of a server.
const ERROR_BYTES_MAX: u64 = 16 << 10;

/// Starts the server of a link, and waits until it serves. Returns its state.
///
/// # Errors
/// The link is served already, or the error of the server.
pub(super) fn start(name: &str, policy: &Path, log: &str) -> io::Result<LinkStatus> {
    let path = socket_of(name, policy);
    if let Ok(status) = query::status(&path) {
        let reason = format!(
            "process {} already serves the link\n    fix: stop this process with \
             `tacit link stop {name}`",
            status.pid
        );
        return Err(io::Error::new(io::ErrorKind::AddrInUse, reason));
    }
    let mut command = Command::new("/proc/self/exe");
    command.arg0("tacit").args(["link", "serve", "--log", log, "--policy"]).arg(policy).arg(name);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut server = process::own_process_group(&mut command).spawn()?;
    let deadline = Instant::now() + START_WAIT_MAX;
    loop {
        if server.try_wait()?.is_some() {
            return Err(io::Error::other(error_of(&mut server)));
        }
        match query::status(&path) {
            Ok(status) if status.pid == server.id() => return Ok(status),
            _ if Instant::now() > deadline => {
                // It would serve later, after an error was reported.
                let _ = server.kill();
                return Err(io::ErrorKind::TimedOut.into());
            }
            _ => std::thread::sleep(LOOK_INTERVAL),
        }
    }
}

/// The socket of a link: that of its policy, if the policy has one. A policy that cannot be read is
/// reported by the server.
fn socket_of(name: &str, policy: &Path) -> PathBuf {
    let listen = crate::live::check_rules(policy)
        .ok()
        .and_then(|policy| policy.links.get(name).and_then(|link| link.listen.clone()));
    listen.unwrap_or_else(|| path_of(Path::new(name)))
}

fn error_of(server: &mut Child) -> String {
    let mut text = String::new();
    if let Some(stderr) = server.stderr.take() {
        // The text may be cut in a character.
        let _ = stderr.take(ERROR_BYTES_MAX).read_to_string(&mut text);
    }
    let text = text.trim();
    // The command has an identifier of its own.
    text.split_once("]: ").map_or(text, |(_, text)| text).to_owned()
}
