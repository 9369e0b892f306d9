//! Limits the number of open connections of each source address, each rule and each run. A run is a
//! program under `tacit run`.
//!
//! The policy sets the limits. By default there are no limits. After a reload, the agent still uses
//! the limits from its start.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tacit_core::policy::Limits;

use crate::address::Source;

/// The limits, and the numbers of open connections.
#[derive(Debug)]
pub struct Quotas {
    per_source: Option<usize>,
    per_rule: Option<usize>,
    per_run: Option<usize>,
    open: Mutex<HashMap<QuotaKey, usize>>,
}

/// The group of connections that are counted together.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum QuotaKey {
    Source(Source),
    /// A rule by its name, which stays the same across reloads.
    Rule(Box<str>),
    Run(u64),
}

/// The opener of a connection.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionOpener<'a> {
    /// The client that connected to the agent; `None`: a program of a run opens the connection.
    pub source: Option<Source>,
    /// The rule's name.
    pub rule: &'a str,
    /// The run whose program opens it.
    pub run: Option<u64>,
}

/// A limit that is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaExceeded {
    /// Its key in `[limits]`.
    pub key: &'static str,
    /// The limit.
    pub max: usize,
}

/// A connection that is counted, until this is dropped.
#[derive(Debug)]
pub struct QuotaPermit {
    quotas: Arc<Quotas>,
    keys: Vec<QuotaKey>,
}

impl Quotas {
    /// Creates the limits of a policy, without open connections.
    #[must_use]
    pub fn new(limits: &Limits) -> Self {
        Self {
            per_source: limits.connections_per_source,
            per_rule: limits.connections_per_rule,
            per_run: limits.connections_per_run,
            open: Mutex::default(),
        }
    }

    /// Counts a connection; `None` if no limit applies to it.
    ///
    /// # Errors
    /// The first limit that is reached; nothing was counted.
    pub fn count(
        self: &Arc<Self>,
        opener: ConnectionOpener<'_>,
    ) -> Result<Option<QuotaPermit>, QuotaExceeded> {
        let source = self.per_source.zip(opener.source);
        let run = self.per_run.zip(opener.run);
        let limited = [
            source.map(|(max, source)| ("connections-per-source", max, QuotaKey::Source(source))),
            self.per_rule
                .map(|max| ("connections-per-rule", max, QuotaKey::Rule(opener.rule.into()))),
            run.map(|(max, run)| ("connections-per-run", max, QuotaKey::Run(run))),
        ];
        let mut keys = Vec::new();
        let mut open = None;
        for (limit, max, key) in limited.into_iter().flatten() {
            let open = open.get_or_insert_with(|| self.lock());
            if open.get(&key).is_some_and(|count| *count >= max) {
                return Err(QuotaExceeded { key: limit, max });
            }
            keys.push(key);
        }
        let Some(mut open) = open else { return Ok(None) };
        for key in &keys {
            *open.entry(key.clone()).or_default() += 1;
        }
        Ok(Some(QuotaPermit { quotas: Arc::clone(self), keys }))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<QuotaKey, usize>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for QuotaPermit {
    fn drop(&mut self) {
        let mut open = self.quotas.lock();
        for key in &self.keys {
            if let Some(count) = open.get_mut(key) {
                *count -= 1;
                if *count == 0 {
                    open.remove(key);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quotas(per_source: Option<usize>, per_rule: Option<usize>) -> Arc<Quotas> {
        let limits = Limits {
            connections_per_source: per_source,
            connections_per_rule: per_rule,
            connections_per_run: Some(1),
            ..Limits::default()
        };
        Arc::new(Quotas::new(&limits))
    }

    fn client(address: u32, rule: &str) -> ConnectionOpener<'_> {
        ConnectionOpener { source: Some(Source::V4(address)), rule, run: None }
    }

    #[test]
    fn each_source_and_each_rule_has_its_own() {
        let quotas = quotas(Some(2), Some(3));
        let held: Vec<_> = (0..2).map(|_| quotas.count(client(1, "a")).unwrap().unwrap()).collect();
        let of_source = QuotaExceeded { key: "connections-per-source", max: 2 };
        assert_eq!(quotas.count(client(1, "b")).unwrap_err(), of_source, "of all rules together");
        let third = quotas.count(client(2, "a")).unwrap();
        let of_rule = QuotaExceeded { key: "connections-per-rule", max: 3 };
        assert_eq!(quotas.count(client(3, "a")).unwrap_err(), of_rule);
        assert!(quotas.count(client(3, "b")).is_ok());
        drop(held);
        assert!(quotas.count(client(1, "a")).is_ok(), "they have ended");
        drop(third);
        assert!(quotas.lock().is_empty(), "ended connections are not counted");
    }

    #[test]
    fn a_run_has_its_own_and_what_is_not_limited_is_not_counted() {
        let quotas = quotas(None, None);
        assert!(quotas.count(client(1, "a")).unwrap().is_none());
        let of_run = |run| ConnectionOpener { source: None, rule: "a", run: Some(run) };
        let first = quotas.count(of_run(1)).unwrap();
        assert_eq!(quotas.count(of_run(1)).unwrap_err().key, "connections-per-run");
        assert!(quotas.count(of_run(2)).is_ok());
        drop(first);
        assert!(quotas.count(of_run(1)).is_ok());
    }
}
