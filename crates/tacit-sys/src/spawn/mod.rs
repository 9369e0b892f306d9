//! Starts a program for `tacit run`, in namespaces that a helper process has created.
//!
//! ```text
//! fork -> join namespaces -> hide files -> install filter -> set rights, limits, signals -> exec
//! ```
//!
//! Between `fork` and `exec`, the child may make only system calls, so the parent prepares all
//! arguments before the fork. The child reports a failed step through a pipe, and sends a
//! descriptor of its mount namespace.
//!
//! The program is a direct child of `tacit run`, so its exit status and job control work as usual.
//! The program keeps its user, directory, environment and standard streams. If an ordinary user
//! starts the program, the program has no capabilities. If root starts the program, the program
//! loses the capabilities that would let it leave the namespaces or remove the nftables rules.
//! Set-uid programs work if the user namespace maps their user.
//!
//! Limit: at most [`HIDDEN_MAX`] files are hidden from the program at its start. If a hidden file
//! is replaced later, the helper hides the new file ([`cover`]).

mod cover;
mod failure;
mod filter;
mod notify;
mod route_options;

use std::ffi::CString;
use std::fmt;
use std::io::{self, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command};

use rustix::process::{Resource, Rlimit};
use rustix::thread::{CapabilitySet, CpuSet, sched_setaffinity};

use crate::{descriptor, schedule, seccomp};
use cover::{Hidden, own_mounts};
use filter::RefusalSource;

pub use cover::cover;
pub use failure::{SpawnError, SpawnStep};
pub use filter::{ConnectCalls, NotifiedCall, RefusedCall, Socketcall};
pub use notify::{Call, FilterOutcome, NotifyListener, NotifyReply, ReceivedFilter};

/// The largest number of paths that can be hidden from one program; more are an error.
pub const HIDDEN_MAX: usize = 200;

/// In a report, this index stands for files that will replace hidden files. It is larger than the
/// index of any hidden file.
const LATER_FILES: usize = 255;
const _: () = assert!(HIDDEN_MAX < LATER_FILES);

/// The sockets of name services, which would resolve names without the agent. Their directories
/// must stay visible, because `/etc/resolv.conf` is often a link into one of them.
pub const NAME_SERVICE_SOCKETS: [&str; 4] = [
    "/run/systemd/resolve/io.systemd.Resolve",
    "/run/systemd/resolve/io.systemd.Resolve.Monitor",
    "/run/nscd/socket",
    "/var/run/nscd/socket",
];

/// The parameters for the start of a program.
#[derive(Debug)]
pub struct SpawnOptions<'a> {
    /// The network namespace.
    pub network: BorrowedFd<'a>,
    /// The user namespace to join; `None` for root, which stays in the launcher's user namespace.
    pub user: Option<BorrowedFd<'a>>,
    /// Files and directories to hide: the program sees them as empty. Paths that do not exist are
    /// skipped.
    pub hide: &'a [PathBuf],
    /// The signal mask and the limits from the start of the launcher. The program gets these
    /// instead of the changed ones.
    pub original: &'a LauncherState,
    /// Whether the program is killed when the thread that started it ends.
    pub dies_with_parent: bool,
    /// The CPUs on which the program may run; empty: the CPUs of the launcher.
    pub cpus: &'a [usize],
    /// The UNIX socket over which the child sends the filter's listener ([`NotifyListener`]).
    /// Without it, or if the kernel does not support listeners, refused calls are not reported.
    pub listener_to: Option<BorrowedFd<'a>>,
    /// How the filter handles calls that connect. If the kernel does not support
    /// [`ConnectCalls::Notified`], it allows them.
    pub connects: ConnectCalls,
}

/// The signal mask and limits that the launcher was started with.
#[derive(Clone, Copy)]
pub struct LauncherState {
    mask: libc::sigset_t,
    descriptors: Rlimit,
}

impl LauncherState {
    /// Records both. Call this at the start of `main`, before signals are blocked or limits are
    /// raised.
    #[must_use]
    pub fn capture() -> Self {
        let mut mask = MaybeUninit::<libc::sigset_t>::zeroed();
        // SAFETY: no new mask is given; the old one is written to a live, writable sigset_t.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), mask.as_mut_ptr()) };
        // SAFETY: a sigset_t is a set of bits, all of which were zeroed before the call.
        let mask = unsafe { mask.assume_init() };
        Self { mask, descriptors: rustix::process::getrlimit(Resource::Nofile) }
    }
}

impl fmt::Debug for LauncherState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Original").field("descriptors", &self.descriptors).finish_non_exhaustive()
    }
}

/// A program that was started in the namespace.
#[derive(Debug)]
pub struct SpawnedProgram {
    /// Its process.
    pub child: Child,
    /// Paths that could not be hidden, each with the reason.
    pub not_hidden: Vec<String>,
    /// The mount namespace in which the paths are hidden, for [`join_mounts`]; `None` if the
    /// program is in the caller's mount namespace.
    pub mounts: Option<OwnedFd>,
}

/// Starts the command in the namespace.
///
/// # Errors
/// [`SpawnError`]. The program has not been executed.
pub fn spawn(
    mut command: Command,
    options: &SpawnOptions<'_>,
) -> Result<SpawnedProgram, SpawnError> {
    let failed = |error| SpawnError::Setup { step: SpawnStep::Prepare, error };
    let (reader, writer) = io::pipe().map_err(failed)?;
    rustix::io::ioctl_fionbio(&reader, true).map_err(|errno| failed(errno.into()))?;
    let (mounts, mounts_to) = UnixStream::pair().map_err(failed)?;
    mounts.set_nonblocking(true).map_err(failed)?;
    let plan = ChildSetup::new(options, writer.into(), mounts_to.into()).map_err(failed)?;
    let hidden: Vec<_> = plan.hidden.iter().map(|hidden| hidden.target.clone()).collect();
    // SAFETY: between fork and exec `enter` makes system calls only: it neither allocates nor
    // takes locks, and everything it reads was made above. The descriptors it uses are borrowed
    // for the whole of this function, and `command` does not outlive it.
    unsafe { command.pre_exec(move || plan.enter()) };
    let spawned = command.spawn();
    // This closes the parent's ends of the pipe and of the socket.
    drop(command);
    let mut reports = read_reports(reader);
    match spawned {
        Ok(child) => {
            reports.retain(|report| report.step == SpawnStep::Hide);
            let not_hidden = reports.iter().map(|report| report.not_hidden(&hidden)).collect();
            // The child has sent it before the exec.
            let received = descriptor::receive(&mounts, &mut [0]).ok();
            let mounts = received.and_then(|mut received| received.descriptors.pop());
            Ok(SpawnedProgram { child, not_hidden, mounts })
        }
        Err(error) => Err(match reports.pop_if(|report| report.step != SpawnStep::Hide) {
            Some(report) => SpawnError::Setup { step: report.step, error },
            None => SpawnError::Program(error),
        }),
    }
}

/// A filter with a listener.
struct AskingFilter {
    program: Vec<libc::sock_filter>,
    flags: libc::c_ulong,
    /// The socket over which to send the listener.
    socket: RawFd,
    outcome: FilterOutcome,
}

/// The filters with a listener, in the order in which they are tried.
fn asking(options: &SpawnOptions<'_>) -> Vec<AskingFilter> {
    let Some(socket) = options.listener_to.map(|socket| socket.as_raw_fd()) else {
        return Vec::new();
    };
    let filter = |connects, flags| {
        let program = filter::program(RefusalSource::Listener, connects);
        let outcome = match (connects, options.connects) {
            (ConnectCalls::Notified, _) => FilterOutcome::Handled,
            (ConnectCalls::Allowed, ConnectCalls::Allowed) => FilterOutcome::NotWanted,
            (ConnectCalls::Allowed, ConnectCalls::Notified) => FilterOutcome::TooOld,
        };
        AskingFilter { program, flags, socket, outcome }
    };
    let plain = [
        filter(ConnectCalls::Allowed, notify::KILLABLE),
        filter(ConnectCalls::Allowed, notify::LISTENER),
    ];
    // A signal must not repeat a call whose socket was replaced.
    let first = (options.connects == ConnectCalls::Notified)
        .then(|| filter(ConnectCalls::Notified, notify::KILLABLE));
    first.into_iter().chain(plain).collect()
}

/// The data that the child needs after the fork.
struct ChildSetup {
    network: RawFd,
    user: Option<RawFd>,
    hidden: Vec<Hidden>,
    filter: Vec<libc::sock_filter>,
    /// The filters with a listener, in the order in which they are tried.
    asking: Vec<AskingFilter>,
    original: LauncherState,
    dies_with_parent: bool,
    cpus: Option<CpuSet>,
    reports: OwnedFd,
    /// The socket over which the child sends its mount namespace.
    mounts_to: OwnedFd,
}

impl ChildSetup {
    fn new(options: &SpawnOptions<'_>, reports: OwnedFd, mounts_to: OwnedFd) -> io::Result<Self> {
        if options.hide.len() > HIDDEN_MAX {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!(
                    "the policy names too many files: `tacit run` can hide at most {HIDDEN_MAX} \
                     files from a program"
                ),
            ));
        }
        let mut hidden = Vec::new();
        for path in options.hide {
            hidden.extend(Hidden::new(path)?);
        }
        Ok(Self {
            network: options.network.as_raw_fd(),
            user: options.user.map(|user| user.as_raw_fd()),
            hidden,
            filter: filter::program(RefusalSource::Kernel, ConnectCalls::Allowed),
            asking: asking(options),
            original: *options.original,
            dies_with_parent: options.dies_with_parent,
            cpus: match options.cpus {
                [] => None,
                cpus => Some(schedule::set_of(cpus)?),
            },
            reports,
            mounts_to,
        })
    }

    /// Runs in the child. Makes only system calls: no allocation, no locks, no panic.
    fn enter(&self) -> io::Result<()> {
        if let Some(user) = self.user {
            self.step(SpawnStep::JoinUser, join(user, libc::CLONE_NEWUSER))?;
        }
        self.step(SpawnStep::JoinNetwork, join(self.network, libc::CLONE_NEWNET))?;
        if let Some(cpus) = &self.cpus {
            let placed = sched_setaffinity(None, cpus);
            self.step(SpawnStep::Place, placed.map_err(io::Error::from))?;
        }
        self.hide();
        self.step(SpawnStep::Filter, self.install())?;
        // In the user namespace of a container this process may have become root.
        if self.user.is_none() || rustix::process::geteuid().is_root() {
            self.step(SpawnStep::Rights, drop_rights())?;
        }
        self.step(SpawnStep::Restore, self.restore())
    }

    /// Installs the filter with a listener, or the plain filter if the kernel allows no listener.
    fn install(&self) -> io::Result<()> {
        match self.try_install() {
            // Without CAP_SYS_ADMIN in the namespace, the kernel requires no_new_privs for a
            // filter.
            Err(error) if is_missing_right(&error) => {
                rustix::thread::set_no_new_privs(true)?;
                // An outer filter may return the same error for the request for a listener.
                let outcome = FilterOutcome::TooOld;
                self.try_install().or_else(|_| self.install_without_listener(outcome))
            }
            installed => installed,
        }
    }

    fn try_install(&self) -> io::Result<()> {
        let mut outcome = FilterOutcome::TooOld;
        for asking in &self.asking {
            match notify::install(&asking.program, asking.flags, asking.socket, asking.outcome) {
                Err(error) if is_missing_right(&error) => return Err(error),
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                    outcome = FilterOutcome::Nested;
                }
                Err(_) => {}
                Ok(()) => return Ok(()),
            }
        }
        self.install_without_listener(outcome)
    }

    fn install_without_listener(&self, outcome: FilterOutcome) -> io::Result<()> {
        seccomp::install(&self.filter, 0)?;
        if let Some(asking) = self.asking.first() {
            notify::report_none(asking.socket, outcome);
        }
        Ok(())
    }

    fn hide(&self) {
        if self.hidden.is_empty() {
            return;
        }
        if let Err(error) = own_mounts() {
            for index in 0..self.hidden.len() {
                self.report(SpawnStep::Hide, index, &error);
            }
            return;
        }
        for (index, hidden) in self.hidden.iter().enumerate() {
            if let Err(error) = hidden.cover() {
                self.report(SpawnStep::Hide, index, &error);
            }
        }
        if let Err(error) = cover::send_own_mounts(self.mounts_to.as_fd()) {
            self.report(SpawnStep::Hide, LATER_FILES, &error);
        }
    }

    fn restore(&self) -> io::Result<()> {
        rustix::process::setrlimit(Resource::Nofile, self.original.descriptors)?;
        if self.dies_with_parent {
            let kill = Some(rustix::process::Signal::KILL);
            rustix::process::set_parent_process_death_signal(kill)?;
        }
        // SAFETY: the default action has no handler; the runtime had set the signal to ignored.
        if unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) } == libc::SIG_ERR {
            return Err(io::Error::last_os_error());
        }
        let mask = &raw const self.original.mask;
        // SAFETY: the mask is a whole sigset_t; the old one is not asked for.
        match unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, mask, std::ptr::null_mut()) } {
            0 => Ok(()),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }

    fn step(&self, step: SpawnStep, result: io::Result<()>) -> io::Result<()> {
        if let Err(error) = &result {
            self.report(step, 0, error);
        }
        result
    }

    /// A report has six bytes, far fewer than a pipe accepts at once.
    fn report(&self, step: SpawnStep, index: usize, error: &io::Error) {
        let [a, b, c, d] = error.raw_os_error().unwrap_or(0).to_ne_bytes();
        let index = u8::try_from(index).unwrap_or(u8::MAX);
        // A failed write cannot be reported. The launcher then detects the failure because the
        // program is not executed.
        let _ = rustix::io::write(&self.reports, &[step as u8, index, a, b, c, d]);
    }
}

/// Moves this process into the mount namespace of a program. The process must have only one thread.
///
/// # Errors
/// The error of `setns`, which requires rights over the namespace.
pub fn join_mounts(mounts: BorrowedFd<'_>) -> io::Result<()> {
    join(mounts.as_raw_fd(), libc::CLONE_NEWNS)
}

fn join(namespace: RawFd, kind: libc::c_int) -> io::Result<()> {
    // SAFETY: takes no pointers; the descriptor is open, the process has one thread.
    let result = unsafe { libc::setns(namespace, kind) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn is_missing_right(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EACCES)
}

/// Capabilities with which root could remove the nftables rules or leave the namespaces.
const LEADING_OUT: [CapabilitySet; 8] = [
    CapabilitySet::NET_ADMIN,
    CapabilitySet::NET_RAW,
    CapabilitySet::SYS_ADMIN,
    CapabilitySet::SYS_PTRACE,
    CapabilitySet::SYS_MODULE,
    CapabilitySet::SYS_RAWIO,
    CapabilitySet::BPF,
    CapabilitySet::MKNOD,
];

/// Also removes them from the bounding set, so that `exec` does not return them to root.
fn drop_rights() -> io::Result<()> {
    let mut sets = rustix::thread::capabilities(None)?;
    for right in LEADING_OUT {
        match rustix::thread::remove_capability_from_bounding_set(right) {
            // An old kernel that does not know the capability does not grant it either.
            Ok(()) | Err(rustix::io::Errno::INVAL) => {}
            Err(errno) => return Err(errno.into()),
        }
        sets.inheritable.remove(right);
    }
    Ok(rustix::thread::set_capabilities(None, sets)?)
}

#[derive(Debug)]
struct Report {
    step: SpawnStep,
    index: usize,
    error: io::Error,
}

impl Report {
    fn not_hidden(&self, hidden: &[CString]) -> String {
        let path = match hidden.get(self.index) {
            Some(path) => path.to_string_lossy(),
            None => "files that will later replace hidden files".into(),
        };
        format!("{path}: {}", self.error)
    }
}

/// Reads the child's reports. The child wrote them before the exec, so they are complete when
/// `spawn` returns.
fn read_reports(mut reader: impl Read + AsFd) -> Vec<Report> {
    let mut bytes = Vec::new();
    // `WouldBlock` also means the end: a process that another thread has forked may hold the pipe
    // open.
    let _ = reader.read_to_end(&mut bytes);
    let reports = bytes.as_chunks::<6>().0.iter().filter_map(|&[step, index, a, b, c, d]| {
        let errno = i32::from_ne_bytes([a, b, c, d]);
        let step = *SpawnStep::ALL.get(usize::from(step))?;
        Some(Report { step, index: index.into(), error: io::Error::from_raw_os_error(errno) })
    });
    reports.collect()
}
