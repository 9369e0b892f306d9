//! Parses and evaluates policies: identities, trust settings, and the rules for flows.
//!
//! [`parse`] turns text into a valid [`Policy`]. [`parse`] does no I/O. The agent makes the checks
//! that need I/O, for example whether files exist and private keys match their certificates.
//!
//! Rules are ordered, and the first matching rule decides. A flow that matches no rule is denied,
//! unless the table `[host]` permits it. [`Rule::matches`] defines a match, [`Index`] finds the
//! rule fast, and [`explain`] explains the choice.

mod activate;
mod agent;
mod capture;
mod clear_clients;
mod client_cert;
mod content;
mod credentials;
mod diagnostic;
pub mod engine;
mod explain;
pub mod filter;
mod filter_rule;
mod host;
mod host_warnings;
mod ike;
mod link;
mod lookup;
pub mod map;
mod packet_explain;
mod packet_tunnel;
mod parse;
mod rule;
mod sa;
pub mod selector;
mod source;
mod starttls;
mod suite;
mod target;
pub mod text;
mod tls;
mod tunnel;
pub mod when;

pub use activate::{ActivateOn, Activation, ProcessFor, RuleActivation, SocketAs};
pub use agent::{AgentSettings, Limits};
pub use capture::{
    CAPTURE_RANGES_MAX, COUNTED_RANGES_MAX, CaptureRange, CountedRange, Extension,
    HANDABLE_RANGES_MAX, HOST_RANGES_MAX, HOST_SECTIONS_MAX, HOST_UNITS_MAX, HostName, HostPlan,
    HostRange, HostSection, HostUnits, HostVerdict, JoinedRun, LearntName, NAMED_PORTS_MAX,
    NameRules, NamedAddress, NamedPorts, PORT_PARTS_MAX, RuleSet, SENDER_CHECKS_MAX, Senders,
    can_match_address, can_match_name, captured, denial_of_name, extend, filter_plan, handable,
    host_classifier, host_plan, is_decided_by_kernel, is_disputed, joined_plan, may_ask,
    tunnel_classifier, tunnel_filter_plan, unmatched_of_joined,
};
pub use clear_clients::{ClearClients, ClientProtocol};
pub use client_cert::{
    Absent, ChainCheck, ClientCert, ClientCertPolicy, Invalid, PeerName, Preset,
};
pub use content::Policy;
pub use credentials::{
    ExpiredAnchors, FilePositions, Identity, Revocation, SYSTEM_TRUST, Trust, TrustSource,
};
pub use diagnostic::{Diagnostic, DiagnosticSeverity, QuotedLine, SourcePosition};
pub use engine::{EngineClass, EngineSettings, Placement, RelayOn};
pub use explain::{
    DecidingRule, Explanation, SkippedRule, TunnelExplanation, explain, explain_at, explain_link,
};
pub use host::{FORWARDED_MAX, HostMode, HostSettings, Unmatched};
pub use host_warnings::{
    ForeignMark, HostFacts, KNOWN_MARKS, KnownMark, SshSession, host_warnings,
};
pub use ike::{
    EspSuite, IKE_PROPOSALS_MAX, IkeCredentials, IkeGroup, IkeHost, IkeName, IkePeer, IkeSuite,
    InnerAddressSource, KeyLifetime, Sha2, TunnelCipher,
};
pub use link::{
    Link, LinkConnect, LinkNames, LinkRule, LinkSelection, LinkSharing, LinkTcp, LinkVerdict,
    LinkVsock,
};
pub use lookup::{Index, Lookup};
pub use map::IdentityMap;
pub use packet_explain::{PacketExplainer, PacketExplanation, SkippedFilter};
pub use packet_tunnel::IpsecDecision;
pub(crate) use parse::remote_name;
pub use parse::{
    FindingsShown, ParsedPolicy, RULES_MAX, language, parse, parse_duration, parse_files,
    parse_size, show_duration,
};
pub use rule::{
    Action, Answers, Deny, ForwardRule, InboundRule, Ipsec, PathChoice, Rule, RuleForm, SendProxy,
    TunnelKeying, UnixSocket,
};
pub use sa::{ManualMode, ManualProtection, ManualSa, SaKeyFile};
pub use selector::{Mismatch, NamePattern, SLICE, Selectors, UnknownOwner, unescaped, unit_of};
pub use source::{INCLUDED_FILES_MAX, IncludePattern, POLICY_BYTES_MAX, PolicyText};
pub use starttls::{
    Cancel, DataResumption, FtpOptions, POSTGRES_ALPN, PostgresOptions, Start, Starttls,
    StarttlsMode, StarttlsProtocol,
};
pub use suite::{Group, Suite, TlsVersion, suite_refusal};
pub use target::{Connect, TARGETS_MAX, Target, TargetOrder};
pub use tls::{
    ClientTls, ConnectAfter, OwnTls, RecheckAction, Rekey, ServerTls, Tls, TlsCommon, Verify,
};
pub use tunnel::{
    PacketPart, TUNNEL_GROUPS_MAX, TUNNEL_PREFIXES_MAX, TUNNEL_RANGES_MAX, TunnelGroup,
    TunnelLimit, TunnelPacket, TunnelPrefix, TunnelRoutes, TunnelRule,
};
pub use when::When;
