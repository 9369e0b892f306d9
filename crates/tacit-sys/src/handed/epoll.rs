//! Replaces one socket by another in the epoll instances of a program.
//!
//! The kernel identifies an epoll entry by an open file description and a descriptor number. To
//! remove or add an entry, a thread must use the program's descriptor number. In the process of
//! tacit, that number may belong to another file. So this module starts a thread with its own
//! descriptor table ([`libc::CLONE_FILES`]). In its table, the thread copies the old socket to the
//! program's descriptor number, and removes the epoll entry. Then the thread copies the new socket
//! to this number, and adds the entry again.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};

/// A registration of a file in an epoll instance.
#[derive(Debug)]
pub struct Registration {
    epoll: OwnedFd,
    entry: Entry,
}

/// The entry in the kernel's text about an epoll instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    events: u32,
    data: u64,
}

impl Entry {
    pub(super) fn with_epoll(self, epoll: OwnedFd) -> Registration {
        Registration { epoll, entry: self }
    }

    /// Whether the entry reports no events until the program sets them again. A new entry with the
    /// same events would report errors.
    fn is_disabled(self) -> bool {
        self.events & !EPOLL_PRIVATE_BITS == 0
    }
}

/// `EPOLLET`, `EPOLLONESHOT`, `EPOLLWAKEUP` and `EPOLLEXCLUSIVE`.
const EPOLL_PRIVATE_BITS: u32 = 0xf000_0000;
/// Needs a capability, without which the kernel ignores it.
const EPOLLWAKEUP: u32 = 0x2000_0000;

impl Registration {
    /// Finds the entry of a descriptor number and an inode in the text of `/proc/PID/fdinfo/EPOLL`;
    /// `None` if it is missing or cannot be moved.
    pub(super) fn find(text: &str, number: RawFd, inode: u64) -> Option<Entry> {
        text.lines().find_map(|line| {
            let mut words = line.split_whitespace();
            let mut value = |name: &str| {
                let word = words.next()?;
                match word.strip_prefix(name)? {
                    "" => words.next(),
                    value => Some(value),
                }
            };
            let found: RawFd = value("tfd:")?.parse().ok()?;
            let events = u32::from_str_radix(value("events:")?, 16).ok()?;
            let data = u64::from_str_radix(value("data:")?, 16).ok()?;
            let _position = value("pos:")?;
            let found_inode = u64::from_str_radix(value("ino:")?, 16).ok()?;
            let entry = Entry { events: events & !EPOLLWAKEUP, data };
            (found == number && found_inode == inode && !entry.is_disabled()).then_some(entry)
        })
    }
}

/// Whether registrations under this descriptor number can be moved: this process must be able to
/// use the number, and three above it.
#[must_use]
pub(super) fn can_move(number: RawFd) -> bool {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let wanted = u64::try_from(number).map_or(u64::MAX, |number| number.saturating_add(4));
    limit.is_none_or(|limit| wanted <= limit)
}

/// Moves registrations of `old` under a descriptor number to `new`.
///
/// # Errors
/// The kernel refuses; then some of the registrations may be lost.
pub fn move_registrations(
    old: BorrowedFd<'_>,
    new: BorrowedFd<'_>,
    number: RawFd,
    registrations: &[Registration],
) -> io::Result<()> {
    if registrations.is_empty() {
        return Ok(());
    }
    let work = || move_all(old.as_raw_fd(), new.as_raw_fd(), number, registrations);
    // The thread ends before this returns, so it never runs beside other work of this process.
    std::thread::scope(|scope| {
        let moved = std::thread::Builder::new().spawn_scoped(scope, work)?;
        moved.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))
    })
}

/// Runs in a thread of its own.
fn move_all(
    old: RawFd,
    new: RawFd,
    number: RawFd,
    registrations: &[Registration],
) -> io::Result<()> {
    // SAFETY: takes no pointers. From here on, this thread has a copy of the descriptor table:
    // nothing that it opens, replaces or closes changes the descriptors of other threads.
    if unsafe { libc::unshare(libc::CLONE_FILES) } < 0 {
        return Err(io::Error::last_os_error());
    }
    let moved = registrations.iter().try_for_each(|one| move_one(old, new, number, one));
    // The kernel drops the copy only some time after the join, and until then it would keep the
    // sockets of the program open.
    // SAFETY: takes no pointers. It closes descriptors of this thread's own table, which no other
    // code uses: the thread ends now.
    unsafe { libc::syscall(libc::SYS_close_range, 0, u32::MAX, 0) };
    moved
}

fn move_one(old: RawFd, new: RawFd, number: RawFd, one: &Registration) -> io::Result<()> {
    let above = number.saturating_add(1);
    let epoll = checked(|| {
        // SAFETY: the number is only looked at by the kernel; the result belongs to this thread.
        unsafe { libc::fcntl(one.epoll.as_raw_fd(), libc::F_DUPFD, above) }
    })?;
    let [old, new] = [old, new].map(|file| {
        // SAFETY: as above.
        checked(|| unsafe { libc::fcntl(file, libc::F_DUPFD, above) })
    });
    let old = old?;
    let new = new?;
    let mut event = libc::epoll_event { events: one.entry.events, u64: one.entry.data };
    // SAFETY: both are descriptors of this thread's own table.
    checked(|| unsafe { libc::dup2(old, number) })?;
    let none = std::ptr::null_mut();
    // SAFETY: the kernel reads no event for this operation.
    let removed = checked(|| unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_DEL, number, none) });
    let is_absent = |error: &io::Error| error.raw_os_error() == Some(libc::ENOENT);
    if removed.as_ref().is_err_and(is_absent) {
        // Another descriptor refers to the same instance, or the program has removed the entry.
        return Ok(());
    }
    removed?;
    // SAFETY: as for the first.
    checked(|| unsafe { libc::dup2(new, number) })?;
    let event = &raw mut event;
    // SAFETY: the event is live during the call.
    checked(|| unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, number, event) })?;
    for own in [epoll, old, new] {
        // SAFETY: a descriptor of this thread's own table, made above.
        unsafe { libc::close(own) };
    }
    Ok(())
}

fn checked(call: impl FnOnce() -> libc::c_int) -> io::Result<libc::c_int> {
    match call() {
        result @ 0.. => Ok(result),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;

    use rustix::event::{Timespec, epoll};

    use crate::handed::Caller;

    #[test]
    fn an_entry_is_found_by_number_and_inode() {
        let text = "pos:\t0\nflags:\t02\nmnt_id:\t15\nino:\t1047\n\
                    tfd:        5 events: 80000005 data: ffffffff00000005  pos:0 ino:9a01 sdev:8\n\
                    tfd:        5 events:        5 data:                7  pos:0 ino:9a02 sdev:8\n\
                    tfd:        6 events: 40000000 data:                8  pos:0 ino:9a03 sdev:8\n";
        let find = |number, inode| Registration::find(text, number, inode);
        let first = Entry { events: 0x8000_0005, data: 0xffff_ffff_0000_0005 };
        assert_eq!(find(5, 0x9a01), Some(first));
        assert_eq!(find(5, 0x9a02), Some(Entry { events: 5, data: 7 }));
        assert_eq!(find(6, 0x9a03), None, "a disabled entry");
        assert_eq!(find(7, 0x9a02), None);
    }

    #[test]
    fn a_registration_moves_to_the_socket_that_takes_the_number() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let old = crate::handed::new_tcp(crate::IpVersion::V4).unwrap();
        let number = old.as_raw_fd();
        let kept = old.try_clone().unwrap();
        let instance = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let data = epoll::EventData::new_u64(77);
        epoll::add(&instance, &old, data, epoll::EventFlags::IN).unwrap();
        // Puts the new socket under the number of the old one.
        let new = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut at = old;
        rustix::io::dup2(&new, &mut at).unwrap();
        let thread = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
        let caller = Caller::open(thread).unwrap();
        let found = caller.references(kept.as_fd(), number).unwrap().unwrap();
        assert!(found.is_duplicated, "this process has a duplicate");
        let found = found.registrations.unwrap();
        assert!(!found.is_empty());
        move_registrations(kept.as_fd(), new.as_fd(), number, &found).unwrap();
        drop((kept, found));
        let mut peer = listener.accept().unwrap().0;
        io::Write::write_all(&mut peer, b"x").unwrap();
        let mut events = [const { std::mem::MaybeUninit::uninit() }; 4];
        let wait = Timespec { tv_sec: 5, tv_nsec: 0 };
        let (events, _) = epoll::wait(&instance, &mut events, Some(&wait)).unwrap();
        assert_eq!(events.len(), 1);
        let data = events[0].data;
        let flags = events[0].flags;
        assert_eq!((data.u64(), flags), (77, epoll::EventFlags::IN));
        assert_eq!(at.as_raw_fd(), number);
        epoll::modify(&instance, &at, data, epoll::EventFlags::OUT).unwrap();
    }
}
