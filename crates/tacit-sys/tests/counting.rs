//! Counts the system calls and heap allocations of a thread, for tests that expect certain numbers.
//!
//! ```text
//! thread under test --every system call--> kernel --asks--> counting thread: counts, allows
//! thread under test --every allocation--> the counter of that thread
//! ```
//!
//! Both counts include all code that the thread runs. A seccomp filter makes the kernel ask the
//! counting thread about each system call. This filter needs Linux 5.5, and does not need root. The
//! Rust allocator in this file counts allocations. With the GNU C library, the function `malloc` in
//! this file also counts allocations. Tests of other crates include this file by its path.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test stops at the first unexpected result"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The counts of system calls, by thread and number.
#[derive(Debug, Default)]
pub struct SystemCalls {
    counts: Mutex<BTreeMap<(u32, i64), u64>>,
}

impl SystemCalls {
    /// Runs `work` on a thread of its own, and counts its system calls and those of all threads
    /// that it starts.
    pub fn of(work: impl FnOnce() + Send + 'static) -> Arc<Self> {
        let calls = Arc::new(Self::default());
        // The descriptor cannot be passed by a system call, because after the installation of the
        // filter each call waits for the owner of the descriptor.
        let listener = Arc::new(AtomicI32::new(-1));
        let counted = Arc::clone(&calls);
        let handed = Arc::clone(&listener);
        std::thread::spawn(move || {
            let listener = loop {
                match handed.load(Ordering::Acquire) {
                    -1 => std::thread::sleep(Duration::from_millis(1)),
                    listener => break listener,
                }
            };
            counted.serve(listener);
        });
        std::thread::spawn(move || {
            listener.store(kernel::ask_about_every_call(), Ordering::Release);
            work();
        });
        calls
    }

    /// Returns the counts of one thread so far, by system call number.
    pub fn of_thread(&self, thread: u32) -> BTreeMap<i64, u64> {
        let counts = self.counts.lock().unwrap();
        counts.iter().filter(|((of, _), _)| *of == thread).map(|((_, nr), n)| (*nr, *n)).collect()
    }

    /// Returns the thread with this name.
    pub fn thread_named(&self, name: &str) -> Option<u32> {
        let counts = self.counts.lock().unwrap();
        counts.keys().map(|(thread, _)| *thread).find(|thread| {
            let comm = std::fs::read_to_string(format!("/proc/self/task/{thread}/comm"));
            comm.is_ok_and(|comm| comm.trim_end() == name)
        })
    }

    fn serve(&self, listener: i32) {
        while let Some(call) = kernel::next_call(listener) {
            *self.counts.lock().unwrap().entry((call.pid, call.data.nr.into())).or_default() += 1;
            kernel::let_through(listener, call.id);
        }
    }
}

/// Returns how often a thread has allocated memory so far.
pub fn allocations(thread: u32) -> u64 {
    ALLOCATIONS[place(thread)].load(Ordering::Relaxed)
}

/// The counters distinguish threads whose IDs differ by less than this number.
const THREADS: usize = 4096;
static ALLOCATIONS: [AtomicU64; THREADS] = [const { AtomicU64::new(0) }; THREADS];

fn place(thread: u32) -> usize {
    usize::try_from(thread).unwrap() % THREADS
}

fn count_allocation() {
    thread_local! {
        static PLACE: Cell<Option<usize>> = const { Cell::new(None) };
    }
    let at = PLACE.get().unwrap_or_else(|| {
        let thread = rustix::thread::gettid().as_raw_nonzero().get();
        place(thread.unsigned_abs())
    });
    PLACE.set(Some(at));
    ALLOCATIONS[at].fetch_add(1, Ordering::Relaxed);
}

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: everything is left to the system's allocator, which keeps the contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count_allocation();
        // SAFETY: the caller's promise is the one asked for here.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is the one asked for here.
        unsafe { System.dealloc(memory, layout) }
    }
}

/// C code calls this function. Rust's allocator calls it too, so its allocations are counted twice.
#[cfg(target_env = "gnu")]
// SAFETY: it does what the C library's does, by calling that.
#[unsafe(no_mangle)]
unsafe extern "C" fn malloc(bytes: usize) -> *mut libc::c_void {
    unsafe extern "C" {
        fn __libc_malloc(bytes: usize) -> *mut libc::c_void;
    }
    count_allocation();
    // SAFETY: takes any size.
    unsafe { __libc_malloc(bytes) }
}

mod kernel {
    use std::io;
    use std::mem::MaybeUninit;

    /// Makes the kernel report every system call of this thread and of those that it starts.
    /// Returns the descriptor over which it reports them.
    pub(super) fn ask_about_every_call() -> i32 {
        const RETURN: u16 = 0x06;
        let mut filter =
            [libc::sock_filter { code: RETURN, jt: 0, jf: 0, k: libc::SECCOMP_RET_USER_NOTIF }];
        let program = libc::sock_fprog { len: 1, filter: filter.as_mut_ptr() };
        // SAFETY: takes no pointers.
        unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
        // SAFETY: the program is one valid instruction, which the kernel copies.
        let listener = unsafe {
            libc::syscall(
                libc::SYS_seccomp,
                libc::SECCOMP_SET_MODE_FILTER,
                libc::SECCOMP_FILTER_FLAG_NEW_LISTENER,
                &raw const program,
            )
        };
        i32::try_from(listener).ok().filter(|fd| *fd >= 0).unwrap_or_else(|| {
            panic!("seccomp, which counts system calls here: {}", io::Error::last_os_error())
        })
    }

    /// Waits for the next call; `None` when there is no thread left.
    pub(super) fn next_call(listener: i32) -> Option<libc::seccomp_notif> {
        loop {
            let mut call = MaybeUninit::<libc::seccomp_notif>::zeroed();
            // SAFETY: the kernel writes one such structure, which was zeroed as it demands.
            let result =
                unsafe { libc::ioctl(listener, libc::SECCOMP_IOCTL_NOTIF_RECV, call.as_mut_ptr()) };
            if result == 0 {
                // SAFETY: integers only, all zeroed or written.
                return Some(unsafe { call.assume_init() });
            }
            match io::Error::last_os_error().raw_os_error() {
                // The thread was killed in the meantime. The loop ends if it was the last one.
                Some(libc::ENOENT) if !is_done(listener) => {}
                Some(libc::EINTR) => {}
                _ => return None,
            }
        }
    }

    fn is_done(listener: i32) -> bool {
        let mut polled = libc::pollfd { fd: listener, events: 0, revents: 0 };
        // SAFETY: one structure, which lives here.
        let ready = unsafe { libc::poll(&raw mut polled, 1, 0) };
        ready == 1 && polled.revents & libc::POLLHUP != 0
    }

    pub(super) fn let_through(listener: i32, id: u64) {
        const CONTINUE: u32 = 1;
        let mut answer = libc::seccomp_notif_resp { id, val: 0, error: 0, flags: CONTINUE };
        // SAFETY: the kernel reads one such structure. Who asked may be gone.
        unsafe { libc::ioctl(listener, libc::SECCOMP_IOCTL_NOTIF_SEND, &raw mut answer) };
    }
}

#[test]
fn what_a_thread_does_is_counted_to_the_call() {
    use std::io::Read;
    let (mut ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let calls = SystemCalls::of(move || {
        let thread = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        let before = allocations(thread);
        let memory = std::hint::black_box(Box::new(7_u64));
        let count = allocations(thread) - before;
        drop(memory);
        for byte in [u8::try_from(count).unwrap(), 0, 0] {
            rustix::net::send(&theirs, &[byte], rustix::net::SendFlags::empty()).unwrap();
        }
    });
    let mut said = Vec::new();
    ours.read_to_end(&mut said).unwrap();
    // One count for Rust and, with the GNU C library, one for the C library.
    assert_eq!(said, [if cfg!(target_env = "gnu") { 2 } else { 1 }, 0, 0]);
    let counts = calls.counts.lock().unwrap();
    let sends = counts.iter().filter(|((_, number), _)| *number == libc::SYS_sendto);
    assert_eq!(sends.map(|(_, count)| *count).sum::<u64>(), 3, "{counts:?}");
}
