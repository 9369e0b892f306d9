//! Packet rules: what of a program's traffic reaches the agent, and the refusal of all else.
//!
//! ```text
//! table inet tacit
//!   sets tcp4 tcp6 udp4 udp6    address range . port range: what is captured
//!   chain prerouting            the rules, see rules.rs
//! ```
//!
//! [`install`] once, inside the namespace; from then on any process that holds the socket, also
//! one outside, changes the sets with [`change`] and [`replace_all`].
//!
//! The caller keeps its own copy of what the sets hold, and keeps the elements of one set disjoint:
//! the kernel refuses an element that overlaps another (`EEXIST`), and a refused batch costs a
//! hundred times a good one.
//!
//! Limits: [`ELEMENTS_PER_BATCH_MAX`] elements change at once; more go in several batches, and
//! between two of them the sets hold a part (what is not in them is refused, never let through).
//! Needs Linux 5.9.

mod expression;
mod rules;

use std::net::IpAddr;

use super::{Error, Message, NLM_F_ACK, Netlink, Protocol};

/// The agent's port inside; the sockets there see the original destination.
pub const AGENT_PORT: u16 = 15001;

/// The mark on packets of the agent's own sockets inside: they pass all rules.
pub const AGENT_MARK: u32 = 0x7ac1;

/// Elements that one batch may change.
pub const ELEMENTS_PER_BATCH_MAX: usize = 3000;

/// Elements in one message: an attribute's length has 16 bits, an IPv6 element takes 60 bytes.
const ELEMENTS_PER_MESSAGE_MAX: usize = 1000;

/// Addresses and ports that are captured: both ranges include their ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Element {
    /// The transport protocol.
    pub protocol: Protocol,
    /// The first address.
    pub first: IpAddr,
    /// The last address, of the same family.
    pub last: IpAddr,
    /// The first port.
    pub first_port: u16,
    /// The last port.
    pub last_port: u16,
}

/// Installs table, sets and rules, all or nothing; the sets are empty. `ipv6` says whether this
/// kernel has IPv6.
///
/// # Errors
/// The refused rule and expression. `ENOENT` means that this kernel lacks the expression.
pub fn install(netfilter: &mut Netlink, ipv6: bool) -> Result<(), Error> {
    let mut messages = vec![table()];
    messages.extend(Set::ALL.map(Set::declaration));
    messages.push(chain());
    messages.extend(rules::all(ipv6));
    commit(netfilter, messages)
}

/// Takes away table, sets and rules: nothing is captured, and nothing leaves.
///
/// # Errors
/// The kernel's; `ENOENT` if they are not there.
pub fn uninstall(netfilter: &mut Netlink) -> Result<(), Error> {
    let mut message = message("removing the table", DELTABLE, NLM_F_ACK);
    message.text(1, TABLE);
    commit(netfilter, vec![message])
}

/// Refuses what `remove` names and captures what `add` names, at one stroke: a packet meets the
/// sets as they were or as they will be. Each element must be removed as it was added.
///
/// Above [`ELEMENTS_PER_BATCH_MAX`] in all it takes several strokes, the removals first.
///
/// # Errors
/// The kernel's (`EEXIST`: overlaps one that is there, `ENOENT`: not there), or an element that is
/// upside down. The stroke that failed changed nothing.
pub fn change(netfilter: &mut Netlink, remove: &[Element], add: &[Element]) -> Result<(), Error> {
    check(remove)?;
    check(add)?;
    for messages in strokes(remove, add) {
        commit(netfilter, messages)?;
    }
    Ok(())
}

/// Captures the elements and nothing else.
///
/// # Errors
/// The kernel's, or an element that is upside down.
pub fn replace_all(netfilter: &mut Netlink, elements: &[Element]) -> Result<(), Error> {
    check(elements)?;
    let (first, rest) = elements.split_at(elements.len().min(ELEMENTS_PER_BATCH_MAX));
    let mut messages: Vec<_> = Set::ALL.map(Set::emptying).into();
    messages.extend(list(ADDING, first));
    commit(netfilter, messages)?;
    change(netfilter, &[], rest)
}

/// The messages of each transaction, none with more elements than it may have.
fn strokes(remove: &[Element], add: &[Element]) -> Vec<Vec<Message>> {
    if remove.len() + add.len() <= ELEMENTS_PER_BATCH_MAX {
        let both: Vec<_> = list(REMOVING, remove).into_iter().chain(list(ADDING, add)).collect();
        return if both.is_empty() { Vec::new() } else { vec![both] };
    }
    let removals = remove.chunks(ELEMENTS_PER_BATCH_MAX).map(|some| list(REMOVING, some));
    removals.chain(add.chunks(ELEMENTS_PER_BATCH_MAX).map(|some| list(ADDING, some))).collect()
}

fn check(elements: &[Element]) -> Result<(), Error> {
    let upright = |element: &Element| {
        element.first.is_ipv4() == element.last.is_ipv4()
            && element.first <= element.last
            && element.first_port <= element.last_port
    };
    let all = elements.iter().all(upright);
    all.then_some(()).ok_or(Error::Invalid("a range that ends before it begins"))
}

/// The four sets, by what they hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Set {
    Tcp4,
    Tcp6,
    Udp4,
    Udp6,
}

impl Set {
    const ALL: [Self; 4] = [Self::Tcp4, Self::Tcp6, Self::Udp4, Self::Udp6];

    fn of(element: &Element) -> Self {
        match (element.protocol, element.first.is_ipv4()) {
            (Protocol::Tcp, true) => Self::Tcp4,
            (Protocol::Tcp, false) => Self::Tcp6,
            (Protocol::Udp, true) => Self::Udp4,
            (Protocol::Udp, false) => Self::Udp6,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Tcp4 => "tcp4",
            Self::Tcp6 => "tcp6",
            Self::Udp4 => "udp4",
            Self::Udp6 => "udp6",
        }
    }

    fn declaration(self) -> Message {
        let ipv4 = matches!(self, Self::Tcp4 | Self::Udp4);
        let (address_type, address_bytes) = if ipv4 { (7, 4) } else { (8, 16) };
        let mut message = message("declaring the sets", NEWSET, CREATE);
        message.text(1, TABLE);
        message.text(2, self.name());
        message.be32(3, SET_INTERVAL | SET_CONCAT);
        // How `nft list` should show the key: address type, then port (13).
        message.be32(4, address_type << 6 | 13);
        message.be32(5, address_bytes + 4);
        message.be32(10, 1 + self as u32);
        message.nest(9, |description| {
            description.nest(2, |concatenation| {
                for field_bytes in [address_bytes, 2] {
                    concatenation.nest(1, |field| field.be32(1, field_bytes));
                }
            });
        });
        message
    }

    fn emptying(self) -> Message {
        let mut message = message("emptying the sets", DELSETELEM, NLM_F_ACK);
        message.text(1, TABLE);
        message.text(2, self.name());
        message
    }
}

/// What happens to elements: the step's name, the message and its flags.
type Change = (&'static str, u16, u16);
const ADDING: Change = ("capturing addresses", NEWSETELEM, CREATE | NLM_F_EXCL);
const REMOVING: Change = ("releasing addresses", DELSETELEM, NLM_F_ACK);

fn list((step, kind, flags): Change, elements: &[Element]) -> Vec<Message> {
    let mut messages = Vec::new();
    for set in Set::ALL {
        let of_set: Vec<_> = elements.iter().filter(|element| Set::of(element) == set).collect();
        for some in of_set.chunks(ELEMENTS_PER_MESSAGE_MAX) {
            let mut message = message(step, kind, flags);
            message.text(1, TABLE);
            message.text(2, set.name());
            message.nest(3, |list| {
                for element in some {
                    write_element(list, element);
                }
            });
            messages.push(message);
        }
    }
    messages
}

fn write_element(list: &mut Message, element: &Element) {
    let key = |address: IpAddr, port: u16| {
        let mut key = match address {
            IpAddr::V4(address) => address.octets().to_vec(),
            IpAddr::V6(address) => address.octets().to_vec(),
        };
        key.extend_from_slice(&port.to_be_bytes());
        key.resize(key.len() + 2, 0);
        key
    };
    list.nest(1, |one| {
        one.nest(1, |held| held.attribute(1, &key(element.first, element.first_port)));
        one.nest(10, |held| held.attribute(1, &key(element.last, element.last_port)));
    });
}

fn table() -> Message {
    let mut message = message("making the table", NEWTABLE, CREATE | NLM_F_EXCL);
    message.text(1, TABLE);
    message
}

fn chain() -> Message {
    let mut message = message("making the chain", NEWCHAIN, CREATE);
    message.text(1, TABLE);
    message.text(3, CHAIN);
    message.nest(4, |hook| {
        hook.be32(1, HOOK_PREROUTING);
        hook.be32(2, PRIORITY_MANGLE.cast_unsigned());
    });
    message.be32(5, POLICY_ACCEPT);
    message.text(7, "filter");
    message
}

/// Puts the messages between the marks of a batch: the kernel does all of them or none.
fn commit(netfilter: &mut Netlink, messages: Vec<Message>) -> Result<(), Error> {
    let mut batch = Vec::with_capacity(messages.len() + 2);
    batch.push(mark("opening a batch of packet rules", BATCH_BEGIN));
    batch.extend(messages);
    batch.push(mark("closing a batch of packet rules", BATCH_END));
    netfilter.run(batch)
}

/// A message with its `nfgenmsg`: family, version, and a resource that is used for batches only.
fn message(step: &'static str, kind: u16, flags: u16) -> Message {
    Message::new(step, SUBSYSTEM << 8 | kind, flags).fixed(&[FAMILY_INET, 0, 0, 0])
}

fn mark(step: &'static str, kind: u16) -> Message {
    let [high, low] = SUBSYSTEM.to_be_bytes();
    Message::new(step, kind, 0).fixed(&[0, 0, high, low])
}

const TABLE: &str = "tacit";
const CHAIN: &str = "prerouting";
/// `NFNL_SUBSYS_NFTABLES`.
const SUBSYSTEM: u16 = 10;
/// `NFPROTO_INET`: IPv4 and IPv6 in one table.
const FAMILY_INET: u8 = 1;
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
const NEWTABLE: u16 = 0;
const DELTABLE: u16 = 2;
const NEWCHAIN: u16 = 3;
const NEWRULE: u16 = 6;
const NEWSET: u16 = 9;
const NEWSETELEM: u16 = 12;
const DELSETELEM: u16 = 14;
const NLM_F_EXCL: u16 = 0x200;
const CREATE: u16 = NLM_F_ACK | 0x400;
const APPEND: u16 = CREATE | 0x800;
const SET_INTERVAL: u32 = 4;
const SET_CONCAT: u32 = 0x80;
const HOOK_PREROUTING: u32 = 0;
const PRIORITY_MANGLE: i32 = -150;
const POLICY_ACCEPT: u32 = 1;

#[cfg(test)]
mod tests;
