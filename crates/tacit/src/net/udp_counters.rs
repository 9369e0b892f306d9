//! Reads the kernel's counters of UDP datagrams for the network namespace of this process.

use std::io;

use serde::{Deserialize, Serialize};

/// The datagrams of one IP version (RFC 4113).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct UdpCounters {
    /// Datagrams that sockets have received.
    pub received: u64,
    /// Datagrams to a port without a socket.
    pub no_port: u64,
    /// Datagrams that were dropped for another reason: a wrong checksum, or a full queue.
    pub errors: u64,
    /// Datagrams that were sent.
    pub sent: u64,
}

/// Returns the counters of IPv4 and of IPv6.
///
/// # Errors
/// The counters of IPv4 cannot be read. Those of IPv6 are zero if the kernel has no IPv6.
pub fn udp_counters() -> io::Result<[UdpCounters; 2]> {
    let v4 = std::fs::read_to_string("/proc/net/snmp")?;
    let v6 = std::fs::read_to_string("/proc/net/snmp6").unwrap_or_default();
    Ok([of_v4(&v4), of_v6(&v6)])
}

/// A line has the names, and the next line has the numbers.
fn of_v4(text: &str) -> UdpCounters {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Udp: "));
    let names = lines.next().unwrap_or_default().split_whitespace();
    let numbers = lines.next().unwrap_or_default().split_whitespace();
    let pairs: Vec<_> = names.zip(numbers).collect();
    of_pairs(|name| pairs.iter().find(|(found, _)| *found == name).map(|(_, number)| *number))
}

/// Each line has a name and a number.
fn of_v6(text: &str) -> UdpCounters {
    of_pairs(|name| {
        let mut words = text.lines().map(str::split_whitespace);
        words.find_map(|mut words| {
            let found = words.next()?.strip_prefix("Udp6")?;
            (found == name).then(|| words.next()).flatten()
        })
    })
}

fn of_pairs<'a>(find: impl Fn(&str) -> Option<&'a str>) -> UdpCounters {
    let number = |name| find(name).and_then(|text| text.parse().ok()).unwrap_or(0);
    UdpCounters {
        received: number("InDatagrams"),
        no_port: number("NoPorts"),
        errors: number("InErrors"),
        sent: number("OutDatagrams"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_found_by_name() {
        let v4 = "Tcp: InSegs\nTcp: 9\nUdp: InDatagrams NoPorts InErrors OutDatagrams Other\n\
                  Udp: 4 3 2 1 7\nUdpLite: InDatagrams NoPorts\nUdpLite: 8 8\n";
        let wanted = UdpCounters { received: 4, no_port: 3, errors: 2, sent: 1 };
        assert_eq!(of_v4(v4), wanted);
        let v6 = "Ip6InReceives 9\nUdp6InDatagrams 4\nUdp6NoPorts 3\nUdp6InErrors 2\n\
                  Udp6OutDatagrams 1\nUdpLite6InDatagrams 8\n";
        assert_eq!(of_v6(v6), wanted);
        assert_eq!(of_v6(""), UdpCounters::default());
    }

    #[test]
    fn a_datagram_is_counted() {
        let sent = || udp_counters().unwrap()[0].sent;
        let before = sent();
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.send_to(b"x", socket.local_addr().unwrap()).unwrap();
        assert!(sent() > before);
    }
}
