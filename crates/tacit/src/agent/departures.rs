//! On a restart, transfers the runs (programs under `tacit run`) from the old agent to the new
//! agent. Both agents use this module.

use serde_json::json;

use super::lanes::Workers;
use super::runs::{Runs, unlisten};
use super::services::{self, Candidate};
use super::takeover::HandedRun;
use crate::control::server::Reply;
use crate::log::Event;
use crate::run::handover::{Departing, Resumed};
use crate::run::launchers;

impl Runs {
    /// Hands all runs over to a successor. This agent no longer reads their sockets.
    pub(super) async fn hand_over(&mut self, workers: &Workers) -> Reply {
        let mut states = Vec::new();
        let mut descriptors = Vec::new();
        for mut enrolled in self.registry.take_all() {
            unlisten(&mut enrolled, workers).await;
            enrolled.services.stop();
            enrolled.run.end_hiding();
            // Without a descriptor for it, the successor makes another device.
            let tunnels = enrolled.capture.tunnels.hand_over().await.unwrap_or_default();
            let tunnels = tunnels.filter(|_| self.successor_takes_tuns);
            match services::depart(&enrolled, tunnels).await {
                Ok(Departing { state, sockets }) => {
                    states.push(state);
                    descriptors.extend(sockets);
                    self.registry.add_departed(&enrolled.launcher);
                }
                Err(error) => {
                    let event = Event::new("run-lost").field("run", &enrolled.run.name);
                    self.shared.log.error(event.field("error", &error));
                }
            }
        }
        let mut reply = Reply::ok(json!(states));
        reply.descriptors = descriptors;
        reply
    }

    /// Continues a run of the predecessor.
    pub(super) async fn resume(&mut self, handed: HandedRun, workers: &Workers) {
        let id = handed.state.id;
        if let Err(error) = self.try_resume(handed, workers).await {
            self.shared.log.error(Event::new("run-lost").value("id", id).field("error", &error));
        }
    }

    async fn try_resume(&mut self, handed: HandedRun, workers: &Workers) -> std::io::Result<()> {
        let HandedRun { state, sockets } = handed;
        let outside = self.outside();
        let place = workers.place_run_on(state.cpu).await;
        let Resumed { run, launcher, followed, sockets, mut inbound, tunnels, before } =
            state.resume(sockets, place, self.host(), outside.clone())?;
        // The other side of a link closes the bound sockets of the predecessor when no process has
        // them any more. Then this agent binds its own.
        if outside.binds_for_agent() {
            inbound.clear();
        }
        let candidate = Candidate { run, sockets, launcher, tunnels, before };
        let enrolled = services::enrol(candidate, &self.context()).await?;
        // The policy of this agent may name other files than that of its predecessor.
        self.hide_from(&enrolled.run);
        self.take(enrolled, inbound, workers).await;
        outside.rebind_soon();
        let log = self.shared.log.clone();
        tokio::task::spawn_local(launchers::follow(followed, self.events.clone(), log));
        Ok(())
    }
}
