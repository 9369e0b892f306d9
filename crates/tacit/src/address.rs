//! Converts addresses between the types of the policy and the types of the kernel. Also converts
//! user IDs to user names, and user names to IDs. Defines what counts as one client for limits: an
//! IPv4 address, or an IPv6 /64 network.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::os::unix::ffi::OsStrExt;
use std::sync::LazyLock;

use arc_swap::ArcSwap;
use serde::{Deserialize, Serialize};
use tacit_core::flow::Address;
use tacit_sys::socket::{SocketAddress, UnixAddress};

use crate::host_file::HostFile;

/// The file with user names.
const USERS: &str = "/etc/passwd";
/// The file with group names.
const GROUPS: &str = "/etc/group";

/// Converts an address to the kernel's form.
///
/// # Errors
/// The UNIX path is too long for the kernel, or the address is unnamed.
pub fn to_socket(address: &Address) -> io::Result<SocketAddress> {
    Ok(match address {
        Address::Inet(inet) => SocketAddress::from(*inet),
        Address::Path(path) => UnixAddress::new(path.as_path())?.into(),
        Address::Abstract(name) => UnixAddress::new_abstract_name(name.as_bytes())?.into(),
        Address::Unnamed => return Err(io::ErrorKind::AddrNotAvailable.into()),
    })
}

/// Converts an address to the policy's form; an unsupported family becomes [`Address::Unnamed`].
#[must_use]
pub fn from_socket(address: &SocketAddress) -> Address {
    if let Ok(inet) = std::net::SocketAddr::try_from(address.clone()) {
        return Address::Inet(inet);
    }
    let Ok(unix) = UnixAddress::try_from(address.clone()) else { return Address::Unnamed };
    if let Some(name) = unix.abstract_name() {
        return Address::Abstract(String::from_utf8_lossy(name).into_owned());
    }
    match unix.path_bytes() {
        Some(path) if !path.is_empty() => Address::Path(std::ffi::OsStr::from_bytes(path).into()),
        _ => Address::Unnamed,
    }
}

/// The name of a user, or its number if it has no name.
#[must_use]
pub fn user_name(uid: u32) -> String {
    lookup(USERS, &uid.to_string(), 2, 0).unwrap_or_else(|| uid.to_string())
}

/// Like [`user_name`], but without opening a file: uses the names that [`UserNames`] has read.
#[must_use]
pub fn known_user_name(uid: u32) -> String {
    KNOWN_USERS.load().get(&uid).cloned().unwrap_or_else(|| uid.to_string())
}

static KNOWN_USERS: LazyLock<ArcSwap<HashMap<u32, String>>> = LazyLock::new(ArcSwap::default);

/// Reads the names of users for [`known_user_name`].
#[derive(Debug)]
pub struct UserNames(HostFile);

impl UserNames {
    /// Reads the names for the first time.
    #[must_use]
    pub fn new() -> Self {
        let mut names = Self(HostFile::new(USERS));
        names.read_again();
        names
    }

    /// Reads the names again if the file has changed.
    pub fn read_again(&mut self) {
        let Some(text) = self.0.news() else { return };
        let mut names = HashMap::new();
        for line in text.lines() {
            let mut fields = line.split(':');
            let name = fields.next().map(str::to_owned);
            let uid = fields.nth(1).and_then(|uid| uid.parse().ok());
            if let (Some(name), Some(uid)) = (name, uid) {
                // If a user has several names, the first one is used.
                names.entry(uid).or_insert(name);
            }
        }
        KNOWN_USERS.store(names.into());
    }
}

impl Default for UserNames {
    fn default() -> Self {
        Self::new()
    }
}

/// Normalises a user given by name or number: the first name of the number, if there is one.
#[must_use]
pub fn user_word(text: &str) -> String {
    user_id(text).map_or_else(|| text.to_owned(), user_name)
}

/// The name of a group, or its number if it has no name.
#[must_use]
pub fn group_name(gid: u32) -> String {
    lookup(GROUPS, &gid.to_string(), 2, 0).unwrap_or_else(|| gid.to_string())
}

/// Normalises a group as [`user_word`] does a user.
#[must_use]
pub fn group_word(text: &str) -> String {
    group_id(text).map_or_else(|| text.to_owned(), group_name)
}

/// The number of a user given by name or number.
#[must_use]
pub fn user_id(name: &str) -> Option<u32> {
    id(USERS, name)
}

/// The number of a group given by name or number.
#[must_use]
pub fn group_id(name: &str) -> Option<u32> {
    id(GROUPS, name)
}

fn id(file: &str, name: &str) -> Option<u32> {
    name.parse().ok().or_else(|| lookup(file, name, 0, 2)?.parse().ok())
}

/// Finds the line of a colon-separated file whose field `key_at` is `key`; returns another field.
fn lookup(file: &str, key: &str, key_at: usize, value_at: usize) -> Option<String> {
    let text = std::fs::read_to_string(file).ok()?;
    text.lines().map(|line| line.split(':').collect::<Vec<_>>()).find_map(|fields| {
        (fields.get(key_at) == Some(&key)).then(|| fields.get(value_at).map(ToString::to_string))?
    })
}

/// A source of connections, for limits per client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Source {
    /// An IPv4 address.
    V4(u32),
    /// An IPv6 /64, because a customer or a machine has at least that many addresses.
    V6(u64),
    /// All clients of UNIX sockets.
    Local,
}

impl Source {
    /// The source of an address.
    #[must_use]
    pub fn of(remote: &Address) -> Self {
        match remote.ip() {
            Some(IpAddr::V4(ip)) => Self::V4(ip.to_bits()),
            Some(IpAddr::V6(ip)) => Self::V6(network_bits(ip)),
            None => Self::Local,
        }
    }
}

fn network_bits(ip: Ipv6Addr) -> u64 {
    let [a, b, c, d, ..] = ip.segments();
    [a, b, c, d].into_iter().fold(0, |bits, segment| bits << 16 | u64::from(segment))
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    #[test]
    fn addresses_are_converted_to_the_kernels_form_and_back() {
        for text in
            ["192.0.2.1:443", "[2001:db8::1]:443", "unix:/run/x.sock", "unix:@name with space"]
        {
            let address: Address = text.parse().unwrap();
            assert_eq!(from_socket(&to_socket(&address).unwrap()), address, "{text}");
        }
    }

    #[test]
    fn an_ipv4_address_and_an_ipv6_network_of_64_bits_are_sources() {
        let source = |ip: &str| Source::of(&SocketAddr::new(ip.parse().unwrap(), 443).into());
        assert_eq!(source("2001:db8::1"), source("2001:db8:0:0:ffff::2"));
        assert_ne!(source("2001:db8::1"), source("2001:db8:0:1::1"));
        assert_ne!(source("192.0.2.1"), source("192.0.2.2"));
        assert_eq!(source("192.0.2.1"), source("::ffff:192.0.2.1"));
        assert_eq!(Source::of(&Address::Unnamed), Source::Local);
    }

    #[test]
    fn root_has_a_name_and_a_number() {
        assert_eq!(
            (user_name(0).as_str(), user_id("root"), group_id("root")),
            ("root", Some(0), Some(0))
        );
        assert_eq!(
            (user_name(4_000_000_000).as_str(), user_id("no-such-user")),
            ("4000000000", None)
        );
    }

    #[test]
    fn names_that_were_read_are_known() {
        let mut names = UserNames::new();
        assert_eq!(
            (known_user_name(0), known_user_name(4_000_000_000)),
            (user_name(0), "4000000000".to_owned())
        );
        names.read_again();
        assert_eq!(known_user_name(0), "root");
    }
}
