//! Tests how `tacit agent --host` restores missing nftables rules and routing rules. A simulated
//! kernel refuses or loses these rules.

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
    /// What the nftables rules have counted for the first rule.
    counted: u64,
    /// The wall clock.
    unix_s: i64,
    /// How often time windows were set without an installation.
    windows_set: u32,
    /// The number of changes of time windows that it refuses.
    window_refusals: u32,
    /// How often saved nftables rules were installed again.
    put_back: u32,
    /// Whether a read of routing rules fails.
    is_busy: bool,
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
        if self.is_busy {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
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
        if let Some(left) = self.window_refusals.checked_sub(1) {
            self.window_refusals = left;
            return Err(io::ErrorKind::OutOfMemory.into());
        }
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

    fn save(&mut self) -> io::Result<Option<SavedRules>> {
        Ok(self.has_table.then(SavedRules::default))
    }

    fn put_back(&mut self, _: &SavedRules) -> io::Result<()> {
        self.put_back += 1;
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
    watched.keep(&mut kernel).unwrap();
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
    assert_eq!(kernel.put_back, 0);

    let mut guarded = Kernel { has_table: true, ..Kernel::default() };
    let mut watched = Watched::default();
    watched.keep(&mut guarded).unwrap();
    watched.install(&mut guarded, installed(), &[], now).unwrap();
    watched.end(&mut guarded).unwrap();
    assert_eq!((guarded.has_table, guarded.put_back), (true, 1));

    let mut watched = Watched::default();
    watched.install(&mut guarded, installed(), &[], now).unwrap();
    assert!(watched.end(&mut guarded).is_err(), "nothing was kept");
}

#[test]
fn frequent_requests_do_not_delay_the_look() {
    let (mut watched, mut kernel, begin) = watched();
    kernel.has_table = false;
    for tenth in 1..10 {
        let now = begin + LOOK_INTERVAL * tenth / 10;
        assert_eq!(watched.look(Some(&mut kernel), now), Some(LOOK_INTERVAL * (10 - tenth) / 10));
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
    assert_eq!([look(&["a0"]), look(&["a0"]), look(&["b0"]), look(&["a0", "b0"])], [1, 0, 2, 1]);
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
fn a_failure_does_not_end_the_correction_of_windows() {
    let (mut watched, mut kernel, mut now) = watched();
    watched.install(&mut kernel, with_window(1000), &[], now).unwrap();
    let mut look = |kernel: &mut Kernel, jump: i64| {
        now += LOOK_INTERVAL;
        kernel.unix_s += i64::try_from(LOOK_INTERVAL.as_secs()).unwrap() + jump;
        watched.look(Some(kernel), now);
        kernel.windows_set
    };
    kernel.window_refusals = 2;
    assert_eq!([look(&mut kernel, 3600), look(&mut kernel, 0)], [0, 0]);
    assert_eq!([look(&mut kernel, 0), look(&mut kernel, 0)], [1, 1]);
    kernel.is_busy = true;
    assert_eq!(look(&mut kernel, 3600), 2, "the rest of the look has failed");
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
