//! Handles a request of the command `tacit trace` in the agent. Checks whether the user of the
//! command may trace the selected connections. Then receives the descriptors of the trace files.
//!
//! ```text
//!   command ── request ──────────────> checks
//!           <── number of files ──────
//!           ── descriptors ──────────> starts the trace
//!           <── started ──────────────
//!           ── end of file ──────────> ends the trace, if the trace has not ended before
//!           <── report ───────────────
//! ```
//!
//! The command opens the files after the checks, so a refused trace creates no files. The agent
//! repeats the checks when it has received the descriptors, because the policy may have changed.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tacit_core::policy::text::nearest_word;
use tacit_sys::descriptor::{self, ReceivedDescriptors};
use tacit_sys::socket::PeerCredentials;
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::reply::{Reply, send};
use crate::address;
use crate::live::Live;
use crate::log::Log;
use crate::session::ConnectionTable;
use crate::session::trace::{
    TRACE_BYTES_MAX, TRACE_DURATION_MAX, TRACES_MAX, ThreadRights, TraceEndReason, TraceFiles,
    TraceOptions, TraceRefused, TraceSelection, TraceStarted, log_refused,
};

/// How long the command may take to open its files.
const FILES_WAIT_MAX: Duration = Duration::from_secs(60);

/// The request of `tacit trace`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct TraceRequest {
    /// The connections.
    pub of: TraceSelection,
    /// The name of the file for the bytes. Its descriptor is sent first.
    pub pcap: Option<String>,
    /// The name of the file for the keys.
    pub keylog: Option<String>,
    /// The duration of the trace, in milliseconds.
    pub duration_ms: u64,
    /// The maximum number of bytes in all files together.
    pub bytes_max: u64,
}

impl TraceRequest {
    fn files(&self) -> usize {
        [&self.pcap, &self.keylog].into_iter().flatten().count()
    }
}

/// Starts traces for clients of the control socket.
#[derive(Clone, Debug)]
pub struct Tracer {
    /// The installed policy.
    pub live: Arc<ArcSwap<Live>>,
    /// The connections.
    pub table: Arc<ConnectionTable>,
    /// The policy file, whose owner may trace.
    pub policy: PathBuf,
    /// The log in which traces are reported.
    pub log: Log,
}

impl Tracer {
    /// Why a client may not have this trace.
    fn check(&self, request: &TraceRequest, uid: u32) -> Result<(), String> {
        let live = self.live.load();
        if !live.policy.agent.trace {
            return Err("the policy disables traces: `trace = false` in [agent]\n    \
                        fix: set `trace = true` and run `tacit reload`"
                .to_owned());
        }
        self.check_user(uid)?;
        let duration = Duration::from_millis(request.duration_ms);
        if duration.is_zero() || duration > TRACE_DURATION_MAX {
            return Err(format!(
                "the duration of a trace must be more than 0 and at most {} s",
                TRACE_DURATION_MAX.as_secs()
            ));
        }
        if request.bytes_max == 0 || request.bytes_max > TRACE_BYTES_MAX {
            return Err(format!(
                "the size of a trace must be more than 0 and at most \
                                {TRACE_BYTES_MAX} bytes"
            ));
        }
        if request.files() == 0 {
            return Err(
                "a trace needs a file for packets (--pcap) or for keys (--keylog)".to_owned()
            );
        }
        if matches!(request.of, TraceSelection::Ike(_)) && request.pcap.is_some() {
            return Err(
                "a trace of IPsec tunnels can contain only keys, not packets\n    fix: record the \
                 encrypted packets with tcpdump, and use --keylog without --pcap"
                    .to_owned(),
            );
        }
        if self.table.traces().len() >= TRACES_MAX {
            return Err(TraceRefused::TooMany.to_string());
        }
        self.check_selection(&live, &request.of)
    }

    /// The owner of the policy decides who reads connections; root can in any case.
    fn check_user(&self, uid: u32) -> Result<(), String> {
        let file = self.policy.display();
        let owner = std::fs::metadata(&self.policy)
            .map_err(|error| format!("cannot determine the owner of the policy {file}: {error}"))?
            .uid();
        if uid == 0 || uid == owner {
            return Ok(());
        }
        let permitted_user =
            if owner == 0 { "root".to_owned() } else { address::user_name(owner) + " or root" };
        let [user, owner] = [uid, owner].map(address::user_name);
        Err(format!(
            "user {user} is not permitted to trace connections under the policy {file}, which \
             belongs to {owner}\n    \
             fix: run the command as {permitted_user}"
        ))
    }

    fn check_selection(&self, live: &Live, of: &TraceSelection) -> Result<(), String> {
        match of {
            TraceSelection::Rule(name) => {
                let names: Vec<_> = live.rules.iter().map(|rule| rule.name()).collect();
                if names.contains(&name.as_str()) {
                    return Ok(());
                }
                let next = match nearest_word(name, &names) {
                    Some(nearest) => format!("did you mean `{nearest}`?"),
                    None => "use the name of a rule that `tacit show rules` lists".to_owned(),
                };
                Err(format!("the installed policy has no rule `{name}`\n    fix: {next}"))
            }
            TraceSelection::Ike(name) if !live.policy.ikes.contains_key(name) => Err(format!(
                "the installed policy has no [ike.{name}]\n    fix: use the name of an [ike.NAME] \
                 that `tacit show policy` lists"
            )),
            TraceSelection::Connection(id) if self.table.find(*id).is_none() => Err(format!(
                "no open connection has the id {id}\n    \
                 fix: use an id that `tacit show connections` lists"
            )),
            // A run may start later.
            TraceSelection::Connection(_) | TraceSelection::Run(_) | TraceSelection::Ike(_) => {
                Ok(())
            }
        }
    }
}

/// Serves a client that requests a trace, until the trace has ended.
///
/// # Errors
/// The client is gone, or sends something else than its descriptors.
pub(super) async fn serve(
    mut stream: UnixStream,
    tracer: &Tracer,
    request: TraceRequest,
    peer: &PeerCredentials,
) -> io::Result<()> {
    let uid = peer.uid;
    let user = address::user_name(uid);
    let pid = peer.pid_or_zero();
    let refuse = |reason: String| {
        log_refused(&tracer.log, &request.of, &user, pid, &reason);
        Reply::error(reason)
    };
    if let Err(reason) = tracer.check(&request, uid) {
        return send(&mut stream, refuse(reason)).await;
    }
    send(&mut stream, Reply::ok(json!({ "descriptors": request.files() }))).await?;
    let Some(files) = timeout(FILES_WAIT_MAX, receive_files(&stream, &request)).await?? else {
        return Ok(());
    };
    // A policy may have been installed since the first check.
    if let Err(reason) = tracer.check(&request, uid) {
        return send(&mut stream, refuse(reason)).await;
    }
    let options = TraceOptions {
        of: request.of.clone(),
        user: user.clone(),
        pid,
        pcap: request.pcap.clone(),
        keylog: request.keylog.clone(),
        duration: Duration::from_millis(request.duration_ms),
        bytes_max: request.bytes_max,
    };
    let rights = match tracer.live.load().policy.agent.sandbox {
        true => ThreadRights::GivenUp,
        false => ThreadRights::Kept,
    };
    let started = tracer.table.traces().start(options, files, rights, &tracer.log);
    let mut started = match started {
        Ok(started) => started,
        Err(refused) => return send(&mut stream, refuse(refused.to_string())).await,
    };
    let trace = &started.trace;
    let open = tracer.table.trace_open(trace);
    if send(&mut stream, Reply::written(&TraceStarted { id: trace.id, open })).await.is_err() {
        trace.end(TraceEndReason::Requested);
    }
    let report = tokio::select! {
        biased;
        report = &mut started.report => report,
        () = client_end(&stream) => {
            trace.end(TraceEndReason::Requested);
            started.report.await
        }
    };
    let reply = match report {
        Ok(report) => Reply::written(&report),
        Err(_) => Reply::error("the thread that writes the trace failed; this is a bug in tacit"),
    };
    // The command may have ended; the log has the report.
    let _ = send(&mut stream, reply).await;
    Ok(())
}

/// Receives the descriptors in one message; `None`: the command could not open its files.
async fn receive_files(
    stream: &UnixStream,
    request: &TraceRequest,
) -> io::Result<Option<TraceFiles>> {
    let receive = || descriptor::receive(stream, &mut [0; 1]);
    let ReceivedDescriptors { bytes, descriptors } =
        stream.async_io(Interest::READABLE, receive).await?;
    if bytes == 0 {
        return Ok(None);
    }
    if descriptors.len() != request.files() {
        let error = "the client that requested a trace sent the wrong number of descriptors for \
                     the trace files";
        return Err(io::Error::new(io::ErrorKind::InvalidData, error));
    }
    let mut files = descriptors.into_iter().map(|file: OwnedFd| File::from(file));
    let capture = request.pcap.as_ref().and_then(|_| files.next());
    Ok(Some(TraceFiles { capture, key_log: files.next() }))
}

/// Waits until the client has ended its side of the stream.
async fn client_end(stream: &UnixStream) {
    let mut ignored = [0; 64];
    loop {
        if stream.readable().await.is_err() {
            return;
        }
        match stream.try_read(&mut ignored) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return,
        }
    }
}
