//! Measures how much CPU time a thread uses for each rule and each kind of work, such as
//! encryption.
//!
//! It is expensive to read the CPU clock of a thread. So when the kind of work changes, the thread
//! reads only a *timestamp* from a clock that is cheap to read. A *window* is a short interval. At
//! the end of each window, the thread reads its CPU clock once. Then it converts the timestamps of
//! the window to CPU time:
//!
//! ```text
//!   timestamps    |receive|seal|   send   |  (waits: not counted) |receive|open|send|
//!   CPU clock     0 ----------------------- 9.7 us
//! ```
//!
//! If the timestamps show more time than the CPU clock, another thread has used the CPU meanwhile.
//! Then all times of the window are reduced by the same factor. If the timestamps show less time
//! than the CPU clock, the thread used the rest of the CPU time to enter and leave its waits. The
//! rest is charged to [`Component::Receive`].
//!
//! This module does not read clocks, because the caller passes the times.

/// A kind of work that uses CPU time.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum Component {
    /// Accepting, dialling and closing connections.
    Accept,
    /// Handshakes, including their reads and writes.
    Handshake,
    /// Sealing (encrypting) records.
    Seal,
    /// Opening (decrypting) records.
    Open,
    /// Waiting for bytes and reading them.
    Receive,
    /// Writing bytes. On loopback this includes the receiver's part of TCP, which the kernel does
    /// during the write.
    Send,
    /// Finding the rule.
    Policy,
    /// Everything else: policy files, displays, name service, log.
    Control,
}

impl Component {
    /// All components, in the order of displays.
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

    /// Returns the word in displays, JSON and metric labels.
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

/// The kind of CPU that was used.
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
    /// On a general CPU, although an engine could have done the work.
    Eligible,
}

impl CpuPlace {
    /// All of them, in the order of displays.
    pub const ALL: [Self; 3] = [Self::General, Self::Engine, Self::Eligible];

    /// Returns the word in displays, JSON and metric labels.
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

/// The measurements of a closed window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MeterWindow {
    /// The time that the thread's CPU clock measured.
    pub cpu_ns: u64,
    /// The ticks of all cells.
    pub ticks: u64,
    /// The ticks in [`Component::Receive`].
    pub receive_ticks: u64,
    /// Nanoseconds per tick.
    pub ns_per_tick: f64,
}

/// The CPU time of one tick in a window, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TickValue {
    /// The time of a tick in all cells except [`Component::Receive`].
    pub others_ns: f64,
    /// The time of a tick in [`Component::Receive`].
    pub receive_ns: f64,
    /// The mean over all cells.
    pub mean_ns: f64,
}

impl MeterWindow {
    /// Returns the CPU time of a tick; `None` if the window has no ticks.
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
    /// Converts the cells from ticks to nanoseconds.
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

/// Rounds down to nanoseconds; the error is below a nanosecond for each cell and window.
#[must_use]
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the number of nanoseconds is not negative, and is far below 2^64 (584 years)"
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
            // In each cell a fraction below a nanosecond is lost, and a double has only 53 bits.
            prop_assert!(ns.abs_diff(cpu_ns) <= 8 + (cpu_ns >> 40), "{ns} {cpu_ns}");
        }
    }
}
