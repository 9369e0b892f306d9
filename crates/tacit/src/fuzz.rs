//! Provides one function for each fuzz target. A fuzz target is a parser of messages from other
//! processes, such as commands, launchers, helpers and other agents.
//!
//! Each function accepts any bytes, and panics if it finds an error in the parser. If tacit also
//! writes messages of this kind, the function serialises the parsed message, parses the result, and
//! compares the two messages.

use std::fmt::Debug;
use std::io::{self, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, LazyLock};

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tacit_core::link_frame::{self, LinkFrame, ParsedFrame};
use tacit_core::policy::{Policy, explain as explain_flow, parse};
use tokio::runtime::{Builder, Runtime};
use tokio::task::LocalSet;

use crate::agent;
use crate::control::metrics::server::is_answered;
use crate::control::{Answer, Request, server};
use crate::explain::parse_flow;
use crate::launch::oci::{self, HookTask};
use crate::run::Outside;
use crate::run::channel::{adopt, read_frame};
use crate::run::link::protocol::{
    ANSWER_BYTES_MAX, BoundEvent, LinkAnswer, LinkRequest, ListenOrder, REQUEST_BYTES_MAX,
};
use crate::run::protocol::{self, FromLauncher, LAUNCHER_BYTES_MAX, REPLY_BYTES_MAX, ToLauncher};

/// The maximum number of sockets of a run in an input.
const SOCKETS_MAX: usize = 16;

/// Parses a line of the control socket.
///
/// # Panics
/// A request changes when it is written and parsed again, or an error has no text.
pub fn control(input: &[u8]) {
    let Ok(line) = std::str::from_utf8(input) else { return };
    match server::parse(line) {
        Ok(request) => survives::<Request>(&request),
        Err(reason) => assert!(!reason.is_empty()),
    }
}

/// Parses the state of a container that an OCI runtime sends to a hook.
///
/// # Panics
/// A container without a process or a name is protected, or an error has no text.
pub fn oci_state(input: &[u8]) {
    match oci::parse(input) {
        Ok(HookTask::Protect { pid, name }) => {
            assert!(pid > 0 && !name.is_empty() && !name.contains(char::is_control));
        }
        Ok(HookTask::Nothing) => {}
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// Parses the head of an HTTP request for metrics.
///
/// # Panics
/// A request other than a GET of the metrics gets them.
pub fn metrics(input: &[u8]) {
    let answered = with_runtime(|runtime| runtime.block_on(is_answered(input)));
    assert!(!answered || input.starts_with(b"GET /metrics"), "{:?}", input.escape_ascii());
}

/// Parses frames of the enrolment socket. The first byte of the input selects the reader: the
/// agent, which reads frames of a launcher, or the launcher.
///
/// # Panics
/// A frame changes when it is written and parsed again.
pub fn enrolment(input: &[u8]) {
    let Some((&choice, frames)) = input.split_first() else { return };
    match choice % 2 {
        0 => read_all::<FromLauncher>(frames, LAUNCHER_BYTES_MAX),
        _ => read_blocking::<ToLauncher>(frames),
    }
}

/// Parses frames of a link. The first byte of the input selects the reader: the server, which reads
/// requests, the agent of a run, or (`f`) either server of a link between kernels.
///
/// # Panics
/// A frame changes when it is written and parsed again.
pub fn link(input: &[u8]) {
    let Some((&choice, frames)) = input.split_first() else { return };
    match (choice, choice % 2) {
        (b'f', _) => read_link_frames(frames),
        (_, 0) => read_all::<LinkRequest>(frames, REQUEST_BYTES_MAX),
        (_, _) => read_all::<LinkAnswer>(frames, ANSWER_BYTES_MAX),
    }
}

fn read_link_frames(mut bytes: &[u8]) {
    while let Ok(Some(ParsedFrame { frame, bytes: length })) = link_frame::parse(bytes) {
        let mut again = Vec::new();
        assert!(link_frame::append(frame, &mut again));
        assert_eq!(link_frame::parse(&again), Ok(Some(ParsedFrame { frame, bytes: length })));
        if let LinkFrame::Message(text) = frame {
            survives_if_parsed::<LinkRequest>(text);
            survives_if_parsed::<LinkAnswer>(text);
            survives_if_parsed::<ListenOrder>(text);
            survives_if_parsed::<BoundEvent>(text);
        }
        bytes = &bytes[length..];
    }
}

fn survives_if_parsed<T: DeserializeOwned + Serialize + PartialEq + Debug>(text: &[u8]) {
    if let Ok(message) = serde_json::from_slice::<T>(text) {
        survives(&message);
    }
}

/// Parses frames of the helper channel. The first byte of the input selects the reader: the agent,
/// which reads frames of a helper, or the helper.
///
/// # Panics
/// A frame changes when it is written and parsed again.
pub fn helper(input: &[u8]) {
    let Some((&choice, frames)) = input.split_first() else { return };
    match choice % 2 {
        0 => read_all::<protocol::HelperReply>(frames, REPLY_BYTES_MAX),
        _ => read_blocking::<protocol::HelperRequest>(frames),
    }
}

/// Parses an answer of an agent to its successor: the addresses of its sockets, or its runs.
/// Resumes the runs with as many sockets as they need.
///
/// # Panics
/// A run changes when it is written and parsed again.
pub fn handover(input: &[u8]) {
    let Ok(Answer::Ok(answer)) = serde_json::from_slice(input) else { return };
    if let Ok(announced) = agent::parse_announced(answer.clone()) {
        assert_eq!(agent::parse_announced(value(&announced)).ok(), Some(announced));
    }
    for state in agent::parse_runs(answer).unwrap_or_default() {
        let written = value(&state);
        let again = agent::parse_runs(Value::Array(vec![written.clone()])).unwrap_or_default();
        assert_eq!(again.iter().map(value).collect::<Vec<_>>(), [written]);
        let sockets = sockets(state.sockets.min(SOCKETS_MAX));
        with_runtime(|runtime| {
            // Dropped with the tasks of the run.
            LocalSet::new().block_on(runtime, async {
                if let Ok(resumed) = state.resume(sockets, None, Arc::default(), Outside::Host) {
                    let _ = resumed.run.learnt();
                }
            });
        });
    }
}

/// Parses arguments of `tacit explain`, one on each line, and evaluates a policy with rules of all
/// kinds. An input without a time is evaluated at a fixed time, so that the result is the same on
/// every day.
///
/// # Panics
/// There is no explanation.
pub fn explain(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let time = if text.contains("--at") { &[][..] } else { &["--at", "2026-01-05T12:00:00Z"] };
    let words = ["--policy", "policy.toml"].iter().chain(time).copied().chain(text.lines());
    let Some(flow) = parse_flow(words) else { return };
    assert!(!explain_flow(&POLICY, &flow).to_string().is_empty());
}

static POLICY: LazyLock<Policy> = LazyLock::new(|| {
    let text = r#"
version = 1
[[rule]]
name = "db"
direction = "outbound"
remote = ["*.corp.example", "10.0.0.0/8", "fe80::/10"]
remote-ports = [53, "8000-8999"]
program = "/usr/bin/psql"
user = "1000"
permit = true
[[rule]]
name = "in"
direction = "inbound"
listen = "0.0.0.0:992"
local-ports = 23
when = { days = ["mon"], hours = "22:00-06:00", zone = "Europe/Berlin" }
permit = true
[[rule]]
name = "fixed"
listen = "unix:@x"
when = { hours = "00:00-24:00", zone = "UTC" }
deny = true
"#;
    let parsed = parse(text);
    parsed.policy.unwrap_or_else(|| {
        panic!("the fuzz target has an invalid policy: {:?}", parsed.diagnostics)
    })
});

/// Reads frames as an agent does, until there are no more.
fn read_all<T: DeserializeOwned + Serialize + PartialEq + Debug>(bytes: &[u8], bytes_max: usize) {
    let Ok(near) = sent(bytes) else { return };
    with_runtime(|runtime| {
        runtime.block_on(async {
            let Ok(mut stream) = adopt(near) else { return };
            while let Ok(Some(frame)) = read_frame::<T>(&mut stream, bytes_max).await {
                survives(&frame.message);
            }
        });
    });
}

/// Reads frames as launchers and helpers do, until there are no more.
fn read_blocking<T: DeserializeOwned + Serialize + PartialEq + Debug>(bytes: &[u8]) {
    let Ok(near) = sent(bytes) else { return };
    while let Ok(Some(frame)) = protocol::read::<T>(&near) {
        survives(&frame.message);
    }
}

/// Returns a socket from which exactly these bytes can be read.
fn sent(bytes: &[u8]) -> io::Result<UnixStream> {
    let (near, mut far) = UnixStream::pair()?;
    // Messages that do not fit into the kernel's buffer are dropped, because nothing reads them
    // yet.
    far.set_nonblocking(true)?;
    far.write_all(bytes)?;
    far.shutdown(Shutdown::Write)?;
    Ok(near)
}

fn sockets(count: usize) -> Vec<OwnedFd> {
    let pairs = (0..count).filter_map(|_| UnixStream::pair().ok());
    pairs.map(|(near, _)| near.into()).collect()
}

/// Checks that a message is the same after it was written and read.
fn survives<T: DeserializeOwned + Serialize + PartialEq + Debug>(one: &T) {
    assert_eq!(serde_json::from_value::<T>(value(one)).ok().as_ref(), Some(one));
}

fn value(one: &impl Serialize) -> Value {
    serde_json::to_value(one)
        .unwrap_or_else(|error| panic!("a value cannot be serialised: {error}"))
}

fn with_runtime<T>(run: impl FnOnce(&Runtime) -> T) -> T {
    thread_local! {
        static RUNTIME: Runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap_or_else(|error| panic!("the fuzz target could not create a runtime: {error}"));
    }
    RUNTIME.with(run)
}
