use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Wake;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;

#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

const ALONE: usize = 32;

/// One more connection of a thread, as its relay polls it.
#[derive(Default)]
struct Stream {
    turn: BulkTurn,
    woken: Arc<Woken>,
}

impl Stream {
    fn poll(&mut self, turns: &BulkTurns) -> bool {
        let waker = Waker::from(Arc::clone(&self.woken));
        self.turn.poll(turns, &Context::from_waker(&waker)).is_ready()
    }

    /// Polls, and moves as much as it may.
    fn fill(&mut self, turns: &BulkTurns) -> usize {
        assert!(self.poll(turns), "it waits for a turn");
        self.fill_now(turns)
    }

    /// Moves as much as it may, in its turn.
    fn fill_now(&mut self, turns: &BulkTurns) -> usize {
        let records = turns.records(ALONE);
        self.turn.moved(turns, (records * PAYLOAD_BYTES_MAX) as u64, records);
        records
    }

    /// Polls, and moves a short message.
    fn exchange(&mut self, turns: &BulkTurns) {
        assert!(self.poll(turns), "a brief connection never waits");
        self.turn.moved(turns, 100, turns.records(ALONE));
    }

    fn woken(&self) -> usize {
        self.woken.0.load(Ordering::Relaxed)
    }
}

fn bulk(turns: &BulkTurns) -> Stream {
    let mut stream = Stream::default();
    for _ in 0..FILLED_LEAST {
        stream.fill(turns);
    }
    stream
}

/// Gives the next turn. Returns whether a connection was waiting for one.
fn give(turns: &BulkTurns) -> bool {
    let waker = Waker::noop();
    match turns.poll_next(&Context::from_waker(waker)) {
        Poll::Ready(next) => {
            turns.given.set(turns.given.get().wrapping_add(1));
            next.wake();
            true
        }
        Poll::Pending => false,
    }
}

#[test]
fn bulk_streams_alone_move_whole_batches_and_wait_for_no_turn() {
    let turns = BulkTurns::default();
    let mut streams = [bulk(&turns), bulk(&turns)];
    for _ in 0..10 {
        assert!(streams.iter_mut().all(|stream| stream.fill(&turns) == ALONE));
    }
    assert!(!give(&turns));
}

#[test]
fn beside_a_brief_connection_bulk_streams_have_one_short_turn_after_the_other() {
    let turns = BulkTurns::default();
    let mut streams = [bulk(&turns), bulk(&turns), bulk(&turns)];
    let mut brief = Stream::default();
    brief.exchange(&turns);
    for round in 1..=4 {
        for stream in &mut streams {
            assert!(!stream.poll(&turns), "it has to ask");
            assert!(!stream.poll(&turns), "and asks once");
        }
        for at in 0..streams.len() {
            brief.exchange(&turns);
            assert!(give(&turns));
            let woken: Vec<_> = streams.iter().map(Stream::woken).collect();
            assert_eq!(woken.iter().sum::<usize>(), (round - 1) * streams.len() + at + 1);
            assert_eq!(streams[at].fill(&turns), TURN_RECORDS);
        }
        assert!(!give(&turns));
    }
}

#[test]
fn a_thread_forgets_brief_connections_that_are_silent() {
    let turns = BulkTurns::default();
    let mut stream = bulk(&turns);
    Stream::default().exchange(&turns);
    for _ in 0..REMEMBERED_TURNS {
        assert!(!stream.poll(&turns));
        assert!(give(&turns));
        assert_eq!(stream.fill(&turns), TURN_RECORDS);
    }
    assert_eq!(stream.fill(&turns), ALONE);
}

#[test]
fn a_connection_that_ended_while_it_waited_costs_one_turn() {
    let turns = BulkTurns::default();
    let mut gone = bulk(&turns);
    let mut stays = bulk(&turns);
    Stream::default().exchange(&turns);
    assert!(!gone.poll(&turns) && !stays.poll(&turns));
    drop(gone);
    assert!(give(&turns) && !stays.poll(&turns));
    assert!(give(&turns) && stays.poll(&turns));
}

#[test]
fn numbers_of_turns_begin_again() {
    let turns = BulkTurns::default();
    turns.requested.set(u32::MAX - 1);
    turns.given.set(u32::MAX - 1);
    let mut streams = [bulk(&turns), bulk(&turns), bulk(&turns)];
    Stream::default().exchange(&turns);
    assert!(streams.iter_mut().all(|stream| !stream.poll(&turns)));
    for at in 0..streams.len() {
        assert!(give(&turns));
        let may: Vec<_> = streams.iter_mut().skip(at).map(|stream| stream.poll(&turns)).collect();
        assert!(may[0] && may[1..].iter().all(|may| !may), "{at}: {may:?}");
    }
}

#[test]
fn a_bulk_stream_that_exchanges_short_messages_is_brief_again() {
    let turns = BulkTurns::default();
    let mut stream = bulk(&turns);
    stream.exchange(&turns);
    assert!(!stream.turn.is_bulk() && turns.is_shared());
}

/// The number of polls of the kernel between two turns of a bulk stream. Each poll finds a byte for
/// the task of a brief connection, which then calls `receive`.
fn polls_between_turns(receive: fn(&mut Stream, &BulkTurns)) -> Vec<u32> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
    let turns = Rc::new(BulkTurns::default());
    let polls = Rc::new(Cell::new(0));
    let mut stream = bulk(&turns);
    let mut brief = Stream::default();
    brief.exchange(&turns);
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let giver = Rc::clone(&turns);
        tokio::task::spawn_local(async move { giver.give().await });
        let messages = Rc::clone(&turns);
        let counted = Rc::clone(&polls);
        tokio::task::spawn_local(async move {
            let (mut writer, mut reader) = tokio::net::UnixStream::pair().unwrap();
            loop {
                writer.write_all(&[0]).await.unwrap();
                // A buffer that is not filled makes the next read wait for the kernel.
                assert_eq!(reader.read(&mut [0; 2]).await.unwrap(), 1);
                counted.set(counted.get() + 1);
                receive(&mut brief, &messages);
            }
        });
        let mut at = Vec::new();
        for _ in 0..10 {
            poll_fn(|cx| stream.turn.poll(&turns, cx)).await;
            stream.fill_now(&turns);
            at.push(polls.get());
        }
        at.windows(2).map(|pair| pair[1] - pair[0]).collect()
    })
}

#[test]
fn short_messages_postpone_a_turn_up_to_the_limit() {
    let between = polls_between_turns(Stream::exchange);
    // The tasks start during the first turns.
    assert!(between[2..].iter().all(|polls| *polls == KERNEL_POLLS_MAX), "{between:?}");
}

#[test]
fn without_short_messages_a_turn_follows_each_poll_of_the_kernel() {
    let between = polls_between_turns(|_, _| ());
    assert!(between[2..].iter().all(|polls| *polls == 1), "{between:?}");
}
