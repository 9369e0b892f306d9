//! Measures the CPU time of a thread, by rule and by component, such as handshake or encryption.
//!
//! A *turn* is the work for one rule. It ends when the thread waits, or starts work for another
//! rule. These functions mark the turns of a thread, and the components of each turn:
//!
//! ```text
//! wakes()             the thread has waited, and now works again
//! turn(account, ...)  does the work of a turn; the account belongs to the rule
//! switch(component)   inside a turn: the next component starts, such as `Seal` (encryption)
//! waits()             the thread is about to wait
//! ```
//!
//! For each message of a relay, the thread reads the clock four times: when it wakes, after
//! reading, after encryption or decryption, and after writing. The time between two turns counts
//! as time of the second turn.
//!
//! A thread first collects its times in a *window*. At the end of the window, the times are added
//! to the accounts of the ledger, where other threads can read them. The window ends after
//! [`WINDOW_NS`] of CPU time or [`WINDOW_WALL_NS`] of wall-clock time. It also ends when a command
//! such as `tacit show costs` requests the accounts.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use tacit_core::meter::{Cells, Component, MeterWindow, whole};
use tacit_sys::cpu;

use super::account::{Account, Count, Counts, MeteringOverhead, ThreadKind};

/// The CPU time after which a window is closed. Closing reads the CPU clock, which takes half a
/// microsecond: less than a thousandth of this time.
pub const WINDOW_NS: u64 = 1_000_000;
/// The wall-clock time after which a window is closed even if there was little work, so that
/// displays are current.
pub const WINDOW_WALL_NS: u64 = 50_000_000;

/// Measured time that is not charged to an account yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ticks(u64);

thread_local! {
    static METER: Meter = Meter::new();
}

/// Whether metering is off. A metered thread checks this when it closes its window.
static OFF: AtomicBool = AtomicBool::new(false);

/// Stops metering: at once on the calling thread, and on other threads when their windows close.
pub fn turn_off() {
    OFF.store(true, Ordering::Relaxed);
    METER.with(|meter| meter.is_on.set(false));
}

/// Starts to meter the calling thread.
pub fn start(thread: ThreadKind) {
    if !OFF.load(Ordering::Relaxed) {
        METER.with(|meter| meter.start(thread));
    }
}

/// Called before the thread waits.
pub fn waits() {
    METER.with(Meter::waits);
}

/// Called after the thread has waited.
pub fn wakes() {
    METER.with(Meter::wakes);
}

/// Closes the window now, because a display is about to read the accounts.
pub fn publish() {
    METER.with(|meter| {
        if meter.is_on.get() {
            meter.stamp();
            meter.close();
            meter.rest();
        }
    });
}

/// The result of a metered turn.
#[derive(Clone, Copy, Debug)]
pub struct Metered<T> {
    /// The return value of the work.
    pub output: T,
    /// The duration in nanoseconds, with the tick length of the last window.
    pub usage_ns: u64,
}

/// Does `work` for an account, beginning with a component. Sets `component` to the component in
/// which the work ended.
pub fn turn<T>(
    account: &Arc<Account>,
    component: &mut Component,
    work: impl FnOnce() -> T,
) -> Metered<T> {
    METER.with(|meter| meter.begin(account, *component));
    let output = work();
    METER.with(|meter| {
        let ended = meter.end(*component);
        *component = ended.component;
        Metered { output, usage_ns: ended.usage_ns }
    })
}

/// Does work for several accounts, which it reports with [`share`]. The time is divided among them;
/// if there are none, it is charged to `account`.
pub fn shared_turn<T>(account: &Arc<Account>, component: Component, work: impl FnOnce() -> T) -> T {
    let before = METER.with(|meter| {
        meter.begin(account, component);
        meter.begin_shares()
    });
    let output = work();
    METER.with(|meter| meter.end_shared(&before));
    output
}

/// Adds an account to the current [`shared_turn`], or adds to its weight.
pub fn share(account: &Arc<Account>, weight: u64) {
    METER.with(|meter| meter.share(account, weight));
}

/// Ends the current component, and continues with another component of the same account.
pub fn switch(component: Component) {
    METER.with(|meter| meter.switch(component));
}

/// Ends the current component, and charges the time since the last stamp to the component with
/// which the turn continues.
pub fn resume(component: Component) {
    METER.with(|meter| meter.component.set(component));
}

/// Returns the time since the last stamp, for an account that is not known yet.
#[must_use]
pub fn take() -> Ticks {
    METER.with(Meter::take)
}

/// Charges the ticks that [`take`] returned to an account.
pub fn charge(account: &Arc<Account>, component: Component, ticks: Ticks) {
    METER.with(|meter| meter.charge(account, component, ticks.0));
}

/// Adds to counters of an account.
pub fn count<const N: usize>(account: &Arc<Account>, counted: [(Count, u64); N]) {
    METER.with(|meter| {
        if meter.is_on.get() {
            meter.with_slot(account, |slot| {
                for (what, many) in counted {
                    slot.counts[what as usize] += many;
                }
            });
        }
    });
}

/// Reports that the thread has waited since its last stamp for work of another process, which used
/// this CPU time. The work is charged to the account of the current turn.
pub fn passed_elsewhere(usage_ns: u64) {
    METER.with(|meter| meter.passed_elsewhere(usage_ns));
}

/// The costs of the accounting itself.
#[derive(Clone, Copy, Debug)]
pub struct MeteringCosts {
    /// A stamp, in nanoseconds.
    pub stamp_ns: f64,
    /// A read of the thread's CPU clock, in nanoseconds.
    pub clock_read_ns: f64,
}

/// Measures what the accounting itself costs here.
#[must_use]
pub fn measure_metering() -> MeteringCosts {
    const STAMPS: u32 = 10_000;
    const READS: u32 = 200;
    let meter = Meter::new();
    meter.start(ThreadKind::General);
    let begin = cpu::monotonic_ns();
    for _ in 0..STAMPS / 2 {
        meter.switch(Component::Receive);
        meter.switch(Component::Control);
    }
    let stamped = cpu::monotonic_ns();
    for _ in 0..READS {
        std::hint::black_box(cpu::thread_ns());
    }
    let read = cpu::monotonic_ns();
    let each = |ns: u64, times: u32| ns as f64 / f64::from(times);
    MeteringCosts {
        stamp_ns: each(stamped - begin, STAMPS),
        clock_read_ns: each(read - stamped, READS),
    }
}

/// The amounts of one thread for one account that it has not added to the account yet.
#[derive(Default)]
struct Slot {
    /// The account; `None` if the slot contains nothing.
    account: Option<Arc<Account>>,
    ticks: Cells,
    counts: Counts,
}

struct Meter {
    is_on: Cell<bool>,
    thread: Cell<ThreadKind>,
    /// The last stamp.
    last: Cell<u64>,
    /// The slot to which the elapsed time is charged.
    slot: Cell<usize>,
    component: Cell<Component>,
    /// Whether there has been a turn since the thread woke.
    has_turned: Cell<bool>,
    turn_ticks: Cell<u64>,
    window_ticks: Cell<u64>,
    window_stamps: Cell<u64>,
    slots: RefCell<Vec<Slot>>,
    /// The slots that contain an amount.
    touched: RefCell<Vec<usize>>,
    /// The slots among which the current turn is divided, with their weights.
    shares: RefCell<Vec<(usize, u64)>>,
    window: Cell<Open>,
}

/// The window that is open.
#[derive(Clone, Copy, Default)]
struct Open {
    since_ticks: u64,
    since_cpu_ns: u64,
    /// The window is closed after this number of ticks with work, or of ticks in total.
    work_max: u64,
    wall_max: u64,
    /// The length of a tick in the last window, in nanoseconds.
    mean_ns: f64,
}

/// The two clocks at one instant.
#[derive(Clone, Copy)]
struct Clocks {
    ticks: u64,
    ns: u64,
}

/// The clocks at the time when the first thread was metered.
static BASE: OnceLock<Clocks> = OnceLock::new();

/// The length of a tick in nanoseconds. It becomes more accurate the longer the process runs.
fn ns_per_tick() -> f64 {
    let now = Clocks { ticks: cpu::ticks(), ns: cpu::monotonic_ns() };
    let base = BASE.get_or_init(|| now);
    let ticks = now.ticks.saturating_sub(base.ticks);
    if ticks == 0 {
        return 1.0;
    }
    now.ns.saturating_sub(base.ns) as f64 / ticks as f64
}

/// How a turn ended.
#[derive(Clone, Copy)]
struct TurnEnd {
    /// The component that it ended with.
    component: Component,
    usage_ns: u64,
}

impl Meter {
    fn new() -> Self {
        Self {
            is_on: Cell::new(false),
            thread: Cell::new(ThreadKind::General),
            last: Cell::new(0),
            slot: Cell::new(0),
            component: Cell::new(Component::Control),
            has_turned: Cell::new(false),
            turn_ticks: Cell::new(0),
            window_ticks: Cell::new(0),
            window_stamps: Cell::new(0),
            slots: RefCell::default(),
            touched: RefCell::default(),
            shares: RefCell::default(),
            window: Cell::new(Open::default()),
        }
    }

    /// The earlier work of the thread, if any, is charged to its first window.
    fn start(&self, thread: ThreadKind) {
        self.is_on.set(true);
        self.thread.set(thread);
        self.last.set(cpu::ticks());
        self.open_window(0, ns_per_tick());
        self.rest();
    }

    /// Called between two turns: the following time is the agent's own, unless a turn begins.
    fn rest(&self) {
        let agent = Account::agent();
        self.with_slot(agent, |_| {});
        self.slot.set(agent.slot());
        self.component.set(Component::Control);
    }

    fn waits(&self) {
        if !self.is_on.get() {
            return;
        }
        // After a turn only the way to the wait is left, and its time is part of the cost of
        // waiting.
        if !self.has_turned.get() {
            self.stamp();
        }
        self.close_if_due();
    }

    fn wakes(&self) {
        if self.is_on.get() {
            self.last.set(cpu::ticks());
            self.has_turned.set(false);
            self.rest();
            self.count_stamp();
        }
    }

    fn begin(&self, account: &Arc<Account>, component: Component) {
        if self.is_on.get() {
            self.with_slot(account, |_| {});
            self.slot.set(account.slot());
            self.component.set(component);
            self.turn_ticks.set(0);
            self.has_turned.set(true);
        }
    }

    /// Returns what is in the slot of the turn before it.
    fn begin_shares(&self) -> Cells {
        self.shares.borrow_mut().clear();
        self.slots.borrow().get(self.slot.get()).map_or_else(Cells::default, |slot| slot.ticks)
    }

    fn share(&self, account: &Arc<Account>, weight: u64) {
        if !self.is_on.get() {
            return;
        }
        self.with_slot(account, |_| {});
        let mut shares = self.shares.borrow_mut();
        match shares.iter_mut().find(|(slot, _)| *slot == account.slot()) {
            Some((_, sum)) => *sum += weight,
            None => shares.push((account.slot(), weight)),
        }
    }

    /// Ends a turn, and divides its time by weight.
    fn end_shared(&self, before: &Cells) {
        if !self.is_on.get() {
            return;
        }
        self.stamp();
        self.divide(before);
        self.end_stamped();
    }

    /// Divides what a turn has added to its slot among the shares.
    fn divide(&self, before: &Cells) {
        let of_turn = self.slot.get();
        let shares = self.shares.take();
        let all: u64 = shares.iter().map(|(_, weight)| weight).sum();
        let mut slots = self.slots.borrow_mut();
        let ticks = slots.get(of_turn).map_or_else(Cells::default, |slot| slot.ticks);
        for (slot, weight) in shares.iter().filter(|(slot, _)| *slot != of_turn) {
            for (component, (now, before)) in ticks.iter().zip(before).enumerate() {
                let part = u128::from(now.saturating_sub(*before)) * u128::from(*weight);
                let part = u64::try_from(part / u128::from(all.max(1))).unwrap_or(0);
                slots[of_turn].ticks[component] -= part;
                slots[*slot].ticks[component] += part;
            }
        }
        self.shares.replace(shares);
    }

    fn end(&self, begun: Component) -> TurnEnd {
        if !self.is_on.get() {
            return TurnEnd { component: begun, usage_ns: 0 };
        }
        self.stamp();
        self.end_stamped()
    }

    fn end_stamped(&self) -> TurnEnd {
        let component = self.component.get();
        let usage_ns = whole(self.turn_ticks.get() as f64 * self.window.get().mean_ns);
        self.close_if_due();
        self.rest();
        TurnEnd { component, usage_ns }
    }

    fn switch(&self, component: Component) {
        if self.is_on.get() && self.component.get() != component {
            self.stamp();
            self.component.set(component);
        }
    }

    fn take(&self) -> Ticks {
        if !self.is_on.get() {
            return Ticks::default();
        }
        let now = cpu::ticks();
        self.count_stamp();
        Ticks(now.saturating_sub(self.last.replace(now)))
    }

    fn charge(&self, account: &Arc<Account>, component: Component, ticks: u64) {
        if self.is_on.get() {
            self.with_slot(account, |slot| slot.ticks[component as usize] += ticks);
            self.window_ticks.set(self.window_ticks.get() + ticks);
        }
    }

    /// The waiting time is charged to no account. The work for which the thread waited is charged
    /// to the account.
    fn passed_elsewhere(&self, usage_ns: u64) {
        if !self.is_on.get() {
            return;
        }
        self.last.set(cpu::ticks());
        self.count_stamp();
        let slots = self.slots.borrow();
        if let Some(account) = slots.get(self.slot.get()).and_then(|slot| slot.account.as_ref()) {
            account.add_elsewhere(self.component.get(), self.thread.get(), usage_ns);
        }
    }

    /// Charges the time since the last stamp.
    fn stamp(&self) {
        let now = cpu::ticks();
        let ticks = now.saturating_sub(self.last.replace(now));
        let component = self.component.get();
        if let Some(slot) = self.slots.borrow_mut().get_mut(self.slot.get()) {
            slot.ticks[component as usize] += ticks;
        }
        self.turn_ticks.set(self.turn_ticks.get() + ticks);
        self.window_ticks.set(self.window_ticks.get() + ticks);
        self.count_stamp();
    }

    fn count_stamp(&self) {
        self.window_stamps.set(self.window_stamps.get() + 1);
    }

    fn with_slot<T>(&self, account: &Arc<Account>, work: impl FnOnce(&mut Slot) -> T) -> T {
        let mut slots = self.slots.borrow_mut();
        let at = account.slot();
        if slots.len() <= at {
            slots.resize_with(at + 1, Slot::default);
        }
        let slot = &mut slots[at];
        if slot.account.is_none() {
            slot.account = Some(Arc::clone(account));
            self.touched.borrow_mut().push(at);
        }
        work(slot)
    }

    fn close_if_due(&self) {
        let window = self.window.get();
        let passed = self.last.get().saturating_sub(window.since_ticks);
        if self.window_ticks.get() >= window.work_max || passed >= window.wall_max {
            self.close();
        }
    }

    /// Adds the window to the accounts.
    fn close(&self) {
        if OFF.load(Ordering::Relaxed) {
            // A policy has turned metering off after this thread started.
            self.is_on.set(false);
            self.slots.take();
            self.touched.take();
            self.shares.take();
            return;
        }
        let open = self.window.get();
        let now_cpu_ns = cpu::thread_ns();
        let ns_per_tick = ns_per_tick();
        let mut slots = self.slots.borrow_mut();
        let mut touched = self.touched.borrow_mut();
        let received = |at: &usize| slots[*at].ticks[Component::Receive as usize];
        let window = MeterWindow {
            cpu_ns: now_cpu_ns.saturating_sub(open.since_cpu_ns),
            ticks: self.window_ticks.take(),
            receive_ticks: touched.iter().map(received).sum(),
            ns_per_tick,
        };
        // Without ticks no account can be charged: the next window gets the CPU time.
        let Some(worth) = window.worth() else { return };
        for at in touched.drain(..) {
            let Slot { account, ticks, counts } = std::mem::take(&mut slots[at]);
            if let Some(account) = account {
                account.add(&worth.of(&ticks), &counts, self.thread.get());
            }
        }
        MeteringOverhead::all().add(self.window_stamps.take());
        self.open_window(now_cpu_ns, ns_per_tick);
        self.window.set(Open { mean_ns: worth.mean_ns, ..self.window.get() });
    }

    fn open_window(&self, since_cpu_ns: u64, ns_per_tick: f64) {
        let ticks = |ns: u64| whole(ns as f64 / ns_per_tick);
        self.window.set(Open {
            since_ticks: self.last.get(),
            since_cpu_ns,
            work_max: ticks(WINDOW_NS),
            wall_max: ticks(WINDOW_WALL_NS),
            mean_ns: ns_per_tick,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The time of an account since it was opened, in nanoseconds.
    fn sealing_ns(account: &Account) -> u64 {
        account.totals().usage[Component::Seal as usize].iter().sum()
    }

    /// Works for some microseconds.
    fn work() {
        let end = cpu::monotonic_ns() + 50_000;
        while cpu::monotonic_ns() < end {}
    }

    #[test]
    fn a_shared_turn_is_divided_by_weight() {
        let [whole, small, large] = ["whole", "small", "large"].map(Account::open);
        start(ThreadKind::General);
        shared_turn(&whole, Component::Receive, || {
            switch(Component::Seal);
            work();
            for (account, weight) in [(&small, 1), (&large, 2), (&large, 1)] {
                share(account, weight);
            }
        });
        publish();
        let [none, one, three] = [&whole, &small, &large].map(|account| sealing_ns(account));
        assert!(none <= 2, "only what the division has left: {none}");
        assert!(one > 1_000 && three.abs_diff(3 * one) <= 10, "{one} {three}");
    }

    #[test]
    fn a_shared_turn_without_shares_belongs_to_its_account() {
        let [before, after, shared] = ["before", "after", "shared"].map(Account::open);
        start(ThreadKind::General);
        let mut component = Component::Seal;
        turn(&before, &mut component, work);
        shared_turn(&before, Component::Seal, || share(&shared, 7));
        let divided = sealing_ns(&shared);
        shared_turn(&after, Component::Seal, work);
        publish();
        assert_eq!(divided, 0, "the window is open");
        assert!(sealing_ns(&before) > 1_000, "an earlier turn is not divided");
        assert!(sealing_ns(&after) > 1_000, "shares do not remain for the next turn");
    }
}
