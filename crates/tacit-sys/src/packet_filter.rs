//! Builds filters of packet sockets: programs of classic BPF, which the kernel executes for each
//! packet. A filter decides how many bytes of a packet the kernel keeps.

use libc::sock_filter;

/// Where a filter continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target<L> {
    /// The statement with this label.
    To(L),
    /// The following statement.
    Next,
}

/// A statement of a filter, and where it continues.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Statement<L> {
    at: Option<L>,
    code: u32,
    k: u32,
    then: Target<L>,
    otherwise: Target<L>,
}

/// A statement after which the next one follows.
pub(crate) const fn next<L: Copy>(code: u32, k: u32) -> Statement<L> {
    Statement { at: None, code, k, then: Target::Next, otherwise: Target::Next }
}

/// A condition.
pub(crate) const fn jump<L: Copy>(
    code: u32,
    k: u32,
    then: Target<L>,
    otherwise: Target<L>,
) -> Statement<L> {
    Statement { at: None, code, k, then, otherwise }
}

/// Continues at a label.
pub(crate) const fn go<L: Copy>(to: L) -> Statement<L> {
    Statement { at: None, code: JUMP_ALWAYS, k: 0, then: Target::To(to), otherwise: Target::Next }
}

impl<L: Copy> Statement<L> {
    /// Gives the statement a label.
    pub(crate) const fn at(self, label: L) -> Self {
        Self { at: Some(label), ..self }
    }
}

/// Builds the program. Each label must follow the statements that jump to it, by fewer than 256
/// statements.
pub(crate) fn assemble<L: Copy + PartialEq>(statements: &[Statement<L>]) -> Vec<sock_filter> {
    let distance = |from: usize, to: Target<L>| match to {
        Target::Next => 0,
        Target::To(label) => {
            let to = statements.iter().position(|statement| statement.at == Some(label));
            u8::try_from(to.unwrap_or(0).saturating_sub(from + 1)).unwrap_or(u8::MAX)
        }
    };
    let instruction = |(at, statement): (usize, &Statement<L>)| {
        // The codes of classic BPF have 16 bits.
        let code = u16::try_from(statement.code).unwrap_or(0);
        let [then, otherwise] = [statement.then, statement.otherwise].map(|to| distance(at, to));
        match statement.code {
            JUMP_ALWAYS => sock_filter { code, jt: 0, jf: 0, k: then.into() },
            _ => sock_filter { code, jt: then, jf: otherwise, k: statement.k },
        }
    };
    statements.iter().enumerate().map(instruction).collect()
}

/// `SKF_AD_OFF`: added to an offset, it selects what the kernel knows about a packet in addition to
/// its bytes.
const ANCILLARY: u32 = 0xffff_f000;
pub(crate) const PROTOCOL: u32 = ANCILLARY;
pub(crate) const PACKET_TYPE: u32 = ANCILLARY + 4;
pub(crate) const INTERFACE: u32 = ANCILLARY + 8;
pub(crate) const MARK: u32 = ANCILLARY + 20;
/// The types of packets that arrive for this host, and of those that it sends.
pub(crate) const PACKET_HOST: u32 = 0;
pub(crate) const PACKET_OUTGOING: u32 = 4;
pub(crate) const ETHERTYPE_V4: u32 = 0x0800;
pub(crate) const ETHERTYPE_V6: u32 = 0x86dd;
pub(crate) const TCP: u32 = 6;
pub(crate) const UDP: u32 = 17;
pub(crate) const SYN: u32 = 0x02;
pub(crate) const ACK: u32 = 0x10;
pub(crate) const LOAD_WORD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
pub(crate) const LOAD_HALF: u32 = libc::BPF_LD | libc::BPF_H | libc::BPF_ABS;
pub(crate) const LOAD_BYTE: u32 = libc::BPF_LD | libc::BPF_B | libc::BPF_ABS;
pub(crate) const LOAD_HALF_BEHIND_X: u32 = libc::BPF_LD | libc::BPF_H | libc::BPF_IND;
pub(crate) const LOAD_BYTE_BEHIND_X: u32 = libc::BPF_LD | libc::BPF_B | libc::BPF_IND;
/// Loads four times the lower half of the first byte into X: the length of an IPv4 header.
pub(crate) const LOAD_HEADER_LENGTH: u32 = libc::BPF_LDX | libc::BPF_B | libc::BPF_MSH;
pub(crate) const AND: u32 = libc::BPF_ALU | libc::BPF_AND | libc::BPF_K;
pub(crate) const SHIFT_RIGHT: u32 = libc::BPF_ALU | libc::BPF_RSH | libc::BPF_K;
pub(crate) const ADD: u32 = libc::BPF_ALU | libc::BPF_ADD | libc::BPF_K;
pub(crate) const ADD_X: u32 = libc::BPF_ALU | libc::BPF_ADD | libc::BPF_X;
pub(crate) const COPY_TO_X: u32 = libc::BPF_MISC | libc::BPF_TAX;
pub(crate) const JUMP_EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
pub(crate) const JUMP_SET: u32 = libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K;
const JUMP_ALWAYS: u32 = libc::BPF_JMP | libc::BPF_JA;
pub(crate) const RETURN: u32 = libc::BPF_RET | libc::BPF_K;
