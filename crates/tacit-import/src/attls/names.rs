//! Creates the tables `[identity.NAME]` and `[trust.NAME]` of the imported policy. If a rule uses a
//! certificate of a key ring, this certificate becomes an `[identity.NAME]` table. All CA
//! certificates of the key ring together become one `[trust.NAME]` table.

use std::collections::BTreeMap;

use super::map::Pair;
use crate::draft::{Item, Toml, name_of, word};
use crate::finding::Origin;
use tacit_core::policy::SYSTEM_TRUST;

/// A key ring, or a certificate in it by its label.
#[derive(Clone, Copy)]
pub(super) struct RingHolder<'a> {
    pub(super) ring: &'a str,
    pub(super) label: Option<&'a str>,
}

/// The same with owned strings.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct OwnedHolder {
    ring: String,
    label: Option<String>,
}

/// The identities and trusts that rules needed so far.
#[derive(Debug, Default)]
pub(super) struct Names {
    identities: BTreeMap<OwnedHolder, String>,
    trusts: BTreeMap<String, String>,
    /// Every name that is in use, so that two rings do not share one.
    taken: Vec<String>,
    pub(super) tables: Vec<Item>,
}

impl Names {
    /// The name of the identity for a label of a ring, or for its default certificate.
    pub(super) fn identity(&mut self, holder: RingHolder<'_>, pair: &Pair, at: &Origin) -> String {
        let RingHolder { ring, label } = holder;
        let of = OwnedHolder { ring: ring.to_owned(), label: label.map(str::to_owned) };
        if let Some(name) = self.identities.get(&of) {
            return name.clone();
        }
        let text = label.map_or_else(|| ring.to_owned(), |label| format!("{ring}-{label}"));
        let name = self.free(&text, "identity");
        let mut item = Item::new(format!("[identity.{}]", word(&name)), at);
        item.comments.push(match label {
            Some(label) => format!("key ring {ring}, label {label}"),
            None => format!("key ring {ring}"),
        });
        item.set("cert", pair.cert.as_str());
        item.set("key", pair.key.as_str());
        self.tables.push(item);
        self.identities.insert(of, name.clone());
        name
    }

    /// The name of the trust for the CAs of a ring.
    pub(super) fn trust(
        &mut self,
        ring: &str,
        ca: &Toml,
        crl: Option<&Toml>,
        at: &Origin,
    ) -> String {
        if *ca == Toml::from(SYSTEM_TRUST) && crl.is_none() {
            return SYSTEM_TRUST.to_owned();
        }
        if let Some(name) = self.trusts.get(ring) {
            return name.clone();
        }
        let name = self.free(ring, "trust");
        let mut item = Item::new(format!("[trust.{}]", word(&name)), at);
        item.comments.push(format!("key ring {ring}"));
        item.set("ca", ca.clone());
        if let Some(crl) = crl {
            item.set("crl", crl.clone());
        }
        self.tables.push(item);
        self.trusts.insert(ring.to_owned(), name.clone());
        name
    }

    /// A name made from the text that no other table of this kind has.
    fn free(&mut self, text: &str, kind: &str) -> String {
        let stem: String =
            name_of(&text.to_ascii_lowercase()).chars().take(STEM_CHARS_MAX).collect();
        // An identity and a trust may have the same name.
        let taken =
            |taken: &[String], name: &str| taken.iter().any(|one| one == &format!("{kind}.{name}"));
        let numbered = (2..).map(|number| format!("{stem}-{number}"));
        let mut free = std::iter::once(stem.clone()).chain(numbered);
        let reserved = |name: &str| kind == "trust" && name == SYSTEM_TRUST;
        let name = free.find(|name| !taken(&self.taken, name) && !reserved(name)).unwrap_or(stem);
        self.taken.push(format!("{kind}.{name}"));
        name
    }
}

/// Length of a name, less some characters for a number.
const STEM_CHARS_MAX: usize = 56;
