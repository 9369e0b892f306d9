//! Parses the keys `starttls` and `start` of a `tls` table. They define when TLS begins.

use super::value;
use super::words::{ONLY_FOR_SERVERS, Scope};
use crate::policy::client_cert::{Absent, ChainCheck, ClientCert, Invalid};
use crate::policy::starttls::{
    Cancel, DataResumption, FtpOptions, PostgresOptions, Start, Starttls, StarttlsMode,
    StarttlsProtocol,
};
use crate::policy::text::{TomlTable, TomlValue};
use crate::policy::tls::TlsCommon;

/// Reads when the rule's TLS begins.
pub(super) fn read(tls: &TomlTable<'_>) -> Option<Start> {
    if let Some(value) = tls.value("start") {
        let why = "the rule also has `start`, and each of the two keys determines when TLS begins";
        tls.refuse(&["starttls"], why, "remove `start`, or remove `starttls`");
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

fn plain(value: &TomlValue<'_>) -> Option<Starttls> {
    Some(Starttls { protocol: protocol(value)?, mode: StarttlsMode::Required })
}

fn table(value: &TomlValue<'_>) -> Option<Starttls> {
    let table = value.table(Scope::Starttls, "`starttls`")?;
    let protocol = table
        .required("protocol", "set the protocol: protocol = \"smtp\"")
        .and_then(|value| protocol(&value));
    let modes = [
        (StarttlsMode::Required.word(), StarttlsMode::Required),
        (StarttlsMode::Optional.word(), StarttlsMode::Optional),
    ];
    let mode =
        table.value("mode").map_or(Some(StarttlsMode::Required), |value| value.choice(&modes));
    let protocol = with_own_keys(&table, protocol?, mode)?;
    Some(Starttls { protocol, mode: mode? })
}

/// The keys that only FTP supports.
const FTP_KEYS: [&str; 4] = ["implicit", "data-ports", "data-address", "data-resumption"];
/// The keys that only PostgreSQL supports.
const POSTGRES_KEYS: [&str; 1] = ["cancel"];

/// Reads a protocol with its own keys; keys of other protocols are errors.
fn with_own_keys(
    table: &TomlTable<'_>,
    protocol: StarttlsProtocol,
    mode: Option<StarttlsMode>,
) -> Option<StarttlsProtocol> {
    let is_without = |keys: &[&'static str], why| {
        table.refuse(keys, why, "remove `{key}`");
        keys.iter().all(|key| !table.holds(key))
    };
    let is_ftp = matches!(protocol, StarttlsProtocol::Ftp(_));
    let is_postgres = matches!(protocol, StarttlsProtocol::Postgres(_));
    let without_ftp =
        is_ftp || is_without(&FTP_KEYS, "only `starttls` with protocol = \"ftp\" has this key");
    let without_postgres = is_postgres
        || is_without(&POSTGRES_KEYS, "only `starttls` with protocol = \"postgres\" has this key");
    if !without_ftp || !without_postgres {
        return None;
    }
    match protocol {
        StarttlsProtocol::Ftp(_) => ftp(table, mode).map(StarttlsProtocol::Ftp),
        StarttlsProtocol::Postgres(_) => postgres(table, mode).map(StarttlsProtocol::Postgres),
        other @ (StarttlsProtocol::Telnet | StarttlsProtocol::Smtp) => Some(other),
    }
}

fn postgres(table: &TomlTable<'_>, mode: Option<StarttlsMode>) -> Option<PostgresOptions> {
    let Some(value) = table.value("cancel") else { return Some(PostgresOptions::default()) };
    let cancel = value.choice(&[("refuse", Cancel::Refuse), ("clear", Cancel::Clear)])?;
    if mode == Some(StarttlsMode::Optional) {
        let why = "with mode = \"optional\", tacit relays all PostgreSQL cancel requests that \
                   arrive in clear, so `cancel` has no effect";
        table.refuse(&POSTGRES_KEYS, why, "remove `cancel`, or remove `mode`");
        return None;
    }
    Some(PostgresOptions { cancel })
}

fn ftp(table: &TomlTable<'_>, mode: Option<StarttlsMode>) -> Option<FtpOptions> {
    let implicit = table.boolean("implicit", false);
    if let (Some(true), Some(StarttlsMode::Optional)) = (implicit, mode)
        && let Some(value) = table.value("implicit")
    {
        let fix = "remove `mode`; or write two rules with different addresses: one rule with \
                   `implicit`, and one rule with `mode`";
        value.error(
            "`implicit` cannot be combined with mode = \"optional\": with `implicit`, TLS begins \
             at the first byte",
            fix,
        );
        return None;
    }
    let ports = table.value("data-ports");
    let data_ports = ports.map_or(Some(Vec::new()), |value| value.each(value::ports));
    let address = table.value("data-address");
    let data_address = address.map_or(Some(None), |value| {
        let read = value.string()?.parse().ok();
        if read.is_none() {
            value.error("`data-address` is not an IP address", "write an address: \"192.0.2.1\"");
        }
        read.map(Some)
    });
    let resumption = table.value("data-resumption");
    let data_resumption = resumption.map_or(Some(DataResumption::Required), |value| {
        value.choice(&[("required", DataResumption::Required), ("off", DataResumption::Off)])
    });
    Some(FtpOptions {
        implicit: implicit?,
        data_ports: data_ports?,
        data_address: data_address?,
        data_resumption: data_resumption?,
    })
}

/// Reports a server role in which data connections cannot prove that they belong to their client.
pub(super) fn check_data(
    tls: &TomlTable<'_>,
    common: &TlsCommon,
    client_cert: &ClientCert,
) -> Option<()> {
    let starttls = common.start.starttls();
    let Some(StarttlsProtocol::Ftp(ftp)) = starttls.map(|starttls| &starttls.protocol) else {
        return Some(());
    };
    let resumes = common.resumption || ftp.data_resumption == DataResumption::Off;
    if resumes || always_known(client_cert) {
        return Some(());
    }
    let value = tls.value("resumption")?;
    let message = "with `resumption = false`, tacit cannot check that a data connection and its \
                   control connection come from the same client";
    let fix = "remove `resumption`, or set client-cert = \"required\", or set data-resumption = \
               \"off\" in `starttls`";
    value.error(message, fix);
    None
}

/// Whether each client must present a trusted certificate.
fn always_known(client_cert: &ClientCert) -> bool {
    client_cert.requested().is_some_and(|requested| {
        let is_checked = matches!(requested.chain, ChainCheck::Made { invalid: Invalid::Deny, .. });
        requested.absent == Absent::Deny && is_checked
    })
}

/// Reports keys without effect in the client role.
pub(super) fn refuse_in_client(tls: &TomlTable<'_>) {
    if let Some(value) = tls.value("starttls")
        && value.value.is_table()
        && let Some(table) = value.table(Scope::Starttls, "`starttls`")
    {
        table.refuse(&["data-resumption", "cancel"], ONLY_FOR_SERVERS, "remove `{key}`");
    }
}

fn protocol(value: &TomlValue<'_>) -> Option<StarttlsProtocol> {
    let text = value.string()?;
    let known = [
        StarttlsProtocol::Ftp(FtpOptions::default()),
        StarttlsProtocol::Telnet,
        StarttlsProtocol::Smtp,
        StarttlsProtocol::Postgres(PostgresOptions::default()),
    ];
    let protocol = known.into_iter().find(|protocol| protocol.word() == text);
    if protocol.is_none() {
        value.unknown_word(text, Scope::StarttlsProtocol.words());
    }
    protocol
}

/// Reports `start = "controlled"` in a rule that is not for a run.
pub(super) fn refuse_controlled(tls: &TomlTable<'_>, start: &Start) -> Option<()> {
    if *start != Start::Controlled {
        return Some(());
    }
    let value = tls.value("start")?;
    let message = "`start` cannot be `controlled` in a rule with `connect`: only programs under \
                   `tacit run` can ask the agent to start TLS";
    value.error(
        message,
        "remove `start`; or write a rule with `direction`, which applies to programs under `tacit \
         run`",
    );
    None
}

/// Reports `mode = "optional"` in the client role.
pub(super) fn refuse_optional(tls: &TomlTable<'_>, start: &Start) -> Option<()> {
    if start.starttls().is_none_or(|starttls| starttls.mode == StarttlsMode::Required) {
        return Some(());
    }
    let value = tls.value("starttls")?;
    let message = "`mode` cannot be `optional` in the client role: an attacker on the path could \
                   remove STARTTLS from the server's reply";
    value.error(
        message,
        "remove `mode`, or write a rule with `permit` for the servers that do not use TLS",
    );
    None
}
