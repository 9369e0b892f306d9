//! Lists all keys of the policy language. For each key, the list names the table that contains this
//! key.

use super::not_built;
use crate::policy::text::{TableKeys, TableSchema};

/// Why a rule with the client role cannot have a key for servers.
pub(super) const ONLY_FOR_SERVERS: &str =
    "this policy key is only for the server role, but the rule has the client role";

/// The table or list in which a word is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    Policy,
    Identities,
    Identity,
    Trusts,
    Trust,
    Maps,
    MapEntry,
    Ikes,
    Ike,
    Sas,
    Sa,
    Links,
    Link,
    Activations,
    Activation,
    Agent,
    Engine,
    Host,
    /// The keys of `classes`.
    InterfaceClasses,
    Limits,
    Rule,
    Tls,
    Ipsec,
    Starttls,
    /// The values of `starttls`.
    StarttlsProtocol,
    /// The values of `client-cert`.
    ClientCert,
    /// The keys of the table `client-cert`.
    ClientCertTable,
    Rekey,
    When,
}

impl Scope {
    /// The scopes with keys, outer tables first.
    pub(super) const TABLES: [Self; 19] = [
        Self::ClientCertTable,
        Self::Policy,
        Self::MapEntry,
        Self::Sa,
        Self::Ike,
        Self::Link,
        Self::Activation,
        Self::Identity,
        Self::Trust,
        Self::Agent,
        Self::Engine,
        Self::Host,
        Self::Limits,
        Self::Rule,
        Self::Ipsec,
        Self::Tls,
        Self::Starttls,
        Self::Rekey,
        Self::When,
    ];

    /// Returns the words that are valid in this scope.
    pub(super) fn words(self) -> &'static [&'static str] {
        match self {
            Self::Policy => POLICY,
            Self::Identities
            | Self::Trusts
            | Self::Maps
            | Self::Ikes
            | Self::Sas
            | Self::Links
            | Self::Activations
            | Self::InterfaceClasses => &[],
            Self::Activation => {
                &["command", "on", "process", "socket", "max", "max-per-source", "starts", "user"]
            }
            Self::Link => &[
                "listen",
                "default",
                "runs",
                "sockets",
                "sockets-per-host",
                "local",
                "names",
                "share",
                "connect",
                "tls",
            ],
            Self::Ike => IKE,
            Self::Sa => SA,
            Self::Ipsec => &["ike", "sa"],
            Self::Identity => &["cert", "key"],
            Self::Trust => &["ca", "pinned", "crl", "revocation", "expired-anchors"],
            Self::MapEntry => MAP_ENTRY,
            Self::Agent => AGENT,
            Self::Engine => &["cpus", "spill", "poll", "queue", "class", "nice"],
            Self::Host => &["unmatched", "mark", "mode", "forwarded", "unit-mark", "classes"],
            Self::Limits => &[
                "connections",
                "handshakes",
                "handshakes-per-rule",
                "handshakes-per-source",
                "connections-per-source",
                "connections-per-rule",
                "connections-per-run",
                "drain",
            ],
            Self::Rule => RULE,
            Self::Tls => TLS,
            Self::Starttls => &[
                "protocol",
                "mode",
                "implicit",
                "data-ports",
                "data-address",
                "data-resumption",
                "cancel",
            ],
            Self::Rekey => &["bytes", "after"],
            Self::When => &["days", "hours", "zone", "months", "days-of-month", "from", "until"],
            Self::StarttlsProtocol => &["telnet", "ftp", "smtp", "postgres"],
            Self::ClientCert => CLIENT_CERT,
            Self::ClientCertTable => &["absent", "invalid", "identity"],
        }
    }

    /// Returns the name of the table in messages.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Policy => "the top of the file",
            Self::Identities | Self::Identity => "[identity.NAME]",
            Self::Trusts | Self::Trust => "[trust.NAME]",
            Self::Maps | Self::MapEntry => "[[map.NAME]]",
            Self::Ikes | Self::Ike => "[ike.NAME]",
            Self::Sas | Self::Sa => "[sa.NAME]",
            Self::Links | Self::Link => "[link.NAME]",
            Self::Activations | Self::Activation => "[activate.NAME]",
            Self::Ipsec => "`ipsec`",
            Self::Agent => "[agent]",
            Self::Engine => "[engine]",
            Self::Host => "[host]",
            Self::InterfaceClasses => "`classes`",
            Self::Limits => "[limits]",
            Self::Rule => "[[rule]]",
            Self::Tls => "`tls`",
            Self::Starttls | Self::StarttlsProtocol => "`starttls`",
            Self::Rekey => "`rekey`",
            Self::When => "`when`",
            Self::ClientCert | Self::ClientCertTable => "`client-cert`",
        }
    }
}

/// Returns the tables of the policy language, each with its title and its keys.
pub fn language() -> impl Iterator<Item = (&'static str, &'static [&'static str])> {
    Scope::TABLES.into_iter().map(|scope| (scope.title(), scope.words()))
}

impl From<Scope> for TableSchema {
    fn from(scope: Scope) -> Self {
        let keys = match scope {
            Scope::Identities
            | Scope::Trusts
            | Scope::Maps
            | Scope::Ikes
            | Scope::Sas
            | Scope::Links
            | Scope::Activations
            | Scope::InterfaceClasses => TableKeys::Names,
            _ => TableKeys::Fixed(scope.words()),
        };
        let planned = match scope {
            Scope::Rule => not_built::RULE,
            _ => &[],
        };
        Self { keys, planned, home }
    }
}

const POLICY: &[&str] = &[
    "version", "include", "identity", "trust", "map", "ike", "sa", "link", "activate", "agent",
    "engine", "host", "limits", "path", "rule",
];

const IKE: &[&str] = &[
    "peer",
    "port",
    "version",
    "psk-file",
    "identity",
    "trust",
    "local-id",
    "remote-id",
    "proposals",
    "esp-proposals",
    "pfs",
    "ike-lifetime",
    "lifetime",
    "lifetime-bytes",
    "lifetime-packets",
    "dpd",
    "inner",
];

const SA: &[&str] = &[
    "peer",
    "port",
    "protocol",
    "encapsulation",
    "encryption",
    "integrity",
    "spi-in",
    "spi-out",
    "keys-in",
    "keys-out",
    "anti-replay",
    "mode",
    "local",
    "inner",
];

const MAP_ENTRY: &[&str] =
    &["uri", "dns", "email", "ip", "subject", "issuer", "address", "name", "deny", "warn"];

const CLIENT_CERT: &[&str] =
    &["none", "preferred", "required", "full", "passthru", "at-full", "safcheck"];

const AGENT: &[&str] = &[
    "workers",
    "congestion-control",
    "chain-cache",
    "signer",
    "sandbox",
    "accounting",
    "trace",
    "placement",
    "placement-cpus",
    "metrics",
    "metrics-clear",
    "aliases",
    "alias-ranges",
];

/// The keys that only forwarding rules have, except `listen`, which inbound rules have too. They
/// are the last ones of [`RULE`].
pub(super) const FORWARDING_KEYS: [&str; 10] = match RULE.last_chunk() {
    Some(keys) => *keys,
    None => [""; 10],
};

/// The keys of rules; those of [`FORWARDING_KEYS`] come last.
const RULE: &[&str] = &[
    "name",
    "link",
    "direction",
    "protocol",
    "local",
    "local-ports",
    "remote",
    "remote-ports",
    "names",
    "program",
    "user",
    "group",
    "cgroup",
    "slice",
    "unit",
    "run",
    "when",
    "permit",
    "deny",
    "tls",
    "ipsec",
    "filter",
    "opened-by",
    "icmp-type",
    "icmp-code",
    "fragments",
    "interface",
    "class",
    "routing",
    "tunnel",
    "discard",
    "mode",
    "log",
    "idle",
    "answers",
    "path",
    "listen",
    "connect",
    "activate",
    "order",
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
    "connect",
    "on-tls",
    "min-version",
    "suites",
    "groups",
    "alpn",
    "resumption",
    "handshake-timeout",
    "rekey",
    "recheck",
    "max-age",
    "relay",
    "start",
    "starttls",
    "accept",
    "clear-sources",
    "clear-until",
];

/// Returns the table to which a key belongs. For `trust` and `identity` this is `tls`, and not the
/// top of the file. For keys of a rule, such as `connect`, this is the rule.
fn home(key: &str) -> Option<&'static str> {
    let knows = |scope: &Scope| scope.words().contains(&key);
    if knows(&Scope::Rule) {
        return Some(Scope::Rule.title());
    }
    Scope::TABLES.into_iter().rfind(knows).map(Scope::title)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_forwarding_keys_are_those_from_connect_on() {
        let begin = RULE.iter().position(|key| *key == "connect").unwrap();
        assert_eq!(FORWARDING_KEYS, RULE[begin..]);
        assert_eq!(RULE[begin - 1], "listen");
    }

    #[test]
    fn home_names_the_table_that_knows_the_key() {
        assert_eq!(home("client-cert"), Some("`tls`"));
        assert_eq!(home("ca"), Some("[trust.NAME]"));
        assert_eq!(home("trust"), Some("`tls`"));
        assert_eq!(home("connect"), Some("[[rule]]"));
        assert_eq!(home("frobnicate"), None);
    }
}
