//! Parses the tables `[ike.NAME]` of a policy. Each table defines a peer of IPsec tunnels.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use super::address;
use super::map::report_dn;
use super::names::{Names, tables};
use super::value;
use super::words::Scope;
use crate::message_id::MessageId;
use crate::policy::diagnostic::SourcePosition;
use crate::policy::ike::{
    EspSuite, IKE_PROPOSALS_MAX, IkeCredentials, IkeHost, IkeName, IkePeer, IkeSuite,
    InnerAddressSource, KeyLifetime, esp_offers,
};
use crate::policy::map::distinguished::parse_name;
use crate::policy::text::{TableTitle, TomlTable, TomlValue};

mod suite;

/// Reads all peers; those with errors by their name only.
pub(super) fn read_all<'a>(
    top: &TomlTable<'a>,
    names: &Names<'a>,
    inner: &InnerUsers,
) -> BTreeMap<&'a str, Option<IkePeer>> {
    tables(top, "ike", Scope::Ikes, |name, value| read(name, value, names, inner))
}

/// The addresses inside tunnels, each with the table that has it.
pub(super) type InnerUsers = RefCell<BTreeMap<IpAddr, (String, SourcePosition)>>;

/// Reads one table; `None` after an error was reported.
fn read(
    name: &str,
    value: &TomlValue<'_>,
    names: &Names<'_>,
    users: &InnerUsers,
) -> Option<IkePeer> {
    let table = value.table(Scope::Ike, format!("[ike.{name}]"))?;
    let is_ikev2 = check_version(&table);
    let fix = "set the address of the gateway: peer = \"192.0.2.1\"";
    let host = table.required("peer", fix).and_then(|value| peer(&value));
    let port = match table.value("port") {
        Some(value) => {
            let number = value.integer(1, u64::from(u16::MAX));
            number.and_then(|port| u16::try_from(port).ok())
        }
        None => Some(IkePeer::PORT_DEFAULT),
    };
    let credentials = credentials(&table, names);
    let fix = "set the identity that the peer expects from tacit: local-id = \"client.example\"";
    let local_id = table.required("local-id", fix).and_then(|value| ike_name(&value));
    let remote_id = match table.value("remote-id") {
        Some(value) => ike_name(&value),
        None => host.as_ref().map(IkeHost::identity),
    };
    let pfs = table.boolean("pfs", true);
    let proposals = proposals(&table);
    let esp_proposals = esp_proposals(&table, pfs);
    let ike_lifetime = time(&table, "ike-lifetime", IkePeer::IKE_LIFETIME_DEFAULT);
    let lifetime = lifetime(&table);
    let dpd = table
        .value("dpd")
        .map_or(Some(IkePeer::DPD_DEFAULT), |value| value::duration(&value, DPD_MIN, DPD_MAX));
    let fix = "set the address that programs have inside the tunnel: inner = \"10.1.0.1\"; if the \
               peer assigns this address, set inner = \"gateway\"";
    let inner = table.required("inner", fix).and_then(|value| {
        let source = inner_source(&value)?;
        if let InnerAddressSource::Policy(addresses) = &source {
            check_users(&table.title, &value, addresses, users)?;
        }
        Some(source)
    });
    let position = table.report.position(table.at.start);
    let at = |value: &TomlValue<'_>| value.report.position(value.at.start);
    let proposals = proposals?;
    let esp_proposals = esp_proposals?;
    let pfs = pfs?;
    check_offers(&table, &proposals, &esp_proposals, pfs)?;
    is_ikev2?;
    Some(IkePeer {
        host: host?,
        port: port?,
        credentials: credentials?,
        local_id: local_id?,
        local_id_position: table.value("local-id").map_or(position, |value| at(&value)),
        remote_id: remote_id?,
        proposals,
        esp_proposals,
        pfs,
        ike_lifetime: ike_lifetime?,
        lifetime: lifetime?,
        dpd: dpd?,
        inner: inner?,
        position,
    })
}

/// Checks `version`. The key exists only so that an error can state why tacit refuses IKEv1.
fn check_version(table: &TomlTable<'_>) -> Option<()> {
    let Some(value) = table.value("version") else { return Some(()) };
    if value.integer(1, 2)? == 1 {
        let message = "IKEv1 is refused: RFC 9395 deprecates it, and its algorithms are weak";
        let fix = "remove `version`, and enable IKEv2 on the peer";
        value.error_of(MessageId("weak-algorithm"), message, fix);
        return None;
    }
    Some(())
}

fn peer(value: &TomlValue<'_>) -> Option<IkeHost> {
    let text = value.string()?;
    let address = text.parse::<IpAddr>().ok().map(|ip| ip.to_canonical());
    let Some(address) = address else {
        if let Some(name) = address::host(text) {
            return Some(IkeHost::Name(name));
        }
        let message =
            format!("`peer` cannot be `{text}`: this is neither an IP address nor a host name");
        let fix = "write only the IP address or the name of the gateway, and set its port with the \
                   key `port`";
        value.error(message, fix);
        return None;
    };
    if address.is_unspecified() || address.is_multicast() {
        let message = format!("`peer` cannot be {address}: this is not the address of a host");
        value.error(message, "write the IP address of the gateway");
        return None;
    }
    Some(IkeHost::Address(address))
}

fn credentials(table: &TomlTable<'_>, names: &Names<'_>) -> Option<IkeCredentials> {
    let identity = table.value("identity");
    let trust = table.value("trust");
    let Some(file) = table.value("psk-file") else {
        if identity.is_none() && trust.is_none() {
            let fix = "to use a pre-shared key, set psk-file = \"branch.psk\"; to use \
                       certificates, set `identity` and `trust`";
            table.missing("psk-file", fix);
            return None;
        }
        let fix = "set `identity` to the name of a table: identity = \"gateway\" for \
                   [identity.gateway]";
        let identity = table.required("identity", fix).and_then(|value| names.identity(&value));
        let fix = "to verify the peer's certificate, set `trust` to the name of a table: trust = \
                   \"corp\" for [trust.corp]";
        let trust = table.required("trust", fix).and_then(|value| names.trust(&value));
        return Some(IkeCredentials::Certificates { identity: identity?, trust: trust? });
    };
    if let Some(other) = identity.or(trust) {
        let message =
            format!("a table [ike.NAME] cannot contain both `psk-file` and `{}`", other.name);
        let fix = "remove `psk-file`, or remove `identity` and `trust`: a peer has only one \
                   authentication method";
        table.report.error(MessageId("conflicting-keys"), &other.name_at, message, fix);
        return None;
    }
    let position = table.report.position(file.at.start);
    Some(IkeCredentials::SharedKey { file: value::file(&file)?, position })
}

/// Parses who a side claims to be. The form of the text decides about its type.
fn ike_name(value: &TomlValue<'_>) -> Option<IkeName> {
    let text = value.string()?;
    if let Ok(address) = text.parse::<IpAddr>() {
        return Some(IkeName::Address(address.to_canonical()));
    }
    let is_plain = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_graphic());
    if text.contains('=') {
        let name = parse_name(text).map_err(|fault| report_dn(value, fault)).ok()?;
        let has_controls = name.iter().any(|one| one.value.chars().any(char::is_control));
        if has_controls || text.len() > DN_BYTES_MAX {
            let message = format!("`{key}` is not a valid distinguished name", key = value.name);
            let fix = format!("write at most {DN_BYTES_MAX} bytes without control characters");
            value.error(message, fix);
            return None;
        }
        return Some(IkeName::DistinguishedName(name));
    }
    let is_name = text.len() <= NAME_BYTES_MAX && is_plain(text);
    match text.split_once('@') {
        Some((user, host)) if is_name && is_plain(user) && is_plain(host) => {
            Some(IkeName::UserFqdn(text.to_owned()))
        }
        None if is_name => Some(IkeName::Fqdn(text.to_ascii_lowercase())),
        _ => {
            let message =
                format!("`{key}` cannot be `{text}`: this is not an identity", key = value.name);
            let fix = "write an IP address, a host name, \"user@host.example\", or a \
                       distinguished name: \"O=Corp, CN=host\"";
            value.error(message, fix);
            None
        }
    }
}

fn proposals(table: &TomlTable<'_>) -> Option<Vec<IkeSuite>> {
    match table.value("proposals") {
        Some(value) => value.each_once(suite::ike),
        None => IkePeer::PROPOSALS_DEFAULT.iter().map(|text| suite::parsed(text)).collect(),
    }
}

fn esp_proposals(table: &TomlTable<'_>, pfs: Option<bool>) -> Option<Vec<EspSuite>> {
    let Some(value) = table.value("esp-proposals") else {
        return IkePeer::ESP_PROPOSALS_DEFAULT.iter().map(|text| suite::parsed_esp(text)).collect();
    };
    value.each_once(|item| {
        let suite = suite::esp(item)?;
        if pfs == Some(false) && suite.group.is_some() {
            let message = format!(
                "`{suite}` names a group for a key exchange, but pfs = false disables this key \
                 exchange"
            );
            item.error(message, "remove the group, or set pfs = true");
            return None;
        }
        Some(suite)
    })
}

/// Both lists become proposals of one message, which has a limit.
#[expect(
    clippy::fn_params_excessive_bools,
    reason = "the parameter is the value of the boolean policy key `pfs`"
)]
fn check_offers(
    table: &TomlTable<'_>,
    proposals: &[IkeSuite],
    esp: &[EspSuite],
    pfs: bool,
) -> Option<()> {
    let offers = esp_offers(esp, proposals, pfs).len();
    for (key, count) in [("proposals", proposals.len()), ("esp-proposals", offers)] {
        if count > IKE_PROPOSALS_MAX {
            let kind = match key {
                "esp-proposals" => "combinations of ESP proposal and key exchange group",
                _ => "proposals",
            };
            let message = format!("`{key}` has {count} {kind}; the limit is {IKE_PROPOSALS_MAX}");
            let at = table.value(key).map_or_else(|| table.at.clone(), |value| value.at);
            table.report.error(MessageId("too-many"), &at, message, "list fewer algorithms");
            return None;
        }
    }
    Some(())
}

fn lifetime(table: &TomlTable<'_>) -> Option<KeyLifetime> {
    let time = time(table, "lifetime", KeyLifetime::TIME_DEFAULT);
    let bytes = table
        .value("lifetime-bytes")
        .map_or(Some(None), |value| value::size(&value, LIFETIME_BYTES_MIN, u64::MAX).map(Some));
    let packets = table.value("lifetime-packets").map_or(Some(None), |value| {
        value.integer(LIFETIME_PACKETS_MIN, LIFETIME_PACKETS_MAX).map(Some)
    });
    Some(KeyLifetime { time: time?, bytes: bytes?, packets: packets? })
}

fn time(table: &TomlTable<'_>, key: &'static str, default: Duration) -> Option<Duration> {
    table
        .value(key)
        .map_or(Some(default), |value| value::duration(&value, LIFETIME_MIN, LIFETIME_MAX))
}

/// Parses `inner`: "gateway", or addresses.
fn inner_source(value: &TomlValue<'_>) -> Option<InnerAddressSource> {
    if value.value.as_str() == Some("gateway") {
        return Some(InnerAddressSource::Gateway);
    }
    let fix = "write the address that programs have inside the tunnel, without a prefix length: \
               \"10.1.0.1\"; if the peer assigns this address, write \"gateway\"";
    inner_addresses(value, fix).map(InnerAddressSource::Policy)
}

/// Parses at most one address of each family. `fix` is for a text that is not an address of a run.
pub(super) fn inner_addresses(value: &TomlValue<'_>, fix: &str) -> Option<Vec<IpAddr>> {
    let addresses = value.each_once(|item| {
        let text = item.string()?;
        let address = text.parse::<IpAddr>().ok().map(|ip| ip.to_canonical());
        let usable = |ip: &IpAddr| !ip.is_unspecified() && !ip.is_multicast() && !ip.is_loopback();
        if address.is_none_or(|ip| !usable(&ip)) {
            let message = format!("`{key}` cannot be `{text}`", key = value.name);
            item.error(message, fix);
            return None;
        }
        address
    })?;
    if let [first, second, ..] = addresses.as_slice()
        && (addresses.len() > 2 || first.is_ipv4() == second.is_ipv4())
    {
        let message = format!("`{key}` has two addresses of the same IP version", key = value.name);
        value.error(message, "write at most one IPv4 and one IPv6 address");
        return None;
    }
    Some(addresses)
}

/// Reports an address that another peer has too: a packet to it would belong to two tunnels.
pub(super) fn check_users(
    title: &TableTitle<'_>,
    value: &TomlValue<'_>,
    addresses: &[IpAddr],
    users: &InnerUsers,
) -> Option<()> {
    let position = value.report.position(value.at.start);
    for address in addresses {
        let Some((other_table, first)) =
            users.borrow_mut().insert(*address, (title.to_string(), position))
        else {
            continue;
        };
        let line = value.report.line(first, position);
        let message =
            format!("{address} is already the `inner` address of {other_table} in line {line}");
        let fix = "write another address: two tables cannot have the same `inner` address";
        value.error_of(MessageId("shared-inner"), message, fix);
        return None;
    }
    Some(())
}

const DPD_MIN: Duration = Duration::from_secs(5);
const DPD_MAX: Duration = Duration::from_secs(3600);
/// Shorter lifetimes would rekey all the time.
const LIFETIME_MIN: Duration = Duration::from_secs(60);
const LIFETIME_MAX: Duration = Duration::from_secs(7 * 86_400);
const LIFETIME_BYTES_MIN: u64 = 1 << 20;
const LIFETIME_PACKETS_MIN: u64 = 10_000;
const LIFETIME_PACKETS_MAX: u64 = 1 << 60;
/// The longest host name of an identity.
const NAME_BYTES_MAX: usize = 255;
/// The longest distinguished name of an identity.
const DN_BYTES_MAX: usize = 1024;
