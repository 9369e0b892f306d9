//! Checks at intervals whether the nftables rules and routing rules of `tacit agent --host` still
//! exist. Installs missing rules again.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::{Duration, Instant};

use tacit_core::message_id::MessageId;
use tacit_core::policy::{HostMode, HostName, HostPlan, NamedAddress};
use tacit_sys::host::HostCapture;
use tacit_sys::netlink::nft::host::{HostMarks, SavedRules, SenderCheck};

use super::counted::Counted;
use super::learnt::{self, Learnt};
use super::units::{self, DropIns, FoundUnits};
use super::{TableContents, filters, senders};
use crate::clock;
use crate::exit::{complain_of, note, warn};
use crate::run::protocol::{CountedFlows, NAMES_PER_REPLY_MAX};

/// The interval between two checks of the installed rules.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// How long changes of nftables rules are collected before a check.
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
    /// Installs nftables rules and routing rules, which capture these addresses with names.
    fn install(&mut self, installed: &Installed, addresses: &[NamedAddress]) -> io::Result<()>;
    /// Captures further addresses, and stores names.
    fn learn(&mut self, addresses: &[NamedAddress], names: &[HostName]) -> io::Result<()>;
    /// The captured addresses with names, with their remaining times.
    fn named_addresses(&mut self) -> io::Result<Vec<NamedAddress>>;
    /// Whether the nftables rules exist.
    fn has_table(&mut self) -> io::Result<bool>;
    /// Installs the missing routing rules; returns whether any were missing.
    fn restore_routes(&mut self) -> io::Result<bool>;
    /// Whether the nftables rules must be installed again, because of NAT that another program has
    /// installed.
    fn is_outdated(&mut self) -> io::Result<bool>;
    /// What the nftables rules have counted, by the position of the rule in the plan.
    fn counts(&mut self, installed: &Installed) -> io::Result<BTreeMap<u32, u64>>;
    /// The wall clock, in seconds since 1970.
    fn unix_s(&self) -> i64;
    /// Sets the time windows of filter rules again.
    fn set_windows(&mut self, installed: &Installed) -> io::Result<()>;
    /// Whether an interface with this name exists.
    fn has_interface(&mut self, name: &str) -> bool;
    /// Makes the nftables rules cheaper if connections have ended that they no longer capture.
    fn forget_strays(&mut self, installed: &Installed) -> io::Result<()>;
    /// Adds units that the kernel does not know; returns whether another program had removed their
    /// table, which is there again then.
    fn follow_units(&mut self, installed: &Installed) -> io::Result<bool>;
    /// Installs the table of units as it was with these rules.
    fn restore_units(&mut self, installed: &Installed) -> io::Result<()>;
    /// Copies the nftables rules that are there; `None`: there are none.
    fn save(&mut self) -> io::Result<Option<SavedRules>>;
    /// Installs saved nftables rules in place of those that are there.
    fn put_back(&mut self, saved: &SavedRules) -> io::Result<()>;
    /// Removes nftables rules and routing rules.
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

    fn save(&mut self) -> io::Result<Option<SavedRules>> {
        Self::save(self).map_err(io::Error::other)
    }

    fn put_back(&mut self, saved: &SavedRules) -> io::Result<()> {
        Self::put_back(self, saved).map_err(io::Error::other)
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
    /// What was there before the first installation, if it may come back.
    before: Option<Before>,
    /// The last failure, which is reported once.
    failure: Option<String>,
    /// When connections that are captured no longer are looked for.
    next_strays: Option<Instant>,
    /// The interfaces of filter rules that did not exist at the last check.
    absent: BTreeSet<String>,
    /// When the kernel got the time windows of filter rules, by both clocks.
    windows_set: Option<(Instant, i64)>,
}

/// The nftables rules before the first installation.
enum Before {
    Nothing,
    /// Such as those of a guard.
    Rules(SavedRules),
}

/// What outlives the nftables rules.
#[derive(Default)]
struct Kept {
    learnt: Learnt,
    counted: Counted,
}

impl Kept {
    /// Adds what the nftables rules have counted so far.
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
        if let Some((before, _)) = &self.installed {
            // Flows that cannot be counted are no reason to keep these nftables rules.
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
        self.windows_set = Some((now, kernel.unix_s()));
        self.kept.counted.begin();
        self.kept.learnt.replace_addresses(addresses, now);
        self.installed = Some((wanted, now + LOOK_INTERVAL));
        Ok(())
    }

    /// Returns the flows that the nftables rules have counted since the last call, of at most
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

    /// Keeps what is there for [`Self::end`]. Call this before the first installation.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn keep(&mut self, kernel: &mut impl HostRules) -> io::Result<()> {
        self.before = Some(kernel.save()?.map_or(Before::Nothing, Before::Rules));
        Ok(())
    }

    /// Removes what is installed, and installs what [`Self::keep`] has kept.
    ///
    /// # Errors
    /// The kernel's, or nothing was kept. What is installed is then checked as before.
    pub(super) fn end(&mut self, kernel: &mut impl HostRules) -> io::Result<()> {
        match &self.before {
            Some(Before::Nothing) => kernel.remove()?,
            Some(Before::Rules(saved)) => kernel.put_back(saved)?,
            None => return Err(io::ErrorKind::NotFound.into()),
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
            note(MessageId("filter-interface"), change);
        }
        let mut restored = restore(kernel, installed, &mut self.kept, now);
        // The kernel measures the time that passes; it does not follow a clock that is set.
        let unix_s = kernel.unix_s();
        if installed.plan.has_windows()
            && self.windows_set.is_some_and(|set| is_clock_set(set, (now, unix_s)))
        {
            // It does not wait for the rest: a permit must not outlive its window. A failure is
            // followed by another attempt.
            match kernel.set_windows(installed) {
                Ok(()) => self.windows_set = Some((now, unix_s)),
                Err(error) => restored = restored.and(Err(error)),
            }
        }
        if self.next_strays.is_none_or(|next| now >= next) {
            self.next_strays = Some(now + STRAYS_INTERVAL);
            restored = restored.and_then(|what| kernel.forget_strays(installed).map(|()| what));
        }
        self.report(restored);
        Some(LOOK_INTERVAL)
    }

    /// Schedules a check of the installed rules, after a program has changed nftables rules. One
    /// check is enough for several changes that follow each other shortly.
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
                warn(
                    MessageId("host-rules-restored"),
                    format_args!(
                        "another program removed {what} from the host, and tacit has \
                         installed {what} again"
                    ),
                );
            }
            Err(error) => {
                let failure = error.to_string();
                if self.failure.as_ref() != Some(&failure) {
                    complain_of(
                        MessageId("host-rules-missing"),
                        format_args!(
                            "nftables rules or routing rules of the host are missing or outdated, \
                             and tacit cannot install them again: {failure}; tacit tries again \
                             every second"
                        ),
                    );
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
        format!(
            "there is no interface {name}: the filter rules for this interface apply when it \
             appears"
        )
    });
    let found = before.difference(absent).filter(is_named);
    let found = found.map(|name| {
        format!("the interface {name} has appeared: the filter rules for this interface apply now")
    });
    lost.chain(found).collect()
}

/// Whether two plans differ only in the state of time windows, so that the nftables rules can stay.
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
/// because a failure must not leave the host without nftables rules.
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
        return Ok(Some("the nftables rules"));
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
    Ok(missing.or_else(|| units_were_missing.then_some("the nftables rules for systemd units")))
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
    // Flows that cannot be counted are no reason to keep these nftables rules.
    let _ = kept.count(kernel, installed);
    kernel.install(installed, &kept.learnt.addresses(now))?;
    kept.counted.begin();
    Ok(())
}

#[cfg(test)]
mod tests;
