//! `tacit learn`: observes the connections of this host for some time, and writes a first policy
//! that permits them.
//!
//! The command changes nothing on the host. Every five seconds, it lists the connected sockets. In
//! between, it reads copies of the packets with which connections begin, so that it also sees short
//! ones. Other copied packets show which names programs look up, and where servers begin TLS.
//!
//! The copied packets contain data of strangers. So before the command reads them, it gives up
//! most capabilities, and can no longer start programs.
//!
//! Limits: 200 ms for searches for programs in a second, and those of
//! [`LearntTraffic`](tacit_core::learn::LearntTraffic). The command is for the network namespace in
//! which it runs.

mod observer;

use std::fmt;
use std::io::{self, IsTerminal as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use tacit_core::learn::policy_text;
use tacit_core::message_id::MessageId;
use tacit_core::policy::{parse_duration, show_duration};
use tacit_sys::sandbox::{self, CapabilitySet, ProcessSockets};
use tacit_sys::watch::watch;
use tokio::io::Interest;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{MissedTickBehavior, interval_at};

use crate::exit::{EXIT_FAILURE, EXIT_OK, complain, fail, print, warn, with_fix};
use crate::output_file;
use crate::runtime;
use observer::Observer;

/// The longest observation.
const OBSERVATION_MAX: Duration = Duration::from_secs(31 * 86_400);
/// The capabilities with which the command recognises sockets of an agent, finds programs of other
/// users, and writes its file.
const KEPT: CapabilitySet = CapabilitySet::NET_ADMIN
    .union(CapabilitySet::SYS_PTRACE)
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::CHOWN)
    .union(CapabilitySet::FOWNER);
/// The time between two lists of sockets, and between two lines about the progress.
const LIST_INTERVAL: Duration = Duration::from_secs(5);
/// How long packets are read before other work.
const PACKETS_TIME_MAX: Duration = Duration::from_millis(20);

/// The options of `tacit learn`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tacit learn --for 1h -o host.toml
  tacit learn --for 1d --unit postgresql.service -o postgresql.toml
  tacit learn                        prints the policy when you press Ctrl-C

The policy is for `tacit agent --host`: a rule for each destination, and for each port at which
programs of this host accept connections. Comments list the programs and users, the number of
connections, and how many of them used TLS. The command sees TCP connections and connected UDP
sockets of this network namespace; tacit(1) lists what it does not see. It needs CAP_NET_RAW to read
packets, and CAP_SYS_PTRACE to find the programs of other users.")]
pub struct LearnArgs {
    /// Observe for this time, 31d at most; Ctrl-C ends earlier, and the policy is still written
    #[arg(long = "for", value_name = "DURATION", default_value = "1h", value_parser = duration)]
    duration: Duration,
    /// Observe only the programs of this systemd unit; `NAME` means `NAME.service`
    #[arg(long, value_name = "UNIT", value_parser = unit)]
    unit: Option<String>,
    /// Write the policy to this file [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Replace the file if it exists
    #[arg(long, requires = "output")]
    overwrite: bool,
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
            Self::Packets(error) => (
                format!("cannot read packets: {error}"),
                "run the command as root, or with CAP_NET_RAW",
            ),
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
    if let Some(path) = args.output.as_deref()
        && let Err((id, error)) = check_output(path, args)
    {
        return fail(id, format_args!("cannot write {}: {error}", path.display()), EXIT_FAILURE);
    }
    let started = Instant::now();
    let observer = match observe(args) {
        Ok(observer) => observer,
        Err(error) => return fail(error.id(), error, EXIT_FAILURE),
    };
    warn_of_gaps(&observer);
    let policy = policy_text(observer.traffic(), started.elapsed());
    let Some(path) = &args.output else { return print(policy, EXIT_OK) };
    let shown = path.display();
    if let Err(error) = output_file::write(path, &policy, &[]) {
        // Otherwise what was observed would be lost.
        complain(&policy);
        let text = format_args!("cannot write {shown}: {error}");
        return fail(MessageId("file-failed"), text, EXIT_FAILURE);
    }
    let rules = observer.traffic().places().count();
    let plural = if rules == 1 { "" } else { "s" };
    complain(format_args!("wrote {rules} rule{plural} to {shown}\nnext step: tacit check {shown}"));
    EXIT_OK.into()
}

/// Checks before the observation whether the file can be written after it.
fn check_output(path: &Path, args: &LearnArgs) -> Result<(), (MessageId, String)> {
    match std::fs::metadata(path) {
        Ok(found) if found.is_file() && !args.overwrite => {
            let text = "the file exists\n    fix: name another file, or use --overwrite";
            Err((MessageId("file-exists"), text.to_owned()))
        }
        Ok(found) if found.is_dir() => {
            let text = "this is a directory\n    fix: name a file";
            Err((MessageId("file-failed"), text.to_owned()))
        }
        Ok(_) => Ok(()),
        Err(_) => output_file::check_new(path).map_err(|text| (MessageId("file-failed"), text)),
    }
}

/// Warns about what was not observed.
fn warn_of_gaps(observer: &Observer) {
    if observer.packets_lost() > 0 {
        let lost = observer.packets_lost();
        let text = format_args!(
            "the host was too busy: {lost} packets were not seen, so rules and names may be missing"
        );
        warn(MessageId("packets-lost"), text);
    }
    if let Some(error) = observer.list_error() {
        let text = format_args!("a list of sockets failed, so rules may be missing: {error}");
        warn(MessageId("sockets-not-listed"), text);
    }
    if observer.traffic().places().next().is_none() {
        let text = "no connection was observed, so the policy has no rule";
        warn(MessageId("nothing-observed"), text);
    }
}

/// Observes until the time is over or a signal arrives.
fn observe(args: &LearnArgs) -> Result<Observer, LearnError> {
    let mut observer = Observer::open(args.unit.clone())?;
    if !sandbox::capabilities().is_ok_and(|all| all.contains(CapabilitySet::SYS_PTRACE)) {
        let text = "without CAP_SYS_PTRACE, programs are not found, only users and units";
        warn(MessageId("programs-not-found"), text);
    }
    confine();
    let duration = show_duration(args.duration);
    complain(format_args!(
        "observing the connections of this network namespace for {duration}: press Ctrl-C to end \
         earlier; the policy is written in both cases"
    ));
    let runtime = runtime::builder().map_err(LearnError::Wait)?.enable_all().build();
    let work = work(&mut observer, args.duration);
    let ended = runtime.map_err(LearnError::Wait)?.block_on(work);
    if let Err(error) = ended.and_then(|()| observer.finish()) {
        let text = format_args!("the observation ended early: {error}");
        warn(MessageId("packets-not-read"), text);
    }
    Ok(observer)
}

/// Gives up rights that only a hostile packet could use.
fn confine() {
    let limits = [
        ("capabilities", sandbox::keep_uninherited_capabilities(KEPT)),
        ("system calls", sandbox::filter_process(ProcessSockets::WithoutVsock)),
        ("programs", sandbox::filter_programs()),
    ];
    for (limit, result) in limits {
        if let Err(error) = result {
            let text = format_args!("the sandbox does not limit {limit}: {error}");
            warn(MessageId("sandbox-incomplete"), text);
        }
    }
}

async fn work(observer: &mut Observer, duration: Duration) -> io::Result<()> {
    let packets = watch(observer.packets(), Interest::READABLE)?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hangup = signal(SignalKind::hangup())?;
    // The first list is that of `Observer::open`.
    let mut lists = interval_at(tokio::time::Instant::now() + LIST_INTERVAL, LIST_INTERVAL);
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
            _ = hangup.recv() => return Ok(()),
            _ = lists.tick() => {
                observer.list_sockets();
                if shows_progress {
                    complain(progress(observer, started.elapsed(), duration));
                }
            }
            ready = packets.readable() => {
                let mut ready = ready?;
                let until = Instant::now() + PACKETS_TIME_MAX;
                while Instant::now() < until {
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
        "learn: {}s of {}: {connections} connections, {} rules",
        elapsed.as_secs(),
        show_duration(duration),
        observer.traffic().places().count()
    )
}

/// The name of a unit with its suffix.
fn unit(text: &str) -> Result<String, String> {
    let is_letter = |c: char| c.is_ascii_alphanumeric() || ":-_.\\@".contains(c);
    if text.is_empty() || !text.chars().all(is_letter) {
        return Err("write the name of a unit, such as postgresql.service".to_owned());
    }
    Ok(if text.contains('.') { text.to_owned() } else { format!("{text}.service") })
}

fn duration(text: &str) -> Result<Duration, String> {
    let duration = parse_duration(text).filter(|duration| !duration.is_zero());
    let duration = duration.ok_or("write a duration in d, h, m and s, such as 10m, 1h30m or 7d")?;
    if duration > OBSERVATION_MAX { Err("the maximum is 31d".to_owned()) } else { Ok(duration) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_observation_has_a_limit() {
        assert_eq!(duration("31d"), Ok(OBSERVATION_MAX));
        assert!(duration("32d").is_err() && duration("0s").is_err() && duration("x").is_err());
        assert_eq!(unit("postgresql").as_deref(), Ok("postgresql.service"));
        assert_eq!(unit("a@b.socket").as_deref(), Ok("a@b.socket"));
        assert!(unit("").is_err() && unit("a*").is_err() && unit("system.slice/a").is_err());
    }
}
