//! Copies an nftables table from the kernel, and installs the copy again later.
//!
//! The copy contains the chains, the sets with their elements, and the rules. The copy of an
//! element expires at the same time as the original element. This module does not use the current
//! policy, because the table may come from another policy or another version of tacit.

use std::time::{Duration, Instant};

use super::super::batch::{CREATE, TABLE, commit, message, of_table};
use super::super::sets::{NEWSET, NEWSETELEM};
use super::named::{read_set, time_left, write_time};
use super::names::{CLIENTS, KEPT};
use super::{
    NEW_TABLE, NEWCHAIN, OWNER, PERSIST, UNITS_TABLE, add_units, declare, delete, exchange, exists,
    flows, remove_table, units_in_kernel,
};
use crate::netlink::error::Error;
use crate::netlink::message::{NetlinkRequest, attributes};
use crate::netlink::socket::{Netlink, ReplyCount};

/// The nftables rules of a host at a time: its table, and the table of units if there is one.
#[derive(Clone, Debug, Default)]
pub struct SavedRules {
    table: SavedTable,
    units: Option<SavedTable>,
}

/// A table of the kernel.
#[derive(Clone, Debug, Default)]
struct SavedTable {
    chains: Vec<NetlinkRequest>,
    sets: Vec<SavedSet>,
    rules: Vec<NetlinkRequest>,
}

/// A set of a table.
#[derive(Clone, Debug)]
struct SavedSet {
    name: String,
    declaration: NetlinkRequest,
    elements: Vec<SavedElement>,
    at: Instant,
}

/// An element of a set.
#[derive(Clone, Debug)]
struct SavedElement {
    attributes: Vec<(u16, Vec<u8>)>,
    /// The rest of its time; `None`: it has no end.
    time: Option<Duration>,
}

/// Copies the nftables rules; `None`: there are none.
///
/// # Errors
/// The kernel's. `EINTR`: the table changed meanwhile.
pub fn save(netfilter: &mut Netlink) -> Result<Option<SavedRules>, Error> {
    if !exists(netfilter, TABLE)? {
        return Ok(None);
    }
    let table = saved_table(netfilter, TABLE)?;
    let has_units = exists(netfilter, UNITS_TABLE)?;
    let units = has_units.then(|| saved_table(netfilter, UNITS_TABLE)).transpose()?;
    Ok(Some(SavedRules { table, units }))
}

/// Installs saved nftables rules in place of those that are there. As in an installation, a second
/// table with the same contents sees each packet until the first one is complete. Flows that the
/// replaced table has captured stay captured: no agent takes them, so they end and do not continue
/// in clear.
///
/// # Errors
/// The kernel's.
pub fn put_back(netfilter: &mut Netlink, saved: &SavedRules) -> Result<(), Error> {
    let SavedRules { table, units } = saved;
    put_units_back(netfilter, units.as_ref())?;
    let has_flows = KEPT.into_iter().chain(CLIENTS).all(|name| table.has_set(name));
    let put = |netfilter: &mut Netlink, name| {
        exchange(netfilter, name, OWNER | PERSIST, None, || table.messages(Instant::now()))
    };
    let copy = |netfilter: &mut Netlink, from, to| match has_flows {
        true => flows::copy(netfilter, from, to),
        false => Ok(()),
    };
    put(netfilter, NEW_TABLE)?;
    copy(netfilter, TABLE, NEW_TABLE)?;
    put(netfilter, TABLE)?;
    copy(netfilter, NEW_TABLE, TABLE)?;
    remove_table(netfilter, NEW_TABLE)
}

/// The table of units has no owner: systemd writes to its set. Units that it has added since stay.
fn put_units_back(netfilter: &mut Netlink, saved: Option<&SavedTable>) -> Result<(), Error> {
    let Some(saved) = saved else { return remove_table(netfilter, UNITS_TABLE) };
    let added = units_in_kernel(netfilter)?.unwrap_or_default();
    let begin = [declare(0), delete(), declare(0)];
    let messages = begin.into_iter().chain(saved.messages(Instant::now()));
    commit(netfilter, messages.map(|message| of_table(message, UNITS_TABLE)).collect())?;
    add_units(netfilter, &added)
}

fn saved_table(netfilter: &mut Netlink, name: &str) -> Result<SavedTable, Error> {
    let mut chains = Vec::new();
    dump(netfilter, name, &CHAINS, |chain| chains.push(CHAINS.copy(chain)))?;
    let mut declared = Vec::new();
    dump(netfilter, name, &SETS, |set| {
        if let Some(name) = text_of(set, SET_NAME) {
            declared.push((name, SETS.copy(set)));
        }
    })?;
    let mut sets = Vec::new();
    for ((set, mut declaration), number) in declared.into_iter().zip(FIRST_NUMBER..) {
        // The kernel reports no number; in a transaction each set needs another one.
        declaration.be32(SET_NUMBER, number);
        let mut elements = Vec::new();
        read_set(netfilter, name, &set, |element| elements.push(SavedElement::of(element)))?;
        sets.push(SavedSet { name: set, declaration, elements, at: Instant::now() });
    }
    let mut rules = Vec::new();
    dump(netfilter, name, &RULES, |rule| rules.push(RULES.copy(rule)))?;
    Ok(SavedTable { chains, sets, rules })
}

/// Hands the attributes of each object of a table to `each`.
fn dump(
    netfilter: &mut Netlink,
    table: &str,
    kind: &ObjectKind,
    mut each: impl FnMut(&[u8]),
) -> Result<(), Error> {
    let mut question = message("reading the nftables rules of the host", kind.get, NLM_F_DUMP);
    question.text(1, table);
    netfilter.ask(question, ReplyCount::ManyUnbroken, |payload| {
        // The payload begins with `nfgenmsg`. The kernel lists the chains of all tables.
        let object = payload.get(4..).unwrap_or_default();
        if text_of(object, OBJECT_TABLE).is_some_and(|of| of == table) {
            each(object);
        }
        Ok(())
    })
}

fn text_of(object: &[u8], wanted: u16) -> Option<String> {
    let (_, text) = attributes(object).find(|(kind, _)| *kind == wanted)?;
    let text = text.strip_suffix(&[0]).unwrap_or(text);
    Some(String::from_utf8_lossy(text).into_owned())
}

impl SavedTable {
    fn has_set(&self, name: &str) -> bool {
        self.sets.iter().any(|set| set.name == name)
    }

    /// All contents, in an order in which each message needs only those before.
    fn messages(&self, now: Instant) -> Vec<NetlinkRequest> {
        let mut all = self.chains.clone();
        all.extend(self.sets.iter().map(|set| set.declaration.clone()));
        all.extend(self.sets.iter().flat_map(|set| set.lists(now)));
        all.extend(self.rules.iter().cloned());
        all
    }
}

impl SavedSet {
    /// The messages that add the elements whose time is not over.
    fn lists(&self, now: Instant) -> Vec<NetlinkRequest> {
        let passed = now.saturating_duration_since(self.at);
        let present: Vec<_> = self.elements.iter().filter_map(|one| one.after(passed)).collect();
        let list = |some: &[PresentElement<'_>]| {
            let mut list = message(STEP, NEWSETELEM, CREATE);
            list.text(1, TABLE);
            list.text(2, &self.name);
            list.nest(3, |list| some.iter().for_each(|one| list.nest(1, |to| one.write(to))));
            list
        };
        present.chunks(ELEMENTS_PER_LIST_MAX).map(list).collect()
    }
}

impl SavedElement {
    fn of(element: &[u8]) -> Self {
        let all = attributes(element).filter(|(kind, _)| ELEMENT_ATTRIBUTES.contains(kind));
        let attributes = all.map(|(kind, value)| (kind, value.to_vec())).collect();
        Self { attributes, time: time_left(element) }
    }

    /// The element after this time; `None`: its time is over.
    fn after(&self, passed: Duration) -> Option<PresentElement<'_>> {
        let left = self.time.map(|time| time.checked_sub(passed).filter(|left| !left.is_zero()));
        let time = match left {
            Some(left) => Some(left?),
            None => None,
        };
        Some(PresentElement { attributes: &self.attributes, time })
    }
}

/// An element whose time is not over.
struct PresentElement<'s> {
    attributes: &'s [(u16, Vec<u8>)],
    time: Option<Duration>,
}

impl PresentElement<'_> {
    fn write(&self, to: &mut NetlinkRequest) {
        for (kind, value) in self.attributes {
            to.attribute(*kind, value);
        }
        write_time(to, self.time);
    }
}

/// A kind of objects of a table.
struct ObjectKind {
    get: u16,
    new: u16,
    flags: u16,
    /// The attributes that the kernel reports and takes. It gives numbers and counts of its own.
    attributes: &'static [u16],
}

impl ObjectKind {
    /// The message that creates such an object again; the name of its table is the first attribute.
    fn copy(&self, object: &[u8]) -> NetlinkRequest {
        let mut copy = message(STEP, self.new, self.flags);
        copy.text(OBJECT_TABLE, TABLE);
        for (kind, value) in attributes(object).filter(|(kind, _)| self.attributes.contains(kind)) {
            copy.attribute(kind, value);
        }
        copy
    }
}

const STEP: &str = "restoring the earlier nftables rules";
/// Name, hook, policy, type and comment.
const CHAINS: ObjectKind =
    ObjectKind { get: 4, new: NEWCHAIN, flags: CREATE, attributes: &[3, 4, 5, 7, 12] };
/// All but the numbers of the kernel: 10, 16, 19 and 20.
const SETS: ObjectKind = ObjectKind {
    get: 10,
    new: NEWSET,
    flags: CREATE,
    attributes: &[2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 15, 17, 18],
};
/// Chain, expressions and comment.
const RULES: ObjectKind =
    ObjectKind { get: 7, new: 6, flags: CREATE | NLM_F_APPEND, attributes: &[2, 4, 7] };
/// Key, data, flags, comment, expression, object, last key and expressions. The times are written
/// again.
const ELEMENT_ATTRIBUTES: [u16; 8] = [1, 2, 3, 6, 7, 9, 10, 11];
const OBJECT_TABLE: u16 = 1;
const SET_NAME: u16 = 2;
const SET_NUMBER: u16 = 10;
/// The numbers of sets in a transaction differ.
const FIRST_NUMBER: u32 = 1;
/// An attribute has 64 KiB, an element less than 500 bytes.
const ELEMENTS_PER_LIST_MAX: usize = 100;
const NLM_F_DUMP: u16 = 0x300;
const NLM_F_APPEND: u16 = 0x800;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_come_back_with_the_rest_of_their_time() {
        let element = |time| SavedElement { attributes: Vec::new(), time };
        let seconds = Duration::from_secs;
        let left = |time, passed| element(time).after(passed).map(|one| one.time);
        assert_eq!(left(None, seconds(9)), Some(None));
        assert_eq!(left(Some(seconds(9)), seconds(4)), Some(Some(seconds(5))));
        assert_eq!(left(Some(seconds(9)), seconds(9)), None);
        assert_eq!(left(Some(seconds(9)), seconds(10)), None);
    }
}
