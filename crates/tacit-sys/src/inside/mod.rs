//! Starting a program inside a namespace that a helper has made.
//!
//! ```text
//! fork -> join namespaces -> hide files -> filter -> rights, limits, signals -> exec
//! ```
//!
//! All of it happens between `fork` and `exec`, where only system calls are allowed: whatever they
//! need is made before the fork. What failed there is told through a pipe, by step.
//!
//! The child itself sends its mounts: once it is the program, it may have others.
//!
//! The program is a direct child: its exit status and job control are those of any other. It keeps
//! its user, directory, environment and streams. It holds no capability (as an ordinary user; root
//! stays root less the rights that lead out of the namespace), and set-uid programs work as far as
//! the user namespace maps their user: no promise is taken to gain no privileges, unless the
//! filter needs that one.
//!
//! Limits: [`HIDDEN_MAX`] paths are hidden at the start. What takes their place later is covered by
//! the process that joins the program's mounts ([`cover`]).

mod cover;
mod failure;
mod filter;
mod notify;

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
use filter::Answers;

pub use cover::cover;
pub use failure::{StartError, Step};
pub use filter::RefusedCall;
pub use notify::{Call, Listener};

/// Paths that can be hidden from one program; more are an error.
pub const HIDDEN_MAX: usize = 200;

/// In a report, what will take the place of hidden files: more than any of them.
const LATER_FILES: usize = 255;
const _: () = assert!(HIDDEN_MAX < LATER_FILES);

/// Files through which names are resolved without asking the network, and so around the agent.
/// Whole directories must stay: `/etc/resolv.conf` often leads into one of them.
pub const NAME_SERVICE_SOCKETS: [&str; 4] = [
    "/run/systemd/resolve/io.systemd.Resolve",
    "/run/systemd/resolve/io.systemd.Resolve.Monitor",
    "/run/nscd/socket",
    "/var/run/nscd/socket",
];

/// What a program finds inside.
#[derive(Debug)]
pub struct Inside<'a> {
    /// The network namespace.
    pub network: BorrowedFd<'a>,
    /// The user namespace; `None` for root, which shares the launcher's.
    pub user: Option<BorrowedFd<'a>>,
    /// Files that read as empty and directories that look empty; those that do not exist are
    /// passed over.
    pub hide: &'a [PathBuf],
    /// What the launcher has changed of itself since it began, and the program is not to inherit.
    pub original: &'a Original,
    /// Whether the program is killed when the thread that started it ends.
    pub dies_with_parent: bool,
    /// The CPUs that the program may run on; empty: those of whoever starts it.
    pub cpus: &'a [usize],
    /// A UNIX socket over which the filter's listener is sent ([`Listener`]); `None`, or a kernel
    /// that makes none: refused calls leave no trace.
    pub listener_to: Option<BorrowedFd<'a>>,
}

/// What the launcher was started with.
#[derive(Clone, Copy)]
pub struct Original {
    mask: libc::sigset_t,
    descriptors: Rlimit,
}

impl Original {
    /// Takes it down: call at the start of `main`, before signals are blocked or limits raised.
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

impl fmt::Debug for Original {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Original").field("descriptors", &self.descriptors).finish_non_exhaustive()
    }
}

/// A program that runs inside.
#[derive(Debug)]
pub struct Started {
    /// It.
    pub child: Child,
    /// Paths that could not be hidden, each with the reason.
    pub not_hidden: Vec<String>,
    /// The mounts in which the paths are hidden, for [`join_mounts`]; `None`: it has the caller's.
    pub mounts: Option<OwnedFd>,
}

/// Starts the command inside.
///
/// # Errors
/// [`StartError`]; the program has then not run.
pub fn spawn(mut command: Command, inside: &Inside<'_>) -> Result<Started, StartError> {
    let failed = |error| StartError::Inside { step: Step::Prepare, error };
    let (reader, writer) = io::pipe().map_err(failed)?;
    rustix::io::ioctl_fionbio(&reader, true).map_err(|errno| failed(errno.into()))?;
    let (mounts, mounts_to) = UnixStream::pair().map_err(failed)?;
    mounts.set_nonblocking(true).map_err(failed)?;
    let plan = Plan::new(inside, writer.into(), mounts_to.into()).map_err(failed)?;
    let hidden: Vec<_> = plan.hidden.iter().map(|hidden| hidden.target.clone()).collect();
    // SAFETY: between fork and exec `enter` makes system calls only: it neither allocates nor
    // takes locks, and everything it reads was made above. The descriptors it uses are borrowed
    // for the whole of this function, and `command` does not outlive it.
    unsafe { command.pre_exec(move || plan.enter()) };
    let spawned = command.spawn();
    // With it go our ends of the pipe and of the socket.
    drop(command);
    let mut reports = read_reports(reader);
    match spawned {
        Ok(child) => {
            reports.retain(|report| report.step == Step::Hide);
            let not_hidden = reports.iter().map(|report| report.not_hidden(&hidden)).collect();
            // Sent before the exec, if at all.
            let received = descriptor::receive(&mounts, &mut [0]).ok();
            let mounts = received.and_then(|mut received| received.descriptors.pop());
            Ok(Started { child, not_hidden, mounts })
        }
        Err(error) => Err(match reports.pop_if(|report| report.step != Step::Hide) {
            Some(report) => StartError::Inside { step: report.step, error },
            None => StartError::Program(error),
        }),
    }
}

/// Everything that is needed after the fork.
struct Plan {
    network: RawFd,
    user: Option<RawFd>,
    hidden: Vec<Hidden>,
    filter: Vec<libc::sock_filter>,
    /// The filter that asks a listener, and where that is sent.
    asking: Option<(Vec<libc::sock_filter>, RawFd)>,
    original: Original,
    dies_with_parent: bool,
    cpus: Option<CpuSet>,
    reports: OwnedFd,
    /// Where the child sends its mounts.
    mounts_to: OwnedFd,
}

impl Plan {
    fn new(inside: &Inside<'_>, reports: OwnedFd, mounts_to: OwnedFd) -> io::Result<Self> {
        if inside.hide.len() > HIDDEN_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many paths to hide"));
        }
        let mut hidden = Vec::new();
        for path in inside.hide {
            hidden.extend(Hidden::new(path)?);
        }
        Ok(Self {
            network: inside.network.as_raw_fd(),
            user: inside.user.map(|user| user.as_raw_fd()),
            hidden,
            filter: filter::program(Answers::Kernel),
            asking: inside
                .listener_to
                .map(|socket| (filter::program(Answers::Listener), socket.as_raw_fd())),
            original: *inside.original,
            dies_with_parent: inside.dies_with_parent,
            cpus: match inside.cpus {
                [] => None,
                cpus => Some(schedule::set_of(cpus)?),
            },
            reports,
            mounts_to,
        })
    }

    /// Runs in the child. System calls only: no allocation, no locks, no panic.
    fn enter(&self) -> io::Result<()> {
        if let Some(user) = self.user {
            self.step(Step::JoinUser, join(user, libc::CLONE_NEWUSER))?;
        }
        self.step(Step::JoinNetwork, join(self.network, libc::CLONE_NEWNET))?;
        if let Some(cpus) = &self.cpus {
            let placed = sched_setaffinity(None, cpus);
            self.step(Step::Place, placed.map_err(io::Error::from))?;
        }
        self.hide();
        self.step(Step::Filter, self.install())?;
        if self.user.is_none() {
            self.step(Step::Rights, drop_rights())?;
        }
        self.step(Step::Restore, self.restore())
    }

    /// Installs the filter that asks a listener where there can be one, else the plain one.
    fn install(&self) -> io::Result<()> {
        match self.try_install() {
            // Without rights over the namespace a filter asks for the promise to gain none later.
            Err(error) if is_missing_right(&error) => {
                rustix::thread::set_no_new_privs(true)?;
                // What a surrounding filter answers to the call for a listener may look the same.
                self.try_install().or_else(|_| self.install_plain())
            }
            installed => installed,
        }
    }

    fn try_install(&self) -> io::Result<()> {
        let Some((filter, socket)) = &self.asking else { return self.install_plain() };
        match notify::install(filter, *socket) {
            Err(error) if !is_missing_right(&error) => self.install_plain(),
            installed => installed,
        }
    }

    fn install_plain(&self) -> io::Result<()> {
        seccomp::install(&self.filter, 0).map(drop)
    }

    fn hide(&self) {
        if self.hidden.is_empty() {
            return;
        }
        if let Err(error) = own_mounts() {
            for index in 0..self.hidden.len() {
                self.report(Step::Hide, index, &error);
            }
            return;
        }
        for (index, hidden) in self.hidden.iter().enumerate() {
            if let Err(error) = hidden.cover() {
                self.report(Step::Hide, index, &error);
            }
        }
        if let Err(error) = cover::send_own_mounts(self.mounts_to.as_fd()) {
            self.report(Step::Hide, LATER_FILES, &error);
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

    fn step(&self, step: Step, result: io::Result<()>) -> io::Result<()> {
        if let Err(error) = &result {
            self.report(step, 0, error);
        }
        result
    }

    /// One report is six bytes, well below what a pipe takes at once.
    fn report(&self, step: Step, index: usize, error: &io::Error) {
        let [a, b, c, d] = error.raw_os_error().unwrap_or(0).to_ne_bytes();
        let index = u8::try_from(index).unwrap_or(u8::MAX);
        // Nobody to tell if this fails; a start that failed is seen by its missing exec.
        let _ = rustix::io::write(&self.reports, &[step as u8, index, a, b, c, d]);
    }
}

/// Has the calling process, which has one thread, see the mounts of a program from now on.
///
/// # Errors
/// Whatever `setns` answers: it takes rights over the namespace.
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

/// The rights with which root could take the rules away, join other namespaces or reach past them.
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

/// Out of the bounding set, so that running a program does not give them back to root.
fn drop_rights() -> io::Result<()> {
    let mut sets = rustix::thread::capabilities(None)?;
    for right in LEADING_OUT {
        match rustix::thread::remove_capability_from_bounding_set(right) {
            // A kernel too old to know it does not give it.
            Ok(()) | Err(rustix::io::Errno::INVAL) => {}
            Err(errno) => return Err(errno.into()),
        }
        sets.inheritable.remove(right);
    }
    Ok(rustix::thread::set_capabilities(None, sets)?)
}

#[derive(Debug)]
struct Report {
    step: Step,
    index: usize,
    error: io::Error,
}

impl Report {
    fn not_hidden(&self, hidden: &[CString]) -> String {
        let path = match hidden.get(self.index) {
            Some(path) => path.to_string_lossy(),
            None => "files that take the place of hidden ones".into(),
        };
        format!("{path}: {}", self.error)
    }
}

/// The child wrote all it had to say before the exec, and that was before `spawn` returned.
fn read_reports(mut reader: impl Read + AsFd) -> Vec<Report> {
    let mut bytes = Vec::new();
    // `WouldBlock` is the end too: a process forked elsewhere may hold the pipe open for a moment.
    let _ = reader.read_to_end(&mut bytes);
    let reports = bytes.as_chunks::<6>().0.iter().filter_map(|&[step, index, a, b, c, d]| {
        let errno = i32::from_ne_bytes([a, b, c, d]);
        let step = *Step::ALL.get(usize::from(step))?;
        Some(Report { step, index: index.into(), error: io::Error::from_raw_os_error(errno) })
    });
    reports.collect()
}
