//! Key rings: which one a rule means.
//!
//! A ring without a user ID is that of the user who owns the socket. The map may therefore have one
//! for the user ID of a rule, as `[keyring."USER/RING"]`, or one for all, as `[keyring.RING]`.

use super::context::Context;
use super::effective::Effective;
use super::map::ring_name;
use super::objects::Field;

impl Context<'_> {
    /// The name of the key ring of the environment, as the map has or should have it; `None` after
    /// an error.
    pub(super) fn ring(&mut self, rule: &Effective<'_>) -> Option<String> {
        let Some(ring) = rule.said("Keyring") else {
            let message = "the environment of the rule has no key ring";
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
            let fix = "export certificate and key to files, and name those in a ring of the map";
            let message =
                format!("`{name}` is a PKCS #11 token, and keys are read from files only");
            self.findings.error(&ring.at, message, fix);
            return None;
        }
        if name.starts_with('/') {
            let table = format!("[keyring.{}]", crate::draft::quote(&name));
            let fix = format!(
                "export what it holds as PKCS #12 with gskkyman, and convert it:\n\
                 openssl pkcs12 -in FILE.p12 -clcerts -nokeys -out web.pem\n\
                 openssl pkcs12 -in FILE.p12 -nocerts -nodes -out web.key\n\
                 openssl pkcs12 -in FILE.p12 -cacerts -nokeys -out ca.pem\n\
                 then add to the map file:\n\
                 {table}\ncert = \"web.pem\"\nkey = \"web.key\"\nca = \"ca.pem\""
            );
            let message = format!("`{name}` is a key database, which only System SSL reads");
            self.findings.error(&ring.at, message, fix);
            return None;
        }
        Some(name)
    }

    /// The ring of the user ID of a rule, where a ring without a user ID is named and the map has
    /// it, or has none for all while rules differ in their user IDs. `None`: the ring as it is
    /// named, which is reported where it was that of several users.
    fn owned_ring(&mut self, rule: &Effective<'_>, name: &str) -> Option<String> {
        let user = rule.rule.said("Userid").filter(|_| !name.contains('/'))?;
        let whole = ring_name(&format!("{}/{name}", user.value));
        if self.map.keyring(&whole).is_some() {
            return Some(whole);
        }
        if !self.ring_users.are_several(name, &user.value) {
            return None;
        }
        if self.map.keyring(name).is_some() {
            self.tell_shared(user, name, &whole);
            return None;
        }
        let message = format!("`Keyring {name}` is the ring of the user ID: `{whole}`");
        self.findings.info(&user.at, message);
        Some(whole)
    }

    fn tell_shared(&mut self, user: &Field, name: &str, whole: &str) {
        let message = format!(
            "`Keyring {name}` was a ring of each user ID, and is one for all here: the files of \
             [keyring.{}] stand for that of `{}` too",
            crate::draft::word(name),
            user.value
        );
        let fix = format!(
            "if its files are others, add to the map file:\n[keyring.{}]",
            crate::draft::quote(whole)
        );
        self.findings.changed(&user.at, message, fix);
    }
}
