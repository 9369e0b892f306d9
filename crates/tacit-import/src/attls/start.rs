//! When TLS begins, where the program used to decide that.
//!
//! Programs that are `ApplicationControlled` tell the original, by a call that does not exist here,
//! when to begin. Where the port says which protocol that is, it is followed on the wire instead.

use super::conditions::show_ports;
use super::effective::Effective;
use super::tls::{Context, Keys};
use crate::draft::Toml;

/// The keys that say when TLS begins; none: at the first byte.
pub(super) fn start(context: &mut Context<'_>, rule: &Effective<'_>, is_inbound: bool) -> Keys {
    let name = rule.rule.name.as_str();
    let controlled = rule.said("ApplicationControlled").filter(|field| field.value == "On");
    let said = ["starttls", "start"].map(|key| context.map.rule(name, key).cloned());
    let start = match said {
        [Some(starttls), _] => Start::Said("starttls", starttls),
        [None, Some(Toml::Text(word))] if word == "immediate" => Start::Immediate,
        [None, Some(start)] => Start::Said("start", start),
        [None, None] => by_port(rule, is_inbound, controlled.is_some()),
    };
    if let (Some(field), Start::Unknown) = (controlled, &start) {
        let why = format!(
            "the program of rule `{name}` decides when TLS begins, by a call that does not exist \
             here, and its port does not tell a protocol"
        );
        let line = "starttls = \"telnet\"   # or \"ftp\", \"smtp\", \"postgres\"; or, for TLS from \
                    the first byte: start = \"immediate\"; or, where the program asks over \
                    $TACIT_QUERY: start = \"controlled\"";
        context.needs.rule((name, "starttls"), &field.at, why, line);
        return Keys::new();
    }
    if let Some(field) = controlled {
        let message = format!("the program decided when TLS begins; now {}", start.words());
        context.findings.info(&field.at, message);
    }
    tell_secondary(context, rule, start.is_ftp());
    start.keys()
}

/// When TLS begins.
enum Start {
    /// At the first byte.
    Immediate,
    /// In FTP; at the first byte, or where the protocol says.
    Ftp { implicit: bool },
    /// Where a protocol says.
    Protocol(&'static str),
    /// As the map says.
    Said(&'static str, Toml),
    /// Nobody knows.
    Unknown,
}

impl Start {
    fn is_ftp(&self) -> bool {
        match self {
            Self::Ftp { .. } => true,
            Self::Said("starttls", Toml::Text(word)) => word == "ftp",
            Self::Said("starttls", Toml::Table(keys)) => {
                keys.iter().any(|(key, value)| key == "protocol" && *value == Toml::from("ftp"))
            }
            _ => false,
        }
    }

    fn words(&self) -> String {
        match self {
            Self::Ftp { implicit: true } => {
                "it begins at the first byte, as in FTP over TLS".into()
            }
            Self::Ftp { implicit: false } => "the commands of FTP say it".into(),
            Self::Immediate => "it begins at the first byte".into(),
            Self::Protocol(protocol) => format!("the {protocol} protocol says it"),
            _ => "the map says it".into(),
        }
    }

    fn keys(self) -> Keys {
        let key = |key: &str, value: Toml| vec![(key.to_owned(), value)];
        match self {
            Self::Immediate | Self::Unknown => Keys::new(),
            Self::Ftp { implicit: false } => key("starttls", "ftp".into()),
            Self::Ftp { implicit: true } => {
                let implicit = ("implicit".to_owned(), Toml::Flag(true));
                key("starttls", Toml::Table(vec![("protocol".to_owned(), "ftp".into()), implicit]))
            }
            Self::Protocol(protocol) => key("starttls", protocol.into()),
            Self::Said(word, value) => key(word, value),
        }
    }
}

/// What the well-known port of the program's protocol tells.
fn by_port(rule: &Effective<'_>, is_inbound: bool, controlled: bool) -> Start {
    let ports = if is_inbound { &rule.local.ports } else { &rule.remote.ports };
    let mut ports = ports.iter().map(show_ports);
    let (Some(port), None) = (ports.next(), ports.next()) else { return Start::Unknown };
    match (port.as_str(), controlled) {
        ("990", true) => Start::Ftp { implicit: true },
        ("990", false) if rule.is_on("SecondaryMap") => Start::Ftp { implicit: true },
        (_, false) => Start::Immediate,
        ("21", true) => Start::Ftp { implicit: false },
        ("23", true) => Start::Protocol("telnet"),
        ("25" | "587", true) => Start::Protocol("smtp"),
        ("5432", true) => Start::Protocol("postgres"),
        // The ports of these protocols for TLS from the first byte.
        ("465" | "992", true) => Start::Immediate,
        _ => Start::Unknown,
    }
}

/// Connections that belong to another one: FTP's are followed, others are not known.
fn tell_secondary(context: &mut Context<'_>, rule: &Effective<'_>, is_ftp: bool) {
    let Some(field) = rule.said("SecondaryMap").filter(|field| field.value == "On") else { return };
    if is_ftp {
        let message = "FTP's data connections follow their control connection";
        context.findings.info(&field.at, message);
    } else {
        let fix = "say SecondaryMap Off, and write a rule for the ports of the other connections";
        let message = "connections that belong to another one are followed for FTP only";
        context.findings.error(&field.at, message, fix);
    }
}
