//! Reads data of a thread in another process, while that thread waits in a system call. The data
//! are the descriptors, the memory and the pending signals of the thread.

use std::cell::RefCell;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::OnceLock;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{CWD, Mode, OFlags, RawDir, SeekFrom};
use rustix::io::{Errno, FdFlags};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags};

use super::epoll::{Registration, can_move};

/// The largest number of descriptors of a process that one search examines. Each of them takes
/// about half a microsecond.
pub const DESCRIPTORS_MAX: usize = 512;

/// `KCMP_FILE` and `KCMP_EPOLL_TFD` of `<linux/kcmp.h>`.
const KCMP_FILE: libc::c_int = 0;
const KCMP_EPOLL_TFD: libc::c_int = 7;

/// The largest number of registrations of one descriptor number in one epoll instance.
const REGISTRATIONS_MAX: u32 = 4;

/// The links of the directory of threads of a process that has one.
const LINKS_OF_ONE_THREAD: u64 = 3;

/// A thread that waits in a system call.
#[derive(Debug)]
pub struct Caller {
    thread: u32,
    /// The ID of this process.
    own: u32,
    pidfd: OwnedFd,
    /// Whether `pidfd` refers to the thread, not to its process.
    is_of_thread: bool,
    /// The directory of its descriptors, while it is needed.
    directory: RefCell<Option<OwnedFd>>,
}

/// What refers to an open file among the descriptors of a process.
#[derive(Debug)]
pub struct References {
    /// Whether another descriptor than the known one refers to it.
    pub is_duplicated: bool,
    /// The epoll instances in which it is registered; `None` if a registration cannot be read or
    /// moved.
    pub registrations: Option<Vec<Registration>>,
}

/// Whether a signal waits that the thread would handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PendingSignal {
    /// No signal waits.
    None,
    /// A signal waits for this thread, or for a process that has no other thread.
    Certain,
    /// A signal waits for the process, of which another thread may handle it.
    OfProcess,
}

/// `kcmp_epoll_slot` of `<linux/kcmp.h>`.
#[repr(C)]
struct EpollSlot {
    efd: u32,
    tfd: u32,
    toff: u32,
}

impl Caller {
    /// Opens the thread with this ID.
    ///
    /// # Errors
    /// The thread has ended, or its process cannot be found.
    pub fn open(thread: u32) -> io::Result<Self> {
        // `PIDFD_THREAD` (Linux 6.9) has the value of `O_EXCL`.
        let of_thread = PidfdFlags::from_bits_retain(libc::O_EXCL.cast_unsigned());
        let opened = rustix::process::pidfd_open(pid(thread)?, of_thread);
        let is_of_thread = opened.is_ok();
        let pidfd = match opened {
            // Threads of a process share its descriptors, with the rare exception of threads that
            // have called `unshare`; those have files of their own, and older kernels cannot open
            // them.
            Err(Errno::INVAL) => {
                rustix::process::pidfd_open(pid(process_of(thread)?)?, PidfdFlags::empty())?
            }
            opened => opened?,
        };
        let own = std::process::id();
        Ok(Self { thread, own, pidfd, is_of_thread, directory: RefCell::default() })
    }

    /// Whether this is certainly the thread that has this ID now: the kernel gives the ID of a
    /// thread that has ended to another one.
    #[must_use]
    pub fn is_still(&self, thread: u32) -> bool {
        let Some(ended) = self.end().filter(|_| self.thread == thread) else { return false };
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::event::poll(&mut [PollFd::from_borrowed_fd(ended, PollFlags::IN)], Some(&at_once))
            == Ok(0)
    }

    /// A descriptor that is readable after the end of the thread; `None` if this kernel (Linux
    /// before 6.9) does not report it.
    #[must_use]
    pub fn end(&self) -> Option<BorrowedFd<'_>> {
        self.is_of_thread.then(|| self.pidfd.as_fd())
    }

    /// Closes the descriptor that a search keeps for the next one.
    pub fn end_search(&self) {
        self.directory.take();
    }

    /// The ID of the thread.
    #[must_use]
    pub fn thread(&self) -> u32 {
        self.thread
    }

    /// Returns a duplicate of a descriptor of the thread.
    ///
    /// # Errors
    /// The thread has no such descriptor, or must not be examined.
    pub fn descriptor(&self, number: RawFd) -> io::Result<OwnedFd> {
        Ok(rustix::process::pidfd_getfd(&self.pidfd, number, PidfdGetfdFlags::empty())?)
    }

    /// Copies memory of the process; returns the number of bytes.
    ///
    /// # Errors
    /// The memory is not readable, or the process must not be examined.
    pub fn read_memory(&self, address: u64, to: &mut [u8]) -> io::Result<usize> {
        let local = libc::iovec { iov_base: to.as_mut_ptr().cast(), iov_len: to.len() };
        let address = usize::try_from(address).map_err(|_| io::ErrorKind::InvalidInput)?;
        let remote =
            libc::iovec { iov_base: std::ptr::without_provenance_mut(address), iov_len: to.len() };
        let pid = self.raw_thread()?;
        // SAFETY: the local buffer is live and writable for its length; the remote address is that
        // of another process, which the kernel checks.
        let read =
            unsafe { libc::process_vm_readv(pid, &raw const local, 1, &raw const remote, 1, 0) };
        usize::try_from(read).map_err(|_| io::Error::last_os_error())
    }

    /// Whether a descriptor of this process and one of the thread refer to the same open file.
    ///
    /// # Errors
    /// The thread has no such descriptor, or the kernel does not compare files.
    pub fn is_same_file(&self, own: BorrowedFd<'_>, number: RawFd) -> io::Result<bool> {
        let number = u64::try_from(number).map_err(|_| io::ErrorKind::InvalidInput)?;
        self.compare(KCMP_FILE, own, number)
    }

    /// Looks for descriptors of the thread, other than this number, that refer to an open file of
    /// this process, and for the epoll instances in which the file is registered under the number.
    /// `None`: the thread has more than [`DESCRIPTORS_MAX`] descriptors. Keeps a descriptor for the
    /// next search.
    ///
    /// # Errors
    /// The thread has ended, or the kernel does not compare files.
    pub fn references(&self, own: BorrowedFd<'_>, number: RawFd) -> io::Result<Option<References>> {
        let Some(all) = self.numbers()? else { return Ok(None) };
        let mut is_duplicated = false;
        let mut registered_in = Vec::new();
        for other in all.into_iter().filter(|other| *other != number) {
            match self.is_same_file(own, other) {
                Ok(is_same) => is_duplicated |= is_same,
                // Another thread has closed it.
                Err(error) if error.raw_os_error() == Some(libc::EBADF) => continue,
                Err(error) => return Err(error),
            }
            if self.is_registered(own, other, number)? {
                registered_in.push(other);
            }
        }
        let registrations = self.registrations(own, number, &registered_in)?;
        Ok(Some(References { is_duplicated, registrations }))
    }

    /// Reads the registrations in these epoll instances; `None` if one cannot be read or moved.
    fn registrations(
        &self,
        own: BorrowedFd<'_>,
        number: RawFd,
        registered_in: &[RawFd],
    ) -> io::Result<Option<Vec<Registration>>> {
        let mut found = Vec::new();
        if registered_in.is_empty() {
            return Ok(Some(found));
        }
        if !can_move(number) {
            return Ok(None);
        }
        let inode = rustix::fs::fstat(own)?.st_ino;
        for epoll in registered_in {
            let text = std::fs::read_to_string(format!("/proc/{}/fdinfo/{epoll}", self.thread))?;
            match Registration::find(&text, number, inode) {
                Some(entry) => found.push(entry.with_epoll(self.descriptor(*epoll)?)),
                None => return Ok(None),
            }
        }
        Ok(Some(found))
    }

    fn is_registered(&self, own: BorrowedFd<'_>, epoll: RawFd, number: RawFd) -> io::Result<bool> {
        let unsigned = |number: RawFd| {
            u32::try_from(number).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))
        };
        let efd = unsigned(epoll)?;
        let tfd = unsigned(number)?;
        // Several files may be registered under one number: an old file, and the file that has the
        // number now.
        for toff in 0..REGISTRATIONS_MAX {
            let slot = EpollSlot { efd, tfd, toff };
            let at = (&raw const slot).expose_provenance() as u64;
            match self.compare(KCMP_EPOLL_TFD, own, at) {
                Ok(true) => return Ok(true),
                Ok(false) => {}
                // Not an epoll instance, no entry, or closed.
                Err(error)
                    if [libc::EINVAL, libc::ENOENT, libc::EBADF]
                        .map(Some)
                        .contains(&error.raw_os_error()) =>
                {
                    return Ok(false);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }

    fn compare(&self, kind: libc::c_int, own: BorrowedFd<'_>, other: u64) -> io::Result<bool> {
        let me = self.own;
        let fd = own.as_raw_fd();
        // SAFETY: `other` is a number, or for KCMP_EPOLL_TFD the address of a slot that is live
        // during the call; the kernel writes nothing.
        let result = unsafe { libc::syscall(libc::SYS_kcmp, me, self.thread, kind, fd, other) };
        match result {
            0 => Ok(true),
            1.. => Ok(false),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// The numbers of the open descriptors; `None` if there are more than [`DESCRIPTORS_MAX`].
    fn numbers(&self) -> io::Result<Option<Vec<RawFd>>> {
        let mut kept = self.directory.borrow_mut();
        let directory = match kept.take() {
            Some(directory) => {
                rustix::fs::seek(&directory, SeekFrom::Start(0))?;
                directory
            }
            None => {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
                let path = format!("/proc/{}/fd", self.thread);
                rustix::fs::openat(CWD, path, flags, Mode::empty())?
            }
        };
        let directory = kept.insert(directory);
        let mut space = [MaybeUninit::uninit(); 8192];
        let mut entries = RawDir::new(&*directory, &mut space);
        let mut found = Vec::new();
        while let Some(entry) = entries.next() {
            let name = entry?.file_name().to_str().ok().map(str::parse::<RawFd>);
            // The entries `.` and `..` are no numbers.
            found.extend(name.and_then(Result::ok));
            if found.len() > DESCRIPTORS_MAX {
                return Ok(None);
            }
        }
        Ok(Some(found))
    }

    /// The descriptor flags of a number.
    ///
    /// # Errors
    /// The thread has no such descriptor.
    pub fn descriptor_flags(&self, number: RawFd) -> io::Result<FdFlags> {
        let path = format!("/proc/{}/fdinfo/{number}", self.thread);
        let file = rustix::fs::openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        // The flags are in the second line.
        let mut text = [0; 64];
        let length = rustix::io::read(&file, &mut text)?;
        let text = String::from_utf8_lossy(&text[..length]);
        let flags = text.lines().find_map(|line| line.strip_prefix("flags:"));
        let flags = flags.and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok());
        let flags = flags.ok_or(io::ErrorKind::InvalidData)?;
        let is_closed = flags & libc::O_CLOEXEC.cast_unsigned() != 0;
        Ok(if is_closed { FdFlags::CLOEXEC } else { FdFlags::empty() })
    }

    /// Whether the process of the thread certainly has no other thread. Then its descriptors do not
    /// change while the thread waits, unless it shares them with another process.
    #[must_use]
    pub fn is_alone(&self) -> bool {
        // The directory of threads has two links, and one for each thread.
        let links = |process: &str| {
            rustix::fs::stat(format!("/proc/{process}/task")).map_or(0, |task| task.st_nlink)
        };
        static IS_COUNTED: OnceLock<bool> = OnceLock::new();
        let is_counted = || links("self") >= LINKS_OF_ONE_THREAD;
        *IS_COUNTED.get_or_init(is_counted)
            && links(&self.thread.to_string()) == LINKS_OF_ONE_THREAD
    }

    /// Whether a signal waits that the thread neither blocks nor ignores.
    ///
    /// # Errors
    /// The thread has ended.
    pub fn pending_signal(&self) -> io::Result<PendingSignal> {
        Ok(pending(&std::fs::read_to_string(format!("/proc/{}/status", self.thread))?))
    }

    fn raw_thread(&self) -> io::Result<libc::pid_t> {
        libc::pid_t::try_from(self.thread).map_err(|_| io::ErrorKind::InvalidInput.into())
    }
}

/// Evaluates the signals in the text of `/proc/PID/status`.
fn pending(status: &str) -> PendingSignal {
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
    let set = |name| field(name).and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
    let held = set("SigBlk:").unwrap_or(0) | set("SigIgn:").unwrap_or(0);
    let waits = |name| set(name).unwrap_or(0) & !held != 0;
    let is_alone = field("Threads:").is_some_and(|count| count.trim() == "1");
    match (waits("SigPnd:"), waits("ShdPnd:")) {
        (true, _) => PendingSignal::Certain,
        (false, true) if is_alone => PendingSignal::Certain,
        (false, true) => PendingSignal::OfProcess,
        (false, false) => PendingSignal::None,
    }
}

fn pid(number: u32) -> io::Result<Pid> {
    let number = i32::try_from(number).ok().and_then(Pid::from_raw);
    number.ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// The process of a thread.
fn process_of(thread: u32) -> io::Result<u32> {
    let status = std::fs::read_to_string(format!("/proc/{thread}/status"))?;
    let process = status.lines().find_map(|line| line.strip_prefix("Tgid:"));
    process.and_then(|id| id.trim().parse().ok()).ok_or_else(|| io::ErrorKind::NotFound.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// The calling thread, as if it waited in a call.
    fn this_thread() -> Caller {
        Caller::open(rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned()).unwrap()
    }

    #[test]
    fn descriptors_and_memory_of_a_thread_are_read() {
        let caller = std::thread::spawn(this_thread).join().unwrap();
        assert!(caller.descriptor_flags(0).is_err(), "the thread has ended");
        let caller = this_thread();
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let number = socket.as_raw_fd();
        let copy = caller.descriptor(number).unwrap();
        assert!(caller.is_same_file(copy.as_fd(), number).unwrap());
        assert!(!caller.is_same_file(copy.as_fd(), 0).unwrap());
        assert_eq!(caller.descriptor_flags(number).unwrap(), FdFlags::CLOEXEC);
        rustix::io::fcntl_setfd(&socket, FdFlags::empty()).unwrap();
        assert_eq!(caller.descriptor_flags(number).unwrap(), FdFlags::empty());
        assert_eq!(caller.descriptor(99_999).unwrap_err().raw_os_error(), Some(libc::EBADF));
        let there = *b"address";
        let mut here = [0; 7];
        let address = there.as_ptr().expose_provenance() as u64;
        assert_eq!(caller.read_memory(address, &mut here).unwrap(), 7);
        assert_eq!(here, there);
        assert!(caller.read_memory(8, &mut here).is_err());
    }

    #[test]
    fn a_thread_that_has_ended_is_not_taken_for_another_one() {
        let caller = this_thread();
        // Linux before 6.9 opens processes only.
        assert_eq!(caller.is_still(caller.thread()), caller.is_of_thread);
        assert!(!caller.is_still(caller.thread() + 1));
        let ended = std::thread::spawn(this_thread).join().unwrap();
        assert!(!ended.is_still(ended.thread()));
        if let Some(end) = ended.end() {
            let mut polled = [PollFd::from_borrowed_fd(end, PollFlags::IN)];
            assert_eq!(rustix::event::poll(&mut polled, None), Ok(1));
        }
    }

    #[test]
    fn a_process_with_one_thread_is_recognised() {
        let mut child = std::process::Command::new("sleep").arg("10").spawn().unwrap();
        assert!(Caller::open(child.id()).unwrap().is_alone());
        child.kill().unwrap();
        child.wait().unwrap();
        let (end, wait) = std::sync::mpsc::channel::<()>();
        let other = std::thread::spawn(move || wait.recv());
        assert!(!this_thread().is_alone());
        drop(end);
        assert!(other.join().unwrap().is_err());
    }

    #[test]
    fn a_duplicate_is_found() {
        let caller = this_thread();
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let number = socket.as_raw_fd();
        let is_duplicated = || {
            let found = caller.references(socket.as_fd(), number).unwrap().unwrap();
            assert!(found.registrations.is_some_and(|all| all.is_empty()));
            found.is_duplicated
        };
        assert!(!is_duplicated());
        let second = socket.try_clone().unwrap();
        assert!(is_duplicated());
        drop(second);
        assert!(!is_duplicated(), "each search sees changes");
    }

    #[test]
    fn only_signals_that_are_neither_blocked_nor_ignored_count() {
        let status = |own: u64, shared: u64, blocked: u64, ignored: u64, threads: u32| {
            pending(&format!(
                "Threads:\t{threads}\nSigPnd:\t{own:016x}\nShdPnd:\t{shared:016x}\n\
                 SigBlk:\t{blocked:016x}\nSigIgn:\t{ignored:016x}\n"
            ))
        };
        let alarm = 1 << 13;
        assert_eq!(status(0, 0, 0, 0, 1), PendingSignal::None);
        assert_eq!(status(alarm, 0, 0, 0, 9), PendingSignal::Certain);
        assert_eq!(status(0, alarm, 0, 0, 1), PendingSignal::Certain);
        assert_eq!(status(0, alarm, 0, 0, 2), PendingSignal::OfProcess);
        assert_eq!(status(alarm, alarm, alarm, 0, 1), PendingSignal::None);
        assert_eq!(status(alarm, alarm, 0, alarm, 1), PendingSignal::None);
    }
}
