//! Main and image files of the Policy Agent: which files hold the policies.
//!
//! ```text
//!   CommonTTLSConfig    /etc/pagent/common.tls       main file: for all TCP/IP stacks, first
//!   TcpImage TCPIP      /etc/pagent/tcpip.image      a stack with a file of its own
//!   TTLSConfig          /etc/pagent/tcpip.tls        image file: the last of each counts
//!   IpSecConfig         //'SYS1.PAGENT(IPSEC)'       a data set: [dataset] of the map says a file
//! ```
//!
//! A path is taken from the root that is given, or, if it is relative, from the directory of the
//! file that names it. Policies that a policy server hands out are not read.

use super::lex::Document;
use super::map::Map;
use super::{Input, read};
use crate::draft::quote;
use crate::{Files, Findings, Origin};

/// The files of both kinds of policies.
#[derive(Debug, Default)]
pub(super) struct Sources {
    pub(super) tls: Vec<Document>,
    /// `None`: no file is about filters.
    pub(super) filters: Option<Vec<Document>>,
}

/// Where the files that a text names come from.
pub(super) struct Agent<'a> {
    pub(super) files: &'a dyn Files,
    /// What stands for `/`.
    pub(super) root: Option<&'a str>,
    pub(super) map: &'a Map,
}

/// How deep files may name files: main file, image file, policy, and one to spare.
const DEPTH_MAX: usize = 4;

impl Agent<'_> {
    /// Reads a file and, where it names others, those.
    pub(super) fn gather(&self, path: &str, sources: &mut Sources, findings: &mut Findings) {
        let at = Origin { file: path.into(), line: 1 };
        self.file(path, &at, 0, sources, findings);
    }

    /// Reads a file of filters.
    pub(super) fn gather_filters(
        &self,
        path: &str,
        sources: &mut Sources,
        findings: &mut Findings,
    ) {
        let at = Origin { file: path.into(), line: 1 };
        let read = self.document(path, &at, findings);
        sources.filters.get_or_insert_default().extend(read);
    }

    fn document(&self, path: &str, at: &Origin, findings: &mut Findings) -> Option<Document> {
        match self.files.read(path) {
            Ok(bytes) => read(&Input { file: path, bytes: &bytes }, findings),
            Err(error) => {
                let message = format!("{path} cannot be read: {error}");
                let fix = "name a file that can be read; --root says what stands for /";
                findings.error(at, message, fix);
                None
            }
        }
    }

    fn file(
        &self,
        path: &str,
        at: &Origin,
        depth: usize,
        sources: &mut Sources,
        findings: &mut Findings,
    ) {
        if depth > DEPTH_MAX {
            findings.error(at, "files name each other in a circle", "name each file once");
            return;
        }
        let Some(mut document) = self.document(path, at, findings) else { return };
        let names_files =
            |node: &super::lex::Node| node.block.is_none() && word(&node.keyword).is_some();
        if !document.nodes.iter().any(names_files) {
            sources.tls.push(document);
            return;
        }
        let (named, rest) = document.nodes.into_iter().partition(names_files);
        document.nodes = rest;
        if !document.nodes.is_empty() {
            sources.tls.push(document);
        }
        let named: Vec<super::lex::Node> = named;
        for (node, place) in named.iter().zip(0_usize..) {
            let Some((word, what)) = word(&node.keyword) else { continue };
            // Images of several stacks are several policies.
            let later = named.iter().skip(place + 1).find(|later| later.is(word));
            match (what, later) {
                (What::Image, Some(_)) => {
                    let message = "there are several TCP/IP stacks, each with a policy of its own";
                    findings.error(&node.at, message, "import their image files one by one");
                    continue;
                }
                (What::Tls | What::Filters, Some(later)) => {
                    let message = format!("`{word}` is said again at {}, which counts", later.at);
                    findings.changed(&node.at, message, "remove this one");
                    continue;
                }
                _ => {}
            }
            self.named(path, node, word, what, depth, sources, findings);
        }
    }

    /// Follows one statement.
    #[expect(clippy::too_many_arguments, reason = "all of it is handed down from file to file")]
    fn named(
        &self,
        from: &str,
        node: &super::lex::Node,
        word: &str,
        what: What,
        depth: usize,
        sources: &mut Sources,
        findings: &mut Findings,
    ) {
        let mut words = node.value.split_whitespace();
        if what == What::Image {
            words.next();
        }
        let path = match what {
            What::Ignored(why) => return findings.info(&node.at, format!("`{word}`: {why}")),
            What::Other => {
                let message = format!("`{word}`: these policies are not imported");
                return findings.changed(&node.at, message, "see to it by other means");
            }
            What::Remote => {
                let message = format!("`{word}`: policies of a policy server are not imported");
                let fix = "import them where they are, as files";
                return findings.error(&node.at, message, fix);
            }
            What::Image | What::Tls | What::Filters => words.next(),
        };
        let Some(path) = path else {
            if what == What::Image {
                return findings.info(&node.at, "the stack has no file of its own");
            }
            return findings.error(&node.at, format!("`{word}` names no file"), "name one");
        };
        let Some(path) = self.path(from, path, &node.at, findings) else { return };
        match what {
            What::Filters => {
                let read = self.document(&path, &node.at, findings);
                sources.filters.get_or_insert_default().extend(read);
            }
            _ => self.file(&path, &node.at, depth + 1, sources, findings),
        }
    }

    /// Where a file is here; `None` after an error.
    fn path(&self, from: &str, path: &str, at: &Origin, findings: &mut Findings) -> Option<String> {
        if let Some(dataset) = path.strip_prefix("//") {
            let dataset = dataset.trim_matches('\'');
            if let Some(file) = self.map.datasets.get(dataset) {
                return Some(file.clone());
            }
            let line = format!("[dataset]\n{} = \"FILE\"", quote(dataset));
            let fix = match &self.map.file {
                Some(map) => format!("copy it, and add to {map}:\n{line}"),
                None => format!(
                    "copy it, write a map file, give it with --map, and begin with:\n{line}"
                ),
            };
            findings.error(at, format!("no file stands for the data set `{dataset}`"), fix);
            return None;
        }
        Some(match (path.starts_with('/'), self.root) {
            (true, Some(root)) => format!("{}{path}", root.trim_end_matches('/')),
            (true, None) => path.to_owned(),
            (false, _) => match from.rsplit_once('/') {
                Some((directory, _)) => format!("{directory}/{path}"),
                None => path.to_owned(),
            },
        })
    }
}

/// What a statement of such a file is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    /// A file with more of these statements.
    Image,
    /// A file with TLS rules.
    Tls,
    /// A file with filter rules.
    Filters,
    /// Policies of other kinds.
    Other,
    /// Policies that come from elsewhere.
    Remote,
    /// Nothing that a policy says.
    Ignored(&'static str),
}

fn word(keyword: &str) -> Option<(&'static str, What)> {
    const LOGS: What = What::Ignored("the agent logs what somebody must act on, or --quiet");
    const WORDS: [(&str, What); 18] = [
        ("TcpImage", What::Image),
        ("PEPInstance", What::Image),
        ("CommonTTLSConfig", What::Tls),
        ("TTLSConfig", What::Tls),
        ("CommonIpSecConfig", What::Filters),
        ("IpSecConfig", What::Filters),
        ("CommonIDSConfig", What::Other),
        ("IDSConfig", What::Other),
        ("CommonRoutingConfig", What::Other),
        ("RoutingConfig", What::Other),
        ("QOSConfig", What::Other),
        ("CommonQOSConfig", What::Other),
        ("PolicyServer", What::Remote),
        ("ClientConnection", What::Remote),
        ("DynamicConfigPolicyLoad", What::Remote),
        ("ServicesConnection", What::Remote),
        ("LogLevel", LOGS),
        ("Codepage", What::Ignored("the coding of each file is told by itself")),
    ];
    WORDS.into_iter().find(|(word, _)| word.eq_ignore_ascii_case(keyword))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::InMemory;

    const RULE: &str = "TTLSRule NAME\n{\nRemotePortRange 443\nDirection Outbound\n\
                        TTLSGroupActionRef off\n}\n";
    const OFF: &str = "TTLSGroupAction off\n{\nTTLSEnabled Off\n}\n";
    const FILTERS: &str = "IpFilterPolicy\n{\n}\n";

    /// Names of files read, those of filters behind a bar, and what was found.
    fn gathered(files: &[(&str, &str)], root: Option<&str>, map: &str) -> (String, Vec<String>) {
        let mut findings = Findings::default();
        let map = Map::read("map.toml", map, &mut findings);
        let files_of = InMemory(files);
        let agent = Agent { files: &files_of, root, map: &map };
        let mut sources = Sources::default();
        agent.gather(files[0].0, &mut sources, &mut findings);
        let names = |all: &[Document]| {
            all.iter().map(|one| one.file.to_string()).collect::<Vec<_>>().join(" ")
        };
        let filters = sources.filters.as_deref().map(names).unwrap_or_default();
        let found = findings.finish().into_iter();
        let found =
            found.map(|f| format!("{}:{}: {}: {}", f.file, f.line, f.severity.word(), f.message));
        (format!("{}|{filters}", names(&sources.tls)), found.collect())
    }

    #[test]
    fn files_name_files() {
        let rule = RULE.replace("NAME", "a");
        let files = [
            (
                "d/main",
                "LogLevel 31\nCommonTTLSConfig common NOFLUSH\nTcpImage T image FLUSH 600\n",
            ),
            ("d/image", "TTLSConfig old\nTTLSConfig tls PURGE # the one\nIpSecConfig /etc/ipsec\n"),
            ("d/common", OFF),
            ("d/tls", &rule),
            ("root/etc/ipsec", FILTERS),
        ];
        let (read, found) = gathered(&files, Some("root"), "");
        assert_eq!(read, "d/common d/tls|root/etc/ipsec");
        assert_eq!(
            found,
            [
                "d/main:1: info: `LogLevel`: the agent logs what somebody must act on, or --quiet",
                "d/image:1: changed: `TTLSConfig` is said again at d/image:2, which counts",
            ]
        );
        assert_eq!(gathered(&[("p", &rule)], None, "").0, "p|");
    }

    #[test]
    fn what_cannot_be_followed_is_an_error() {
        for (text, message) in [
            ("TTLSConfig //'SYS1.TLS(WEB)'", "no file stands for the data set `SYS1.TLS(WEB)`"),
            ("TTLSConfig none", "none cannot be read: no file none"),
            ("TTLSConfig", "`TTLSConfig` names no file"),
            ("TTLSConfig main", "files name each other in a circle"),
            ("TcpImage A a\nTcpImage B b", "there are several TCP/IP stacks"),
            ("PolicyServer\nTTLSConfig x", "`PolicyServer`: policies of a policy server"),
        ] {
            let (_, found) = gathered(&[("main", text), ("x", OFF), ("b", "")], None, "");
            let told = |one: &String| one.contains("error: ") && one.contains(message);
            assert!(found.iter().any(told), "{text}: {found:#?}");
        }
        let map = "[dataset]\n\"SYS1.TLS(WEB)\" = \"x\"\n";
        let main = ("main", "TTLSConfig //'SYS1.TLS(WEB)'");
        assert_eq!(gathered(&[main, ("x", OFF)], None, map).0, "x|");
    }
}
