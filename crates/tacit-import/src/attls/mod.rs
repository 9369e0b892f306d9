//! Policies of AT-TLS, the TLS of z/OS.
//!
//! ```text
//!   read     agent ─> document (text, lex) ─> objects ─> effective      map: names of this site
//!                                             words, values, time
//!   decide   flows (owners), tls (rings, suites, start), ignored        needs: what the map lacks
//!   write    filters::combine ─> draft ─> policy
//! ```
//!
//! Several files are one namespace. Rules are written in the order in which the original tries
//! them: the highest priority first, by name where it is equal. Defaults that are not safe are
//! raised, and each raise is reported.
//!
//! Beside the policy itself, main and image files are followed (`agent`), and IP filter rules are
//! put before it (`filters`). It does not protect packets: IPsec and IKE are refused.

use crate::files::Files;
use crate::finding::Findings;
use effective::Effective;
use map::Map;
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

/// What came of an import.
#[derive(Clone, Debug)]
pub struct Imported {
    /// The policy; `None` if there is any error.
    pub policy: Option<String>,
    /// Every rule with all that holds for it.
    pub effective: String,
}

/// Imports policy files with the map file of a site. Never panics, whatever they hold.
#[must_use]
pub fn import(request: &AttlsRequest<'_>, files: &dyn Files, findings: &mut Findings) -> Imported {
    let map = request.map.map_or_else(Map::default, |input| {
        let text = String::from_utf8_lossy(input.bytes);
        Map::read(input.file, &text, findings)
    });
    let original = read::read(request, files, &map, findings);
    let rules = read::rules(&original.objects, findings);
    original.objects.tell_unused(std::iter::empty(), findings);
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
