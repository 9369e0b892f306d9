//! Runs the exchange `INFORMATIONAL`: deletes SAs (security associations), and checks that the peer
//! is alive (RFC 7296 section 1.4).

use std::time::Instant;

use super::payloads::notifications;
use super::sa::{Opened, SaState};
use super::task::{DELETED_MAX, Task, Wanted};
use super::tunnel::TunnelState;
use super::{GONE, IkeConnection, IkeEvent};
use crate::child::EspSpi;
use crate::ike::codec::{DeletePayload, ExchangeType, IkePayload, notify};
use crate::ike::failure::{FailureSide, IkeFailure};

impl IkeConnection {
    /// Handles a request of the peer. The response to an empty one shows that this side is alive.
    pub(super) fn handle_inform(&mut self, now: Instant, spi: u64, opened: &Opened) {
        let failed = notifications(&opened.payloads)
            .find(|one| one.kind == notify::AUTHENTICATION_FAILED)
            .map(|one| IkeFailure::refused(one.kind, "tacit's authentication"));
        let deletes = opened.payloads.iter().filter_map(|payload| match payload {
            IkePayload::Delete(delete) => Some(delete),
            _ => None,
        });
        let mut ends = failed.is_some();
        let mut removed = Vec::new();
        let mut confirmed = Vec::new();
        for delete in deletes {
            match delete {
                DeletePayload::IkeSa => ends = true,
                DeletePayload::Ah => {}
                DeletePayload::Esp(spis) => {
                    self.note_deleted(spis);
                    for tunnel in self.tunnels.iter().filter(|one| spis.contains(&one.outbound)) {
                        removed.push(tunnel.inbound);
                        // What this side is deleting already is not confirmed again (RFC 7296
                        // section 1.4.1).
                        if tunnel.state != TunnelState::Deleting {
                            confirmed.push(tunnel.inbound);
                        }
                    }
                }
            }
        }
        let confirmation = (!ends && !confirmed.is_empty())
            .then_some(IkePayload::Delete(DeletePayload::Esp(confirmed)));
        let payloads: Vec<IkePayload> = confirmation.into_iter().collect();
        self.respond(now, spi, ExchangeType::Informational, &payloads);
        for tunnel in removed {
            self.remove_tunnel(tunnel);
        }
        if ends {
            self.handle_delete_ike(now, spi, failed);
        }
    }

    /// Notes what the peer deletes in the outstanding requests for child SAs.
    fn note_deleted(&mut self, spis: &[u32]) {
        for one in self.sas.iter_mut().filter_map(|sa| sa.outstanding.as_mut()) {
            if let Task::Child(task) = &mut one.task {
                let room = DELETED_MAX.saturating_sub(task.deleted.len());
                task.deleted.extend(spis.iter().take(room));
            }
        }
    }

    /// The peer has deleted an IKE SA.
    fn handle_delete_ike(&mut self, now: Instant, spi: u64, failure: Option<IkeFailure>) {
        // Both sides were replacing it, and the response of the peer is missing: its IKE SA remains
        // (RFC 7296 section 2.25.2).
        let outstanding = self.sa_mut(spi).and_then(|sa| sa.outstanding.take());
        if let Some(Task::RekeyIke(task)) = outstanding.map(|one| one.task)
            && let Some(collision) = task.collision
        {
            self.replace_sa(now, spi, collision.spi);
        }
        self.retire(now, spi);
        self.end_without(now, spi, failure);
    }

    /// Keeps a deleted IKE SA only to repeat its last response.
    pub(super) fn retire(&mut self, now: Instant, spi: u64) {
        if let Some(sa) = self.sa_mut(spi) {
            sa.state = SaState::Gone { until: now + GONE };
            sa.outstanding = None;
        }
    }

    /// Removes an IKE SA that is deleted on both sides, or whose peer does not answer.
    pub(super) fn end_sa(&mut self, now: Instant, spi: u64, failure: Option<IkeFailure>) {
        if self.is_attempting()
            && let Some(failure) = failure
        {
            self.refuse_attempt(now, failure);
            return;
        }
        self.sas.retain(|sa| sa.own_spi() != spi);
        self.end_without(now, spi, failure);
    }

    /// Continues without an IKE SA: with another one, if there is one, or not at all.
    pub(super) fn end_without(&mut self, now: Instant, spi: u64, failure: Option<IkeFailure>) {
        if spi != self.current {
            return;
        }
        let other = self.sas.iter().find(|sa| sa.state == SaState::Established);
        match (other.map(super::sa::IkeSa::own_spi), failure) {
            (Some(other), _) => self.replace_sa(now, spi, other),
            (None, Some(failure)) => self.end(IkeEvent::Failed(failure)),
            (None, None) => self.end(IkeEvent::Closed),
        }
    }

    pub(super) fn send_delete_ike(&mut self, now: Instant, spi: u64) {
        let payloads = [IkePayload::Delete(DeletePayload::IkeSa)];
        self.request(now, spi, ExchangeType::Informational, &payloads, Task::DeleteIke);
        if let Some(sa) = self.sa_mut(spi) {
            sa.state = SaState::Closing;
        }
    }

    pub(super) fn send_delete_child(&mut self, now: Instant, spi: u64, child: u32) {
        let payloads = [IkePayload::Delete(DeletePayload::Esp(vec![child]))];
        if let Some(tunnel) = self.tunnels.iter_mut().find(|one| one.inbound == child) {
            tunnel.state = TunnelState::Deleting;
        }
        let task = Task::DeleteChild { spi: child };
        self.request(now, spi, ExchangeType::Informational, &payloads, task);
    }

    /// Removes a child SA. Another one becomes active in its place.
    pub(super) fn remove_tunnel(&mut self, inbound: u32) {
        let count = self.tunnels.len();
        self.tunnels.retain(|one| one.inbound != inbound);
        if self.tunnels.len() < count {
            self.ensure_active();
            if let Some(spi) = EspSpi::new(inbound) {
                self.event(IkeEvent::ChildRemoved(spi));
            }
        }
    }

    pub(super) fn remove_all_tunnels(&mut self) {
        self.active = None;
        for tunnel in std::mem::take(&mut self.tunnels) {
            if let Some(spi) = EspSpi::new(tunnel.inbound) {
                self.event(IkeEvent::ChildRemoved(spi));
            }
        }
    }

    /// Sends packets with this child SA from now on.
    pub(super) fn activate(&mut self, inbound: u32) {
        if self.active != Some(inbound)
            && let Some(spi) = EspSpi::new(inbound)
        {
            self.active = Some(inbound);
            self.event(IkeEvent::ChildActive(spi));
        }
    }

    /// Activates the newest child SA unless the active one may still be used.
    pub(super) fn ensure_active(&mut self) {
        let is_usable = |inbound: u32| {
            let is_deleting = |state| state == TunnelState::Deleting;
            self.tunnels.iter().any(|one| one.inbound == inbound && !is_deleting(one.state))
        };
        if self.active.is_some_and(is_usable) {
            return;
        }
        let newest = self.tunnels.iter().rev().find(|one| one.state == TunnelState::Active);
        match newest.map(|one| one.inbound) {
            Some(inbound) => self.activate(inbound),
            None => self.active = None,
        }
    }

    /// Removes a child SA that has no replacement at the end of its time. A connection without
    /// child SAs ends, so that another one can begin.
    pub(super) fn expire_tunnel(&mut self, inbound: u32) {
        let failure = IkeFailure::new(
            "keys-expired",
            FailureSide::Both,
            "the child SA of the tunnel expired before the peer accepted a rekey: compare the \
             lifetimes of both sides, and read the peer's log",
        );
        self.remove_tunnel(inbound);
        if self.tunnels.is_empty() {
            self.want(Wanted::DeleteIke);
            self.end(IkeEvent::Failed(failure));
        } else {
            self.want(Wanted::DeleteChild(inbound));
            self.event(IkeEvent::ExchangeFailed(failure));
        }
    }
}
