//! Converts the TLS settings of an AT-TLS rule to the `tls` table of a tacit rule.

use super::context::Context;
use super::effective::Effective;
use super::names::RingHolder;
use super::needs::{MissingKey, VIRTUAL_CA_RING};
use super::objects::Field;
use super::start;
use super::suites::{self, Side};
use crate::draft::{Keys, Toml, set};
use crate::finding::Origin;
use tacit_core::flow::Direction;
use tacit_core::policy::TlsVersion;

/// A key ring, and the line that names it or one of its labels.
#[derive(Clone, Copy)]
struct Ring<'a> {
    name: &'a str,
    at: &'a Origin,
}

/// What the policy does with the connections of a rule in one direction.
pub(super) enum Treatment {
    Permit,
    Deny,
    /// TLS, with the keys of its table.
    Tls(Keys),
}

impl Context<'_> {
    /// Converts the TLS settings of a rule for one direction; `None` after an error or a missing
    /// map entry was reported.
    pub(super) fn tls(&mut self, rule: &Effective<'_>, direction: Direction) -> Option<Treatment> {
        let Some(role) = rule.field("HandshakeRole") else {
            let message = "the actions of the rule have no `HandshakeRole`";
            let fix = "add HandshakeRole Client, Server or ServerWithClientAuth to the environment \
                       action";
            self.findings.error(rule.environment_at(), message, fix);
            return None;
        };
        let side = if role.value == "Client" { Side::Client } else { Side::Server };
        let mut keys = Keys::new();
        match (side, direction) {
            (Side::Server, Direction::Outbound) => {
                let why = "the program opens the TCP connection, but the peer is the TLS client";
                self.findings
                    .info(&role.at, format!("the imported rule sets `role`, because {why}"));
                set(&mut keys, "role", "server");
            }
            (Side::Client, Direction::Inbound) => {
                let why = "the peer opens the TCP connection, but is the TLS server";
                self.findings
                    .info(&role.at, format!("the imported rule sets `role`, because {why}"));
                set(&mut keys, "role", "client");
            }
            _ => {}
        }
        let start = start::start(self, rule, port_side(rule, side, direction));
        let turns_round = keys.iter().any(|(key, _)| key == "role");
        if turns_round && start.iter().any(|(key, _)| key == "starttls") {
            return self.turned_round(rule, side);
        }
        keys.extend(start);
        let name = self.ring(rule);
        if let (Some(name), Some(field)) = (&name, rule.field("Keyring")) {
            let ring = Ring { name, at: &field.at };
            match side {
                Side::Server => self.server(rule, ring, &mut keys),
                Side::Client => self.client(rule, ring, &mut keys),
            }
        }
        self.common(rule, side, &mut keys);
        name.map(|_| Treatment::Tls(keys))
    }

    /// Reports a STARTTLS rule in which the side that opens the connection is the TLS server: in
    /// these protocols the TLS client opens the connection. For a rule of both directions, accepted
    /// connections keep TLS and opened ones are denied. `None` after an error.
    fn turned_round(&mut self, rule: &Effective<'_>, side: Side) -> Option<Treatment> {
        let direction = rule.rule.field("Direction")?;
        if side == Side::Server && direction.value == "Both" {
            let message = "`Direction Both` includes connections that programs open, but the \
                           AT-TLS rule has the role of the TLS server. In a STARTTLS protocol, the \
                           program that opens a connection is always the TLS client. The imported \
                           policy uses `starttls` for accepted connections, and denies \
                           connections that programs open";
            let fix = "set `Direction Inbound`; if programs open connections with TLS, write \
                       another rule with `Direction Outbound` and `HandshakeRole Client`";
            self.findings.changed(&direction.at, message, fix);
            return Some(Treatment::Deny);
        }
        let (role, fix) = match side {
            Side::Server => ("server", "set `Direction Inbound`"),
            Side::Client => ("client", "set `Direction Outbound`"),
        };
        let message = format!(
            "`Direction {direction}` contradicts the TLS role {role}: in a STARTTLS protocol, the \
             TLS client opens the connection",
            direction = direction.value
        );
        let fix = format!("{fix}, and write another rule for the other direction");
        self.findings.error(&direction.at, message, fix);
        None
    }

    fn server(&mut self, rule: &Effective<'_>, ring: Ring<'_>, keys: &mut Keys) {
        let listed = rule.all("ServerHandshakeSNIList");
        for field in &listed {
            let name = field.value.split('/').next().unwrap_or_default().trim();
            let message = format!(
                "tacit selects a certificate by the host names in the certificate; on z/OS, \
                 ServerHandshakeSNIList selected the certificate for the host name `{name}`"
            );
            self.findings.changed(
                &field.at,
                message,
                "check that the certificate contains every name that clients request",
            );
        }
        let mut own = rule.all("ServerCertificateLabel");
        if own.is_empty() {
            own.extend(rule.field("CertificateLabel"));
        }
        // A client that names none of the others gets the first identity.
        let mut identities: Vec<Option<String>> = Vec::new();
        for field in own {
            let at_label = Ring { at: &field.at, ..ring };
            identities.push(self.identity(at_label, Some(&field.value)));
        }
        for field in listed {
            if let Some((_, label)) = field.value.split_once('/') {
                let at_label = Ring { at: &field.at, ..ring };
                identities.push(self.identity(at_label, Some(label.trim())));
            }
        }
        if identities.is_empty() {
            identities.push(self.identity(ring, None));
        }
        let mut names: Vec<String> = Vec::new();
        for name in identities.into_iter().flatten() {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        set(keys, "identity", names);
        self.client_cert(rule, ring, keys);
    }

    /// The keys about client certificates.
    fn client_cert(&mut self, rule: &Effective<'_>, ring: Ring<'_>, keys: &mut Keys) {
        if rule.field("HandshakeRole").is_some_and(|role| role.value == "Server") {
            set(keys, "client-cert", "none");
            return;
        }
        let level = rule.value("ClientAuthType").unwrap_or("Required");
        let at = rule.at_of("ClientAuthType");
        let word = match level {
            "PassThru" => "passthru",
            "Full" => "at-full",
            "SAFCheck" => "safcheck",
            _ => "required",
        };
        if level == "PassThru" {
            let fix = "to reject invalid certificates, set ClientAuthType Full";
            self.findings.changed(
                at,
                "tacit requests client certificates, but does not check the certificates",
                fix,
            );
        } else if let Some(trust) = self.trust(ring) {
            set(keys, "trust", trust);
        }
        set(keys, "client-cert", word);
        if level == "SAFCheck" {
            match self.map.rule(&rule.rule.name, "map") {
                Some(map) => set(keys, "map", map.clone()),
                None => {
                    let why = "ClientAuthType SAFCheck needs an identity map, which assigns a name \
                               to each client certificate";
                    let line = "map = \"people\"\n\
                                [[map.people]]\nsubject = \"CN=alice\"\nname = \"alice\"";
                    let key = MissingKey { rule: &rule.rule.name, key: "map" };
                    self.needs.rule(key, at, why, line);
                }
            }
        }
    }

    fn client(&mut self, rule: &Effective<'_>, ring: Ring<'_>, keys: &mut Keys) {
        if let Some(identity) = self.presented(rule, ring) {
            set(keys, "identity", identity);
        }
        if let Some(trust) = self.trust(ring) {
            set(keys, "trust", trust);
        }
        self.server_name(rule, keys);
        if rule.field("ClientHandshakeSNI").is_some_and(|sni| sni.value == "Off") {
            set(keys, "sni", false);
        }
    }

    /// The certificate that is sent to a server that requests one; never the default of the ring.
    fn presented(&mut self, rule: &Effective<'_>, ring: Ring<'_>) -> Option<String> {
        let from_map = match self.map.rule(&rule.rule.name, "certificate") {
            Some(Toml::Text(label)) => Some(label.as_str()),
            _ => None,
        };
        match (from_map, rule.field("CertificateLabel")) {
            (Some("default"), _) => self.identity(ring, None),
            (Some(label), _) => self.identity(ring, Some(label)),
            (None, Some(label)) => {
                self.findings.info(
                    &label.at,
                    "tacit sends this certificate to servers that request a certificate",
                );
                self.identity(Ring { at: &label.at, ..ring }, Some(&label.value))
            }
            // This virtual key ring contains CA certificates only.
            (None, None) if ring.name.starts_with(VIRTUAL_CA_RING) => {
                let message = "the rule has no CertificateLabel, so tacit sends no certificate to \
                               servers, as on z/OS. To send a certificate, set `certificate` in \
                               the map file";
                self.findings.info(ring.at, message);
                None
            }
            (None, None) => {
                let message = "the rule has no CertificateLabel, so tacit sends no certificate to \
                               servers. On z/OS, a client sends the default certificate of the \
                               key ring to servers that request a certificate";
                let fix = format!(
                    "if a server requires this certificate, write in the map file:\n[rule.{}]\n\
                     certificate = \"default\"",
                    rule.rule.name
                );
                self.findings.changed(ring.at, message, fix);
                None
            }
        }
    }

    /// The name that the server's certificate must contain, which is also sent to the server.
    fn server_name(&mut self, rule: &Effective<'_>, keys: &mut Keys) {
        let sni = rule.field("ClientHandshakeSNIList");
        if let Some(name) = self.map.rule(&rule.rule.name, "server-name") {
            set(keys, "server-name", name.clone());
            return;
        }
        let Some(name) = self.reference_name(rule, sni) else {
            return self.without_name(rule, keys);
        };
        set(keys, "server-name", name.value.to_ascii_lowercase());
        if let Some(sni) = sni.filter(|sni| !sni.value.eq_ignore_ascii_case(&name.value)) {
            let message = format!(
                "tacit does not send the server name `{name}`: it sends the name that the server's \
                 certificate must contain",
                name = sni.value
            );
            self.findings.changed(
                &sni.at,
                message,
                "if the server's certificate contains the name that z/OS sent, set `server-name` \
                 in the map file to this name",
            );
        }
        if !rule.is_on("HostRefWildcardValidation") {
            let fix = "make sure that the CA issues no wildcard certificates";
            self.findings.changed(
                &name.at,
                "tacit also accepts a wildcard certificate that matches the name",
                fix,
            );
        }
    }

    /// The name that the rule requires in the certificate, or else the name that it sends.
    fn reference_name<'o>(
        &mut self,
        rule: &Effective<'o>,
        sni: Option<&'o Field>,
    ) -> Option<&'o Field> {
        if let Some(dns) = rule.field("HostReferenceIdDNS") {
            return Some(dns);
        }
        if let Some(cn) = rule.field("HostReferenceIdCN") {
            let message = "tacit looks for the server's name only in the subjectAltName of the \
                           certificate, not in its common name";
            self.findings.changed(
                &cn.at,
                message,
                "make sure that the subjectAltName contains the name",
            );
            return Some(cn);
        }
        if self.options.keep_no_name_check {
            return None;
        }
        let sni = sni?;
        let message = "the server's certificate must now contain the server name that tacit sends; \
                       on z/OS this was not required";
        let fix = "set HostReferenceIdDNS to the name in the server's certificate. Or, to turn off \
                   the name check as on z/OS, run the import with --keep-no-name-check";
        self.findings.changed(&sni.at, message, fix);
        Some(sni)
    }

    /// Handles a rule that checks no name.
    fn without_name(&mut self, rule: &Effective<'_>, keys: &mut Keys) {
        let at = rule.environment_at();
        if !self.options.keep_no_name_check {
            let message = "the server's certificate must now contain the name or address to which \
                           the program connects; on z/OS this was not required";
            let fix = "if the certificate has another name, set `server-name` in the map file to \
                       the name in the certificate. Or, to turn off the name check as on z/OS, run \
                       the import with --keep-no-name-check";
            self.findings.changed(at, message, fix);
            return;
        }
        set(keys, "verify", "chain");
        if let Some(sni) = rule.field("ClientHandshakeSNIList") {
            set(keys, "server-name", sni.value.to_ascii_lowercase());
        }
        let fix = "to check the name, add HostReferenceIdDNS, or run the import without \
                   --keep-no-name-check";
        let message = "the server's name is not checked: any host with a certificate from the \
                       CA can impersonate the server";
        self.findings.changed(at, message, fix);
    }

    /// The keys for versions, suites, groups and times.
    fn common(&mut self, rule: &Effective<'_>, side: Side, keys: &mut Keys) {
        let oldest = self.oldest_version(rule);
        if oldest == TlsVersion::V1_3 {
            set(keys, "min-version", "1.3");
        }
        let named = suites::suites(rule, oldest, self.findings);
        let newest = suites::newest(named.as_deref());
        self.report_1_3(rule, oldest, newest);
        if let Some(suites) = named {
            let names: Vec<&str> = suites.iter().map(|suite| suite.name()).collect();
            set(keys, "suites", names);
        }
        if let Some(groups) = suites::groups(rule, side, newest, self.findings) {
            let names: Vec<&str> = groups.iter().map(|group| group.name()).collect();
            set(keys, "groups", names);
        }
        let never = |word| rule.field(word).is_some_and(|field| field.value == "0");
        if never("GSK_V3_SESSION_TIMEOUT") || never("GSK_V3_SIDCACHE_SIZE") {
            set(keys, "resumption", false);
        }
        if let Some(field) = rule.field("HandshakeTimeout") {
            match field.value.as_str() {
                "10" => {}
                "0" => {
                    let message = "tacit ends a handshake after 600 s; on z/OS this rule had no \
                                   limit";
                    self.findings.changed(
                        &field.at,
                        message,
                        "set HandshakeTimeout to another limit in seconds",
                    );
                    set(keys, "handshake-timeout", "600s");
                }
                seconds => set(keys, "handshake-timeout", format!("{seconds}s")),
            }
        }
        if let Some(minutes) = rule.field("ResetCipherTimer").filter(|field| field.value != "0") {
            if oldest == TlsVersion::V1_3 {
                let mut rekey = Keys::new();
                set(&mut rekey, "after", format!("{}m", minutes.value));
                set(keys, "rekey", Toml::Table(rekey));
            } else {
                let message = "tacit does not rekey connections at the interval \
                               ResetCipherTimer: rekeying needs TLS 1.3, but the rule also allows \
                               TLS 1.2";
                let fix = "to rekey connections, set TLSv1.2 to Off and TLSv1.3 to On";
                self.findings.changed(&minutes.at, message, fix);
            }
        }
    }

    /// The oldest version that the policy allows.
    fn oldest_version(&mut self, rule: &Effective<'_>) -> TlsVersion {
        let old = ["SSLv2", "SSLv3", "TLSv1", "TLSv1.1"];
        let on: Vec<&str> = old.into_iter().filter(|version| rule.is_on(version)).collect();
        let field = on.iter().find_map(|version| rule.field(version));
        let at = field.map_or_else(|| rule.environment_at(), |field| &field.at);
        let newest_on = rule.is_on("TLSv1.2") || rule.is_on("TLSv1.3");
        let oldest = if rule.is_on("TLSv1.3") && !rule.is_on("TLSv1.2") {
            TlsVersion::V1_3
        } else {
            TlsVersion::V1_2
        };
        if !on.is_empty() {
            let by_default = if field.is_some() { "" } else { " by default" };
            let also = if newest_on {
                ""
            } else {
                "; TLS 1.2 and 1.3 were off, and the import switches both on"
            };
            let message = format!(
                "the AT-TLS rule allows {versions}{by_default}; the imported policy allows only \
                 TLS {oldest} and later{also}",
                versions = on.join(", "),
                oldest = oldest.word()
            );
            self.findings.changed(
                at,
                message,
                "set SSLv2, SSLv3, TLSv1 and TLSv1.1 to Off, and TLSv1.2 and TLSv1.3 to On",
            );
        } else if !newest_on {
            let fix = "set TLSv1.2, TLSv1.3 or both to On";
            self.findings.error(rule.environment_at(), "every TLS version is off", fix);
        }
        oldest
    }

    fn report_1_3(&mut self, rule: &Effective<'_>, oldest: TlsVersion, newest: TlsVersion) {
        if oldest != newest && !rule.is_on("TLSv1.3") {
            let at = rule.at_of("TLSv1.3");
            let message = "the import also enables TLS 1.3, for peers that support it";
            self.findings.changed(
                at,
                message,
                "to disable TLS 1.3, set only TLS 1.2 cipher suites",
            );
        }
    }

    /// The name of the identity for a label of a ring, or for its default certificate.
    fn identity(&mut self, ring: Ring<'_>, label: Option<&str>) -> Option<String> {
        let held = self.map.keyring(ring.name);
        let pair = match label {
            Some(label) => held.and_then(|held| held.labels.get(label)),
            None => held.and_then(|held| held.pair.as_ref()),
        };
        let Some(pair) = pair else {
            match label {
                Some(label) => self.needs.label(ring.name, label, ring.at),
                None => self.needs.pair(ring.name, ring.at),
            }
            return None;
        };
        Some(self.names.identity(RingHolder { ring: ring.name, label }, pair, ring.at))
    }

    fn trust(&mut self, ring: Ring<'_>) -> Option<String> {
        let held = self.map.keyring(ring.name);
        let Some(ca) = held.and_then(|held| held.ca.as_ref()) else {
            self.needs.ca(ring.name, ring.at);
            return None;
        };
        let crl = held.and_then(|held| held.crl.as_ref());
        Some(self.names.trust(ring.name, ca, crl, ring.at))
    }
}

/// The direction whose port identifies the protocol. A server rule with `ApplicationControlled`
/// uses the port at which it accepts, even if it is for both directions.
fn port_side(rule: &Effective<'_>, side: Side, direction: Direction) -> Direction {
    let is_both = rule.rule.field("Direction").is_some_and(|field| field.value == "Both");
    let accepts = is_both && side == Side::Server && rule.is_on("ApplicationControlled");
    if accepts { Direction::Inbound } else { direction }
}
