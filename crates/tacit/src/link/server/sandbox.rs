//! Confines the server of links after it has opened its sockets.
//!
//! ```text
//! threads          limit                                                          by
//! all              no system calls that the server never needs                    seccomp
//! all              only the directories of policy, certificates, log and sockets  Landlock
//! all              only capabilities that the policy needs
//! all except one   no new programs and processes                                  seccomp
//! ```
//!
//! The exception is the thread that starts signers. A *signer* is a process that holds private
//! keys.
//!
//! If the kernel does not support a part of the sandbox, the server runs without this part. `tacit
//! link info` shows the missing part.

use std::path::{Path, PathBuf};

use tacit_core::policy::{LinkConnect, Policy};
use tacit_sys::sandbox::{self, CapabilitySet, FilesConfined, ProcessSockets};

use crate::confine::{self, Reachable, confine_threads, policy_files};
use crate::link::mirror::MissingLimit;
use crate::log::{Event, Log};
use crate::run::link::protocol::LinkSandbox;
use crate::signer;

/// Kept by every server, because runs may listen at ports below 1024.
const EVERY: CapabilitySet = CapabilitySet::NET_BIND_SERVICE;

/// The sandbox of a server of links.
#[derive(Debug)]
pub(super) struct ServerSandbox {
    /// The files that it can open; `None`: all.
    reachable: Option<Reachable>,
    has_filters: bool,
    kept: CapabilitySet,
}

impl ServerSandbox {
    /// Limits files, system calls and capabilities of all existing and future threads. `sockets`
    /// are the paths of the links. [`Self::confine_thread`] completes this.
    pub(super) fn enter(
        policy: &Policy,
        file: &Path,
        sockets: &[PathBuf],
        directory_of_log: Option<PathBuf>,
        log: &Log,
    ) -> Self {
        let named = policy_files(policy, file);
        let reachable = Reachable::of(&named, sockets, directory_of_log);
        let kept = kept(policy, &named, &reachable);
        let keep = move || drop(sandbox::keep_capabilities(kept & confine::OF_LOG));
        log.on_its_thread(keep).wait();
        let reachable = match confine_threads(&reachable.files, log) {
            Ok(FilesConfined::Wholly | FilesConfined::InPart) => Some(reachable),
            Ok(FilesConfined::No) => None,
            Err(error) => {
                warn_of("files", &error, log);
                None
            }
        };
        let filtered = sandbox::filter_process(sockets_of(policy));
        if let Err(error) = &filtered
            && sandbox::has_call_filters()
        {
            warn_of("system-calls", error, log);
        }
        if let Err(error) = sandbox::keep_capabilities(kept) {
            warn_of("capabilities", &error, log);
        }
        Self { reachable, has_filters: filtered.is_ok(), kept }
    }

    /// Limits a running signer to reading the files of the server.
    pub(super) fn confine_signer(&self, signer: &signer::Client, log: &Log) {
        let Some(Reachable { files, .. }) = &self.reachable else { return };
        let read = files.read.iter().chain(&files.write).cloned().collect();
        if let Err(error) = signer.confine(read) {
            warn_of("signer", &error, log);
        }
    }

    /// Denies the calling thread, and those that it starts later, to start programs. The thread
    /// that starts signers must exist.
    pub(super) fn confine_thread(&self, log: &Log) {
        if self.has_filters
            && let Err(error) = sandbox::filter_programs()
        {
            warn_of("programs", &error, log);
        }
    }

    /// Rejects a policy with files that the sandbox does not allow.
    pub(super) fn check(&self, policy: &Policy, file: &Path) -> Result<(), String> {
        let Some(Reachable { files: reach, .. }) = &self.reachable else { return Ok(()) };
        for path in policy_files(policy, file) {
            if let Some(directory) = Reachable::unreadable(reach, &path) {
                return Err(format!(
                    "the link server cannot read {path}: its sandbox allows only the directories \
                     that the policy used when the server started, and {directory} is not one of \
                     them. Restart `tacit link serve`",
                    path = path.display(),
                    directory = directory.display()
                ));
            }
        }
        Ok(())
    }

    /// What is in force, for displays.
    pub(super) fn shown(&self) -> LinkSandbox {
        let files = self.reachable.as_ref();
        let calls = "the link server cannot execute programs or fork, and cannot trace or signal \
                     other processes";
        LinkSandbox {
            files: files
                .map_or_else(|| confine::NO_LANDLOCK.to_owned(), |files| files.text.clone()),
            calls: if self.has_filters { calls } else { confine::NO_SECCOMP }.to_owned(),
            capabilities: confine::names_of(self.kept),
        }
    }
}

/// What `tacit link info` shows if the policy turns the sandbox off.
pub(super) fn shown_off() -> LinkSandbox {
    let off = "the sandbox is off: the policy has sandbox = false in [agent]".to_owned();
    LinkSandbox { files: off.clone(), calls: off.clone(), capabilities: off }
}

/// The capabilities of this process that the policy needs.
fn kept(policy: &Policy, named: &[PathBuf], reachable: &Reachable) -> CapabilitySet {
    let own = sandbox::capabilities().unwrap_or_else(|_| CapabilitySet::empty());
    if own.is_empty() {
        return own;
    }
    let write = &reachable.files.write;
    let mut kept = EVERY | confine::with_only(EVERY, || confine::missing_for_files(named, write));
    let connects_to_file =
        |link: &tacit_core::policy::Link| matches!(link.connect, Some(LinkConnect::Unix(_)));
    if policy.links.values().any(connects_to_file) {
        // The socket may be another user's.
        kept |= CapabilitySet::DAC_OVERRIDE;
    }
    kept & own
}

fn sockets_of(policy: &Policy) -> ProcessSockets {
    let connects_to_vsock =
        policy.links.values().any(|link| matches!(link.connect, Some(LinkConnect::Vsock(_))));
    if connects_to_vsock { ProcessSockets::WithVsock } else { ProcessSockets::WithoutVsock }
}

/// Logs what the process in the namespace of a link could not set up.
pub(super) fn report_mirror(missing: &[MissingLimit], log: &Log) {
    for MissingLimit { part, error } in missing {
        let event = Event::new("sandbox-incomplete").field("part", part).field("error", error);
        log.warn(event.field(
            "next",
            "a process of the link server continues without a part of its sandbox: the field \
             `part` names this part",
        ));
    }
}

fn warn_of(part: &str, error: &std::io::Error, log: &Log) {
    let event = Event::new("sandbox-incomplete").field("part", part).field("error", error);
    log.warn(event.field(
        "next",
        "the link server continues without the part of its sandbox that the field `part` names; \
         `tacit link info` shows the state of the sandbox",
    ));
}
