//! What CPU time is spent on: the cells of the ledger, and how stamps become microseconds.
//!
//! A thread that works stamps a cheap clock wherever the kind of work changes, and adds the ticks
//! that have passed to the kind that ends. From time to time, a *window*, it reads its CPU clock
//! once and turns the window's ticks into nanoseconds so that they add up to what that clock
//! counted:
//!
//! ```text
//!   stamps        |receive|seal|   send   |  (waits: no ticks)  |receive|open|send|
//!   CPU clock     0 ----------------------- 9.7 us
//! ```
//!
//! * The clock counted less than the stamps: the thread was preempted in between. Every cell
//!   shrinks by the same factor.
//! * It counted more: what is over is the price of waiting, which has no stamps (the call that
//!   waits, the switch away and back). That belongs to what was waited for: the cells of
//!   [`Component::Receive`] share it; where nothing was received, all cells do.
//!
//! So each microsecond stands in one cell, and nothing that a metered thread does is left out but
//! the window that is still open.
//!
//! Units: ticks of whatever clock the caller stamps, nanoseconds of CPU time.
//! Not here: clocks, threads, who reads the cells.

/// What CPU time is spent on.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum Component {
    /// Accepting and dialling connections, and taking them apart.
    Accept,
    /// Handshakes, what they read and write included.
    Handshake,
    /// Making records: encryption.
    Seal,
    /// Opening records: decryption.
    Open,
    /// Waiting for bytes and reading them.
    Receive,
    /// Writing bytes. On loopback the kernel does the receiver's part of TCP in there too.
    Send,
    /// Finding the rule.
    Policy,
    /// Everything else: policy files, displays, name service, log.
    Control,
}

impl Component {
    /// All of them, in the order of displays.
    pub const ALL: [Self; 8] = [
        Self::Accept,
        Self::Handshake,
        Self::Seal,
        Self::Open,
        Self::Receive,
        Self::Send,
        Self::Policy,
        Self::Control,
    ];

    /// The word for it in displays, JSON and labels of metrics.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Accept => "accept",
            Self::Handshake => "handshake",
            Self::Seal => "seal",
            Self::Open => "open",
            Self::Receive => "receive",
            Self::Send => "send",
            Self::Policy => "policy",
            Self::Control => "control",
        }
    }
}

/// Where it was spent.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum CpuPlace {
    /// On a general CPU.
    General,
    /// On an engine.
    Engine,
    /// On a general CPU, though an engine could have done it.
    Eligible,
}

impl CpuPlace {
    /// All of them, in the order of displays.
    pub const ALL: [Self; 3] = [Self::General, Self::Engine, Self::Eligible];

    /// The word for it in displays, JSON and labels of metrics.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::General => "general",
            Self::Engine => "engine",
            Self::Eligible => "eligible",
        }
    }
}

/// Ticks, or nanoseconds, by component.
pub type Cells = [u64; Component::ALL.len()];

/// What is known of a window when it is closed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MeterWindow {
    /// What the thread's CPU clock counted.
    pub cpu_ns: u64,
    /// Ticks of all cells.
    pub ticks: u64,
    /// Those of them in [`Component::Receive`].
    pub receive_ticks: u64,
    /// Nanoseconds of a tick.
    pub ns_per_tick: f64,
}

/// What a tick of a window is worth, in nanoseconds of CPU time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TickValue {
    /// In most cells.
    pub others_ns: f64,
    /// In [`Component::Receive`].
    pub receive_ns: f64,
    /// Over all cells.
    pub mean_ns: f64,
}

impl MeterWindow {
    /// What its ticks are worth; `None` if it has none.
    #[must_use]
    pub fn worth(&self) -> Option<TickValue> {
        if self.ticks == 0 {
            return None;
        }
        let cpu_ns = self.cpu_ns as f64;
        let ticks = self.ticks as f64;
        let mean_ns = cpu_ns / ticks;
        let over_ns = cpu_ns - ticks * self.ns_per_tick;
        if over_ns <= 0.0 || self.receive_ticks == 0 {
            return Some(TickValue { others_ns: mean_ns, receive_ns: mean_ns, mean_ns });
        }
        let others_ns = self.ns_per_tick;
        Some(TickValue {
            others_ns,
            receive_ns: others_ns + over_ns / self.receive_ticks as f64,
            mean_ns,
        })
    }
}

impl TickValue {
    /// The cells in nanoseconds.
    #[must_use]
    pub fn of(&self, ticks: &Cells) -> Cells {
        let mut worth = Cells::default();
        for component in Component::ALL {
            let at = component as usize;
            let each =
                if component == Component::Receive { self.receive_ns } else { self.others_ns };
            worth[at] = whole(ticks[at] as f64 * each);
        }
        worth
    }
}

/// Nanoseconds without their fraction: what is lost is below a nanosecond a cell and window.
#[must_use]
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "neither negative nor anywhere near 2^64 ns, which are 584 years"
)]
pub fn whole(ns: f64) -> u64 {
    ns.max(0.0) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn cells(ticks: &[(Component, u64)]) -> Cells {
        let mut cells = Cells::default();
        for (component, ticks) in ticks {
            cells[*component as usize] += ticks;
        }
        cells
    }

    fn worth(cells: &Cells, cpu_ns: u64, ns_per_tick: f64) -> Cells {
        let receive_ticks = cells[Component::Receive as usize];
        let window = MeterWindow { cpu_ns, ticks: cells.iter().sum(), receive_ticks, ns_per_tick };
        window.worth().expect("it has ticks").of(cells)
    }

    #[test]
    fn preemption_shrinks_all_cells_alike() {
        let ticks = cells(&[(Component::Seal, 1000), (Component::Send, 3000)]);
        let ns = worth(&ticks, 1000, 0.5);
        assert_eq!(ns, cells(&[(Component::Seal, 250), (Component::Send, 750)]));
    }

    #[test]
    fn the_price_of_waiting_is_received() {
        let ticks = cells(&[(Component::Seal, 1000), (Component::Receive, 1000)]);
        let ns = worth(&ticks, 1700, 0.5);
        assert_eq!(ns, cells(&[(Component::Seal, 500), (Component::Receive, 1200)]));
    }

    #[test]
    fn where_nothing_was_received_all_cells_share_it() {
        let ticks = cells(&[(Component::Accept, 1000), (Component::Handshake, 3000)]);
        let ns = worth(&ticks, 4000, 0.5);
        assert_eq!(ns, cells(&[(Component::Accept, 1000), (Component::Handshake, 3000)]));
    }

    #[test]
    fn a_window_without_ticks_has_no_cells_to_fill() {
        let window = MeterWindow { cpu_ns: 5, ticks: 0, receive_ticks: 0, ns_per_tick: 1.0 };
        assert_eq!(window.worth(), None);
    }

    proptest! {
        #[test]
        fn cells_add_up_to_the_clock(
            ticks in prop::array::uniform8(0_u64..1 << 40),
            cpu_ns in 0_u64..1 << 40,
            tenths in 1_u32..100,
        ) {
            prop_assume!(ticks.iter().sum::<u64>() > 0);
            let ns: u64 = worth(&ticks, cpu_ns, f64::from(tenths) / 10.0).iter().sum();
            // A fraction below a nanosecond is lost in each cell, and a double has 53 bits.
            prop_assert!(ns.abs_diff(cpu_ns) <= 8 + (cpu_ns >> 40), "{ns} {cpu_ns}");
        }
    }
}
