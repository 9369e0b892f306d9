//! Checks the layers of the workspace: a crate or module may use only lower layers.
//!
//! Tables in this file list the crates, and the modules of each crate, with the lowest layer first.
//! In addition, the modules of a crate must not depend on each other in a cycle.

use super::finding::Finding;
use super::graph::{Modules, Use, circles};
use super::source::Source;

/// A crate, and the crates of the workspace that it may use.
struct Crate {
    name: &'static str,
    folder: &'static str,
    may_use: &'static [&'static str],
}

/// The crates, lowest first.
const CRATES: [Crate; 9] = [
    Crate { name: "tacit-core", folder: "crates/tacit-core/", may_use: &[] },
    Crate { name: "tacit-sys", folder: "crates/tacit-sys/", may_use: &[] },
    Crate { name: "tacit-import", folder: "crates/tacit-import/", may_use: &["tacit-core"] },
    Crate { name: "tacit-ipsec", folder: "crates/tacit-ipsec/", may_use: &["tacit-core"] },
    Crate { name: "tacit-tls", folder: "crates/tacit-tls/", may_use: &["tacit-core", "tacit-sys"] },
    Crate {
        name: "tacit",
        folder: "crates/tacit/",
        may_use: &["tacit-core", "tacit-import", "tacit-ipsec", "tacit-sys", "tacit-tls"],
    },
    Crate {
        name: "bench",
        folder: "bench/",
        may_use: &["tacit-core", "tacit-import", "tacit-ipsec", "tacit-sys", "tacit-tls", "tacit"],
    },
    Crate {
        name: "tacit-fuzz",
        folder: "fuzz/",
        may_use: &["tacit-core", "tacit-import", "tacit-ipsec", "tacit-sys", "tacit-tls", "tacit"],
    },
    Crate { name: "xtask", folder: "xtask/", may_use: &[] },
];

/// The modules of a folder, lowest first.
struct Layers {
    /// The folder, relative to the root.
    folder: &'static str,
    modules: &'static [&'static str],
}

const LAYERS: [Layers; 3] = [
    Layers {
        folder: "crates/tacit/src/",
        modules: &[
            "exit",
            "runtime",
            "policy_file",
            "clock",
            "random",
            "host_file",
            "temporary_file",
            "output_file",
            "address",
            "cgroups",
            "placement",
            "ledger",
            "log",
            "net",
            "packet",
            "ike",
            "live",
            "signer",
            "confine",
            "run",
            "activate",
            "host",
            "session",
            "engine",
            "dns",
            "query",
            "stream",
            "datagram",
            "worker",
            "control",
            "agent",
            "link",
            "launch",
            "cpus",
            "doctor",
            "ca",
            "check",
            "completions",
            "import",
            "learn",
            "explain",
            "policy_test",
            "show",
            "project",
            "top",
            "trace",
            "workload",
            "cli",
            "fuzz",
        ],
    },
    // The stream lane: shared modules, then the stages in the order in which a connection passes
    // them, then the function that calls them.
    Layers {
        folder: "crates/tacit/src/stream/",
        modules: &[
            "bulk",
            "scratch",
            "limiter",
            "relay_kind",
            "data",
            "stage",
            "lane",
            "intercept",
            "admit",
            "handed",
            "dial",
            "activated",
            "header",
            "starttls_driver",
            "establish",
            "relay",
            "serve",
        ],
    },
    Layers {
        folder: "crates/tacit/src/session/",
        modules: &[
            "quotas",
            "tls_control",
            "record",
            "trace",
            "table",
            "end",
            "connection",
            "refusals",
            "failure",
            "account",
            "recent_tls",
            "recheck",
        ],
    },
];

pub(crate) fn check(sources: &[Source], findings: &mut Vec<Finding>) {
    for one in &CRATES {
        check_crate(sources, one, findings);
    }
    for layers in &LAYERS {
        check_layers(sources, layers, findings);
    }
}

/// Checks that a crate uses only lower crates, and that its modules have no circle.
fn check_crate(sources: &[Source], one: &Crate, findings: &mut Vec<Finding>) {
    let manifest = format!("{}Cargo.toml", one.folder);
    if let Some(manifest) = sources.iter().find(|source| source.path == manifest) {
        check_dependencies(manifest, one, findings);
    }
    let folder = format!("{}src/", one.folder);
    let modules = Modules::new(sources, &folder);
    let uses = modules.uses();
    for circle in circles(&uses) {
        let in_circle = |module: &str| {
            let is_inside = |one: &&String| {
                module == *one
                    || module.strip_prefix(*one).is_some_and(|rest| rest.starts_with("::"))
            };
            circle.iter().find(is_inside)
        };
        let is_tie = |one: &&Use| {
            let from = in_circle(&one.from);
            let to = in_circle(&one.to);
            from.is_some() && to.is_some() && from != to
        };
        let ties: Vec<&Use> = uses.iter().filter(is_tie).collect();
        let Some(source) = ties.first().and_then(|one| modules.file(&one.from)) else { continue };
        let arrows: Vec<String> =
            ties.iter().map(|one| format!("{} -> {}", name(&one.from), name(&one.to))).collect();
        let names = circle.join(", ");
        let ties = arrows.join(", ");
        let message = format!(
            "these modules form a dependency cycle: {names}; remove one of these uses: {ties}"
        );
        findings.push(Finding::new(source, 0, message));
    }
}

/// Checks the dependencies of a crate, except those of its tests.
fn check_dependencies(manifest: &Source, one: &Crate, findings: &mut Vec<Finding>) {
    let mut section = "";
    for (index, line) in manifest.text.lines().enumerate() {
        if line.starts_with('[') {
            section = line;
        }
        let used = line.split(['.', ' ', '=']).next().unwrap_or_default();
        let is_ours = CRATES.iter().any(|other| other.name == used && used != one.name);
        if section == "[dependencies]" && is_ours && !one.may_use.contains(&used) {
            let message = format!("crate `{}` must not use `{used}`", one.name);
            findings.push(Finding::new(manifest, index + 1, message));
        }
    }
}

/// Checks that each module of the folder has a layer and uses only lower layers.
fn check_layers(sources: &[Source], layers: &Layers, findings: &mut Vec<Finding>) {
    let Some(end) = layers.folder.find("/src/") else { return };
    let (folder, inside) = layers.folder.split_at(end + "/src/".len());
    let prefix = inside.replace('/', "::");
    let modules = Modules::new(sources, folder);
    let layer = |module: &str| {
        let own = module.strip_prefix(&prefix)?.split("::").next()?;
        layers.modules.iter().position(|known| *known == own)
    };
    for module in modules.all() {
        let is_inside = module.len() > prefix.len() && module.starts_with(&prefix);
        if is_inside && layer(module).is_none() {
            let Some(source) = modules.file(module) else { continue };
            let message = "the module has no layer: add the module to the table in tidy/layers.rs";
            findings.push(Finding::new(source, 0, message));
        }
    }
    for one in modules.uses() {
        let (Some(from), Some(to)) = (layer(&one.from), layer(&one.to)) else { continue };
        if to > from {
            let Some(source) = modules.file(&one.from) else { continue };
            let message =
                format!("module `{}` uses `{}`, which belongs to a higher layer", one.from, one.to);
            findings.push(Finding::new(source, 0, message));
        }
    }
}

fn name(module: &str) -> &str {
    if module.is_empty() { "the crate root" } else { module }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(files: &[(&str, &str)]) -> Vec<String> {
        let sources: Vec<Source> =
            files.iter().map(|(path, text)| Source::new(path, text)).collect();
        let mut findings = Vec::new();
        check(&sources, &mut findings);
        findings.iter().map(|finding| finding.path.clone()).collect()
    }

    #[test]
    fn a_layer_uses_only_lower_layers() {
        let right = [
            (
                "crates/tacit/src/stream/relay/mod.rs",
                "use crate::stream::{relay_kind::P, lane::L};",
            ),
            ("crates/tacit/src/stream/relay_kind.rs", "use crate::session::Connection;"),
            ("crates/tacit/src/stream/lane.rs", "use super::relay_kind::P;"),
            ("crates/tacit/src/session/mod.rs", "mod end;\npub use end::End;"),
            ("crates/tacit/src/session/end.rs", "#[cfg(test)]\nmod tests { use crate::stream; }"),
        ];
        assert_eq!(findings(&right), [""; 0]);
        for wrong in [
            ("crates/tacit/src/session/end.rs", "use crate::stream::relay_kind::P;"),
            ("crates/tacit/src/stream/limiter.rs", "fn f() { super::relay::run() }"),
            ("crates/tacit/src/stream/novelty.rs", ""),
            ("crates/tacit-core/Cargo.toml", "[dependencies]\ntacit-sys.workspace = true"),
        ] {
            let files = [right[0], right[1], ("crates/tacit/src/stream/mod.rs", ""), wrong];
            assert_eq!(findings(&files), [wrong.0], "{wrong:?}");
        }
    }

    #[test]
    fn a_circle_is_reported_with_its_uses() {
        let files = [
            ("crates/tacit-sys/src/lib.rs", "mod a;\nmod b;"),
            ("crates/tacit-sys/src/a.rs", "use crate::b::B;"),
            ("crates/tacit-sys/src/b.rs", "use super::a::A;"),
        ];
        assert_eq!(findings(&files), ["crates/tacit-sys/src/a.rs"]);
    }
}
