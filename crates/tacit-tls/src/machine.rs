//! Runs the TLS library's handshake one record at a time, without I/O.
//!
//! The library gets only the records of the handshake, and tacit itself processes all later
//! records. If the library got the later records too, the library would create replies to some of
//! these records. tacit could not get these replies from the library.

use std::ops::Range;

use rustls::CommonState;
use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{ConnectionState, EncodeError, UnbufferedStatus};
use tacit_core::record::HEADER_BYTES;

/// The state of a handshake after [`crate::Handshake::advance`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandshakeProgress {
    /// The handshake waits for bytes of the peer.
    Blocked,
    /// The handshake is complete; call [`crate::Handshake::finish`].
    Done,
}

/// The common interface of the library's client and server connections.
pub(crate) trait HandshakeMachine {
    /// The library's data for this role.
    type Data;
    /// Makes the library process the beginning of the received bytes.
    fn process<'c, 'i>(
        &'c mut self,
        incoming: &'i mut [u8],
    ) -> UnbufferedStatus<'c, 'i, Self::Data>;
    /// Returns the state that both roles have in common.
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

/// The result of a step.
#[derive(Debug)]
pub(crate) enum StepResult {
    /// The library has read one more record. It has not released the bytes in this range: they are
    /// part of a message, or a record that it skips. `None`: it has released them.
    Read(Option<Range<usize>>),
    /// The handshake waits for bytes of the peer.
    Blocked,
    /// The handshake is complete.
    Done,
}

/// Runs the handshake on the bytes that the library has seen and on one more record. After an
/// error, `outgoing` ends with the alert for the peer, unless the peer has sent an alert.
pub(crate) fn step<M: HandshakeMachine>(
    machine: &mut M,
    incoming: &mut Vec<u8>,
    seen: &mut usize,
    outgoing: &mut Vec<u8>,
) -> Result<StepResult, rustls::Error> {
    let mut shown = *seen;
    // The beginning of the record that is new in this step.
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
        // An incomplete record is also passed to the library, because the bytes may not be a record
        // at all.
        let record = first_record_bytes(&incoming[*seen..]);
        next = record.map(|_| *seen);
        *seen += record.unwrap_or(0);
        shown = if record.is_some() { *seen } else { incoming.len() };
    }
}

/// Returns the end of the first record, if it is complete.
pub(crate) fn first_record_bytes(bytes: &[u8]) -> Option<usize> {
    let (&[_, _, _, high, low], rest) = bytes.split_first_chunk::<HEADER_BYTES>()?;
    let length = usize::from(u16::from_be_bytes([high, low]));
    (length <= rest.len()).then_some(HEADER_BYTES + length)
}

/// A record header with an invalid content type. The library rejects it at any position.
const NO_RECORD: [u8; HEADER_BYTES] = [0xff, 3, 3, 0, 0];

/// Appends the alert that ends the handshake. The alert must be protected with keys that only the
/// library has. For some errors the library creates no alert; then it gets an invalid record, for
/// which it creates one. `seen` are the bytes that the library has seen and not released; `next` is
/// the beginning of the record that caused the error.
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
    // If the library has rejected a complete record, it reads this record next; otherwise it reads
    // the bytes after it.
    if let Some(kind) = next.and_then(|next| seen.get_mut(next)) {
        *kind = NO_RECORD[0];
    }
    seen.extend_from_slice(&NO_RECORD);
    // Messages before the rejected one are sent first.
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

/// The largest number of states between an error and its alert. A flight has about ten records.
const STATES_BEFORE_ALERT_MAX: usize = 64;

/// After an error the library still has to send the alert. It is run only as long as it has
/// something to send, because it would otherwise read input that no longer exists.
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

/// Appends what `encode` writes. The first call of `encode` returns the size.
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
