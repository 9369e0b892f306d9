//! Stores DNS names in the kernel, each with an address, so that the next agent can read them. The
//! names are in a second nftables table, which has no rules.
//!
//! ```text
//! table inet tacit-names       flags owner, persist if the kernel supports them
//!   set names                  address . hash of the name; comment: the name
//! ```
//!
//! When an agent starts, it reads the names from this table. So the agent knows to which addresses
//! its policy rules with DNS names apply. `tacit agent --host --guard` reads the names too. A name
//! has the same timeout as its address in the sets of captured addresses.
//!
//! If two names of one address have the same hash (64 bits), only one of them is stored.

use std::hash::{DefaultHasher, Hasher};
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use super::super::batch::{CREATE, TABLE, commit, message};
use super::super::sets::NEWSET;
use super::named::{
    self, Change, GARBAGE_INTERVAL_MS, PartAddress, SET_TIMEOUT, TYPE_BITS, TYPE_MARK, TYPE_V6,
    key_of, read_set, renewals, set_of, time_left, time_of, write_time,
};
use super::{DECLARING, NEWTABLE, comment};
use crate::netlink::error::Error;
use crate::netlink::message::{NetlinkRequest, attributes};
use crate::netlink::socket::Netlink;

/// The maximum length of a name: the kernel stores up to 256 bytes for a comment.
pub const STORED_NAME_BYTES_MAX: usize = 253;
/// The maximum number of names, and of addresses, that are stored at once.
pub const STORED_AT_ONCE_MAX: usize = 4096;

/// A name and one of its addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredName {
    /// The address.
    pub address: IpAddr,
    /// The name.
    pub name: String,
    /// How long it is stored.
    pub time: Duration,
}

/// Captures addresses and stores names, in one transaction. Existing ones keep their time if it is
/// longer than the new one: the kernel gives addresses in use more time.
///
/// # Errors
/// The kernel's; nothing has changed then. `ENOENT`: there is no table, or it is for a policy
/// without rules by name.
pub fn learn(
    netfilter: &mut Netlink,
    addresses: &[PartAddress],
    names: &[StoredName],
) -> Result<(), Error> {
    if addresses.len() > STORED_AT_ONCE_MAX || names.len() > STORED_AT_ONCE_MAX {
        return Err(Error::Invalid(
            "the request contains more DNS names or addresses than tacit can store at once",
        ));
    }
    if names.iter().any(|one| one.name.len() > STORED_NAME_BYTES_MAX) {
        return Err(Error::Invalid("a name in the request is too long to be stored"));
    }
    let steps = [Change::Add, Change::Remove, Change::Add];
    let mut addresses = addresses.to_vec();
    for one in &mut addresses {
        let kept = time_of(netfilter, (TABLE, set_of(one.address)), &named::key(one))?;
        one.time = longer(one.time, kept);
    }
    let mut names = names.to_vec();
    for one in &mut names {
        let kept = time_of(netfilter, (NAMES_TABLE, NAMES), &key(one))?;
        // All names have an end.
        one.time = longer(Some(one.time), kept).unwrap_or(one.time);
    }
    let stored = steps.into_iter().flat_map(|change| lists(change, &names));
    commit(netfilter, renewals(&addresses).into_iter().chain(stored).collect())
}

/// The longer of a new time and the time that the kernel has, if it has the address. No time is no
/// end.
fn longer(new: Option<Duration>, kept: Option<Option<Duration>>) -> Option<Duration> {
    kept.map_or(new, |kept| new.zip(kept).map(|(new, kept)| new.max(kept)))
}

/// The names in the kernel; none without a table.
///
/// # Errors
/// The kernel's. `EINTR`: the table changed meanwhile.
pub fn stored_names(netfilter: &mut Netlink) -> Result<Vec<StoredName>, Error> {
    let mut found = Vec::new();
    read_set(netfilter, NAMES_TABLE, NAMES, |element| found.extend(name_of(element)))?;
    Ok(found)
}

/// Builds the messages that declare the table and its set. Their contents remain.
pub(super) fn declarations(flags: u32) -> Vec<NetlinkRequest> {
    let mut table = message(DECLARING, NEWTABLE, CREATE);
    table.text(1, NAMES_TABLE);
    table.be32(2, flags);
    let mut set = message("creating the nftables set of DNS names", NEWSET, CREATE);
    set.text(1, NAMES_TABLE);
    set.text(2, NAMES);
    set.be32(3, SET_TIMEOUT);
    set.be32(4, TYPE_V6 << (2 * TYPE_BITS) | TYPE_MARK << TYPE_BITS | TYPE_MARK);
    set.be32(5, KEY_BYTES);
    set.be32(10, 1);
    set.be32(12, GARBAGE_INTERVAL_MS);
    vec![table, set]
}

fn lists(change: Change, names: &[StoredName]) -> Vec<NetlinkRequest> {
    let list = |some: &[StoredName]| {
        let mut message = change.message("storing names");
        message.text(1, NAMES_TABLE);
        message.text(2, NAMES);
        message.nest(3, |list| {
            for one in some {
                list.nest(1, |element| write_element(element, one));
            }
        });
        message
    };
    names.chunks(NAMES_PER_MESSAGE_MAX).map(list).collect()
}

fn write_element(element: &mut NetlinkRequest, one: &StoredName) {
    let StoredName { name, time, .. } = one;
    element.nest(1, |held| held.attribute(1, &key(one)));
    write_time(element, Some(*time));
    // A name has at most STORED_NAME_BYTES_MAX bytes, so it fits.
    if let Some(comment) = comment::encode(name) {
        element.attribute(USER_DATA, &comment);
    }
}

/// The key of a name in its set.
fn key(StoredName { address, name, .. }: &StoredName) -> Vec<u8> {
    let address = match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => *v6,
    };
    let mut hasher = DefaultHasher::new();
    hasher.write(name.as_bytes());
    [&address.octets()[..], &hasher.finish().to_be_bytes()].concat()
}

/// `None`: no element of this set.
fn name_of(element: &[u8]) -> Option<StoredName> {
    let address = Ipv6Addr::from(*key_of(element)?.first_chunk::<16>()?);
    let (_, comment) = attributes(element).find(|(kind, _)| *kind == USER_DATA)?;
    let name = comment::decode(comment)?.to_owned();
    let address = IpAddr::from(address).to_canonical();
    Some(StoredName { address, name, time: time_left(element)? })
}

/// The bytes of an address and of a hash.
const KEY_BYTES: u32 = 24;
/// The table of the names.
pub(super) const NAMES_TABLE: &str = "tacit-names";
const NAMES: &str = "names";
/// An attribute has 64 KiB, an element about 300 bytes.
const NAMES_PER_MESSAGE_MAX: usize = 200;
const USER_DATA: u16 = 6;

#[cfg(test)]
mod tests {
    use super::super::named::elements;
    use super::*;
    use crate::netlink::testing::sealed;

    /// As the kernel reports an element: with the rest of its time.
    fn reported(one: &StoredName) -> Vec<u8> {
        let mut message = NetlinkRequest::new("", 0, 0);
        message.nest(3, |list| {
            list.nest(1, |element| {
                write_element(element, one);
                let ms = u64::try_from(one.time.as_millis()).unwrap();
                element.attribute(5, &ms.to_be_bytes());
            });
        });
        sealed(&message)[16..].to_vec()
    }

    #[test]
    fn the_longest_name_fits_into_a_comment() {
        let name = "a".repeat(STORED_NAME_BYTES_MAX);
        let time = Duration::from_secs(9);
        let one = StoredName { address: [10, 0, 0, 1].into(), name, time };
        let found: Vec<_> = elements(&reported(&one)).filter_map(name_of).collect();
        assert_eq!(found, [one]);
    }

    #[test]
    fn a_stored_name_is_read_as_it_was_written() {
        for (address, name, ms) in [
            ("10.9.8.7", "db.example", 0),
            ("2001:db8::7", "a\\046b.example", u64::MAX),
            ("::1", "a", 1),
        ] {
            let address = address.parse().unwrap();
            let time = Duration::from_millis(ms);
            let one = StoredName { address, name: name.to_owned(), time };
            let found: Vec<_> = elements(&reported(&one)).filter_map(name_of).collect();
            assert_eq!(found, [one]);
        }
    }

    #[test]
    fn what_is_cut_or_changed_is_no_other_name() {
        let time = Duration::from_secs(9);
        let one = StoredName { address: [10, 9, 8, 7].into(), name: "db.example".into(), time };
        let whole = reported(&one);
        for end in 0..whole.len() {
            assert_eq!(elements(&whole[..end]).filter_map(name_of).count(), 0, "{end}");
        }
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 0xff;
            assert!(elements(&changed).filter_map(name_of).count() <= 1, "{at}");
        }
    }
}
