//! Receives and answers seccomp notifications. A seccomp filter selects some system calls of
//! programs under `tacit run`. For each selected call, the kernel notifies another process. That
//! process decides about the call.
//!
//! ```text
//!   child, before exec ── installs a filter ──> kernel: returns the listener (a descriptor)
//!                      ── sends the listener over a UNIX socket ──> helper
//!   program ── system call ──> kernel ── NotifyListener::take ──> helper
//!           <── the answer ────────────── NotifyListener::reply ──┘
//! ```
//!
//! Only the helper (the process that acts inside the program's namespaces) has the listener. The
//! agent has no copy, so a restart of the agent does not affect the listener. When the helper has
//! ended, these system calls fail with `ENOSYS`.
//!
//! If the kernel does not support a listener, tacit installs a filter without a listener. This
//! filter returns the same errors as the helper, but tacit does not report these calls.
//!
//! If the helper allows a call ([`NotifyReply::Proceed`]), the kernel reads the arguments of the
//! call again. Another thread of the program may have changed these arguments meanwhile.
//!
//! Limit: a signal may interrupt a system call that waits for an answer. If the program handles the
//! signal without `SA_RESTART`, the call ends with `EINTR`.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::FdFlags;

use super::filter::NotifiedCall;
use crate::{descriptor, seccomp};

/// Requests a listener. A signal that the program handles may repeat a call.
pub(super) const LISTENER: libc::c_ulong = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
/// The same; with `WAIT_KILLABLE_RECV` (Linux 5.19), such a signal does not repeat a call that was
/// received.
pub(super) const KILLABLE: libc::c_ulong = LISTENER | libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV;

/// Installs a filter with a listener, and sends the listener. Makes only system calls.
///
/// # Errors
/// The kernel does not create a listener. Then no filter is installed.
pub(super) fn install(
    filter: &[libc::sock_filter],
    flags: libc::c_ulong,
    socket: RawFd,
    outcome: FilterOutcome,
) -> io::Result<()> {
    let made = seccomp::install(filter, flags)?;
    let raw = RawFd::try_from(made).map_err(io::Error::other)?;
    // SAFETY: the kernel has just made the descriptor for this process, close-on-exec.
    let listener = unsafe { OwnedFd::from_raw_fd(raw) };
    // SAFETY: the launcher holds the socket open while it waits for this process to exec.
    let socket = unsafe { BorrowedFd::borrow_raw(socket) };
    // If no helper receives the listener, it is closed here, and the kernel itself refuses the
    // calls.
    let _ = descriptor::send(socket, &[outcome as u8], &[listener.as_fd()]);
    Ok(())
}

/// Reports to the helper that the filter has no listener. Makes only system calls.
pub(super) fn report_none(socket: RawFd, outcome: FilterOutcome) {
    // SAFETY: as in `install`.
    let socket = unsafe { BorrowedFd::borrow_raw(socket) };
    // If this fails, the helper has ended.
    let _ = descriptor::send(socket, &[outcome as u8], &[]);
}

/// What the filter of a program does about calls that connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilterOutcome {
    /// The listener decides about each.
    Handled = 0,
    /// The kernel executes them, as requested.
    NotWanted = 1,
    /// The kernel executes them. It has no listener that can decide about them (Linux 5.19).
    TooOld = 2,
    /// The kernel executes them, because this process is under the listener of another filter.
    Nested = 3,
}

impl FilterOutcome {
    const ALL: [Self; 4] = [Self::Handled, Self::NotWanted, Self::TooOld, Self::Nested];
}

/// The filter of a program that was started.
#[derive(Debug)]
pub struct ReceivedFilter {
    /// Its listener, if it has one.
    pub listener: Option<NotifyListener>,
    /// What it does about calls that connect; `None` if the program was not started.
    pub connects: Option<FilterOutcome>,
}

impl ReceivedFilter {
    /// Receives what the program's process sends before it executes the program.
    #[must_use]
    pub fn receive(from: impl AsFd) -> Self {
        let mut byte = [0];
        let received = descriptor::receive(from, &mut byte).ok().filter(|one| one.bytes > 0);
        let Some(mut received) = received else { return Self { listener: None, connects: None } };
        let listener = received.descriptors.pop();
        let listener = listener.and_then(|listener| NotifyListener::adopt(listener).ok());
        let sent = FilterOutcome::ALL.into_iter().find(|outcome| *outcome as u8 == byte[0]);
        let is_lost = listener.is_none() && sent == Some(FilterOutcome::Handled);
        Self { listener, connects: if is_lost { Some(FilterOutcome::TooOld) } else { sent } }
    }
}

/// Has the kernel run caller and listener on one CPU (Linux 6.6): while one runs, the other waits,
/// and to wake an idle CPU takes longer than all the rest.
fn wake_on_same_cpu(listener: BorrowedFd<'_>) {
    /// `SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP`
    const SYNC_WAKE_UP: libc::c_ulong = 1;
    let request = libc::SECCOMP_IOCTL_NOTIF_SET_FLAGS;
    // SAFETY: the argument is a number. Older kernels refuse the request, and work without it.
    unsafe { libc::ioctl(listener.as_raw_fd(), request, SYNC_WAKE_UP) };
}

/// The listener of one filter.
#[derive(Debug)]
pub struct NotifyListener {
    socket: OwnedFd,
    /// Buffers of the sizes that the kernel reports, which may be larger than the types in this
    /// program.
    call: Vec<u64>,
    answer: Vec<u64>,
}

/// A system call that waits for its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    id: u64,
    /// The ID of the calling thread in the PID namespace of this process; 0 if it has none there.
    pub thread: u32,
    /// The call.
    pub call: NotifiedCall,
}

/// The answer to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotifyReply {
    /// The call has succeeded.
    Done,
    /// The call has failed with this error.
    Error(libc::c_int),
    /// The call was interrupted by a signal that waits for the program. The kernel repeats it after
    /// the signal was handled, or the program gets `EINTR`, as for calls that the kernel executes.
    Interrupted,
    /// The kernel executes the call.
    Proceed,
}

/// `ERESTARTSYS`, which only the kernel knows.
const ERESTARTSYS: libc::c_int = 512;

impl NotifyListener {
    /// Uses a listener that was received from another process.
    ///
    /// # Errors
    /// The kernel does not report the sizes of its messages.
    pub fn adopt(socket: OwnedFd) -> io::Result<Self> {
        let mut sizes =
            libc::seccomp_notif_sizes { seccomp_notif: 0, seccomp_notif_resp: 0, seccomp_data: 0 };
        let operation = libc::SECCOMP_GET_NOTIF_SIZES;
        // SAFETY: the sizes are live and writable, and what the kernel writes with this operation.
        let result = unsafe { libc::syscall(libc::SYS_seccomp, operation, 0, &raw mut sizes) };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        let buffer = |known: usize, of_kernel: u16| {
            vec![0_u64; known.max(of_kernel.into()).div_ceil(size_of::<u64>())]
        };
        wake_on_same_cpu(socket.as_fd());
        Ok(Self {
            socket,
            call: buffer(size_of::<libc::seccomp_notif>(), sizes.seccomp_notif),
            answer: buffer(size_of::<libc::seccomp_notif_resp>(), sizes.seccomp_notif_resp),
        })
    }

    /// Receives the next call; `None` if no call waits. Only one thread of one process may call
    /// this: the kernel would block a second one.
    ///
    /// # Errors
    /// The descriptor is not a listener.
    pub fn take(&mut self) -> io::Result<Option<Call>> {
        let mut waiting = [PollFd::new(&self.socket, PollFlags::IN)];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut waiting, Some(&at_once))?;
        if !waiting[0].revents().contains(PollFlags::IN) {
            return Ok(None);
        }
        // The kernel accepts only a buffer of zeros.
        self.call.fill(0);
        let call = self.call.as_mut_ptr().cast::<libc::seccomp_notif>();
        // SAFETY: the buffer is live, writable, aligned, and of the kernel's size at least.
        let result =
            unsafe { libc::ioctl(self.socket.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV, call) };
        if result < 0 {
            return match io::Error::last_os_error() {
                // The caller was killed in the meantime.
                error if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
                error if error.kind() == io::ErrorKind::Interrupted => Ok(None),
                error => Err(error),
            };
        }
        // SAFETY: as above; all of it is numbers, of which every value is one.
        let call = unsafe { call.read() };
        let number = call.data.nr.cast_unsigned();
        let notified = NotifiedCall::identify(call.data.arch, number, &call.data.args);
        Ok(Some(Call { id: call.id, thread: call.pid, call: notified }))
    }

    /// Whether the call still waits for its answer. If it does, everything that was read from
    /// `/proc` about this thread before belongs to the caller.
    #[must_use]
    pub fn is_waiting(&self, call: &Call) -> bool {
        let id = &raw const call.id;
        // SAFETY: the number is live; the kernel reads it.
        let result =
            unsafe { libc::ioctl(self.socket.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_ID_VALID, id) };
        result == 0
    }

    /// Puts a descriptor of this process under a number of the caller, in place of the one that is
    /// there.
    ///
    /// # Errors
    /// The caller has ended, or the number is not within its limit of open files.
    pub fn replace_descriptor(
        &self,
        call: &Call,
        number: RawFd,
        by: BorrowedFd<'_>,
        flags: FdFlags,
    ) -> io::Result<()> {
        let invalid = |_| io::Error::from(io::ErrorKind::InvalidInput);
        let newfd_flags = if flags.contains(FdFlags::CLOEXEC) { libc::O_CLOEXEC } else { 0 };
        let replaced = libc::seccomp_notif_addfd {
            id: call.id,
            flags: u32::try_from(libc::SECCOMP_ADDFD_FLAG_SETFD).unwrap_or(1),
            srcfd: u32::try_from(by.as_raw_fd()).map_err(invalid)?,
            newfd: u32::try_from(number).map_err(invalid)?,
            newfd_flags: newfd_flags.cast_unsigned(),
        };
        let request = libc::SECCOMP_IOCTL_NOTIF_ADDFD;
        // SAFETY: the structure is live during the call, and the kernel only reads it.
        let result = unsafe { libc::ioctl(self.socket.as_raw_fd(), request, &raw const replaced) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Answers a call.
    ///
    /// # Errors
    /// The descriptor is not a listener. It is not an error if the caller has ended.
    pub fn reply(&mut self, call: &Call, reply: NotifyReply) -> io::Result<()> {
        let (error, flags) = match reply {
            NotifyReply::Done => (0, 0),
            NotifyReply::Error(error) => (-error, 0),
            NotifyReply::Interrupted => (-ERESTARTSYS, 0),
            NotifyReply::Proceed => {
                (0, u32::try_from(libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE).unwrap_or(1))
            }
        };
        let answer = libc::seccomp_notif_resp { id: call.id, val: 0, error, flags };
        self.answer.fill(0);
        let buffer = self.answer.as_mut_ptr().cast::<libc::seccomp_notif_resp>();
        // SAFETY: the buffer is live, writable, aligned and large enough.
        unsafe { buffer.write(answer) };
        // SAFETY: the same; the kernel reads of it what it knows.
        let result =
            unsafe { libc::ioctl(self.socket.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND, buffer) };
        match result {
            0 => Ok(()),
            _ => match io::Error::last_os_error() {
                error if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
                error => Err(error),
            },
        }
    }
}

impl AsFd for NotifyListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
