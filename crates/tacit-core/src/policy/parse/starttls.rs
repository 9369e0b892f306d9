//! The `starttls` of a `tls` table: a protocol, or a table with more.

use super::table::{Table, Value};
use super::words::{self, Scope};
use crate::policy::{Start, Starttls, StarttlsMode, StarttlsProtocol};

/// When the rule's TLS begins.
pub(super) fn read(tls: &Table<'_>) -> Option<Start> {
    if let Some(value) = tls.value("start") {
        let why = "`start` says already when TLS begins";
        tls.refuse(&["starttls"], why, "remove one of the two");
        let choices = [("immediate", false), ("controlled", true)];
        let start = match value.choice(&choices)? {
            true => Start::Controlled,
            false => Start::Immediate,
        };
        return (!tls.holds("starttls")).then_some(start);
    }
    let Some(value) = tls.value("starttls") else { return Some(Start::Immediate) };
    let starttls = if value.value.is_table() { table(&value)? } else { plain(&value)? };
    Some(Start::Starttls(Box::new(starttls)))
}

fn plain(value: &Value<'_>) -> Option<Starttls> {
    Some(Starttls { protocol: protocol(value)?, mode: StarttlsMode::Required })
}

fn table(value: &Value<'_>) -> Option<Starttls> {
    let table = value.table(Scope::Starttls, "`starttls`")?;
    let protocol = table
        .required("protocol", "say what the two ends speak: protocol = \"smtp\"")
        .and_then(|value| protocol(&value));
    let modes = [
        (StarttlsMode::Required.word(), StarttlsMode::Required),
        (StarttlsMode::Optional.word(), StarttlsMode::Optional),
    ];
    let mode =
        table.value("mode").map_or(Some(StarttlsMode::Required), |value| value.choice(&modes));
    Some(Starttls { protocol: protocol?, mode: mode? })
}

fn protocol(value: &Value<'_>) -> Option<StarttlsProtocol> {
    let text = value.string()?;
    if let Some(planned) = words::not_built(Scope::StarttlsProtocol, text) {
        value.error(format!("starttls = \"{text}\" is not built yet"), planned.instead);
        return None;
    }
    let known = [StarttlsProtocol::Telnet, StarttlsProtocol::Smtp, StarttlsProtocol::Postgres];
    let protocol = known.into_iter().find(|protocol| protocol.word() == text);
    if protocol.is_none() {
        value.unknown_word(text, Scope::StarttlsProtocol.words());
    }
    protocol
}

/// Reports what only a program of a run can be asked: when TLS begins.
pub(super) fn refuse_controlled(tls: &Table<'_>, start: &Start) -> Option<()> {
    if *start != Start::Controlled {
        return Some(());
    }
    let value = tls.value("start")?;
    let message = "`start` cannot be `controlled` in a rule with `connect`: only programs under \
                   `tacit run` can say when TLS begins";
    value.error(message, "remove it, or write the rule for a run: with `direction`");
    None
}

/// Reports what a client cannot do: go on in clear where the server offers no TLS.
pub(super) fn refuse_optional(tls: &Table<'_>, start: &Start) -> Option<()> {
    if start.starttls().is_none_or(|starttls| starttls.mode == StarttlsMode::Required) {
        return Some(());
    }
    let value = tls.value("starttls")?;
    let message = "`mode` cannot be `optional` in the client role: whoever is in between could \
                   leave STARTTLS out of the server's answer";
    value.error(message, "remove it, or use a rule with `permit` for servers in clear");
    None
}
