//! The ledger: where the agent's CPU time goes, by rule, component and place.
//!
//! ```text
//!   each thread: meter ──(a window)──> account of a rule ──> costs: displays, metrics, projections
//! ```
//!
//! Stages of both lanes say what they do ([`meter::switch`]); the life of a connection says whose
//! it is ([`meter::turn`]). A microsecond stands in one cell. What no cell has is printed as
//! uncaptured: name look-ups by the C library's threads, and the windows that are open.
//!
//! Limits: an account for each rule that is installed or has open connections; what rules cost
//! that are gone is kept in one sum.

mod account;
pub mod costs;
pub mod meter;

pub use account::{Account, Count, Counts, Effort, Owner, Spent, Totals};

use std::pin::{Pin, pin};
use std::sync::Arc;

use tacit_core::meter::Component;

/// Charges a future to the agent itself.
pub async fn metered<T>(component: Component, future: impl Future<Output = T>) -> T {
    charged(Account::agent(), component, pin!(future), |_| ()).await
}

/// Charges a future to an account; `spent_ns` hears of each of its turns how long it took.
pub async fn charged<T>(
    account: &Arc<Account>,
    mut component: Component,
    mut future: Pin<&mut impl Future<Output = T>>,
    spent_ns: impl Fn(u64),
) -> T {
    std::future::poll_fn(|cx| {
        let (polled, ns) = meter::turn(account, &mut component, || future.as_mut().poll(cx));
        spent_ns(ns);
        polled
    })
    .await
}
