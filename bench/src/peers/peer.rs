//! Who is compared, and on which terms.

use super::plan::Proxy;
use crate::terms::Terms;
use crate::workload::{Kind, Workload};

/// Who is compared.
#[derive(Debug)]
pub(crate) struct Peer {
    /// What `--peers` calls it.
    pub(crate) name: &'static str,
    /// What it is, for people.
    pub(crate) title: &'static str,
    pub(super) form: Form,
}

/// How it is put between the programs.
#[derive(Debug)]
pub(super) enum Form {
    /// Not at all, and no TLS: the price of the two programs and of loopback alone.
    Direct,
    /// By a library in both programs.
    InProcess(&'static str),
    /// By two proxies.
    Proxies(Proxy),
    /// By the same two proxies in a [`crate::room::Room`], one CPU for each side.
    Given(Proxy),
    /// By `tacit run`, with the placement that its policy asks for.
    Runs(Option<&'static str>),
}

impl Peer {
    /// Whether the peer carries a workload: programs with TLS in them do one thing at a time.
    pub(crate) fn carries(&self, workload: &Workload) -> bool {
        let is_alone = !matches!(workload.kind, Kind::Beside { .. });
        self.takes(workload.terms) && (is_alone || !matches!(self.form, Form::InProcess(_)))
    }

    /// Whether the peer is measured on these terms. Other suites are for tacit and for OpenSSL in
    /// the program: what the choice of a suite costs is a question to a library, and to a relay.
    pub(crate) fn takes(&self, terms: Terms) -> bool {
        match (&self.form, terms) {
            (_, Terms::Usual) => true,
            (Form::Direct | Form::Given(_), _) => false,
            // Its sessions can be taken up by unsafe code alone.
            (Form::InProcess(library), Terms::Resumed) => *library != "openssl",
            (_, Terms::Resumed) => true,
            (Form::InProcess(library), _) => *library == "openssl",
            (Form::Runs(_), _) => true,
            (Form::Proxies(_), _) => self.is_tacit(),
        }
    }

    /// Whether it is a product that others install, as they install it.
    pub(crate) fn is_rival(&self) -> bool {
        matches!(self.form, Form::Proxies(_)) && !self.is_tacit()
    }

    /// Whether it is such a product with what `tacit run` has.
    pub(crate) fn is_given(&self) -> bool {
        matches!(self.form, Form::Given(_)) && !self.is_tacit()
    }

    /// Whether it is tacit, in whatever form.
    pub(crate) fn is_tacit(&self) -> bool {
        self.name.starts_with("tacit")
    }
}
