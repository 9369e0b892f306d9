//! Parses the `tls` table of a rule.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use super::ciphers;
use super::clear_clients;
use super::client_cert;
use super::names::Names;
use super::starttls;
use super::words::{ONLY_FOR_SERVERS, Scope};
use super::{address, value};
use crate::message_id::MessageId;
use crate::policy::engine::RelayOn;
use crate::policy::starttls::{Start, StarttlsProtocol};
use crate::policy::suite::{Group, Suite, TlsVersion};
use crate::policy::text::{TomlTable, TomlValue};
use crate::policy::tls::{
    ClientTls, ConnectAfter, OwnTls, RecheckAction, Rekey, ServerTls, Tls, TlsCommon, Verify,
};

/// The default of `handshake-timeout`: enough for a peer on a slow link.
const HANDSHAKE_TIMEOUT_DEFAULT: Duration = Duration::from_secs(10);
/// The default after a STARTTLS exchange. In such an exchange, servers may delay their greeting or
/// look up clients in DNS, and clients may ask a user for a name.
const DIALOGUE_TIMEOUT_DEFAULT: Duration = Duration::from_secs(60);
const HANDSHAKE_TIMEOUT_MIN: Duration = Duration::from_secs(1);
const HANDSHAKE_TIMEOUT_MAX: Duration = Duration::from_secs(600);

/// With a smaller value, key updates would cost more than the data.
pub(super) const REKEY_BYTES_MIN: u64 = 1 << 20;
/// This value is above the limit of every suite, so larger values have no effect.
pub(super) const REKEY_BYTES_MAX: u64 = 1 << 50;
const REKEY_AFTER_MIN: Duration = Duration::from_secs(1);
const REKEY_AFTER_MAX: Duration = Duration::from_secs(30 * 86_400);
const MAX_AGE_MIN: Duration = Duration::from_secs(1);
const MAX_AGE_MAX: Duration = Duration::from_secs(365 * 86_400);

/// The largest length of a protocol name (RFC 7301 section 3.1).
const ALPN_BYTES_MAX: usize = 255;

/// The TLS defaults that follow from the other keys of the rule.
pub(super) struct Setting {
    /// The role if `role` is not given.
    pub(super) role: RoleDefault,
    /// The name that a server certificate must match if `server-name` is not given; `None`: the
    /// rule has another error.
    pub(super) server: Option<ServerNameDefault>,
}

/// The default for the name that a server certificate must match.
pub(super) enum ServerNameDefault {
    /// The host of `connect`.
    Host(String),
    /// The host of the dialled target, if there are several targets.
    Dialled,
    /// The name that the program resolved.
    Resolved,
    /// A target is a UNIX socket, which has no name.
    Nothing,
}

/// The default role of a rule.
#[derive(Clone, Copy, Debug)]
pub(super) enum RoleDefault {
    /// There is no default, because a forwarding rule may have either role.
    MustBeSaid,
    /// The default follows from `direction`: the side that opens the connection is the TLS client.
    Is(Role),
    /// The direction has an error, so there is no default.
    Unknown,
}

/// The TLS role of tacit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Server,
    Client,
}

/// Reads the table; `None` after an error was reported.
pub(super) fn read(value: &TomlValue<'_>, setting: &Setting, names: &Names<'_>) -> Option<Tls> {
    let table = value.table(Scope::Tls, "`tls`")?;
    let is_forwarding = matches!(setting.role, RoleDefault::MustBeSaid);
    let may_start = |common: &TlsCommon| {
        !is_forwarding || starttls::refuse_controlled(&table, &common.start).is_some()
    };
    let common = common(&table, names).filter(may_start);
    let role = match (table.value("role"), setting.role) {
        (Some(role), _) => role.choice(&[("server", Role::Server), ("client", Role::Client)])?,
        (None, RoleDefault::Is(role)) => role,
        (None, RoleDefault::Unknown) => return None,
        (None, RoleDefault::MustBeSaid) => {
            let fix = "set role = \"server\" if clients connect to tacit with TLS, or role = \
                       \"client\" if tacit connects to the server with TLS";
            table.missing("role", fix);
            return None;
        }
    };
    if let (RoleDefault::Is(other), Some(starttls)) = (setting.role, table.value("starttls"))
        && role != other
    {
        let message = "`role` contradicts `starttls`: with `starttls`, the TLS client is always \
                       the end that opens the TCP connection";
        value.report.error(
            MessageId("conflicting-keys"),
            &starttls.name_at,
            message,
            "remove `role`: tacit derives the role from `direction`",
        );
        return None;
    }
    match role {
        Role::Server => server(&table, common, names).map(|tls| Tls::Server(Arc::new(tls))),
        Role::Client => {
            client(&table, common, setting, names).map(|tls| Tls::Client(Arc::new(tls)))
        }
    }
}

fn server(
    table: &TomlTable<'_>,
    common: Option<TlsCommon>,
    names: &Names<'_>,
) -> Option<ServerTls> {
    let why = "this policy key is only for rules with the client role, but this rule has the \
               server role";
    table.refuse(
        &["server-name", "verify", "sni", "connect"],
        why,
        "remove `{key}`, or set role = \"client\"",
    );
    let why = "this policy key is only for connections that programs open, but the rule has the \
               server role";
    table.refuse(&["on-tls"], why, "remove `on-tls`");
    let fix = "set `identity` to the name of a table: identity = \"web\" for [identity.web]";
    let identities = table
        .required("identity", fix)
        .and_then(|value| value.each_once(|item| names.identity(item)));
    let client_cert = client_cert::read(table, names);
    let client_cert = client_cert?;
    let common = common?;
    client_cert::refuse_in_clear(table, &client_cert, &common.start)?;
    refuse_recheck(table, client_cert.trust())?;
    starttls::check_data(table, &common, &client_cert)?;
    let clear_clients = clear_clients::read(table, &client_cert, &common)?;
    Some(ServerTls { identities: identities?, client_cert, clear_clients, common })
}

fn client(
    table: &TomlTable<'_>,
    common: Option<TlsCommon>,
    setting: &Setting,
    names: &Names<'_>,
) -> Option<ClientTls> {
    let fix = "remove `{key}`, or set role = \"server\"";
    table.refuse(&["client-cert", "map"], ONLY_FOR_SERVERS, fix);
    let named = table.value("identity").map(|value| {
        if value.value.is_array() {
            let fix = "write one name, as in identity = \"web\"";
            value.error("a client has only one identity, but this value is a list", fix);
            return None;
        }
        names.identity(&value)
    });
    let verify = verify(table, setting, names);
    if let Some(verify) = &verify {
        refuse_recheck(table, verify.trust())?;
    }
    let sni = table.boolean("sni", true);
    // An identity with an error leads to an error; a missing identity does not.
    let identity = named.map_or(Some(None), |read| read.map(Some));
    let sound = common.filter(|common| starttls::refuse_optional(table, &common.start).is_some());
    starttls::refuse_in_client(table);
    clear_clients::refuse_in_client(table);
    let connect = connect_after(table, setting, sound.as_ref());
    let own_tls = sound.as_ref().map(|common| own_tls(table, common, setting));
    Some(ClientTls {
        identity: identity?,
        verify: verify?,
        sni: sni?,
        connect: connect?,
        own_tls: own_tls??,
        common: sound?,
    })
}

/// Parses `connect`: the event for which the `connect` call of a program waits.
fn connect_after(
    table: &TomlTable<'_>,
    setting: &Setting,
    common: Option<&TlsCommon>,
) -> Option<ConnectAfter> {
    let Some(value) = table.value("connect") else { return Some(ConnectAfter::Answered) };
    let words = [("answered", ConnectAfter::Answered), ("verified", ConnectAfter::Verified)];
    let connect = value.choice(&words)?;
    if matches!(setting.role, RoleDefault::MustBeSaid) {
        let message = "`connect` in `tls` is only for connections that programs under `tacit run` \
                       open, but this rule has `listen`";
        value.error(message, "remove `connect`");
        return None;
    }
    let starts_at_once = common.is_none_or(|common| common.start == Start::Immediate);
    if connect == ConnectAfter::Verified && !starts_at_once {
        let message = "`connect = \"verified\"` cannot work in this rule: connect() would wait for \
                       the handshake, but the handshake starts only after the program has sent \
                       data";
        value.error(message, "set connect = \"answered\", or remove `starttls` and `start`");
        return None;
    }
    Some(connect)
}

/// Parses `on-tls`. The outer `None` means that an error was reported.
#[expect(
    clippy::option_option,
    reason = "returns `None` after an error, and `Some(None)` if the key does not apply"
)]
fn own_tls(table: &TomlTable<'_>, common: &TlsCommon, setting: &Setting) -> Option<Option<OwnTls>> {
    let why = match (setting.role, &common.start) {
        (RoleDefault::Is(Role::Client), Start::Immediate) => {
            let choices = [("refuse", OwnTls::Refuse), ("pass", OwnTls::Pass)];
            return match table.value("on-tls") {
                Some(value) => value.choice(&choices).map(Some),
                None => Some(Some(OwnTls::default())),
            };
        }
        (RoleDefault::Is(Role::Client), Start::Starttls(_) | Start::Controlled) => {
            "connections of this rule start without TLS"
        }
        _ => "this policy key is only for connections that programs open",
    };
    if table.holds("on-tls") {
        table.refuse(&["on-tls"], why, "remove `on-tls`");
        return None;
    }
    Some(None)
}

/// Reports `recheck` in a rule that does not check certificates, because there is nothing to check
/// again.
fn refuse_recheck(table: &TomlTable<'_>, trust: Option<&str>) -> Option<()> {
    if trust.is_some() || !table.holds("recheck") {
        return Some(());
    }
    let why = "this rule checks no certificates";
    let fix = "remove `{key}`, or set `trust` to the name of a table: trust = \"corp\" for \
               [trust.corp]";
    table.refuse(&["recheck"], why, fix);
    None
}

/// The three kinds of [`Verify`].
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Full,
    Chain,
    None,
}

fn verify(table: &TomlTable<'_>, setting: &Setting, names: &Names<'_>) -> Option<Verify> {
    let trust = table.value("trust");
    let kind = table.value("verify").map(|value| verify_kind(&value, trust.as_ref(), names));
    let kind = kind.unwrap_or(Some(Kind::Full));
    let given = table.value("server-name").map(|value| address::server_name(&value));
    if kind == Some(Kind::None) {
        let why = "verify = \"none\" does not check the server";
        table.refuse(&["trust"], why, "remove `{key}`, or set verify = \"full\"");
    } else if trust.is_none() {
        let fix = "set `trust` to the name of a table: trust = \"corp\" for [trust.corp]; or set \
                   trust = \"system\"";
        table.missing("trust", fix);
    }
    let named = trust.map(|value| names.trust(&value));
    let server_name = match (given, &setting.server) {
        (Some(given), _) => Some(given?),
        (None, Some(ServerNameDefault::Host(host))) => Some(host.clone()),
        (None, Some(ServerNameDefault::Nothing)) if kind == Some(Kind::Full) => {
            let fix = "set the name that the certificate must have: server-name = \
                       \"db.example.com\"";
            table.missing("server-name", fix);
            return None;
        }
        (None, _) => None,
    };
    match (kind?, named) {
        (Kind::Full, trust) => Some(Verify::Full { trust: trust??, server_name }),
        (Kind::Chain, trust) => Some(Verify::Chain { trust: trust??, server_name }),
        (Kind::None, None) => Some(Verify::None { server_name }),
        (Kind::None, Some(_)) => None,
    }
}

fn verify_kind(
    value: &TomlValue<'_>,
    trust: Option<&TomlValue<'_>>,
    names: &Names<'_>,
) -> Option<Kind> {
    let kinds = [("full", Kind::Full), ("chain", Kind::Chain), ("none", Kind::None)];
    let kind = value.choice(&kinds)?;
    let position = value.report.position(value.at.start);
    match kind {
        Kind::Full => {}
        // A pinned certificate identifies the server better than a name.
        Kind::Chain if trust.is_some_and(|trust| names.is_pinned(trust)) => {}
        Kind::Chain => {
            let message = "the server's name is not checked: any server with a certificate from \
                           a CA in this [trust] table is accepted";
            let fix = "set verify = \"full\"; if the certificate does not contain the name to \
                       which the program connects, also set `server-name`";
            value.report.warning(MessageId("name-not-checked"), position, message, fix);
        }
        Kind::None => {
            let message = "the server's certificate is not checked: any server is accepted";
            let fix = "set `trust` to a table that contains the server's CA (`ca`) or the server's \
                       own certificate (`pinned`)";
            value.report.warning(MessageId("server-not-checked"), position, message, fix);
        }
    }
    Some(kind)
}

fn common(table: &TomlTable<'_>, names: &Names<'_>) -> Option<TlsCommon> {
    let start = starttls::read(table);
    let version = table.value("min-version");
    let min_version = version.map_or(Some(TlsVersion::V1_2), |value| ciphers::version(&value));
    let suites = suites(table, min_version);
    let groups = groups(table, suites.as_deref());
    let spoken = start.as_ref().and_then(Start::starttls).map(|starttls| &starttls.protocol);
    let alpn = match table.value("alpn") {
        Some(value) => value.each_once(protocol),
        None => {
            Some(spoken.and_then(StarttlsProtocol::alpn).map(str::to_owned).into_iter().collect())
        }
    };
    let resumption = table.boolean("resumption", true);
    let default = match spoken {
        Some(StarttlsProtocol::Smtp | StarttlsProtocol::Ftp(_)) => DIALOGUE_TIMEOUT_DEFAULT,
        _ => HANDSHAKE_TIMEOUT_DEFAULT,
    };
    let handshake_timeout = table.value("handshake-timeout").map_or(Some(default), |value| {
        value::duration(&value, HANDSHAKE_TIMEOUT_MIN, HANDSHAKE_TIMEOUT_MAX)
    });
    let rekey = match table.value("rekey") {
        Some(value) => rekey(&value),
        None => Some(Rekey::default()),
    };
    if let (Some(TlsVersion::V1_2), Some(rekey)) = (min_version, table.value("rekey")) {
        let message = "`rekey` needs TLS 1.3, but this rule also accepts TLS 1.2";
        let fix = "add min-version = \"1.3\" or remove `rekey`";
        table.report.error(MessageId("conflicting-keys"), &rekey.name_at, message, fix);
    }
    let relay = table.value("relay").map_or(Some(RelayOn::Worker), |value| relay(&value, names));
    let words = [("log", RecheckAction::Log), ("close", RecheckAction::Close)];
    let recheck =
        table.value("recheck").map_or(Some(RecheckAction::Log), |value| value.choice(&words));
    let max_age = table
        .value("max-age")
        .map_or(Some(None), |value| value::duration(&value, MAX_AGE_MIN, MAX_AGE_MAX).map(Some));
    Some(TlsCommon {
        start: start?,
        min_version: min_version?,
        suites: suites?,
        groups: groups?,
        alpn: alpn?,
        resumption: resumption?,
        handshake_timeout: handshake_timeout?,
        rekey: rekey?,
        relay: relay?,
        recheck: recheck?,
        max_age: max_age?,
    })
}

/// Removes suites that the minimum version excludes; `None`: the version has an error, so all are
/// kept.
fn suites(table: &TomlTable<'_>, min_version: Option<TlsVersion>) -> Option<Vec<Suite>> {
    let usable = |suite: &Suite| min_version.is_none_or(|oldest| suite.version() >= oldest);
    let Some(value) = table.value("suites") else {
        return Some(Suite::DEFAULT.into_iter().filter(usable).collect());
    };
    let suites = value.each_once(ciphers::suite)?;
    let (used, unused): (Vec<_>, Vec<_>) = suites.into_iter().partition(usable);
    if used.is_empty() {
        let fix = "add `TLS_AES_128_GCM_SHA256`, or set min-version = \"1.2\"";
        let problem = "`suites` has no suite of TLS 1.3, the only version that this rule accepts";
        value.error(problem, fix);
        return None;
    }
    for suite in unused {
        let message = format!(
            "`{}` is never used: this suite belongs to TLS 1.2, but the rule accepts only TLS 1.3",
            suite.name()
        );
        let position = table.report.position(value.at.start);
        table.report.warning(
            MessageId("no-effect"),
            position,
            message,
            "remove the suite, or set min-version = \"1.2\"",
        );
    }
    Some(used)
}

fn groups(table: &TomlTable<'_>, suites: Option<&[Suite]>) -> Option<Vec<Group>> {
    let Some(value) = table.value("groups") else { return Some(Group::DEFAULT.to_vec()) };
    let groups = value.each_once(ciphers::group)?;
    let only_old = suites?.iter().all(|suite| suite.version() == TlsVersion::V1_2);
    if only_old && groups == [Group::X25519MLKEM768] {
        let fix = "add `x25519` to `groups`, or add a suite of TLS 1.3 to `suites`";
        value.error(
            "the group `X25519MLKEM768` needs TLS 1.3, but `suites` has only suites of TLS 1.2",
            fix,
        );
        return None;
    }
    Some(groups)
}

/// Parses `relay`: which threads relay the bytes.
fn relay(value: &TomlValue<'_>, names: &Names<'_>) -> Option<RelayOn> {
    let relay = value.choice(&[("worker", RelayOn::Worker), ("engine", RelayOn::Engine)])?;
    if relay == RelayOn::Engine && !names.has_engine {
        let fix = "remove `relay`, or add [engine] with cpus = \"2-3\" to reserve CPUs for engines";
        value.error("`relay` cannot be `engine`: the policy has no engines", fix);
        return None;
    }
    Some(relay)
}

fn protocol(value: &TomlValue<'_>) -> Option<String> {
    let text = value.string()?;
    if text.len() > ALPN_BYTES_MAX {
        let message = format!(
            "the protocol name has {} bytes; the limit of ALPN is {ALPN_BYTES_MAX}",
            text.len()
        );
        value.error(message, format!("write a name of at most {ALPN_BYTES_MAX} bytes"));
        return None;
    }
    Some(text.to_owned())
}

fn rekey(value: &TomlValue<'_>) -> Option<Rekey> {
    let table = value.table(Scope::Rekey, "`rekey`")?;
    let bytes =
        table.value("bytes").map(|value| value::size(&value, REKEY_BYTES_MIN, REKEY_BYTES_MAX));
    let after =
        table.value("after").map(|value| value::duration(&value, REKEY_AFTER_MIN, REKEY_AFTER_MAX));
    if bytes.is_none() && after.is_none() {
        let fix = "set `bytes`, `after` or both: rekey = { bytes = \"1GiB\", after = \"1h\" }";
        table.incomplete("`rekey` is empty", fix);
        return None;
    }
    Some(Rekey {
        bytes: bytes.map_or(Some(None), |read| read.map(NonZeroU64::new))?,
        after: after.map_or(Some(None), |read| read.map(Some))?,
    })
}
