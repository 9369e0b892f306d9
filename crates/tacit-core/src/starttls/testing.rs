//! What the tests of all protocols need: a dialogue driven byte by byte.

use super::{Dialogue, StarttlsError, StarttlsRole, StarttlsSide, StarttlsStep};
use crate::policy::{Starttls, StarttlsMode, StarttlsProtocol};

/// Both ends of a dialogue as a driver sees them.
#[derive(Debug)]
pub(super) struct Stage {
    pub(super) dialogue: Dialogue,
    pub(super) to_peer: Vec<u8>,
    pub(super) to_program: Vec<u8>,
    /// The most that had to be sent at once.
    pub(super) longest_bytes: usize,
}

impl Stage {
    pub(super) fn new(protocol: StarttlsProtocol, mode: StarttlsMode, role: StarttlsRole) -> Self {
        let dialogue = Dialogue::new(&Starttls { protocol, mode }, role);
        let to_peer = Vec::new();
        let to_program = Vec::new();
        let mut stage = Self { dialogue, to_peer, to_program, longest_bytes: 0 };
        stage.step();
        stage
    }

    /// What the dialogue says now; what it wants sent is collected.
    pub(super) fn step(&mut self) -> StarttlsStep {
        loop {
            let step = self.dialogue.step();
            let peer = StarttlsSide::Peer;
            let program = StarttlsSide::Program;
            for (side, heard) in [(peer, &mut self.to_peer), (program, &mut self.to_program)] {
                let mut said = self.dialogue.take_output(side);
                self.longest_bytes = self.longest_bytes.max(said.len());
                heard.append(&mut said);
            }
            if !self.dialogue.is_stalled() {
                return step;
            }
        }
    }

    /// One end says something in pieces that end where `cuts` say, until the dialogue takes no
    /// more; what it could not say is lost, as it would be to who closes.
    pub(super) fn say_cut(
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
        let mut step = self.step();
        for piece in pieces {
            if !piece.is_empty() && self.dialogue.has_room(from) {
                self.dialogue.receive(from, piece);
                step = self.step();
            }
        }
        step
    }

    /// As [`Self::say_cut`] in one piece.
    pub(super) fn say(&mut self, from: StarttlsSide, bytes: impl AsRef<[u8]>) -> StarttlsStep {
        self.say_cut(from, bytes.as_ref(), &[])
    }

    /// The handshake succeeds.
    pub(super) fn secure(&mut self) -> StarttlsStep {
        assert_eq!(self.step(), StarttlsStep::Secure);
        self.dialogue.secured();
        self.step()
    }

    /// What was sent to the peer since the last time, as text.
    pub(super) fn peer_hears(&mut self) -> String {
        String::from_utf8(std::mem::take(&mut self.to_peer)).unwrap()
    }

    /// What was sent to the program since the last time, as text.
    pub(super) fn program_hears(&mut self) -> String {
        String::from_utf8(std::mem::take(&mut self.to_program)).unwrap()
    }
}

/// A step that ends the dialogue, with its reason.
pub(super) fn refusal(step: &StarttlsStep) -> &StarttlsError {
    match step {
        StarttlsStep::Refuse(refusal) => refusal,
        other => panic!("not refused but {other:?}"),
    }
}
