//! Checks the values in a map file, and reports each error with its line in the map file.
//!
//! Without this check, the error would contain the line of the AT-TLS rule that uses the value,
//! although this rule is correct.

use crate::draft::{Toml, show};
use tacit_core::policy::text::TomlValue;
use tacit_core::policy::{DiagnosticSeverity, parse};

/// A rule that lacks only its selectors.
const OUTBOUND: &str = "version = 1\n[[rule]]\nname = \"r\"\npermit = true\n\
                        direction = \"outbound\"\n";
const OF_HOST: &str = "version = 1\nhost.unmatched = \"deny\"\n[[rule]]\nname = \"r\"\n\
                       permit = true\ndirection = \"outbound\"\nremote = \"192.0.2.1\"\n";
const INBOUND: &str = "version = 1\n[[rule]]\nname = \"r\"\npermit = true\n\
                       direction = \"inbound\"\n";

/// Whether a policy accepts the value for this key of a rule; reports why not. Keys that depend on
/// the rest of the rule are accepted here.
pub(super) fn is_accepted(key: &str, value: &TomlValue<'_>, copied: &Toml) -> bool {
    let line = format!("{key} = {}\n", show(copied));
    let rule = match key {
        "program" | "user" | "run" | "remote" => format!("{OUTBOUND}{line}"),
        "unit" | "cgroup" => format!("{OF_HOST}{line}"),
        "listen" => format!("{INBOUND}{line}local-ports = 1\n"),
        "local-ports" => format!("{INBOUND}{line}listen = \"127.0.0.1:1\"\n"),
        _ => return true,
    };
    let before = if rule.starts_with(OF_HOST) { OF_HOST } else { OUTBOUND };
    let place = before.lines().count() + 1;
    let mut is_accepted = true;
    for found in parse(&rule).diagnostics {
        if found.severity == DiagnosticSeverity::Error && found.position.line == place {
            is_accepted = false;
            value.error(found.message, found.fix.unwrap_or_default());
        }
    }
    is_accepted
}
