//! Opens the listening sockets of forwarding rules, and changes these sockets on a reload. If
//! another agent replaces this agent, this module hands the sockets over.

use std::collections::BTreeMap;
use std::sync::Arc;

use tacit_core::policy::{Policy, UnixSocket};

use super::lanes::Workers;
use super::opened::{self, ListenError, Opened, RequiredListener};
use super::takeover::Handover;

/// The listening sockets that a policy requires, by the text of their address.
pub(super) type RequiredListeners = BTreeMap<String, RequiredListener>;

/// Every listening address of a policy. Rules with the same address have the same socket options.
#[must_use]
pub(super) fn wanted(policy: &Policy) -> RequiredListeners {
    let mut all = BTreeMap::new();
    for rule in &policy.rules {
        let Some(forward) = rule.forward() else { continue };
        let clear = !rule.tls_arrives();
        for address in &forward.listen {
            all.entry(address.to_string())
                .and_modify(|known: &mut RequiredListener| known.clear |= clear)
                .or_insert_with(|| RequiredListener {
                    address: address.clone(),
                    clear,
                    unix: forward.unix.clone(),
                });
        }
    }
    all
}

/// The listening sockets of all forwarding rules.
#[derive(Debug)]
pub(super) struct Listeners {
    /// The sockets by the text of their address.
    served: BTreeMap<String, ServedListener>,
    /// The congestion control of new sockets.
    congestion_control: Option<String>,
}

/// A listening socket, and its number at the workers.
#[derive(Debug)]
struct ServedListener {
    opened: Opened,
    /// `None` before workers accept on it.
    source: Option<u64>,
}

/// Listening sockets that a reload has opened. Workers accept on them once the policy is installed.
#[derive(Debug)]
pub(super) struct NewListeners(Vec<(String, Opened)>);

/// A socket file that a reload has given another owner or mode.
struct ChangedFile<'a> {
    opened: &'a mut Opened,
    before: UnixSocket,
}

impl Listeners {
    /// Opens the listening sockets of a policy, or takes them over from the predecessor or systemd.
    ///
    /// # Errors
    /// The agent cannot listen on an address.
    pub(super) fn open(
        policy: &Policy,
        handover: &mut Handover,
        congestion_control: Option<String>,
    ) -> Result<Self, ListenError> {
        let mut served = BTreeMap::new();
        for (key, wanted) in wanted(policy) {
            let opened = handover.open(&wanted, congestion_control.as_deref())?;
            served.insert(key, ServedListener { opened, source: None });
        }
        Ok(Self { served, congestion_control })
    }

    /// Makes the workers accept on all sockets.
    pub(super) async fn serve(&mut self, workers: &Workers) {
        for listener in self.served.values_mut() {
            let source = workers.serve(Arc::clone(&listener.opened.listener) as _).await;
            listener.source = Some(source);
        }
    }

    /// Opens the sockets that a new policy adds, and changes mode and owner of existing socket
    /// files. On an error, undoes all changes.
    ///
    /// # Errors
    /// The agent cannot listen on an address or change a socket file.
    pub(super) fn prepare(
        &mut self,
        wanted: &RequiredListeners,
    ) -> Result<NewListeners, ListenError> {
        let mut new = Vec::new();
        for (key, wanted) in wanted {
            if !self.served.contains_key(key) {
                let opened = opened::open(wanted, self.congestion_control.as_deref())?;
                new.push((key.clone(), opened));
            }
        }
        self.change_files(wanted)?;
        Ok(NewListeners(new))
    }

    fn change_files(&mut self, wanted: &RequiredListeners) -> Result<(), ListenError> {
        let mut changed: Vec<ChangedFile<'_>> = Vec::new();
        for (key, ServedListener { opened, .. }) in &mut self.served {
            let Some(wanted) = wanted.get(key).filter(|new| new.unix != opened.unix) else {
                continue;
            };
            let before = opened.unix.clone();
            let result = opened.set_file_owner(&wanted.unix);
            changed.push(ChangedFile { opened, before });
            if let Err(error) = result {
                for ChangedFile { opened, before } in changed {
                    // The old owner and mode could be set before.
                    let _ = opened.set_file_owner(&before);
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// Makes the workers accept on the new sockets, and closes those that are no longer required.
    pub(super) async fn change(
        &mut self,
        wanted: &RequiredListeners,
        NewListeners(new): NewListeners,
        workers: &Workers,
    ) {
        for (key, opened) in new {
            let source = workers.serve(Arc::clone(&opened.listener) as _).await;
            self.served.insert(key, ServedListener { opened, source: Some(source) });
        }
        let gone: Vec<_> =
            self.served.keys().filter(|key| !wanted.contains_key(*key)).cloned().collect();
        for key in gone {
            if let Some(listener) = self.served.remove(&key) {
                listener.close(workers).await;
            }
        }
    }

    /// Closes all sockets. When this returns, no worker accepts connections any more.
    pub(super) async fn close(&mut self, workers: &Workers) {
        for (_, listener) in std::mem::take(&mut self.served) {
            listener.close(workers).await;
        }
    }

    /// All listening sockets.
    pub(super) fn all(&self) -> impl Iterator<Item = &Opened> {
        self.served.values().map(|listener| &listener.opened)
    }

    /// All listening sockets, mutable.
    pub(super) fn all_mut(&mut self) -> impl Iterator<Item = &mut Opened> {
        self.served.values_mut().map(|listener| &mut listener.opened)
    }

    /// The number of listening sockets.
    #[must_use]
    pub(super) fn len(&self) -> usize {
        self.served.len()
    }
}

impl ServedListener {
    async fn close(self, workers: &Workers) {
        if let Some(source) = self.source {
            workers.stop(source).await;
        }
    }
}
