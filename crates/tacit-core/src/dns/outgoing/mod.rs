//! Builds DNS queries for DNS servers from the DNS queries of programs. Copies only the name, the
//! type, the class and three flags from the query of a program.
//!
//! The message ID, the source port, and the case (upper or lower) of each letter of the name are
//! random. To forge an answer, an attacker must guess all three.

use std::net::SocketAddr;

use super::message::{
    AUTHENTIC_DATA, CHECKING_DISABLED, HEADER_BYTES, MessageHeader, OPT_BYTES, RECURSION_DESIRED,
    push_opt,
};
use super::query::{Query, QueryFlags};

/// A query for a resolver. If several queries are equal, it is sent once.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OutgoingQuery {
    /// The name in lower case, the type and the class, in the format of a message.
    wire: Vec<u8>,
    bits: QueryFlags,
    /// The only server that may answer; `None`: any of a list.
    server: Option<SocketAddr>,
}

/// The format of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Style {
    /// Whether letters are in random case. The answer must then repeat the case.
    pub(super) mixed_case: bool,
    /// Whether EDNS is used, which some old resolvers reject.
    pub(super) edns: bool,
}

impl Style {
    /// The format of the first query.
    pub(super) const USUAL: Self = Self { mixed_case: true, edns: true };
}

impl OutgoingQuery {
    /// Builds the query from a program's query.
    #[must_use]
    pub fn new(query: &Query) -> Self {
        let mut wire = query.wire.clone();
        let name_bytes = wire.len().saturating_sub(4);
        // The length of a label is smaller than the code of any letter.
        wire[..name_bytes].make_ascii_lowercase();
        Self { wire, bits: query.bits, server: None }
    }

    /// The query for this server alone.
    pub(super) fn only_to(self, server: SocketAddr) -> Self {
        Self { server: Some(server), ..self }
    }

    /// Whether the program has set flags that only EDNS has.
    pub(super) fn needs_edns(&self) -> bool {
        self.bits.edns_flags() != 0
    }

    /// Builds the message for a resolver.
    pub(super) fn message(
        &self,
        id: u16,
        style: Style,
        random: &mut dyn FnMut() -> u64,
    ) -> Vec<u8> {
        let mut message = Vec::with_capacity(HEADER_BYTES + self.wire.len() + OPT_BYTES);
        let authentic = if self.bits.authentic_data { AUTHENTIC_DATA } else { 0 };
        let checking = if self.bits.checking_disabled { CHECKING_DISABLED } else { 0 };
        let flags = RECURSION_DESIRED | authentic | checking;
        MessageHeader { id, flags, counts: [1, 0, 0, u16::from(style.edns)] }.push(&mut message);
        message.extend_from_slice(&self.wire);
        if style.mixed_case {
            let name_bytes = self.wire.len().saturating_sub(4);
            mix_case(&mut message[HEADER_BYTES..HEADER_BYTES + name_bytes], random);
        }
        if style.edns {
            push_opt(&mut message, 0, self.bits.edns_flags());
        }
        message
    }
}

/// Sets each letter to upper or lower case at random.
fn mix_case(name: &mut [u8], random: &mut dyn FnMut() -> u64) {
    const UPPER_LOWER: u8 = 0x20;
    for part in name.chunks_mut(64) {
        let mut bits = random();
        for byte in part {
            if byte.is_ascii_alphabetic() && bits & 1 == 1 {
                *byte ^= UPPER_LOWER;
            }
            bits >>= 1;
        }
    }
}

#[cfg(test)]
mod tests;
