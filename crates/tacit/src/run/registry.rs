//! Stores the runs (programs under `tacit run`) that are registered with the agent.
//!
//! A run ends when `tacit run` closes its connection to the agent. Limits: [`RUNS_MAX`] runs;
//! `NAME_BYTES_MAX` for the name of a run.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use tacit_sys::socket;

use super::Run;
use super::capture::Capture;
use super::launchers::{Launcher, RUNS_MAX};
use super::protocol::{Enrolment, SocketSet};

/// The maximum length of a run's name.
const NAME_BYTES_MAX: usize = 64;

/// A run in the agent; `S` is the type of the services that lanes provide for it.
#[derive(Debug)]
pub struct Enrolled<S> {
    /// The run.
    pub run: Arc<Run>,
    /// Its launcher.
    pub launcher: Launcher,
    /// The generation of the policy that was in force before the capture of the run was set up.
    pub generation: u64,
    /// The captured addresses of the run.
    pub capture: Arc<Capture>,
    /// The services of the run.
    pub services: S,
}

/// All runs of the agent, by number.
#[derive(Debug)]
pub struct Registry<S> {
    runs: BTreeMap<u64, Enrolled<S>>,
    /// The number of the last run.
    last_id: u64,
    /// Connections of launchers whose runs a successor has.
    departed: Vec<OwnedFd>,
}

impl<S> Default for Registry<S> {
    fn default() -> Self {
        Self { runs: BTreeMap::new(), last_id: 0, departed: Vec::new() }
    }
}

impl<S> Registry<S> {
    /// Whether one more run can be enrolled.
    ///
    /// # Errors
    /// The reason, as text for the launcher.
    pub fn check_room(&self) -> Result<(), String> {
        if self.runs.len() >= RUNS_MAX {
            return Err(format!(
                "the agent already serves {RUNS_MAX} runs, the maximum: end a run first"
            ));
        }
        Ok(())
    }

    /// Whether this run can be enrolled.
    ///
    /// # Errors
    /// The reason, as text for the launcher.
    pub fn check(&self, enrolment: &Enrolment) -> Result<(), String> {
        self.check_room()?;
        if enrolment.sockets == SocketSet::Host {
            return Err(
                "a launcher (`tacit run`) sent a registration for the whole host, but only `tacit \
                 agent --host` may capture the host"
                    .to_owned(),
            );
        }
        let name = &enrolment.name;
        if name.is_empty() || name.len() > NAME_BYTES_MAX || name.contains(char::is_control) {
            return Err(format!(
                "the name of the run is not valid: it must have 1 to {NAME_BYTES_MAX} bytes and \
                 no control characters; set another name with --name"
            ));
        }
        Ok(())
    }

    /// A number for a new run.
    pub fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    /// Enrols a run, under its number.
    pub fn insert(&mut self, enrolled: Enrolled<S>) {
        let id = enrolled.run.id;
        self.last_id = self.last_id.max(id);
        self.runs.insert(id, enrolled);
    }

    /// Removes a run and returns it.
    pub fn remove(&mut self, id: u64) -> Option<Enrolled<S>> {
        self.runs.remove(&id)
    }

    /// Removes all runs and returns them.
    pub fn take_all(&mut self) -> Vec<Enrolled<S>> {
        std::mem::take(&mut self.runs).into_values().collect()
    }

    /// Returns a run.
    #[must_use]
    pub fn get(&self, id: u64) -> Option<&Enrolled<S>> {
        self.runs.get(&id)
    }

    /// Returns a run for changes.
    pub fn find_mut(&mut self, id: u64) -> Option<&mut Enrolled<S>> {
        self.runs.get_mut(&id)
    }

    /// The run that was enrolled first, mutable. The host and joined namespaces do not count as
    /// runs, because no rule listens for them.
    pub fn first_mut(&mut self) -> Option<&mut Enrolled<S>> {
        self.runs.values_mut().find(|enrolled| !enrolled.run.has_plan())
    }

    /// The host, if it is captured.
    pub fn host(&self) -> Option<&Enrolled<S>> {
        self.runs.values().find(|enrolled| enrolled.run.is_host())
    }

    /// Every run, in the order of their numbers.
    pub fn all(&self) -> impl Iterator<Item = &Enrolled<S>> {
        self.runs.values()
    }

    /// The numbers of all runs.
    #[must_use]
    pub fn ids(&self) -> Vec<u64> {
        self.runs.keys().copied().collect()
    }

    /// The number of runs.
    #[must_use]
    pub fn len(&self) -> usize {
        self.runs.len()
    }

    /// Whether there are no runs. The host and joined namespaces do not count as runs.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.runs.values().all(|enrolled| enrolled.run.has_plan())
    }

    /// Remembers the launcher of a run that a successor has, to see when the run ends.
    pub fn add_departed(&mut self, launcher: &Launcher) {
        // Without a descriptor the agent does not notice the end of this run, and a drain ends the
        // agent earlier.
        self.departed.extend(launcher.connection.try_clone());
    }

    /// Whether runs were handed over to a successor and all of them have ended since. Returns
    /// `true` only once.
    pub fn departed_have_ended(&mut self) -> bool {
        let have_ended = !self.departed.is_empty()
            && self.departed.iter().all(|launcher| socket::is_hung_up(launcher.as_fd()));
        if have_ended {
            self.departed.clear();
        }
        have_ended
    }
}
