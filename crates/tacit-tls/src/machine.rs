//! The library's handshake, driven one record at a time without I/O.
//!
//! The library sees one record at a time, and so none that follow the handshake: what it would owe
//! the peer for those could not be taken out.

use rustls::CommonState;
use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{ConnectionState, EncodeError, UnbufferedStatus};
use tacit_core::record::HEADER_BYTES;

/// How far a handshake is after [`crate::Handshake::advance`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The peer must say more.
    Blocked,
    /// Complete; call [`crate::Handshake::finish`].
    Done,
}

/// What the two kinds of connection have in common.
pub(crate) trait Machine {
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

impl Machine for UnbufferedClientConnection {
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

impl Machine for UnbufferedServerConnection {
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

/// Runs the machine until it needs more input or is complete, one record after the other.
pub(crate) fn step<M: Machine>(
    machine: &mut M,
    incoming: &mut Vec<u8>,
    seen: &mut usize,
    outgoing: &mut Vec<u8>,
) -> Result<Progress, rustls::Error> {
    let mut shown = *seen;
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
                incoming.clear();
                *seen = 0;
                take_alert(machine, outgoing);
                return Err(error);
            }
        }
        incoming.drain(..discard);
        *seen = seen.saturating_sub(discard);
        shown -= discard;
        if done {
            return Ok(Progress::Done);
        }
        if blocked {
            if shown == incoming.len() {
                return Ok(Progress::Blocked);
            }
            // What is no whole record is shown too: it may be no record at all.
            let next = first_record_bytes(&incoming[*seen..]);
            *seen += next.unwrap_or(0);
            shown = if next.is_some() { *seen } else { incoming.len() };
        }
    }
}

/// Where the first record ends, if it is whole.
fn first_record_bytes(bytes: &[u8]) -> Option<usize> {
    let (&[_, _, _, high, low], rest) = bytes.split_first_chunk::<HEADER_BYTES>()?;
    let length = usize::from(u16::from_be_bytes([high, low]));
    (length <= rest.len()).then_some(HEADER_BYTES + length)
}

/// After an error the machine still has the alert that says why. It is not run for longer than it
/// has something to send: it would look at input again, which is gone.
fn take_alert<M: Machine>(machine: &mut M, outgoing: &mut Vec<u8>) {
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
