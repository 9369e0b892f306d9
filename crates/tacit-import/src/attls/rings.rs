//! Finds the key ring of an AT-TLS rule in the map file.
//!
//! If a rule names a key ring without a user ID, z/OS uses the key ring of the socket's owner. The
//! map file defines a key ring for one user ID (`[keyring."USER/RING"]`) or for all users
//! (`[keyring.RING]`).

use super::context::Context;
use super::effective::Effective;
use super::map::ring_name;
use super::objects::Field;

impl Context<'_> {
    /// The name of the key ring of a rule, as the map has it or must have it; `None` after an
    /// error.
    pub(super) fn ring(&mut self, rule: &Effective<'_>) -> Option<String> {
        let Some(ring) = rule.field("Keyring") else {
            let message = "the environment action of the rule has no key ring";
            let fix = "add TTLSKeyringParms with Keyring to the environment action";
            self.findings.error(rule.environment_at(), message, fix);
            return None;
        };
        let name = ring_name(&ring.value);
        if let Some(owned) = self.owned_ring(rule, &name) {
            return Some(owned);
        }
        if self.map.keyring(&name).is_some() {
            return Some(name);
        }
        if name.starts_with("*TOKEN*/") {
            let fix = "export the certificate and the private key to files; then, in a \
                       [keyring.NAME] table of the map file, set the paths of these files";
            let message =
                format!("`{name}` is a PKCS #11 token, but tacit reads keys from files only");
            self.findings.error(&ring.at, message, fix);
            return None;
        }
        if name.starts_with('/') {
            let table = format!("[keyring.{}]", crate::draft::quote(&name));
            let fix = format!(
                "export the key database as PKCS #12 with gskkyman, and convert the file:\nopenssl \
                 pkcs12 -in FILE.p12 -clcerts -nokeys -out web.pem\nopenssl pkcs12 -in FILE.p12 \
                 -nocerts -nodes -out web.key\nopenssl pkcs12 -in FILE.p12 -cacerts -nokeys -out \
                 ca.pem\nthen add to the map file:\n{table}\ncert = \"web.pem\"\nkey = \
                 \"web.key\"\nca = \"ca.pem\""
            );
            let message = format!("`{name}` is a key database, which only System SSL can read");
            self.findings.error(&ring.at, message, fix);
            return None;
        }
        Some(name)
    }

    /// The key ring of a rule's user ID, if the rule names a ring without a user ID. It is used if
    /// the map has it, or if rules with several user IDs use the ring and the map has no ring for
    /// all users. `None`: the ring as the rule names it; if several users share it, that is
    /// reported.
    fn owned_ring(&mut self, rule: &Effective<'_>, name: &str) -> Option<String> {
        let user = rule.rule.field("Userid").filter(|_| !name.contains('/'))?;
        let full_name = ring_name(&format!("{}/{name}", user.value));
        if self.map.keyring(&full_name).is_some() {
            return Some(full_name);
        }
        if !self.ring_users.are_several(name, &user.value) {
            return None;
        }
        if self.map.keyring(name).is_some() {
            self.report_shared(user, name, &full_name);
            return None;
        }
        let message = format!(
            "the import reads `Keyring {name}` as `{full_name}`, because the key ring belongs to \
             the user ID of the rule"
        );
        self.findings.info(&user.at, message);
        Some(full_name)
    }

    fn report_shared(&mut self, user: &Field, name: &str, whole: &str) {
        let message = format!(
            "on z/OS each user ID has its own key ring `{name}`. In this import, [keyring.{ring}] \
             of the map file also applies to the user ID `{user}`",
            ring = crate::draft::word(name),
            user = user.value
        );
        let fix = format!(
            "if the files of the two key rings differ, add to the map file:\n[keyring.{}]",
            crate::draft::quote(whole)
        );
        self.findings.changed(&user.at, message, fix);
    }
}
