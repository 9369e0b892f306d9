//! Every word of the policy language, and the nearest one to a word that is not.

pub(super) use super::not_built::not_built;

/// Where a word stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    Policy,
    Identities,
    Identity,
    Trusts,
    Trust,
    Maps,
    MapEntry,
    Agent,
    Engine,
    Limits,
    Rule,
    Tls,
    Starttls,
    /// The map file of an import, and what stands in it.
    ImportMap,
    ImportNames,
    ImportJob,
    ImportKeyring,
    ImportLabel,
    ImportRule,
    /// Values of `starttls`.
    StarttlsProtocol,
    /// Values of `client-cert`.
    ClientCert,
    /// Keys of `client-cert`.
    ClientCertTable,
    Rekey,
    When,
}

impl Scope {
    /// The scopes whose words are keys, from the outside in.
    pub(super) const TABLES: [Self; 13] = [
        Self::ClientCertTable,
        Self::Policy,
        Self::MapEntry,
        Self::Identity,
        Self::Trust,
        Self::Agent,
        Self::Engine,
        Self::Limits,
        Self::Rule,
        Self::Tls,
        Self::Starttls,
        Self::Rekey,
        Self::When,
    ];

    /// The words known here.
    pub(crate) fn words(self) -> &'static [&'static str] {
        match self {
            Self::Policy => POLICY,
            Self::Identities | Self::Trusts | Self::Maps => &[],
            Self::Identity => &["cert", "key"],
            Self::Trust => &["ca", "crl", "revocation"],
            Self::MapEntry => MAP_ENTRY,
            Self::Agent => AGENT,
            Self::Engine => &["cpus", "spill", "queue", "class", "nice"],
            Self::Limits => &[
                "connections",
                "handshakes",
                "handshakes-per-rule",
                "handshakes-per-source",
                "drain",
            ],
            Self::Rule => RULE,
            Self::Tls => TLS,
            Self::Starttls => {
                &["protocol", "mode", "implicit", "data-ports", "data-address", "data-resumption"]
            }
            Self::Rekey => &["bytes", "after"],
            Self::When => &["days", "hours", "zone", "months", "days-of-month", "from", "until"],
            Self::ImportMap => &["job", "user", "keyring", "rule", "map", "dataset"],
            Self::ImportNames => &[],
            Self::ImportJob => &["program", "user", "any"],
            Self::ImportKeyring => &["cert", "key", "ca", "crl", "label"],
            Self::ImportLabel => &["cert", "key"],
            Self::ImportRule => IMPORT_RULE,
            Self::StarttlsProtocol => &["telnet", "ftp", "smtp", "postgres"],
            Self::ClientCert => CLIENT_CERT,
            Self::ClientCertTable => &["absent", "invalid", "identity"],
        }
    }

    /// Whether the keys are names that the policy's author chose.
    pub(super) fn is_open(self) -> bool {
        matches!(self, Self::Identities | Self::Trusts | Self::Maps | Self::ImportNames)
    }

    /// How messages call the table.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Policy => "the top of the file",
            Self::Identities | Self::Identity => "[identity.NAME]",
            Self::Trusts | Self::Trust => "[trust.NAME]",
            Self::Maps | Self::MapEntry => "[[map.NAME]]",
            Self::Agent => "[agent]",
            Self::Engine => "[engine]",
            Self::Limits => "[limits]",
            Self::Rule => "[[rule]]",
            Self::Tls => "`tls`",
            Self::Starttls | Self::StarttlsProtocol => "`starttls`",
            Self::Rekey => "`rekey`",
            Self::When => "`when`",
            Self::ImportMap | Self::ImportNames => "the top of the map file",
            Self::ImportJob => "[job]",
            Self::ImportKeyring => "[keyring.NAME]",
            Self::ImportLabel => "[keyring.NAME.label.LABEL]",
            Self::ImportRule => "[rule.NAME]",
            Self::ClientCert | Self::ClientCertTable => "`client-cert`",
        }
    }
}

const POLICY: &[&str] =
    &["version", "identity", "trust", "map", "agent", "engine", "limits", "rule"];

const MAP_ENTRY: &[&str] =
    &["uri", "dns", "email", "ip", "subject", "issuer", "address", "name", "deny", "warn"];

const CLIENT_CERT: &[&str] =
    &["none", "preferred", "required", "full", "passthru", "at-full", "safcheck"];

const AGENT: &[&str] = &[
    "workers",
    "congestion-control",
    "chain-cache",
    "accounting",
    "placement",
    "placement-cpus",
    "metrics",
    "metrics-clear",
];

const RULE: &[&str] = &[
    "name",
    "direction",
    "protocol",
    "local",
    "local-ports",
    "remote",
    "remote-ports",
    "program",
    "user",
    "when",
    "permit",
    "deny",
    "tls",
    "log",
    "listen",
    "connect",
    "connect-timeout",
    "accept-proxy",
    "send-proxy",
    "unix-mode",
    "unix-owner",
    "replace-stale",
    "clear",
];

const TLS: &[&str] = &[
    "role",
    "identity",
    "trust",
    "client-cert",
    "map",
    "server-name",
    "verify",
    "sni",
    "min-version",
    "suites",
    "groups",
    "alpn",
    "resumption",
    "handshake-timeout",
    "rekey",
    "relay",
    "start",
    "starttls",
];

const IMPORT_RULE: &[&str] = &[
    "listen",
    "local-ports",
    "remote",
    "program",
    "user",
    "starttls",
    "start",
    "server-name",
    "certificate",
    "map",
];

/// The table that a key belongs in; `tls` before the top of the file for `trust` and `identity`.
pub(super) fn home(key: &str) -> Option<&'static str> {
    let knows = |scope: &Scope| scope.words().contains(&key);
    Scope::TABLES.into_iter().rfind(knows).map(Scope::title)
}

/// The known word most like this one, if any is like it at all.
pub(crate) fn nearest<'w>(word: &str, known: &[&'w str]) -> Option<&'w str> {
    let word: Vec<char> = word.chars().take(WORD_CHARS_MAX).flat_map(char::to_lowercase).collect();
    let distances = known.iter().map(|known| (edits(&word, known), *known));
    let (distance, nearest) = distances.min_by_key(|(distance, _)| *distance)?;
    // One slip in three characters: `lisen` is `listen`, but `foo` is not `log`.
    let length = word.len().max(nearest.chars().count());
    (distance * 3 <= length).then_some(nearest)
}

/// Words as a list in a message.
pub(crate) fn list(words: &[&str]) -> String {
    words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ")
}

/// Longer words are compared by their beginning.
const WORD_CHARS_MAX: usize = 64;

/// Insertions, deletions, replacements and swaps of neighbours between two words, the first in
/// lower case already.
fn edits(word: &[char], known: &str) -> usize {
    let known: Vec<char> = known.chars().flat_map(char::to_lowercase).collect();
    let (mut before, mut last) = (Vec::new(), (0..=known.len()).collect::<Vec<_>>());
    for (i, a) in word.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, b) in known.iter().enumerate() {
            let replaced = last[j] + usize::from(a != b);
            let mut best = replaced.min(last[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *a == known[j - 1] && word[i - 1] == *b {
                best = best.min(before_at(&before, j - 1) + 1);
            }
            row.push(best);
        }
        before = std::mem::replace(&mut last, row);
    }
    last[known.len()]
}

fn before_at(row: &[usize], column: usize) -> usize {
    row.get(column).copied().unwrap_or(usize::MAX - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_forgives_slips_and_not_more() {
        let rule = Scope::Rule.words();
        assert_eq!(nearest("lisen", rule), Some("listen"));
        assert_eq!(nearest("conenct", rule), Some("connect"));
        assert_eq!(nearest("remote_ports", rule), Some("remote-ports"));
        assert_eq!(nearest("Listen", rule), Some("listen"));
        assert_eq!(nearest("clientcert", Scope::Tls.words()), Some("client-cert"));
        assert_eq!(nearest("frobnicate", rule), None);
        assert_eq!(nearest("", rule), None);
    }

    #[test]
    fn edits_counts_a_swap_as_one() {
        let edits = |a: &str, b: &str| edits(&a.chars().collect::<Vec<_>>(), b);
        assert_eq!(edits("trust", "trust"), 0);
        assert_eq!(edits("turst", "trust"), 1);
        assert_eq!(edits("", "tls"), 3);
        assert_eq!(edits("tls", ""), 3);
        assert_eq!(edits("permit", "deny"), 5);
    }

    #[test]
    fn home_names_the_table_that_knows_the_key() {
        assert_eq!(home("client-cert"), Some("`tls`"));
        assert_eq!(home("ca"), Some("[trust.NAME]"));
        assert_eq!(home("trust"), Some("`tls`"));
        assert_eq!(home("frobnicate"), None);
    }
}
