//! Determines which other modules each module of a crate uses, from the Rust paths in the source
//! code.
//!
//! A module is a file. The path `crate::a::b::Type` refers to the file `a/b.rs` if that file
//! exists, otherwise to the file of `a`. If `a` re-exports a name from a child module, a path to
//! this name refers to the file of the child module. Tests are ignored.

use std::collections::{BTreeMap, BTreeSet};

use super::source::{Source, identifier};

/// The modules of a crate by their paths, such as `a::b`; the path of the root is empty.
pub(crate) struct Modules<'a> {
    files: BTreeMap<String, &'a Source>,
    /// For each module, the names that it re-exports from its children.
    named: BTreeMap<String, BTreeMap<String, String>>,
}

/// A use of one module by another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Use {
    /// The using module.
    pub(crate) from: String,
    /// The used module.
    pub(crate) to: String,
    /// The position in the file of the using module.
    pub(crate) offset: usize,
}

impl<'a> Modules<'a> {
    /// The modules of the crate whose sources are in `folder`, which ends with `/`.
    pub(crate) fn new(sources: &'a [Source], folder: &str) -> Self {
        let mut files = BTreeMap::new();
        for source in sources {
            let Some(inside) = source.path.strip_prefix(folder) else { continue };
            let Some(inside) = inside.strip_suffix(".rs") else { continue };
            let mut words: Vec<&str> = inside.split('/').collect();
            let is_test = words.iter().any(|word| matches!(*word, "tests" | "testing" | "bin"));
            if matches!(words.last(), Some(&"mod" | &"lib" | &"main")) {
                words.pop();
            }
            // A binary next to a library is a separate crate.
            let is_second_root = words.is_empty() && files.contains_key("");
            if !is_test && !is_second_root {
                files.insert(words.join("::"), source);
            }
        }
        let mut modules = Self { files, named: BTreeMap::new() };
        modules.named = modules.names_of_children();
        modules
    }

    fn names_of_children(&self) -> BTreeMap<String, BTreeMap<String, String>> {
        let mut named: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
        for (module, source) in &self.files {
            for path in paths(source.code_without_tests()) {
                let [child, .., name] = path.words.as_slice() else { continue };
                let child = if module.is_empty() {
                    (*child).to_owned()
                } else {
                    format!("{module}::{child}")
                };
                if self.files.contains_key(&child) {
                    named.entry(module.clone()).or_default().insert((*name).to_owned(), child);
                }
            }
        }
        named
    }

    /// The file of a module.
    pub(crate) fn file(&self, module: &str) -> Option<&'a Source> {
        self.files.get(module).copied()
    }

    /// The module of a file.
    pub(crate) fn module_of(&self, path: &str) -> Option<&str> {
        let found = self.files.iter().find(|(_, source)| source.path == path);
        found.map(|(module, _)| module.as_str())
    }

    /// Every module.
    pub(crate) fn all(&self) -> impl Iterator<Item = &str> {
        self.files.keys().map(String::as_str)
    }

    /// The uses between the modules, once for each pair.
    pub(crate) fn uses(&self) -> Vec<Use> {
        let mut uses = Vec::new();
        for (module, source) in &self.files {
            let mut seen = BTreeSet::new();
            for CodePath { offset, words } in paths(source.code_without_tests()) {
                let Some(to) = self.resolve(module, &words) else { continue };
                if to != *module && seen.insert(to.clone()) {
                    uses.push(Use { from: module.clone(), to, offset });
                }
            }
        }
        uses
    }

    /// The module that a path leads to, in the context of another module.
    fn resolve<'p>(&self, from: &'p str, path: &[&'p str]) -> Option<String> {
        let own: Vec<&str> = from.split("::").filter(|word| !word.is_empty()).collect();
        let (first, mut rest) = path.split_first()?;
        let mut at = match *first {
            "crate" => Vec::new(),
            "self" => own,
            "super" => own.split_last()?.1.to_vec(),
            child => {
                let child = [own.as_slice(), &[child]].concat();
                // Any other first word is a crate, a type or a local name.
                return self
                    .files
                    .contains_key(&child.join("::"))
                    .then(|| self.deepest(child, rest));
            }
        };
        while let Some((&"super", others)) = rest.split_first() {
            at.pop()?;
            rest = others;
        }
        Some(self.deepest(at, rest))
    }

    fn deepest<'p>(&self, mut at: Vec<&'p str>, rest: &[&'p str]) -> String {
        let mut found = at.join("::");
        for word in rest {
            at.push(word);
            let deeper = at.join("::");
            if !self.files.contains_key(&deeper) {
                return self.owner(found, word);
            }
            found = deeper;
        }
        found
    }

    /// The module that defines a name which another module re-exports.
    fn owner(&self, mut module: String, name: &str) -> String {
        while let Some(child) = self.named.get(&module).and_then(|names| names.get(name)) {
            module.clone_from(child);
        }
        module
    }
}

/// Groups of sibling modules that use each other in a circle, in any folder. A folder's `mod.rs`
/// and the files in the folder may use each other; for other modules they are one module.
pub(crate) fn circles(uses: &[Use]) -> Vec<Vec<String>> {
    let mut folders: BTreeMap<String, Vec<(String, String)>> = BTreeMap::new();
    for one in uses {
        let from: Vec<&str> = one.from.split("::").collect();
        let to: Vec<&str> = one.to.split("::").collect();
        let common = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
        if common < from.len() && common < to.len() && !one.from.is_empty() && !one.to.is_empty() {
            let sibling = |words: &[&str]| words[..=common].join("::");
            let folder = from[..common].join("::");
            folders.entry(folder).or_default().push((sibling(&from), sibling(&to)));
        }
    }
    folders.values().flat_map(|arrows| circles_of(arrows)).collect()
}

/// Groups of names that are connected in a circle.
fn circles_of(arrows: &[(String, String)]) -> Vec<Vec<String>> {
    let mut next: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (from, to) in arrows {
        next.entry(from).or_default().insert(to);
    }
    let reach: BTreeMap<&str, BTreeSet<&str>> =
        next.keys().map(|module| (*module, reachable(&next, module))).collect();
    let mut groups = BTreeSet::new();
    for (module, reached) in &reach {
        if !reached.contains(module) {
            continue;
        }
        let leads_back =
            |other: &&&str| reach.get(**other).is_some_and(|reached| reached.contains(module));
        let group = reached.iter().filter(leads_back).map(|name| (*name).to_owned());
        groups.insert(group.collect::<Vec<_>>());
    }
    groups.into_iter().collect()
}

fn reachable<'g>(next: &BTreeMap<&'g str, BTreeSet<&'g str>>, from: &str) -> BTreeSet<&'g str> {
    let mut reached = BTreeSet::new();
    let mut open: Vec<&str> = next.get(from).into_iter().flatten().copied().collect();
    while let Some(module) = open.pop() {
        if reached.insert(module) {
            open.extend(next.get(module).into_iter().flatten());
        }
    }
    reached
}

/// A path in Rust code.
struct CodePath<'c> {
    /// The offset of its first word.
    offset: usize,
    words: Vec<&'c str>,
}

/// Every path in Rust code; paths in braces are expanded.
fn paths(code: &str) -> Vec<CodePath<'_>> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < code.len() {
        let Some(rest) = code.get(at..) else {
            at += 1;
            continue;
        };
        let word = identifier(rest);
        if word.is_empty() {
            at += 1;
            continue;
        }
        let is_start = !code.get(..at).is_some_and(|before| before.ends_with("::"));
        let after = rest.get(word.len()..).unwrap_or_default();
        if is_start && after.starts_with("::") {
            let mut tree = Tree { code, at: at + word.len() + 2, offset: at, found: &mut found };
            tree.read(&mut vec![word]);
            at = tree.at.max(at + word.len());
        } else {
            at += word.len();
        }
    }
    found
}

/// Parses what follows a `::`.
struct Tree<'c, 'f> {
    code: &'c str,
    at: usize,
    offset: usize,
    found: &'f mut Vec<CodePath<'c>>,
}

impl<'c> Tree<'c, '_> {
    fn read(&mut self, prefix: &mut Vec<&'c str>) {
        self.skip_space();
        if self.eat('{') {
            self.read_group(prefix);
            return;
        }
        let word = self.word();
        if word.is_empty() {
            self.push(prefix);
            return;
        }
        prefix.push(word);
        if self.code.get(self.at..).is_some_and(|rest| rest.starts_with("::")) {
            self.at += 2;
            self.read(prefix);
        } else {
            self.push(prefix);
        }
        prefix.pop();
    }

    fn push(&mut self, words: &[&'c str]) {
        self.found.push(CodePath { offset: self.offset, words: words.to_vec() });
    }

    fn read_group(&mut self, prefix: &mut Vec<&'c str>) {
        loop {
            self.skip_space();
            if self.eat('}') || self.at >= self.code.len() {
                return;
            }
            let before = self.at;
            self.read(prefix);
            // `as name`, and characters that cannot be in a path.
            while self.code.get(self.at..).is_some_and(|rest| !rest.starts_with([',', '}'])) {
                self.at += self
                    .code
                    .get(self.at..)
                    .and_then(|r| r.chars().next())
                    .map_or(1, char::len_utf8);
                if self.at >= self.code.len() {
                    return;
                }
            }
            if !self.eat(',') && self.at == before {
                return;
            }
        }
    }

    fn word(&mut self) -> &'c str {
        let word = identifier(self.code.get(self.at..).unwrap_or_default());
        self.at += word.len();
        word
    }

    fn eat(&mut self, wanted: char) -> bool {
        let is_there = self.code.get(self.at..).is_some_and(|rest| rest.starts_with(wanted));
        self.at += if is_there { wanted.len_utf8() } else { 0 };
        is_there
    }

    fn skip_space(&mut self) {
        let rest = self.code.get(self.at..).unwrap_or_default();
        self.at += rest.len() - rest.trim_start().len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uses(files: &[(&str, &str)]) -> Vec<String> {
        let sources: Vec<Source> =
            files.iter().map(|(path, text)| Source::new(path, text)).collect();
        let modules = Modules::new(&sources, "c/src/");
        modules.uses().iter().map(|one| format!("{} {}", one.from, one.to)).collect()
    }

    #[test]
    fn paths_lead_to_the_deepest_module() {
        let files = [
            ("c/src/lib.rs", "pub mod a;\npub use a::b::Thing;"),
            ("c/src/a/mod.rs", "mod b;\nmod d;\nfn f() { b::g() }"),
            ("c/src/a/b.rs", "use crate::e::{E, f::{self, F}};\nuse super::d::D;"),
            ("c/src/a/d.rs", "use super::Local;\n// crate::a::b is only mentioned"),
            ("c/src/e/mod.rs", ""),
            ("c/src/e/f.rs", "fn f() { std::e::g(); }\n#[cfg(test)]\nmod tests { use crate::a; }"),
        ];
        let wanted = [" a::b", "a a::b", "a::b e", "a::b e::f", "a::b a::d", "a::d a"];
        assert_eq!(uses(&files), wanted);
    }

    #[test]
    fn complete_circles_are_found() {
        let one = |from: &str, to: &str| Use { from: from.into(), to: to.into(), offset: 0 };
        let uses = [one("a", "b"), one("b", "c"), one("c", "a"), one("c", "d"), one("d", "e")];
        assert_eq!(circles(&uses), [["a", "b", "c"]]);
    }
}
