//! What an agent gives up once everything is open, and before it reads what strangers send.
//!
//! ```text
//! control, log, reload    files: directories of policy, credentials, log, sockets    Landlock
//!                         system calls: all but those that no agent needs            seccomp
//! data workers, engines   the same, and no file, program or thread is opened         seccomp
//! all                     capabilities: those that the policy takes
//! ```
//!
//! The threads that are there already enter it here; those to come inherit it. A successor starts
//! from the supervisor, with everything, and enters a sandbox of its own: that is how an agent gets
//! at a directory that its policy did not name before.
//!
//! What the kernel does not have is missing from the sandbox; `tacit show limits` says so.

mod reach;
mod rights;

use std::io;
use std::path::Path;

use serde_json::{Value, json};
use tacit_core::policy::{Diagnostic, Policy};
use tacit_sys::sandbox::{self, CapabilitySet, FilesConfined, Reach, WorkerRights, WorkerSockets};

use reach::Reachable;

use super::AgentOptions;
use crate::live::directory_of;
use crate::log::{Event, Log};
use crate::signer::Client;

/// What is in force.
#[derive(Clone, Debug)]
pub(super) struct Sandbox {
    files: Files,
    has_filters: bool,
    kept: CapabilitySet,
    /// Those that workers make.
    sockets: WorkerSockets,
}

/// The files of an agent.
#[derive(Clone, Debug)]
enum Files {
    /// These.
    Within(Reachable),
    /// All: the kernel has no Landlock.
    AllKernel,
    /// All: rules ask which program a client is, and Landlock leaves no look at other processes.
    AllForPrograms,
}

impl Files {
    /// Takes all others from the calling thread and from that of the log.
    fn confine(reachable: Reachable, log: &Log) -> Self {
        match confine_threads(&reachable.files, log) {
            Ok(FilesConfined::Wholly | FilesConfined::InPart) => Self::Within(reachable),
            Ok(FilesConfined::No) => Self::AllKernel,
            Err(error) => {
                warn_of("files", &error, log);
                Self::AllKernel
            }
        }
    }
}

/// Leaves this thread and that of the log these files.
fn confine_threads(files: &Reach, log: &Log) -> io::Result<FilesConfined> {
    let rules = files.rules()?;
    let copy = rules.copy()?;
    // It reports nothing: the kernel is the same as below.
    log.on_its_thread(move || drop(copy.confine_thread()));
    rules.confine_thread()
}

impl Sandbox {
    /// Takes files and system calls from all threads there are, and from those to come.
    pub(super) fn enter(
        policy: &Policy,
        options: &AgentOptions,
        congestion_control: Option<&str>,
        log: &Log,
    ) -> Self {
        let reachable = reach::of(policy, options);
        let kept = rights::kept(policy, options, &reachable.files, congestion_control);
        log.on_its_thread(move || drop(sandbox::keep_capabilities(kept & rights::OF_LOG)));
        let files = if reach::looks_at_programs(policy) {
            Files::AllForPrograms
        } else {
            Files::confine(reachable, log)
        };
        let filtered = sandbox::filter_process();
        if let Err(error) = &filtered
            && sandbox::has_call_filters()
        {
            warn_of("system-calls", error, log);
        }
        Self { files, has_filters: filtered.is_ok(), kept, sockets: rights::sockets(policy) }
    }

    /// Leaves the calling thread the capabilities that the policy takes; what it starts from now on
    /// has no more.
    pub(super) fn drop_rights(&self, log: &Log) {
        if let Err(error) = sandbox::keep_capabilities(self.kept) {
            warn_of("capabilities", &error, log);
        }
    }

    /// Leaves a signer that runs already the files that the agent reaches, to be read.
    pub(super) fn confine_signer(&self, signer: &Client, log: &Log) {
        let Files::Within(Reachable { files, .. }) = &self.files else { return };
        let read = files.read.iter().chain(&files.write).cloned().collect();
        if let Err(error) = signer.confine(read) {
            warn_of("signer", &error, log);
        }
    }

    /// What workers keep when they begin to serve.
    pub(super) fn of_workers(&self) -> WorkerRights {
        WorkerRights { capabilities: self.kept & rights::OF_WORKERS, sockets: self.sockets }
    }

    /// Refuses a policy that takes what was given up.
    ///
    /// # Errors
    /// The first thing in it that this agent cannot have any more.
    pub(super) fn check(&self, policy: &Policy, file: &Path) -> Result<(), Diagnostic> {
        if let Files::Within(reachable) = &self.files {
            reach::check(&reachable.files, policy, &directory_of(file))?;
        }
        rights::check(self.kept, policy)?;
        if self.has_filters { rights::check_sockets(self.sockets, policy) } else { Ok(()) }
    }

    /// Rows of `tacit show limits`.
    pub(super) fn show(&self) -> [Value; 3] {
        let refused = "refused by the kernel";
        let files = match &self.files {
            Files::Within(reachable) => reachable.text.clone(),
            Files::AllKernel => "all: this kernel has no Landlock".to_owned(),
            Files::AllForPrograms => "all: rules for clients say `program`".to_owned(),
        };
        let calls = if self.has_filters {
            "of workers: no open, no exec, no fork"
        } else {
            "all: this kernel does not filter them"
        };
        [
            json!({ "name": "sandbox-files", "max": files, "beyond": refused }),
            json!({ "name": "sandbox-calls", "max": calls, "beyond": refused }),
            json!({ "name": "sandbox-capabilities", "max": rights::text(self.kept),
                    "beyond": refused }),
        ]
    }
}

/// The same for an agent whose policy wants no sandbox.
pub(super) fn show_none() -> Value {
    json!({ "name": "sandbox", "max": "none: [agent] sandbox = false" })
}

fn warn_of(part: &str, error: &io::Error, log: &Log) {
    let event = Event::new("sandbox-incomplete").field("part", part).field("error", error);
    log.warn(event.field("next", "the agent serves without this part of its sandbox"));
}
