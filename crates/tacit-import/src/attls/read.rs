//! Reads all input files of an import, and returns the AT-TLS rules in the order of evaluation.
//! This is the first of the three steps of an import: read, decide, write.

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

/// The content of the files of an import.
pub(super) struct Original {
    pub(super) objects: Objects,
    /// The filters in order; `None`: no file contains filters.
    pub(super) filters: Option<Vec<Filter>>,
    /// The first line of the first file.
    pub(super) first: Option<Origin>,
}

/// Reads every file, and reports what is wrong.
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
            let message = "this file was given with --ipsec, so the import does not read the TLS \
                           rule in it";
            let fix = "move the rule to another file, and give that file without --ipsec";
            findings.error(&node.at, message, fix);
        }
        filters::read(&nodes, findings)
    });
    let first = sources.tls.first().map(|document| Origin { file: document.file.clone(), line: 1 });
    let nodes: Vec<Node> = sources.tls.into_iter().flat_map(|one| one.nodes).collect();
    for node in nodes.iter().filter(|node| is_filter(node)) {
        let message = "this file was given without --ipsec, so the import does not read the IP \
                       filters in it";
        let fix = "move the filters to another file, and give that file with --ipsec";
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

/// The rules in the order of evaluation.
pub(super) fn rules<'o>(objects: &'o Objects, findings: &mut Findings) -> Vec<Effective<'o>> {
    let named = objects.of_kind(Kind::Rule);
    let mut rules: Vec<_> = named.map(|rule| Effective::of(rule, objects, findings)).collect();
    // Rules are ordered by name, which also decides among rules of one priority.
    rules.sort_by_key(|rule| std::cmp::Reverse(rule.priority()));
    for pair in rules.windows(2) {
        let [first, second] = pair else { continue };
        if first.priority() != second.priority() {
            continue;
        }
        let name = &first.rule.name;
        let priority = first.priority();
        let order = format!(
            "tacit tries rule `{name}` before this rule: both have the priority {priority}, so \
             tacit tries them in the order of their names"
        );
        if text::ibm_1047_order(name) > text::ibm_1047_order(&second.rule.name) {
            let message = format!(
                "{order}. z/OS tries this rule first, because z/OS sorts names in EBCDIC order: a \
                 to z, A to Z, 0 to 9"
            );
            findings.changed(&second.rule.at, message, "give the two rules different priorities");
        } else {
            findings.info(&second.rule.at, order);
        }
    }
    rules
}
