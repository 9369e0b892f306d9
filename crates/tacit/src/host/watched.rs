//! Checks at intervals whether the packet rules and routing rules of `tacit agent --host` still
//! exist. Installs missing rules again.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::{Duration, Instant};

use tacit_core::policy::{HostMode, HostName, HostPlan, NamedAddress};
use tacit_sys::host::HostCapture;
use tacit_sys::netlink::nft::host::{HostMarks, SenderCheck};

use super::counted::Counted;
use super::learnt::{self, Learnt};
use super::units::{self, DropIns, FoundUnits};
use super::{TableContents, filters, senders};
use crate::clock;
use crate::exit::complain;
use crate::run::protocol::{CountedFlows, NAMES_PER_REPLY_MAX};

/// The interval between two checks of the installed rules.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// How long changes of packet rules are collected before a check.
const CHANGES_INTERVAL: Duration = Duration::from_millis(10);
/// The interval between two searches for connections that are captured no longer.
const STRAYS_INTERVAL: Duration = Duration::from_secs(60);

/// The rules that capture a host.
pub(super) struct Installed {
    pub(super) marks: HostMarks,
    pub(super) plan: HostPlan,
    /// The senders of each section of the plan, as they were found.
    pub(super) senders: Vec<Vec<SenderCheck>>,
    pub(super) user: Option<u32>,
    /// The units of the plan.
    pub(super) units: FoundUnits,
}

/// The part of the kernel that has the rules.
pub(super) trait HostRules {
    /// Installs packet rules and routing rules, which capture these addresses with names.
    fn install(&mut self, installed: &Installed, addresses: &[NamedAddress]) -> io::Result<()>;
    /// Captures further addresses, and stores names.
    fn learn(&mut self, addresses: &[NamedAddress], names: &[HostName]) -> io::Result<()>;
    /// The captured addresses with names, with their remaining times.
    fn named_addresses(&mut self) -> io::Result<Vec<NamedAddress>>;
    /// Whether the packet rules exist.
    fn has_table(&mut self) -> io::Result<bool>;
    /// Installs the missing routing rules; returns whether any were missing.
    fn restore_routes(&mut self) -> io::Result<bool>;
    /// Whether the packet rules must be installed again, because of NAT that another program has
    /// installed.
    fn is_outdated(&mut self) -> io::Result<bool>;
    /// What the packet rules have counted, by the position of the rule in the plan.
    fn counts(&mut self, installed: &Installed) -> io::Result<BTreeMap<u32, u64>>;
    /// The wall clock, in seconds since 1970.
    fn unix_s(&self) -> i64;
    /// Sets the time windows of filter rules again.
    fn set_windows(&mut self, installed: &Installed) -> io::Result<()>;
    /// Whether an interface with this name exists.
    fn has_interface(&mut self, name: &str) -> bool;
    /// Makes the packet rules cheaper if connections have ended that they no longer capture.
    fn forget_strays(&mut self, installed: &Installed) -> io::Result<()>;
    /// Adds units that the kernel does not know; returns whether another program had removed their
    /// table, which is there again then.
    fn follow_units(&mut self, installed: &Installed) -> io::Result<bool>;
    /// Installs the table of units as it was with these rules.
    fn restore_units(&mut self, installed: &Installed) -> io::Result<()>;
    /// Removes packet rules and routing rules.
    fn remove(&mut self) -> io::Result<()>;
}

impl HostRules for HostCapture {
    fn install(&mut self, installed: &Installed, addresses: &[NamedAddress]) -> io::Result<()> {
        let contents = TableContents::of(&installed.plan, &installed.senders, addresses);
        let sections = contents.sections();
        let table = contents.table(&sections, installed.marks, installed.user);
        if let Some(wanted) = &installed.plan.units {
            units::install(self, wanted, &installed.units)?;
        }
        Self::install(self, &table).map_err(io::Error::other)?;
        if installed.plan.units.is_none() {
            self.remove_units().map_err(io::Error::other)?;
        }
        Ok(())
    }

    fn learn(&mut self, addresses: &[NamedAddress], names: &[HostName]) -> io::Result<()> {
        learnt::learn(self, addresses, names)
    }

    fn named_addresses(&mut self) -> io::Result<Vec<NamedAddress>> {
        learnt::captured_addresses(self)
    }

    fn has_table(&mut self) -> io::Result<bool> {
        self.is_installed().map_err(io::Error::other)
    }

    fn restore_routes(&mut self) -> io::Result<bool> {
        Self::restore_routes(self).map_err(io::Error::other)
    }

    fn is_outdated(&mut self) -> io::Result<bool> {
        Self::is_outdated(self).map_err(io::Error::other)
    }

    fn counts(&mut self, installed: &Installed) -> io::Result<BTreeMap<u32, u64>> {
        let contents = TableContents::of(&installed.plan, &installed.senders, &[]);
        let sections = contents.sections();
        let table = contents.table(&sections, installed.marks, installed.user);
        Self::counts(self, &table).map_err(io::Error::other)
    }

    fn unix_s(&self) -> i64 {
        clock::now_unix_s()
    }

    fn set_windows(&mut self, installed: &Installed) -> io::Result<()> {
        let Some(filters) = &installed.plan.filters else { return Ok(()) };
        let present = filters::windows(filters, self.unix_s());
        Self::set_windows(self, &present).map_err(io::Error::other)
    }

    fn has_interface(&mut self, name: &str) -> bool {
        filters::has_interface(name)
    }

    fn forget_strays(&mut self, installed: &Installed) -> io::Result<()> {
        let contents = TableContents::of(&installed.plan, &installed.senders, &[]);
        let sections = contents.sections();
        let table = contents.table(&sections, installed.marks, installed.user);
        Self::forget_strays(self, &table).map_err(io::Error::other)
    }

    fn follow_units(&mut self, installed: &Installed) -> io::Result<bool> {
        let Some(wanted) = &installed.plan.units else { return Ok(false) };
        units::follow(self, wanted, &installed.units)
    }

    fn restore_units(&mut self, installed: &Installed) -> io::Result<()> {
        match &installed.plan.units {
            Some(wanted) => units::install(self, wanted, &installed.units),
            None => self.remove_units().map_err(io::Error::other),
        }
    }

    fn remove(&mut self) -> io::Result<()> {
        Self::remove(self).map_err(io::Error::other)
    }
}

/// The installed rules, and the time of their next check.
#[derive(Default)]
pub(super) struct Watched {
    installed: Option<(Installed, Instant)>,
    kept: Kept,
    /// Whether there were packet rules before the first installation; `None`: there was none.
    had_table: Option<bool>,
    /// The last failure, which is reported once.
    failure: Option<String>,
    /// When connections that are captured no longer are looked for.
    next_strays: Option<Instant>,
    /// The interfaces of filter rules that did not exist at the last check.
    absent: BTreeSet<String>,
    /// When the kernel got the time windows of filter rules, by both clocks.
    windows_set: Option<(Instant, i64)>,
}

/// What outlives the packet rules.
#[derive(Default)]
struct Kept {
    learnt: Learnt,
    counted: Counted,
}

impl Kept {
    /// Adds what the packet rules have counted so far.
    fn count(&mut self, kernel: &mut impl HostRules, installed: &Installed) -> io::Result<()> {
        let rules = &installed.plan.counted_rules;
        if !rules.is_empty() {
            self.counted.add(rules, &kernel.counts(installed)?);
        }
        Ok(())
    }
}

impl Watched {
    /// Installs rules, and checks them from now on.
    ///
    /// # Errors
    /// The error of the kernel. The previous rules remain, and are checked as before.
    pub(super) fn install(
        &mut self,
        kernel: &mut impl HostRules,
        wanted: Installed,
        addresses: &[NamedAddress],
        now: Instant,
    ) -> io::Result<()> {
        let had_table = match self.had_table {
            Some(had_table) => had_table,
            None => kernel.has_table()?,
        };
        if let Some((before, _)) = &self.installed {
            // Flows that cannot be counted are no reason to keep these packet rules.
            let _ = self.kept.count(kernel, before);
        }
        if self.installed.as_ref().is_some_and(|(before, _)| only_windows_differ(before, &wanted)) {
            kernel.set_windows(&wanted)?;
            self.windows_set = Some((now, kernel.unix_s()));
            self.installed = Some((wanted, now + LOOK_INTERVAL));
            return Ok(());
        }
        if let Err(error) = kernel.install(&wanted, addresses) {
            if let Some((before, _)) = &self.installed {
                kernel.restore_units(before)?;
            }
            return Err(error);
        }
        self.had_table = Some(had_table);
        self.windows_set = Some((now, kernel.unix_s()));
        self.kept.counted.begin();
        self.kept.learnt.replace_addresses(addresses, now);
        self.installed = Some((wanted, now + LOOK_INTERVAL));
        Ok(())
    }

    /// Returns the flows that the packet rules have counted since the last call, of at most
    /// [`NAMES_PER_REPLY_MAX`] rules.
    ///
    /// # Errors
    /// The error of the kernel.
    pub(super) fn counts(&mut self, kernel: &mut impl HostRules) -> io::Result<Vec<CountedFlows>> {
        if let Some((installed, _)) = &self.installed {
            self.kept.count(kernel, installed)?;
        }
        Ok(self.kept.counted.take())
    }

    /// The interfaces whose flows are captured too.
    pub(super) fn forwarded(&self) -> &[String] {
        self.installed.as_ref().map_or(&[], |(installed, _)| &installed.plan.forwarded)
    }

    /// Captures addresses and stores names. Rules that another program has removed are restored
    /// first.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn learn(
        &mut self,
        kernel: &mut impl HostRules,
        addresses: &[NamedAddress],
        names: &[HostName],
        now: Instant,
    ) -> io::Result<()> {
        if let Err(error) = kernel.learn(addresses, names) {
            let (installed, _) = self.installed.as_mut().ok_or(error)?;
            let restored = restore(kernel, installed, &mut self.kept, now);
            self.report(restored);
            kernel.learn(addresses, names)?;
        }
        self.kept.learnt.add(addresses, names, now);
        Ok(())
    }

    /// Records names that the kernel stores.
    pub(super) fn note_kept(&mut self, names: &[HostName], now: Instant) {
        self.kept.learnt.add(&[], names, now);
    }

    /// Removes what is installed, unless packet rules were there before the first installation,
    /// such as those of a guard: then all that is captured is refused.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn end(&mut self, kernel: &mut impl HostRules) -> io::Result<()> {
        if self.had_table == Some(false) {
            kernel.remove()?;
        }
        self.installed = None;
        Ok(())
    }

    /// Takes back what must not outlive the helper.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn end_audit(&self, kernel: Option<&mut impl HostRules>) -> io::Result<()> {
        match (&self.installed, kernel) {
            (Some((installed, _)), Some(kernel)) if installed.plan.mode == HostMode::Audit => {
                kernel.remove()
            }
            _ => Ok(()),
        }
    }

    /// Checks the installed rules, if a check is due, and restores rules that another program has
    /// removed. Returns the time until the next check; `None` if no rules are installed.
    pub(super) fn look(
        &mut self,
        kernel: Option<&mut impl HostRules>,
        now: Instant,
    ) -> Option<Duration> {
        let (installed, next_look) = self.installed.as_mut()?;
        if now < *next_look {
            return Some(*next_look - now);
        }
        *next_look = now + LOOK_INTERVAL;
        let kernel = kernel?;
        for change in look_at_interfaces(kernel, &installed.plan, &mut self.absent) {
            complain(format_args!("tacit: {change}"));
        }
        let mut restored = restore(kernel, installed, &mut self.kept, now);
        // The kernel measures the time that passes; it does not follow a clock that is set.
        let unix_s = kernel.unix_s();
        if installed.plan.has_windows()
            && self.windows_set.is_some_and(|set| is_clock_set(set, (now, unix_s)))
        {
            restored = restored.and_then(|what| kernel.set_windows(installed).map(|()| what));
            self.windows_set = Some((now, unix_s));
        }
        if self.next_strays.is_none_or(|next| now >= next) {
            self.next_strays = Some(now + STRAYS_INTERVAL);
            restored = restored.and_then(|what| kernel.forget_strays(installed).map(|()| what));
        }
        self.report(restored);
        Some(LOOK_INTERVAL)
    }

    /// Checks the installed rules shortly: a program has changed packet rules. Changes that follow
    /// each other are checked at once.
    pub(super) fn look_soon(&mut self, now: Instant) {
        if let Some((_, next_look)) = &mut self.installed {
            *next_look = (*next_look).min(now + CHANGES_INTERVAL);
        }
    }

    fn report(&mut self, restored: io::Result<Option<&'static str>>) {
        match restored {
            Ok(None) => self.failure = None,
            Ok(Some(what)) => {
                self.failure = None;
                complain(format_args!(
                    "tacit: another program removed {what} of the host, and tacit has installed \
                     {what} again"
                ));
            }
            Err(error) => {
                let failure = error.to_string();
                if self.failure.as_ref() != Some(&failure) {
                    complain(format_args!(
                        "tacit: packet rules or routing rules of the host are missing or outdated, \
                         and tacit cannot install them again: {failure}; tacit tries again every \
                         second"
                    ));
                }
                self.failure = Some(failure);
            }
        }
    }
}

/// Finds out which interfaces of filter rules have appeared or gone. Returns a message for each.
fn look_at_interfaces(
    kernel: &mut impl HostRules,
    plan: &HostPlan,
    absent: &mut BTreeSet<String>,
) -> Vec<String> {
    let named = plan.filters.iter().flat_map(|filters| &filters.interfaces);
    let gone: BTreeSet<String> =
        named.filter(|name| !kernel.has_interface(name)).cloned().collect();
    let before = std::mem::replace(absent, gone);
    let is_named = |name: &&String| {
        plan.filters.as_ref().is_some_and(|filters| filters.interfaces.contains(name))
    };
    let lost = absent.difference(&before).map(|name| {
        format!("there is no interface {name}, which filter rules name; they apply when it appears")
    });
    let found = before.difference(absent).filter(is_named);
    let found =
        found.map(|name| format!("the interface {name} has appeared; filter rules name it"));
    lost.chain(found).collect()
}

/// Whether two plans differ only in the state of time windows, so that the packet rules can stay.
fn only_windows_differ(before: &Installed, wanted: &Installed) -> bool {
    let is_simple = wanted.plan.has_windows()
        && wanted.plan.units.is_none()
        && wanted.plan.names.is_none()
        && (before.marks, before.user) == (wanted.marks, wanted.user)
        && before.senders == wanted.senders;
    is_simple && before.plan.without_windows() == wanted.plan.without_windows()
}

/// Whether the wall clock shows another time than the one that has passed since.
fn is_clock_set((since, then): (Instant, i64), (now, unix_s): (Instant, i64)) -> bool {
    let passed = now.saturating_duration_since(since).as_secs();
    let expected = then.saturating_add(i64::try_from(passed).unwrap_or(i64::MAX));
    unix_s.abs_diff(expected) >= CLOCK_TOLERANCE_S
}

/// By how many seconds the clocks may differ: a clock that is adjusted runs slower or faster.
const CLOCK_TOLERANCE_S: u64 = 2;

/// Restores missing rules, and returns which were missing. Control groups that rules name may have
/// been created or replaced since. Those of senders are looked up when the rest is there again,
/// because a failure must not leave the host without packet rules.
fn restore(
    kernel: &mut impl HostRules,
    installed: &mut Installed,
    kept: &mut Kept,
    now: Instant,
) -> io::Result<Option<&'static str>> {
    let FoundUnits { drop_ins, groups } = FoundUnits::of(&installed.plan);
    installed.units.groups = groups;
    if !kernel.has_table()? {
        kernel.install(installed, &kept.learnt.addresses(now))?;
        kept.counted.begin();
        for names in kept.learnt.names(now).chunks(NAMES_PER_REPLY_MAX) {
            kernel.learn(&[], names)?;
        }
        return Ok(Some("the packet rules"));
    }
    if kernel.is_outdated()? {
        install_again(kernel, installed, kept, now)?;
    }
    let routes_were_missing = kernel.restore_routes()?;
    let units_were_missing = kernel.follow_units(installed)?;
    if let Some(other) = changed(installed, drop_ins)? {
        let before = std::mem::replace(&mut installed.senders, other);
        let drop_ins_before = std::mem::replace(&mut installed.units.drop_ins, drop_ins);
        if drop_ins != drop_ins_before {
            drop_ins.report();
        }
        install_again(kernel, installed, kept, now).inspect_err(|_| {
            installed.senders = before;
            installed.units.drop_ins = drop_ins_before;
        })?;
    }
    let missing = routes_were_missing.then_some("the routing rules");
    Ok(missing.or_else(|| units_were_missing.then_some("the packet rules for units")))
}

/// The senders of the sections, if control groups have been created or replaced, or drop-ins of
/// units; `None`: the installed rules are right.
fn changed(installed: &Installed, drop_ins: DropIns) -> io::Result<Option<Vec<Vec<SenderCheck>>>> {
    let are_drop_ins_same = drop_ins == installed.units.drop_ins;
    if !senders::may_change(&installed.plan) && are_drop_ins_same {
        return Ok(None);
    }
    let found = senders::resolve(&installed.plan)?;
    let is_same = found == installed.senders && are_drop_ins_same;
    Ok((!is_same).then_some(found))
}

/// Installs the rules in place of those that are there.
fn install_again(
    kernel: &mut impl HostRules,
    installed: &Installed,
    kept: &mut Kept,
    now: Instant,
) -> io::Result<()> {
    // The kernel has given addresses in use more time.
    kept.learnt.add(&kernel.named_addresses()?, &[], now);
    // Flows that cannot be counted are no reason to keep these packet rules.
    let _ = kept.count(kernel, installed);
    kernel.install(installed, &kept.learnt.addresses(now))?;
    kept.counted.begin();
    Ok(())
}

#[cfg(test)]
mod tests {
    use tacit_core::policy::filter::{FilterPlan, FilterSchedule};
    use tacit_core::policy::{HostSection, Senders, Unmatched};

    use super::*;

    /// A kernel without support for owners of tables.
    #[derive(Default)]
    struct Kernel {
        has_table: bool,
        has_routes: bool,
        addresses: Vec<NamedAddress>,
        names: Vec<HostName>,
        /// The number of installations that it refuses.
        refusals: u32,
        /// How often the table of units was restored.
        units_restored: u32,
        /// What the packet rules have counted for the first rule.
        counted: u64,
        /// The wall clock.
        unix_s: i64,
        /// How often time windows were set without an installation.
        windows_set: u32,
        installations: u32,
        interfaces: Vec<&'static str>,
    }

    impl HostRules for Kernel {
        fn learn(&mut self, addresses: &[NamedAddress], names: &[HostName]) -> io::Result<()> {
            if !self.has_table {
                return Err(io::ErrorKind::NotFound.into());
            }
            self.addresses.extend(addresses);
            self.names.extend(names.iter().cloned());
            Ok(())
        }

        fn named_addresses(&mut self) -> io::Result<Vec<NamedAddress>> {
            Ok(self.addresses.clone())
        }

        fn install(&mut self, _: &Installed, addresses: &[NamedAddress]) -> io::Result<()> {
            if let Some(left) = self.refusals.checked_sub(1) {
                self.refusals = left;
                return Err(io::ErrorKind::OutOfMemory.into());
            }
            (self.has_table, self.has_routes) = (true, true);
            self.installations += 1;
            self.counted = 0;
            self.addresses = addresses.to_vec();
            Ok(())
        }

        fn has_table(&mut self) -> io::Result<bool> {
            Ok(self.has_table)
        }

        fn restore_routes(&mut self) -> io::Result<bool> {
            let were_absent = !self.has_routes;
            self.has_routes = true;
            Ok(were_absent)
        }

        fn is_outdated(&mut self) -> io::Result<bool> {
            Ok(false)
        }

        fn counts(&mut self, _: &Installed) -> io::Result<BTreeMap<u32, u64>> {
            Ok(BTreeMap::from([(0, self.counted)]))
        }

        fn unix_s(&self) -> i64 {
            self.unix_s
        }

        fn has_interface(&mut self, name: &str) -> bool {
            self.interfaces.contains(&name)
        }

        fn set_windows(&mut self, _: &Installed) -> io::Result<()> {
            self.windows_set += 1;
            Ok(())
        }

        fn forget_strays(&mut self, _: &Installed) -> io::Result<()> {
            Ok(())
        }

        fn follow_units(&mut self, _: &Installed) -> io::Result<bool> {
            Ok(false)
        }

        fn restore_units(&mut self, _: &Installed) -> io::Result<()> {
            self.units_restored += 1;
            Ok(())
        }

        fn remove(&mut self) -> io::Result<()> {
            (self.has_table, self.has_routes) = (false, false);
            Ok(())
        }
    }

    fn installed() -> Installed {
        in_mode(HostMode::Enforce)
    }

    fn in_mode(mode: HostMode) -> Installed {
        let plan = HostPlan {
            sections: Vec::new(),
            unmatched: Unmatched::Permit,
            inbound: Vec::new(),
            names: None,
            mode,
            forwarded: Vec::new(),
            units: None,
            counted_rules: vec!["permitted".to_owned()],
            filters: None,
        };
        Installed {
            marks: HostMarks::new(3).unwrap(),
            plan,
            senders: Vec::new(),
            user: None,
            units: FoundUnits { drop_ins: DropIns::Complete, groups: Vec::new() },
        }
    }

    fn watched() -> (Watched, Kernel, Instant) {
        let mut watched = Watched::default();
        let mut kernel = Kernel::default();
        let now = Instant::now();
        assert_eq!(watched.look(Some(&mut kernel), now), None);
        watched.install(&mut kernel, installed(), &[], now).unwrap();
        (watched, kernel, now)
    }

    #[test]
    fn the_end_leaves_what_was_there_before() {
        let (mut watched, mut kernel, now) = watched();
        watched.install(&mut kernel, installed(), &[], now).unwrap();
        watched.end(&mut kernel).unwrap();
        assert!(!kernel.has_table && !kernel.has_routes);
        assert_eq!(watched.look(Some(&mut kernel), now + LOOK_INTERVAL), None);

        let mut guarded = Kernel { has_table: true, ..Kernel::default() };
        let mut watched = Watched::default();
        watched.install(&mut guarded, installed(), &[], now).unwrap();
        watched.end(&mut guarded).unwrap();
        assert!(guarded.has_table);
    }

    #[test]
    fn frequent_requests_do_not_delay_the_look() {
        let (mut watched, mut kernel, begin) = watched();
        kernel.has_table = false;
        for tenth in 1..10 {
            let now = begin + LOOK_INTERVAL * tenth / 10;
            assert_eq!(
                watched.look(Some(&mut kernel), now),
                Some(LOOK_INTERVAL * (10 - tenth) / 10)
            );
            assert!(!kernel.has_table);
        }
        watched.look(Some(&mut kernel), begin + LOOK_INTERVAL);
        assert!(kernel.has_table);
    }

    #[test]
    fn a_failure_is_followed_by_another_attempt() {
        let (mut watched, mut kernel, mut now) = watched();
        kernel.has_table = false;
        kernel.refusals = 2;
        for _ in 0..2 {
            now += LOOK_INTERVAL;
            watched.look(Some(&mut kernel), now);
            assert!(!kernel.has_table);
        }
        now += LOOK_INTERVAL;
        watched.look(Some(&mut kernel), now);
        assert!(kernel.has_table);
    }

    #[test]
    fn a_refused_installation_leaves_the_one_before_watched() {
        let (mut watched, mut kernel, now) = watched();
        kernel.refusals = 1;
        assert!(watched.install(&mut kernel, installed(), &[], now).is_err());
        assert_eq!(kernel.units_restored, 1);
        (kernel.has_table, kernel.has_routes) = (false, false);
        watched.look(Some(&mut kernel), now + LOOK_INTERVAL);
        assert!(kernel.has_table);
        kernel.has_routes = false;
        watched.look(Some(&mut kernel), now + LOOK_INTERVAL * 2);
        assert!(kernel.has_routes);
    }

    #[test]
    fn what_the_packet_rules_have_counted_outlives_them() {
        let (mut watched, mut kernel, now) = watched();
        kernel.counted = 3;
        watched.install(&mut kernel, installed(), &[], now).unwrap();
        kernel.counted = 2;
        let read = |watched: &mut Watched, kernel: &mut Kernel| {
            let counts = watched.counts(kernel).unwrap();
            counts.iter().map(|one| (one.rule.clone(), one.flows)).collect::<Vec<_>>()
        };
        assert_eq!(read(&mut watched, &mut kernel), [("permitted".to_owned(), 5)]);
        kernel.refusals = 1;
        kernel.counted = 4;
        watched.install(&mut kernel, installed(), &[], now).unwrap_err();
        assert_eq!(read(&mut watched, &mut kernel), [("permitted".to_owned(), 2)]);
        assert_eq!(read(&mut watched, &mut kernel), []);
    }

    #[test]
    fn what_was_learned_is_restored_and_a_flush_delays_no_answer() {
        let (mut watched, mut kernel, now) = watched();
        let address = [10, 0, 0, 1].into();
        let addresses = [NamedAddress { address, part: 0, seconds: Some(90) }];
        let names = [HostName { address, name: "db.example".to_owned(), seconds: 90 }];
        watched.learn(&mut kernel, &addresses, &names, now).unwrap();
        kernel = Kernel::default();
        watched.look(Some(&mut kernel), now + LOOK_INTERVAL);
        assert_eq!((kernel.addresses.len(), &kernel.names[0].name), (1, &names[0].name));
        kernel = Kernel::default();
        watched.learn(&mut kernel, &[], &[], now + LOOK_INTERVAL).unwrap();
        assert_eq!((kernel.addresses.len(), kernel.names.len()), (1, 1));
    }

    #[test]
    fn rules_are_restored_even_if_their_senders_are_not_found() {
        let (mut watched, mut kernel, now) = watched();
        let mut plan = installed().plan;
        let senders = Senders {
            user: vec!["no-such-user".to_owned()],
            cgroup: vec!["no-such.slice".to_owned()],
            ..Senders::default()
        };
        plan.sections.push(HostSection { senders, outbound: Vec::new(), counted: Vec::new() });
        let unknown = Installed { plan, senders: vec![Vec::new()], ..installed() };
        watched.install(&mut kernel, unknown, &[], now).unwrap();
        (kernel.has_table, kernel.has_routes) = (false, false);
        watched.look(Some(&mut kernel), now + LOOK_INTERVAL);
        assert_eq!([kernel.has_table, kernel.has_routes], [true, true]);
        kernel.has_routes = false;
        watched.look(Some(&mut kernel), now + LOOK_INTERVAL * 2);
        assert!(kernel.has_routes);
    }

    /// A plan with one time window.
    fn with_window(until_unix_s: i64) -> Installed {
        let schedule = FilterSchedule { present: true, until_unix_s: Some(until_unix_s) };
        let filters = FilterPlan { schedules: vec![schedule], ..FilterPlan::default() };
        let plan = HostPlan { filters: Some(filters), ..installed().plan };
        Installed { plan, ..installed() }
    }

    #[test]
    fn a_window_that_opens_or_closes_leaves_the_packet_rules() {
        let (mut watched, mut kernel, now) = watched();
        watched.install(&mut kernel, with_window(1000), &[], now).unwrap();
        watched.install(&mut kernel, with_window(2000), &[], now).unwrap();
        assert_eq!((kernel.installations, kernel.windows_set), (2, 1));
        watched.install(&mut kernel, installed(), &[], now).unwrap();
        assert_eq!((kernel.installations, kernel.windows_set), (3, 1));
    }

    #[test]
    fn interfaces_of_filters_that_come_and_go_are_reported_once() {
        let mut kernel = Kernel::default();
        let interfaces = ["a0", "b0"].map(str::to_owned).to_vec();
        let filters = FilterPlan { interfaces, ..FilterPlan::default() };
        let plan = HostPlan { filters: Some(filters), ..installed().plan };
        let mut absent = BTreeSet::new();
        let mut look = |exist: &[&'static str]| {
            kernel.interfaces = exist.to_vec();
            look_at_interfaces(&mut kernel, &plan, &mut absent).len()
        };
        assert_eq!(
            [look(&["a0"]), look(&["a0"]), look(&["b0"]), look(&["a0", "b0"])],
            [1, 0, 2, 1]
        );
    }

    #[test]
    fn the_kernel_gets_windows_again_if_the_clock_is_set() {
        let (mut watched, mut kernel, mut now) = watched();
        watched.install(&mut kernel, with_window(1000), &[], now).unwrap();
        let mut look = |kernel: &mut Kernel, jump: i64| {
            now += LOOK_INTERVAL;
            kernel.unix_s += i64::try_from(LOOK_INTERVAL.as_secs()).unwrap() + jump;
            watched.look(Some(kernel), now);
            kernel.windows_set
        };
        let set = [0, 1, 0, 3600, 0, -3600, 0, -30 * 86_400, 0].map(|jump| look(&mut kernel, jump));
        assert_eq!(set, [0, 0, 0, 1, 1, 2, 2, 3, 3]);
    }

    #[test]
    fn only_what_audits_ends_with_the_helper() {
        for (mode, stays) in [(HostMode::Enforce, true), (HostMode::Audit, false)] {
            let (mut watched, mut kernel, now) = watched();
            watched.install(&mut kernel, in_mode(mode), &[], now).unwrap();
            watched.end_audit(Some(&mut kernel)).unwrap();
            assert_eq!([kernel.has_table, kernel.has_routes], [stays, stays], "{mode:?}");
        }
    }
}
