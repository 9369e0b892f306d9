//! Copies the measured programs to a directory that every user can read, and creates the
//! certificates there. Starts these programs as an ordinary user, even if root runs the benchmark.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::certs;

/// The unprivileged user for the programs if the benchmark runs as root.
const ORDINARY: u32 = 54321;

/// A directory that all users can read, with all programs and certificates.
#[derive(Debug)]
pub(crate) struct RunDirectory {
    pub(crate) dir: PathBuf,
    /// Whether the benchmark runs as root and can become the unprivileged user.
    pub(crate) is_root: bool,
}

impl RunDirectory {
    /// Creates the directory with `tacit`, the program to measure, `load`, the program whose
    /// `workload` generates the load, and certificates.
    pub(crate) fn make(name: &str, tacit: &Path, load: &Path) -> Result<Self, String> {
        let name = format!("tacit-bench-{name}-{}", std::process::id());
        let dir = std::env::temp_dir().join(name);
        let make = || {
            fs::create_dir(&dir)?;
            fs::set_permissions(&dir, Permissions::from_mode(0o755))?;
            fs::copy(tacit, dir.join("tacit"))?;
            fs::copy(load, dir.join("load"))?;
            fs::read_to_string("/proc/self/uid_map")
        };
        let map = make().map_err(|error| format!("cannot prepare {}: {error}", dir.display()))?;
        let everybody = map.split_whitespace().nth(2) == Some("4294967295");
        let directory =
            Self { dir, is_root: everybody && tacit_sys::process::effective_user() == 0 };
        certs::make(&directory.dir)?;
        ["client", "server"].into_iter().try_for_each(|name| directory.give(name))?;
        Ok(directory)
    }

    /// Copies a key to `NAME.own.key`, owned by the unprivileged user, because an agent refuses
    /// keys of other users.
    fn give(&self, name: &str) -> Result<(), String> {
        let own = self.dir.join(format!("{name}.own.key"));
        let given = fs::copy(self.dir.join(format!("{name}.key")), &own).and_then(|_| {
            fs::set_permissions(&own, Permissions::from_mode(0o600))?;
            if self.is_root { chown(&own, Some(ORDINARY), Some(ORDINARY)) } else { Ok(()) }
        });
        given.map_err(|error| format!("cannot write {}: {error}", own.display()))
    }

    /// A command that runs as an unprivileged user and gets SIGTERM when the benchmark ends.
    pub(crate) fn ordinary(&self, program: &str, words: &[&str]) -> Command {
        let mut command = Command::new("setpriv");
        if self.is_root {
            let user = ORDINARY.to_string();
            command.args(["--reuid", &user, "--regid", &user, "--clear-groups"]);
            // A change of the user clears the parent-death signal, so it is set afterwards.
            command.args(["--", "setpriv"]);
        }
        command.args(["--pdeathsig", "TERM", "--", program]).args(words);
        command.current_dir(&self.dir).env_remove("XDG_RUNTIME_DIR");
        command
    }

    /// Runs a shell script in the directory.
    pub(crate) fn shell(&self, script: &str) -> Result<(), String> {
        let mut command = Command::new("sh");
        command.args(["-ec", script]).current_dir(&self.dir);
        let output = command.output().map_err(|error| format!("cannot run sh: {error}"))?;
        if output.status.success() {
            return Ok(());
        }
        let reason = String::from_utf8_lossy(&output.stderr);
        Err(format!("cannot prepare the network for programs under tacit run: {reason}"))
    }

    /// Writes a file to the directory.
    pub(crate) fn write(&self, name: &str, text: &str) -> Result<(), String> {
        fs::write(self.dir.join(name), text)
            .map_err(|error| format!("cannot write {name}: {error}"))
    }
}

impl Drop for RunDirectory {
    fn drop(&mut self) {
        // Ignores the error: leftovers are in the directory for temporary files.
        let _ = fs::remove_dir_all(&self.dir);
    }
}
