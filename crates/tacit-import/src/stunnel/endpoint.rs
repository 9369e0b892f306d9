//! Converts the addresses in stunnel's options `accept` and `connect` to addresses of a tacit
//! policy.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::lines::Entry;
use crate::finding::Findings;

/// One end of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Endpoint {
    /// A UNIX socket.
    Path(String),
    /// A host and its port; `None` if only the port is given.
    Host(Option<String>, u16),
}

impl Endpoint {
    /// Reads `993`, `host:993`, `:::993` or `/run/x.sock`; `None` after an error was reported.
    pub(super) fn read(entry: &Entry, findings: &mut Findings) -> Option<Self> {
        let Entry { name, value, at } = entry;
        if value.starts_with('/') {
            return Some(Self::Path(value.clone()));
        }
        let split = value.rsplit_once(':');
        let port = split.map_or(value.as_str(), |(_, port)| port);
        let host = split.map(|(host, _)| host.trim_start_matches('[').trim_end_matches(']'));
        let Some(port) = port.trim().parse().ok().filter(|port| *port > 0) else {
            let message = format!("`{name} = {value}` has no port from 1 to 65535");
            let fix = format!(
                "write the port as a number; if {port} is the name of a service, `getent services \
                 {port}` prints its port"
            );
            findings.error(at, message, fix);
            return None;
        };
        Some(Self::Host(host.map(|host| host.trim().to_owned()), port))
    }

    /// The addresses on which a rule listens; `None` after an error was reported.
    pub(super) fn listen(&self, entry: &Entry, findings: &mut Findings) -> Option<Vec<String>> {
        let at = |ip: IpAddr, port: u16| SocketAddr::new(ip, port).to_string();
        let every = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        match self {
            Self::Path(path) => Some(vec![format!("unix:{path}")]),
            // stunnel binds IPv4 first. Its IPv6 bind then fails, and it continues without IPv6.
            Self::Host(None, port) => Some(vec![at(every, *port)]),
            Self::Host(Some(host), port) if host == "localhost" => {
                Some(vec![at(Ipv4Addr::LOCALHOST.into(), *port)])
            }
            Self::Host(Some(host), port) => match host.parse() {
                // stunnel's socket accepts both families; a socket of tacit accepts one.
                Ok(IpAddr::V6(Ipv6Addr::UNSPECIFIED)) => {
                    Some(vec![at(every, *port), at(Ipv6Addr::UNSPECIFIED.into(), *port)])
                }
                Ok(ip) => Some(vec![at(ip, *port)]),
                Err(_) => {
                    let message = format!(
                        "`accept = {value}` has a host name, but tacit listens on addresses only",
                        value = entry.value
                    );
                    let fix = format!(
                        "replace the host name by its address, which `getent hosts {host}` prints"
                    );
                    findings.error(&entry.at, message, fix);
                    None
                }
            },
        }
    }

    /// The host as a rule's `connect` names it; `None` for a UNIX socket.
    pub(super) fn host(&self) -> Option<&str> {
        match self {
            Self::Path(_) => None,
            Self::Host(host, _) => Some(host.as_deref().unwrap_or("localhost")),
        }
    }

    /// The endpoint as a rule's `connect` writes it.
    pub(super) fn connect(&self) -> String {
        match (self, self.host()) {
            (Self::Host(_, port), Some(host)) => match host.parse::<IpAddr>() {
                Ok(ip) => SocketAddr::new(ip, *port).to_string(),
                Err(_) => format!("{host}:{port}"),
            },
            (Self::Path(path), _) => format!("unix:{path}"),
            (Self::Host(None, port), None) => format!("localhost:{port}"),
            (Self::Host(Some(host), port), None) => format!("{host}:{port}"),
        }
    }

    /// Whether bytes sent there cannot leave this host.
    pub(super) fn stays_on_host(&self) -> bool {
        self.host().is_none_or(|host| {
            host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
        })
    }

    /// Whether other hosts cannot connect to it.
    pub(super) fn listens_on_host(&self) -> bool {
        matches!(self, Self::Path(_) | Self::Host(Some(_), _)) && self.stays_on_host()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Origin;

    fn read(value: &str) -> Option<(Option<Vec<String>>, String)> {
        let at = Origin { file: "f".into(), line: 1 };
        let entry = Entry { name: "accept".into(), value: value.into(), at };
        let mut findings = Findings::default();
        let endpoint = Endpoint::read(&entry, &mut findings)?;
        Some((endpoint.listen(&entry, &mut findings), endpoint.connect()))
    }

    #[test]
    fn addresses_mean_what_they_mean_to_stunnel() {
        for (value, listen, connect) in [
            ("993", Some(&["0.0.0.0:993"][..]), "localhost:993"),
            ("localhost:993", Some(&["127.0.0.1:993"]), "localhost:993"),
            ("192.0.2.1:993", Some(&["192.0.2.1:993"]), "192.0.2.1:993"),
            (":::993", Some(&["0.0.0.0:993", "[::]:993"]), "[::]:993"),
            ("::1:993", Some(&["[::1]:993"]), "[::1]:993"),
            ("[::1]:993", Some(&["[::1]:993"]), "[::1]:993"),
            ("/run/x.sock", Some(&["unix:/run/x.sock"]), "unix:/run/x.sock"),
            ("mail.example:993", None, "mail.example:993"),
        ] {
            let wanted = listen.map(|all| all.iter().map(|one| (*one).to_owned()).collect());
            assert_eq!(read(value), Some((wanted, connect.to_owned())), "{value}");
        }
        for value in ["", "imaps", "host:", "host:0", "host:70000", "run/x.sock"] {
            assert_eq!(read(value), None, "{value}");
        }
    }
}
