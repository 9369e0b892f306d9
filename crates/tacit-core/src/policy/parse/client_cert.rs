//! Parses the key `client-cert` of a server rule, and the keys `trust` and `map` that belong to
//! `client-cert`.

use super::names::Names;
use super::words::Scope;
use crate::message_id::MessageId;
use crate::policy::client_cert::{
    Absent, ChainCheck, ClientCert, ClientCertPolicy, Invalid, PeerName, Preset,
};
use crate::policy::starttls::{Start, Starttls, StarttlsMode};
use crate::policy::text::{TomlTable, TomlValue, word_list};

/// The settings of `client-cert`, without the keys `trust` and `map`.
struct Settings {
    preset: Option<Preset>,
    absent: Absent,
    /// `None` stands for `invalid = "allow"`.
    invalid: Option<Invalid>,
    source: Source,
}

/// Where the name of a client comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    Nowhere,
    Certificate,
    Map,
}

/// Reads the key `client-cert` of a server rule. Returns `None` after an error.
pub(super) fn read(table: &TomlTable<'_>, names: &Names<'_>) -> Option<ClientCert> {
    let fix = "set client-cert = \"none\", \"preferred\", \"required\" or another level; there is \
               no default";
    let value = table.required("client-cert", fix)?;
    if value.value.is_table() {
        return requested(table, names, custom(&value)?);
    }
    if let Some(boolean) = value.value.as_bool() {
        let word = if boolean { Preset::Required.word() } else { "none" };
        let levels = word_list(Scope::ClientCert.words());
        let fix = format!("write client-cert = \"{word}\"; the levels are {levels}");
        value.error_of(MessageId("wrong-type"), "`client-cert` cannot be true or false", fix);
        return None;
    }
    let word = value.string()?;
    if word == "none" {
        let why = "this rule requests no client certificate";
        let fix = "remove the misplaced key, or set client-cert = \"required\"";
        table.refuse(&["trust", "map"], why, fix);
        let given = table.value("trust").or_else(|| table.value("map"));
        return given.is_none().then_some(ClientCert::None);
    }
    let Some(preset) = Preset::ALL.into_iter().find(|preset| preset.word() == word) else {
        value.unknown_word(word, Scope::ClientCert.words());
        return None;
    };
    requested(table, names, preset_settings(preset))
}

/// Reports a rule that requires a client certificate, but also accepts clients without TLS.
pub(super) fn refuse_in_clear(
    table: &TomlTable<'_>,
    level: &ClientCert,
    start: &Start,
) -> Option<()> {
    let denies = level.requested().is_some_and(|policy| policy.absent == Absent::Deny);
    let optional = |starttls: &Starttls| starttls.mode == StarttlsMode::Optional;
    if !denies || !start.starttls().is_some_and(optional) {
        return Some(());
    }
    let value = table.value("client-cert")?;
    let fix = "remove `mode` from `starttls`, or set `client-cert` to a level that accepts clients \
               without a certificate";
    value.error(
        "with mode = \"optional\", a client may continue without TLS, and then sends no \
         certificate",
        fix,
    );
    None
}

fn preset_settings(preset: Preset) -> Settings {
    let invalid = match preset {
        Preset::Preferred => Some(Invalid::Log),
        Preset::Required | Preset::AtFull | Preset::Full | Preset::SafCheck => Some(Invalid::Deny),
        Preset::PassThru => None,
    };
    let source = match preset {
        Preset::Preferred | Preset::Required | Preset::AtFull => Source::Certificate,
        Preset::Full | Preset::SafCheck => Source::Map,
        Preset::PassThru => Source::Nowhere,
    };
    Settings { preset: Some(preset), absent: preset.absent(), invalid, source }
}

/// Reads a `client-cert` with separate settings: `{ absent = …, invalid = …, identity = … }`.
fn custom(value: &TomlValue<'_>) -> Option<Settings> {
    let table = value.table(Scope::ClientCertTable, "`client-cert`")?;
    let fix = "set what happens to a client without a certificate: absent = \"allow\" or \"deny\"";
    let absent = table
        .required("absent", fix)
        .and_then(|value| value.choice(&[("allow", Absent::Allow), ("deny", Absent::Deny)]));
    let fix = "set what happens to an invalid certificate: invalid = \"deny\" or \"log\"; with \
               invalid = \"allow\" tacit does not check certificates";
    let choices = [("allow", None), ("log", Some(Invalid::Log)), ("deny", Some(Invalid::Deny))];
    let invalid = table.required("invalid", fix).and_then(|value| value.choice(&choices));
    let choices = [("none", Source::Nowhere), ("name", Source::Certificate), ("map", Source::Map)];
    let identity = table.value("identity");
    let source = match &identity {
        Some(value) => value.choice(&choices),
        None if invalid == Some(None) => Some(Source::Nowhere),
        None => Some(Source::Certificate),
    };
    if let (Some(None), Some(Source::Certificate | Source::Map), Some(identity)) =
        (invalid, source, identity)
    {
        let fix = "set identity = \"none\", or set invalid = \"log\" or invalid = \"deny\"";
        identity.error(
            "tacit cannot identify a client by a certificate that tacit does not check",
            fix,
        );
        return None;
    }
    Some(Settings { preset: None, absent: absent?, invalid: invalid?, source: source? })
}

fn requested(table: &TomlTable<'_>, names: &Names<'_>, settings: Settings) -> Option<ClientCert> {
    let Settings { preset, absent, invalid, source } = settings;
    let Some(invalid) = invalid else {
        let why = "this `client-cert` level does not check certificates";
        table.refuse(
            &["trust", "map"],
            why,
            "remove the misplaced key, or choose a `client-cert` level that checks certificates",
        );
        let given = table.value("trust").or_else(|| table.value("map"));
        let requested = ClientCertPolicy { preset, absent, chain: ChainCheck::Waived };
        return given.is_none().then_some(ClientCert::Requested(requested));
    };
    let trust = table.value("trust");
    if trust.is_none() {
        table.missing(
            "trust",
            "set the [trust.NAME] that verifies client certificates: trust = \"corp\"",
        );
    }
    let named = trust.and_then(|value| names.trust(&value));
    let map = table.value("map");
    let name = match (source, map) {
        (Source::Map, None) => {
            let fix =
                "set `map` to the name of an identity map: map = \"people\" for [[map.people]]";
            table.missing("map", fix);
            None
        }
        (Source::Map, Some(map)) => names.map(&map).map(PeerName::Map),
        (Source::Nowhere | Source::Certificate, Some(_)) => {
            let fix = "remove `map`, or set client-cert = \"full\", which rejects clients that \
                       match no entry of the map";
            table.refuse(&["map"], "this `client-cert` level uses no identity map", fix);
            None
        }
        (Source::Nowhere, None) => Some(PeerName::None),
        (Source::Certificate, None) => Some(PeerName::Certificate),
    };
    let chain = ChainCheck::Made { trust: named?, invalid, name: name? };
    Some(ClientCert::Requested(ClientCertPolicy { preset, absent, chain }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{Action, Policy, Revocation, Tls, Verify, parse};

    const TABLES: &str = "version = 1\n[identity.web]\ncert = \"a\"\nkey = \"b\"\n\
        [trust.corp]\nca = \"c\"\n[[map.people]]\nsubject = \"CN=a\"\nname = \"a\"\n";

    fn sound(text: &str) -> Policy {
        let parsed = parse(text);
        parsed.policy.unwrap_or_else(|| panic!("{:?}", parsed.diagnostics))
    }

    fn level(more: &str) -> ClientCert {
        let policy = sound(&format!(
            "{TABLES}[[rule]]\nname = \"r\"\nlisten = \"[::1]:1\"\nconnect = \"unix:/a\"\n\
             tls = {{ role = \"server\", identity = \"web\", {more} }}"
        ));
        let Action::Tls(Tls::Server(tls)) = &policy.rules[0].action else { panic!() };
        tls.client_cert.clone()
    }

    fn made(absent: Absent, invalid: Invalid, name: PeerName) -> (Absent, ChainCheck) {
        (absent, ChainCheck::Made { trust: "corp".into(), invalid, name })
    }

    #[test]
    fn presets_are_names_for_settings() {
        let map = || PeerName::Map("people".into());
        let corp = "trust = \"corp\"";
        let mapped = format!("{corp}, map = \"people\"");
        for (word, more, wanted) in [
            ("preferred", corp, made(Absent::Allow, Invalid::Log, PeerName::Certificate)),
            ("required", corp, made(Absent::Deny, Invalid::Deny, PeerName::Certificate)),
            ("full", &mapped, made(Absent::Deny, Invalid::Deny, map())),
            ("passthru", "", (Absent::Allow, ChainCheck::Waived)),
            ("at-full", corp, made(Absent::Allow, Invalid::Deny, PeerName::Certificate)),
            ("safcheck", &mapped, made(Absent::Deny, Invalid::Deny, map())),
        ] {
            let level = level(&format!("client-cert = \"{word}\", {more}"));
            assert_eq!(level.to_string(), word);
            let ClientCert::Requested(requested) = level else { panic!() };
            assert_eq!((requested.absent, requested.chain), wanted, "{word}");
        }
        assert_eq!(level("client-cert = \"none\""), ClientCert::None);
    }

    #[test]
    fn settings_are_shown_as_they_are_written() {
        let shown = |settings: &str, more: &str| {
            level(&format!("client-cert = {{ {settings} }}{more}")).to_string()
        };
        let corp = ", trust = \"corp\"";
        assert_eq!(
            shown("absent = \"deny\", invalid = \"log\"", corp),
            "absent=deny,invalid=log,identity=name"
        );
        assert_eq!(
            shown("absent = \"deny\", invalid = \"deny\", identity = \"none\"", corp),
            "absent=deny,invalid=deny,identity=none"
        );
        assert_eq!(
            shown("absent = \"deny\", invalid = \"allow\"", ""),
            "absent=deny,invalid=allow,identity=none"
        );
        let mapped = format!("{corp}, map = \"people\"");
        assert_eq!(
            shown("absent = \"allow\", invalid = \"deny\", identity = \"map\"", &mapped),
            "absent=allow,invalid=deny,identity=map"
        );
    }

    #[test]
    fn crls_make_revocation_hard_by_default() {
        let revocation = |more: &str| {
            let text = format!("version = 1\n[trust.corp]\nca = \"a\"\n{more}");
            let trust = sound(&text).trusts["corp"].clone();
            (trust.crls.len(), trust.revocation)
        };
        assert_eq!(revocation(""), (0, Revocation::Off));
        assert_eq!(revocation("crl = [\"a\", \"b\"]"), (2, Revocation::Hard));
        assert_eq!(revocation("crl = \"a\"\nrevocation = \"soft\""), (1, Revocation::Soft));
        assert_eq!(revocation("crl = \"a\"\nrevocation = \"off\""), (1, Revocation::Off));
    }

    #[test]
    fn a_chain_without_a_name_is_warned_about() {
        let parsed = parse(
            "version = 1\n[trust.corp]\nca = \"c\"\n[[rule]]\nname = \"r\"\n\
             direction = \"outbound\"\ntls = { trust = \"corp\", verify = \"chain\" }",
        );
        let warning = &parsed.diagnostics[0];
        assert!(
            warning
                .message
                .contains("any server with a certificate from a CA in this [trust] table"),
            "{warning:?}"
        );
        let Action::Tls(Tls::Client(tls)) = &parsed.policy.unwrap().rules[0].action else {
            panic!()
        };
        assert_eq!(tls.verify, Verify::Chain { trust: "corp".into(), server_name: None });
    }
}
