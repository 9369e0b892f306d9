//! Policy: who we are, whom we believe, and what happens to each flow.
//!
//! Text goes in at [`parse`], a [`Policy`] comes out that cannot hold nonsense: every reference
//! resolves, every rule has exactly one action, every number is inside its limits. What remains to
//! be found out (do files exist, does the key fit the certificate) needs I/O and is the agent's.
//!
//! Rules are ordered; the first that matches decides, and where none matches the flow is denied.
//! [`Rule::matches`] is what that means, [`Index`] finds the rule among many, and [`explain`] says
//! why it was that one.

mod agent;
mod capture;
mod client_cert;
mod content;
mod credentials;
mod diagnostic;
pub mod engine;
mod explain;
mod lookup;
pub mod map;
mod parse;
mod rule;
pub mod selector;
mod starttls;
mod suite;
mod target;
pub mod text;
mod tls;
pub mod when;

pub use agent::{AgentSettings, Limits};
pub use capture::{
    BOXES_MAX, Captured, Extension, LearntName, can_match_name, captured, denial_of_name, extend,
    is_disputed, may_ask,
};
pub use client_cert::{
    Absent, ChainCheck, ClientCert, ClientCertPolicy, Invalid, PeerName, Preset,
};
pub use content::Policy;
pub use credentials::{ExpiredAnchors, Identity, Revocation, Trust, TrustSource};
pub use diagnostic::{Diagnostic, DiagnosticSeverity, SourcePosition};
pub use engine::{EngineClass, EngineSettings, Placement, RelayOn};
pub use explain::{DecidingRule, Explanation, SkippedRule, explain};
pub use lookup::{Index, Lookup};
pub use map::IdentityMap;
pub use parse::{POLICY_BYTES_MAX, ParsedPolicy, RULES_MAX, parse, parse_duration, parse_size};
pub use rule::{Action, Deny, ForwardRule, InboundRule, Rule, RuleForm, SendProxy, UnixSocket};
pub use selector::{Mismatch, NamePattern, Selectors, UnknownOwner};
pub use starttls::{
    Cancel, DataResumption, FtpOptions, POSTGRES_ALPN, PostgresOptions, Start, Starttls,
    StarttlsMode, StarttlsProtocol,
};
pub use suite::{Group, Suite, TlsVersion, suite_refusal};
pub use target::{Connect, TARGETS_MAX, Target, TargetOrder};
pub use tls::{
    ClientTls, ConnectAfter, OwnTls, RecheckAction, Rekey, ServerTls, Tls, TlsCommon, Verify,
};
pub use when::When;
