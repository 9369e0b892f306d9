//! Exchanges requests and answers with a thread of another process, in memory that both map.
//!
//! ```text
//! requesting thread                 memory                   answering thread
//!   writes the request, ASKED ──>   state, length, bytes ──> copies the request
//!   wakes the other, waits                                   works
//!   copies the answer         <──   state, length, bytes <── writes the answer, READY
//!                                                            wakes the other
//! ```
//!
//! An exchange costs each thread two `futex` calls. With a pair of sockets, the threads would need
//! as many calls, and the kernel would also allocate, copy and queue each message.
//!
//! Neither thread has to trust the other: each copies a message before it parses it, at most as
//! many bytes as the memory has, and every access is atomic. The memory is sealed: no process can
//! change its size. A thread that violates the protocol can only delay the other.
//!
//! Limits: one request at a time, of at most [`MESSAGE_BYTES_MAX`] bytes. This module does not
//! notice the death of a process: the caller that notices it must close the slot.

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fstat, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::thread::futex;
use rustix::time::Timespec;

/// The maximum size of a message. The kernel allocates only the pages that messages have used.
pub const MESSAGE_BYTES_MAX: usize = 192 << 10;

const WORD_BYTES: usize = size_of::<u64>();
const WORDS: usize = MESSAGE_BYTES_MAX / WORD_BYTES;

/// There is no request, or it is answered.
const READY: u32 = 0;
/// There is a request without an answer.
const ASKED: u32 = 1;
/// One of the two threads has ended the exchange.
const CLOSED: u32 = 2;

/// The memory that both processes map.
#[repr(C)]
struct Shared {
    state: AtomicU32,
    length: AtomicU32,
    words: [AtomicU64; WORDS],
}

/// One thread's access to the memory.
#[derive(Debug)]
pub struct RequestSlot(NonNull<Shared>);

// SAFETY: the memory stays mapped as long as the value lives, whichever thread has it.
unsafe impl Send for RequestSlot {}
// SAFETY: every access to the memory is atomic.
unsafe impl Sync for RequestSlot {}

impl RequestSlot {
    /// Creates the memory, and a descriptor with which another process maps it.
    ///
    /// # Errors
    /// The error of the kernel: no memory or descriptor is available.
    pub fn create() -> io::Result<(Self, OwnedFd)> {
        let memory = memfd_create("requests", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&memory, size_of::<Shared>() as u64)?;
        fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok((Self::map(&memory)?, memory))
    }

    /// Maps memory that another process has made.
    ///
    /// # Errors
    /// The memory has another size than that of [`create`](Self::create), or the kernel refuses to
    /// map it.
    pub fn open(memory: impl AsFd) -> io::Result<Self> {
        let size = u64::try_from(fstat(&memory)?.st_size).unwrap_or(0);
        if size < size_of::<Shared>() as u64 {
            return Err(io::Error::new(ErrorKind::InvalidData, "the shared memory is too small"));
        }
        Self::map(memory)
    }

    fn map(memory: impl AsFd) -> io::Result<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses an address where nothing is mapped.
        let at = unsafe {
            mmap(ptr::null_mut(), size_of::<Shared>(), access, MapFlags::SHARED, memory, 0)
        }?;
        Ok(Self(NonNull::new(at.cast()).ok_or(ErrorKind::OutOfMemory)?))
    }

    fn shared(&self) -> &Shared {
        // SAFETY: `map` mapped this many bytes, at the beginning of a page, and only `drop` unmaps
        // them. Any bytes are valid atomics; what other processes write are accesses to atomics.
        unsafe { self.0.as_ref() }
    }

    /// Sends a request and replaces it with its answer. After an error the slot must not be used
    /// again.
    ///
    /// # Errors
    /// `TimedOut`: no answer arrived within `wait`, which starts again after a signal;
    /// `ConnectionReset`: the slot is closed; `InvalidInput`: the request is too long.
    pub fn exchange(&self, message: &mut Vec<u8>, wait: Duration) -> io::Result<()> {
        let shared = self.shared();
        shared.store(message)?;
        shared.change(READY, ASKED)?;
        let limit = Timespec::try_from(wait).map_err(|_| ErrorKind::InvalidInput)?;
        if shared.wait_while(ASKED, Some(&limit))? == CLOSED {
            return Err(ErrorKind::ConnectionReset.into());
        }
        shared.load(message);
        Ok(())
    }

    /// Waits for the next request and copies it; false if the slot is closed.
    ///
    /// # Errors
    /// The error of the kernel.
    pub fn receive(&self, message: &mut Vec<u8>) -> io::Result<bool> {
        let shared = self.shared();
        let mut state = shared.state.load(Ordering::Acquire);
        while state != ASKED && state != CLOSED {
            state = shared.wait_while(state, None)?;
        }
        if state == CLOSED {
            return Ok(false);
        }
        shared.load(message);
        Ok(true)
    }

    /// Answers the request that was received.
    ///
    /// # Errors
    /// The same as those of [`exchange`](Self::exchange), except `TimedOut`.
    pub fn answer(&self, message: &[u8]) -> io::Result<()> {
        let shared = self.shared();
        shared.store(message)?;
        shared.change(ASKED, READY)
    }

    /// Ends the exchange: both threads stop waiting.
    pub fn close(&self) {
        let shared = self.shared();
        shared.state.store(CLOSED, Ordering::Release);
        shared.wake(u32::MAX >> 1);
    }
}

impl Drop for RequestSlot {
    fn drop(&mut self) {
        // SAFETY: `map` mapped this many bytes here, and no reference to them is left.
        let _ = unsafe { munmap(self.0.as_ptr().cast(), size_of::<Shared>()) };
    }
}

impl Shared {
    /// Writes a message.
    fn store(&self, message: &[u8]) -> io::Result<()> {
        if message.len() > MESSAGE_BYTES_MAX {
            return Err(io::Error::new(ErrorKind::InvalidInput, "the message is too long"));
        }
        let length = u32::try_from(message.len()).unwrap_or(0);
        self.length.store(length, Ordering::Relaxed);
        for (word, bytes) in self.words.iter().zip(message.chunks(WORD_BYTES)) {
            let mut whole = [0; WORD_BYTES];
            whole.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
            word.store(u64::from_ne_bytes(whole), Ordering::Relaxed);
        }
        Ok(())
    }

    /// Copies the message.
    fn load(&self, message: &mut Vec<u8>) {
        let length = (self.length.load(Ordering::Relaxed) as usize).min(MESSAGE_BYTES_MAX);
        message.clear();
        for word in self.words.iter().take(length.div_ceil(WORD_BYTES)) {
            message.extend_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
        }
        message.truncate(length);
    }

    /// Changes the state and wakes the other thread, unless the slot is closed.
    fn change(&self, from: u32, to: u32) -> io::Result<()> {
        let changed = self.state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed);
        changed.map_err(|_| ErrorKind::ConnectionReset)?;
        self.wake(1);
        Ok(())
    }

    fn wake(&self, threads: u32) {
        // This fails only for an address that is not mapped.
        let _ = futex::wake(&self.state, futex::Flags::empty(), threads);
    }

    /// Waits as long as the state is `state`; returns the next state.
    fn wait_while(&self, state: u32, limit: Option<&Timespec>) -> io::Result<u32> {
        loop {
            let now = self.state.load(Ordering::Acquire);
            if now != state {
                return Ok(now);
            }
            match futex::wait(&self.state, futex::Flags::empty(), state, limit) {
                Ok(()) | Err(Errno::AGAIN | Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAIT: Duration = Duration::from_secs(60);

    /// Both ends, as two processes have them.
    fn pair() -> (RequestSlot, RequestSlot) {
        let (ours, memory) = RequestSlot::create().unwrap();
        (ours, RequestSlot::open(memory).unwrap())
    }

    #[test]
    fn requests_of_every_length_are_answered_in_turn() {
        let (ours, theirs) = pair();
        let answering = std::thread::spawn(move || {
            let mut message = Vec::new();
            while theirs.receive(&mut message).unwrap() {
                message.reverse();
                theirs.answer(&message).unwrap();
            }
        });
        let mut message = Vec::new();
        for length in (0..40).chain([4095, 4096, MESSAGE_BYTES_MAX]) {
            let request: Vec<u8> = (0..=250).cycle().take(length).collect();
            message.clone_from(&request);
            ours.exchange(&mut message, WAIT).unwrap();
            message.reverse();
            assert_eq!(message, request, "{length}");
        }
        ours.close();
        answering.join().unwrap();
    }

    #[test]
    fn a_message_above_the_limit_is_not_sent() {
        let (ours, _theirs) = pair();
        let refused = ours.exchange(&mut vec![0; MESSAGE_BYTES_MAX + 1], WAIT).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    }

    #[test]
    fn a_request_without_an_answer_times_out() {
        let (ours, _theirs) = pair();
        let late = ours.exchange(&mut vec![1], Duration::from_millis(1)).unwrap_err();
        assert_eq!(late.kind(), ErrorKind::TimedOut);
        // The late answer must not become the answer to another request.
        assert!(ours.exchange(&mut vec![2], Duration::from_millis(1)).is_err());
    }

    #[test]
    fn a_closed_slot_ends_a_wait_of_either_side() {
        let (ours, theirs) = pair();
        let ours = std::sync::Arc::new(ours);
        let requesting = {
            let ours = std::sync::Arc::clone(&ours);
            std::thread::spawn(move || ours.exchange(&mut vec![1], WAIT))
        };
        assert!(theirs.receive(&mut Vec::new()).unwrap());
        ours.close();
        let ended = requesting.join().unwrap().unwrap_err();
        assert_eq!(ended.kind(), ErrorKind::ConnectionReset);
        assert!(!theirs.receive(&mut Vec::new()).unwrap());
        assert!(theirs.answer(&[1]).is_err());
        assert!(ours.exchange(&mut vec![1], WAIT).is_err());
    }

    #[test]
    fn what_the_other_process_writes_is_bounded() {
        let (ours, theirs) = pair();
        ours.shared().length.store(u32::MAX, Ordering::Relaxed);
        ours.shared().state.store(ASKED, Ordering::Release);
        let mut message = Vec::new();
        assert!(theirs.receive(&mut message).unwrap());
        assert_eq!(message.len(), MESSAGE_BYTES_MAX);
    }

    #[test]
    fn the_memory_cannot_be_changed_in_size() {
        let (_ours, memory) = RequestSlot::create().unwrap();
        assert_eq!(ftruncate(&memory, 0), Err(Errno::PERM));
        assert_eq!(ftruncate(&memory, 1 << 20), Err(Errno::PERM));
        let small = memfd_create("small", MemfdFlags::CLOEXEC).unwrap();
        assert_eq!(RequestSlot::open(small).unwrap_err().kind(), ErrorKind::InvalidData);
    }
}
