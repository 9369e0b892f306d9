//! Relays UDP answers whose source address or port differs from the destination of the program's
//! datagram. For example, a TFTP server answers from another port.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::pin::pin;
use std::rc::Rc;
use std::time::Instant;

use tacit_core::datagram::DatagramKey;
use tacit_core::flow::Flow;
use tacit_core::meter::Component;
use tacit_core::policy::Answers;
use tacit_sys::datagram;
use tacit_sys::watch::READABLE_OR_ERROR;

use super::BATCH_MAX;
use super::answerers::Answerer;
use super::flow::{BatchResult, FlowEnd, FlowHost, FlowRelay, Sending};
use crate::clock;
use crate::ledger::{charged, meter};
use crate::live::LiveAction;

impl FlowRelay {
    /// Delivers a datagram to the program that does not come from the destination of the flow.
    pub(super) fn answer_from(
        self: &Rc<Self>,
        lane: &Rc<impl FlowHost + 'static>,
        from: SocketAddr,
        payload: &[u8],
    ) {
        if let Some(known) = self.answerers.find(from) {
            if self.may_still_answer(&**lane, &known) {
                return self.give(&**lane, &known, payload);
            }
            self.answerers.remove(&known);
            known.over.notify_one();
            return lane.count_drop();
        }
        let shown = if from.ip() == self.target.ip() {
            SocketAddr::new(self.key.destination.ip(), from.port())
        } else {
            from
        };
        let key = DatagramKey { program: self.key.program, destination: shown };
        let generation = lane.shared().live.load().generation;
        // If the program has a flow of its own to that source, that flow has another outside port.
        if lane.is_open(&key) || !self.may_answer(&**lane, from) {
            return lane.count_drop();
        }
        let Some(answerer) = self.answerers.add(from, shown, generation) else {
            return lane.count_drop();
        };
        self.give(&**lane, &answerer, payload);
        tokio::task::spawn_local(serve(Rc::clone(lane), Rc::clone(self), answerer));
    }

    /// Whether the current policy permits answers of a source that an earlier policy permitted.
    pub(super) fn may_still_answer(&self, lane: &impl FlowHost, answerer: &Answerer) -> bool {
        let generation = lane.shared().live.load().generation;
        let may_answer =
            answerer.generation.get() == generation || self.may_answer(lane, answerer.address);
        if may_answer {
            answerer.generation.set(generation);
        }
        may_answer
    }

    /// Whether the policy lets the source answer.
    fn may_answer(&self, lane: &impl FlowHost, from: SocketAddr) -> bool {
        let is_destination = from.ip() == self.target.ip();
        if !is_destination && self.connection.record().rule.rule.answers != Answers::Any {
            return false;
        }
        let names = if is_destination { self.flow.remote_names.clone() } else { Vec::new() };
        let mut flow = Flow {
            remote: from.into(),
            remote_names: names,
            at_unix_s: clock::now_unix_s(),
            ..self.flow.clone()
        };
        let live = lane.shared().live.load();
        !matches!(live.decide(&mut flow), Ok(rule) if matches!(rule.action, LiveAction::Deny(_)))
    }

    fn give(&self, lane: &impl FlowHost, answerer: &Answerer, payload: &[u8]) {
        if answerer.is_refused.get() {
            return;
        }
        answerer.touch();
        let Some(spoofed) = answerer.spoofed.get() else {
            if !answerer.keep(payload) {
                lane.count_drop();
            }
            return;
        };
        match datagram::send(spoofed.get_ref().as_fd(), payload) {
            Ok(()) => self.connection.count_received(payload.len()),
            // The program's socket is connected, or has been closed.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                answerer.is_refused.set(true);
            }
            Err(_) => lane.count_drop(),
        }
    }

    /// Sends the program's datagrams to the source.
    fn send_back(&self, lane: &impl FlowHost, answerer: &Answerer) -> Result<BatchResult, FlowEnd> {
        let Some(spoofed) = answerer.spoofed.get() else { return Ok(BatchResult::Empty) };
        if !self.is_permitted(lane) {
            // When the flow ends, it sends the datagrams that wait in all its sockets.
            self.end_for_new_policy();
            return Err(FlowEnd::DecidedAgain);
        }
        if !self.may_still_answer(lane, answerer) {
            // The flow continues without this source.
            return Err(FlowEnd::DecidedAgain);
        }
        let ends = self.send_ends(Some(answerer));
        let mut scratch = lane.scratch();
        for _ in 0..BATCH_MAX {
            meter::switch(Component::Receive);
            let payload = match datagram::receive(spoofed.get_ref().as_fd(), &mut scratch) {
                Ok(bytes) => scratch.get(..bytes).unwrap_or_default(),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Ok(BatchResult::Empty);
                }
                Err(_) => {
                    answerer.is_refused.set(true);
                    return Ok(BatchResult::Empty);
                }
            };
            answerer.touch();
            lane.touch(&self.key);
            if self.send_to(lane.receiver(), payload, &ends) == Sending::Full {
                lane.count_drop();
            }
        }
        Ok(BatchResult::More)
    }

    /// Makes the socket of a source, then relays until it is silent for too long.
    async fn serve_answerer(&self, lane: &Rc<impl FlowHost>, answerer: &Answerer) {
        // Without a socket its datagrams are dropped, as those of a full flow.
        let Ok(made) = self.make_spoofed(&**lane, answerer.shown).await else {
            return lane.count_drop();
        };
        let spoofed = answerer.spoofed.get_or_init(|| made);
        // A new policy may have come meanwhile.
        if !self.is_permitted(&**lane) || !self.may_still_answer(&**lane, answerer) {
            return answerer.take_early().iter().for_each(|_| lane.count_drop());
        }
        for payload in answerer.take_early() {
            self.give(&**lane, answerer, &payload);
        }
        while Instant::now() < answerer.over_at() {
            let over_at = answerer.over_at();
            tokio::select! {
                ready = spoofed.ready(READABLE_OR_ERROR) => {
                    if self.turn(ready, |_| self.send_back(&**lane, answerer)).is_err() {
                        return;
                    }
                    tokio::task::yield_now().await;
                }
                () = tokio::time::sleep_until(over_at.into()) => {}
            }
        }
    }
}

/// Serves one source to its end.
async fn serve(lane: Rc<impl FlowHost>, relay: Rc<FlowRelay>, answerer: Rc<Answerer>) {
    let record = relay.connection.record();
    let life = pin!(async {
        tokio::select! {
            biased;
            () = answerer.over.notified() => {}
            () = relay.serve_answerer(&lane, &answerer) => {}
        }
    });
    let spend = |ns| record.spend_ns(ns);
    charged(record.account(), Component::Accept, life, spend).await;
    relay.answerers.remove(&answerer);
    relay.flush_socket(&lane, Some(&answerer));
}
