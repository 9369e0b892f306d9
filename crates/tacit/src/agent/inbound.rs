//! Listens on addresses of this host, so that clients can connect to servers under `tacit run`.
//!
//! An inbound rule of the policy contains the address (`listen`) and the ports of the server
//! (`local-ports`). The agent binds the address when the run begins. It listens on the address only
//! while a program of the run listens on one of these ports. Otherwise the kernel refuses
//! connections.
//!
//! If several runs of an agent need the same address, only the first run gets the address.

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
use crate::run::Outside;
use crate::run::handover::HeldAddress;
use crate::run::link::protocol::ListenOrder;
use crate::run::{Run, Scope};
use crate::stream::intercept::{ConnectionSource, Listener};

/// The outside addresses of a run.
#[derive(Debug, Default)]
pub(super) struct Inbound {
    held: BTreeMap<String, BoundAddress>,
}

#[derive(Debug)]
struct BoundAddress {
    listener: Arc<Listener>,
    /// The number of the source at the workers, while it is open.
    open: Option<u64>,
    /// [`Outside::generation`] of the socket.
    generation: u64,
}

fn inbound_rules(policy: &Policy) -> impl Iterator<Item = &Rule> {
    policy.rules.iter().map(Arc::as_ref).filter(|rule| rule.inbound().is_some())
}

/// Binds every inbound address of the policy that no run has yet.
///
/// # Errors
/// An address cannot be bound. All that were bound by this call are released then.
pub(super) async fn reserve_missing<'a>(
    policy: &Policy,
    runs: impl IntoIterator<Item = &'a Inbound>,
    congestion_control: Option<&str>,
    outside: &Outside,
) -> Result<Vec<HeldAddress>, ListenError> {
    let held: HashSet<_> = runs.into_iter().flat_map(|inbound| inbound.held.keys()).collect();
    let mut wanted: BTreeMap<_, _> = inbound_rules(policy)
        .flat_map(Rule::listens)
        .map(|address| (address.to_string(), address))
        .collect();
    wanted.retain(|key, _| !held.contains(key));
    let clear = clear_addresses(policy);
    let mut reserved = Vec::new();
    for address in wanted.into_values() {
        let options = StreamOptions {
            congestion_control: congestion_control.map(str::to_owned),
            reset_on_exit: clear.contains(address),
        };
        let socket = match address::to_socket(address) {
            Ok(at) => outside.reserve(&at, &options).await,
            Err(error) => Err(error),
        };
        let socket = socket.map_err(|error| ListenError::refused(address, &error))?;
        reserved.push(HeldAddress { address: address.clone(), socket });
    }
    Ok(reserved)
}

/// Listens at an address that was bound.
async fn begin_listening(listener: &Listener, outside: &Outside) -> io::Result<()> {
    socket::resume_listening(listener.socket.as_fd())?;
    let at = address::to_socket(&listener.address)?;
    outside.set_listening(&at, ListenOrder::Listen).await
}

/// The same listener with another socket.
async fn bound_again(
    listener: &Listener,
    congestion_control: Option<&str>,
    outside: &Outside,
) -> io::Result<Listener> {
    let Listener { address, security, source, .. } = listener;
    let options = StreamOptions {
        congestion_control: congestion_control.map(str::to_owned),
        reset_on_exit: *security == Security::Clear,
    };
    let socket = Arc::new(outside.reserve(&address::to_socket(address)?, &options).await?);
    Ok(Listener { address: address.clone(), socket, security: *security, source: source.clone() })
}

/// The addresses of rules that accept connections in clear.
fn clear_addresses(policy: &Policy) -> HashSet<&Address> {
    inbound_rules(policy).filter(|rule| !rule.tls_arrives()).flat_map(Rule::listens).collect()
}

impl Inbound {
    /// Assigns addresses to a run. They refuse connections until a program listens.
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
            let source = ConnectionSource::Inbound(Scope::of(Arc::clone(run)));
            let socket = Arc::new(socket);
            let listener = Arc::new(Listener { address, socket, security, source });
            let generation = run.outside.generation();
            self.held.insert(key, BoundAddress { listener, open: None, generation });
        }
    }

    /// Listens on the addresses whose `local-ports` a program listens on, and stops listening on
    /// the others. Releases addresses that are no longer in the policy.
    ///
    /// # Errors
    /// The kernel does not let the agent listen on an address that it has bound.
    pub(super) async fn follow(
        &mut self,
        policy: &Policy,
        listening: &[SocketAddr],
        workers: &Workers,
        outside: &Outside,
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
                match begin_listening(&held.listener, outside).await {
                    Ok(()) => {
                        let number = workers.serve(Arc::clone(&held.listener) as _).await;
                        held.open = Some(number);
                    }
                    Err(error) => result = Err(error),
                }
            } else if let Some(number) = held.open.take_if(|_| !wanted) {
                workers.stop(number).await;
                // If this fails, the socket stays open until the run ends.
                let _ = socket::suspend_listening(socket);
                if let Ok(at) = address::to_socket(&held.listener.address) {
                    let _ = outside.set_listening(&at, ListenOrder::Suspend).await;
                }
            }
        }
        self.held.retain(|key, _| named.contains_key(key));
        result
    }

    /// Binds addresses again whose sockets get no clients any more. [`Self::follow`] listens on
    /// them.
    ///
    /// # Errors
    /// An address cannot be bound. It keeps its old socket.
    pub(super) async fn bind_again(
        &mut self,
        workers: &Workers,
        congestion_control: Option<&str>,
        outside: &Outside,
    ) -> io::Result<()> {
        let mut result = Ok(());
        let generation = outside.generation();
        for held in self.held.values_mut().filter(|held| held.generation != generation) {
            match bound_again(&held.listener, congestion_control, outside).await {
                Ok(listener) => {
                    held.listener = Arc::new(listener);
                    held.generation = generation;
                    if let Some(number) = held.open.take() {
                        workers.stop(number).await;
                    }
                }
                Err(error) => result = Err(error),
            }
        }
        result
    }

    /// Stops the workers from accepting. The sockets stay open.
    pub(super) async fn unlisten(&mut self, workers: &Workers) {
        for held in self.held.values_mut() {
            if let Some(number) = held.open.take() {
                workers.stop(number).await;
            }
        }
    }

    /// The addresses with duplicates of their sockets, for a successor.
    ///
    /// # Errors
    /// The limit of open files is reached.
    pub(super) fn copies(&self) -> io::Result<Vec<HeldAddress>> {
        let copy = |held: &BoundAddress| {
            let socket = held.listener.socket.as_fd().try_clone_to_owned()?;
            Ok(HeldAddress { address: held.listener.address.clone(), socket })
        };
        self.held.values().map(copy).collect()
    }

    /// The addresses, and whether the agent listens on each, for displays.
    pub(super) fn shown(&self) -> impl Iterator<Item = (&Address, bool)> {
        self.held.values().map(|held| (&held.listener.address, held.open.is_some()))
    }
}
