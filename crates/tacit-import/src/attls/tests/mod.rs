//! Tests the import of AT-TLS policies, including unusual syntax that occurs in real policies.

mod effective;
mod findings;
mod host;
mod owners;
mod policies;

use super::*;
use crate::{InMemory, Input, Severity};

/// A server with everything it needs, and a client.
const POLICY: &str = "\
TTLSRule web
{
  LocalPortRange 8443
  Direction Inbound
  TTLSGroupActionRef on
  TTLSEnvironmentActionRef server
}
TTLSGroupAction on
{
  TTLSEnabled On
}
TTLSEnvironmentAction server
{
  HandshakeRole Server
  TTLSKeyringParms
  {
    Keyring WEB/RING
  }
  TTLSEnvironmentAdvancedParms
  {
    TLSv1 Off
    TLSv1.1 Off
    TLSv1.2 On
    TLSv1.3 On
  }
}
";

/// The lines of [`POLICY`], so that what follows begins there.
const POLICY_LINES: usize = 26;

const MAP: &str = "\
[keyring.\"WEB/RING\"]
cert = \"web.pem\"
key = \"web.key\"
ca = \"ca.pem\"
[keyring.\"WEB/RING\".label.\"Our Server\"]
cert = \"ours.pem\"
key = \"ours.key\"
";

/// What is imported in memory.
#[derive(Clone, Copy, Default)]
pub(crate) struct Given<'a> {
    pub(crate) policies: &'a [Input<'a>],
    pub(crate) filters: &'a [Input<'a>],
    pub(crate) map: Option<Input<'a>>,
    pub(crate) options: AttlsOptions,
}

impl Given<'_> {
    pub(crate) fn import(&self, findings: &mut Findings) -> Imported {
        let Self { policies, filters, map, options } = *self;
        let names = |inputs: &[Input<'_>]| -> Vec<String> {
            inputs.iter().map(|input| input.file.to_owned()).collect()
        };
        let request = AttlsRequest {
            policies: &names(policies),
            filters: &names(filters),
            root: None,
            map,
            options,
        };
        import(&request, &InMemory(&[policies, filters].concat()), findings)
    }
}

/// What an import makes of a policy: its text, and its findings as `LINE WORD: message (fix)`.
fn imported(policy: &str, map: &str, options: AttlsOptions) -> (Option<String>, Vec<String>) {
    let mut findings = Findings::default();
    let file = Input { file: "p", bytes: policy.as_bytes() };
    let map = Input { file: "m", bytes: map.as_bytes() };
    let given = Given { policies: &[file], map: Some(map), options, ..Given::default() };
    let imported = given.import(&mut findings);
    let found = findings.finish().into_iter().map(|one| {
        let fix = one.fix.map(|fix| format!(" ({})", fix.replace('\n', "|"))).unwrap_or_default();
        let file = if one.file == "p" { "" } else { &one.file };
        format!("{file}{} {}: {}{fix}", one.line, one.severity.word(), one.message)
    });
    (imported.policy, found.collect())
}

/// The rule's `tls` and all that stands behind it, and what was found, without what every import
/// says.
fn imported_rules(policy: &str, map: &str) -> (String, Vec<String>) {
    let (text, found) =
        imported(policy, map, AttlsOptions { fail_closed: true, ..AttlsOptions::default() });
    let text = text.unwrap_or_default();
    let rules = text.split_once("[[rule]]").map_or("", |(_, rules)| rules).to_owned();
    let found = found.into_iter().filter(|found| {
        !found.starts_with("1 info: tacit listens only on the")
            && !found.starts_with("1 changed: connections that match no")
    });
    (rules, found.collect())
}

/// The effective table of a policy.
fn table(policy: &str) -> String {
    let mut findings = Findings::default();
    let file = Input { file: "p", bytes: policy.as_bytes() };
    Given { policies: &[file], ..Given::default() }.import(&mut findings).effective
}

fn severity_of(found: &str) -> Severity {
    match found {
        _ if found.contains(" error: ") => Severity::Error,
        _ if found.contains(" changed: ") => Severity::Changed,
        _ => Severity::Info,
    }
}
