//! `tacit learn`: observes the connections of this host for some time, and writes a first policy
//! that permits them.
//!
//! The command changes nothing on the host. Every five seconds, it lists the connected sockets. In
//! between, it reads copies of the packets that accept connections, so that it also sees short
//! ones. Other copied packets show which names programs look up, and where servers begin TLS.
//!
//! The copied packets contain data of strangers. Only [`SeenPacket`] parses them.
//!
//! Limits: [`SEARCHES_MAX`] searches for programs in a second, and those of [`LearntTraffic`]. The
//! command is for the network namespace in which it runs.

mod observer;

use std::fmt;
use std::io::{self, IsTerminal as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use tacit_core::learn::{LearntTraffic, policy_text};
use tacit_core::message_id::MessageId;
use tacit_core::policy::parse_duration;
use tacit_sys::watch::watch;
use tokio::io::Interest;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{MissedTickBehavior, interval};

use crate::exit::{EXIT_FAILURE, EXIT_OK, complain, fail, print, warn, with_fix};
use crate::output_file;
use crate::runtime;
use observer::Observer;

/// The longest observation.
const OBSERVATION_MAX: Duration = Duration::from_secs(31 * 86_400);
/// The time between two lists of sockets, and between two lines about the progress.
const LIST_INTERVAL: Duration = Duration::from_secs(5);
/// The maximum number of packets that are read before other work.
const PACKETS_MAX: usize = 256;

/// The options of `tacit learn`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tacit learn --for 1h -o host.toml
  tacit learn --for 1d --unit postgresql.service -o postgresql.toml
  tacit learn                        press Ctrl-C to end, and read the policy

The policy is for `tacit agent --host`: a rule for each destination and for each port at which
programs of this host accept connections. A comment tells who used it, how often, and whether the
server spoke TLS. The command needs CAP_NET_RAW to read packets, and CAP_SYS_PTRACE to see the
programs of other users.")]
pub struct LearnArgs {
    /// End after this time, 31d at most; Ctrl-C ends earlier
    #[arg(long = "for", value_name = "DURATION", default_value = "1h", value_parser = duration)]
    duration: Duration,
    /// Observe only the programs of this systemd unit
    #[arg(long, value_name = "UNIT")]
    unit: Option<String>,
    /// Write the policy to this file [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Why nothing can be observed.
#[derive(Debug)]
enum LearnError {
    /// Packets cannot be copied.
    Packets(io::Error),
    /// Sockets cannot be listed.
    Sockets(io::Error),
    /// The command cannot wait for events.
    Wait(io::Error),
}

impl LearnError {
    /// The identifier of the message.
    fn id(&self) -> MessageId {
        match self {
            Self::Packets(_) => MessageId("packets-not-read"),
            Self::Sockets(_) => MessageId("sockets-not-listed"),
            Self::Wait(_) => MessageId("no-thread"),
        }
    }
}

impl fmt::Display for LearnError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (error, fix) = match self {
            Self::Packets(error) => {
                (format!("cannot read packets: {error}"), "run the command as root")
            }
            Self::Sockets(error) => (
                format!("cannot list the sockets of this host: {error}"),
                "run the command as root, on a kernel with socket diagnosis (CONFIG_INET_DIAG)",
            ),
            Self::Wait(error) => return write!(f, "cannot wait for packets: {error}"),
        };
        f.write_str(&with_fix(&error, fix))
    }
}

/// Runs the command.
#[must_use]
pub fn run(args: &LearnArgs) -> ExitCode {
    let started = Instant::now();
    let traffic = match observe(args) {
        Ok(traffic) => traffic,
        Err(error) => return fail(error.id(), error, EXIT_FAILURE),
    };
    let policy = policy_text(&traffic, started.elapsed());
    let Some(path) = &args.output else { return print(policy, EXIT_OK) };
    let shown = path.display();
    if let Err(error) = output_file::write(path, &policy, &[]) {
        let text = format_args!("cannot write {shown}: {error}");
        // Otherwise what was observed would be lost.
        complain(&policy);
        return fail(MessageId("file-failed"), text, EXIT_FAILURE);
    }
    let rules = traffic.places().count();
    let plural = if rules == 1 { "" } else { "s" };
    complain(format_args!("{shown}: {rules} rule{plural}\nnext step: tacit check {shown}"));
    EXIT_OK.into()
}

/// Observes until the time is over or a signal arrives.
fn observe(args: &LearnArgs) -> Result<LearntTraffic, LearnError> {
    let mut observer = Observer::open(args.unit.clone())?;
    complain(format_args!(
        "observing this host for {} s: press Ctrl-C to end, and to write the policy",
        args.duration.as_secs()
    ));
    let runtime = runtime::builder().map_err(LearnError::Wait)?.enable_all().build();
    let work = work(&mut observer, args.duration);
    runtime.map_err(LearnError::Wait)?.block_on(work).map_err(LearnError::Wait)?;
    observer.finish().map_err(LearnError::Wait)?;
    if observer.packets_lost() > 0 {
        warn(
            MessageId("packets-lost"),
            format_args!(
                "{} packets were not read: short connections and names may be missing",
                observer.packets_lost()
            ),
        );
    }
    Ok(observer.into_traffic())
}

async fn work(observer: &mut Observer, duration: Duration) -> io::Result<()> {
    let packets = watch(observer.packets(), Interest::READABLE)?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut lists = interval(LIST_INTERVAL);
    lists.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let started = Instant::now();
    let end = tokio::time::sleep(duration);
    tokio::pin!(end);
    let shows_progress = io::stderr().is_terminal();
    loop {
        tokio::select! {
            () = &mut end => return Ok(()),
            _ = terminate.recv() => return Ok(()),
            _ = interrupt.recv() => return Ok(()),
            _ = lists.tick() => {
                observer.list_sockets();
                if shows_progress {
                    complain(progress(observer, started.elapsed(), duration));
                }
            }
            ready = packets.readable() => {
                let mut ready = ready?;
                for _ in 0..PACKETS_MAX {
                    if !observer.read_packet()? {
                        ready.clear_ready();
                        break;
                    }
                }
            }
        }
    }
}

fn progress(observer: &Observer, elapsed: Duration, duration: Duration) -> String {
    let places = observer.traffic().places();
    let connections: u64 = places.map(|(_, place)| place.connections).sum();
    format!(
        "learn: {} s of {} s, {} rules for {connections} connections",
        elapsed.as_secs(),
        duration.as_secs(),
        observer.traffic().places().count()
    )
}

fn duration(text: &str) -> Result<Duration, String> {
    let duration = parse_duration(text).filter(|duration| !duration.is_zero());
    let duration = duration.ok_or("write a duration such as 10m, 1h or 7d")?;
    if duration > OBSERVATION_MAX { Err("the maximum is 31d".to_owned()) } else { Ok(duration) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_observation_has_a_limit() {
        assert_eq!(duration("31d"), Ok(OBSERVATION_MAX));
        assert!(duration("32d").is_err() && duration("0s").is_err() && duration("x").is_err());
    }
}
