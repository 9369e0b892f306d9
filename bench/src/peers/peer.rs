//! Defines what a peer of the benchmark is. A peer is one method to protect the connection between
//! two programs: a pair of proxies, a TLS library, or tacit. This module also determines which
//! workloads a peer supports.

use super::plan::Proxy;
use crate::tls_settings::TlsSettings;
use crate::workload::{Kind, Workload};

/// A peer of the comparison.
#[derive(Debug)]
pub(crate) struct Peer {
    /// The name for `--peers`.
    pub(crate) name: &'static str,
    /// A description for the report.
    pub(crate) title: &'static str,
    pub(super) form: Form,
}

/// How the connection is protected.
#[derive(Debug)]
pub(super) enum Form {
    /// No TLS and no proxy: the cost of the two programs and of loopback.
    Direct,
    /// No TLS, and two relays that only copy bytes: the cost of the TCP connections of two proxies.
    Relays,
    /// TLS by a library in both programs.
    InProcess(&'static str),
    /// Two proxies.
    Proxies(Proxy),
    /// Two proxies in a [`crate::peer_network::PeerNetwork`], one CPU for each side.
    Given(Proxy),
    /// Two `tacit run`s, with this `placement` in the policy.
    Runs(Option<&'static str>),
}

impl Peer {
    /// Whether the peer supports a workload. Programs with TLS use each connection for one purpose.
    pub(crate) fn supports(&self, workload: &Workload) -> bool {
        let is_alone = !matches!(workload.kind, Kind::Beside { .. });
        self.takes(workload.settings) && (is_alone || !matches!(self.form, Form::InProcess(_)))
    }

    /// Whether the peer is measured with these TLS settings. Other cipher suites are measured only
    /// for tacit and for OpenSSL in the programs: their cost depends on the library.
    pub(crate) fn takes(&self, settings: TlsSettings) -> bool {
        match (&self.form, settings) {
            (_, TlsSettings::Usual) => true,
            (Form::Direct | Form::Relays | Form::Given(_), _) => false,
            // The openssl crate cannot resume a session without unsafe code.
            (Form::InProcess(library), TlsSettings::Resumed) => *library != "openssl",
            (_, TlsSettings::Resumed) => true,
            (Form::InProcess(library), _) => *library == "openssl",
            (Form::Runs(_), _) => true,
            (Form::Proxies(_), _) => self.is_tacit(),
        }
    }

    /// Whether the peer is a product other than tacit, as installed.
    pub(crate) fn is_rival(&self) -> bool {
        matches!(self.form, Form::Proxies(_)) && !self.is_tacit()
    }

    /// Whether the peer is such a product with the network of `tacit run`.
    pub(crate) fn is_given(&self) -> bool {
        matches!(self.form, Form::Given(_)) && !self.is_tacit()
    }

    /// Whether the peer is a configuration of tacit.
    pub(crate) fn is_tacit(&self) -> bool {
        self.name.starts_with("tacit")
    }
}
