//! What the tests of all protocols need: a dialogue driven byte by byte.

use super::{Dialogue, Refusal, Role, Side, Step};
use crate::policy::{Starttls, StarttlsMode, StarttlsProtocol};

/// Both ends of a dialogue as a driver sees them.
#[derive(Debug)]
pub(super) struct Stage {
    pub(super) dialogue: Dialogue,
    pub(super) to_peer: Vec<u8>,
    pub(super) to_program: Vec<u8>,
}

impl Stage {
    pub(super) fn new(protocol: StarttlsProtocol, mode: StarttlsMode, role: Role) -> Self {
        let dialogue = Dialogue::new(&Starttls { protocol, mode }, role);
        let mut stage = Self { dialogue, to_peer: Vec::new(), to_program: Vec::new() };
        stage.step();
        stage
    }

    /// What the dialogue says now; what it wants sent is collected.
    pub(super) fn step(&mut self) -> Step {
        let step = self.dialogue.step();
        self.to_peer.append(&mut self.dialogue.take_output(Side::Peer));
        self.to_program.append(&mut self.dialogue.take_output(Side::Program));
        step
    }

    /// One end says something in pieces that end where `cuts` say, until the dialogue takes no
    /// more; what it could not say is lost, as it would be to who closes.
    pub(super) fn say_cut(&mut self, from: Side, bytes: &[u8], cuts: &[usize]) -> Step {
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
    pub(super) fn say(&mut self, from: Side, bytes: impl AsRef<[u8]>) -> Step {
        self.say_cut(from, bytes.as_ref(), &[])
    }

    /// The handshake succeeds.
    pub(super) fn secure(&mut self) -> Step {
        assert_eq!(self.step(), Step::Secure);
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
pub(super) fn refusal(step: &Step) -> &Refusal {
    match step {
        Step::Refuse(refusal) => refusal,
        other => panic!("not refused but {other:?}"),
    }
}
