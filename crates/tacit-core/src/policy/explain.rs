//! Explains which rule a flow matches, and why earlier rules do not match.

use std::fmt;
use std::fmt::Display;

use serde::{Deserialize, Deserializer, Serialize};

use super::content::Policy;
use super::diagnostic::SourcePosition;
use super::ike::{IkePeer, InnerAddressSource};
use super::link::LinkVerdict;
use super::rule::{Action, Ipsec, Rule, TunnelKeying};
use super::sa::ManualSa;
use super::selector::{Mismatch, Near, Selectors, UnknownOwner, unit_of};
use crate::flow::{Address, Direction, Flow};

/// The number of entries of a list that are shown. The remaining entries are counted.
const SHOWN_MAX: usize = 8;

/// The decision for a flow, and the reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Explanation {
    /// `permit`, `deny`, `tls` or `ipsec`.
    pub verdict: &'static str,
    /// The rule that decided; `None`: no rule matched.
    pub decision: Option<DecidingRule>,
    /// The rules before it, in order.
    pub earlier: Vec<SkippedRule>,
}

/// The rule that decided.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DecidingRule {
    /// Its name.
    pub rule: String,
    /// The included file that it is in; `None`: the policy itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// Its line in that file.
    pub line: usize,
    /// The action that a rule in audit mode would have if it were enforced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub would: Option<String>,
    /// The peer of the tunnel through which the packets pass: that of `[ike.NAME]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ike: Option<String>,
    /// The peer of the tunnel through which the packets pass: that of `[sa.NAME]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sa: Option<String>,
    /// That tunnel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tunnel: Option<TunnelExplanation>,
}

/// The tunnel of a flow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct TunnelExplanation {
    /// The address of the peer, or its name, which the agent resolves, with the port.
    pub peer: String,
    /// The addresses of runs inside the tunnel; empty: the peer assigns one.
    pub inner: Vec<String>,
    /// What happens to packets while there is no tunnel.
    pub without: String,
}

impl TunnelExplanation {
    /// The tunnel that a rule names.
    fn of(policy: &Policy, ipsec: &Ipsec, direction: Direction) -> Option<Self> {
        match ipsec.keyed_by {
            TunnelKeying::Ike => {
                policy.ikes.get(&ipsec.peer).map(|peer| Self::of_ike(peer, direction))
            }
            TunnelKeying::Manual => {
                policy.sas.get(&ipsec.peer).map(|sa| Self::of_sa(sa, direction))
            }
        }
    }

    fn of_sa(sa: &ManualSa, direction: Direction) -> Self {
        let without = match direction {
            Direction::Inbound => WITHOUT_INBOUND,
            Direction::Outbound => {
                "only one run at a time can use the security associations (SAs). tacit drops \
                 the packets that other runs send to the peer. No packet leaves in clear"
            }
        };
        let inner = sa.inner.iter().map(ToString::to_string).collect();
        Self { peer: sa.peer_words(), inner, without: without.to_owned() }
    }

    fn of_ike(peer: &IkePeer, direction: Direction) -> Self {
        let inner: Vec<String> = match &peer.inner {
            InnerAddressSource::Policy(addresses) => {
                addresses.iter().map(ToString::to_string).collect()
            }
            InnerAddressSource::Gateway => Vec::new(),
        };
        let without = match (direction, inner.is_empty()) {
            (Direction::Inbound, _) => WITHOUT_INBOUND,
            (Direction::Outbound, true) => {
                "the program cannot connect (EHOSTUNREACH) until the peer has assigned an address. \
                 After that, a packet waits up to 10 s for the tunnel. If the tunnel is then still \
                 missing, the packet is dropped. No packet leaves in clear"
            }
            (Direction::Outbound, false) => {
                "a packet waits up to 10 s for the tunnel. If the tunnel is then still missing, \
                 the packet is dropped. No packet leaves in clear"
            }
        };
        let by_name = || format!("{}:{}", peer.host, peer.port);
        let address = peer.address().map_or_else(by_name, |address| address.to_string());
        Self { peer: address, inner, without: without.to_owned() }
    }
}

const WITHOUT_INBOUND: &str =
    "packets from the peer do not reach the program. No packet leaves in clear";

impl Display for TunnelExplanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = match self.inner.as_slice() {
            [] => "an address that the peer assigns".to_owned(),
            addresses => list(addresses),
        };
        write!(
            f,
            "    peer {}, address of the run inside the tunnel: {inner}\n    \
             without the tunnel: {}",
            self.peer, self.without
        )
    }
}

/// A rule that did not match.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkippedRule {
    /// Its name.
    pub rule: String,
    /// The included file that it is in; `None`: the policy itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// Its line in that file.
    pub line: usize,
    /// The first selector that does not match.
    pub selector: Mismatch,
    /// The reason in words, with the values.
    pub why: String,
}

/// Tries the rules in order and records each result.
#[must_use]
pub fn explain(policy: &Policy, flow: &Flow) -> Explanation {
    explain_at(policy, flow, |place| policy.rules[place].position)
}

/// The same as [`explain`]; `position` returns the position of each rule in the policy.
#[must_use]
pub fn explain_at(
    policy: &Policy,
    flow: &Flow,
    position_of: impl Fn(usize) -> SourcePosition,
) -> Explanation {
    let mut earlier = Vec::new();
    for (place, rule) in policy.rules.iter().enumerate() {
        let SourcePosition { line, .. } = position_of(place);
        let file = policy.file_of(position_of(place)).map(|name| name.to_string());
        let rule_name = rule.name.clone();
        match rule.matches(flow) {
            Ok(()) => {
                if let Some(secured) = evaded(policy, place, flow) {
                    let why = format!(
                        "the program and user of the flow are not known, so the flow may match \
                         a rule that requires TLS: rule `{}` in line {}",
                        policy.rules[secured].name,
                        position_of(secured).line
                    );
                    let selector = Mismatch::Program;
                    earlier.push(SkippedRule { rule: rule_name, file, line, selector, why });
                    break;
                }
                let would = rule.audited.as_ref().map(|action| action.word().to_owned());
                let ipsec = rule.ipsec();
                let named = |by: TunnelKeying| {
                    ipsec.filter(|ipsec| ipsec.keyed_by == by).map(|ipsec| ipsec.peer.clone())
                };
                let tunnel =
                    ipsec.and_then(|ipsec| TunnelExplanation::of(policy, ipsec, flow.direction));
                let decision = Some(DecidingRule {
                    rule: rule_name,
                    file,
                    line,
                    would,
                    ike: named(TunnelKeying::Ike),
                    sa: named(TunnelKeying::Manual),
                    tunnel,
                });
                return Explanation { verdict: rule.action.word(), decision, earlier };
            }
            Err(selector) => {
                let why = why(rule, flow, selector);
                earlier.push(SkippedRule { rule: rule_name, file, line, selector, why });
            }
        }
    }
    Explanation { verdict: "deny", decision: None, earlier }
}

/// Tries the rules of a link in order, as its server does for a request.
#[must_use]
pub fn explain_link(policy: &Policy, link: &str, flow: &Flow) -> Explanation {
    let mut earlier = Vec::new();
    for one in policy.link_rules.iter().filter(|one| one.links.iter().any(|name| name == link)) {
        let SourcePosition { line, .. } = one.position;
        let file = policy.file_of(one.position).map(|name| name.to_string());
        let rule = one.name.clone();
        match one.selectors.matches(flow, UnknownOwner::Differs) {
            Ok(()) => {
                let decision = Some(DecidingRule {
                    rule,
                    file,
                    line,
                    would: None,
                    ike: None,
                    sa: None,
                    tunnel: None,
                });
                let verdict = match one.verdict {
                    LinkVerdict::Permit => "permit",
                    LinkVerdict::Deny => "deny",
                };
                return Explanation { verdict, decision, earlier };
            }
            Err(selector) => {
                let why = why_not_selected(&one.selectors, flow, selector);
                earlier.push(SkippedRule { rule, file, line, selector, why });
            }
        }
    }
    Explanation { verdict: "deny", decision: None, earlier }
}

/// An explanation in JSON, with any text as its verdict.
#[derive(Deserialize)]
struct ReceivedExplanation {
    verdict: String,
    decision: Option<DecidingRule>,
    earlier: Vec<SkippedRule>,
}

// A derived implementation would require text with a static lifetime.
impl<'de> Deserialize<'de> for Explanation {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let ReceivedExplanation { verdict, decision, earlier } = Deserialize::deserialize(from)?;
        let known = ["permit", "deny", "tls", "ipsec"].into_iter().find(|known| *known == verdict);
        let unknown = || {
            serde::de::Error::custom(format!(
                "the agent sent the unknown decision `{verdict}`: use the same version of tacit \
                 for this command and the agent"
            ))
        };
        Ok(Self { verdict: known.ok_or_else(unknown)?, decision, earlier })
    }
}

/// Returns the index of an earlier TLS rule that may match a flow whose owner is unknown.
fn evaded(policy: &Policy, permit: usize, flow: &Flow) -> Option<usize> {
    let (before, from) = policy.rules.split_at_checked(permit)?;
    if from.first()?.action != Action::Permit {
        return None;
    }
    before.iter().position(|rule| {
        let arrives = match &flow.listen {
            None => rule.listens().is_empty(),
            Some(at) => rule.listens().contains(at),
        };
        let selectors = &rule.selectors;
        matches!(rule.action, Action::Tls(_))
            && arrives
            && selectors.lacks_owner(flow)
            && selectors.matches(flow, UnknownOwner::Matches).is_ok()
    })
}

/// Returns the text after the line number of a rule in an included file.
fn of_file(file: Option<&str>) -> String {
    file.map_or_else(String::new, |file| format!(" of {file}"))
}

impl Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for SkippedRule { rule, file, line, why, .. } in &self.earlier {
            let of_file = of_file(file.as_deref());
            writeln!(f, "line {line}{of_file}: rule `{rule}` does not match: {why}")?;
        }
        match &self.decision {
            Some(DecidingRule { rule, file, line, would, ike, sa, tunnel }) => {
                let of_file = of_file(file.as_deref());
                let verdict = self.verdict;
                write!(f, "line {line}{of_file}: rule `{rule}` matches: {verdict}")?;
                match (would, ike, sa) {
                    (Some(enforced_verdict), ..) => {
                        write!(
                            f,
                            " (audit mode; with mode = \"enforce\", the verdict is \
                             {enforced_verdict})"
                        )
                    }
                    (None, Some(ike), _) => write!(f, ", through a tunnel to the peer [ike.{ike}]"),
                    (None, None, Some(sa)) => write!(f, ", through a tunnel to the peer [sa.{sa}]"),
                    (None, None, None) => Ok(()),
                }?;
                tunnel.iter().try_for_each(|tunnel| write!(f, "\n{tunnel}"))
            }
            None => write!(f, "no rule matches: {}", self.verdict),
        }
    }
}

fn why(rule: &Rule, flow: &Flow, selector: Mismatch) -> String {
    match selector {
        Mismatch::Listen => why_listen(rule, flow),
        _ => why_not_selected(&rule.selectors, flow, selector),
    }
}

fn why_not_selected(s: &Selectors, flow: &Flow, selector: Mismatch) -> String {
    match selector {
        // Depends on the form of the rule.
        Mismatch::Listen => String::new(),
        Mismatch::Direction => {
            let [found, wanted] = [direction(flow.direction), direction(s.direction)];
            format!("the flow is {found}, but the rule is for {wanted} flows")
        }
        Mismatch::Protocol => {
            let [found, wanted] = [flow.protocol.word(), s.protocol.word()];
            format!("the flow uses {found}, but the rule is for {wanted}")
        }
        Mismatch::Local => {
            let wanted = list(&s.local);
            format!("local address {address} does not match {wanted}", address = host(&flow.local))
        }
        Mismatch::LocalPorts => {
            let wanted = list(s.local_ports.iter().map(ports));
            let port_or_socket = port(&flow.local);
            format!("local {port_or_socket} does not match {wanted}")
        }
        Mismatch::Remote => {
            let names = match flow.remote_names.as_slice() {
                [] => String::new(),
                names => format!(" ({})", list(names)),
            };
            let address = host(&flow.remote);
            let wanted = list(&s.remote);
            format!("remote address {address}{names} does not match {wanted}")
        }
        Mismatch::RemoteNotNamed => {
            let address = host(&flow.remote);
            let kind = flow.remote.ip().and_then(Near::of).map_or("near", Near::word);
            format!(
                "remote address {address} is a {kind} address: only a rule with this address in \
                 `remote` matches"
            )
        }
        Mismatch::RemotePorts => {
            let wanted = list(s.remote_ports.iter().map(ports));
            let port_or_socket = port(&flow.remote);
            format!("remote {port_or_socket} does not match {wanted}")
        }
        Mismatch::When => {
            s.when.as_ref().map_or_else(String::new, |when| when.why_closed(flow.at_unix_s))
        }
        Mismatch::Program => owner(
            "program",
            flow.program.as_ref().map(|path| path.display()),
            list(s.program.iter().map(|path| path.display())),
        ),
        Mismatch::User => owner("user", flow.user.as_ref(), list(&s.user)),
        Mismatch::Group => owner("group", flow.group.as_ref(), list(&s.group)),
        Mismatch::Cgroup => owner("cgroup", flow.cgroup.as_ref(), list(&s.cgroup)),
        Mismatch::Unit => owner(
            "unit",
            flow.cgroup.as_deref().map(|path| unit_of(path).unwrap_or(path)),
            list(&s.unit),
        ),
        Mismatch::Run => owner("run", flow.run.as_ref(), list(&s.run)),
    }
}

fn why_listen(rule: &Rule, flow: &Flow) -> String {
    match (rule.listens(), &flow.listen) {
        ([], None) => String::new(),
        ([], Some(arrived)) => {
            format!(
                "the flow arrived at {arrived}, but the rule is for connections that programs open"
            )
        }
        (listens, Some(arrived)) => {
            let addresses = list(listens);
            format!("the flow arrived at {arrived}, but the rule listens at {addresses}")
        }
        (listens, None) => {
            let addresses = list(listens);
            format!(
                "the rule is for connections that clients open to {addresses}, but a program of \
                 this host opened this flow"
            )
        }
    }
}

fn owner(selector: &str, found: Option<impl Display>, wanted: String) -> String {
    match found {
        Some(found) => format!("{selector} {found} does not match {wanted}"),
        None => {
            format!(
                "the {selector} of the flow is not known. If the {selector} is unknown, only rules \
                 with `deny` match"
            )
        }
    }
}

fn direction(direction: Direction) -> &'static str {
    match direction {
        Direction::Inbound => "inbound",
        Direction::Outbound => "outbound",
    }
}

fn host(address: &Address) -> String {
    address.ip().map_or_else(|| unix(address), |ip| ip.to_string())
}

fn port(address: &Address) -> String {
    address.port().map_or_else(|| unix(address), |port| format!("port {port}"))
}

fn unix(address: &Address) -> String {
    match address {
        Address::Unnamed => "(an unnamed UNIX socket)".to_owned(),
        _ => address.to_string(),
    }
}

fn ports(range: &std::ops::RangeInclusive<u16>) -> String {
    let first = range.start();
    let last = range.end();
    if first == last { format!("{first}") } else { format!("{first}-{last}") }
}

fn list<T: Display>(items: impl IntoIterator<Item = T>) -> String {
    let items: Vec<String> = items.into_iter().map(|item| item.to_string()).collect();
    let shown = items.iter().take(SHOWN_MAX).map(String::as_str).collect::<Vec<_>>().join(", ");
    match items.len().checked_sub(SHOWN_MAX) {
        None | Some(0) => shown,
        Some(more) => format!("{shown} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow::Protocol;
    use crate::policy::parse;

    const POLICY: &str = r#"version = 1
[[rule]]
name = "fixed"
listen = "127.0.0.1:9"
deny = true
[[rule]]
name = "inward"
direction = "inbound"
listen = "127.0.0.1:8"
local-ports = 80
permit = true
[[rule]]
name = "datagrams"
direction = "outbound"
protocol = "udp"
permit = true
[[rule]]
name = "elsewhere"
direction = "outbound"
remote = ["10.7.0.0/16", "*.corp.example"]
permit = true
[[rule]]
name = "other-port"
direction = "outbound"
remote-ports = [443, "8000-8999"]
permit = true
[[rule]]
name = "weekend"
direction = "outbound"
when = { days = "sat-sun", zone = "UTC" }
permit = true
[[rule]]
name = "psql"
direction = "outbound"
program = "/usr/bin/psql"
permit = true
[[rule]]
name = "ann"
direction = "outbound"
user = ["ann", "1000"]
permit = true
[[rule]]
name = "near"
direction = "outbound"
local = "192.0.2.0/24"
local-ports = "1-1024"
permit = true
[[rule]]
name = "owned"
direction = "outbound"
remote = "10.0.0.0/8"
program = "/bin/sh"
deny = true
"#;

    #[test]
    fn rules_of_a_link_are_tried_in_order() {
        let text = "version = 1\n[link.a]\n[link.b]\n\
            [[rule]]\nname = \"other\"\nlink = \"b\"\ndirection = \"outbound\"\npermit = true\n\
            [[rule]]\nname = \"web\"\nlink = \"a\"\ndirection = \"outbound\"\nremote-ports = 443\n\
            permit = true\n\
            [[rule]]\nname = \"no\"\nlink = [\"a\", \"b\"]\ndirection = \"outbound\"\n\
            remote = \"10.0.0.0/8\"\ndeny = true\n";
        let policy = parse(text).policy.unwrap();
        let to = |remote: &str| Flow { remote: remote.parse().unwrap(), ..flow() };
        let text = |remote: &str| explain_link(&policy, "a", &to(remote)).to_string();
        assert_eq!(text("10.1.1.1:443"), "line 9: rule `web` matches: permit");
        assert_eq!(
            text("10.1.1.1:80"),
            "line 9: rule `web` does not match: remote port 80 does not match 443\n\
             line 15: rule `no` matches: deny"
        );
        assert!(text("192.0.2.1:80").ends_with("does not match 10.0.0.0/8\nno rule matches: deny"));
    }

    fn flow() -> Flow {
        Flow {
            direction: Direction::Outbound,
            protocol: Protocol::Tcp,
            listen: None,
            local: "192.0.2.1:40000".parse().unwrap(),
            remote: "10.1.2.3:5432".parse().unwrap(),
            remote_names: vec!["db.example".to_owned()],
            alias: None,
            is_shared: false,
            program: None,
            user: Some("bob".to_owned()),
            group: Some("staff".to_owned()),
            cgroup: Some("user.slice".to_owned()),
            run: Some("nightly".to_owned()),
            to_own_host: false,
            at_unix_s: 0,
        }
    }

    #[test]
    fn each_earlier_rule_has_the_condition_that_does_not_match() {
        let policy = parse(POLICY).policy.unwrap();
        let explanation = explain(&policy, &flow());
        let wanted = [
            (
                2,
                "fixed",
                "the rule is for connections that clients open to 127.0.0.1:9, but a program of \
                 this host opened this flow",
            ),
            (
                6,
                "inward",
                "the rule is for connections that clients open to 127.0.0.1:8, but a program of \
                 this host opened this flow",
            ),
            (12, "datagrams", "the flow uses tcp, but the rule is for udp"),
            (
                17,
                "elsewhere",
                "remote address 10.1.2.3 (db.example) does not match 10.7.0.0/16, *.corp.example",
            ),
            (22, "other-port", "remote port 5432 does not match 443, 8000-8999"),
            (27, "weekend", "thu 00:00 is outside the time window sat-sun 00:00-24:00 UTC"),
            (
                32,
                "psql",
                "the program of the flow is not known. If the program is unknown, only rules with \
                 `deny` match",
            ),
            (37, "ann", "user bob does not match ann, 1000"),
            (42, "near", "local port 40000 does not match 1-1024"),
        ];
        let missed: Vec<(usize, &str, &str)> = explanation
            .earlier
            .iter()
            .map(|missed| (missed.line, missed.rule.as_str(), missed.why.as_str()))
            .collect();
        assert_eq!(missed, wanted);
        assert_eq!(explanation.earlier[3].selector, Mismatch::Remote);
        let text = explanation.to_string();
        assert!(text.starts_with("line 2: rule `fixed` does not match: the rule is for"));
        assert!(text.ends_with("line 48: rule `owned` matches: deny"), "unknown owner: {text}");
    }

    #[test]
    fn what_no_rule_matches_is_denied() {
        let policy = parse(POLICY).policy.unwrap();
        let listen = Some("unix:@x".parse().unwrap());
        let explanation = explain(&policy, &Flow { listen, ..flow() });
        assert_eq!((explanation.verdict, explanation.decision.as_ref()), ("deny", None));
        assert_eq!(
            explanation.earlier[0].why,
            "the flow arrived at unix:@x, but the rule listens at 127.0.0.1:9"
        );
        assert!(explanation.to_string().ends_with("no rule matches: deny"));
    }

    #[test]
    fn long_lists_are_cut() {
        assert_eq!(list(1..=3), "1, 2, 3");
        assert_eq!(list(1..=10), "1, 2, 3, 4, 5, 6, 7, 8 and 2 more");
    }

    #[test]
    fn a_flow_of_an_unknown_program_is_not_passed_if_a_rule_may_require_tls() {
        let text = "version = 1\n[[rule]]\nname = \"secured\"\ndirection = \"outbound\"\n\
                    program = \"/bin/a\"\ntls = { trust = \"system\" }\n[[rule]]\n\
                    name = \"rest\"\ndirection = \"outbound\"\npermit = true\n";
        let policy = parse(text).policy.unwrap();
        let index = crate::policy::lookup::Index::new(&policy.rules);
        for (program, verdict, evades) in [
            (None, "deny", true),
            (Some("/bin/a"), "tls", false),
            (Some("/bin/b"), "permit", false),
        ] {
            let flow = Flow { program: program.map(Into::into), ..flow() };
            let explanation = explain(&policy, &flow);
            assert_eq!(explanation.verdict, verdict, "{explanation}");
            assert_eq!(index.lookup(&flow).may_need_tls, evades, "{program:?}");
        }
        let text = explain(&policy, &flow()).to_string();
        assert!(
            text.contains("may match a rule that requires TLS: rule `secured` in line 2"),
            "{text}"
        );
    }
}
