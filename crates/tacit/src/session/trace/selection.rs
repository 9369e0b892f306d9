//! Defines what a trace records: one connection, all connections of a rule, all connections of a
//! run (a program under `tacit run`), or the tunnels to a peer.

use std::fmt;

use serde::{Deserialize, Serialize};
use tacit_core::flow::Protocol;

use crate::run::Scope;
use crate::session::record::ConnectionRecord;

/// Which connections a trace records. Flows of datagrams are not traced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TraceSelection {
    /// The connections of the rule with this name.
    Rule(String),
    /// The connection with this id.
    Connection(u64),
    /// The connections of the runs with this name, or of the run with this id.
    Run(String),
    /// The tunnels to the peer `[ike.NAME]`: only their keys.
    Ike(String),
}

impl TraceSelection {
    /// Whether it selects a connection.
    #[must_use]
    pub fn includes(&self, record: &ConnectionRecord) -> bool {
        let is_meant = match self {
            Self::Rule(name) => record.rule.name() == name,
            Self::Connection(id) => record.id == *id,
            Self::Ike(_) => false,
            Self::Run(run) => record.scope.as_ref().is_some_and(|facts| is_run(&facts.scope, run)),
        };
        is_meant && record.protocol == Protocol::Tcp
    }
}

fn is_run(scope: &Scope, run: &str) -> bool {
    scope.name() == run || run.parse().is_ok_and(|id| scope.is_run(id))
}

impl fmt::Display for TraceSelection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rule(name) => write!(f, "rule {name}"),
            Self::Connection(id) => write!(f, "connection {id}"),
            Self::Run(run) => write!(f, "run {run}"),
            Self::Ike(ike) => write!(f, "tunnels to [ike.{ike}]"),
        }
    }
}
