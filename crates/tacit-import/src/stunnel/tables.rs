//! Collects the identities (certificates with their keys), trusts (sets of CAs) and identity maps
//! (names of accepted clients) of an imported policy. Services with the same files share one
//! identity and one trust.

use std::collections::BTreeSet;

use super::lines::Entry;
use super::service::StunnelService;
use crate::draft::{self, Draft, Item};
use crate::files::Files;
use crate::finding::{Findings, Origin};
use tacit_core::policy::SYSTEM_TRUST;

/// The paths of the distribution's CAs: directories of hashed files, and bundles.
const SYSTEM: [&str; 5] = [
    "/etc/ssl/certs",
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
];

/// The tables that the rules name.
pub(super) struct Tables<'f> {
    files: &'f dyn Files,
    identities: Vec<Identity>,
    trusts: Vec<Trust>,
    maps: Vec<Names>,
    /// Whether the meaning of relative paths was reported.
    has_reported_relative: bool,
}

/// A certificate with its key.
struct Identity {
    name: String,
    cert: String,
    key: String,
    at: Origin,
}

/// What the certificate files of a service contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Contents {
    /// The CAs of its peers.
    Cas,
    /// The certificates of its peers.
    Peers,
    /// Both.
    Both,
}

/// CAs with their CRLs, or certificates of peers.
struct Trust {
    name: String,
    contents: Contents,
    files: Vec<String>,
    crls: Vec<String>,
    at: Origin,
}

/// Names of which a client must have one.
struct Names {
    name: String,
    /// Key of an entry, and the name.
    entries: Vec<(&'static str, String)>,
    at: Origin,
}

impl<'f> Tables<'f> {
    pub(super) fn new(files: &'f dyn Files) -> Self {
        Self {
            files,
            identities: Vec::new(),
            trusts: Vec::new(),
            maps: Vec::new(),
            has_reported_relative: false,
        }
    }

    /// The name of the identity of a service; without `key`, the file of `cert` has both.
    pub(super) fn identity(&mut self, cert: &Entry, key: Option<&Entry>) -> String {
        let key = &key.unwrap_or(cert).value;
        let known = self.identities.iter().find(|one| one.cert == cert.value && one.key == *key);
        if let Some(known) = known {
            return known.name.clone();
        }
        let taken = self.identities.iter().map(|one| one.name.as_str()).collect();
        let name = unique(stem(&cert.value), &taken);
        self.identities.push(Identity {
            name: name.clone(),
            cert: cert.value.clone(),
            key: key.clone(),
            at: cert.at.clone(),
        });
        name
    }

    /// Whether a client may show a certificate; `None` if that is not known.
    pub(super) fn is_for_clients(&self, cert: &Entry) -> Option<bool> {
        self.files.is_for_clients(&cert.value)
    }

    /// The name of the trust that a service uses; `Some(None)` if the service names none.
    pub(super) fn trust(
        &mut self,
        service: &StunnelService<'_>,
        contents: Contents,
        findings: &mut Findings,
    ) -> Option<Option<String>> {
        // The last entry of each option is used; an empty value restores the default.
        let last = |name| service.last(name).filter(|entry| !entry.value.is_empty());
        let list = last("CRLfile");
        let given: Vec<&Entry> = [last("CAfile"), last("CApath")].into_iter().flatten().collect();
        if let (Some(entry), Contents::Peers) = (list, contents) {
            let message = "`CRLfile` cannot be used with `verifyPeer` alone: tacit checks \
                           revocation only if it verifies the certificate chain to a CA";
            let fix = "either set verify = 3, and add the CAs to CAfile; or remove \
                       CRLfile, and remove the revoked certificates from CAfile";
            findings.error(&entry.at, message, fix);
            return None;
        }
        if list.is_none()
            && contents == Contents::Cas
            && let [entry] = given.as_slice()
            && SYSTEM.contains(&entry.value.trim_end_matches('/'))
        {
            findings.info(
                &entry.at,
                "the path contains the CA certificates of the distribution; the policy has trust = \
                 \"system\" instead of this path",
            );
            return Some(Some(SYSTEM_TRUST.to_owned()));
        }
        let mut files = Vec::new();
        for entry in &given {
            self.report_relative(entry, findings);
            if entry.name.eq_ignore_ascii_case("CApath") {
                files.extend(self.hashed(entry, findings)?);
            } else {
                files.push(entry.value.clone());
            }
        }
        let crls: Vec<String> = list.iter().map(|entry| entry.value.clone()).collect();
        if files.is_empty() {
            if let Some(entry) = list {
                let message = "`CRLfile` is set, but neither CAfile nor CApath is set";
                findings.error(&entry.at, message, "set CAfile = FILE");
                return None;
            }
            return Some(None);
        }
        let same =
            |one: &&Trust| one.contents == contents && one.files == files && one.crls == crls;
        let known = self.trusts.iter().find(same);
        if let Some(known) = known {
            return Some(Some(known.name.clone()));
        }
        let taken = self.trusts.iter().map(|one| one.name.as_str()).chain([SYSTEM_TRUST]).collect();
        let name = unique(files.first().map_or("ca", |file| stem(file)), &taken);
        let at = given.first().map_or(&service.section.at, |entry| &entry.at);
        self.trusts.push(Trust { name: name.clone(), contents, files, crls, at: at.clone() });
        Some(Some(name))
    }

    /// The name of a map of the clients that a service admits.
    pub(super) fn map(&mut self, service: &str, checks: &[&Entry]) -> String {
        let entry = |check: &&Entry| match check.name.to_ascii_lowercase().as_str() {
            "checkip" => ("ip", check.value.clone()),
            "checkemail" => ("email", literal(&check.value)),
            _ => ("dns", literal(&check.value)),
        };
        let taken = self.maps.iter().map(|one| one.name.as_str()).collect();
        let name = unique(service, &taken);
        let entries = checks.iter().map(entry).collect();
        let first = checks.first().map(|check| check.at.clone());
        let at = first.unwrap_or_else(|| Origin { file: "".into(), line: 1 });
        self.maps.push(Names { name: name.clone(), entries, at });
        name
    }

    /// The certificates of a directory that are named by their hashes, as OpenSSL looks them up.
    fn hashed(&self, entry: &Entry, findings: &mut Findings) -> Option<Vec<String>> {
        let directory = entry.value.trim_end_matches('/');
        let mut names = match self.files.names(directory) {
            Ok(names) => names,
            Err(error) => {
                let message = format!("cannot read the directory {directory}: {error}");
                let fix = "run the import on a host that has the directory, or put the CA \
                           certificates into one file: CAfile = FILE";
                findings.error(&entry.at, message, fix);
                return None;
            }
        };
        names.retain(|name| is_hashed(name));
        names.sort();
        if names.is_empty() {
            let message = format!(
                "stunnel finds certificates by their hashes, but the directory {directory} has no \
                 file with a name such as 5ed36f99.0"
            );
            let fix = "put the CA certificates into one file: CAfile = FILE";
            findings.error(&entry.at, message, fix);
            return None;
        }
        let message = format!(
            "the policy lists the {count} certificate files of {directory}",
            count = names.len()
        );
        findings.info(&entry.at, message);
        Some(names.into_iter().map(|name| format!("{directory}/{name}")).collect())
    }

    /// Reports once how relative paths are resolved.
    pub(super) fn report_relative(&mut self, entry: &Entry, findings: &mut Findings) {
        if entry.value.starts_with('/') || self.has_reported_relative {
            return;
        }
        self.has_reported_relative = true;
        let message = "relative paths are resolved from the directory of the policy, not from the \
                       working directory of the agent";
        let fix = "write the policy to the directory in which stunnel was started, or use absolute \
                   paths";
        findings.changed(&entry.at, message, fix);
    }

    /// Adds them to the policy.
    pub(super) fn write(self, draft: &mut Draft) {
        for Identity { name, cert, key, at } in self.identities {
            let mut item = Item::new(format!("[identity.{}]", draft::word(&name)), &at);
            item.set("cert", cert);
            item.set("key", key);
            draft.tables.push(item);
        }
        for Trust { name, contents, files, crls, at } in self.trusts {
            let mut item = Item::new(format!("[trust.{}]", draft::word(&name)), &at);
            if contents != Contents::Peers {
                item.set("ca", files.clone());
            }
            if contents != Contents::Cas {
                item.set("pinned", files);
            }
            if !crls.is_empty() {
                item.set("crl", crls);
            }
            draft.tables.push(item);
        }
        for Names { name, entries, at } in self.maps {
            for (key, value) in entries {
                let mut item = Item::new(format!("[[map.{}]]", draft::word(&name)), &at);
                let known_as = draft::name_of(&value);
                item.set(key, value);
                item.set("name", known_as);
                draft.tables.push(item);
            }
        }
    }
}

/// A pattern that matches only this text.
fn literal(text: &str) -> String {
    text.replace('\\', "\\\\").replace('*', "\\*")
}

/// `XXXXXXXX.N`.
fn is_hashed(name: &str) -> bool {
    name.split_once('.').is_some_and(|(hash, number)| {
        hash.len() == 8
            && hash.bytes().all(|b| b.is_ascii_hexdigit())
            && !number.is_empty()
            && number.bytes().all(|b| b.is_ascii_digit())
    })
}

/// The name of a file without its directories and extension.
fn stem(path: &str) -> &str {
    let file = path.rsplit('/').next().unwrap_or(path);
    file.rsplit_once('.').map_or(file, |(stem, _)| if stem.is_empty() { file } else { stem })
}

/// A name that policies allow, made from this text, and not one of those taken.
pub(super) fn unique(like: &str, taken: &BTreeSet<&str>) -> String {
    /// The limit of policies, less some characters for a number.
    const CHARS_MAX: usize = 56;
    let name: String = draft::name_of(like).chars().take(CHARS_MAX).collect();
    let numbered = (2_u32..).map(|number| format!("{name}-{number}"));
    let free = |name: &String| !taken.contains(name.as_str());
    std::iter::once(name.clone()).chain(numbered).find(free).unwrap_or(name)
}
