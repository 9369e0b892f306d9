//! Reads the configuration of the z/OS Policy Agent: main files, image files, and the policy files
//! that these files list. An image file belongs to one TCP/IP stack.
//!
//! ```text
//!   CommonTTLSConfig    /etc/pagent/common.tls       main file: the policy of all TCP/IP stacks
//!   TcpImage TCPIP      /etc/pagent/tcpip.image      main file: the image file of one stack
//!   TTLSConfig          /etc/pagent/tcpip.tls        image file: only the last TTLSConfig is used
//!   IpSecConfig         //'SYS1.PAGENT(IPSEC)'       a data set, read from a copy
//! ```
//!
//! The caller sets the directory that stands for `/`. Relative paths begin at the directory of the
//! file that contains them. The map file of the import names the copies of data sets. This module
//! does not read policies from a policy server.

use super::document;
use super::lex::{Document, Node};
use super::map::Map;
use super::request::AttlsRequest;
use crate::draft::quote;
use crate::files::{Files, Input};
use crate::finding::{Findings, Origin};

/// The files of both kinds of policies.
#[derive(Debug, Default)]
pub(super) struct Sources {
    pub(super) tls: Vec<Document>,
    /// `None`: no file contains filters.
    pub(super) filters: Option<Vec<Document>>,
}

/// Reads the files of a request and all files that they name.
pub(super) fn sources(
    request: &AttlsRequest<'_>,
    files: &dyn Files,
    map: &Map,
    findings: &mut Findings,
) -> Sources {
    let sources = Sources::default();
    let mut reader = Reader { files, root: request.root, map, sources, findings };
    for path in request.policies {
        reader.file(path, &Origin { file: path.as_str().into(), line: 1 }, 0);
    }
    for path in request.filters {
        reader.filters(path, &Origin { file: path.as_str().into(), line: 1 });
    }
    reader.sources
}

/// Reads files, and the files that they name.
struct Reader<'a> {
    files: &'a dyn Files,
    /// The directory that stands for `/`.
    root: Option<&'a str>,
    map: &'a Map,
    sources: Sources,
    findings: &'a mut Findings,
}

/// Longest chain of files: main file, image file, policy file, and one more.
const DEPTH_MAX: usize = 4;

/// A statement that names a file.
struct FileStatement<'a> {
    /// The file with the statement.
    from: &'a str,
    node: &'a Node,
    word: &'static str,
    what: What,
    depth: usize,
}

impl Reader<'_> {
    fn document(&mut self, path: &str, at: &Origin) -> Option<Document> {
        match self.files.read(path) {
            Ok(bytes) => document::read(&Input { file: path, bytes: &bytes }, self.findings),
            Err(error) => {
                let message = format!("cannot read {path}: {error}");
                let fix = "check the path and the permissions of the file; if the files were \
                           copied from z/OS into a directory, pass this directory with --root";
                self.findings.error(at, message, fix);
                None
            }
        }
    }

    /// Reads a file of filters.
    fn filters(&mut self, path: &str, at: &Origin) {
        let document = self.document(path, at);
        self.sources.filters.get_or_insert_default().extend(document);
    }

    /// Reads a file, and all files that it names.
    fn file(&mut self, path: &str, at: &Origin, depth: usize) {
        if depth > DEPTH_MAX {
            self.findings.error(
                at,
                "the files include each other in a loop, or include files more than 4 levels deep",
                "remove this statement, or import only the file that contains the AT-TLS rules",
            );
            return;
        }
        let Some(mut document) = self.document(path, at) else { return };
        let names_files = |node: &Node| node.block.is_none() && word(&node.keyword).is_some();
        if !document.nodes.iter().any(names_files) {
            self.sources.tls.push(document);
            return;
        }
        let named: Vec<Node> = document.nodes.extract_if(.., |node| names_files(node)).collect();
        if !document.nodes.is_empty() {
            self.sources.tls.push(document);
        }
        for (node, place) in named.iter().zip(0_usize..) {
            let Some(Word { word, what }) = word(&node.keyword) else { continue };
            // Images of several stacks would be several policies.
            let later = named.iter().skip(place + 1).find(|later| later.is(word));
            match (what, later) {
                (What::Image, Some(_)) => {
                    let message = "the file lists several TCP/IP stacks, and each stack has its \
                                   own policy";
                    self.findings.error(
                        &node.at,
                        message,
                        "import the image file of each stack separately",
                    );
                    continue;
                }
                (What::Tls | What::Filters, Some(later)) => {
                    let message = format!(
                        "`{word}` is also set at {later}: the import uses only the last value",
                        later = later.at
                    );
                    self.findings.changed(&node.at, message, "remove this statement");
                    continue;
                }
                _ => {}
            }
            self.named(&FileStatement { from: path, node, word, what, depth });
        }
    }

    /// Follows one statement.
    fn named(&mut self, statement: &FileStatement<'_>) {
        let FileStatement { from, node, word, what, depth } = statement;
        let mut words = node.value.split_whitespace();
        if *what == What::Image {
            words.next();
        }
        let path = match what {
            What::Ignored(why) => return self.findings.info(&node.at, format!("`{word}`: {why}")),
            What::Other => {
                let message = format!("`{word}`: the import does not read this type of policy");
                return self.findings.changed(
                    &node.at,
                    message,
                    "configure this policy with a Linux tool, such as nft(8) or tc(8)",
                );
            }
            What::Remote => {
                let message =
                    format!("`{word}`: the import does not read policies of a policy server");
                let fix = "remove the statement, copy the policy files from the policy server, and \
                           import these files";
                return self.findings.error(&node.at, message, fix);
            }
            What::Image | What::Tls | What::Filters => words.next(),
        };
        let Some(name) = path else {
            if *what == What::Image {
                return self.findings.info(
                    &node.at,
                    "the statement names no image file, so the import reads no policy for this \
                     TCP/IP stack",
                );
            }
            return self.findings.error(
                &node.at,
                format!("the path of the file is missing after `{word}`"),
                "write the path of the file after the keyword",
            );
        };
        let Some(path) = self.path(from, name, &node.at) else { return };
        match what {
            What::Filters => self.filters(&path, &node.at),
            _ => self.file(&path, &node.at, depth + 1),
        }
    }

    /// The path of the file on this host; `None` after an error.
    fn path(&mut self, from: &str, path: &str, at: &Origin) -> Option<String> {
        if let Some(quoted) = path.strip_prefix("//") {
            let dataset = quoted.trim_matches('\'');
            if let Some(file) = self.map.datasets.get(dataset) {
                return Some(file.clone());
            }
            if self.map.has_errors {
                // An entry with an error is not in the map. That error stops the import.
                return None;
            }
            let line = format!("[dataset]\n{} = \"FILE\"", quote(dataset));
            let fix = match &self.map.file {
                Some(map) => {
                    format!("copy the data set to a file, and add these lines to {map}:\n{line}")
                }
                None => format!(
                    "copy the data set to a file, write a map file that begins with these lines, \
                     and pass the map file with --map:\n{line}"
                ),
            };
            let message = format!("the map file does not name a file for the data set `{dataset}`");
            self.findings.error(at, message, fix);
            return None;
        }
        let beside = match from.rsplit_once('/') {
            Some((directory, _)) => format!("{directory}/{path}"),
            None => path.to_owned(),
        };
        let root = self.root.unwrap_or_default().trim_end_matches('/');
        if path.starts_with('/') {
            return Some(if root.is_empty() { path.to_owned() } else { below(root, path) });
        }
        let inside = if root.is_empty() { None } else { beside.strip_prefix(root) };
        let inside = inside.filter(|inside| inside.starts_with('/'));
        Some(inside.map(|inside| below(root, inside)).unwrap_or(beside))
    }
}

/// The path below the root; `..` does not lead out of the root, as it does not lead out of `/`.
fn below(root: &str, path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    format!("{root}/{}", parts.join("/"))
}

/// What a statement of a main or image file names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    /// A file with further statements of this kind.
    Image,
    /// A file with TLS rules.
    Tls,
    /// A file with filter rules.
    Filters,
    /// Policies of another kind, which are not imported.
    Other,
    /// Policies of a policy server.
    Remote,
    /// Nothing that affects a policy.
    Ignored(&'static str),
}

/// A statement of a main or image file.
struct Word {
    /// Its spelling in the manual.
    word: &'static str,
    what: What,
}

fn word(keyword: &str) -> Option<Word> {
    const LOGS: What =
        What::Ignored("tacit's agent has its own log options: see --log and --quiet in tacit(1)");
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
        ("Codepage", What::Ignored("the import detects the character encoding of each file")),
    ];
    let mut words = WORDS.into_iter().map(|(word, what)| Word { word, what });
    words.find(|known| known.word.eq_ignore_ascii_case(keyword))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::InMemory;
    use crate::attls::map::PolicyPrograms;
    use crate::files::texts;

    const RULE: &str = "TTLSRule NAME\n{\nRemotePortRange 443\nDirection Outbound\n\
                        TTLSGroupActionRef off\n}\n";
    const OFF: &str = "TTLSGroupAction off\n{\nTTLSEnabled Off\n}\n";
    const FILTERS: &str = "IpFilterPolicy\n{\n}\n";

    /// Names of files read, those of filters behind a bar, and what was found.
    fn gathered(files: &[(&str, &str)], root: Option<&str>, map: &str) -> (String, Vec<String>) {
        let mut findings = Findings::default();
        let map = Map::read("map.toml", map, PolicyPrograms::Runs, &mut findings);
        let policies = [files[0].0.to_owned()];
        let request = AttlsRequest { policies: &policies, root, ..AttlsRequest::default() };
        let sources = sources(&request, &InMemory(&texts(files)), &map, &mut findings);
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
                "d/main:1: info: `LogLevel`: tacit's agent has its own log options: see --log and \
                 --quiet in tacit(1)",
                "d/image:1: changed: `TTLSConfig` is also set at d/image:2: the import uses only \
                 the last value",
            ]
        );
        assert_eq!(gathered(&[("p", &rule)], None, "").0, "p|");
    }

    #[test]
    fn no_path_leads_out_of_the_root() {
        let rule = format!("TTLSRule r\n{{\nDirection Inbound\n}}\n{OFF}");
        let files = [
            ("root/etc/main", "TcpImage T ../../../etc/image\nIpSecConfig /../../etc/ipsec\n"),
            ("root/etc/image", "TTLSConfig ./../etc/tls\n"),
            ("root/etc/tls", &rule),
            ("root/etc/ipsec", FILTERS),
        ];
        let mut findings = Findings::default();
        let inputs: Vec<Input<'_>> =
            files.iter().map(|(file, text)| Input { file, bytes: text.as_bytes() }).collect();
        let policies = ["root/etc/main".to_owned()];
        let request =
            AttlsRequest { policies: &policies, root: Some("root"), ..AttlsRequest::default() };
        let _ = crate::attls::import(&request, &InMemory(&inputs), &mut findings);
        let found = findings.finish();
        assert!(!found.iter().any(|one| one.message.contains("cannot read")), "{found:#?}");
        assert!(found.iter().any(|one| one.file == "root/etc/tls"), "{found:#?}");
    }

    #[test]
    fn what_cannot_be_followed_is_an_error() {
        for (text, message) in [
            (
                "TTLSConfig //'SYS1.TLS(WEB)'",
                "the map file does not name a file for the data set `SYS1.TLS(WEB)`",
            ),
            ("TTLSConfig none", "cannot read none: there is no file none"),
            ("TTLSConfig", "the path of the file is missing after `TTLSConfig`"),
            (
                "TTLSConfig main",
                "the files include each other in a loop, or include files more than 4 levels deep",
            ),
            ("TcpImage A a\nTcpImage B b", "the file lists several TCP/IP stacks, and"),
            ("PolicyServer\nTTLSConfig x", "`PolicyServer`: the import does not read policies"),
        ] {
            let (_, found) = gathered(&[("main", text), ("x", OFF), ("b", "")], None, "");
            let is_reported = |one: &String| one.contains("error: ") && one.contains(message);
            assert!(found.iter().any(is_reported), "{text}: {found:#?}");
        }
        let map = "[dataset]\n\"SYS1.TLS(WEB)\" = \"x\"\n";
        let main = ("main", "TTLSConfig //'SYS1.TLS(WEB)'");
        assert_eq!(gathered(&[main, ("x", OFF)], None, map).0, "x|");
    }
}
