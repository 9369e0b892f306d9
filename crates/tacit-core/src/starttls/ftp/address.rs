//! Parses and writes the addresses of data connections in FTP commands and replies.
//!
//! ```text
//!   PORT h1,h2,h3,h4,p1,p2        227 … (h1,h2,h3,h4,p1,p2)        RFC 959
//!   EPRT |1|192.0.2.1|49160|      229 … (|||49160|)                RFC 2428
//! ```

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use super::control::AddressForm;

/// An address that cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unusable {
    /// The syntax is invalid.
    Malformed,
    /// The network protocol is unknown.
    Protocol,
}

/// Parses the address in a 227 reply, whose other text varies.
pub(super) fn passive(text: &[u8]) -> Option<SocketAddr> {
    let starts = (0..text.len()).filter(|at| {
        let before = at.checked_sub(1).and_then(|before| text.get(before));
        text.get(*at).is_some_and(u8::is_ascii_digit) && !before.is_some_and(u8::is_ascii_digit)
    });
    starts.filter_map(|at| six(text.get(at..)?)).map(|six| six.address).next()
}

/// Parses the port in a 229 reply (RFC 2428 section 3). Some servers fill in the two fields before
/// it.
pub(super) fn extended_passive(text: &[u8]) -> Option<u16> {
    let open = text.iter().position(|byte| *byte == b'(')?;
    let [_, _, port] = fields(text.get(open + 1..)?)?;
    number(port)
}

/// Parses the argument of `PORT`.
pub(super) fn port(text: &[u8]) -> Result<SocketAddr, Unusable> {
    match six(text.trim_ascii()) {
        Some(Six { address, rest: [] }) => Ok(address),
        _ => Err(Unusable::Malformed),
    }
}

/// Parses the argument of `EPRT`.
pub(super) fn extended_port(text: &[u8]) -> Result<SocketAddr, Unusable> {
    let [protocol, address, port] = fields(text.trim_ascii()).ok_or(Unusable::Malformed)?;
    let address = std::str::from_utf8(address).ok().and_then(|text| text.parse::<IpAddr>().ok());
    match (protocol, address, number(port)) {
        (b"1", Some(IpAddr::V4(ip)), Some(port)) => Ok((ip, port).into()),
        (b"2", Some(IpAddr::V6(ip)), Some(port)) => Ok((ip, port).into()),
        (b"1" | b"2", ..) => Err(Unusable::Malformed),
        _ => Err(Unusable::Protocol),
    }
}

/// Builds a `PORT` command, or `EPRT` if the client used it or the address requires it.
pub(super) fn port_command(address: SocketAddr, form: AddressForm) -> String {
    match (address.ip(), form) {
        (IpAddr::V4(ip), AddressForm::Classic) => format!("PORT {}", written(ip, address.port())),
        (IpAddr::V4(ip), AddressForm::Extended) => format!("EPRT |1|{ip}|{}|", address.port()),
        (IpAddr::V6(ip), _) => format!("EPRT |2|{ip}|{}|", address.port()),
    }
}

/// A 227 reply.
pub(super) fn passive_reply(ip: Ipv4Addr, port: u16) -> String {
    format!("227 Entering Passive Mode ({}).", written(ip, port))
}

/// A 229 reply.
pub(super) fn extended_passive_reply(port: u16) -> String {
    format!("229 Entering Extended Passive Mode (|||{port}|)")
}

fn written(ip: Ipv4Addr, port: u16) -> String {
    let [a, b, c, d] = ip.octets();
    let [high, low] = port.to_be_bytes();
    format!("{a},{b},{c},{d},{high},{low}")
}

/// An address and a port as six numbers of a byte each.
struct Six<'t> {
    address: SocketAddr,
    /// The text after the numbers.
    rest: &'t [u8],
}

/// Parses the six numbers at the beginning of the text.
fn six(text: &[u8]) -> Option<Six<'_>> {
    let mut rest = text;
    let mut numbers = [0; 6];
    for (at, place) in numbers.iter_mut().enumerate() {
        if at > 0 {
            rest = rest.strip_prefix(b",")?;
        }
        let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let (number, after) = rest.split_at(digits);
        *place = std::str::from_utf8(number).ok()?.parse::<u8>().ok()?;
        rest = after;
    }
    let [a, b, c, d, high, low] = numbers;
    let port = u16::from_be_bytes([high, low]);
    let address = (Ipv4Addr::new(a, b, c, d), port).into();
    (port != 0).then_some(Six { address, rest })
}

/// Returns the three fields between four delimiters; the first character is the delimiter.
fn fields(text: &[u8]) -> Option<[&[u8]; 3]> {
    let (delimiter, rest) = text.split_first()?;
    if !(33..=126).contains(delimiter) || delimiter.is_ascii_digit() {
        return None;
    }
    let mut parts = rest.splitn(4, |byte| byte == delimiter);
    let fields = [parts.next()?, parts.next()?, parts.next()?];
    // The fourth delimiter.
    parts.next().map(|_| fields)
}

fn number(text: &[u8]) -> Option<u16> {
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok().filter(|port| *port != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn passive_replies_are_understood_as_servers_print_them() {
        for text in [
            "227 Entering Passive Mode (192,0,2,7,195,80).",
            "227 Entering Passive Mode (192,0,2,7,195,80)",
            "227 Entering Passive Mode 192,0,2,7,195,80",
            "227 =192,0,2,7,195,80",
            "227 Passive mode OK (192,0,2,7,195,80 )",
            "227 Entering Passive Mode. Port 5 at (192,0,2,7,195,80)",
        ] {
            assert_eq!(passive(text.as_bytes()), "192.0.2.7:50000".parse().ok(), "{text}");
        }
        for text in [
            "227 Entering Passive Mode",
            "227 (192,0,2,7,195)",
            "227 (192,0,2,7,195,256)",
            "227 (192,0,2,7,0,0)",
            "227 (192,0,2,,195,80)",
        ] {
            assert_eq!(passive(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn extended_passive_replies_are_understood_with_any_delimiter() {
        for text in ["229 EPSV (|||50000|)", "229 OK (!!!50000!).", "229 (|1|192.0.2.7|50000|)"] {
            assert_eq!(extended_passive(text.as_bytes()), Some(50000), "{text}");
        }
        for text in ["229 |||50000|", "229 (|||0|)", "229 (|||70000|)", "229 (||50000|)", "229 ("] {
            assert_eq!(extended_passive(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn addresses_of_active_mode_are_taken_whole_or_not_at_all() {
        assert_eq!(port(b"192,0,2,7,195,80"), Ok("192.0.2.7:50000".parse().unwrap()));
        for text in [&b"192,0,2,7,195,80,1"[..], b"192,0,2,7", b"", b"a,0,2,7,1,2", b"1,2,3,4,+5,6"]
        {
            assert_eq!(port(text), Err(Unusable::Malformed), "{text:?}");
        }
        let extended = |text: &str| extended_port(text.as_bytes());
        assert_eq!(extended("|1|192.0.2.7|50000|"), Ok("192.0.2.7:50000".parse().unwrap()));
        assert_eq!(extended("|2|2001:db8::7|50000|"), Ok("[2001:db8::7]:50000".parse().unwrap()));
        assert_eq!(extended("|3|x|50000|"), Err(Unusable::Protocol));
        for text in ["|2|192.0.2.7|50000|", "|1|192.0.2.7|50000", "|2|fe80::1%lo|5000|", "|1||1|"] {
            assert_eq!(extended(text), Err(Unusable::Malformed), "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_understood(ip: Ipv4Addr, ip6: std::net::Ipv6Addr, number in 1u16..) {
            let at = SocketAddr::from((ip, number));
            prop_assert_eq!(passive(passive_reply(ip, number).as_bytes()), Some(at));
            let reply = extended_passive_reply(number);
            prop_assert_eq!(extended_passive(reply.as_bytes()), Some(number));
            prop_assert_eq!(port(&port_command(at, AddressForm::Classic).as_bytes()[5..]), Ok(at));
            let command = port_command(at, AddressForm::Extended);
            prop_assert_eq!(extended_port(&command.as_bytes()[5..]), Ok(at));
            let at = SocketAddr::from((ip6, number));
            let command = port_command(at, AddressForm::Classic);
            prop_assert_eq!(extended_port(&command.as_bytes()[5..]), Ok(at));
        }

        #[test]
        fn any_bytes_are_an_address_or_none(bytes: Vec<u8>) {
            let _ = (passive(&bytes), extended_passive(&bytes));
            let _ = (port(&bytes), extended_port(&bytes));
        }
    }
}
