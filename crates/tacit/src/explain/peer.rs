//! `tacit explain --peer`: shows whether a rule or an identity map accepts a certificate.
//!
//! The command makes the same checks as a handshake, with the same error messages. The command
//! omits only one check: whether the peer has the private key of its certificate.

use std::fmt;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use rustls_pki_types::{CertificateDer, UnixTime};
use serde::Serialize;
use tacit_core::policy::map::{MapEntry, Mapped, SkippedEntry};
use tacit_core::policy::text::{nearest_word, word_list};
use tacit_core::policy::{Action, IdentityMap, Policy, Rule, Target, Tls, Verify};
use tacit_tls::credentials::{CredentialError, LoadedTrust, load_chain, load_trust};
use tacit_tls::dry_run::{self, ClientPeer, ClientRequirements, DryRun};
use tacit_tls::verify::{IdentityMapper, MappedIdentity, identity};
use tacit_tls::{CertificateFacts, PeerCheck, subject};

use crate::control::display::connections::CertificateState;
use crate::exit::{EXIT_FAILURE, EXIT_USAGE};
use crate::live::CredentialNames;

/// The peer to evaluate.
#[derive(Debug)]
pub(super) struct Peer<'a> {
    /// The file with the certificate and its intermediates.
    pub(super) file: &'a Path,
    /// The address of the peer.
    pub(super) address: Option<IpAddr>,
    /// The names that the program resolved.
    pub(super) names: &'a [String],
    /// The time of the check.
    pub(super) now: UnixTime,
}

/// Why the peer cannot be evaluated.
#[derive(Debug)]
pub(super) enum PeerError {
    /// The options do not fit the policy.
    Usage(String),
    /// A file of the peer or of the policy cannot be used.
    File(String),
}

impl PeerError {
    /// The exit status of the command.
    pub(super) fn exit_status(&self) -> u8 {
        match self {
            Self::Usage(_) => EXIT_USAGE,
            Self::File(_) => EXIT_FAILURE,
        }
    }
}

impl From<CredentialError> for PeerError {
    fn from(error: CredentialError) -> Self {
        Self::File(error.to_string())
    }
}

impl fmt::Display for PeerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Usage(text) | Self::File(text)) = self;
        f.write_str(text)
    }
}

/// The result of the evaluation.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) struct Answer {
    /// The rule; absent for `--map`.
    rule: Option<String>,
    /// The rule's `client-cert`, or its way to verify servers.
    level: Option<String>,
    /// The result of the certificate check; absent for `--map`.
    check: Option<PeerCheck>,
    /// The result of the identity map; absent if the rule has none.
    map: Option<MapAnswer>,
    /// `served` or `refused`.
    verdict: &'static str,
    /// The name that the peer gets.
    identity: Option<String>,
    /// Why the peer is refused, in one line.
    reason: Option<String>,
    /// The content of the certificate.
    #[serde(serialize_with = "CertificateState::serialize_facts")]
    certificate: CertificateFacts,
}

/// The result of an identity map.
#[derive(Debug, Serialize)]
struct MapAnswer {
    name: String,
    /// The deciding entries: none, one, or two that contradict each other.
    decide: Vec<DecidingEntry>,
    /// The other entries, and why they do not decide.
    passed: Vec<SkippedEntry>,
}

#[derive(Debug, Serialize)]
struct DecidingEntry {
    line: usize,
    outcome: String,
}

/// Evaluates the certificate with a rule. File names in the policy are relative to `base`.
pub(super) fn check_with_rule(
    policy: &Policy,
    base: &Path,
    name: &str,
    peer: &Peer<'_>,
) -> Result<Answer, PeerError> {
    let Some(rule) = policy.rule(name) else {
        let next = similar_rule(policy, name);
        let error = format!("the policy has no rule `{name}`\n    fix: {next}");
        return Err(PeerError::Usage(error));
    };
    let Action::Tls(tls) = &rule.action else {
        let action = rule.action.word();
        return Err(PeerError::Usage(format!(
            "rule `{name}` has action {action}, which checks no certificates\n    fix: use the \
             name of a rule that has `tls`"
        )));
    };
    let chain = load_chain(peer.file)?;
    let trust = match CredentialNames::of(rule).trust {
        None => None,
        Some(name) => Some(trust(policy, base, name)?),
    };
    let (level, run, map) = match tls {
        Tls::Server(tls) => {
            let level = &tls.client_cert;
            let map = level.map().and_then(|name| Some((name, policy.maps.get(name)?)));
            let trust = trust.as_ref();
            let requirements = ClientRequirements { level, trust, map: map.map(|(_, map)| map) };
            let client = ClientPeer { chain: &chain, address: peer.address };
            let run = dry_run::client(requirements, client, peer.now);
            (level.to_string(), run, map)
        }
        Tls::Client(tls) => {
            let trust = trust.as_ref();
            if let (Some(hosts), []) = (own_names(rule, &tls.verify), peer.names) {
                return Err(PeerError::Usage(format!(
                    "rule `{name}` compares the server's certificate with the name of the \
                     target\n    fix: use --name to select one of the targets: {hosts}"
                )));
            }
            let run = dry_run::server(&tls.verify, trust, &chain, peer.names, peer.now);
            (tls.verify.word().to_owned(), run, None)
        }
    };
    let run = run.map_err(|error| PeerError::Usage(error.to_string()))?;
    let requested = match map {
        Some((name, map)) if run.check.is_trusted() => ask(name, map, &chain, peer),
        _ => None,
    };
    let check = Some(run.check.clone());
    let rule = Some(name.to_owned());
    Ok(Answer { rule, level: Some(level), check, map: requested, ..answer(&chain, run)? })
}

/// The next step if the policy has no rule `name`: names rules that check certificates.
fn similar_rule(policy: &Policy, name: &str) -> String {
    let rules = policy.rules.iter().filter(|rule| matches!(rule.action, Action::Tls(_)));
    let names: Vec<&str> = rules.map(|rule| rule.name.as_str()).collect();
    if let Some(nearest) = nearest_word(name, &names) {
        return format!("did you mean `{nearest}`?");
    }
    let shown: Vec<&str> = names.iter().copied().take(RULES_SHOWN_MAX).collect();
    match names.len() {
        0 => "use a policy that has a rule with `tls`".to_owned(),
        count if count == shown.len() => format!("use a rule with `tls`: {}", word_list(&shown)),
        _ => format!("use a rule with `tls`, such as {}", word_list(&shown)),
    }
}

/// The largest number of rules that an error names.
const RULES_SHOWN_MAX: usize = 8;

/// The hosts of a rule's targets, if each server must have a certificate for its own name.
fn own_names(rule: &Rule, verify: &Verify) -> Option<String> {
    let connect = rule.connect()?;
    let Verify::Full { server_name: None, .. } = verify else { return None };
    let hosts: Vec<_> = connect.targets.iter().filter_map(Target::host).collect();
    Some(hosts.join(", "))
}

/// Evaluates the certificate with an identity map, without checking the certificate.
pub(super) fn check_with_map(
    policy: &Policy,
    name: &str,
    peer: &Peer<'_>,
) -> Result<Answer, PeerError> {
    let Some(map) = policy.maps.get(name) else {
        let next = "use --map with the name of a map in the policy";
        let error = format!("the policy has no [[map.{name}]]\n    fix: {next}");
        return Err(PeerError::Usage(error));
    };
    let chain = load_chain(peer.file)?;
    let identity_mapper = IdentityMapper::Map { name: name.to_owned(), map: Arc::new(map.clone()) };
    let mapped = match chain.first() {
        Some(leaf) => {
            identity_mapper.identify(leaf, peer.address).map_err(|failure| failure.message)
        }
        None => Ok(MappedIdentity::None),
    };
    let map = ask(name, map, &chain, peer);
    Ok(Answer { map, ..answer(&chain, DryRun { check: PeerCheck::Valid, mapped })? })
}

fn trust(policy: &Policy, base: &Path, name: &str) -> Result<LoadedTrust, PeerError> {
    let missing = || PeerError::Usage(format!("the policy has no [trust.{name}]"));
    let trust = policy.trusts.get(name).ok_or_else(missing)?;
    Ok(load_trust(name, trust, base)?)
}

fn ask(
    name: &str,
    map: &IdentityMap,
    chain: &[CertificateDer<'_>],
    peer: &Peer<'_>,
) -> Option<MapAnswer> {
    // A certificate that cannot be parsed is refused, with the reason.
    let subject = subject::read_subject(chain.first()?, peer.address).ok()?;
    let one = |entry: &MapEntry| DecidingEntry {
        line: entry.position.line,
        outcome: entry.outcome.to_string(),
    };
    let decide = match map.find(&subject) {
        Mapped::Entry(entry) => vec![one(entry)],
        Mapped::Ambiguous(entry, rival) => vec![one(entry), one(rival)],
        Mapped::NoMatch => Vec::new(),
    };
    Some(MapAnswer { name: name.to_owned(), decide, passed: map.passed(&subject) })
}

fn answer(chain: &[CertificateDer<'_>], run: DryRun) -> Result<Answer, PeerError> {
    let facts = chain.first().and_then(|leaf| CertificateFacts::from_der(leaf).ok());
    let invalid = "the first certificate in the file is not valid X.509";
    let certificate = facts.ok_or_else(|| PeerError::File(invalid.to_owned()))?;
    let mut answer = Answer {
        rule: None,
        level: None,
        check: None,
        map: None,
        verdict: "served",
        identity: None,
        reason: None,
        certificate,
    };
    match run.mapped {
        Ok(mapped) => {
            let who = identity(&run.check, &mapped, Some(&answer.certificate));
            answer.identity = who.identity;
            answer.reason = who.warned.map(|entry| {
                format!(
                    "{entry} has deny = true and warn = true, so the agent logs a warning and \
                     accepts the client"
                )
            });
        }
        Err(reason) => {
            answer.verdict = "refused";
            answer.reason = Some(reason);
        }
    }
    Ok(answer)
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rule, level, check, map, verdict, identity, reason, certificate } = self;
        let names = certificate.sans.join(", ");
        writeln!(f, "certificate: {}, issued by {}", certificate.title(), certificate.issuer)?;
        writeln!(f, "names: {}", if names.is_empty() { "none" } else { &names })?;
        if let (Some(rule), Some(level)) = (rule, level) {
            writeln!(f, "rule: {rule} ({level})")?;
        }
        match check {
            Some(check) => writeln!(f, "check: {}", check.word())?,
            None => {
                writeln!(f, "check: skipped (this output assumes that the certificate is trusted)")?
            }
        }
        if let Some(MapAnswer { name, decide, passed }) = map {
            for SkippedEntry { line, why } in passed {
                writeln!(f, "line {line}: this entry of [[map.{name}]] does not match: {why}")?;
            }
            for DecidingEntry { line, outcome } in decide {
                writeln!(f, "line {line}: this entry of [[map.{name}]] matches: {outcome}")?;
            }
        }
        let why = reason.as_ref().map_or_else(String::new, |reason| format!(": {reason}"));
        match identity {
            Some(identity) => write!(f, "{verdict} as {identity}{why}"),
            None if *verdict == "served" => {
                write!(
                    f,
                    "the agent accepts the client, but assigns no identity to the client{why}"
                )
            }
            None => write!(f, "{verdict}{why}"),
        }
    }
}
