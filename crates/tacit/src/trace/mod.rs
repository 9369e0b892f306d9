//! `tacit trace`: writes the decrypted bytes of connections, or the keys that decrypt them, to
//! files.
//!
//! The command opens the files and passes their descriptors to the agent. The agent writes to the
//! files. The trace ends when it reaches its limit of time or bytes, or when the command ends.

mod files;

use std::fmt;
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use clap::Args;
use tacit_core::message_id::MessageId;
use tacit_core::policy::{parse_duration, parse_size};
use tacit_sys::descriptor;
use tokio::signal::unix::{SignalKind, signal};

use crate::control::client::{self, ClientError};
use crate::control::trace::TraceRequest;
use crate::control::{Request, private_agents};
use crate::exit::{EXIT_FAILURE, EXIT_OK, complain, fail, print};
use crate::session::trace::{
    TRACE_BYTES_MAX, TRACE_DURATION_MAX, TraceReport, TraceSelection, TraceStarted,
};

use files::{FileError, OutputFile, Overwrite};

/// The options of `tacit trace`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tacit trace web --pcap web.pcapng
  tacit trace 17 --pcap - | wireshark -k -i -
  tacit trace --run backup --pcap backup.pcapng --keylog backup.keys --for 30s
  tacit trace web --keylog web.keys --for 1h
  tshark -r encrypted.pcap -o tls.keylog_file:web.keys
  tacit trace --ike branch --keylog branch.keys --for 1h
  sed 's/^/-o/' branch.keys | xargs -d '\\n' tshark -r encrypted.pcap

The files show what passes through the connections, passwords included. Only root and the owner of
the policy file may trace; `trace = false` in [agent] disables traces. The log reports every
trace.")]
pub struct TraceArgs {
    /// Trace the connections of this rule, or the connection with this id
    #[arg(value_name = "RULE|ID", required_unless_present_any = ["run", "ike"])]
    of: Option<String>,
    /// Trace the connections of the run with this name or id; the run may start later
    #[arg(long, value_name = "RUN", conflicts_with = "of")]
    run: Option<String>,
    /// Trace the IPsec tunnels to the peer [ike.NAME]; requires --keylog
    #[arg(long, value_name = "NAME", requires = "keylog",
          conflicts_with_all = ["of", "run", "pcap"])]
    ike: Option<String>,
    /// Write the decrypted bytes to this file, as pcapng; `-` is standard output
    #[arg(long, value_name = "FILE", required_unless_present_any = ["keylog", "ike"])]
    pcap: Option<PathBuf>,
    /// Write the keys of handshakes that begin from now on to this file, in the format of
    /// `SSLKEYLOGFILE`. With --ike, write the keys of tunnels, as settings for `tshark -o`
    #[arg(long, value_name = "FILE")]
    keylog: Option<PathBuf>,
    /// End after this time, 24h at most
    #[arg(long = "for", value_name = "DURATION", default_value = "5m", value_parser = duration)]
    duration: Duration,
    /// End when the files together have this size, 1GiB at most
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = size)]
    max_bytes: u64,
    /// Replace files that exist
    #[arg(long)]
    overwrite: bool,
    /// The control socket of the agent
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,
}

/// Why there is no complete trace.
#[derive(Debug)]
enum TraceError {
    Client(ClientError),
    File(FileError),
    /// The connection to the agent failed.
    Connection(io::Error),
    /// The command cannot wait for signals.
    Signals(io::Error),
}

impl TraceError {
    /// The identifier of the message.
    fn id(&self) -> MessageId {
        match self {
            Self::Client(error) => error.id(),
            Self::File(error) => error.id(),
            Self::Connection(_) => MessageId("trace-incomplete"),
            Self::Signals(_) => MessageId("no-thread"),
        }
    }
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Client(error) => write!(f, "{error}"),
            Self::File(error) => write!(f, "{error}"),
            Self::Connection(error) => write!(
                f,
                "the trace ended, because the connection to the agent failed: {error}\n    fix: \
                 check whether the agent still runs, and run the command again"
            ),
            Self::Signals(error) => write!(f, "cannot wait for signals: {error}"),
        }
    }
}

impl From<ClientError> for TraceError {
    fn from(error: ClientError) -> Self {
        Self::Client(error)
    }
}

/// Runs the command.
#[must_use]
pub fn run(args: &TraceArgs) -> ExitCode {
    let report = match trace(args) {
        Ok(report) => report,
        Err(error) => return fail(error.id(), error, EXIT_FAILURE),
    };
    let text = summary(args, &report);
    if report.error.is_some() {
        return fail(MessageId("trace-incomplete"), text, EXIT_FAILURE);
    }
    if args.is_on_standard_output() {
        complain(text);
        EXIT_OK.into()
    } else {
        print(format!("{text}\n"), EXIT_OK)
    }
}

impl TraceArgs {
    fn is_on_standard_output(&self) -> bool {
        self.pcap.as_ref().is_some_and(|path| path.as_os_str() == "-")
    }

    fn selection(&self) -> TraceSelection {
        if let Some(ike) = &self.ike {
            return TraceSelection::Ike(ike.clone());
        }
        match (&self.of, &self.run) {
            (Some(of), _) => match of.parse() {
                Ok(id) => TraceSelection::Connection(id),
                Err(_) => TraceSelection::Rule(of.clone()),
            },
            (None, run) => TraceSelection::Run(run.clone().unwrap_or_default()),
        }
    }

    fn request(&self) -> TraceRequest {
        let name = |path: &Option<PathBuf>| path.as_ref().map(|path| path.display().to_string());
        TraceRequest {
            of: self.selection(),
            pcap: name(&self.pcap),
            keylog: name(&self.keylog),
            duration_ms: u64::try_from(self.duration.as_millis()).unwrap_or(u64::MAX),
            bytes_max: self.max_bytes,
        }
    }

    fn open_files(&self) -> Result<Vec<OutputFile>, TraceError> {
        let overwrite = if self.overwrite { Overwrite::Replace } else { Overwrite::Refuse };
        let mut files = Vec::new();
        for path in [&self.pcap, &self.keylog].into_iter().flatten() {
            match OutputFile::open(path, overwrite) {
                Ok(file) => files.push(file),
                Err(error) => {
                    files.into_iter().for_each(OutputFile::discard);
                    return Err(TraceError::File(error));
                }
            }
        }
        Ok(files)
    }
}

/// Requests the trace, and waits until it has ended.
fn trace(args: &TraceArgs) -> Result<TraceReport, TraceError> {
    let path = private_agents::for_display(args.control.as_deref());
    let stream = client::connect(&path)?;
    client::ask_on(&stream, &Request::Trace(args.request()))?;
    // The agent permits the trace. Only now are the files created.
    let files = args.open_files()?;
    let descriptors: Vec<BorrowedFd<'_>> = files.iter().map(AsFd::as_fd).collect();
    descriptor::send(&stream, b"\n", &descriptors).map_err(TraceError::Connection)?;
    let started: TraceStarted = match client::read_answer(&stream).and_then(client::typed) {
        Ok(started) => started,
        Err(error) => {
            files.into_iter().for_each(OutputFile::discard);
            return Err(error.into());
        }
    };
    drop(files);
    end_on_signals(&stream).map_err(TraceError::Signals)?;
    let TraceRequest { of, .. } = args.request();
    let open_connections = match of {
        TraceSelection::Ike(_) => String::new(),
        _ => format!(" ({} open connection{})", started.open, plural(started.open as u64)),
    };
    let duration = args.duration;
    complain(format_args!(
        "tracing {of} for {duration:?}{open_connections}: press Ctrl-C to end the trace"
    ));
    Ok(client::typed(client::read_answer(&stream)?)?)
}

/// A signal ends the trace, but not the command, which still prints the report.
fn end_on_signals(stream: &UnixStream) -> io::Result<()> {
    let stream = stream.try_clone()?;
    let runtime = crate::runtime::builder()?.enable_all().build()?;
    let inside = runtime.enter();
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hangup = signal(SignalKind::hangup())?;
    drop(inside);
    let wait = async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            _ = hangup.recv() => {}
        }
        // The agent may already have ended the trace.
        let _ = stream.shutdown(Shutdown::Write);
    };
    thread::Builder::new().name("signals".to_owned()).spawn(move || runtime.block_on(wait))?;
    Ok(())
}

/// What the trace has written to the requested files.
fn summary(args: &TraceArgs, report: &TraceReport) -> String {
    let TraceReport { connections, packets, dropped, keys, keys_dropped, bytes, .. } = report;
    let mut text = format!("the trace ended: {}; ", report.why());
    if args.pcap.is_some() {
        text.push_str(&format!("{connections} connection{}, ", plural(*connections)));
        text.push_str(&format!("{packets} packet{}, ", plural(*packets)));
    }
    if args.keylog.is_some() {
        text.push_str(&format!("{keys} key{}, ", plural(*keys)));
    }
    text.push_str(&format!("{bytes} bytes"));
    if dropped + keys_dropped > 0 {
        text.push_str(&format!(
            "; {dropped} packet{} and {keys_dropped} key{} are missing, because the trace reached \
             --max-bytes, or the agent could not write the files fast enough",
            plural(*dropped),
            plural(*keys_dropped)
        ));
    }
    text
}

fn plural(count: u64) -> &'static str {
    if count == 1 { "" } else { "s" }
}

fn duration(text: &str) -> Result<Duration, String> {
    let duration = parse_duration(text).filter(|duration| !duration.is_zero());
    let duration = duration.ok_or("write a duration such as 30s, 5m or 1h30m")?;
    if duration > TRACE_DURATION_MAX {
        return Err(format!("the maximum duration is {} h", TRACE_DURATION_MAX.as_secs() / 3600));
    }
    Ok(duration)
}

fn size(text: &str) -> Result<u64, String> {
    let size = parse_size(text).filter(|size| *size > 0);
    let size = size.ok_or("write a size such as 512KiB, 64MiB or 1GiB")?;
    if size > TRACE_BYTES_MAX { Err("the maximum size is 1GiB".to_owned()) } else { Ok(size) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_those_of_the_agent() {
        assert_eq!(size("1GiB"), Ok(TRACE_BYTES_MAX));
        assert!(size("2GiB").is_err() && size("0KiB").is_err() && size("12").is_err());
        assert_eq!(duration("24h"), Ok(TRACE_DURATION_MAX));
        assert!(duration("25h").is_err() && duration("0s").is_err());
    }
}
