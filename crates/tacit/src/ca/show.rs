//! Reads certificates, and formats the list of `tacit ca show`.
//!
//! Limits: at most [`FILES_MAX`] certificates in a directory. Keys are not read.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use rcgen::{ExtendedKeyUsagePurpose, KeyPair, PublicKeyData, SanType};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use serde::Serialize;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::error::CaError;
use super::file;
use super::name::San;
use tacit_tls::facts::{CertificateFacts, NAMES_MAX, utc};

use crate::control::display::connections::CertificateState;
use crate::control::render::table::{ABSENT, lay_out};
use crate::control::render::width::TextWidth;
use crate::exit::versioned;

/// Maximum number of certificates in a directory.
const FILES_MAX: usize = 10_000;

/// Certificates that expire in fewer days are marked.
const SOON_DAYS: i64 = 21;

/// The first certificate of a PEM file.
#[derive(Debug, Serialize)]
pub(super) struct Certificate {
    file: String,
    #[serde(flatten, serialize_with = "CertificateState::serialize_facts")]
    pub(super) facts: CertificateFacts,
    /// SubjectPublicKeyInfo, DER.
    #[serde(skip)]
    public_key: Vec<u8>,
}

/// A line of the list.
#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct Row {
    #[serde(flatten)]
    certificate: Certificate,
    days_left: i64,
    state: &'static str,
}

#[derive(Serialize)]
struct Listing {
    certificates: Vec<Row>,
}

impl Certificate {
    pub(super) fn read(path: &Path) -> Result<Self, CaError> {
        let unusable = |why: &str| CaError::Unusable(path.into(), why.to_owned());
        let der =
            CertificateDer::from_pem_slice(file::read(path)?.as_bytes()).map_err(|error| {
                unusable(&format!("the file has no certificate in PEM format: {error}"))
            })?;
        let invalid = || unusable("the file does not contain a valid certificate");
        let facts = CertificateFacts::from_der(&der).map_err(|_| invalid())?;
        let (_, parsed) = X509Certificate::from_der(&der).map_err(|_| invalid())?;
        Ok(Self {
            file: path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            public_key: parsed.public_key().raw.to_vec(),
            facts,
        })
    }

    /// Whether the certificate has the public key that belongs to this private key.
    pub(super) fn is_public_key_of(&self, key: &KeyPair) -> bool {
        self.public_key == key.subject_public_key_info()
    }

    /// The permitted uses: `ca`, `server`, `client`.
    pub(super) fn roles(&self) -> Vec<&'static str> {
        let has = |usage: &str| self.facts.usages.iter().any(|word| word == usage);
        let words = [
            (self.facts.is_ca, "ca"),
            (has("serverAuth"), "server"),
            (has("clientAuth"), "client"),
        ];
        words.into_iter().filter_map(|(is, word)| is.then_some(word)).collect()
    }

    /// The expiry date for display.
    pub(super) fn expiry(&self) -> String {
        utc(self.facts.not_after)
    }

    /// Days until the certificate expires; negative afterwards.
    pub(super) fn days_left(&self, now: SystemTime) -> i64 {
        self.facts.days_left(unix_seconds(now))
    }

    /// The subject alternative names, for the renewed certificate.
    pub(super) fn sans(&self, path: &Path) -> Result<Vec<SanType>, CaError> {
        let unusable = |why: String| CaError::Unusable(path.into(), why);
        if self.facts.sans.len() >= NAMES_MAX {
            return Err(unusable(format!(
                "the certificate has too many names: tacit can renew only certificates with fewer \
                 than {NAMES_MAX} names\n    fix: issue a new certificate with fewer names"
            )));
        }
        let parse = |name: &String| {
            name.parse::<San>().map(San::into_rcgen).map_err(|_| {
                unusable(format!(
                    "the certificate has the name {name}, which tacit does not put into \
                     certificates\n    fix: issue a new certificate without this name"
                ))
            })
        };
        self.facts.sans.iter().map(parse).collect()
    }

    /// The extended key usages, for the renewed certificate.
    pub(super) fn extended_key_usages(&self) -> Vec<ExtendedKeyUsagePurpose> {
        let of_word = |word: &'static str| match word {
            "server" => Some(ExtendedKeyUsagePurpose::ServerAuth),
            "client" => Some(ExtendedKeyUsagePurpose::ClientAuth),
            _ => None,
        };
        self.roles().into_iter().filter_map(of_word).collect()
    }

    fn state(&self, now: SystemTime) -> &'static str {
        let seconds = unix_seconds(now);
        match () {
            () if seconds < self.facts.not_before => "not yet valid",
            () if seconds > self.facts.not_after => "expired",
            () if self.days_left(now) < SOON_DAYS => "expires soon",
            () => "valid",
        }
    }
}

/// Seconds since 1970; 0 if the clock is earlier.
pub(super) fn unix_seconds(time: SystemTime) -> i64 {
    let seconds = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    i64::try_from(seconds).unwrap_or(i64::MAX)
}

/// The output format of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OutputFormat {
    Table,
    Json,
}

/// Lists the certificates of a directory; the CA is the first.
pub(super) fn directory(
    dir: &Path,
    form: OutputFormat,
    now: SystemTime,
) -> Result<String, CaError> {
    let mut rows = Vec::new();
    for path in certificate_files(dir)? {
        let certificate = Certificate::read(&path)?;
        let days_left = certificate.days_left(now);
        let state = certificate.state(now);
        rows.push(Row { certificate, days_left, state });
    }
    if rows.is_empty() {
        return Err(CaError::NoCa(dir.join(file::CA_CERT)));
    }
    rows.sort_by_cached_key(|row| (!row.certificate.facts.is_ca, row.certificate.file.clone()));
    if form == OutputFormat::Json {
        return Ok(versioned(&Listing { certificates: rows }));
    }
    Ok(table(&rows, TextWidth::of_stdout()))
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

fn table(rows: &[Row], width: TextWidth) -> String {
    let header = ["FILE", "SUBJECT", "USAGE", "EXPIRES", "DAYS", "STATE", "NAMES"];
    let mut lines = vec![header.map(str::to_owned).to_vec()];
    lines.extend(rows.iter().map(|Row { certificate, days_left, state }| {
        let names = certificate.facts.sans.join(", ");
        vec![
            certificate.file.clone(),
            certificate.facts.subject.clone(),
            certificate.roles().join(","),
            certificate.expiry(),
            days_left.to_string(),
            (*state).to_owned(),
            if names.is_empty() { ABSENT.to_owned() } else { names },
        ]
    }));
    lay_out(&lines, width.wrapped())
}
