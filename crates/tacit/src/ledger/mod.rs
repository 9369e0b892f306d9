//! Implements the ledger: the agent's record of its CPU time, by rule, component and kind of CPU. A
//! component is a kind of work, such as the handshake. There are two kinds of CPU: CPUs reserved
//! for engines, and general CPUs.
//!
//! ```text
//!   each thread: meter ──> account of a rule ──> costs: output of commands, metrics, estimates
//! ```
//!
//! The code that serves a connection calls [`meter::switch`] with the component and [`meter::turn`]
//! with the rule. Each microsecond of a metered thread is charged to exactly one rule and
//! component. Some threads, such as the threads that look up names, are not metered. `tacit show
//! costs` reports the CPU time of these threads as `uncaptured`.
//!
//! Limits: one account for each rule that is installed or has open connections, and one account for
//! all removed rules.

mod account;
pub mod costs;
pub mod meter;

pub use account::{
    Account, Accounts, Count, Counts, CpuTimes, MeteringOverhead, Owner, ThreadKind, Totals,
};

use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::thread;

use tacit_core::meter::Component;
use tacit_core::parallel::{self, ThreadHooks};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// Does long work on a thread of its own, within the calling runtime, and charges it to the agent
/// itself. If `work` panics, there is no result.
///
/// # Errors
/// The kernel cannot create a thread. Then `work` is dropped and not done.
pub fn on_own_thread<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<oneshot::Receiver<T>> {
    let (done, result) = oneshot::channel();
    let runtime = Handle::current();
    thread::Builder::new().name(name.to_owned()).spawn(move || {
        let _entered = runtime.enter();
        meter::start(ThreadKind::General);
        let made = work();
        meter::publish();
        // The waiting task may have ended.
        let _ = done.send(made);
    })?;
    Ok(result)
}

/// Charges the threads that help to read a policy to the agent itself.
pub fn charge_parallel_threads() {
    let begin = || meter::start(ThreadKind::General);
    parallel::set_thread_hooks(ThreadHooks { begin, end: meter::publish });
}

/// Charges a future to the agent itself.
pub async fn metered<T>(component: Component, future: impl Future<Output = T>) -> T {
    charged(Account::agent(), component, pin!(future), |_| ()).await
}

/// Charges a future to an account; `usage_ns` receives the duration of each of its turns.
pub async fn charged<T>(
    account: &Arc<Account>,
    mut component: Component,
    mut future: Pin<&mut impl Future<Output = T>>,
    usage_ns: impl Fn(u64),
) -> T {
    std::future::poll_fn(|cx| {
        let turn = meter::turn(account, &mut component, || future.as_mut().poll(cx));
        usage_ns(turn.usage_ns);
        turn.output
    })
    .await
}
