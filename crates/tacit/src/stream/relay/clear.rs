//! The relay between two legs in clear: `permit`.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tacit_sys::socket;

use crate::stream::connection::Connection;
use crate::stream::leg::{Leg, Outgoing};
use crate::stream::secure::ClearPath;

use super::{BATCH_BYTES, End, Scratch};

/// Runs both directions to the end, then ends both legs accordingly.
pub(super) async fn run(scratch: &Scratch, path: ClearPath, connection: &Connection) -> End {
    let ClearPath { accepted, dialled, initial } = path;
    let mut pump = Pump {
        scratch,
        connection,
        accepted,
        dialled,
        onward: Copy { waiting: Outgoing::new(initial), ..Copy::default() },
        back: Copy::default(),
        broken: None,
    };
    let end = (&mut pump).await;
    if matches!(end, End::Orderly) {
        pump.accepted.end_in_order();
        pump.dialled.end_in_order();
        return end;
    }
    pump.onward.waiting.flush_or_give_up(&pump.dialled).await;
    pump.back.waiting.flush_or_give_up(&pump.accepted).await;
    pump.dialled.reset_after_delivery().await;
    pump.accepted.reset_after_delivery().await;
    end
}

#[derive(Debug)]
struct Pump<'a> {
    scratch: &'a Scratch,
    connection: &'a Connection,
    accepted: Leg,
    dialled: Leg,
    onward: Copy,
    back: Copy,
    /// What broke one direction's write while the other still had bytes to deliver.
    broken: Option<End>,
}

/// One direction.
#[derive(Debug, Default)]
struct Copy {
    waiting: Outgoing,
    ending: bool,
    done: bool,
}

/// Which leg failed, and at what.
enum Failure {
    Read(std::io::Error),
    Write(std::io::Error),
}

impl Future for Pump<'_> {
    type Output = End;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<End> {
        let pump = self.get_mut();
        let held = pump.held_bytes();
        let onward = pump.onward.poll(pump.scratch, &pump.accepted, &pump.dialled, cx, |count| {
            pump.connection.count_sent(count)
        });
        let back = pump.back.poll(pump.scratch, &pump.dialled, &pump.accepted, cx, |count| {
            pump.connection.count_received(count)
        });
        pump.scratch.account(held, pump.held_bytes());
        let mut pending = false;
        for (polled, from_accepted) in [(onward, true), (back, false)] {
            match polled {
                Poll::Pending => pending = true,
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(Failure::Read(error))) => {
                    return Poll::Ready(End::Broken { clear: from_accepted, error });
                }
                Poll::Ready(Err(Failure::Write(error))) => {
                    pump.broken.get_or_insert(End::Broken { clear: !from_accepted, error });
                }
            }
        }
        if pending {
            return Poll::Pending;
        }
        Poll::Ready(pump.broken.take().unwrap_or(End::Orderly))
    }
}

impl Drop for Pump<'_> {
    fn drop(&mut self) {
        self.scratch.account(self.held_bytes(), 0);
    }
}

impl Pump<'_> {
    fn held_bytes(&self) -> usize {
        self.onward.waiting.len() + self.back.waiting.len()
    }
}

impl Copy {
    fn poll(
        &mut self,
        scratch: &Scratch,
        from: &Leg,
        to: &Leg,
        cx: &mut Context<'_>,
        count_bytes: impl Fn(usize),
    ) -> Poll<Result<(), Failure>> {
        if self.done {
            return Poll::Ready(Ok(()));
        }
        loop {
            if let Err(error) = ready!(self.waiting.poll_flush(to, cx)) {
                self.waiting = Outgoing::default();
                self.done = true;
                return Poll::Ready(Err(Failure::Write(error)));
            }
            if self.ending {
                self.done = true;
                // A failure shows in the other direction.
                let _ = to.shutdown_write();
                return Poll::Ready(Ok(()));
            }
            let mut buffers = scratch.buffers.borrow_mut();
            let asked = BATCH_BYTES / super::BATCH_RECORDS_MAX * scratch.batch_records();
            let bytes = &mut buffers.bytes[..asked];
            let read = ready!(from.poll_read(cx, asked, |fd| socket::read(fd, &mut *bytes)));
            let count = read.map_err(Failure::Read)?;
            if count == 0 {
                self.ending = true;
                continue;
            }
            count_bytes(count);
            // What the socket does not take, and any error it has, is met again by the flush.
            let written = socket::write(to.fd(), &bytes[..count]).unwrap_or(0);
            if written < count {
                self.waiting.tail().extend_from_slice(&bytes[written..count]);
            }
            if count == asked {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
        }
    }
}
