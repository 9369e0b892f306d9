//! Reads the IP filter rules of a z/OS policy (`IpFilterPolicy`) from the parsed statements, and
//! reports settings that the import does not support, such as IPsec.

use std::ops::RangeInclusive;

use super::filter::{Action, Filter, Flow};
use crate::attls::conditions::End;
use crate::attls::effective::report_double_end;
use crate::attls::lex::Node;
use crate::attls::objects::{Field, Object, Objects, Reference};
use crate::attls::time;
use crate::attls::words::{Form, Kind};
use crate::finding::Findings;
use tacit_core::flow::{Direction, Protocol};

/// Reads the filters of a policy, in order, and reports what is wrong with them.
pub(crate) fn read(nodes: &[Node], findings: &mut Findings) -> Vec<Filter> {
    let is_built = |node: &&Node| !NOT_BUILT.iter().any(|word| node.is(word));
    for node in nodes.iter().filter(|node| !is_built(node)) {
        let message = format!(
            "`{statement}` is not supported yet: the import does not read IPsec and IKE settings",
            statement = node.keyword
        );
        findings.error(
            &node.at,
            message,
            "remove the statement, and either protect the traffic with TLS or deny the traffic",
        );
    }
    let objects = Objects::read(nodes.iter().filter(is_built), findings);
    let used =
        objects.of_kind(Kind::FilterPolicy).map(|one| Reference::to(Kind::FilterPolicy, &one.name));
    objects.report_unused(used.collect::<Vec<_>>().into_iter(), findings);
    let mut policies = objects.of_kind(Kind::FilterPolicy);
    let Some(policy) = policies.next() else {
        if let Some(first) = nodes.iter().find(is_built) {
            let message = "the filter files contain no IpFilterPolicy";
            findings.error(
                &first.at,
                message,
                "add an IpFilterPolicy block with the filter rules in order",
            );
        }
        return Vec::new();
    };
    if let Some(second) = policies.next() {
        findings.error(
            &second.at,
            "the filter files contain more than one IpFilterPolicy",
            "keep only one IpFilterPolicy",
        );
    }
    report_options(policy, findings);
    let logs = policy.field("FilterLogging").is_none_or(|field| field.value == "On");
    let mut rules = Vec::new();
    members(policy, &objects, Members::RULES, &mut rules);
    let mut reader = Reader { objects: &objects, logs, has_reported_discards: false, findings };
    rules.into_iter().filter_map(|rule| reader.filter(rule)).collect()
}

/// Statements of IPsec and IKE.
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

/// Reports the settings that apply to all rules of the policy.
fn report_options(policy: &Object, findings: &mut Findings) {
    for field in &policy.fields {
        let word = field.attribute.word;
        match (word, field.value.as_str()) {
            ("PreDecap", "On") | ("FIPS140", "Yes") => {
                let message = format!(
                    "`{word} {value}` is ignored, because this setting applies to IPsec only",
                    value = field.value
                );
                findings.info(&field.at, message);
            }
            ("FilterLogging", "Off") => {
                findings.info(
                    &field.at,
                    "FilterLogging is Off: no filter rule logs connections, even if its action \
                     requests logging",
                );
            }
            _ => {}
        }
    }
    let message = "traffic that no filter rule permits is denied, as on z/OS; programs get an \
                   error immediately";
    findings.info(&policy.at, message);
}

/// The kind of the members to collect, and the kind of their groups.
#[derive(Clone, Copy)]
struct Members {
    kind: Kind,
    group: Kind,
}

impl Members {
    const RULES: Self = Self { kind: Kind::FilterRule, group: Kind::FilterGroup };
    const SERVICES: Self = Self { kind: Kind::Service, group: Kind::ServiceGroup };
}

/// The members of an object, directly and through groups, in order.
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
            // Groups do not contain groups.
            Some(named) if named.kind == members_of.group => {
                members(named, objects, members_of, found);
            }
            _ => {}
        }
    }
}

struct Reader<'r> {
    objects: &'r Objects,
    /// Whether filter rules log at all.
    logs: bool,
    /// Whether the effect of a deny was reported: once, not for each rule.
    has_reported_discards: bool,
    findings: &'r mut Findings,
}

impl<'r> Reader<'r> {
    /// Reads a rule; `None` after an error.
    fn filter(&mut self, rule: &'r Object) -> Option<Filter> {
        for word in ["IpDynVpnActionRef", "IpManVpnActionRef", "IpLocalStartActionRef"] {
            if let Some(field) = rule.field(word) {
                let message = format!(
                    "`{word}` is not supported yet: the import does not read IPsec settings"
                );
                self.findings.error(
                    &field.at,
                    message,
                    "use IpGenericFilterActionRef instead, with an action that permits or denies \
                     the traffic",
                );
                return None;
            }
        }
        let Decision { action, log } = self.action(rule)?;
        let when = time::when(rule, self.objects, self.findings)?;
        let mut found = Vec::new();
        members(rule, self.objects, Members::SERVICES, &mut found);
        if found.is_empty() {
            let message = format!("filter rule `{name}` has no service", name = rule.name);
            self.findings.error(&rule.at, message, "add IpServiceRef NAME, or an IpService block");
            return None;
        }
        let mut addresses = |side| {
            report_double_end(rule, side, self.findings);
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

    /// The action of a rule; `None` after an error.
    fn action(&mut self, rule: &Object) -> Option<Decision> {
        let of = |field: &Field| match field.attribute.form {
            Form::Block(_) => field.block.clone(),
            _ => self.objects.find(Kind::FilterAction, &field.value).cloned(),
        };
        let fields = ["IpGenericFilterAction", "IpGenericFilterActionRef"];
        if let [Some(block), Some(named)] = fields.map(|word| rule.field(word)) {
            let message = "the filter rule has two actions, but only one is allowed";
            let fix = format!(
                "remove one of the two actions; the other action is at {other}",
                other = block.at
            );
            self.findings.error(&named.at, message, fix);
            return None;
        }
        let action = fields.iter().filter_map(|word| rule.field(word)).filter_map(of).next_back();
        let Some(action) = action else {
            // `check_references` has already reported a reference to a missing action.
            if !fields.iter().any(|word| rule.field(word).is_some()) {
                let message = format!("filter rule `{name}` has no action", name = rule.name);
                let fix = "add IpGenericFilterActionRef NAME";
                self.findings.error(&rule.at, message, fix);
            }
            return None;
        };
        let Some(decision) = action.field("IpFilterAction") else {
            let fix = "add IpFilterAction Permit or IpFilterAction Deny";
            self.findings.error(&action.at, "the action has no `IpFilterAction`", fix);
            return None;
        };
        if decision.value == "IpSec" {
            let message = "`IpFilterAction IpSec` is not supported yet: the import does not read \
                           IPsec settings";
            self.findings.error(
                &decision.at,
                message,
                "permit or deny the traffic, or protect the traffic with TLS",
            );
            return None;
        }
        let decided = if decision.value == "Permit" { Action::Permit } else { Action::Deny };
        let silent = action.field("DiscardAction").is_none_or(|field| field.value == "Silent");
        if decided == Action::Deny && silent && !self.has_reported_discards {
            self.has_reported_discards = true;
            let message = "a program gets an error immediately if its connection is denied; on \
                           z/OS the packets were dropped silently";
            self.findings.changed(
                &action.at,
                message,
                "set DiscardAction ICMP: z/OS then returns an error, as tacit does",
            );
        }
        let logging = action.field("IpFilterLogging").map_or("No", |field| field.value.as_str());
        let log = match logging {
            "Yes" => true,
            "LogPermit" => decided == Action::Permit,
            "LogDeny" => decided == Action::Deny,
            _ => false,
        };
        Some(Decision { action: decided, log: log && self.logs })
    }

    /// The flows of a service; `None` after an error.
    fn flows(&mut self, service: &Object, action: Action, ends: &Ends) -> Option<Vec<Flow>> {
        self.check_packets(service, action)?;
        let protocols = self.protocols(service, action)?;
        let way = self.way(service)?;
        for side in ["Source", "Destination"] {
            report_double_end(service, side, self.findings);
        }
        let source_ports = End::of(service, "Source", self.objects).ports;
        let destination_ports = End::of(service, "Destination", self.objects).ports;
        let permits = action == Action::Permit;
        let mut flows = Vec::new();
        for protocol in protocols {
            let is_udp = protocol == Protocol::Udp;
            let one_way = matches!(way, Way::Outbound | Way::Inbound);
            if one_way && permits && !is_udp {
                let message = "this service covers one direction, but a TCP connection needs \
                               packets in both directions";
                let fix = "write `Direction bidirectional OutboundConnect` for connections that \
                           programs on this host open, or `Direction bidirectional InboundConnect` \
                           for connections that programs on this host accept";
                self.findings.error(&service.at, message, fix);
                return None;
            }
            if is_udp && permits && matches!(way, Way::Accepted | Way::Inbound) {
                let message = "tacit does not relay UDP flows that remote hosts start";
                let fix = "remove the service, or limit it to TCP: `Protocol tcp`";
                self.findings.changed(&service.at, message, fix);
                continue;
            }
            if is_udp && permits && way == Way::Both {
                let message = "tacit relays UDP flows that programs on this host start, and the \
                               answers in these flows; tacit does not relay flows that remote \
                               hosts start";
                self.findings.changed(
                    &service.at,
                    message,
                    "no change is needed if only programs on this host start UDP flows",
                );
            }
            if one_way && is_udp {
                let message = "the service matches UDP datagrams in one direction only, but a rule \
                               of tacit also matches the answers to these datagrams";
                self.findings.changed(&service.at, message, "write Direction bidirectional");
            }
            self.report_names(service, action, &destination_ports);
            let directions: &[Direction] = match way {
                _ if is_udp => &[Direction::Outbound],
                Way::Accepted => &[Direction::Inbound],
                Way::Opened => &[Direction::Outbound],
                // A connection is impossible if its packets in one direction are denied.
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
                // In packets that arrive, the source is the remote end.
                if way == Way::Inbound {
                    std::mem::swap(&mut flow.local, &mut flow.remote);
                    std::mem::swap(&mut flow.local_ports, &mut flow.remote_ports);
                }
                flows.push(flow);
            }
        }
        Some(flows)
    }

    /// Reports a rule about DNS: rules do not apply to DNS queries.
    fn report_names(&mut self, service: &Object, action: Action, ports: &[RangeInclusive<u16>]) {
        const DNS: u16 = 53;
        if !ports.iter().any(|ports| ports.contains(&DNS)) {
            return;
        }
        let message = "policy rules do not apply to DNS queries: tacit receives the queries to \
                       port 53, and sends its own queries to the resolvers of the host";
        match action {
            Action::Permit => self.findings.info(&service.at, message),
            Action::Deny => {
                self.findings.changed(
                    &service.at,
                    message,
                    "to deny connections to a name, deny the addresses of this name",
                );
            }
        }
    }

    /// Checks attributes that packets have and connections do not.
    fn check_packets(&mut self, service: &Object, action: Action) -> Option<()> {
        if let Some(field) = service.field("SecurityClass").filter(|field| field.value != "0") {
            let message = "the import does not convert SecurityClass, which limits a filter rule \
                           to some network interfaces";
            self.findings.error(
                &field.at,
                message,
                "remove SecurityClass, and limit the filter rule to the addresses behind the \
                 network interfaces of this class. On a captured host (`tacit agent --host`), you \
                 can instead write a tacit rule with `filter` and `class`",
            );
            return None;
        }
        match service.field("Routing") {
            Some(field) if field.value == "Routed" => {
                let message =
                    "the import does not convert filters for packets that this host forwards";
                let fix = "remove the rule, and use nftables to filter forwarded packets. On a \
                           captured host (`tacit agent --host`), you can instead write a tacit \
                           rule with `filter` and `routing`";
                self.findings.error(&field.at, message, fix);
                None
            }
            Some(field) if field.value == "Either" && action == Action::Permit => {
                let message = "the imported rule covers only packets from or to this host, and \
                               not packets that this host forwards";
                let fix = "use nftables to filter forwarded packets. On a captured host (`tacit \
                           agent --host`), you can instead write a tacit rule with `filter` and \
                           `routing`";
                self.findings.changed(&field.at, message, fix);
                Some(())
            }
            _ => Some(()),
        }
    }

    /// The protocols of a service; empty if tacit does not relay them.
    fn protocols(&mut self, service: &Object, action: Action) -> Option<Vec<Protocol>> {
        let Some(field) = service.field("Protocol") else {
            let fix = "add `Protocol tcp`, `Protocol udp` or `Protocol all`";
            self.findings.error(&service.at, "the service has no `Protocol`", fix);
            return None;
        };
        let reason = "imported rules cover only TCP and UDP";
        match field.value.to_ascii_lowercase().as_str() {
            "tcp" | "6" => Some(vec![Protocol::Tcp]),
            "udp" | "17" => Some(vec![Protocol::Udp]),
            "all" | "any" | "0" => {
                if action == Action::Permit {
                    self.findings.changed(
                        &field.at,
                        reason,
                        "write one service for tcp and one for udp",
                    );
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
                // A denied protocol stays denied.
                if action == Action::Permit {
                    let message = format!(
                        "the policy cannot permit `{protocol}`: {reason}",
                        protocol = field.value
                    );
                    let fix = "remove the service. On a captured host (`tacit agent --host`), you \
                               can instead write a tacit rule with `filter`";
                    self.findings.changed(&field.at, message, fix);
                }
                Some(Vec::new())
            }
        }
    }

    fn way(&mut self, service: &Object) -> Option<Way> {
        let Some(field) = service.field("Direction") else {
            let fix = "add `Direction bidirectional InboundConnect` or `Direction bidirectional \
                       OutboundConnect`";
            self.findings.error(&service.at, "the service has no `Direction`", fix);
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
                let fix = "write `inbound`, `outbound`, `bidirectional`, `bidirectional \
                           InboundConnect` or `bidirectional OutboundConnect`";
                self.findings.error(&field.at, message, fix);
                None
            }
        }
    }
}

/// The packets of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Both directions; either end may connect.
    Both,
    /// Both directions; the remote end connects.
    Accepted,
    /// Both directions; this end connects.
    Opened,
    /// Packets that arrive.
    Inbound,
    /// Packets that leave.
    Outbound,
}

/// The action of a filter.
struct Decision {
    action: Action,
    log: bool,
}

/// The addresses of a filter's packets; an empty list matches everything.
struct Ends {
    source: Vec<String>,
    destination: Vec<String>,
}
