//! The ways into a run: addresses outside that are held for as long as the run lives, and open
//! for as long as one of its programs listens on the rule's `local-ports`.
//!
//! An address that is held and not open refuses connections, as a port does where no program
//! listens.
//!
//! An agent that serves several runs gives each address to the run that came first.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;

use tacit_core::flow::Address;
use tacit_core::policy::{Policy, Rule};
use tacit_sys::socket::{self, StreamOptions};

use super::lanes::Workers;
use super::opened::ListenError;
use crate::address;
use crate::net::Security;
use crate::run::handover::HeldAddress;
use crate::run::{Run, Scope};
use crate::stream::intercept::{ConnectionSource, Listener};

/// A run's addresses outside.
#[derive(Debug, Default)]
pub(super) struct Inbound {
    held: BTreeMap<String, Held>,
}

#[derive(Debug)]
struct Held {
    listener: Arc<Listener>,
    /// The number that workers know it by, while it is open.
    open: Option<u64>,
}

fn inbound_rules(policy: &Policy) -> impl Iterator<Item = &Rule> {
    policy.rules.iter().map(Arc::as_ref).filter(|rule| rule.inbound().is_some())
}

/// Holds every address of the policy that none of the runs holds yet.
///
/// # Errors
/// An address that cannot be had; all are given up then.
pub(super) fn reserve_missing<'a>(
    policy: &Policy,
    runs: impl IntoIterator<Item = &'a Inbound>,
    congestion_control: Option<&str>,
) -> Result<Vec<HeldAddress>, ListenError> {
    let held: HashSet<_> = runs.into_iter().flat_map(|inbound| inbound.held.keys()).collect();
    let mut wanted: BTreeMap<_, _> = inbound_rules(policy)
        .flat_map(Rule::listens)
        .map(|address| (address.to_string(), address))
        .collect();
    wanted.retain(|key, _| !held.contains(key));
    let clear = clear_addresses(policy);
    let reserve = |address: &Address| {
        let options = StreamOptions {
            congestion_control: congestion_control.map(str::to_owned),
            reset_on_exit: clear.contains(address),
        };
        let socket = address::to_socket(address)
            .and_then(|address| socket::reserve(&address, &options.for_address(&address)))
            .map_err(|error| ListenError::refused(address, &error))?;
        Ok(HeldAddress { address: address.clone(), socket })
    };
    wanted.into_values().map(reserve).collect()
}

/// The addresses at which clear bytes may arrive.
fn clear_addresses(policy: &Policy) -> HashSet<&Address> {
    inbound_rules(policy).filter(|rule| !rule.tls_arrives()).flat_map(Rule::listens).collect()
}

impl Inbound {
    /// Takes addresses for a run; they are closed until a program listens.
    pub(super) fn take(
        &mut self,
        reserved: impl IntoIterator<Item = HeldAddress>,
        run: &Arc<Run>,
        policy: &Policy,
    ) {
        let clear_addresses = clear_addresses(policy);
        for HeldAddress { address, socket } in reserved {
            let is_clear = clear_addresses.contains(&address);
            let security = if is_clear { Security::Clear } else { Security::Tls };
            let key = address.to_string();
            let source = ConnectionSource::Inbound(Scope::Run(Arc::clone(run)));
            let socket = Arc::new(socket);
            let listener = Arc::new(Listener { address, socket, security, source });
            self.held.insert(key, Held { listener, open: None });
        }
    }

    /// Opens what a program listens behind, and closes the rest; gives up what no rule names any
    /// more.
    ///
    /// # Errors
    /// An address that cannot be listened on after all.
    pub(super) async fn follow(
        &mut self,
        policy: &Policy,
        listening: &[SocketAddr],
        workers: &Workers,
    ) -> io::Result<()> {
        let mut named = BTreeMap::new();
        for rule in inbound_rules(policy) {
            let ports = rule.inbound().into_iter().flat_map(|inbound| &inbound.local_ports);
            let open = ports
                .into_iter()
                .any(|ports| listening.iter().any(|program| ports.contains(&program.port())));
            for address in rule.listens() {
                *named.entry(address.to_string()).or_insert(false) |= open;
            }
        }
        let mut result = Ok(());
        for (key, held) in &mut self.held {
            let wanted = named.get(key).copied().unwrap_or(false);
            let socket = held.listener.socket.as_fd();
            if wanted && held.open.is_none() {
                match socket::resume_listening(socket) {
                    Ok(()) => {
                        let number = workers.serve(Arc::clone(&held.listener) as _).await;
                        held.open = Some(number);
                    }
                    Err(error) => result = Err(error),
                }
            } else if let Some(number) = held.open.take_if(|_| !wanted) {
                workers.stop(number).await;
                // A socket that cannot be shut down is closed with the run.
                let _ = socket::suspend_listening(socket);
            }
        }
        self.held.retain(|key, _| named.contains_key(key));
        result
    }

    /// Has the workers accept no more; the sockets stay as they are.
    pub(super) async fn unlisten(&mut self, workers: &Workers) {
        for held in self.held.values_mut() {
            if let Some(number) = held.open.take() {
                workers.stop(number).await;
            }
        }
    }

    /// Addresses with copies of their sockets, for a successor.
    ///
    /// # Errors
    /// No descriptor is left.
    pub(super) fn copies(&self) -> io::Result<Vec<HeldAddress>> {
        let copy = |held: &Held| {
            let socket = held.listener.socket.as_fd().try_clone_to_owned()?;
            Ok(HeldAddress { address: held.listener.address.clone(), socket })
        };
        self.held.values().map(copy).collect()
    }

    /// What displays show: each address, and whether it is open.
    pub(super) fn shown(&self) -> impl Iterator<Item = (&Address, bool)> {
        self.held.values().map(|held| (&held.listener.address, held.open.is_some()))
    }
}
