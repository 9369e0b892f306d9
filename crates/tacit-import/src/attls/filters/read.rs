//! From statements to filters.

use std::ops::RangeInclusive;

use super::filter::{Action, Filter, Flow};
use crate::attls::conditions::End;
use crate::attls::effective::tell_double_end;
use crate::attls::lex::Node;
use crate::attls::objects::{Field, Object, Objects, Reference};
use crate::attls::time;
use crate::attls::words::{Form, Kind};
use crate::finding::Findings;
use tacit_core::flow::{Direction, Protocol};

/// The filters of a policy, in order; what is wrong with them is told.
pub(crate) fn read(nodes: &[Node], findings: &mut Findings) -> Vec<Filter> {
    let is_built = |node: &&Node| !NOT_BUILT.iter().any(|word| node.is(word));
    for node in nodes.iter().filter(|node| !is_built(node)) {
        let message = format!("`{}` is not built yet: packets cannot be protected", node.keyword);
        findings.error(&node.at, message, "remove it; protect what it is about by TLS, or deny it");
    }
    let objects = Objects::read(nodes.iter().filter(is_built), findings);
    let used =
        objects.of_kind(Kind::FilterPolicy).map(|one| Reference::to(Kind::FilterPolicy, &one.name));
    objects.tell_unused(used.collect::<Vec<_>>().into_iter(), findings);
    let mut policies = objects.of_kind(Kind::FilterPolicy);
    let Some(policy) = policies.next() else {
        if let Some(first) = nodes.iter().find(is_built) {
            let message = "there is no IpFilterPolicy";
            findings.error(&first.at, message, "write one, with its rules in order");
        }
        return Vec::new();
    };
    if let Some(second) = policies.next() {
        findings.error(&second.at, "there is a second IpFilterPolicy", "keep one");
    }
    tell_options(policy, findings);
    let logs = policy.said("FilterLogging").is_none_or(|field| field.value == "On");
    let mut rules = Vec::new();
    members(policy, &objects, Members::RULES, &mut rules);
    let mut reader = Reader { objects: &objects, logs, has_told_discards: false, findings };
    rules.into_iter().filter_map(|rule| reader.filter(rule)).collect()
}

/// Statements that are about protecting packets.
const NOT_BUILT: &[&str] = &[
    "IpDynVpnAction",
    "IpManVpnAction",
    "IpLocalStartAction",
    "IpDataOffer",
    "KeyExchangePolicy",
    "KeyExchangeGroup",
    "KeyExchangeRule",
    "KeyExchangeAction",
    "KeyExchangeOffer",
    "LocalDynVpnPolicy",
    "LocalDynVpnGroup",
    "LocalDynVpnRule",
    "LocalSecurityEndpoint",
    "RemoteSecurityEndpoint",
];

/// What the policy says about all of its rules.
fn tell_options(policy: &Object, findings: &mut Findings) {
    for field in &policy.fields {
        let word = field.attribute.word;
        match (word, field.value.as_str()) {
            ("PreDecap", "On") | ("FIPS140", "Yes") => {
                let message = format!("`{word} {}` is about protected packets", field.value);
                findings.info(&field.at, message);
            }
            ("FilterLogging", "Off") => {
                findings.info(&field.at, "no filter rule logs, whatever its action says");
            }
            _ => {}
        }
    }
    let message = "what no filter rule permits is denied, as before; programs are told at once \
                   that they are refused";
    findings.info(&policy.at, message);
}

/// What is named, and by groups of which kind too.
#[derive(Clone, Copy)]
struct Members {
    kind: Kind,
    group: Kind,
}

impl Members {
    const RULES: Self = Self { kind: Kind::FilterRule, group: Kind::FilterGroup };
    const SERVICES: Self = Self { kind: Kind::Service, group: Kind::ServiceGroup };
}

/// What a holder names of one kind, itself or by groups of it, in order.
fn members<'o>(
    holder: &'o Object,
    objects: &'o Objects,
    members_of: Members,
    found: &mut Vec<&'o Object>,
) {
    for field in &holder.fields {
        let object = match field.attribute.form {
            Form::Block(_) => field.block.as_ref(),
            Form::Ref(kind) => objects.find(kind, &field.value),
            _ => None,
        };
        match object {
            Some(member) if member.kind == members_of.kind => found.push(member),
            // A group holds no groups.
            Some(named) if named.kind == members_of.group => {
                members(named, objects, members_of, found);
            }
            _ => {}
        }
    }
}

struct Reader<'r> {
    objects: &'r Objects,
    /// Whether anything is logged at all.
    logs: bool,
    /// Whether it was reported what a deny does: once, not for each rule.
    has_told_discards: bool,
    findings: &'r mut Findings,
}

impl<'r> Reader<'r> {
    /// Reads a rule; `None` after an error.
    fn filter(&mut self, rule: &'r Object) -> Option<Filter> {
        for word in ["IpDynVpnActionRef", "IpManVpnActionRef", "IpLocalStartActionRef"] {
            if let Some(field) = rule.said(word) {
                let message = format!("`{word}` is not built yet: packets cannot be protected");
                self.findings.error(&field.at, message, "permit or deny: IpGenericFilterActionRef");
                return None;
            }
        }
        let Decision { action, log } = self.action(rule)?;
        let when = time::when(rule, self.objects, self.findings)?;
        let mut found = Vec::new();
        members(rule, self.objects, Members::SERVICES, &mut found);
        if found.is_empty() {
            let message = format!("filter rule `{}` has no service", rule.name);
            self.findings.error(&rule.at, message, "say IpServiceRef NAME, or an IpService block");
            return None;
        }
        let mut addresses = |side| {
            tell_double_end(rule, side, self.findings);
            End::of(rule, side, self.objects).addresses
        };
        let ends = Ends { source: addresses("IpSource"), destination: addresses("IpDest") };
        let mut flows = Vec::new();
        for service in found {
            flows.extend(self.flows(service, action, &ends)?);
        }
        let name = if rule.name.is_empty() { "filter" } else { &rule.name };
        Some(Filter { name: name.to_owned(), at: rule.at.clone(), action, log, when, flows })
    }

    /// What a rule does; `None` after an error.
    fn action(&mut self, rule: &Object) -> Option<Decision> {
        let of = |field: &Field| match field.attribute.form {
            Form::Block(_) => field.block.clone(),
            _ => self.objects.find(Kind::FilterAction, &field.value).cloned(),
        };
        let fields = ["IpGenericFilterAction", "IpGenericFilterActionRef"];
        if let [Some(block), Some(named)] = fields.map(|word| rule.said(word)) {
            let message = "the filter rule has two actions: which one counts?";
            let fix = format!("keep one; the other is at {}", block.at);
            self.findings.error(&named.at, message, fix);
            return None;
        }
        let action = fields.iter().filter_map(|word| rule.said(word)).filter_map(of).next_back();
        let Some(action) = action else {
            // `check_references` has already reported a reference to a missing action.
            if !fields.iter().any(|word| rule.said(word).is_some()) {
                let message = format!("filter rule `{}` has no action", rule.name);
                let fix = "say IpGenericFilterActionRef NAME";
                self.findings.error(&rule.at, message, fix);
            }
            return None;
        };
        let Some(said) = action.said("IpFilterAction") else {
            let fix = "say IpFilterAction Permit or Deny";
            self.findings.error(&action.at, "the action says neither permit nor deny", fix);
            return None;
        };
        if said.value == "IpSec" {
            let message = "`IpFilterAction IpSec` is not built yet: packets cannot be protected";
            self.findings.error(&said.at, message, "permit or deny them, or protect them by TLS");
            return None;
        }
        let decided = if said.value == "Permit" { Action::Permit } else { Action::Deny };
        let silent = action.said("DiscardAction").is_none_or(|field| field.value == "Silent");
        if decided == Action::Deny && silent && !self.has_told_discards {
            self.has_told_discards = true;
            let message = "what is denied is refused at once, where packets vanished before";
            self.findings.changed(&action.at, message, "DiscardAction ICMP is nearest to it");
        }
        let logging = action.said("IpFilterLogging").map_or("No", |field| field.value.as_str());
        let log = match logging {
            "Yes" => true,
            "LogPermit" => decided == Action::Permit,
            "LogDeny" => decided == Action::Deny,
            _ => false,
        };
        Some(Decision { action: decided, log: log && self.logs })
    }

    /// The flows that a service is about; `None` after an error.
    fn flows(&mut self, service: &Object, action: Action, ends: &Ends) -> Option<Vec<Flow>> {
        self.check_packets(service, action)?;
        let protocols = self.protocols(service, action)?;
        let way = self.way(service)?;
        for side in ["Source", "Destination"] {
            tell_double_end(service, side, self.findings);
        }
        let source_ports = End::of(service, "Source", self.objects).ports;
        let destination_ports = End::of(service, "Destination", self.objects).ports;
        let permits = action == Action::Permit;
        let mut flows = Vec::new();
        for protocol in protocols {
            let is_udp = protocol == Protocol::Udp;
            let one_way = matches!(way, Way::Outbound | Way::Inbound);
            if one_way && permits && !is_udp {
                let message = "a connection needs packets of both directions, and this service is \
                               about one";
                let fix = "say Direction bidirectional OutboundConnect for what is opened here, \
                           InboundConnect for what is accepted";
                self.findings.error(&service.at, message, fix);
                return None;
            }
            if is_udp && permits && matches!(way, Way::Accepted | Way::Inbound) {
                let message = "datagrams that others begin are not carried inwards";
                self.findings.changed(&service.at, message, "remove the rule");
                continue;
            }
            if is_udp && permits && way == Way::Both {
                let message = "of datagrams, those that programs here begin are carried, with \
                               their answers; those that others begin are not";
                self.findings.changed(&service.at, message, "nothing, where programs here begin");
            }
            if one_way && is_udp {
                let message = "datagrams go both ways or none: their answers belong to them";
                self.findings.changed(&service.at, message, "say Direction bidirectional");
            }
            self.tell_names(service, action, &destination_ports);
            let directions: &[Direction] = match way {
                _ if is_udp => &[Direction::Outbound],
                Way::Accepted => &[Direction::Inbound],
                Way::Opened => &[Direction::Outbound],
                // A connection whose packets of one direction are denied is no connection.
                Way::Both | Way::Inbound | Way::Outbound => {
                    &[Direction::Inbound, Direction::Outbound]
                }
            };
            for direction in directions {
                let mut flow = Flow {
                    direction: *direction,
                    protocol,
                    local: ends.source.clone(),
                    remote: ends.destination.clone(),
                    local_ports: source_ports.clone(),
                    remote_ports: destination_ports.clone(),
                };
                // Of packets that arrive, the source is the remote end.
                if way == Way::Inbound {
                    std::mem::swap(&mut flow.local, &mut flow.remote);
                    std::mem::swap(&mut flow.local_ports, &mut flow.remote_ports);
                }
                flows.push(flow);
            }
        }
        Some(flows)
    }

    /// Questions for names do not come to rules.
    fn tell_names(&mut self, service: &Object, action: Action, ports: &[RangeInclusive<u16>]) {
        const DNS: u16 = 53;
        if !ports.iter().any(|ports| ports.contains(&DNS)) {
            return;
        }
        let message = "programs ask for names through tacit, and it asks the host's resolvers: \
                       port 53 is no matter of rules";
        match action {
            Action::Permit => self.findings.info(&service.at, message),
            Action::Deny => {
                self.findings.changed(&service.at, message, "deny what the names lead to");
            }
        }
    }

    /// What packets have and connections do not.
    fn check_packets(&mut self, service: &Object, action: Action) -> Option<()> {
        if let Some(field) = service.said("SecurityClass").filter(|field| field.value != "0") {
            let message = "interfaces have no security class here";
            self.findings.error(&field.at, message, "name the addresses behind those interfaces");
            return None;
        }
        match service.said("Routing") {
            Some(field) if field.value == "Routed" => {
                let message = "packets that are forwarded are not tacit's";
                let fix = "filter them where they are routed, by nftables; remove the rule here";
                self.findings.error(&field.at, message, fix);
                None
            }
            Some(field) if field.value == "Either" && action == Action::Permit => {
                let message = "packets that are forwarded are not tacit's: the rule is about local \
                               ones";
                self.findings.changed(&field.at, message, "filter the others by nftables");
                Some(())
            }
            _ => Some(()),
        }
    }

    /// The protocols that are meant; none if it is one that is not carried.
    fn protocols(&mut self, service: &Object, action: Action) -> Option<Vec<Protocol>> {
        let Some(field) = service.said("Protocol") else {
            let fix = "say Protocol tcp, udp or all";
            self.findings.error(&service.at, "the service says no `Protocol`", fix);
            return None;
        };
        let others = "protocols other than tcp and udp are not carried";
        match field.value.to_ascii_lowercase().as_str() {
            "tcp" | "6" => Some(vec![Protocol::Tcp]),
            "udp" | "17" => Some(vec![Protocol::Udp]),
            "all" | "any" | "0" => {
                if action == Action::Permit {
                    self.findings.changed(&field.at, others, "say tcp and udp, each in a service");
                }
                Some(vec![Protocol::Tcp, Protocol::Udp])
            }
            other => {
                let known = ["icmp", "icmpv6", "igmp", "ospf", "opaque", "mipv6"];
                if other.parse::<u8>().is_err() && !known.contains(&other) {
                    let message = format!("`Protocol` cannot be `{}`", field.value);
                    let fix = "write tcp, udp, icmp, all or a number up to 255";
                    self.findings.error(&field.at, message, fix);
                    return None;
                }
                // What is denied stays denied.
                if action == Action::Permit {
                    let message = format!("`{}` is not permitted: {others}", field.value);
                    self.findings.changed(&field.at, message, "remove the service");
                }
                Some(Vec::new())
            }
        }
    }

    fn way(&mut self, service: &Object) -> Option<Way> {
        let Some(field) = service.said("Direction") else {
            let fix = "say Direction bidirectional, with InboundConnect or OutboundConnect";
            self.findings.error(&service.at, "the service says no `Direction`", fix);
            return None;
        };
        let words = field.value.to_ascii_lowercase();
        match words.split_whitespace().collect::<Vec<_>>().as_slice() {
            ["bidirectional"] => Some(Way::Both),
            ["bidirectional", "inboundconnect"] => Some(Way::Accepted),
            ["bidirectional", "outboundconnect"] => Some(Way::Opened),
            ["inbound"] => Some(Way::Inbound),
            ["outbound"] => Some(Way::Outbound),
            _ => {
                let message = format!("`Direction` cannot be `{}`", field.value);
                let fix = "write inbound, outbound, or bidirectional, which InboundConnect or \
                           OutboundConnect may follow";
                self.findings.error(&field.at, message, fix);
                None
            }
        }
    }
}

/// Which packets a service is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Packets of both directions; either side may connect.
    Both,
    /// Of both, where others connect.
    Accepted,
    /// Of both, where this side does.
    Opened,
    /// Those that arrive.
    Inbound,
    /// Those that leave.
    Outbound,
}

/// What a filter does with its flows.
struct Decision {
    action: Action,
    log: bool,
}

/// The addresses of packets that a filter is about; empty lists are no condition.
struct Ends {
    source: Vec<String>,
    destination: Vec<String>,
}
