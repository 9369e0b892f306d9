//! What a certificate says, and the list `tacit ca show` prints.
//!
//! Limits: [`FILES_MAX`] certificates a directory. It reads certificates only; keys stay closed.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rcgen::{ExtendedKeyUsagePurpose, KeyPair, PublicKeyData, SanType};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use serde::Serialize;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};
use x509_parser::time::ASN1Time;

use super::{CaError, DAY_SECONDS, file, unix_seconds};

/// Certificates listed at most; a directory with more is not one that `tacit ca` keeps.
const FILES_MAX: usize = 10_000;

/// Under this many days the list says so.
const SOON_DAYS: i64 = 21;

/// What one certificate says of itself.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) struct Facts {
    file: String,
    subject: String,
    issuer: String,
    pub(super) ca: bool,
    pub(super) names: Vec<String>,
    pub(super) usage: Vec<&'static str>,
    not_before: String,
    pub(super) not_after: String,
    #[serde(skip)]
    not_before_unix: i64,
    #[serde(skip)]
    pub(super) not_after_unix: i64,
    #[serde(skip)]
    public_key: Vec<u8>,
}

/// One line of the list.
#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct Row {
    #[serde(flatten)]
    facts: Facts,
    days_left: i64,
    state: &'static str,
}

#[derive(Serialize)]
struct Listing {
    certificates: Vec<Row>,
}

impl Facts {
    /// Reads the first certificate of a PEM file.
    pub(super) fn read(path: &Path) -> Result<Self, CaError> {
        let unusable = |why: String| CaError::Unusable(path.into(), why);
        let der = CertificateDer::from_pem_slice(file::read(path)?.as_bytes())
            .map_err(|error| unusable(format!("no certificate in PEM form: {error}")))?;
        let (_, cert) = X509Certificate::from_der(&der)
            .map_err(|error| unusable(format!("not a certificate: {error}")))?;

        let names = cert.subject_alternative_name().ok().flatten();
        let names = names.map(|sans| sans.value.general_names.iter().map(shown_name).collect());
        let usage = cert.extended_key_usage().ok().flatten();
        let usage = usage.map(|usage| (usage.value.server_auth, usage.value.client_auth));
        let (server, client) = usage.unwrap_or_default();
        let words = [(cert.is_ca(), "ca"), (server, "server"), (client, "client")];
        let validity = cert.validity();
        let (not_before_unix, not_after_unix) =
            (validity.not_before.timestamp(), validity.not_after.timestamp());
        Ok(Self {
            file: path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            subject: cert.subject().to_string(),
            issuer: cert.issuer().to_string(),
            ca: cert.is_ca(),
            names: names.unwrap_or_default(),
            usage: words.into_iter().filter_map(|(is, word)| is.then_some(word)).collect(),
            not_before: date(not_before_unix),
            not_after: date(not_after_unix),
            not_before_unix,
            not_after_unix,
            public_key: cert.public_key().raw.to_vec(),
        })
    }

    /// Whether the certificate speaks for this key.
    pub(super) fn is_public_key_of(&self, key: &KeyPair) -> bool {
        self.public_key == key.subject_public_key_info()
    }

    /// Whole days until it expires; negative when it has.
    pub(super) fn days_left(&self, now: SystemTime) -> i64 {
        let day = i64::try_from(DAY_SECONDS).unwrap_or(i64::MAX);
        (self.not_after_unix - unix_seconds(now)).div_euclid(day)
    }

    /// The alternative names, to be put into a successor.
    pub(super) fn sans(&self, path: &Path) -> Result<Vec<SanType>, CaError> {
        let parse = |name: &String| {
            name.parse::<super::San>().map(super::San::into_rcgen).map_err(|_| {
                let why = format!("its name {name} is none that tacit makes; issue a new one");
                CaError::Unusable(path.into(), why)
            })
        };
        self.names.iter().map(parse).collect()
    }

    /// The usage, to be put into a successor.
    pub(super) fn extended_key_usages(&self) -> Vec<ExtendedKeyUsagePurpose> {
        let of_word = |word: &&'static str| match *word {
            "server" => Some(ExtendedKeyUsagePurpose::ServerAuth),
            "client" => Some(ExtendedKeyUsagePurpose::ClientAuth),
            _ => None,
        };
        self.usage.iter().filter_map(of_word).collect()
    }

    fn state(&self, now: SystemTime) -> &'static str {
        let seconds = unix_seconds(now);
        match () {
            () if seconds < self.not_before_unix => "not yet valid",
            () if seconds > self.not_after_unix => "expired",
            () if self.days_left(now) < SOON_DAYS => "expires soon",
            () => "valid",
        }
    }
}

/// The list of a directory's certificates as text or JSON, the CA first.
pub(super) fn directory(dir: &Path, json: bool, now: SystemTime) -> Result<String, CaError> {
    let mut rows = Vec::new();
    for path in certificate_files(dir)? {
        let facts = Facts::read(&path)?;
        rows.push(Row { days_left: facts.days_left(now), state: facts.state(now), facts });
    }
    if rows.is_empty() {
        return Err(CaError::NoCa(dir.join(super::CA_CERT)));
    }
    rows.sort_by(|a, b| (!a.facts.ca, &a.facts.file).cmp(&(!b.facts.ca, &b.facts.file)));
    if json {
        let text = serde_json::to_string_pretty(&Listing { certificates: rows });
        return text.map(|text| text + "\n").map_err(|error| CaError::Output(error.into()));
    }
    Ok(table(&rows))
}

fn certificate_files(dir: &Path) -> Result<Vec<PathBuf>, CaError> {
    let fault =
        |source| CaError::File { what: "cannot read the directory", path: dir.into(), source };
    let mut paths = Vec::new();
    for entry in fs::read_dir(dir).map_err(fault)?.take(FILES_MAX) {
        let path = entry.map_err(fault)?.path();
        let hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        if path.extension().is_some_and(|extension| extension == "pem") && !hidden {
            paths.push(path);
        }
    }
    Ok(paths)
}

fn table(rows: &[Row]) -> String {
    let header = ["FILE", "SUBJECT", "USAGE", "EXPIRES", "DAYS", "STATE", "NAMES"];
    let mut lines = vec![header.map(str::to_owned)];
    lines.extend(rows.iter().map(|row| {
        [
            row.facts.file.clone(),
            row.facts.subject.clone(),
            row.facts.usage.join(","),
            row.facts.not_after.clone(),
            row.days_left.to_string(),
            row.state.to_owned(),
            if row.facts.names.is_empty() { "-".to_owned() } else { row.facts.names.join(", ") },
        ]
    }));
    let width = |column: usize| {
        lines.iter().map(|line| line[column].chars().count()).max().unwrap_or_default()
    };
    let widths: Vec<usize> = (0..header.len()).map(width).collect();
    let mut text = String::new();
    for line in &lines {
        let cells = line.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        text += cells.collect::<Vec<_>>().join("  ").trim_end();
        text.push('\n');
    }
    text
}

fn shown_name(name: &GeneralName<'_>) -> String {
    match name {
        GeneralName::DNSName(host) => (*host).to_owned(),
        GeneralName::IPAddress(octets) => shown_address(octets),
        other => other.to_string(),
    }
}

fn shown_address(octets: &[u8]) -> String {
    if let Ok(octets) = <[u8; 4]>::try_from(octets) {
        IpAddr::from(octets).to_string()
    } else if let Ok(octets) = <[u8; 16]>::try_from(octets) {
        IpAddr::from(octets).to_string()
    } else {
        "malformed address".to_owned()
    }
}

/// `2027-03-31 12:00 UTC`.
pub(super) fn date(seconds: i64) -> String {
    let Ok(time) = ASN1Time::from_timestamp(seconds) else { return "out of range".to_owned() };
    let time = time.to_datetime();
    let (year, month, day) = (time.year(), u8::from(time.month()), time.day());
    format!("{year}-{month:02}-{day:02} {:02}:{:02} UTC", time.hour(), time.minute())
}
