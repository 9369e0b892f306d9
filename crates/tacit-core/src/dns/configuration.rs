//! Parses `/etc/resolv.conf`: the name servers, and the search domains.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

/// The largest number of name servers, as in the C library.
pub const NAMESERVERS_MAX: usize = 3;
/// The largest number of search domains.
pub const SEARCH_MAX: usize = 32;

/// Maximum timeout for one server, as in the C library.
const TIMEOUT_MAX_S: u64 = 30;
/// Maximum number of attempts, as in the C library.
const ATTEMPTS_MAX: u32 = 5;

/// The supported settings of the `options` lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResolverOptions {
    /// The timeout for one server.
    pub timeout: Duration,
    /// The number of rounds over all servers.
    pub attempts: u32,
    /// Whether each query starts with the next server.
    pub rotate: bool,
}

impl Default for ResolverOptions {
    /// The defaults of the C library.
    fn default() -> Self {
        Self { timeout: Duration::from_secs(5), attempts: 2, rotate: false }
    }
}

impl ResolverOptions {
    fn read(&mut self, word: &str) {
        if let Some(seconds) = word.strip_prefix("timeout:").and_then(|text| text.parse().ok()) {
            self.timeout = Duration::from_secs(u64::clamp(seconds, 1, TIMEOUT_MAX_S));
        } else if let Some(count) = word.strip_prefix("attempts:") {
            self.attempts = count.parse().map_or(self.attempts, |n| u32::clamp(n, 1, ATTEMPTS_MAX));
        } else if word == "rotate" {
            self.rotate = true;
        }
    }
}

/// The contents of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolverConfig {
    /// The name servers in order; 127.0.0.1 if the file contains none.
    pub nameservers: Vec<Nameserver>,
    /// The search domains in lower case, without a final dot.
    pub search: Vec<String>,
    /// Timeout, attempts and rotation.
    pub options: ResolverOptions,
}

/// One name server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nameserver {
    /// Its address.
    pub address: IpAddr,
    /// The interface after `%`, by name or number. A link-local address requires it.
    pub interface: Option<String>,
}

impl ResolverConfig {
    /// Parses the file's text. Unknown lines are ignored, as in the C library.
    #[must_use]
    pub fn read(text: &str) -> Self {
        let mut nameservers = Vec::new();
        let mut search = Vec::new();
        let mut options = ResolverOptions::default();
        for line in text.lines() {
            let mut words = line.split([' ', '\t']).filter(|word| !word.is_empty());
            match words.next() {
                Some("nameserver") => nameservers.extend(words.next().and_then(nameserver)),
                // The last line of this kind applies.
                Some("search" | "domain") => {
                    let domains = words.map(|word| word.trim_end_matches('.').to_ascii_lowercase());
                    search = domains.filter(|word| !word.is_empty()).take(SEARCH_MAX).collect();
                }
                Some("options") => words.for_each(|word| options.read(word)),
                _ => {}
            }
        }
        nameservers.truncate(NAMESERVERS_MAX);
        if nameservers.is_empty() {
            let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
            nameservers.push(Nameserver { address, interface: None });
        }
        Self { nameservers, search, options }
    }
}

fn nameserver(text: &str) -> Option<Nameserver> {
    let (address, interface) = match text.split_once('%') {
        None => (text, None),
        Some((address, interface)) => (address, Some(interface.to_owned())),
    };
    Some(Nameserver { address: address.parse().ok()?, interface })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_and_search_domains_are_read() {
        let text = "# made by hand\n; and so\n\
                    search old.example\n\
                    nameserver 127.0.0.53\n\
                    nameserver\tfe80::1%eth0 \n\
                    nameserver nonsense\n\
                    options ndots:5\n\
                    search Default.svc.cluster.local svc.cluster.local.\n\
                    nameserver ::1\n\
                    nameserver 192.0.2.1\n";
        let read = ResolverConfig::read(text);
        let server = |address: &str, interface: Option<&str>| Nameserver {
            address: address.parse().unwrap(),
            interface: interface.map(str::to_owned),
        };
        assert_eq!(
            read.nameservers,
            [server("127.0.0.53", None), server("fe80::1", Some("eth0")), server("::1", None)]
        );
        assert_eq!(read.search, ["default.svc.cluster.local", "svc.cluster.local"]);
    }

    #[test]
    fn options_are_read_within_the_limits_of_resolvers() {
        let options = |text: &str| ResolverConfig::read(text).options;
        assert_eq!(options("options ndots:5\n"), ResolverOptions::default());
        let read = options("options timeout:2 rotate\noptions attempts:3 edns0\n");
        let expected =
            ResolverOptions { timeout: Duration::from_secs(2), attempts: 3, rotate: true };
        assert_eq!(read, expected);
        let read = options("options timeout:0 attempts:99");
        assert_eq!((read.timeout, read.attempts), (Duration::from_secs(1), ATTEMPTS_MAX));
        let read = options("options timeout:900 attempts:0");
        assert_eq!((read.timeout, read.attempts), (Duration::from_secs(30), 1));
        assert_eq!(options("options timeout: attempts:x"), ResolverOptions::default());
    }

    #[test]
    fn without_a_server_the_host_itself_is_asked() {
        let read = ResolverConfig::read("search example\n");
        assert_eq!(read.nameservers.len(), 1);
        assert_eq!(read.nameservers[0].address.to_string(), "127.0.0.1");
    }
}
