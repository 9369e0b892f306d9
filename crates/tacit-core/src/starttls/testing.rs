//! Runs a STARTTLS exchange byte by byte, for tests.

use super::{StarttlsError, StarttlsExchange, StarttlsRole, StarttlsSide, StarttlsStep};
use crate::policy::{Starttls, StarttlsMode, StarttlsProtocol};

/// Both ends of an exchange, as a driver sees them.
#[derive(Debug)]
pub(super) struct Stage {
    pub(super) exchange: StarttlsExchange,
    pub(super) to_peer: Vec<u8>,
    pub(super) to_program: Vec<u8>,
    /// The largest output that was taken at once.
    pub(super) longest_bytes: usize,
}

impl Stage {
    pub(super) fn new(protocol: StarttlsProtocol, mode: StarttlsMode, role: StarttlsRole) -> Self {
        let exchange = StarttlsExchange::new(&Starttls { protocol, mode }, role);
        let to_peer = Vec::new();
        let to_program = Vec::new();
        let mut stage = Self { exchange, to_peer, to_program, longest_bytes: 0 };
        stage.next_step();
        stage
    }

    /// Returns the next step and collects the output.
    pub(super) fn next_step(&mut self) -> StarttlsStep {
        loop {
            let step = self.exchange.next_step();
            let peer = StarttlsSide::Peer;
            let program = StarttlsSide::Program;
            for (side, received) in [(peer, &mut self.to_peer), (program, &mut self.to_program)] {
                let mut output = self.exchange.take_output(side);
                self.longest_bytes = self.longest_bytes.max(output.len());
                received.append(&mut output);
            }
            if !self.exchange.is_stalled() {
                return step;
            }
        }
    }

    /// Sends bytes from one end in pieces that end at `cuts`, until the exchange accepts no more.
    /// The rest is dropped.
    pub(super) fn send_split(
        &mut self,
        from: StarttlsSide,
        bytes: &[u8],
        cuts: &[usize],
    ) -> StarttlsStep {
        let mut pieces = Vec::new();
        let mut rest = bytes;
        let mut at = 0;
        for cut in cuts {
            let (piece, tail) = rest.split_at((cut - at).min(rest.len()));
            pieces.push(piece);
            (rest, at) = (tail, *cut);
        }
        pieces.push(rest);
        let mut step = self.next_step();
        for piece in pieces {
            if !piece.is_empty() && self.exchange.has_room(from) {
                self.exchange.handle_input(from, piece);
                step = self.next_step();
            }
        }
        step
    }

    /// The same as [`Self::send_split`], in one piece.
    pub(super) fn send(&mut self, from: StarttlsSide, bytes: impl AsRef<[u8]>) -> StarttlsStep {
        self.send_split(from, bytes.as_ref(), &[])
    }

    /// Completes the handshake.
    pub(super) fn secure(&mut self) -> StarttlsStep {
        assert_eq!(self.next_step(), StarttlsStep::Handshake);
        self.exchange.handshake_succeeded();
        self.next_step()
    }

    /// Takes the text sent to the peer.
    pub(super) fn peer_received(&mut self) -> String {
        String::from_utf8(std::mem::take(&mut self.to_peer)).unwrap()
    }

    /// Takes the text sent to the program.
    pub(super) fn program_received(&mut self) -> String {
        String::from_utf8(std::mem::take(&mut self.to_program)).unwrap()
    }
}

/// Returns the error of a step that ends the exchange.
pub(super) fn refusal(step: &StarttlsStep) -> &StarttlsError {
    match step {
        StarttlsStep::Reject(refusal) => refusal,
        other => panic!("the STARTTLS exchange should be rejected, but its step is {other:?}"),
    }
}
