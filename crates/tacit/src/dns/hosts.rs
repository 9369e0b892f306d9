//! Reads the host's `/etc/hosts`. Programs resolve the names in this file without a DNS query.

use std::sync::Arc;

use tacit_core::dns::{self, HostsEntry};

use crate::host_file::HostFile;

/// The current content of the host's `/etc/hosts`.
#[derive(Debug)]
pub struct Hosts {
    file: HostFile,
    pairs: Arc<[HostsEntry]>,
}

impl Default for Hosts {
    fn default() -> Self {
        let mut hosts = Self { file: HostFile::new("/etc/hosts"), pairs: Arc::default() };
        hosts.read_again();
        hosts
    }
}

impl Hosts {
    /// Addresses with their names.
    #[must_use]
    pub fn pairs(&self) -> Arc<[HostsEntry]> {
        Arc::clone(&self.pairs)
    }

    /// Reads the file again if it has changed; returns whether its content is different.
    pub fn read_again(&mut self) -> bool {
        let Some(text) = self.file.news() else { return false };
        let pairs: Arc<[_]> = dns::hosts(&text).into();
        let is_news = pairs != self.pairs;
        self.pairs = pairs;
        is_news
    }
}
