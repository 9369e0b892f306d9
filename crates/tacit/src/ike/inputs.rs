//! Defines [`Inputs`]: the queues of the IKE thread.
//!
//! ```text
//! commands of the agent ──────────────────────┐
//! reports of the packet worker ───────────────┤
//! messages of known IKE SAs ──────────────────┼─> the thread, in this order
//! first requests of unknown senders ──────────┘
//! all other datagrams at the port ─> dropped by the worker, and counted
//! ```
//!
//! Any host can send datagrams to the port. So each kind has its own queue, and unknown senders
//! cannot displace commands, reports or messages of peers.
//!
//! Limits: [`ORDERS_MAX`], [`REPORTS_MAX`], and for each of the other queues [`MESSAGES_MAX`] and
//! [`MESSAGES_BYTES_MAX`].

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tacit_ipsec::esp::DropReason;
use tacit_ipsec::ike::IkeRoute;

use super::Order;
use crate::packet::{IkeDatagram, PacketEvent, PacketEvents};

/// The largest number of orders that wait. The agent waits for a place.
const ORDERS_MAX: usize = 4096;
/// The largest number of reports that wait; the worker repeats those that are lost.
const REPORTS_MAX: usize = 4096;
/// The largest number of messages in a queue; peers repeat those that are lost.
const MESSAGES_MAX: usize = 1024;
/// The largest length of all messages in a queue together.
const MESSAGES_BYTES_MAX: usize = 1 << 20;
/// How many inputs of a kind the thread takes at once, before it looks at its timers.
const TAKEN_MAX: usize = 64;

/// What the thread handles next.
pub(super) enum Input {
    Order(Order),
    Packet(PacketEvent),
}

/// The queues.
#[derive(Debug, Default)]
pub(super) struct Inputs {
    queues: Mutex<Queues>,
    /// Notified when a queue is no longer empty.
    filled: Condvar,
    /// Notified when orders have room, or when the thread has ended.
    has_room: Condvar,
}

#[derive(Default)]
struct Queues {
    orders: VecDeque<Order>,
    reports: VecDeque<PacketEvent>,
    messages: MessageQueue,
    first_requests: MessageQueue,
    /// The SPIs of this side's IKE SAs.
    spis: HashSet<u64>,
    /// Whether the thread has ended, so that nothing is handled any more.
    has_ended: bool,
}

#[derive(Default)]
struct MessageQueue {
    messages: VecDeque<IkeDatagram>,
    bytes: usize,
}

impl Inputs {
    /// Gives an order to the thread. Waits if too many wait. Returns `false` if the thread has
    /// ended.
    pub(super) fn order(&self, order: Order) -> bool {
        let is_full = |queues: &mut Queues| !queues.has_ended && queues.orders.len() >= ORDERS_MAX;
        let queues = self.has_room.wait_while(self.queues(), is_full);
        let mut queues = queues.unwrap_or_else(PoisonError::into_inner);
        if queues.has_ended {
            return false;
        }
        queues.orders.push_back(order);
        self.filled.notify_one();
        true
    }

    /// Gives an order to the thread, unless too many wait. Returns whether it did.
    pub(super) fn offer(&self, order: Order) -> bool {
        let mut queues = self.queues();
        let is_taken = !queues.has_ended && queues.orders.len() < ORDERS_MAX;
        if is_taken {
            queues.orders.push_back(order);
            self.filled.notify_one();
        }
        is_taken
    }

    /// Takes what waits, orders first. Waits at most this long for the first input.
    pub(super) fn take(&self, wait: Duration) -> Vec<Input> {
        let is_empty = |queues: &mut Queues| queues.is_empty();
        let queues = self.filled.wait_timeout_while(self.queues(), wait, is_empty);
        let (mut queues, _) = queues.unwrap_or_else(PoisonError::into_inner);
        let mut taken: Vec<Input> = take_some(&mut queues.orders).map(Input::Order).collect();
        taken.extend(take_some(&mut queues.reports).map(Input::Packet));
        for queue in [MessageKind::Known, MessageKind::First] {
            let queue = queues.of_kind(queue);
            let messages = take_some(&mut queue.messages);
            let before = taken.len();
            taken.extend(messages.map(|one| Input::Packet(PacketEvent::Ike(one))));
            let bytes: usize = taken[before..].iter().map(Input::message_bytes).sum();
            queue.bytes = queue.bytes.saturating_sub(bytes);
        }
        self.has_room.notify_all();
        taken
    }

    /// Accepts messages with these SPIs of this side, and no longer those with others.
    pub(super) fn replace_spis(&self, gone: &[u64], new: &[u64]) {
        let mut queues = self.queues();
        gone.iter().for_each(|spi| {
            queues.spis.remove(spi);
        });
        queues.spis.extend(new);
    }

    /// The thread has ended: no order waits for it any more.
    pub(super) fn end(&self) {
        self.queues().has_ended = true;
        self.has_room.notify_all();
    }

    fn take_event(&self, event: PacketEvent) -> Result<(), DropReason> {
        let mut queues = self.queues();
        let is_taken = match event {
            PacketEvent::Ike(datagram) => {
                let kind = match IkeRoute::of(&datagram.message) {
                    None => return Err(DropReason::Malformed),
                    Some(IkeRoute::First) => MessageKind::First,
                    Some(IkeRoute::Sa(spi)) if queues.spis.contains(&spi) => MessageKind::Known,
                    Some(IkeRoute::Sa(_)) => return Err(DropReason::UnknownSpi),
                };
                !queues.has_ended && queues.of_kind(kind).push(datagram)
            }
            report if queues.reports.len() < REPORTS_MAX && !queues.has_ended => {
                queues.reports.push_back(report);
                true
            }
            _ => false,
        };
        if !is_taken {
            return Err(DropReason::Queue);
        }
        self.filled.notify_one();
        Ok(())
    }

    fn queues(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PacketEvents for Arc<Inputs> {
    fn take(&mut self, event: PacketEvent) -> Result<(), DropReason> {
        self.take_event(event)
    }
}

/// The two kinds of messages.
#[derive(Clone, Copy)]
enum MessageKind {
    Known,
    First,
}

impl Queues {
    fn of_kind(&mut self, kind: MessageKind) -> &mut MessageQueue {
        match kind {
            MessageKind::Known => &mut self.messages,
            MessageKind::First => &mut self.first_requests,
        }
    }

    fn is_empty(&self) -> bool {
        self.orders.is_empty()
            && self.reports.is_empty()
            && self.messages.messages.is_empty()
            && self.first_requests.messages.is_empty()
    }
}

impl std::fmt::Debug for Queues {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queues").finish_non_exhaustive()
    }
}

impl MessageQueue {
    fn push(&mut self, datagram: IkeDatagram) -> bool {
        let bytes = self.bytes + datagram.message.len();
        if self.messages.len() >= MESSAGES_MAX || bytes > MESSAGES_BYTES_MAX {
            return false;
        }
        self.bytes = bytes;
        self.messages.push_back(datagram);
        true
    }
}

impl Input {
    fn message_bytes(&self) -> usize {
        match self {
            Self::Packet(PacketEvent::Ike(datagram)) => datagram.message.len(),
            Self::Packet(_) | Self::Order(_) => 0,
        }
    }
}

fn take_some<T>(queue: &mut VecDeque<T>) -> impl Iterator<Item = T> {
    let count = queue.len().min(TAKEN_MAX);
    queue.drain(..count)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A message with the own SPI 7 or 8, or a first request.
    fn message(own: u64) -> IkeDatagram {
        let (exchange, flags) = if own == 0 { (34, 8) } else { (37, 8) };
        let mut message = [5_u64.to_be_bytes(), own.to_be_bytes()].concat();
        message.extend([0, 0x20, exchange, flags, 0, 0, 0, 0, 0, 0, 0, 28]);
        IkeDatagram { from: "192.0.2.1:4500".parse().unwrap(), message }
    }

    fn take_message(inputs: &Inputs, own: u64) -> Result<(), DropReason> {
        inputs.take_event(PacketEvent::Ike(message(own)))
    }

    fn words(inputs: &Inputs) -> Vec<String> {
        let word = |input| match input {
            Input::Order(Order::RemoveRun(run)) => format!("order {run}"),
            Input::Order(_) => "another order".to_owned(),
            Input::Packet(PacketEvent::Ike(datagram)) if datagram == message(0) => "first".into(),
            Input::Packet(PacketEvent::Ike(_)) => "known".to_owned(),
            Input::Packet(_) => "report".to_owned(),
        };
        inputs.take(Duration::ZERO).into_iter().map(word).collect()
    }

    #[test]
    fn a_flood_of_strangers_displaces_no_order_no_report_and_no_message_of_a_peer() {
        let inputs = Inputs::default();
        inputs.replace_spis(&[], &[7]);
        let mut lost = 0;
        for _ in 0..10 * MESSAGES_MAX {
            match take_message(&inputs, 0) {
                Ok(()) => {}
                Err(reason) => {
                    assert_eq!(reason, DropReason::Queue);
                    lost += 1;
                }
            }
        }
        assert_eq!(lost, 9 * MESSAGES_MAX);
        assert_eq!(take_message(&inputs, 7), Ok(()));
        let spi = tacit_ipsec::EspSpi::new(256).unwrap();
        assert_eq!(inputs.take_event(PacketEvent::RekeyDue(spi)), Ok(()));
        assert!(inputs.order(Order::RemoveRun(1)));
        let mut taken = words(&inputs);
        assert_eq!(taken[..4], ["order 1", "report", "known", "first"]);
        assert_eq!(taken.len(), 3 + TAKEN_MAX);
        while !taken.is_empty() {
            taken = words(&inputs);
        }
        assert_eq!(take_message(&inputs, 0), Ok(()), "there is room again");
    }

    #[test]
    fn messages_that_belong_nowhere_are_dropped_with_their_reason() {
        let inputs = Inputs::default();
        inputs.replace_spis(&[], &[7]);
        assert_eq!(take_message(&inputs, 8), Err(DropReason::UnknownSpi));
        inputs.replace_spis(&[7], &[8]);
        assert_eq!(take_message(&inputs, 8), Ok(()));
        assert_eq!(take_message(&inputs, 7), Err(DropReason::UnknownSpi));
        let mut datagram = message(8);
        datagram.message.push(0);
        let result = inputs.take_event(PacketEvent::Ike(datagram));
        assert_eq!(result, Err(DropReason::Malformed), "the length in the header is another");
        assert_eq!(words(&inputs), ["known"]);
    }

    #[test]
    fn long_messages_fill_a_queue_too() {
        let inputs = Inputs::default();
        let long = || {
            let mut datagram = message(0);
            let bytes = 60_000_usize;
            datagram.message.resize(bytes, 0);
            datagram.message[24..28].copy_from_slice(&60_000_u32.to_be_bytes());
            inputs.take_event(PacketEvent::Ike(datagram))
        };
        let taken = (0..MESSAGES_MAX).take_while(|_| long().is_ok()).count();
        assert_eq!(taken, MESSAGES_BYTES_MAX / 60_000);
        assert_eq!(words(&inputs).len(), taken);
        assert_eq!(long(), Ok(()));
    }

    #[test]
    fn no_order_waits_for_a_thread_that_has_ended() {
        let inputs = Arc::new(Inputs::default());
        for run in 0..ORDERS_MAX as u64 {
            assert!(inputs.order(Order::RemoveRun(run)));
        }
        let waiting = Arc::clone(&inputs);
        let waiting = std::thread::spawn(move || waiting.order(Order::RemoveRun(0)));
        inputs.end();
        assert!(!waiting.join().unwrap());
        assert!(!inputs.order(Order::RemoveRun(0)));
        assert_eq!(take_message(&inputs, 0), Err(DropReason::Queue));
    }
}
