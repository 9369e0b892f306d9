//! Lets connections with equal results of their handshakes share the memory of these results. Most
//! connections of a rule have the same peer and negotiate the same parameters.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;

use super::record::TlsFacts;

/// The number of results that a thread compares with new ones.
const RESULTS_MAX: usize = 8;

/// The results of the last handshakes of a thread that differ from each other.
#[derive(Debug)]
pub struct RecentTls {
    newest_last: RefCell<VecDeque<Arc<TlsFacts>>>,
}

impl Default for RecentTls {
    fn default() -> Self {
        Self { newest_last: RefCell::new(VecDeque::with_capacity(RESULTS_MAX)) }
    }
}

impl RecentTls {
    /// Returns these facts: those of an earlier handshake if they are equal, otherwise new ones.
    #[must_use]
    pub fn share(&self, facts: TlsFacts) -> Arc<TlsFacts> {
        let mut recent = self.newest_last.borrow_mut();
        let at = recent.iter().rposition(|known| **known == facts);
        if let Some(known) = at.and_then(|at| recent.remove(at)) {
            // Results that are used often stay.
            recent.push_back(Arc::clone(&known));
            return known;
        }
        if recent.len() == RESULTS_MAX {
            recent.pop_front();
        }
        let facts = Arc::new(facts);
        recent.push_back(Arc::clone(&facts));
        facts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tacit_core::policy::TlsVersion;
    use tacit_tls::verify::MappedIdentity;
    use tacit_tls::{NegotiatedParameters, PeerCheck};

    fn facts(server_name: &str) -> TlsFacts {
        TlsFacts {
            agreed: NegotiatedParameters {
                version: TlsVersion::V1_3,
                suite: "TLS_AES_128_GCM_SHA256",
                group: None,
                alpn: None,
                server_name: Some(server_name.to_owned()),
                resumed: false,
            },
            check: PeerCheck::NotAsked,
            named: MappedIdentity::None,
            peer: None,
            trusted: None,
        }
    }

    #[test]
    fn equal_results_are_shared_and_others_are_not() {
        let recent = RecentTls::default();
        let first = recent.share(facts("a.example"));
        assert!(Arc::ptr_eq(&first, &recent.share(facts("a.example"))));
        let other = recent.share(facts("b.example"));
        assert_eq!(*other, facts("b.example"));
        assert!(Arc::ptr_eq(&first, &recent.share(facts("a.example"))));
    }

    #[test]
    fn a_thread_keeps_only_the_last_results() {
        let recent = RecentTls::default();
        let first = recent.share(facts("first.example"));
        for number in 0..RESULTS_MAX {
            assert_eq!(recent.newest_last.borrow().len(), number + 1);
            let _ = recent.share(facts(&format!("{number}.example")));
        }
        assert_eq!(recent.newest_last.borrow().len(), RESULTS_MAX);
        assert_eq!(Arc::strong_count(&first), 1);
        assert!(!Arc::ptr_eq(&first, &recent.share(facts("first.example"))));
    }

    #[test]
    fn results_that_are_used_stay() {
        let recent = RecentTls::default();
        let first = recent.share(facts("first.example"));
        for number in 0..2 * RESULTS_MAX {
            assert!(Arc::ptr_eq(&first, &recent.share(facts("first.example"))), "{number}");
            let _ = recent.share(facts(&format!("{number}.example")));
        }
    }
}
