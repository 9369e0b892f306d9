//! Where programs under `tacit run` live: a folder that every user can read, and an ordinary user.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::certs;

/// The unprivileged user that root runs the programs as.
const ORDINARY: u32 = 54321;

/// A place that every user can read, with everything that is run.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) dir: PathBuf,
    /// Whether there is an ordinary user to become.
    pub(crate) is_root: bool,
}

impl Place {
    /// Makes it, with the tacit that is measured, as `tacit`, the one whose `workload` loads, as
    /// `load`, and certificates of its own.
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
        let map = make().map_err(|error| format!("{}: {error}", dir.display()))?;
        let everybody = map.split_whitespace().nth(2) == Some("4294967295");
        let place = Self { dir, is_root: everybody && tacit_sys::process::effective_user() == 0 };
        certs::make(&place.dir)?;
        ["client", "server"].into_iter().try_for_each(|name| place.give(name))?;
        Ok(place)
    }

    /// Copies a key to `NAME.own.key`, which the ordinary user owns: an agent refuses others.
    fn give(&self, name: &str) -> Result<(), String> {
        let own = self.dir.join(format!("{name}.own.key"));
        let given = fs::copy(self.dir.join(format!("{name}.key")), &own).and_then(|_| {
            fs::set_permissions(&own, Permissions::from_mode(0o600))?;
            if self.is_root { chown(&own, Some(ORDINARY), Some(ORDINARY)) } else { Ok(()) }
        });
        given.map_err(|error| format!("{}: {error}", own.display()))
    }

    /// The command, as an ordinary user, told to terminate when the benchmark ends.
    pub(crate) fn ordinary(&self, program: &str, words: &[&str]) -> Command {
        let mut command = Command::new("setpriv");
        if self.is_root {
            let user = ORDINARY.to_string();
            command.args(["--reuid", &user, "--regid", &user, "--clear-groups"]);
            // A change of user clears the signal for the end of the parent.
            command.args(["--", "setpriv"]);
        }
        command.args(["--pdeathsig", "TERM", "--", program]).args(words);
        command.current_dir(&self.dir).env_remove("XDG_RUNTIME_DIR");
        command
    }

    /// Runs a script in there.
    pub(crate) fn shell(&self, script: &str) -> Result<(), String> {
        let mut command = Command::new("sh");
        command.args(["-ec", script]).current_dir(&self.dir);
        let output = command.output().map_err(|error| format!("sh: {error}"))?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        Err(format!("cannot set up what programs run in: {said}"))
    }

    /// Writes a file into it.
    pub(crate) fn write(&self, name: &str, text: &str) -> Result<(), String> {
        fs::write(self.dir.join(name), text).map_err(|error| format!("writing {name}: {error}"))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // What is left over is in the directory for temporary files.
        let _ = fs::remove_dir_all(&self.dir);
    }
}
