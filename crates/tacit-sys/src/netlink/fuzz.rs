//! Provides entry points for fuzzing the parsers of the kernel's netlink answers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType};

use crate::IpVersion;

use super::error::Error;
use super::nft::{self, Element};
use super::protocol::IpProtocol;
use super::route::{self, Families, SourceAddresses};
use super::socket::Netlink;
use super::{destinations, diag, interfaces, nflog, routing_rule, unix_diag};

/// Parses `input` as an answer of the kernel. The first byte selects the request; the other bytes
/// are the datagram that answers it. Requests are numbered from 1.
///
/// # Panics
/// An error has no text, or a parser has returned more than the datagram contains.
pub fn replies(input: &[u8]) {
    let Some((&choice, datagram)) = input.split_first() else { return };
    let family = AddressFamily::UNIX;
    let kind = SocketType::SEQPACKET;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let Ok((near, kernel)) = rustix::net::socketpair(family, kind, flags, None) else { return };
    if rustix::net::send(&kernel, datagram, SendFlags::empty()).is_err() {
        return;
    }
    let requested = ask(choice, &mut Netlink::from_first(near), datagram);
    // Stays open until here, because the other end of a real netlink socket is never closed.
    drop(kernel);
    let Err(error) = requested else { return };
    assert!(
        !matches!(error, Error::Invalid(_)),
        "a valid request was rejected as invalid: {error}"
    );
    assert!(!error.to_string().is_empty());
}

fn ask(choice: u8, netlink: &mut Netlink, datagram: &[u8]) -> Result<(), Error> {
    let v4 = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 40_000);
    if choice == u8::MAX {
        let found = nft::host::stored_names(netlink)?;
        assert!(
            found.len() <= datagram.len() / NAME_BYTES,
            "the parser returned more names than the datagram can describe"
        );
        return Ok(());
    }
    if choice == u8::MAX - 1 {
        let found = nft::host::named_addresses(netlink)?;
        assert!(
            found.len() <= datagram.len() / NAMED_BYTES,
            "the parser returned more entries than the datagram can describe"
        );
        return Ok(());
    }
    if choice == u8::MAX - 2 {
        let found = unix_diag::sockets(netlink, usize::MAX)?;
        assert!(
            found.len() <= datagram.len() / UNIX_DIAG_BYTES,
            "the parser returned more UNIX sockets than the datagram can describe"
        );
        return Ok(());
    }
    match choice % 7 {
        0 => diag::owner(netlink, IpProtocol::Tcp, v4, v4).map(|_| ()),
        1 => {
            let found = diag::listeners(netlink, IpVersion::V6)?;
            assert!(
                found.len() <= datagram.len() / DIAG_BYTES,
                "the parser returned more sockets than the datagram can describe"
            );
            Ok(())
        }
        2 => route::allow(netlink, Families { v4: true, v6: true }, SourceAddresses::default()),
        3 => nft::change(netlink, &[], &[everything()]),
        4 => {
            let found = interfaces::interfaces(netlink)?;
            assert!(
                found.len() <= datagram.len() / IFADDR_BYTES,
                "the parser returned more addresses than the datagram can describe"
            );
            Ok(())
        }
        5 => {
            let copied: usize = nflog::packets(datagram).map(|copied| copied.packet.len()).sum();
            assert!(
                copied <= datagram.len(),
                "the parser returned packets with more bytes than the datagram has"
            );
            Ok(())
        }
        _ => {
            let _ = routing_rule::mark_rule(datagram);
            let _ = destinations::described(datagram, v4.ip());
            let supported = route::large_segments(datagram);
            assert!(!datagram.is_empty() || supported == route::LargeSegments::default());
            Ok(())
        }
    }
}

fn everything() -> Element {
    Element {
        protocol: IpProtocol::Tcp,
        first: Ipv6Addr::UNSPECIFIED.into(),
        last: IpAddr::V6(Ipv6Addr::from(u128::MAX)),
        first_port: 0,
        last_port: u16::MAX,
    }
}

/// The size of the key of a name with its attributes.
const NAME_BYTES: usize = 36;
/// The size of the key of an address with its attributes.
const NAMED_BYTES: usize = 16;
/// The size of a header and of the shortest description of an address.
const IFADDR_BYTES: usize = 16 + 8;
/// The size of a header and of the shortest description of a socket.
const DIAG_BYTES: usize = 16 + 72;
/// The size of a header and of the shortest description of a UNIX socket.
const UNIX_DIAG_BYTES: usize = 16 + 16;
