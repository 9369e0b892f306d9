//! Stores the targets of a rule: addresses, and names that are resolved at regular intervals.
//!
//! All threads share the state of a rule's targets: which targets are down, and which target is
//! used next.
//!
//! The control thread resolves names with the C library, and data workers read the latest result.
//! If a resolution fails, the previous addresses stay in use.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tacit_core::failover::Failover;
use tacit_core::flow::Address;
use tacit_core::policy::{Connect, Target, TargetOrder};
use tokio::sync::watch;

/// How often a name is resolved again.
pub const RESOLVE_INTERVAL: Duration = Duration::from_secs(30);
/// How soon a name is resolved again after a failure.
pub const RESOLVE_RETRY: Duration = Duration::from_secs(2);
/// The maximum number of addresses of one name that are tried.
pub const ADDRESSES_MAX: usize = 16;

/// A rule's targets.
#[derive(Debug)]
pub enum LiveTargets {
    /// A single target.
    Only(LiveTarget),
    /// Several targets.
    Several(SeveralTargets),
}

/// Several targets of one rule.
#[derive(Debug)]
pub struct SeveralTargets {
    /// The targets, in the order of the rule.
    pub targets: Vec<LiveTarget>,
    /// How the first target of a connection is chosen.
    pub order: TargetOrder,
    /// Which targets are down.
    pub failover: Failover,
}

impl LiveTargets {
    /// Creates the targets of a rule. The current runtime begins to resolve their names, and
    /// continues until the targets are dropped.
    #[must_use]
    pub fn new(connect: &Connect) -> Self {
        if let [only] = connect.targets.as_slice() {
            return Self::Only(LiveTarget::new(only));
        }
        let targets: Vec<_> = connect.targets.iter().map(LiveTarget::new).collect();
        let failover = Failover::new(connect.order, targets.len(), Instant::now());
        Self::Several(SeveralTargets { targets, order: connect.order, failover })
    }

    /// Returns the targets if there are several.
    #[must_use]
    pub fn several(&self) -> Option<&SeveralTargets> {
        match self {
            Self::Only(_) => None,
            Self::Several(several) => Some(several),
        }
    }
}

impl std::fmt::Display for LiveTargets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Only(target) => target.fmt(f),
            Self::Several(several) => several.fmt(f),
        }
    }
}

impl SeveralTargets {
    /// Each target, and whether it is down.
    pub fn states(&self) -> impl Iterator<Item = (&LiveTarget, bool)> {
        let states = self.targets.iter().enumerate();
        states.map(|(place, target)| (target, self.failover.is_down(place)))
    }

    /// Records that a target was down in the previous agent. Targets that the rule does not have
    /// are ignored.
    pub fn inherit_down(&self, target: &str, now: Instant) {
        let place = self.targets.iter().position(|known| known.to_string() == target);
        if let Some(place) = place {
            self.failover.failed(place, now);
        }
    }
}

impl std::fmt::Display for SeveralTargets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (place, target) in self.targets.iter().enumerate() {
            let separator = if place == 0 { "" } else { "," };
            write!(f, "{separator}{target}")?;
        }
        Ok(())
    }
}

/// One target.
#[derive(Debug)]
pub enum LiveTarget {
    /// An address.
    Address(Address),
    /// A name, which is resolved at intervals.
    Name {
        /// `host:port`, for messages.
        text: String,
        /// The result of the last resolution; empty before the first one.
        addresses: watch::Receiver<Vec<SocketAddr>>,
    },
}

impl LiveTarget {
    /// Creates a target. The current runtime resolves its name until the target is dropped.
    #[must_use]
    pub fn new(target: &Target) -> Self {
        match target {
            Target::Address(address) => Self::Address(address.clone()),
            Target::Name { host, port } => {
                let (sender, addresses) = watch::channel(Vec::new());
                tokio::spawn(keep_resolving(host.clone(), *port, sender));
                Self::Name { text: format!("{host}:{port}"), addresses }
            }
        }
    }

    /// The addresses that are known now; empty before a name has its first answer.
    #[must_use]
    pub fn known_addresses(&self) -> Vec<SocketAddr> {
        match self {
            Self::Address(Address::Inet(address)) => vec![*address],
            Self::Address(_) => Vec::new(),
            Self::Name { addresses, .. } => addresses.borrow().clone(),
        }
    }

    /// The addresses to try, in order; waits for the first answer.
    pub async fn addresses(&self) -> Vec<Address> {
        match self {
            Self::Address(address) => vec![address.clone()],
            Self::Name { addresses, .. } => {
                let mut addresses = addresses.clone();
                match addresses.wait_for(|known| !known.is_empty()).await {
                    Ok(known) => known.iter().copied().map(Address::from).collect(),
                    // The resolving task ends only with the control thread.
                    Err(_) => Vec::new(),
                }
            }
        }
    }
}

impl std::fmt::Display for LiveTarget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Address(address) => write!(f, "{address}"),
            Self::Name { text, .. } => f.write_str(text),
        }
    }
}

async fn keep_resolving(host: String, port: u16, sender: watch::Sender<Vec<SocketAddr>>) {
    loop {
        let answer = tokio::net::lookup_host((host.as_str(), port)).await;
        let wait = match answer {
            Ok(addresses) => {
                let addresses: Vec<_> = addresses.take(ADDRESSES_MAX).collect();
                if !addresses.is_empty() {
                    sender.send_if_modified(|known| {
                        let changed = *known != addresses;
                        *known = addresses;
                        changed
                    });
                }
                RESOLVE_INTERVAL
            }
            Err(_) => RESOLVE_RETRY,
        };
        tokio::select! {
            () = sender.closed() => return,
            () = tokio::time::sleep(wait) => {}
        }
    }
}
