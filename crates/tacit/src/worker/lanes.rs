//! Defines the traits between worker threads and lanes. A *lane* is the code that serves one kind
//! of traffic: streams or datagrams.
//!
//! ```text
//!   one thread       WorkSource::serve ──> Served ──> stop or finish
//!                    │ HandedOver: a connection for another thread
//!                    v
//!   another thread   Lanes::resume
//! ```
//!
//! A [`WorkSource`] is, for example, a listening socket. A thread begins to serve a source with
//! `serve`, which returns a [`Served`]. To stop serving the source, the thread calls `stop` or
//! `finish` of this [`Served`]. After `stop`, the accepted connections of the source continue.
//! `finish` ends these connections.
//!
//! A thread can hand a connection over to another thread, for example an engine to a data worker.
//! The other thread then calls `resume` of its own [`Lanes`].

use std::fmt;
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use crate::engine::Thread;

/// The lanes of one thread.
pub trait Lanes: Sized + fmt::Debug + 'static {
    /// The state that the lanes of all threads share.
    type Shared: Clone + Send + fmt::Debug + 'static;
    /// Work that an engine hands over to a worker.
    type HandedOver: Send + fmt::Debug + 'static;

    /// Opens the lanes on the calling thread.
    fn open(shared: Self::Shared, thread: Thread<Self::HandedOver>) -> Rc<Self>;

    /// Continues work that an engine has begun.
    fn resume(self: &Rc<Self>, handed_over: Self::HandedOver);

    /// The number of open connections on all threads.
    fn connections(shared: &Self::Shared) -> usize;
}

/// A source of work that threads serve until it is stopped: a listening socket, or a socket that
/// receives the datagrams of a run.
pub trait WorkSource<L: Lanes>: Send + Sync + fmt::Debug {
    /// The CPU whose worker serves it; `None` for all workers.
    fn cpu(&self) -> Option<usize>;

    /// Serves it on the calling thread.
    ///
    /// # Errors
    /// Its socket cannot be watched.
    fn serve(self: Arc<Self>, lanes: &Rc<L>) -> io::Result<Box<dyn Served>>;
}

/// A source that a thread serves.
pub trait Served {
    /// Stops accepting from the source. Accepted connections continue until they end.
    fn stop(self: Box<Self>);

    /// Relays the data that has arrived, then ends the connections of this source.
    fn finish(self: Box<Self>);
}
