//! First step of an import: from files to rules with all that holds for them.

use super::agent;
use super::effective::Effective;
use super::filters::{self, Filter};
use super::lex::Node;
use super::map::Map;
use super::objects::Objects;
use super::request::AttlsRequest;
use super::text;
use super::words::Kind;
use crate::files::Files;
use crate::finding::{Findings, Origin};

/// What the files of an import say.
pub(super) struct Original {
    pub(super) objects: Objects,
    /// The filters in order; `None`: no file is about filters.
    pub(super) filters: Option<Vec<Filter>>,
    /// The first line of the first file.
    pub(super) first: Option<Origin>,
}

/// Reads every file; what is wrong with them is reported.
pub(super) fn read(
    request: &AttlsRequest<'_>,
    files: &dyn Files,
    map: &Map,
    findings: &mut Findings,
) -> Original {
    let sources = agent::sources(request, files, map, findings);
    let filters = sources.filters.map(|documents| {
        let nodes: Vec<Node> = documents.into_iter().flat_map(|one| one.nodes).collect();
        for node in nodes.iter().filter(|node| kind(node) == Some(Kind::Rule)) {
            let message = "a TLS rule stands in a file of filters, where it is not looked for";
            let fix = "put it into a file of its own, and name that without --ipsec";
            findings.error(&node.at, message, fix);
        }
        filters::read(&nodes, findings)
    });
    let first = sources.tls.first().map(|document| Origin { file: document.file.clone(), line: 1 });
    let nodes: Vec<Node> = sources.tls.into_iter().flat_map(|one| one.nodes).collect();
    for node in nodes.iter().filter(|node| is_filter(node)) {
        let message = "filters stand in a file of TLS rules, where they are not looked for";
        let fix = "put them into a file of their own, and name that by --ipsec";
        findings.error(&node.at, message, fix);
    }
    let objects = Objects::read(&nodes, findings);
    Original { objects, filters, first }
}

fn kind(node: &Node) -> Option<Kind> {
    Kind::of(&node.keyword)
}

fn is_filter(node: &Node) -> bool {
    matches!(kind(node), Some(Kind::FilterPolicy | Kind::FilterGroup | Kind::FilterRule))
}

/// The rules in the order in which they are tried.
pub(super) fn rules<'o>(objects: &'o Objects, findings: &mut Findings) -> Vec<Effective<'o>> {
    let named = objects.of_kind(Kind::Rule);
    let mut rules: Vec<_> = named.map(|rule| Effective::of(rule, objects, findings)).collect();
    // Rules come by name; that is the order among those of one priority.
    rules.sort_by_key(|rule| std::cmp::Reverse(rule.priority()));
    for pair in rules.windows(2) {
        let [first, second] = pair else { continue };
        if first.priority() != second.priority() {
            continue;
        }
        let name = &first.rule.name;
        let priority = first.priority();
        let both =
            format!("rule `{name}` comes first: by name, the priority {priority} is the same");
        if text::ibm_1047_order(name) > text::ibm_1047_order(&second.rule.name) {
            let message = format!("{both}; in EBCDIC, which has digits last, this one does");
            findings.changed(&second.rule.at, message, "give the two different priorities");
        } else {
            findings.info(&second.rule.at, both);
        }
    }
    rules
}
