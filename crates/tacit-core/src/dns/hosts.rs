//! Parses `/etc/hosts`: the names that programs resolve without DNS.

use std::net::IpAddr;

/// Maximum number of pairs of address and name.
pub const HOSTS_MAX: usize = 16_384;

/// An address and one of its names.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HostsEntry {
    /// The address.
    pub address: IpAddr,
    /// The name in lower case, without a final dot.
    pub name: String,
}

/// Parses the file's text. Lines in another format are ignored, as in the C library.
#[must_use]
pub fn hosts(text: &str) -> Vec<HostsEntry> {
    let lines = text.lines().filter_map(|line| {
        let mut words = line.split('#').next()?.split_whitespace();
        let address: IpAddr = words.next()?.parse().ok()?;
        let plain = |name: &str| name.trim_end_matches('.').to_ascii_lowercase();
        Some(words.map(move |name| HostsEntry { address, name: plain(name) }))
    });
    lines.flatten().take(HOSTS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_of_a_line_has_its_address() {
        let text = "# who is who\n\
                    10.7.0.5  db.corp.example DB # the database\n\
                    \t2001:db8::5\tdb.corp.example.\n\
                    nonsense here\n\
                    10.7.0.6\n\
                    fe80::1%eth0 router\n";
        let expected = [
            ("10.7.0.5", "db.corp.example"),
            ("10.7.0.5", "db"),
            ("2001:db8::5", "db.corp.example"),
        ]
        .map(|(address, name)| HostsEntry {
            address: address.parse().unwrap(),
            name: name.to_owned(),
        });
        assert_eq!(hosts(text), expected);
    }

    #[test]
    fn a_long_file_is_read_up_to_the_limit() {
        let text = "10.7.0.5 a b c d e f g h\n".repeat(HOSTS_MAX);
        assert_eq!(hosts(&text).len(), HOSTS_MAX);
    }
}
