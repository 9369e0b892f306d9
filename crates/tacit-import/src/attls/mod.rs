//! Imports AT-TLS policies. AT-TLS (Application Transparent TLS) is the TLS implementation in the
//! TCP/IP stack of z/OS.
//!
//! An import has three steps. The table lists the modules of each step, and what each module
//! handles.
//!
//! ```text
//!   1. read     agent            the main and image files of the Policy Agent
//!               document         one policy file (modules used: text, lex)
//!               objects          the rules and actions (modules used: words, values, time)
//!               effective        all attributes of a rule
//!               map              the map file: the programs, users and files that replace z/OS
//!                                names
//!   2. decide   flows            the connections of a rule (module used: owners)
//!               tls              the TLS settings of a rule (modules used: rings, suites, start)
//!               ignored          attributes without an effect in tacit
//!               needs            lines that the map file lacks
//!   3. write    filters::combine ─> draft ─> policy
//! ```
//!
//! A policy file may use names that another policy file defines. The imported rules have the order
//! in which z/OS evaluates rules: by descending priority, then by name. The import replaces unsafe
//! defaults of AT-TLS with safe values, and reports each replacement.
//!
//! The module `filters` combines IP filter rules with the TLS rules. The import rejects IPsec and
//! IKE policies.

use crate::files::Files;
use crate::finding::Findings;
use effective::Effective;
use map::{Map, PolicyPrograms};
use write::Sources;

mod agent;
mod conditions;
mod context;
mod decide;
mod document;
mod effective;
mod filters;
mod flows;
mod ignored;
mod lex;
mod map;
mod map_keys;
mod map_values;
mod names;
mod needs;
mod objects;
mod owners;
mod patterns;
mod read;
mod request;
mod ring_users;
mod rings;
mod start;
mod suites;
mod text;
mod time;
mod tls;
mod values;
mod words;
mod write;

#[cfg(test)]
mod tests;

pub use flows::LISTEN_PORTS_MAX;
pub use request::{AttlsOptions, AttlsRequest};

/// The result of an import.
#[derive(Clone, Debug)]
pub struct Imported {
    /// The policy; `None` if there is any error.
    pub policy: Option<String>,
    /// Every rule with its effective attributes, as a table.
    pub effective: String,
}

/// Imports policy files with the map file of a site. Never panics, whatever they contain.
#[must_use]
pub fn import(request: &AttlsRequest<'_>, files: &dyn Files, findings: &mut Findings) -> Imported {
    let programs = if request.options.host { PolicyPrograms::Host } else { PolicyPrograms::Runs };
    let map = match request.map {
        None => Map::empty(programs),
        Some(input) => {
            let text = String::from_utf8_lossy(input.bytes);
            Map::read(input.file, &text, programs, findings)
        }
    };
    let original = read::read(request, files, &map, findings);
    let rules = read::rules(&original.objects, findings);
    original.objects.report_unused(std::iter::empty(), findings);
    let effective = rules.iter().map(Effective::table).collect::<Vec<_>>().join("\n");
    let decisions = decide::decide(&rules, &map, request.options, findings);
    let sources = Sources {
        map: &map,
        options: request.options,
        filters: original.filters.as_deref(),
        first_rule: rules.first().map(|rule| &rule.rule.at),
        first_line: original.first.as_ref(),
    };
    let policy = write::write(decisions, &sources, findings);
    Imported { policy, effective }
}
