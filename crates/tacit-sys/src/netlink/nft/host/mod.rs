//! Installs the nftables table for `tacit agent --host`. The table decides about each flow of the
//! programs of the host: it permits the flow, refuses the flow, or sends the flow to the agent.
//!
//! ```text
//! table inet tacit                    flags owner, persist if the kernel supports them
//!   maps tcp4_N tcp6_N udp4_N udp6_N  address range . port range -> accept, or go to a chain
//!   sets count_tcp4_N ...             address range . port range, with a counter (`counted.rs`)
//!   chains section_N                  look up the destination in the maps with this number N
//!   sets in4 in6                      local ports whose incoming connections are captured
//!   map nameports                     protocol . port range -> group of ports (see `named.rs`)
//!   sets named4 named6                address . group of ports: addresses of DNS names
//!   sets kept_* client_*              captured flows, and flows that clients opened (`flows.rs`)
//!   chain output                      marks packets that must be captured
//!   chains forwarded forwarding       mark packets of containers, if they must be captured
//!   chain strays                      marks packets if the replaced table captured their flow
//!   chain rewritten                   refuses packets that NAT redirects to a captured address
//!   filter_*                          filters of single packets (see `filters/mod.rs`)
//!   chains capture refuse prohibit    the decisions to which the maps lead
//!   chain prerouting                  sends packets from lo and from clients to the agent
//!   chain input                       refuses packets missed by `prerouting` (captured ports only)
//!   chain postrouting                 drops captured packets that would leave the host
//! ```
//!
//! *Clients* connect to programs of this host. To mark a packet, a chain sets a fwmark. The kernel
//! routes marked packets to `lo`, where the agent receives them. `N` is the number of a *section*:
//! consecutive policy rules for the same users or control groups. `rules.rs` builds the nftables
//! rules that use connection tracking, and `untracked.rs` builds the nftables rules that do not use
//! it.
//!
//! [`install`] replaces the whole table in one transaction. For a moment after the transaction, the
//! kernel may not find all elements of the new table. So a second table with the same contents,
//! `inet tacit-new`, checks all packets too.
//!
//! If the process that installed the table ends, the [`Lifetime`] of the table decides whether the
//! table remains. A remaining table refuses the flows that it would otherwise send to the agent.
//!
//! Limits: [`HOST_RANGES_MAX`] ranges without counters, and the same number with counters;
//! [`HOST_CHECKS_MAX`] combinations of users, groups and control groups; [`NAMED_ADDRESSES_MAX`]
//! addresses of DNS names in policy rules; [`FLOWS_MAX`] flows in each set. Needs Linux 5.9 with
//! conntrack. Policy rules with control groups need Linux 5.13.

mod bounds;
mod changes;
mod comment;
mod contents;
mod counted;
mod elements;
mod filters;
mod flows;
mod input;
mod named;
mod names;
mod nat;
mod rules;
mod saved;
mod store;
mod tag;
#[cfg(test)]
mod tests;
mod units;
mod untracked;

use self::names::{Chain, Openers};
use self::store::NAMES_TABLE;
use super::batch::{CREATE, TABLE, commit, message, of_table};
pub use super::filter_expression::{KeyField, PacketGate};
pub use super::host_expression::{CgroupId, UNITS};
use super::sets::Element;
use crate::ip_version::IpSupport;
use crate::netlink::error::Error;
use crate::netlink::message::{NLM_F_ACK, NetlinkRequest};
use crate::netlink::socket::{Netlink, ReplyCount};

pub use super::host_expression::USED_TIME;
pub use changes::RuleChanges;
pub use counted::counts;
pub use filters::{
    FILTER_GROUPS_MAX, HostFilters, LOGGED_FILTERS_MAX, LoggedFilter, PACKET_ELEMENTS_MAX,
    PacketElement, PacketGroup, PacketOutcome, WindowTime, count_filters, set_windows,
};
pub use flows::FLOWS_MAX;
pub use named::{NAMED_ADDRESSES_MAX, NamedFlows, PartAddress, PartPorts, named_addresses};
pub use saved::{SavedRules, put_back, save};
pub use store::{STORED_AT_ONCE_MAX, STORED_NAME_BYTES_MAX, StoredName, learn, stored_names};
pub use tag::is_of_this_boot;
pub use units::{
    UNIT_LEVEL_MAX, UNITS_TABLE, add_units, has_unit_rules, install_units, remove_units,
    units_in_kernel,
};

/// The most ranges of a table, all maps and sets together.
pub const HOST_RANGES_MAX: usize = 16_384;

/// The most checks of senders of a table, all sections together.
pub const HOST_CHECKS_MAX: usize = 4096;

/// The most interfaces whose flows are captured too.
pub const HOST_INTERFACES_MAX: usize = 16;

/// The bits of packet marks that the table uses. Others belong to other programs and stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostMarks {
    /// The only bit that is set on packets of the agent's own sockets, which pass.
    agent: u32,
    /// The only bit that is set on captured packets. A SYN that the agent releases has both bits.
    captured: u32,
}

impl HostMarks {
    /// Creates the marks from a mask of two bits; `None` if the mask has more or fewer.
    #[must_use]
    pub fn new(mask: u32) -> Option<Self> {
        let agent = mask & mask.wrapping_neg();
        let captured = mask & !agent;
        (captured.is_power_of_two()).then_some(Self { agent, captured })
    }

    /// The mark of the agent's own sockets.
    #[must_use]
    pub fn agent(self) -> u32 {
        self.agent
    }

    /// The bit of all packets that a routing rule returns to `lo`.
    #[must_use]
    pub fn captured(self) -> u32 {
        self.captured
    }

    /// The mark on a SYN that the agent releases.
    #[must_use]
    pub fn release(self) -> u32 {
        self.agent | self.captured
    }
}

/// What the kernel does with a flow that a program opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketVerdict {
    /// It goes to the agent.
    Capture,
    /// The flow goes to its destination.
    Pass,
    /// The flow is refused, as if no process listened at the destination.
    Refuse,
    /// The flow is refused with the error of a packet filter ("administratively prohibited").
    Prohibit,
}

/// What the kernel does with flows that a program opens to these addresses and ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostElement {
    /// The addresses and ports.
    pub to: Element,
    /// What happens to the flows.
    pub verdict: PacketVerdict,
}

/// Destinations whose flows are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountedElement {
    /// The addresses and ports.
    pub to: Element,
    /// The number under which the flows are counted; several elements may have the same.
    pub number: u32,
}

/// What the kernel compares a sender with; all must hold. `None` is no condition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SenderCheck {
    /// The user of its socket.
    pub user: Option<u32>,
    /// The group of its socket.
    pub group: Option<u32>,
    /// The control group of its socket, or one above it.
    pub cgroup: Option<CgroupId>,
    /// A bit that the packet's mark must not have: [`install_units`] sets it on packets that no
    /// unit sends.
    pub without_mark: Option<u32>,
}

/// Flows of the same senders.
#[derive(Clone, Copy, Debug)]
pub struct TableSection<'a> {
    /// The senders: those that pass one of the checks.
    pub senders: &'a [SenderCheck],
    /// Disjoint ranges of destinations.
    pub outbound: &'a [HostElement],
    /// Disjoint ranges of destinations whose flows are counted.
    pub counted: &'a [CountedElement],
}

impl TableSection<'_> {
    /// Whether it is for all senders.
    fn is_for_all(&self) -> bool {
        *self.senders == [SenderCheck::default()]
    }
}

/// How long a table is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifetime {
    /// It outlives its installer, and then refuses what it captures. Connections that are older
    /// than the table are refused.
    Unlimited,
    /// It ends with its installer, where the kernel has owners, and refuses nothing: connections
    /// that are older than the table pass.
    OfInstaller,
}

/// The contents of the table.
#[derive(Clone, Copy, Debug)]
pub struct HostTable<'a> {
    /// The bits of marks.
    pub marks: HostMarks,
    /// The user whose packets pass, in addition to packets with the agent's mark.
    pub user: Option<u32>,
    /// What happens to flows that programs open and no section decides.
    pub others: PacketVerdict,
    /// Flows that programs open. The first section that has their sender and destination decides.
    pub sections: &'a [TableSection<'a>],
    /// Disjoint ranges of ports of this host's programs, with any address.
    pub inbound: &'a [Element],
    /// For rules by name; `None`: there are none.
    pub names: Option<NamedFlows<'a>>,
    /// Names of interfaces: what comes in there for other hosts is treated as what
    /// programs open.
    pub forwarded: &'a [String],
    /// How long the table is there.
    pub lifetime: Lifetime,
    /// Rules for single packets; `None`: there are none.
    pub filters: Option<HostFilters<'a>>,
}

/// Which rules a table has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Layout {
    openers: Openers,
    stage: Stage,
}

/// Whether a table replaces another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    First,
    /// It gets the flows of the other table after it has been installed.
    Replacing,
}

/// Installs the table in place of an earlier one. If the kernel supports owners of tables, only
/// this process can change the table until the process ends. `nft flush ruleset` of another process
/// does not remove the table.
///
/// # Errors
/// The refused rule and expression; nothing has changed then. `EPERM`: another process owns the
/// table.
pub fn install(
    netfilter: &mut Netlink,
    kernel: IpSupport,
    table: &HostTable<'_>,
) -> Result<(), Error> {
    let outbound = table.sections.iter().map(|section| section.outbound.len()).sum::<usize>();
    if outbound + table.inbound.len() > HOST_RANGES_MAX {
        return Err(Error::Invalid(
            "the rules contain more address and port ranges than the nftables table can hold: \
             use fewer and larger networks, or fewer port ranges",
        ));
    }
    if table.sections.iter().map(|section| section.counted.len()).sum::<usize>() > HOST_RANGES_MAX {
        return Err(Error::Invalid(
            "the rules contain too many destinations (address and port ranges), so the kernel \
             cannot count the flows to all of them: use fewer and larger networks, or fewer port \
             ranges",
        ));
    }
    let checks = table.sections.iter().map(|section| section.senders.len()).sum::<usize>();
    if checks > HOST_CHECKS_MAX {
        return Err(Error::Invalid(
            "the rules have too many combinations of users, groups and control groups",
        ));
    }
    if table.names.is_some_and(|names| names.addresses.len() > NAMED_ADDRESSES_MAX) {
        return Err(Error::Invalid("the nftables table has too many addresses of DNS names"));
    }
    if table.filters.is_some_and(|filters| filters.are_too_many()) {
        return Err(Error::Invalid("the nftables table has too many filters"));
    }
    if table.forwarded.len() > HOST_INTERFACES_MAX {
        return Err(Error::Invalid("the nftables table has too many interfaces of containers"));
    }
    let openers = openers(netfilter, table)?;
    if is_installed(netfilter)? {
        replace(netfilter, kernel, table, openers)
    } else {
        fill(netfilter, TABLE, kernel, table, Layout { openers, stage: Stage::First })
    }
}

/// How the table finds out who opened a flow. Once it uses connection tracking, it continues to do
/// so: the sets would not have the flows that are open.
fn openers(netfilter: &mut Netlink, table: &HostTable<'_>) -> Result<Openers, Error> {
    let is_tracked = untracked::openers(table) == Openers::Tracked
        || has_chain(netfilter, Chain::Rewritten)?
        || nat::changes_destinations(netfilter)?;
    Ok(if is_tracked { Openers::Tracked } else { Openers::InSets })
}

/// Whether the table must be installed again: it uses no connection tracking, and NAT changes
/// destinations now.
///
/// # Errors
/// The kernel's.
pub fn is_outdated(netfilter: &mut Netlink) -> Result<bool, Error> {
    Ok(has_chain(netfilter, Chain::Candidates)? && nat::changes_destinations(netfilter)?)
}

/// Replaces the table. Both tables see each packet while the flows are copied, so that each flow is
/// in one of them at any time.
fn replace(
    netfilter: &mut Netlink,
    kernel: IpSupport,
    table: &HostTable<'_>,
    openers: Openers,
) -> Result<(), Error> {
    let layout = Layout { openers, stage: Stage::Replacing };
    // An installer that was killed may have left the second table, which has flows then.
    if exists(netfilter, NEW_TABLE)? {
        flows::copy(netfilter, NEW_TABLE, TABLE)?;
    }
    let prepared = fill(netfilter, NEW_TABLE, kernel, table, layout)
        .and_then(|()| flows::copy(netfilter, TABLE, NEW_TABLE))
        .and_then(|()| end_filling(netfilter, NEW_TABLE, openers))
        .and_then(|()| fill(netfilter, TABLE, kernel, table, layout));
    if prepared.is_err() {
        // What is refused has changed nothing.
        let removed = remove_table(netfilter, NEW_TABLE);
        return prepared.and(removed);
    }
    // If one of these steps fails, the second table stays, with the same rules and all flows.
    flows::copy(netfilter, NEW_TABLE, TABLE)?;
    end_filling(netfilter, TABLE, openers)?;
    if !flows::has_strays(netfilter, table, openers)? {
        flows::remove_strays_chain(netfilter)?;
    }
    remove_table(netfilter, NEW_TABLE)
}

fn end_filling(netfilter: &mut Netlink, name: &str, openers: Openers) -> Result<(), Error> {
    match openers {
        Openers::InSets => flows::end_filling(netfilter, name),
        Openers::Tracked => Ok(()),
    }
}

/// Removes the chain for connections that other rules do not find, if there are none any more.
///
/// # Errors
/// The kernel's.
pub fn forget_strays(netfilter: &mut Netlink, table: &HostTable<'_>) -> Result<(), Error> {
    if !has_chain(netfilter, Chain::Strays)? {
        return Ok(());
    }
    let openers = openers(netfilter, table)?;
    if flows::has_strays(netfilter, table, openers)? {
        return Ok(());
    }
    flows::remove_strays_chain(netfilter)
}

/// Installs the contents as the table with this name.
fn fill(
    netfilter: &mut Netlink,
    name: &str,
    kernel: IpSupport,
    table: &HostTable<'_>,
    layout: Layout,
) -> Result<(), Error> {
    let owned = match table.lifetime {
        Lifetime::Unlimited => OWNER | PERSIST,
        Lifetime::OfInstaller => OWNER,
    };
    let names = table.names.map(|_| store::declarations as fn(u32) -> Vec<NetlinkRequest>);
    exchange(netfilter, name, owned, names, || contents::all(kernel, table, layout))
}

/// Installs contents as the table with this name and these flags, in place of an earlier one; with
/// the table of names, if there are declarations of it.
fn exchange(
    netfilter: &mut Netlink,
    name: &str,
    owned: u32,
    names: Option<fn(u32) -> Vec<NetlinkRequest>>,
    contents: impl Fn() -> Vec<NetlinkRequest>,
) -> Result<(), Error> {
    // The first message takes a table that its owner left, or one that had none. Linux 5.12 to 6.8
    // has owners, but no table that persists.
    let attempts = [(OWNER | PERSIST, owned), (OWNER, owned), (0, owned), (OWNER, 0), (0, 0)];
    let mut refused = Error::Invalid("no attempt");
    for (taken, flags) in attempts {
        for of_names in NAMES_FLAGS {
            let mut messages = vec![declare(taken), delete(), tag::tag(declare(flags))];
            messages.extend(contents());
            let messages = messages.into_iter().map(|message| of_table(message, name));
            let names_of = |declarations: fn(u32) -> Vec<NetlinkRequest>| declarations(of_names);
            let all = names.map_or_else(Vec::new, names_of).into_iter().chain(messages);
            match commit(netfilter, all.collect()) {
                Ok(()) => return Ok(()),
                Err(error) if is_about_flags(&error) => refused = error,
                Err(error) => return Err(error),
            }
            if names.is_none() {
                break;
            }
        }
    }
    Err(refused)
}

/// Whether the table exists.
///
/// # Errors
/// The kernel's.
pub fn is_installed(netfilter: &mut Netlink) -> Result<bool, Error> {
    exists(netfilter, TABLE)
}

fn exists(netfilter: &mut Netlink, table: &str) -> Result<bool, Error> {
    let mut question = message("checking whether the nftables table exists", GETTABLE, 0);
    question.text(1, table);
    is_found(netfilter, question)
}

fn has_chain(netfilter: &mut Netlink, chain: Chain) -> Result<bool, Error> {
    let mut question = message("checking whether an nftables chain exists", GETCHAIN, 0);
    question.text(1, TABLE);
    question.text(3, chain.name());
    is_found(netfilter, question)
}

fn is_found(netfilter: &mut Netlink, question: NetlinkRequest) -> Result<bool, Error> {
    match netfilter.ask(question, ReplyCount::One, |_| Ok(())) {
        Ok(()) => Ok(true),
        Err(error) if error.errno() == Some(libc::ENOENT) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Removes the table, the names and the units, if they are there.
///
/// # Errors
/// The kernel's. `EPERM`: another process owns the table.
pub fn remove(netfilter: &mut Netlink) -> Result<(), Error> {
    for name in [TABLE, NEW_TABLE, NAMES_TABLE, UNITS_TABLE] {
        remove_table(netfilter, name)?;
    }
    Ok(())
}

fn remove_table(netfilter: &mut Netlink, name: &str) -> Result<(), Error> {
    match commit(netfilter, vec![of_table(delete(), name)]) {
        Err(error) if error.errno() == Some(libc::ENOENT) => Ok(()),
        removed => removed,
    }
}

/// Whether the kernel does not know the flags, or the existing table has other flags.
fn is_about_flags(error: &Error) -> bool {
    [libc::EOPNOTSUPP, libc::EINVAL].map(Some).contains(&error.errno())
        && matches!(error, Error::Refused { step: DECLARING, .. })
}

fn declare(flags: u32) -> NetlinkRequest {
    let mut message = message(DECLARING, NEWTABLE, CREATE);
    message.text(1, TABLE);
    message.be32(2, flags);
    message
}

fn delete() -> NetlinkRequest {
    let mut message = message("removing the nftables table", DELTABLE, NLM_F_ACK);
    message.text(1, TABLE);
    message
}

/// The name of the second table while the first is replaced.
const NEW_TABLE: &str = "tacit-new";
const DECLARING: &str = "creating the nftables table";
const NEWTABLE: u16 = 0;
const GETTABLE: u16 = 1;
const DELTABLE: u16 = 2;
const NEWCHAIN: u16 = 3;
const GETCHAIN: u16 = 4;
/// The table of names persists, because its contents must outlive every change of the other table;
/// 0 where the kernel has no tables that persist.
const NAMES_FLAGS: [u32; 2] = [OWNER | PERSIST, 0];
/// `NFT_TABLE_F_OWNER` (Linux 5.12) and `NFT_TABLE_F_PERSIST` (Linux 6.9).
const OWNER: u32 = 2;
const PERSIST: u32 = 4;
