//! Drives the TLS library's handshake one record at a time, without I/O.
//!
//! The library never gets records that follow the handshake, because its replies to them could not
//! be extracted.

use std::ops::Range;

use rustls::CommonState;
use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{ConnectionState, EncodeError, UnbufferedStatus};
use tacit_core::record::HEADER_BYTES;

/// How far a handshake is after [`crate::Handshake::advance`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandshakeProgress {
    /// The peer must say more.
    Blocked,
    /// Complete; call [`crate::Handshake::finish`].
    Done,
}

/// What the two kinds of connection have in common.
pub(crate) trait HandshakeMachine {
    /// What the library keeps of this role.
    type Data;
    /// Has the library look at the front of what arrived.
    fn process<'c, 'i>(
        &'c mut self,
        incoming: &'i mut [u8],
    ) -> UnbufferedStatus<'c, 'i, Self::Data>;
    /// What both roles know of the connection.
    fn common(&self) -> &CommonState;
}

impl HandshakeMachine for UnbufferedClientConnection {
    type Data = ClientConnectionData;
    fn process<'c, 'i>(
        &'c mut self,
        incoming: &'i mut [u8],
    ) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(incoming)
    }
    fn common(&self) -> &CommonState {
        self
    }
}

impl HandshakeMachine for UnbufferedServerConnection {
    type Data = ServerConnectionData;
    fn process<'c, 'i>(
        &'c mut self,
        incoming: &'i mut [u8],
    ) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(incoming)
    }
    fn common(&self) -> &CommonState {
        self
    }
}

/// What one step came to.
#[derive(Debug)]
pub(crate) enum StepResult {
    /// The library has read one more record, and has not released the bytes at this range of what
    /// arrived: they are part of a message, or a record that it skips. `None`: it released them.
    Read(Option<Range<usize>>),
    /// The peer must say more.
    Blocked,
    /// Complete.
    Done,
}

/// Runs the machine on what it has seen and one more record. After an error `outgoing` ends in the
/// alert that says why, unless the peer has sent one.
pub(crate) fn step<M: HandshakeMachine>(
    machine: &mut M,
    incoming: &mut Vec<u8>,
    seen: &mut usize,
    outgoing: &mut Vec<u8>,
) -> Result<StepResult, rustls::Error> {
    let mut shown = *seen;
    // Where the record begins that this step shows.
    let mut next = None;
    loop {
        let UnbufferedStatus { discard, state, .. } = machine.process(&mut incoming[..shown]);
        let mut blocked = false;
        let mut done = false;
        match state {
            Ok(ConnectionState::EncodeTlsData(mut data)) => {
                encode(outgoing, |buffer| data.encode(buffer))?;
            }
            Ok(ConnectionState::TransmitTlsData(data)) => data.done(),
            Ok(ConnectionState::WriteTraffic(_)) => done = true,
            Ok(_) => blocked = true,
            Err(error) => {
                incoming.truncate(shown);
                incoming.drain(..discard);
                let next = next.map(|start: usize| start.saturating_sub(discard));
                if !matches!(error, rustls::Error::AlertReceived(_)) {
                    send_alert(machine, incoming, next, outgoing);
                }
                incoming.clear();
                *seen = 0;
                return Err(error);
            }
        }
        incoming.drain(..discard);
        *seen = seen.saturating_sub(discard);
        shown -= discard;
        next = next.map(|start: usize| start.saturating_sub(discard));
        if done {
            return Ok(StepResult::Done);
        }
        if !blocked {
            continue;
        }
        if let Some(start) = next {
            return Ok(StepResult::Read((start < *seen).then_some(start..*seen)));
        }
        if shown == incoming.len() {
            return Ok(StepResult::Blocked);
        }
        // What is no whole record is shown too: it may be no record at all.
        let record = first_record_bytes(&incoming[*seen..]);
        next = record.map(|_| *seen);
        *seen += record.unwrap_or(0);
        shown = if record.is_some() { *seen } else { incoming.len() };
    }
}

/// Where the first record ends, if it is whole.
pub(crate) fn first_record_bytes(bytes: &[u8]) -> Option<usize> {
    let (&[_, _, _, high, low], rest) = bytes.split_first_chunk::<HEADER_BYTES>()?;
    let length = usize::from(u16::from_be_bytes([high, low]));
    (length <= rest.len()).then_some(HEADER_BYTES + length)
}

/// A record header of no content type: the library refuses it, wherever it stands.
const NO_RECORD: [u8; HEADER_BYTES] = [0xff, 3, 3, 0, 0];

/// Appends the alert that ends the handshake. Where the library has none for its error, it is shown
/// a record that is none, for which it has: the alert must be protected with keys that only the
/// library holds. `seen` is all that it was shown and has not released; `next` is where the record
/// begins that it failed at.
pub(crate) fn send_alert<M: HandshakeMachine>(
    machine: &mut M,
    seen: &mut Vec<u8>,
    next: Option<usize>,
    outgoing: &mut Vec<u8>,
) {
    let before = outgoing.len();
    take_alert(machine, outgoing);
    if outgoing.len() > before {
        return;
    }
    // The library looks next at that record if it has refused it whole, else behind it.
    if let Some(kind) = next.and_then(|next| seen.get_mut(next)) {
        *kind = NO_RECORD[0];
    }
    seen.extend_from_slice(&NO_RECORD);
    // Messages that stand before the one that it refused come first.
    for _ in 0..STATES_BEFORE_ALERT_MAX {
        let UnbufferedStatus { discard, state, .. } = machine.process(seen);
        match state {
            Ok(ConnectionState::EncodeTlsData(mut data)) => {
                if encode(outgoing, |buffer| data.encode(buffer)).is_err() {
                    return;
                }
            }
            Ok(ConnectionState::TransmitTlsData(data)) => data.done(),
            Ok(_) => return,
            Err(_) => return take_alert(machine, outgoing),
        }
        seen.drain(..discard);
    }
}

/// States of the machine between an error and its alert at most: a flight is some ten records.
const STATES_BEFORE_ALERT_MAX: usize = 64;

/// After an error the machine still has the alert that says why. It is not run for longer than it
/// has something to send: it would look at input again, which is gone.
fn take_alert<M: HandshakeMachine>(machine: &mut M, outgoing: &mut Vec<u8>) {
    while machine.common().wants_write() {
        let Ok(ConnectionState::EncodeTlsData(mut data)) = machine.process(&mut []).state else {
            return;
        };
        if encode(outgoing, |buffer| data.encode(buffer)).is_err() {
            return;
        }
    }
}

/// Appends what `encode` writes, asking it first how much that is.
fn encode(
    outgoing: &mut Vec<u8>,
    mut encode: impl FnMut(&mut [u8]) -> Result<usize, EncodeError>,
) -> Result<(), rustls::Error> {
    let start = outgoing.len();
    let mut space = 0;
    loop {
        outgoing.resize(start + space, 0);
        match encode(&mut outgoing[start..]) {
            Ok(written) => {
                outgoing.truncate(start + written);
                return Ok(());
            }
            Err(EncodeError::InsufficientSize(size)) if size.required_size > space => {
                space = size.required_size;
            }
            Err(error) => return Err(rustls::Error::General(error.to_string())),
        }
    }
}
