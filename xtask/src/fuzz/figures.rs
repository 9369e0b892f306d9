//! Reads and writes `fuzz/coverage.toml`. For each fuzz target, the file contains a number: how
//! many code edges the committed inputs of the target reach.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use crate::workspace::root;

/// Permitted decrease in percent. Compilers differ in the edges they generate.
const TOLERANCE_PERCENT: u64 = 2;

/// Whether the numbers apply to this machine. Kernel messages depend on the byte order.
pub(crate) const ARE_HERE: bool = cfg!(target_arch = "x86_64");

const HEAD: &str = "\
# For each fuzz target: the number of edges in tacit's own crates that the committed inputs reach.
# libFuzzer counted the edges (`cov:`) on x86_64. `cargo xtask fuzz replay` fails if a target
# reaches over 2 % fewer edges. This tolerance is for differences between compilers. On other
# architectures the numbers are not compared. Written by `cargo xtask fuzz cover --update`.
";

/// The number for each target.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Figures(BTreeMap<String, u64>);

impl Figures {
    pub(crate) fn read() -> Result<Self, String> {
        let path = path();
        match path.exists() {
            true => {
                let text = fs::read_to_string(&path);
                Self::parse(
                    &text.map_err(|error| format!("cannot read {}: {error}", path.display()))?,
                )
            }
            false => Ok(Self::default()),
        }
    }

    pub(crate) fn write(&self) -> Result<(), String> {
        let path = path();
        fs::write(&path, self.text())
            .map_err(|error| format!("cannot write {}: {error}", path.display()))
    }

    pub(crate) fn of(&self, name: &str) -> Option<u64> {
        self.0.get(name).copied()
    }

    pub(crate) fn set(&mut self, name: &str, edges: u64) {
        self.0.insert(name.to_owned(), edges);
    }

    /// Checks that a target reaches enough edges.
    pub(crate) fn check(&self, name: &str, edges: u64) -> Result<(), String> {
        let Some(figure) = self.of(name) else {
            return Err(format!(
                "fuzz {name}: fuzz/coverage.toml has no entry for this target: run cargo xtask \
                 fuzz cover {name} --update"
            ));
        };
        if edges * 100 >= figure * (100 - TOLERANCE_PERCENT) {
            return Ok(());
        }
        Err(format!(
            "fuzz {name}: the inputs reach only {edges} edges; fuzz/coverage.toml has {figure}\n  \
             find further inputs: cargo xtask fuzz {name}; then cargo xtask fuzz cover {name} \
             --update"
        ))
    }

    fn parse(text: &str) -> Result<Self, String> {
        let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        let figures = lines.map(|line| {
            let (name, edges) = line.split_once(" = ")?;
            Some((name.to_owned(), edges.parse().ok()?))
        });
        let figures: Option<_> = figures.collect();
        figures.map(Self).ok_or_else(|| {
            "fuzz/coverage.toml: a line does not have the form `NAME = EDGES`".to_owned()
        })
    }

    fn text(&self) -> String {
        let lines = self.0.iter().map(|(name, edges)| format!("{name} = {edges}\n"));
        HEAD.chars().chain(lines.collect::<String>().chars()).collect()
    }
}

fn path() -> PathBuf {
    root().join("fuzz/coverage.toml")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzz::target::TARGETS;

    #[test]
    fn a_target_that_reaches_fewer_edges_fails() {
        let figures = Figures::parse("# edges\ndns = 1000\n").unwrap();
        assert_eq!(figures.check("dns", 1200), Ok(()));
        assert_eq!(figures.check("dns", 980), Ok(()), "another compiler");
        assert!(figures.check("dns", 979).unwrap_err().contains("979 edges"));
        assert!(figures.check("icmp", 5000).unwrap_err().contains("no entry"));
    }

    #[test]
    fn written_numbers_are_parsed() {
        let mut figures = Figures::default();
        figures.set("policy", 7);
        figures.set("dns", 3);
        assert_eq!(Figures::parse(&figures.text()), Ok(figures));
        assert!(Figures::parse("dns: 3").is_err());
    }

    #[test]
    fn every_target_has_a_figure_a_seed_and_an_entry_and_no_other_has() {
        let figures = Figures::read().unwrap();
        let entries = fs::read_to_string(root().join("fuzz/src/targets/mod.rs")).unwrap();
        for target in &TARGETS {
            let name = target.name;
            assert!(figures.of(name).is_some(), "{name} has no figure");
            assert!(root().join("fuzz/seeds").join(name).is_dir(), "{name} has no seed");
            assert!(entries.contains(&format!("\"{name}\" => ")), "{name} has no entry");
        }
        assert_eq!(figures.0.len(), TARGETS.len());
        assert_eq!(entries.matches("\" => ").count(), TARGETS.len() + 1, "and the canary");
    }
}
