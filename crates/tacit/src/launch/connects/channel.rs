//! Implements the helper's channel to the agent. On this channel, the helper asks whether a program
//! may connect. The agent answers with a socket for the program (a *handed* socket).
//!
//! A handed socket is in the network namespace of the agent that opened it. The helper recognises
//! handed sockets by this network namespace. When a new agent replaces an agent, the new agent may
//! run in another network namespace. So the helper remembers the network namespaces of all agents.
//!
//! Limits: if the buffer of the channel is full, at most [`UNSENT_MAX`] messages are queued. The
//! helper remembers at most [`OUTSIDE_MAX`] network namespaces. If a new agent runs in a further
//! network namespace, the helper does not ask this agent.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use tacit_core::policy::CaptureRange;

use crate::run::protocol::{
    ASK_ABOUT_BYTES_MAX, ConnectAnswer, Frame, FromConnects, ToConnects, receive_packet,
    send_packet,
};

/// The maximum number of messages that wait for room: each call in progress has at most two.
const UNSENT_MAX: usize = 8192;
/// The maximum number of network namespaces from which programs may have sockets.
const OUTSIDE_MAX: usize = 16;

/// The connection to the agent that decides.
#[derive(Debug, Default)]
pub(super) struct AgentChannel {
    socket: Option<OwnedFd>,
    /// The numbers of the network namespaces of all agents so far. The last one is the present
    /// agent's.
    outside: Vec<u64>,
    ask_about: Vec<CaptureRange>,
    unsent: VecDeque<FromConnects>,
    space: Vec<u8>,
}

impl AgentChannel {
    /// Begins to use the socket of an agent, whose network namespace has this number.
    pub(super) fn begin(&mut self, socket: OwnedFd, outside: u64) {
        self.end();
        self.outside.retain(|known| *known != outside);
        if self.outside.len() >= OUTSIDE_MAX {
            // To forget a namespace would be to take its sockets for harmless ones.
            return;
        }
        self.outside.push(outside);
        self.socket = Some(socket);
        self.space.resize(ASK_ABOUT_BYTES_MAX, 0);
    }

    /// The agent has ended.
    pub(super) fn end(&mut self) {
        self.socket = None;
        self.ask_about.clear();
        self.unsent.clear();
    }

    /// The socket to poll.
    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.socket.as_ref().map(AsFd::as_fd)
    }

    /// Whether a rule could permit a socket for a connection to this address.
    pub(super) fn is_asked_about(&self, remote: SocketAddr) -> bool {
        self.socket.is_some() && self.ask_about.iter().any(|range| range.contains(remote))
    }

    /// Whether sockets of this network namespace were handed to programs.
    pub(super) fn has_handed_of(&self, namespace: u64) -> bool {
        self.outside.contains(&namespace)
    }

    /// Whether the present agent is in this network namespace.
    pub(super) fn is_in(&self, namespace: u64) -> bool {
        self.socket.is_some() && self.outside.last() == Some(&namespace)
    }

    /// Sends a question now or not at all; returns whether it was sent.
    pub(super) fn ask(&mut self, question: &FromConnects) -> bool {
        self.flush();
        let socket = self.socket.as_ref().filter(|_| self.unsent.is_empty());
        socket.is_some_and(|socket| send_packet(socket, question, &[]).is_ok())
    }

    /// Sends a message as soon as the agent has room for it.
    pub(super) fn send_or_queue(&mut self, message: FromConnects) {
        self.flush();
        let Some(socket) = &self.socket else { return };
        let waits = !self.unsent.is_empty()
            || send_packet(socket, &message, &[])
                .is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock);
        if waits && self.unsent.len() < UNSENT_MAX {
            self.unsent.push_back(message);
        }
    }

    /// Whether messages wait for room.
    pub(super) fn is_full(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Sends the messages that wait, as far as there is room.
    pub(super) fn flush(&mut self) {
        let Some(socket) = &self.socket else { return };
        while let Some(message) = self.unsent.front() {
            match send_packet(socket, message, &[]) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // After another error the agent has ended, which the poll reports.
                _ => drop(self.unsent.pop_front()),
            }
        }
    }

    /// Receives a message; `None` if there is none.
    ///
    /// # Errors
    /// The agent has ended, or does not speak this protocol.
    pub(super) fn receive(&mut self) -> io::Result<Option<Message>> {
        let socket = self.socket.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        loop {
            let frame = match receive_packet::<ToConnects>(socket, &mut self.space) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                received => received?,
            };
            let Frame { message, mut descriptors } = frame.ok_or(io::ErrorKind::UnexpectedEof)?;
            let given = descriptors.pop();
            return Ok(Some(match message {
                ToConnects::Socket(number) => Message::Socket { number, given },
                ToConnects::Answer(ConnectAnswer { number, to, error, .. }) => {
                    Message::Answer(Answer { number, to, given, error })
                }
                ToConnects::AskAbout(ranges) => {
                    self.ask_about = ranges;
                    continue;
                }
            }));
        }
    }
}

/// A message of the agent, or of the server of its link.
#[derive(Debug)]
pub(super) enum Message {
    /// The socket for the answer to the question with this number; `None` if this process has too
    /// many open files.
    Socket { number: u64, given: Option<OwnedFd> },
    /// An answer.
    Answer(Answer),
}

/// An answer of the agent.
#[derive(Debug)]
pub(super) struct Answer {
    /// The number of the question.
    pub(super) number: u64,
    /// The address to connect to, if there is a socket for it.
    pub(super) to: Option<SocketAddr>,
    /// The socket, if it comes with the answer.
    pub(super) given: Option<OwnedFd>,
    /// The error of the call, if there is no socket and the agent does not relay.
    pub(super) error: Option<i32>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(number: u64) -> FromConnects {
        FromConnects::Ended { number, error: None }
    }

    #[test]
    fn messages_that_have_no_room_are_sent_later_in_order() {
        let (near, far) = tacit_sys::query::pair().unwrap();
        let mut channel = AgentChannel::default();
        channel.begin(near, 7);
        let mut sent = 0;
        while !channel.is_full() {
            channel.send_or_queue(ended(sent));
            sent += 1;
        }
        assert!(!channel.ask(&ended(u64::MAX)), "a question does not wait");
        let mut space = vec![0; 1024];
        for number in 0..sent {
            channel.flush();
            let frame = receive_packet::<FromConnects>(&far, &mut space).unwrap().unwrap();
            assert_eq!(frame.message, ended(number));
        }
        assert!(!channel.is_full() && channel.ask(&ended(0)));
    }

    #[test]
    fn sockets_of_earlier_agents_are_recognised_and_too_many_agents_are_not_asked() {
        let mut channel = AgentChannel::default();
        for outside in 0..20 {
            let (near, far) = tacit_sys::query::pair().unwrap();
            channel.begin(near, outside);
            let all = ToConnects::AskAbout(vec![CaptureRange {
                udp: false,
                first: [10, 0, 0, 0].into(),
                last: [10, 255, 255, 255].into(),
                first_port: 80,
                last_port: 80,
            }]);
            let is_known = usize::try_from(outside).unwrap() < OUTSIDE_MAX;
            assert_eq!(send_packet(&far, &all, &[]).is_ok(), is_known);
            let at = SocketAddr::from(([10, 1, 2, 3], 80));
            assert!(!channel.is_asked_about(at), "before the agent has sent the ranges");
            assert_eq!(channel.receive().is_ok(), is_known);
            assert_eq!(channel.is_asked_about(at), is_known);
            assert!(!channel.is_asked_about(SocketAddr::from(([10, 1, 2, 3], 81))));
            assert_eq!(channel.is_in(outside), is_known);
        }
        assert!((0..16).all(|outside| channel.has_handed_of(outside)));
        assert!(!channel.has_handed_of(16), "it was never asked");
    }
}
