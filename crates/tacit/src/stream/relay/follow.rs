//! Decides whether a connection of a program moves to the worker thread on the program's CPU. If
//! program and worker are on the same CPU, an exchange of 2 KB messages needs a third less CPU
//! time.
//!
//! The socket option `SO_INCOMING_CPU` returns the CPU on which the program sent its data. The
//! relay checks this option after every [`TRANSFERS`] reads or writes. Suppose that [`AGREEING`]
//! checks in a row return the same CPU, and the worker runs on another CPU. Then the connection
//! moves to the worker on the program's CPU. After the first move of a connection, twice as many
//! checks must agree.

use std::future::Future;
use std::os::fd::BorrowedFd;
use std::pin::Pin;
use std::task::{Context, Poll};

use tacit_sys::socket;

use crate::session::{Connection, ConnectionEnd};
use crate::stream::lane::StreamLane;

/// The number of reads and writes between two checks.
const TRANSFERS: u8 = 8;
/// The number of checks that must agree before the first move.
const AGREEING: u8 = 2;
/// The maximum number of moves that double that number.
const DOUBLED_MAX: u8 = 1;

/// The value for no CPU. An `Option` would make each connection larger.
const NOWHERE: u16 = u16::MAX;

/// Follows the program of one connection.
#[derive(Debug)]
pub(super) struct CpuFollower<'a> {
    lane: &'a StreamLane,
    state: State,
}

/// The knowledge about the CPU of the program.
#[derive(Clone, Copy, Debug)]
struct State {
    transfers: u8,
    agreeing: u8,
    /// The CPU in the last check.
    seen_on: u16,
    /// The CPU to which the connection moves.
    leaves_to: u16,
}

/// The direction of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TransferDirection {
    /// The bytes were read from the program's socket.
    FromProgram,
    /// The bytes were written to the program's socket.
    ToProgram,
}

impl<'a> CpuFollower<'a> {
    /// `None`: the connection stays where it is, because its program is not known to be on this
    /// machine, or the policy places threads otherwise.
    pub(super) fn of(lane: &'a StreamLane, connection: &Connection) -> Option<Self> {
        let follows = lane.cpu_workers.is_some() && connection.record().scope.is_some();
        follows.then_some(Self { lane, state: State::BEGIN })
    }

    /// Reports that bytes of the connection have passed between the program and its socket.
    pub(super) fn passed(
        &mut self,
        connection: &Connection,
        way: TransferDirection,
        program: BorrowedFd<'_>,
    ) {
        self.state.transfers += 1;
        if self.state.transfers < TRANSFERS {
            return;
        }
        self.state.transfers = 0;
        if let Some(binding) = &self.lane.binding {
            binding.look();
        }
        let Some(cpu) = socket::incoming_cpu(program).ok().and_then(|cpu| u16::try_from(cpu).ok())
        else {
            return;
        };
        let own = self.lane.load.cpu().and_then(|cpu| u16::try_from(cpu).ok());
        // Acknowledgements of written bytes arrive on the CPU of the writer as often as on that of
        // the program.
        if way == TransferDirection::ToProgram && own == Some(cpu) {
            return;
        }
        let moves = connection.record().scope.as_ref().map_or(0, |scope| scope.moves());
        let needed = AGREEING << moves.min(DOUBLED_MAX);
        let is_there = || self.lane.cpu_workers.as_ref().is_some_and(|to| to.is_on(cpu.into()));
        if self.state.look(cpu, own, needed) && is_there() {
            self.state.leaves_to = cpu;
        }
    }

    /// Whether the connection is to move.
    pub(super) fn leaves(&self) -> bool {
        self.state.leaves_to != NOWHERE
    }

    /// Counts the move, and returns its destination.
    pub(super) fn leave(self, connection: &Connection) -> Option<usize> {
        if let Some(scope) = &connection.record().scope {
            scope.count_move();
        }
        self.leaves().then_some(usize::from(self.state.leaves_to))
    }
}

/// Polls a transfer. Returns ready without a result if the transfer waits and its connection is to
/// move to another thread.
pub(super) fn poll_here<P: Future<Output = ConnectionEnd> + Unpin>(
    transfer: &mut P,
    leaves: impl Fn(&P) -> bool,
    cx: &mut Context<'_>,
) -> Poll<Option<ConnectionEnd>> {
    match Pin::new(&mut *transfer).poll(cx) {
        Poll::Pending if leaves(transfer) => Poll::Ready(None),
        polled => polled.map(Some),
    }
}

impl State {
    const BEGIN: Self = Self { transfers: 0, agreeing: 0, seen_on: NOWHERE, leaves_to: NOWHERE };

    /// Adds a check. Returns whether enough checks agree on a CPU other than the worker's.
    fn look(&mut self, cpu: u16, own: Option<u16>, needed: u8) -> bool {
        let agrees = self.seen_on == cpu && own != Some(cpu);
        self.agreeing = if agrees { self.agreeing + 1 } else { 1 };
        self.seen_on = cpu;
        let is_enough = own != Some(cpu) && self.agreeing >= needed;
        if is_enough {
            self.agreeing = 0;
        }
        is_enough
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns after how many of these checks a move is due.
    fn due(looks: &[u16], own: Option<u16>, needed: u8) -> Option<usize> {
        let mut state = State::BEGIN;
        looks.iter().position(|cpu| state.look(*cpu, own, needed)).map(|at| at + 1)
    }

    #[test]
    fn checks_that_agree_move_a_connection() {
        assert_eq!(due(&[1, 1], Some(0), 2), Some(2));
        assert_eq!(due(&[1, 1], None, 2), Some(2), "a worker without a CPU of its own");
        assert_eq!(due(&[0, 0, 0, 0], Some(0), 2), None, "program and worker are on the same CPU");
        assert_eq!(due(&[1, 0, 1, 0, 1], Some(0), 2), None);
        assert_eq!(due(&[1, 2, 1, 2, 2], Some(0), 2), Some(5));
        assert_eq!(due(&[0, 1, 1, 1, 1], Some(0), 4), Some(5));
    }

    #[test]
    fn the_number_of_checks_has_a_maximum() {
        let most = AGREEING << DOUBLED_MAX;
        assert_eq!(due(&vec![1; 200], Some(0), most), Some(usize::from(most)));
    }
}
