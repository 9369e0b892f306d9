//! A process that the benchmark started, and that ends with it.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Lines of a log that an error message repeats.
const LOG_LINES_MAX: usize = 15;

/// A running program; dropping it kills and reaps it.
#[derive(Debug)]
pub(crate) struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts `command` with its output in `DIR/NAME.log`.
    ///
    /// The kernel kills the program when the benchmark ends in any way, so an interrupt or a kill
    /// of the benchmark leaves nothing behind either; setpriv (util-linux) asks for that and then
    /// becomes the program, under the same process id.
    pub(crate) fn start(name: String, command: &Command, dir: &Path) -> Result<Self, String> {
        let log = dir.join(format!("{name}.log"));
        let start = || -> io::Result<Child> {
            let output = File::create(&log)?;
            guarded(command)
                .current_dir(dir)
                .stdin(Stdio::null())
                .stdout(output.try_clone()?)
                .stderr(output)
                .spawn()
        };
        let child = start().map_err(|error| format!("cannot start {name}: {error}"))?;
        Ok(Self { name, child, log })
    }

    /// Adopts a child that was started with [`guarded`] and talks over pipes.
    pub(crate) fn adopt(name: &str, child: Child) -> Self {
        Self { name: name.to_owned(), child, log: PathBuf::new() }
    }

    pub(crate) fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// CPU time used so far, in nanoseconds.
    pub(crate) fn cpu_ns(&self) -> Result<u64, String> {
        tacit_sys::cpu::process_ns(self.child.id())
            .map_err(|error| format!("{} has ended: {error}\n{}", self.name, self.log_tail()))
    }

    /// Says so if the program has ended by itself.
    pub(crate) fn check_running(&mut self) -> Result<(), String> {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => Err(format!("{} ended: {status}\n{}", self.name, self.log_tail())),
            Err(error) => Err(format!("{}: {error}", self.name)),
        }
    }

    /// The end of what the program printed, for an error message.
    pub(crate) fn log_tail(&self) -> String {
        let text = std::fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<_> = text.lines().collect();
        let tail = &lines[lines.len().saturating_sub(LOG_LINES_MAX)..];
        format!("--- end of {} ---\n{}", self.log.display(), tail.join("\n"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Fails only if the program has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The same command, killed by the kernel as soon as the caller's thread is gone.
pub(crate) fn guarded(command: &Command) -> Command {
    let mut guarded = Command::new("setpriv");
    guarded.args(["--pdeathsig", "KILL", "--"]);
    guarded.arg(command.get_program()).args(command.get_args());
    guarded
}
