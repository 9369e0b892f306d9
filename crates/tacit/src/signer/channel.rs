//! Exchanges messages between the agent and the signer (the process with the private keys), over
//! two pipes.
//!
//! ```text
//! agent    RequestEnd ── length, request ──>  AnswerEnd    signer
//!                     <── length, answer ───
//! ```
//!
//! A pipe needs less CPU time than a socket, because the kernel usually runs writer and reader on
//! the same CPU. A futex in shared memory would be an alternative to a pipe. A futex is a few
//! microseconds faster while all CPUs are busy. But if a CPU is idle, the futex makes the kernel
//! wake the agent's thread on this CPU. This wake-up takes more time than the futex saves
//! (docs/benchmarks.md).
//!
//! Limits: one request at a time, with at most [`MESSAGE_BYTES_MAX`]. After an error the channel
//! cannot be used again.

use std::io::{self, ErrorKind, IoSlice};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::io::{Errno, read, writev};
use rustix::pipe::{PipeFlags, pipe_with};
use tacit_tls::signer::wire::MESSAGE_BYTES_MAX;

const LENGTH_BYTES: usize = 4;
/// The first read of a message; most messages are shorter.
const FIRST_READ_BYTES: usize = 1024;

/// The agent's end of a channel.
#[derive(Debug)]
pub(super) struct RequestEnd {
    requests: OwnedFd,
    answers: OwnedFd,
}

/// The signer's end of a channel.
#[derive(Debug)]
pub(super) struct AnswerEnd {
    requests: OwnedFd,
    answers: OwnedFd,
}

/// Makes a channel. The descriptors are those of the signer's end.
pub(super) fn open() -> io::Result<(RequestEnd, [OwnedFd; 2])> {
    let (their_requests, requests) = pipe_with(PipeFlags::CLOEXEC)?;
    let (answers, their_answers) = pipe_with(PipeFlags::CLOEXEC)?;
    // A request that is longer than a pipe holds must not wait for the signer without a limit.
    fcntl_setfl(&requests, OFlags::NONBLOCK)?;
    Ok((RequestEnd { requests, answers }, [their_requests, their_answers]))
}

impl RequestEnd {
    /// Sends a request and replaces it with its answer. Waits at most `wait` for each step of the
    /// signer.
    pub(super) fn exchange(&self, message: &mut Vec<u8>, wait: Duration) -> io::Result<()> {
        let wait = Timespec::try_from(wait).map_err(|_| ErrorKind::InvalidInput)?;
        write_message(&self.requests, message, Some(&wait))?;
        let is_open = read_message(&self.answers, message, Some(&wait))?;
        if is_open { Ok(()) } else { Err(ErrorKind::ConnectionReset.into()) }
    }
}

impl AnswerEnd {
    pub(super) fn new([requests, answers]: [OwnedFd; 2]) -> Self {
        Self { requests, answers }
    }

    /// Receives the next request; false if the agent has closed the channel.
    pub(super) fn receive(&self, message: &mut Vec<u8>) -> io::Result<bool> {
        read_message(&self.requests, message, None)
    }

    pub(super) fn answer(&self, message: &[u8]) -> io::Result<()> {
        write_message(&self.answers, message, None)
    }
}

fn write_message(pipe: &OwnedFd, message: &[u8], wait: Option<&Timespec>) -> io::Result<()> {
    let length = u32::try_from(message.len()).map_err(|_| ErrorKind::InvalidInput)?.to_ne_bytes();
    let mut parts = [IoSlice::new(&length), IoSlice::new(message)];
    let mut rest = &mut parts[..];
    while !rest.is_empty() {
        match writev(pipe, rest) {
            Ok(bytes) => IoSlice::advance_slices(&mut rest, bytes),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => wait_until(pipe, PollFlags::OUT, wait)?,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Reads a message; false if the other end is closed.
fn read_message(
    pipe: &OwnedFd,
    message: &mut Vec<u8>,
    wait: Option<&Timespec>,
) -> io::Result<bool> {
    message.resize(FIRST_READ_BYTES, 0);
    let mut filled = 0;
    loop {
        if wait.is_some() {
            wait_until(pipe, PollFlags::IN, wait)?;
        }
        match read(pipe, message.get_mut(filled..).unwrap_or_default()) {
            Ok(0) => return Ok(false),
            Ok(bytes) => filled += bytes,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let Some(length) = message.first_chunk().filter(|_| filled >= LENGTH_BYTES) else {
            continue;
        };
        let length = u32::from_ne_bytes(*length) as usize;
        let whole = LENGTH_BYTES + length;
        if length > MESSAGE_BYTES_MAX || filled > whole {
            return Err(ErrorKind::InvalidData.into());
        }
        if filled == whole {
            message.truncate(whole);
            message.drain(..LENGTH_BYTES);
            return Ok(true);
        }
        message.resize(whole.max(FIRST_READ_BYTES), 0);
    }
}

fn wait_until(pipe: impl AsFd, event: PollFlags, wait: Option<&Timespec>) -> io::Result<()> {
    loop {
        match poll(&mut [PollFd::new(&pipe, event)], wait) {
            Ok(0) => return Err(ErrorKind::TimedOut.into()),
            Ok(_) => return Ok(()),
            // The stop of a signer sends SIGCHLD to the agent, perhaps to this thread. A read
            // instead of another wait would have no limit.
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAIT: Duration = Duration::from_secs(60);

    #[test]
    fn requests_of_every_length_are_answered_in_turn() {
        let (ours, theirs) = open().unwrap();
        let answering = std::thread::spawn(move || {
            let theirs = AnswerEnd::new(theirs);
            let mut message = Vec::new();
            while theirs.receive(&mut message).unwrap() {
                message.reverse();
                theirs.answer(&message).unwrap();
            }
        });
        let mut message = Vec::new();
        for length in (0..40).chain([1019, 1020, 1021, 4096, 65_536, MESSAGE_BYTES_MAX]) {
            let request: Vec<u8> = (0..=250).cycle().take(length).collect();
            message.clone_from(&request);
            ours.exchange(&mut message, WAIT).unwrap();
            message.reverse();
            assert!(message == request, "{length}");
        }
        drop(ours);
        answering.join().unwrap();
    }

    #[test]
    fn a_request_without_an_answer_times_out() {
        let (ours, theirs) = open().unwrap();
        let exchange = |bytes| ours.exchange(&mut vec![1; bytes], Duration::from_millis(1));
        assert_eq!(exchange(1).unwrap_err().kind(), ErrorKind::TimedOut);
        assert_eq!(exchange(MESSAGE_BYTES_MAX).unwrap_err().kind(), ErrorKind::TimedOut);
        drop(theirs);
    }

    #[test]
    fn the_end_of_a_signer_ends_a_wait() {
        let (ours, theirs) = open().unwrap();
        let theirs = AnswerEnd::new(theirs);
        let requesting = std::thread::spawn(move || ours.exchange(&mut vec![1], WAIT));
        assert!(theirs.receive(&mut Vec::new()).unwrap());
        drop(theirs);
        let ended = requesting.join().unwrap().unwrap_err();
        assert_eq!(ended.kind(), ErrorKind::ConnectionReset);
    }

    #[test]
    fn a_message_that_is_too_long_or_followed_by_another_is_rejected() {
        for bytes in [&[0xff; 8][..], &[0; 9]] {
            let (ours, theirs) = open().unwrap();
            rustix::io::write(&ours.requests, bytes).unwrap();
            let rejected = AnswerEnd::new(theirs).receive(&mut Vec::new()).unwrap_err();
            assert_eq!(rejected.kind(), ErrorKind::InvalidData);
        }
    }
}
