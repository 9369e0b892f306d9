//! Copies the SYN packets of programs under `tacit run` to the agent. A *held* SYN is a packet that
//! the kernel drops after the copy. The agent connects to the destination of the SYN, and then
//! sends the SYN again. There are two methods to copy SYN packets:
//!
//! ```text
//! nfnetlink_log   the default: an nftables rule copies each held SYN
//! packet socket   if the kernel has no nfnetlink_log: receives each SYN on `lo`, also SYNs that
//!                 are not held
//! ```

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, sockopt};

use crate::netlink::nflog::{self, LogCause, LoggedPacket};
pub use crate::netlink::nft::Copies;
use crate::netlink::nft::{AGENT_MARK, RELEASE_MARK, SYN_LOG_GROUP};
use crate::netlink::route::LO;
use crate::option::{attach_filter, bind_to_interface};

/// Opens the socket that receives the copies, in the network namespace of the calling thread.
///
/// # Errors
/// The error of the kernel.
pub(crate) fn open(copies: Copies) -> io::Result<OwnedFd> {
    match copies {
        Copies::OfRule => nflog::open(SYN_LOG_GROUP).map_err(|error| match error.errno() {
            Some(libc::EBUSY) => io::Error::from_raw_os_error(libc::EBUSY),
            _ => io::Error::other(error.to_string()),
        }),
        Copies::OfInterface => packet_socket(),
    }
}

fn packet_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    // Without a protocol the socket receives nothing until the filter is attached.
    let socket = rustix::net::socket_with(AddressFamily::PACKET, SocketType::DGRAM, flags, None)?;
    attach_filter(socket.as_fd(), &mut filter())?;
    bind_to_interface(socket.as_fd(), LO)?;
    Ok(socket)
}

/// The socket that receives the copies, for its reader.
#[derive(Debug)]
pub struct SynLog {
    socket: Arc<OwnedFd>,
    copies: Copies,
}

impl SynLog {
    /// Uses a socket that was created inside the namespace.
    ///
    /// # Errors
    /// The error of `getsockopt`.
    pub fn adopt(socket: OwnedFd) -> io::Result<Self> {
        let copies = match sockopt::socket_domain(&socket)? {
            AddressFamily::PACKET => Copies::OfInterface,
            _ => Copies::OfRule,
        };
        Ok(Self { socket: Arc::new(socket), copies })
    }

    /// Returns the source of the copies.
    #[must_use]
    pub fn copies(&self) -> Copies {
        self.copies
    }

    /// Returns the socket, so that the caller can wait for it.
    #[must_use]
    pub fn socket(&self) -> &Arc<OwnedFd> {
        &self.socket
    }

    /// Receives the next copy; `None` if the message contains none.
    ///
    /// # Errors
    /// `WouldBlock` if there is none; `ENOBUFS` ([`nflog::is_overrun`]) if copies were lost;
    /// otherwise the error of the kernel.
    pub fn receive<'b>(&self, buffer: &'b mut [u8]) -> io::Result<Option<LoggedPacket<'b>>> {
        match self.copies {
            Copies::OfRule => {
                let bytes = nflog::receive(self.socket.as_fd(), buffer)?;
                // The kernel sends each packet in a report of its own.
                Ok(nflog::packets(buffer.get(..bytes).unwrap_or_default()).next())
            }
            Copies::OfInterface => {
                let (bytes, _) =
                    rustix::net::recv(&*self.socket, &mut *buffer, RecvFlags::empty())?;
                let packet = buffer.get(..bytes);
                Ok(packet.map(|packet| LoggedPacket { packet, cause: LogCause::Opens }))
            }
        }
    }
}

impl AsFd for SynLog {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Builds the filter that keeps the headers of SYNs that arrive on the interface and that the agent
/// has not sent.
fn filter() -> Vec<libc::sock_filter> {
    let statement = |code: u32, k: u32| libc::sock_filter { code: code_of(code), jt: 0, jf: 0, k };
    // Each condition jumps to the end. The distance is filled in when all conditions are known.
    let unless = |code: u32, k: u32| libc::sock_filter { code: code_of(code), jt: 0, jf: DROP, k };
    let mut program = vec![
        statement(LOAD_WORD, ANCILLARY + PACKET_TYPE),
        unless(JUMP_EQUAL, PACKET_HOST),
        statement(LOAD_WORD, ANCILLARY + MARK),
        libc::sock_filter { jt: DROP, jf: 0, ..unless(JUMP_EQUAL, AGENT_MARK) },
        libc::sock_filter { jt: DROP, jf: 0, ..unless(JUMP_EQUAL, RELEASE_MARK) },
        statement(LOAD_WORD, ANCILLARY + PROTOCOL),
        libc::sock_filter { code: code_of(JUMP_EQUAL), jt: 0, jf: 5, k: ETHERTYPE_V4 },
        statement(LOAD_BYTE, 9),
        unless(JUMP_EQUAL, TCP),
        statement(LOAD_HEADER_LENGTH, 0),
        statement(LOAD_BYTE_AFTER_HEADER, 13),
        libc::sock_filter { code: code_of(JUMP_ALWAYS), jt: 0, jf: 0, k: 4 },
        unless(JUMP_EQUAL, ETHERTYPE_V6),
        statement(LOAD_BYTE, 6),
        unless(JUMP_EQUAL, TCP),
        statement(LOAD_BYTE, 53),
        statement(AND, SYN | ACK),
        unless(JUMP_EQUAL, SYN),
        statement(RETURN, nflog::PACKET_BYTES_KEPT),
        statement(RETURN, 0),
    ];
    let end = program.len() - 1;
    for (at, instruction) in program.iter_mut().enumerate() {
        let to_end = u8::try_from(end - at).unwrap_or(u8::MAX).saturating_sub(1);
        for jump in [&mut instruction.jt, &mut instruction.jf] {
            if *jump == DROP {
                *jump = to_end;
            }
        }
    }
    program
}

fn code_of(code: u32) -> u16 {
    // The codes of classic BPF have 16 bits.
    u16::try_from(code).unwrap_or(0)
}

/// A placeholder for the distance to the end.
const DROP: u8 = u8::MAX;
/// `SKF_AD_OFF`: added to an offset, it selects what the kernel knows about a packet in addition to
/// its bytes.
const ANCILLARY: u32 = 0xffff_f000;
const PROTOCOL: u32 = 0;
const PACKET_TYPE: u32 = 4;
const MARK: u32 = 20;
const PACKET_HOST: u32 = 0;
const ETHERTYPE_V4: u32 = 0x0800;
const ETHERTYPE_V6: u32 = 0x86dd;
const TCP: u32 = 6;
const SYN: u32 = 0x02;
const ACK: u32 = 0x10;
const LOAD_WORD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
const LOAD_BYTE: u32 = libc::BPF_LD | libc::BPF_B | libc::BPF_ABS;
const LOAD_BYTE_AFTER_HEADER: u32 = libc::BPF_LD | libc::BPF_B | libc::BPF_IND;
/// Loads four times the lower half of the first byte: the length of an IPv4 header.
const LOAD_HEADER_LENGTH: u32 = libc::BPF_LDX | libc::BPF_B | libc::BPF_MSH;
const AND: u32 = libc::BPF_ALU | libc::BPF_AND | libc::BPF_K;
const JUMP_EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
const JUMP_ALWAYS: u32 = libc::BPF_JMP | libc::BPF_JA;
const RETURN: u32 = libc::BPF_RET | libc::BPF_K;
