//! Builds the JSON answer to a program that asks about one of its connections.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;
use tacit_core::policy::TlsVersion;
use tacit_core::query::{ConnectionState, PolicyState, QueryError, QueryRequest};

use crate::session::ConnectionRecord;
use crate::session::tls_control::{TlsRequest, TlsRequestError};
use tacit_tls::PeerCheck;
use tacit_tls::verify::identity;

/// An answer. Every answer has all keys; the value is `null` if there is none.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) struct QueryAnswer<'a> {
    policy: PolicyState,
    connection: ConnectionState,
    rule: Option<&'a str>,
    role: Option<&'static str>,
    version: Option<TlsVersion>,
    suite: Option<&'a str>,
    group: Option<&'a str>,
    alpn: Option<&'a str>,
    server_name: Option<&'a str>,
    resumed: Option<bool>,
    rekeys: Option<u32>,
    check: Option<&'static str>,
    reason: Option<&'a str>,
    peer: Option<&'a str>,
    claimed_subject: Option<&'a str>,
}

impl QueryAnswer<'_> {
    /// An answer with only the two states.
    pub(super) fn plain(policy: PolicyState, connection: ConnectionState) -> Self {
        Self {
            policy,
            connection,
            rule: None,
            role: None,
            version: None,
            suite: None,
            group: None,
            alpn: None,
            server_name: None,
            resumed: None,
            rekeys: None,
            check: None,
            reason: None,
            peer: None,
            claimed_subject: None,
        }
    }

    /// Returns the JSON to send.
    pub(super) fn value(&self) -> Value {
        // Plain data with string keys cannot fail to serialize.
        serde_json::to_value(self).unwrap_or_default()
    }
}

/// Answers a query about a connection of the run. If the query is a request, it is carried out
/// first.
///
/// # Errors
/// The request failed.
pub(super) async fn about(
    record: &ConnectionRecord,
    question: QueryRequest,
    descriptor: &Arc<OwnedFd>,
) -> Result<Value, TlsRequestError> {
    let request = match question {
        QueryRequest::Query => None,
        QueryRequest::Start => Some(TlsRequest::Start),
        QueryRequest::Stop => Some(TlsRequest::Stop),
        QueryRequest::Rekey => Some(TlsRequest::Rekey),
    };
    if let Some(request) = request {
        record.tls_control().ok_or(QueryError::Denied)?.ask(request, descriptor).await?;
    }
    Ok(state(record))
}

fn state(record: &ConnectionRecord) -> Value {
    let role = record.rule.action.tls().map(|tls| tls.role().word());
    let policy = match role {
        _ if record.tls_control().is_some() => PolicyState::Controlled,
        Some(_) => PolicyState::Enabled,
        None => PolicyState::NotEnabled,
    };
    let connection = record.state();
    let tls = record.tls.get().filter(|_| connection == ConnectionState::Secure);
    let mut answer = QueryAnswer::plain(policy, connection);
    answer.rule = Some(record.rule.name());
    answer.role = role;
    let Some(tls) = tls else { return answer.value() };
    let agreed = &tls.agreed;
    let who = identity(&tls.check, &tls.named, tls.peer.as_deref());
    let check = CheckResult::of(&tls.check);
    QueryAnswer {
        version: Some(agreed.version),
        suite: Some(agreed.suite),
        group: agreed.group,
        alpn: agreed.alpn.as_deref(),
        server_name: agreed.server_name.as_deref(),
        resumed: Some(agreed.resumed),
        rekeys: Some(record.rekeys()),
        check: Some(check.word),
        reason: check.reason,
        peer: who.identity.as_deref(),
        claimed_subject: who.claimed_subject.as_deref(),
        ..answer
    }
    .value()
}

/// The result of the check of the peer's certificate.
struct CheckResult<'a> {
    word: &'static str,
    /// Why it was waived.
    reason: Option<&'a str>,
}

impl<'a> CheckResult<'a> {
    fn of(check: &'a PeerCheck) -> Self {
        match check {
            PeerCheck::Valid => Self { word: "ok", reason: None },
            PeerCheck::Invalid { reason } => Self { word: "waived", reason: Some(reason) },
            other => Self { word: other.word(), reason: other.reason() },
        }
    }
}
