//! `tacit show cpus`: shows for each CPU its threads, its load, how long threads wait for the CPU,
//! and its AES and SHA instructions. Also shows the speed of each cipher suite.
//!
//! ```text
//!   agent: engines, workers, runs by CPU ─┐
//!   sample.rs: kernel counters, read twice┼─> display.rs: table, JSON
//!   instructions.rs, speed.rs ────────────┘   (tacit doctor uses both files too)
//! ```
//!
//! The command itself reads the kernel's counters in `/proc`, because the agent cannot open these
//! files in its sandbox. The command also measures the cipher suites itself, so that the
//! measurement does not delay the agent.
//!
//! The kernel's counters are read twice. The time between the readings is `INTERVAL_DEFAULT`, or
//! the user's `--interval`. The measurement of each suite takes `speed::TRIAL_TIME`.

mod display;
mod instructions;
mod sample;
mod speed;

use std::fmt;
use std::io;
use std::path::Path;
use std::time::Duration;

use tacit_core::message_id::MessageId;
use tacit_tls::measure::CannotMeasure;

pub use self::display::{
    CpuDisplay, CpusDisplay, CryptoDisplay, InstructionDisplay, RunOnCpu, SuiteDisplay,
};
use self::sample::Look;
pub use self::sample::WaitSource;
use crate::control::client::{self, ClientError};
use crate::control::display::cpus::CpuUsers;
use crate::control::{Display, Request};
use crate::engine::ThreadPurpose;

/// The time between the two readings of the kernel's counters.
const INTERVAL_DEFAULT: Duration = Duration::from_secs(1);

/// Why CPUs cannot be shown.
#[derive(Debug)]
pub enum CpusError {
    /// The agent does not answer.
    Agent(ClientError),
    /// The kernel's files cannot be read.
    Kernel(io::Error),
    /// The speed of suites cannot be measured.
    Speed(CannotMeasure),
}

impl CpusError {
    /// The identifier of the message.
    #[must_use]
    pub fn id(&self) -> MessageId {
        match self {
            Self::Agent(error) => error.id(),
            Self::Kernel(_) => MessageId("cpus-unreadable"),
            Self::Speed(_) => MessageId("suite-not-measured"),
        }
    }
}

impl fmt::Display for CpusError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Agent(error) => write!(f, "{error}"),
            Self::Kernel(error) => write!(
                f,
                "cannot read the state of the CPUs: {error}\n    fix: run this command where /proc \
                 and /sys are mounted"
            ),
            Self::Speed(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for CpusError {}

/// The CPUs of this machine with the threads and runs of the agent at `control`, measured for
/// `interval`.
///
/// # Errors
/// See [`CpusError`].
pub fn show(control: &Path, interval: Option<Duration>) -> Result<CpusDisplay, CpusError> {
    let request = Request::Show { what: Display::Cpus };
    // Without an agent there is no reason to wait.
    let users: CpuUsers = client::ask_typed(control, &request).map_err(CpusError::Agent)?;
    let before = Look::take().map_err(CpusError::Kernel)?;
    std::thread::sleep(interval.unwrap_or(INTERVAL_DEFAULT));
    let after = Look::take().map_err(CpusError::Kernel)?;
    let engines = users.threads.iter().filter(|thread| thread.kind == ThreadPurpose::Engine);
    let engines: Vec<_> = engines.filter_map(|thread| thread.cpu).collect();
    let crypto = crypto(&engines)?;
    Ok(CpusDisplay::new(&users, &after.since(&before), crypto))
}

/// The instructions for AES and SHA, and the speed of each suite, measured on none of the CPUs of
/// `engines` if there are others.
///
/// # Errors
/// See [`CpusError`].
pub fn crypto(engines: &[usize]) -> Result<CryptoDisplay, CpusError> {
    let features = tacit_sys::processors::features().map_err(CpusError::Kernel)?;
    Ok(CryptoDisplay {
        instructions: instructions::of(std::env::consts::ARCH, &features),
        suites: speed::suites(engines).map_err(CpusError::Speed)?,
    })
}
