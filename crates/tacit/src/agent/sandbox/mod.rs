//! Confines the agent to a sandbox that limits files, system calls and capabilities. The agent
//! enters the sandbox when all sockets and files are open, and before it serves the first client.
//!
//! ```text
//! control, log, reload    only directories of policy, credentials, log and sockets   Landlock
//!                         no calls such as ptrace, mount and reboot                  seccomp
//! data workers, engines   also: no opening of files, no new programs or threads      seccomp
//! all threads             only capabilities that the policy needs
//! ```
//!
//! New threads inherit the sandbox. A sandbox cannot be extended. If a new policy needs another
//! directory, the operator must run `tacit restart`, which starts a successor with another sandbox.
//!
//! If the kernel does not support a part of the sandbox, the agent runs without this part. `tacit
//! show limits` reports the missing part.

mod reach;
mod rights;

use std::io;
use std::path::Path;

use tacit_core::policy::{Diagnostic, Policy, SourcePosition};
use tacit_sys::sandbox::{
    self, CapabilitySet, FilesConfined, ProcessSockets, WorkerRights, WorkerSockets,
};

pub(super) use reach::RESTART;

use super::AgentOptions;
use crate::confine::{self, Reachable};
use crate::control::display::limits::LimitDisplay;
use crate::ike::IkeDriver;
use crate::live::directory_of;
use crate::log::{Event, Log};
use crate::signer::Client;

/// The sandbox that is in force.
#[derive(Clone, Debug)]
pub(super) struct Sandbox {
    files: Files,
    has_filters: bool,
    kept: CapabilitySet,
    /// The kinds of sockets that workers may create.
    sockets: WorkerSockets,
}

/// The files that an agent can open.
#[derive(Clone, Debug)]
enum Files {
    /// Only these files and directories.
    Within(Reachable),
    /// All, because the kernel has no Landlock.
    AllKernel,
    /// All, because the agent must find the programs of clients, which Landlock does not allow.
    AllForPrograms,
}

impl Files {
    /// Limits the calling thread and the log thread to these files.
    fn confine(reachable: Reachable, log: &Log) -> Self {
        match confine::confine_threads(&reachable.files, log) {
            Ok(FilesConfined::Wholly | FilesConfined::InPart) => Self::Within(reachable),
            Ok(FilesConfined::No) => Self::AllKernel,
            Err(error) => {
                warn_of("files", &error, log);
                Self::AllKernel
            }
        }
    }
}

impl Sandbox {
    /// Limits files and system calls for all existing and future threads.
    pub(super) fn enter(
        policy: &Policy,
        options: &AgentOptions,
        congestion_control: Option<&str>,
        log: &Log,
    ) -> Self {
        let reachable = reach::of(policy, options);
        let kept = rights::kept(policy, options, &reachable.files, congestion_control);
        let keep = move || drop(sandbox::keep_capabilities(kept & confine::OF_LOG));
        let rights_of_log = log.on_its_thread(keep);
        let files = if reach::looks_at_programs(policy) {
            Files::AllForPrograms
        } else {
            Files::confine(reachable, log)
        };
        rights_of_log.wait();
        let filtered = sandbox::filter_process(ProcessSockets::WithoutVsock);
        if let Err(error) = &filtered
            && sandbox::has_call_filters()
        {
            warn_of("system-calls", error, log);
        }
        Self {
            files,
            has_filters: filtered.is_ok(),
            kept,
            sockets: rights::sockets(policy, options),
        }
    }

    /// Drops all capabilities of the calling thread that the policy does not need. Threads that it
    /// starts later inherit that.
    pub(super) fn drop_rights(&self, log: &Log) {
        if let Err(error) = sandbox::keep_capabilities(self.kept) {
            warn_of("capabilities", &error, log);
        }
    }

    /// Limits a running signer to reading the files of the agent.
    pub(super) fn confine_signer(&self, signer: &Client, log: &Log) {
        let Files::Within(Reachable { files, .. }) = &self.files else { return };
        let read = files.read.iter().chain(&files.write).cloned().collect();
        if let Err(error) = signer.confine(read) {
            warn_of("signer", &error, log);
        }
    }

    /// Limits the thread that moves packets of tunnels.
    pub(super) fn confine_packets(&self, driver: &IkeDriver, log: &Log) {
        if self.has_filters
            && let Err(error) = driver.confine()
        {
            warn_of("packets", &error, log);
        }
    }

    /// The rights that workers keep when they begin to serve.
    pub(super) fn of_workers(&self) -> WorkerRights {
        WorkerRights { capabilities: self.kept & rights::OF_WORKERS, sockets: self.sockets }
    }

    /// Rejects a policy that needs more than the sandbox allows.
    ///
    /// # Errors
    /// The first part of the policy that the sandbox does not allow.
    pub(super) fn check(&self, policy: &Policy, file: &Path) -> Result<(), Diagnostic> {
        if let Files::Within(reachable) = &self.files {
            reach::check(&reachable.files, policy, &directory_of(file))?;
        }
        rights::check(self.kept, policy)?;
        if self.has_filters { rights::check_sockets(self.sockets, policy) } else { Ok(()) }
    }

    /// Rejects a file whose directory is out of reach.
    pub(super) fn check_file(
        &self,
        position: SourcePosition,
        path: &Path,
    ) -> Result<(), Diagnostic> {
        match &self.files {
            Files::Within(reachable) => reach::check_file(&reachable.files, position, path),
            Files::AllKernel | Files::AllForPrograms => Ok(()),
        }
    }

    /// The rows of `tacit show limits`.
    pub(super) fn show(&self) -> [LimitDisplay; 3] {
        let refused = "the kernel rejects a system call that the sandbox does not allow";
        let files = match &self.files {
            Files::Within(reachable) => reachable.text.clone(),
            Files::AllKernel => confine::NO_LANDLOCK.to_owned(),
            Files::AllForPrograms => {
                "access to files is not limited: a rule with `listen` selects clients by \
                 `program`, so the agent must read /proc to find the program of each client"
                    .to_owned()
            }
        };
        let calls = if self.has_filters {
            "workers cannot open files, execute programs, or fork"
        } else {
            confine::NO_SECCOMP
        };
        [
            LimitDisplay::new("sandbox-files", files).beyond(refused),
            LimitDisplay::new("sandbox-calls", calls).beyond(refused),
            LimitDisplay::new("sandbox-capabilities", confine::names_of(self.kept)).beyond(refused),
        ]
    }
}

/// The row of `tacit show limits` for an agent without a sandbox.
pub(super) fn show_none() -> LimitDisplay {
    LimitDisplay::new("sandbox", "off: sandbox = false in [agent]")
}

fn warn_of(part: &str, error: &io::Error, log: &Log) {
    let event = Event::new("sandbox-incomplete").field("part", part).field("error", error);
    log.warn(event.field(
        "next",
        "the agent continues without this part of its sandbox; `tacit show limits` shows the \
         state of each part",
    ));
}
