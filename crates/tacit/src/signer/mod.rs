//! Implements the signer: a process that holds the private keys of an agent and signs handshakes
//! for this agent. So the agent's memory does not contain private keys.
//!
//! ```text
//! agent                                                   signer
//!   reload, start: Client::load ── control ─────────────> serve: reads files, keeps keys
//!   data-0, data-1, engine-0 … ── channels ─────────────> a thread for each channel: signs
//! ```
//!
//! The agent starts its signer when the first key is loaded. A thread of the agent has one channel
//! (a pair of pipes, `channel.rs`) for each CPU on which the thread runs. To sign a handshake, the
//! thread writes a request to the channel of its current CPU, and waits for the answer. When the
//! signer ends, the agent starts a new signer, at most once per second. Until the new signer runs,
//! handshakes that need a key fail.
//!
//! Limits: at most `CHANNELS_MAX` channels; a thread waits at most `ANSWER_WAIT_MAX` for an answer.

mod channel;
mod client;
mod serve;

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

pub use client::Client;
pub use serve::run;

/// The maximum number of channels of one signer. Each thread of the agent has one for each CPU on
/// which it has run.
const CHANNELS_MAX: usize = 2048;
/// How long a thread waits for an answer. Signing with the largest RSA key takes hundredths of this
/// time.
const ANSWER_WAIT_MAX: Duration = Duration::from_secs(2);
/// How long reading the files of a key may take.
const LOAD_WAIT_MAX: Duration = Duration::from_secs(30);
/// The hidden verb of the command line that starts the signer.
pub const VERB: &str = "signer";

/// Receives one message; empty if the other end is closed.
fn receive(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        match rustix::io::read(&socket, &mut *buffer) {
            Err(rustix::io::Errno::INTR) => {}
            received => return Ok(received?),
        }
    }
}
