//! Collects what the TLS library reports during one step of a handshake: the result of the
//! certificate check, the server name that the client requests, and the traffic secrets. The
//! library reports all three by callbacks.
//!
//! ```text
//!   Handshake::advance ──observe(step)──> rustls ──> ServerCheck, ClientCheck ──┐ report_check
//!          ^                                  ├────> ByServerName ──────────────┤ report_hello
//!          │                                  └────> KeyLog ────────────────────┤ the secrets
//!          └───────── StepOutcome, by value ────────────────────────────────────┘
//! ```
//!
//! rustls resumes a session only if both connections use the same callback object. Therefore all
//! connections of a rule share one callback object. This object cannot store the data of one
//! connection. Instead, the callbacks write to a thread-local variable. [`observe`] clears this
//! variable before the step, and reads it after the step. For this reason, a step must not wait,
//! and must not begin another step on the same thread.

use std::cell::RefCell;
use std::sync::Arc;

use rustls::KeyLog;

use crate::check::CheckedPeer;
use crate::key_log::KeyLogLine;
use crate::secrets::TrafficSecrets;

/// The reports within one step, or within several steps that were merged.
#[derive(Debug, Default)]
pub(crate) struct StepOutcome {
    /// The result of the certificate check. `None` if no check ran in this step: the handshake has
    /// not reached it, the peer sent no certificate, or the session is resumed.
    pub(crate) checked: Option<CheckedPeer>,
    /// The server name that the client requests.
    pub(crate) server_name: Option<String>,
    /// Whether the client offers no cipher suite with ECDHE.
    pub(crate) lacks_ecdhe: bool,
    /// The secrets from which the keys of a TLS 1.3 connection are derived.
    pub(crate) secrets: TrafficSecrets,
    /// All secrets in the format of a key log, if the step collects them.
    pub(crate) key_log: Vec<KeyLogLine>,
    collects_key_log: bool,
}

impl StepOutcome {
    const EMPTY: Self = Self {
        checked: None,
        server_name: None,
        lacks_ecdhe: false,
        secrets: TrafficSecrets::NONE,
        key_log: Vec::new(),
        collects_key_log: false,
    };

    /// Adds the reports of a later step, which replace those of earlier steps.
    pub(crate) fn merge(&mut self, mut later: Self) {
        self.key_log.append(&mut later.key_log);
        if later.checked.is_some() {
            self.checked = later.checked;
        }
        if later.server_name.is_some() {
            self.server_name = later.server_name;
        }
        self.lacks_ecdhe |= later.lacks_ecdhe;
        self.secrets.merge(later.secrets);
    }
}

/// The return value of a step, and the reports within the step.
#[derive(Debug)]
pub(crate) struct Observed<R> {
    pub(crate) result: R,
    pub(crate) outcome: StepOutcome,
}

thread_local! {
    static OUTCOME: RefCell<StepOutcome> = const { RefCell::new(StepOutcome::EMPTY) };
}

/// Runs one step of a handshake and collects the reports within it. The step must not wait.
pub(crate) fn observe<R>(step: impl FnOnce() -> R) -> Observed<R> {
    // The reports of a step that was not observed belong to another connection.
    OUTCOME.take();
    let result = step();
    Observed { result, outcome: OUTCOME.take() }
}

/// The same as [`observe`]; also collects the secrets for a key log.
pub(crate) fn observe_with_key_log<R>(step: impl FnOnce() -> R) -> Observed<R> {
    OUTCOME.set(StepOutcome { collects_key_log: true, ..StepOutcome::EMPTY });
    let result = step();
    Observed { result, outcome: OUTCOME.take() }
}

/// Reports the result of a certificate check.
pub(crate) fn report_check(checked: impl Into<CheckedPeer>) {
    let checked = checked.into();
    OUTCOME.with_borrow_mut(|outcome| outcome.checked = Some(checked));
}

/// Reports the ClientHello: the server name that it requests, and whether it lacks a suite with
/// ECDHE.
#[expect(
    clippy::fn_params_excessive_bools,
    reason = "`lacks_ecdhe` describes the client, and does not select what this function does"
)]
pub(crate) fn report_hello(name: Option<&str>, lacks_ecdhe: bool) {
    let name = name.map(str::to_owned);
    OUTCOME.with_borrow_mut(|outcome| {
        outcome.server_name = name;
        outcome.lacks_ecdhe = lacks_ecdhe;
    });
}

/// Returns a key log that reports the traffic secrets, and all other secrets to a step that
/// collects them. It writes nothing.
pub(crate) fn secrets_reporter() -> Arc<dyn KeyLog> {
    Arc::new(SecretsReporter)
}

#[derive(Debug)]
struct SecretsReporter;

impl KeyLog for SecretsReporter {
    fn log(&self, label: &str, client_random: &[u8], secret: &[u8]) {
        OUTCOME.with_borrow_mut(|outcome| {
            outcome.secrets.keep(label, secret);
            if outcome.collects_key_log {
                outcome.key_log.push(KeyLogLine::new(label, client_random, secret));
            }
        });
    }

    fn will_log(&self, label: &str) -> bool {
        TrafficSecrets::are_logged_as(label)
            || OUTCOME.with_borrow(|outcome| outcome.collects_key_log)
    }
}
