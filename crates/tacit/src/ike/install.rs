//! Passes negotiated addresses and keys from IKE to the run and to the packet worker.

use std::net::IpAddr;

use tacit_ipsec::ChildSa;
use tacit_ipsec::ike::{FailureSide, IkeFailure, InnerAddresses};

use super::config::{data_lifetime, flows};
use super::connection::PeerConnection;
use super::thread::IkeThread;
use super::{assigned, reports};
use crate::packet::{Tunnel, TunnelAccounts};

impl IkeThread {
    /// Gives a run the addresses that a peer has assigned, unless it must not have them. Resolvers
    /// are only logged: the agent sends queries from the network of the host, not from the run.
    pub(super) fn take_addresses(&mut self, at: usize, inner: &InnerAddresses) {
        let one = &self.connections[at];
        let Some(checked) = self.check_addresses(one, &inner.addresses) else { return };
        match checked {
            Ok(usable) => {
                let one = &mut self.connections[at];
                reports::resolvers_not_used(&self.context.log, one, &inner.resolvers);
                one.inner.clone_from(&usable);
                self.assigned.insert(one.pair.clone(), Ok(usable));
            }
            Err(failure) => self.end_with(at, failure),
        }
    }

    /// Which of these addresses of a connection its run takes, or why it takes none; `None` if the
    /// run has ended.
    pub(super) fn check_addresses(
        &self,
        one: &PeerConnection,
        addresses: &[IpAddr],
    ) -> Option<Result<Vec<IpAddr>, IkeFailure>> {
        let run = self.runs.get(&one.pair.run)?;
        let of_others = self
            .connections
            .iter()
            .filter(|other| other.pair.run == one.pair.run && other.pair.ike != one.pair.ike);
        let others: Vec<IpAddr> = of_others.flat_map(|other| other.inner.iter().copied()).collect();
        let of_other_runs = self.connections.iter().filter(|other| {
            other.pair.run != one.pair.run
                && other.pair.ike == one.pair.ike
                && other.is_established
                && other.ending.is_none()
                && !other.is_closing
                && self.runs.contains_key(&other.pair.run)
        });
        let other_runs: Vec<IpAddr> =
            of_other_runs.flat_map(|other| other.inner.iter().copied()).collect();
        let wanted = assigned::WantedAddresses {
            policy: &self.policy,
            run: &run.name,
            ike: &one.pair.ike,
            routes: &run.routes,
            own: &run.own,
            others: &others,
            other_runs: &other_runs,
            names: &*run.names,
        };
        Some(wanted.usable(addresses))
    }

    /// Installs a tunnel, unless its connection ends or the run has no address for it.
    pub(super) fn install(&mut self, at: usize, child: &ChildSa) {
        let one = &mut self.connections[at];
        let Some(run) = self.runs.get(&one.pair.run) else { return };
        // A connection of an old policy may still get an answer before the peer confirms its end.
        if one.ending.is_some() || one.is_closing {
            return;
        }
        if one.inner.is_empty() {
            self.end_with(at, assigned::missing());
            return;
        }
        let tunnel = Tunnel {
            tun: one.tun,
            child: child.clone(),
            peer: one.remote,
            peer_address: one.peer_address(),
            lifetime: data_lifetime(&one.settings.peer.lifetime),
            flows: flows(&run.routes, &one.pair.ike, &one.inner),
            accounts: TunnelAccounts::new(&run.routes, &one.pair.ike, &self.accounts),
            filter: self.filters.of(&one.pair.ike),
        };
        match self.context.worker.install(tunnel) {
            Ok(()) => {
                let before = one.note_child(child);
                reports::installed(&self.context.log, one, child, before);
                if self.context.traces.are_of(&one.pair.ike) {
                    self.context.traces.give(&one.pair.ike, &one.child_key_lines(child));
                }
            }
            Err(error) => {
                let failure = IkeFailure::new(
                    "tunnel-not-installed",
                    FailureSide::Host,
                    format!("the agent cannot install the tunnel: {error}"),
                );
                self.end_with(at, failure);
            }
        }
    }
}
