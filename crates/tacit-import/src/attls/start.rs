//! Decides when TLS begins in the connections of an imported rule. Usually TLS begins at the first
//! byte.
//!
//! With `ApplicationControlled On`, a program on z/OS starts TLS by a system call that Linux does
//! not have. If the port belongs to a protocol with STARTTLS, the imported rule uses STARTTLS. If
//! the port belongs to no known protocol, the map file must define when TLS begins.

use super::conditions::show_ports;
use super::context::Context;
use super::effective::Effective;
use super::needs::MissingKey;
use super::objects::Field;
use crate::draft::{Keys, Toml, set};
use tacit_core::flow::Direction;

/// The keys that set when TLS begins; none if it begins at the first byte.
pub(super) fn start(context: &mut Context<'_>, rule: &Effective<'_>, direction: Direction) -> Keys {
    let name = rule.rule.name.as_str();
    let controlled = rule.field("ApplicationControlled").filter(|field| field.value == "On");
    let start = match by_map(context, name) {
        Some(start) => start,
        None => match controlled {
            Some(_) => controlled_by_port(rule, direction),
            None => by_port(rule, direction),
        },
    };
    if let Some(field) = controlled
        && matches!(start, Start::Unknown)
    {
        let why = format!(
            "the import cannot determine the protocol of rule `{name}`: the program starts TLS \
             with a call that exists only on z/OS, and no known protocol uses the port of the rule"
        );
        let line = "starttls = \"telnet\"   # or \"ftp\", \"smtp\", \"postgres\"; or, for TLS from \
                    the first byte: start = \"immediate\"; or, if the program sends requests to \
                    $TACIT_QUERY: start = \"controlled\"";
        context.needs.rule(MissingKey { rule: name, key: "starttls" }, &field.at, why, line);
        return Keys::new();
    }
    if let Some(field) = controlled {
        let message = format!(
            "on z/OS the program itself started TLS; in tacit, {start}",
            start = start.words()
        );
        context.findings.info(&field.at, message);
    }
    if let Some(field) = rule.field("SecondaryMap").filter(|field| field.value == "On") {
        report_secondary(context, field, &start);
    }
    start.keys()
}

/// The setting of the map file for a rule.
fn by_map(context: &Context<'_>, name: &str) -> Option<Start> {
    if let Some(starttls) = context.map.rule(name, "starttls") {
        return Some(Start::Set("starttls", starttls.clone()));
    }
    Some(match context.map.rule(name, "start")? {
        Toml::Text(word) if word == "immediate" => Start::Immediate,
        start => Start::Set("start", start.clone()),
    })
}

/// When TLS begins.
enum Start {
    /// At the first byte.
    Immediate,
    /// In FTP: at the first byte, or after AUTH.
    Ftp { implicit: bool },
    /// When this protocol starts it.
    Protocol(&'static str),
    /// As the map file sets it.
    Set(&'static str, Toml),
    /// Not known.
    Unknown,
}

impl Start {
    fn is_ftp(&self) -> bool {
        match self {
            Self::Ftp { .. } => true,
            Self::Set("starttls", Toml::Text(word)) => word == "ftp",
            Self::Set("starttls", Toml::Table(keys)) => {
                keys.iter().any(|(key, value)| key == "protocol" && *value == Toml::from("ftp"))
            }
            _ => false,
        }
    }

    fn words(&self) -> String {
        match self {
            Self::Ftp { implicit: true } => {
                "TLS begins at the first byte, as in implicit FTPS".into()
            }
            Self::Ftp { implicit: false } => "the FTP command AUTH starts TLS".into(),
            Self::Immediate => "TLS begins at the first byte".into(),
            Self::Protocol(protocol) => {
                format!("in the protocol {protocol}, TLS begins after a command such as STARTTLS")
            }
            _ => "the map file determines when TLS begins".into(),
        }
    }

    fn keys(self) -> Keys {
        let mut keys = Keys::new();
        match self {
            Self::Immediate | Self::Unknown => {}
            Self::Ftp { implicit: false } => set(&mut keys, "starttls", "ftp"),
            Self::Ftp { implicit: true } => {
                let mut ftp = Keys::new();
                set(&mut ftp, "protocol", "ftp");
                set(&mut ftp, "implicit", true);
                set(&mut keys, "starttls", Toml::Table(ftp));
            }
            Self::Protocol(protocol) => set(&mut keys, "starttls", protocol),
            Self::Set(word, value) => set(&mut keys, word, value),
        }
        keys
    }
}

/// The port of the program's protocol, if the rule has one.
fn only_port(rule: &Effective<'_>, direction: Direction) -> Option<String> {
    let ports = match direction {
        Direction::Inbound => &rule.local.ports,
        Direction::Outbound => &rule.remote.ports,
    };
    match ports.as_slice() {
        [one] => Some(show_ports(one)),
        _ => None,
    }
}

/// When TLS begins in a rule without `ApplicationControlled`: at the first byte, except for FTP.
fn by_port(rule: &Effective<'_>, direction: Direction) -> Start {
    match only_port(rule, direction).as_deref() {
        None => Start::Unknown,
        Some("990") if rule.is_on("SecondaryMap") => Start::Ftp { implicit: true },
        Some(_) => Start::Immediate,
    }
}

/// When TLS begins if the program controls it, by the well-known port of its protocol.
fn controlled_by_port(rule: &Effective<'_>, direction: Direction) -> Start {
    match only_port(rule, direction).as_deref() {
        Some("990") => Start::Ftp { implicit: true },
        Some("21") => Start::Ftp { implicit: false },
        Some("23") => Start::Protocol("telnet"),
        Some("25" | "587") => Start::Protocol("smtp"),
        Some("5432") => Start::Protocol("postgres"),
        // The ports of these protocols for TLS from the first byte.
        Some("465" | "992") => Start::Immediate,
        _ => Start::Unknown,
    }
}

/// Reports secondary connections: tacit supports only those of FTP.
fn report_secondary(context: &mut Context<'_>, field: &Field, start: &Start) {
    if start.is_ftp() {
        let message = "FTP data connections use the TLS settings of their control connection";
        context.findings.info(&field.at, message);
    } else {
        let fix = "set SecondaryMap Off, and write a separate rule for the ports of the secondary \
                   connections";
        let message = "`SecondaryMap On` is supported for FTP only";
        context.findings.error(&field.at, message, fix);
    }
}
