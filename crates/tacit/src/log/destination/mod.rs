//! Opens the destination of the log, and writes log lines to this destination. The destination is
//! standard error, the journal, syslog or a file.
//!
//! Limit: [`RUN_LOG_BYTES_MAX`] for the log file that all private agents of a user share. A full
//! file is renamed to `run.log.1`.

use std::fmt;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use rustix::fs::OFlags;
use rustix::io::Errno;
use tacit_sys::{descriptor, process};

use line_file::LineFile;

pub(super) mod line_file;

/// The maximum size of the log of runs. The full file is renamed to `run.log.1`.
pub const RUN_LOG_BYTES_MAX: u64 = 1024 * 1024;

/// The socket of systemd's journal.
const JOURNAL: &str = "/run/systemd/journal/socket";
/// The socket of a syslog daemon.
const SYSLOG: &str = "/dev/log";
/// The facility `daemon` in a syslog message (RFC 3164, section 4.1.1).
const SYSLOG_DAEMON: u8 = 3 << 3;

/// Where the lines of the log are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogDestination {
    /// Standard error.
    StandardError,
    /// The journal of systemd.
    Journal,
    /// The syslog daemon.
    Syslog,
    /// No log is written.
    None,
    /// A file of bounded size in the user's state directory, which all runs of the user share.
    State,
    /// A descriptor that the process was started with.
    Descriptor(i32),
    /// A file, to which lines are appended.
    File(PathBuf),
}

impl FromStr for LogDestination {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "stderr" => Ok(Self::StandardError),
            "journal" => Ok(Self::Journal),
            "syslog" => Ok(Self::Syslog),
            "none" => Ok(Self::None),
            "state" => Ok(Self::State),
            text if text.starts_with("fd:") => {
                let number = text[3..].parse().ok().filter(|number| *number >= 0);
                number.map(Self::Descriptor).ok_or_else(|| {
                    format!("`{text}` is not a file descriptor: use fd:N, such as fd:3")
                })
            }
            path if path.contains('/') => Ok(Self::File(path.into())),
            other => Err(format!(
                "`{other}` is not a log destination: use stderr, journal, syslog, state, none, \
                 fd:N, or a path that contains `/`, such as ./{other}"
            )),
        }
    }
}

impl fmt::Display for LogDestination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::StandardError => f.write_str("stderr"),
            Self::Journal => f.write_str("journal"),
            Self::Syslog => f.write_str("syslog"),
            Self::None => f.write_str("none"),
            Self::State => f.write_str("state"),
            Self::Descriptor(number) => write!(f, "fd:{number}"),
            Self::File(path) => write!(f, "{}", path.display()),
        }
    }
}

impl LogDestination {
    /// The directory of the log of runs, which may be opened again later; `None` for other
    /// destinations. The directory is created here, before the sandbox limits the process.
    #[must_use]
    pub fn shared_directory(&self) -> Option<PathBuf> {
        if *self != Self::State {
            return None;
        }
        let path = run_log(|name| std::env::var_os(name).map(PathBuf::from))?;
        let directory = path.parent()?.to_owned();
        DirBuilder::new().recursive(true).mode(0o700).create(&directory).ok()?;
        Some(directory)
    }
}

/// The severity of a line, with the numbers of syslog.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Severity {
    Error = 3,
    Warning = 4,
    Info = 6,
}

/// An open destination.
#[derive(Debug)]
pub(super) enum Sink {
    StandardError,
    Journal(UnixDatagram),
    Syslog(UnixDatagram),
    None,
    State(RunLog),
    File(LineFile),
}

impl Sink {
    /// Opens a destination.
    ///
    /// # Errors
    /// The destination cannot be opened. The error says what to do.
    pub(super) fn open(destination: &LogDestination) -> io::Result<Self> {
        match destination {
            LogDestination::StandardError => Ok(Self::StandardError),
            LogDestination::Journal => connect(JOURNAL).map(Self::Journal),
            LogDestination::Syslog => connect(SYSLOG).map(Self::Syslog),
            LogDestination::None => Ok(Self::None),
            LogDestination::State => {
                let path = run_log(|name| std::env::var_os(name).map(PathBuf::from));
                Ok(path.map_or(Self::None, |path| Self::State(RunLog::new(path))))
            }
            LogDestination::Descriptor(number) => descriptor::duplicate_inherited(*number)
                .map(|inherited| Self::File(LineFile::new(File::from(inherited))))
                .map_err(|error| {
                    let text = format!(
                        "cannot write the log to fd:{number}: {error}\n    \
                         fix: start the agent with the descriptor {number} open for writing \
                         (in a shell: {number}>FILE), or use --log FILE"
                    );
                    io::Error::new(error.kind(), text)
                }),
            LogDestination::File(path) => {
                append_to(path).map(|file| Self::File(LineFile::new(file))).map_err(|error| {
                    let text = format!("cannot open log file {}: {error}", path.display());
                    io::Error::new(error.kind(), text)
                })
            }
        }
    }

    /// Writes one line, which ends with a line feed.
    pub(super) fn write(&mut self, severity: Severity, line: &str) -> io::Result<()> {
        match self {
            Self::StandardError => io::stderr().write_all(line.as_bytes()),
            Self::Journal(journal) => {
                journal.send(journal_entry(severity, line).as_bytes()).map(drop)
            }
            Self::Syslog(syslog) => {
                syslog.send(syslog_message(severity, line).as_bytes()).map(drop)
            }
            Self::None => Ok(()),
            Self::State(log) => log.write(line),
            Self::File(file) => file.write(line),
        }
    }
}

fn connect(path: &str) -> io::Result<UnixDatagram> {
    let socket = UnixDatagram::unbound()?;
    socket.connect(path).map_err(|error| {
        let text = format!(
            "cannot connect to the log socket {path}: {error}\n    \
             fix: use --log stderr, or --log FILE"
        );
        io::Error::new(error.kind(), text)
    })?;
    Ok(socket)
}

/// An entry of the journal, one field in each line (systemd, "Native Journal Protocol").
fn journal_entry(severity: Severity, line: &str) -> String {
    let message = line.trim_end_matches('\n');
    format!("PRIORITY={}\nSYSLOG_IDENTIFIER=tacit\nMESSAGE={message}\n", severity as u8)
}

fn syslog_message(severity: Severity, line: &str) -> String {
    let message = line.trim_end_matches('\n');
    format!("<{}>tacit[{}]: {message}", SYSLOG_DAEMON | severity as u8, std::process::id())
}

/// Opens a file for appending, and creates it if it does not exist.
///
/// # Errors
/// The error of `open`; also if the file is a FIFO that no program reads.
pub(super) fn append_to(path: &Path) -> io::Result<File> {
    // Otherwise the kernel would wait until a program reads the FIFO.
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let opened =
        OpenOptions::new().append(true).create(true).mode(0o600).custom_flags(flags).open(path);
    let is_fifo = || path.metadata().is_ok_and(|metadata| metadata.file_type().is_fifo());
    let file = opened.map_err(|error| match error.raw_os_error() {
        Some(errno) if errno == Errno::NXIO.raw_os_error() && is_fifo() => io::Error::new(
            error.kind(),
            "no program reads this FIFO\n    fix: first start the program that reads the log",
        ),
        _ => error,
    })?;
    rustix::io::ioctl_fionbio(&file, false)?;
    Ok(file)
}

/// The path of the log of runs: `$XDG_STATE_HOME/tacit/run.log`, or `tacit/run.log` in
/// `.local/state` of the home directory. `None` if neither variable is set.
fn run_log(variable: impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    let absolute = |name| variable(name).filter(|path| path.is_absolute());
    let home = || absolute("HOME").map(|home| home.join(".local/state"));
    absolute("XDG_STATE_HOME").or_else(home).map(|base| base.join("tacit/run.log"))
}

/// The log that all runs of a user share. The file is created with the first line.
#[derive(Debug)]
pub(super) struct RunLog {
    path: PathBuf,
    file: Option<File>,
}

impl RunLog {
    fn new(path: PathBuf) -> Self {
        Self { path, file: None }
    }

    fn write(&mut self, line: &str) -> io::Result<()> {
        let mut file = match self.file.take() {
            Some(file) => file,
            None => self.open()?,
        };
        if file.metadata()?.len() + line.len() as u64 > RUN_LOG_BYTES_MAX {
            self.rename_if_current(&file)?;
            file = self.open()?;
        }
        file.write_all(line.as_bytes())?;
        self.file = Some(file);
        Ok(())
    }

    /// Opens the file and checks that this user owns it: others may have created the path.
    fn open(&self) -> io::Result<File> {
        if let Some(directory) = self.path.parent() {
            DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        }
        let file = OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed())
            .open(&self.path)?;
        let metadata = file.metadata()?;
        if !metadata.is_file() || metadata.uid() != process::effective_user() {
            let text = format!(
                "cannot open log file {}: another user owns the file, or the path is not a regular \
                 file",
                self.path.display()
            );
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
        }
        Ok(file)
    }

    /// Renames the full file, unless another run has renamed it meanwhile. Runs that do this at the
    /// same time wait for a lock: otherwise the second would rename the new file.
    fn rename_if_current(&self, file: &File) -> io::Result<()> {
        // The lock is released when the file is closed.
        file.lock()?;
        let (full, current) = match std::fs::metadata(&self.path) {
            Ok(current) => (file.metadata()?, current),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        if full.ino() != current.ino() || full.dev() != current.dev() {
            return Ok(());
        }
        let mut predecessor = self.path.clone().into_os_string();
        predecessor.push(".1");
        std::fs::rename(&self.path, predecessor)
    }
}

#[cfg(test)]
mod tests;
