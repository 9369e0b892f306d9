//! Installs a new policy on a link server. Also loads changed files of certificates, `[trust]`
//! tables and CRLs.
//!
//! ```text
//!   SIGHUP ──────────> policy and all files      installed as a whole, or not at all
//!   changed files ───> only these files          if a file cannot be loaded, the server keeps the
//!                                                content that it loaded before
//! ```
//!
//! Then the server closes the sockets that a rule now denies. The server also ends the sessions of
//! hosts whose certificate is no longer accepted.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use tacit_core::policy::{Link, Policy};

use super::session::{leave, log_closed};
use super::tls::{self, LinkSettings, NOT_TRUSTED};
use super::{ServeError, ServedLink, Server, read};
use crate::ledger::on_own_thread;
use crate::live::{Credentials, Refreshed, directory_of};
use crate::log::Event;

impl Server {
    /// Reads the policy and the certificates again. After an error, and for links that it no longer
    /// has, the installed policy stays in force.
    pub(super) fn reload(&self) {
        match self.read_again() {
            Ok((policy, credentials, settings)) => {
                *self.policy.borrow_mut() = Arc::new(policy);
                self.credentials.borrow_mut().replace(credentials);
                self.install(settings);
                self.reloaded.notify_waiters();
                let event = Event::new("link-reloaded");
                self.log.info(event.field("policy", &self.file.display()));
            }
            Err(reason) => {
                let event = Event::new("link-reload-failed").field("policy", &self.file.display());
                self.log.error(event.field("error", &reason));
            }
        }
    }

    /// Loads files that have changed, on a thread of their own.
    pub(super) fn load_changed_files(self: &Rc<Self>) {
        if self.is_loading.get() || !self.credentials.borrow_mut().have_changed() {
            return;
        }
        let policy = Arc::clone(&self.policy.borrow());
        let base = directory_of(&self.file);
        let (loaded, keys) = {
            let credentials = self.credentials.borrow();
            (credentials.loaded.clone(), credentials.keys.clone())
        };
        let of_policy = Arc::clone(&policy);
        let load = move || loaded.refreshed(&of_policy, &base, &keys);
        match on_own_thread("reload", load) {
            Ok(refreshed) => {
                self.is_loading.set(true);
                let server = Rc::clone(self);
                tokio::task::spawn_local(async move {
                    let refreshed = refreshed.await;
                    server.is_loading.set(false);
                    // A policy may have been installed meanwhile, with all files.
                    let is_current = Arc::ptr_eq(&policy, &server.policy.borrow());
                    if let Ok(refreshed) = refreshed
                        && is_current
                    {
                        server.install_files(&policy, refreshed);
                    }
                });
            }
            Err(error) => {
                let event = Event::new("files-not-read").field("error", &error);
                let next = "the link server will soon try again to read the certificates, keys \
                            and CRLs";
                self.log.error(event.field("next", next));
            }
        }
    }

    fn install_files(&self, policy: &Policy, refreshed: Refreshed) {
        let Refreshed { credentials, mut errors } = refreshed;
        let is_same = credentials.same(&self.credentials.borrow().loaded);
        if !is_same {
            match tls::build_all(policy, &credentials) {
                Ok(settings) => {
                    self.credentials.borrow_mut().loaded = credentials;
                    self.install(settings);
                    let event = Event::new("files-reloaded");
                    self.log.info(event.field("policy", &self.file.display()));
                }
                Err(findings) => {
                    errors.extend(findings.into_iter().map(|finding| finding.message));
                }
            }
        }
        self.credentials.borrow_mut().report_errors(errors, &self.log);
    }

    /// Uses other certificates from now on.
    fn install(&self, settings: BTreeMap<String, LinkSettings>) {
        for (name, LinkSettings { server, client }) in settings {
            let Some(link) = self.links.get(&name) else { continue };
            link.tls.replace(server);
            self.end_rejected(link);
            if let Some(remote) = &link.remote {
                remote.replace_tls(client);
            }
        }
    }

    /// Ends the sessions of hosts whose certificate is no longer accepted.
    fn end_rejected(&self, link: &ServedLink) {
        let rejected = link.state.borrow().rejected(link.tls.rejects());
        for (session, run) in rejected {
            leave(link, session);
            log_closed(self, link, &run, NOT_TRUSTED);
        }
    }

    fn read_again(&self) -> Result<NewPolicy, String> {
        let policy = read(&self.file).map_err(|error| error.to_string())?;
        if let Some(sandbox) = &self.sandbox {
            sandbox.check(&policy, &self.file)?;
        }
        let installed = Arc::clone(&self.policy.borrow());
        for name in self.links.keys() {
            let Some(link) = policy.links.get(name) else {
                return Err(format!(
                    "the policy no longer has [link.{name}], but this process still serves this \
                     link: add the table again, or restart `tacit link serve`"
                ));
            };
            let before = &installed.links[name];
            let addresses = |link: &Link| {
                let tcp = link.tcp.as_ref().map(|tcp| tcp.address);
                (
                    link.listen.clone(),
                    tcp,
                    link.vsock,
                    link.connect.as_ref().map(ToString::to_string),
                )
            };
            if addresses(link) != addresses(before) {
                return Err(format!(
                    "`listen` or `connect` of [link.{name}] has changed: restart `tacit link serve`"
                ));
            }
        }
        let keys = self.credentials.borrow().keys.clone();
        let (credentials, settings) = tls::load(&policy, &self.file, &keys)
            .map_err(|findings| ServeError::Policy(self.file.clone(), findings).to_string())?;
        Ok((policy, credentials, settings))
    }
}

/// A policy with its credentials, and the TLS settings of its links.
type NewPolicy = (Policy, Credentials, BTreeMap<String, LinkSettings>);
