//! Parses the keys `accept`, `clear-sources` and `clear-until` of a server rule. These keys define
//! which clients may connect in clear.

use jiff::Timestamp;

use super::address;
use super::words::ONLY_FOR_SERVERS;
use crate::message_id::MessageId;
use crate::policy::clear_clients::ClearClients;
use crate::policy::client_cert::{Absent, ClientCert};
use crate::policy::selector::AddressSelector;
use crate::policy::starttls::Start;
use crate::policy::text::{TomlTable, TomlValue};
use crate::policy::tls::TlsCommon;

/// The keys for clients without TLS.
const CLEAR_KEYS: [&str; 2] = ["clear-sources", "clear-until"];

/// Reads the keys. The outer `None` means that an error was reported, the inner `None` that every
/// client needs TLS.
#[expect(
    clippy::option_option,
    reason = "returns `None` after an error, and `Some(None)` if the key is missing"
)]
pub(super) fn read(
    table: &TomlTable<'_>,
    client_cert: &ClientCert,
    common: &TlsCommon,
) -> Option<Option<ClearClients>> {
    let accept = table.value("accept");
    let accepts_clear = match &accept {
        Some(value) => value.choice(&[("tls", false), ("both", true)])?,
        None => false,
    };
    if !accepts_clear {
        let why = "this rule accepts only clients with TLS";
        table.refuse(&CLEAR_KEYS, why, "remove `{key}`, or set accept = \"both\"");
        return CLEAR_KEYS.iter().all(|key| !table.holds(key)).then_some(None);
    }
    let value = accept?;
    if common.start != Start::Immediate {
        let message = "`accept = \"both\"` needs a protocol in which TLS begins at the first byte";
        let fix = "remove `accept`. A rule with `starttls` accepts clients in clear if you set \
                   mode = \"optional\" in `starttls`";
        table.report.error(MessageId("conflicting-keys"), &value.name_at, message, fix);
        return None;
    }
    let sources = table.value("clear-sources").map_or(Some(Vec::new()), |it| it.each(source));
    let until = table.value("clear-until").map_or(Some(None), |it| time(&it).map(Some));
    warn(&value, client_cert, until.flatten());
    Some(Some(ClearClients { sources: sources?, until: until? }))
}

/// Reports the keys in a client rule.
pub(super) fn refuse_in_client(table: &TomlTable<'_>) {
    let fix = "remove `{key}`, or set role = \"server\"";
    table.refuse(&["accept"], ONLY_FOR_SERVERS, fix);
    table.refuse(&CLEAR_KEYS, ONLY_FOR_SERVERS, fix);
}

/// An address, a network or a range.
fn source(value: &TomlValue<'_>) -> Option<AddressSelector> {
    match address::selector(value)? {
        selector @ (AddressSelector::Prefix { .. } | AddressSelector::Range { .. }) => {
            Some(selector)
        }
        AddressSelector::Name { .. } | AddressSelector::Near(_) => {
            let fix = "write addresses or networks, as in [\"10.1.0.0/16\", \"2001:db8::7\"]";
            let message =
                "`clear-sources` contains a value that is neither an address nor a network";
            value.error(message, fix);
            None
        }
    }
}

fn time(value: &TomlValue<'_>) -> Option<Timestamp> {
    let text = value.string()?;
    let time = text.parse().ok();
    if time.is_none() {
        let fix = "write a date, a time and an offset from UTC, as in \"2027-01-31T00:00:00Z\" \
                   or \"2027-01-31T00:00:00+01:00\"";
        value.error(format!("`clear-until` cannot be `{text}`"), fix);
    }
    time
}

/// Warns if clients without TLS are accepted although the rule requests certificates.
fn warn(value: &TomlValue<'_>, client_cert: &ClientCert, until: Option<Timestamp>) {
    let denies = client_cert.requested().is_some_and(|policy| policy.absent == Absent::Deny);
    let message = if denies {
        "`client-cert` requires a certificate, but the rule also accepts clients without TLS. A \
         client without TLS cannot send a certificate"
    } else {
        "the rule accepts clients without TLS: their data is not protected"
    };
    let fix = match until {
        Some(_) => "remove `accept` when all clients use TLS, or after the time `clear-until`",
        None => {
            "set `clear-until` to the time when all clients must use TLS, and remove `accept` at \
             that time"
        }
    };
    let position = value.report.position(value.at.start);
    value.report.warning(MessageId("clients-in-clear"), position, message, fix);
}
