//! Parses addresses in a policy: addresses that rules match, listen on, or connect to.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use crate::flow::Address;
use crate::policy::selector::{AddressSelector, NamePattern, Near, mask};
use crate::policy::target::Target;
use crate::policy::text::TomlValue;

/// The largest length of a path or an abstract name of a UNIX socket: `sun_path` has 108 bytes, one
/// of which is a NUL.
pub(super) const UNIX_PATH_BYTES_MAX: usize = 107;

/// An address that cannot be parsed.
#[derive(Debug, PartialEq, Eq)]
struct Fault {
    /// The fault.
    message: String,
    /// The fix.
    fix: String,
}

/// Parses an entry of `local` or `remote`.
pub(super) fn selector(value: &TomlValue<'_>) -> Option<AddressSelector> {
    let text = value.string()?;
    report(value, parse_selector(text))
}

/// Parses an entry of `names`.
pub(super) fn name_pattern(value: &TomlValue<'_>) -> Option<NamePattern> {
    let text = value.string()?;
    if text == "*" {
        return Some(NamePattern::Any);
    }
    match parse_selector(text) {
        Ok(AddressSelector::Name { host, wildcard }) => Some(NamePattern::Host { host, wildcard }),
        _ => {
            let message = format!("`names` cannot be `{text}`: this is not a host name");
            value.error(message, "write names: \"db.example.com\", \"*.example.com\" or \"*\"");
            None
        }
    }
}

/// Parses an entry of `listen`: an address that can be bound without a resolver.
pub(super) fn listen(value: &TomlValue<'_>) -> Option<Address> {
    let text = value.string()?;
    report(value, parse_endpoint(text).and_then(|target| as_listen(text, target)))
}

/// Parses the value of `connect`.
pub(super) fn target(value: &TomlValue<'_>) -> Option<Target> {
    let text = value.string()?;
    report(value, parse_endpoint(text).and_then(|target| as_connect(text, target)))
}

/// Parses the value of `server-name`: a host name or an IP address, as in certificates.
pub(super) fn server_name(value: &TomlValue<'_>) -> Option<String> {
    let text = value.string()?;
    if let Ok(ip) = text.parse::<IpAddr>() {
        return Some(ip.to_canonical().to_string());
    }
    let name = host(text).ok_or_else(|| {
        let fix = "write an IP address, or a name such as \"db.example.com\", without a port or \
                   wildcard";
        let message = format!("`{text}` is not a server name");
        Fault { message, fix: fix.to_owned() }
    });
    report(value, name)
}

/// Returns a valid host name in lower case, without a final dot (RFC 1123; underscores are
/// allowed).
pub(super) fn host(text: &str) -> Option<String> {
    let name = text.strip_suffix('.').unwrap_or(text);
    let good_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'))
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    // If the last label has only digits, the text is a malformed address (RFC 3696 section 2).
    let numeric = name.rsplit('.').next()?.bytes().all(|b| b.is_ascii_digit());
    let good = name.len() <= 253 && !numeric && name.split('.').all(good_label);
    good.then(|| name.to_ascii_lowercase())
}

fn report<T>(value: &TomlValue<'_>, read: Result<T, Fault>) -> Option<T> {
    read.map_err(|fault| value.error(fault.message, fault.fix)).ok()
}

fn fault<T>(message: impl Into<String>, fix: impl Into<String>) -> Result<T, Fault> {
    Err(Fault { message: message.into(), fix: fix.into() })
}

fn parse_selector(text: &str) -> Result<AddressSelector, Fault> {
    if let Some(near) = Near::ALL.into_iter().find(|near| near.word() == text) {
        return Ok(AddressSelector::Near(near));
    }
    if let Some((network, length)) = text.split_once('/') {
        return parse_network(text, network, length);
    }
    if let Ok(ip) = text.parse::<IpAddr>() {
        let network = ip.to_canonical();
        return Ok(AddressSelector::Prefix { network, length: bits(network) });
    }
    if let Some((first, last)) = text.split_once('-')
        && let Ok(first) = first.trim().parse::<IpAddr>()
    {
        return parse_range(text, first.to_canonical(), last.trim());
    }
    if text.parse::<SocketAddr>().is_ok() {
        let fix = "write only the address here, and put the port in `remote-ports` or \
                   `local-ports`";
        return fault(format!("`{text}` contains a port"), fix);
    }
    let domain = text.strip_prefix("*.");
    let Some(host) = host(domain.unwrap_or(text)) else {
        let fix = "write an address \"10.1.2.3\", a network \"10.1.0.0/16\", a range \
                   \"10.1.2.3-10.1.2.9\", a name \"db.example.com\" or \"*.example.com\", \
                   or the word \"loopback\" or \"link-local\"";
        return fault(format!("`{text}` is not an address"), fix);
    };
    if host == "localhost" || host.ends_with(".localhost") {
        let message =
            format!("`{text}` is a loopback name, and tacit does not resolve loopback names");
        return fault(message, "write \"loopback\", \"127.0.0.1\" or \"::1\"");
    }
    Ok(AddressSelector::Name { host, wildcard: domain.is_some() })
}

/// Returns a name that `remote` can contain, in lower case; `None` if the text is no such name.
pub(crate) fn remote_name(text: &str) -> Option<String> {
    match parse_selector(text) {
        Ok(AddressSelector::Name { host, wildcard: false }) => Some(host),
        _ => None,
    }
}

fn parse_network(text: &str, network: &str, length: &str) -> Result<AddressSelector, Fault> {
    let Ok(address) = network.parse::<IpAddr>() else {
        let fix = "write the whole address before the slash, for example \"10.0.0.0/8\" or \
                   \"fd00::/8\"";
        return fault(format!("`{text}` is not a network: `{network}` is not an address"), fix);
    };
    let width = bits(address);
    let plain = !length.is_empty() && length.bytes().all(|b| b.is_ascii_digit());
    let Some(length) = plain.then(|| length.parse::<u8>().ok()).flatten().filter(|l| *l <= width)
    else {
        let message = format!(
            "`{text}` is not a network: the prefix length is not a number from 0 to {width}"
        );
        return fault(message, format!("write a number from 0 to {width} after the slash"));
    };
    let network = mask(address, length);
    if network != address {
        let message = format!(
            "`{text}` is not the address of a network: bits after the first {length} bits are set"
        );
        return fault(
            message,
            format!("write \"{network}/{length}\", or \"{address}\" for one host"),
        );
    }
    // IPv4-mapped addresses are compared as IPv4, so they are stored as IPv4.
    match (network, network.to_canonical()) {
        (IpAddr::V6(_), ipv4 @ IpAddr::V4(_)) if length >= 96 => {
            Ok(AddressSelector::Prefix { network: ipv4, length: length - 96 })
        }
        _ => Ok(AddressSelector::Prefix { network, length }),
    }
}

fn parse_range(text: &str, first: IpAddr, last: &str) -> Result<AddressSelector, Fault> {
    let Ok(last) = last.parse::<IpAddr>().map(|ip| ip.to_canonical()) else {
        let fix = "write both addresses in full, for example \"10.1.2.3-10.1.2.9\"";
        return fault(format!("`{text}` is not a range: `{last}` is not an address"), fix);
    };
    if first.is_ipv4() != last.is_ipv4() {
        let fix = "write two ranges, one for IPv4 and one for IPv6";
        return fault(format!("the range `{text}` mixes IPv4 and IPv6"), fix);
    }
    if first > last {
        return fault(
            format!("the last address of the range `{text}` is lower than the first address"),
            format!("write \"{last}-{first}\""),
        );
    }
    Ok(AddressSelector::Range { first, last })
}

/// Returns the number of bits of an address.
fn bits(ip: IpAddr) -> u8 {
    if ip.is_ipv4() { 32 } else { 128 }
}

fn parse_endpoint(text: &str) -> Result<Target, Fault> {
    if let Some(name) = text.strip_prefix("unix:") {
        return parse_unix(text, name).map(Target::Address);
    }
    if text.starts_with('/') {
        return fault(
            format!("`{text}` is a path without `unix:`"),
            format!("write \"unix:{text}\""),
        );
    }
    if let Ok(ip) = text.parse::<IpAddr>() {
        let fix = match (ip, text.rsplit_once(':')) {
            (IpAddr::V4(ip), _) => format!("write \"{ip}:PORT\""),
            (IpAddr::V6(_), Some((ip, port))) if ip.parse::<Ipv6Addr>().is_ok() => {
                format!(
                    "if {port} is the port, write \"[{ip}]:{port}\"; otherwise write \
                     \"[{text}]:PORT\""
                )
            }
            (IpAddr::V6(ip), _) => format!("write \"[{ip}]:PORT\""),
        };
        return fault(format!("`{text}` has no port"), fix);
    }
    let Some((host_text, port_text)) = text.rsplit_once(':') else {
        return fault(format!("`{text}` has no port"), format!("write \"{text}:PORT\""));
    };
    let port = parse_port(text, port_text)?;
    if host_text.is_empty() || host_text == "*" {
        let fix = format!(
            "write \"127.0.0.1:{port}\" to accept connections from this host only, or \
             \"0.0.0.0:{port}\" to accept connections from every host"
        );
        return fault(format!("`{text}` has no address"), fix);
    }
    if let Ok(ip) = host_text.parse::<Ipv6Addr>() {
        let message = format!("`{text}`: an IPv6 address with a port needs brackets");
        return fault(message, format!("write \"[{ip}]:{port}\""));
    }
    let inner = host_text.strip_prefix('[').and_then(|inner| inner.strip_suffix(']'));
    let ip = match inner {
        Some(inner) => inner.parse::<Ipv6Addr>().ok().map(IpAddr::V6),
        None => host_text.parse::<Ipv4Addr>().ok().map(IpAddr::V4),
    };
    if let Some(ip) = ip {
        return Ok(Target::Address(SocketAddr::new(ip.to_canonical(), port).into()));
    }
    let Some(host) = host(host_text) else {
        let fix =
            "write \"127.0.0.1:8080\", \"[::1]:8080\", \"unix:/run/x.sock\" or \"unix:@name\"";
        return fault(format!("`{text}`: `{host_text}` is neither an address nor a name"), fix);
    };
    Ok(Target::Name { host, port })
}

fn parse_port(text: &str, port: &str) -> Result<u16, Fault> {
    let plain = !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit());
    if !plain {
        return fault(
            format!("`{text}`: `{port}` is not a port"),
            "write a number after the last colon, for example :8080",
        );
    }
    match port.parse::<u16>() {
        Ok(0) => fault(format!("`{text}`: port 0 cannot be used"), "write a port from 1 to 65535"),
        Ok(port) => Ok(port),
        Err(_) => fault(
            format!("`{text}`: port {port} is larger than 65535"),
            "write a port from 1 to 65535",
        ),
    }
}

fn parse_unix(text: &str, name: &str) -> Result<Address, Fault> {
    let abstract_name = name.strip_prefix('@');
    let shown = abstract_name.unwrap_or(name);
    if shown.is_empty() {
        let fix = "write \"unix:/run/x.sock\" or \"unix:@name\"";
        return fault(
            format!(
                "`{text}` contains neither the path of a socket nor an abstract name after `unix:`"
            ),
            fix,
        );
    }
    if shown.len() > UNIX_PATH_BYTES_MAX {
        let length = shown.len();
        let message = format!(
            "the name of the UNIX socket has {length} bytes; the limit of the kernel is \
             {UNIX_PATH_BYTES_MAX}"
        );
        let fix = "choose a shorter path, such as one below /run";
        return fault(message, fix);
    }
    if abstract_name.is_some() {
        return Ok(Address::Abstract(shown.to_owned()));
    }
    if !shown.starts_with('/') {
        let message = format!(
            "`{text}` is a relative path, so programs with another working directory would not \
             find the socket"
        );
        return fault(
            message,
            format!("write the absolute path: \"unix:/run/{path}\"", path = shown),
        );
    }
    if shown.ends_with('/') {
        return fault(format!("`{text}` is a directory"), format!("write \"{text}NAME.sock\""));
    }
    Ok(Address::Path(PathBuf::from(shown)))
}

fn as_listen(text: &str, target: Target) -> Result<Address, Fault> {
    match target {
        Target::Address(address) => Ok(address),
        Target::Name { host, port } if host == "localhost" => fault(
            format!("`{text}`: `listen` needs one IP address, but localhost may have two"),
            format!("write \"127.0.0.1:{port}\", \"[::1]:{port}\", or a list of both addresses"),
        ),
        Target::Name { port, .. } => fault(
            format!("`{text}`: `listen` needs addresses, not names"),
            format!("write \"0.0.0.0:{port}\", or the address of one interface"),
        ),
    }
}

fn as_connect(text: &str, target: Target) -> Result<Target, Fault> {
    match &target {
        Target::Address(Address::Inet(address)) if address.ip().is_unspecified() => fault(
            format!(
                "`{text}`: tacit cannot connect to {address}, which stands for all addresses",
                address = address.ip()
            ),
            format!("write \"127.0.0.1:{}\" to connect to this host", address.port()),
        ),
        Target::Address(Address::Inet(address)) if address.ip().is_multicast() => fault(
            format!("`{text}`: {} is a multicast address", address.ip()),
            "write the address of one host",
        ),
        _ => Ok(target),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_are_read() {
        for (text, shown) in [
            ("10.1.2.3", "10.1.2.3"),
            ("10.0.0.0/8", "10.0.0.0/8"),
            ("0.0.0.0/0", "0.0.0.0/0"),
            ("2001:db8::/32", "2001:db8::/32"),
            ("::/0", "::/0"),
            ("::ffff:10.0.0.1", "10.0.0.1"),
            ("::ffff:10.0.0.0/104", "10.0.0.0/8"),
            ("10.0.0.5-10.0.0.9", "10.0.0.5-10.0.0.9"),
            ("fd00::1 - fd00::9", "fd00::1-fd00::9"),
            ("DB.Corp.Example.", "db.corp.example"),
            ("*.corp.example", "*.corp.example"),
            ("10-0-0-1.example", "10-0-0-1.example"),
            ("loopback", "loopback"),
            ("link-local", "link-local"),
        ] {
            assert_eq!(parse_selector(text).map(|s| s.to_string()), Ok(shown.to_owned()), "{text}");
        }
    }

    #[test]
    fn bad_selectors_say_what_to_write() {
        for (text, message, fix) in [
            (
                "10.1.2.3/16",
                "`10.1.2.3/16` is not the address of a network: bits after the first 16 bits are \
                 set",
                "write \"10.1.0.0/16\", or \"10.1.2.3\" for one host",
            ),
            (
                "10.0.0.0/33",
                "`10.0.0.0/33` is not a network: the prefix length is not a number from 0 to 32",
                "write a number from 0 to 32 after the slash",
            ),
            (
                "10.0.0.9-10.0.0.1",
                "the last address of the range `10.0.0.9-10.0.0.1` is lower than the first address",
                "write \"10.0.0.1-10.0.0.9\"",
            ),
            (
                "10.0.0.9-::1",
                "the range `10.0.0.9-::1` mixes IPv4 and IPv6",
                "write two ranges, one for IPv4 and one for IPv6",
            ),
            (
                "*.localhost",
                "`*.localhost` is a loopback name, and tacit does not resolve loopback names",
                "write \"loopback\", \"127.0.0.1\" or \"::1\"",
            ),
        ] {
            let wanted = fault(message, fix);
            assert_eq!(parse_selector(text).map(|s| s.to_string()), wanted);
        }
        for text in ["10.1.2.300", "10.1", "a..b", "*", "*.*.x", "-a.b", "10.0/8", "1.2.3.4:5", ""]
        {
            assert!(parse_selector(text).is_err(), "{text}");
        }
    }

    #[test]
    fn endpoints_are_read() {
        let shown = |text| match parse_endpoint(text) {
            Ok(Target::Address(address)) => address.to_string(),
            Ok(Target::Name { host, port }) => format!("name {host} {port}"),
            Err(fault) => fault.message,
        };
        for (text, wanted) in [
            ("0.0.0.0:8443", "0.0.0.0:8443"),
            ("[::1]:80", "[::1]:80"),
            ("[::ffff:127.0.0.1]:80", "127.0.0.1:80"),
            ("unix:/run/x.sock", "unix:/run/x.sock"),
            ("unix:@name", "unix:@name"),
            ("DB.example:5433", "name db.example 5433"),
            ("127.0.0.1:70000", "`127.0.0.1:70000`: port 70000 is larger than 65535"),
            ("127.0.0.1:0", "`127.0.0.1:0`: port 0 cannot be used"),
            ("127.0.0.1:+80", "`127.0.0.1:+80`: `+80` is not a port"),
            (":8080", "`:8080` has no address"),
            ("127.0.0.1", "`127.0.0.1` has no port"),
            ("::1:8080", "`::1:8080` has no port"),
            (
                "fd00::1:2:3:4:5:6:8080",
                "`fd00::1:2:3:4:5:6:8080`: an IPv6 address with a port needs brackets",
            ),
            (
                "unix:",
                "`unix:` contains neither the path of a socket nor an abstract name after `unix:`",
            ),
            (
                "unix:run/x",
                "`unix:run/x` is a relative path, so programs with another working directory would \
                 not find the socket",
            ),
            ("unix:/run/", "`unix:/run/` is a directory"),
            ("/run/x.sock", "`/run/x.sock` is a path without `unix:`"),
            ("256.1.1.1:80", "`256.1.1.1:80`: `256.1.1.1` is neither an address nor a name"),
        ] {
            assert_eq!(shown(text), wanted);
        }
        let longest = format!("unix:/{}", "x".repeat(UNIX_PATH_BYTES_MAX - 1));
        assert!(parse_endpoint(&longest).is_ok());
        assert!(parse_endpoint(&format!("{longest}x")).is_err());
    }
}
