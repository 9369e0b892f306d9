//! `tacit ca`: creates a private certification authority (CA) and certificates for mutual TLS.
//!
//! ```text
//! tacit ca init            ca.pem       ca.key        the CA that peers trust
//! tacit ca issue web.corp  web.corp.pem web.corp.key  the certificate and key of one peer
//! tacit ca show            lists the certificates in the directory with their expiry dates
//! ```
//!
//! A directory has one CA. The certificate of the CA is self-signed, with an ECDSA P-256 key. The
//! CA cannot issue certificates for other CAs. The CA's key stays in the directory. Key files have
//! mode 0600 from the start.
//!
//! Limits: [`DAYS_MAX`] days of validity. A certificate expires no later than its CA.
//!
//! Not supported: revocation, encrypted keys, hardware keys, ACME and intermediate CAs. The agent
//! also accepts certificates of other CAs.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::{Args, Subcommand};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256,
};

mod error;
mod file;
mod name;
mod show;

pub use error::CaError;
use file::{CA_CERT, CA_KEY};
use name::{LeafName, San};
use show::{Certificate, unix_seconds};
use tacit_tls::facts::utc;

/// The longest lifetime: 100 years.
pub const DAYS_MAX: u32 = 36_500;

/// The default lifetime of a CA: ten years, because a new CA must be installed on every machine
/// that trusts the old one.
pub const CA_DAYS: u32 = 3_650;

/// The default lifetime of a certificate: 90 days, because `tacit ca` cannot revoke it, and agents
/// load a renewed one without a restart.
pub const LEAF_DAYS: u32 = 90;

/// The validity of a certificate begins one hour before its creation, so that peers with slow
/// clocks accept the certificate.
const BACKDATE: Duration = Duration::from_secs(3_600);

const DAY_SECONDS: u64 = 86_400;

/// Create a private CA, issue certificates, and list them
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  Mutual TLS in three commands:
    tacit ca init  --dir pki
    tacit ca issue --dir pki web.corp.example --san 10.0.0.7
    tacit ca issue --dir pki alice --client")]
pub struct CaArgs {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Create a CA: ca.pem to distribute, and ca.key to keep secret
    #[command(after_help = "\
Examples:
  tacit ca init
  tacit ca init --dir /etc/tacit/pki --name 'Corp test CA' --days 365")]
    Init(InitArgs),
    /// Issue a certificate and a private key for a server, a client or both
    #[command(after_help = "\
Examples:
  A certificate for servers and clients, valid for a host name and an address:
    tacit ca issue web.corp.example --san www.corp.example --san 10.0.0.7
  A certificate for clients only:
    tacit ca issue alice --client
  Renew a certificate for 90 days; names, usage and key stay the same:
    tacit ca issue web.corp.example --renew")]
    Issue(IssueArgs),
    /// List the certificates in a directory with names, usage and expiry dates
    #[command(after_help = "\
Examples:
  tacit ca show --dir pki
  tacit ca show --dir pki --json")]
    Show(ShowArgs),
}

#[derive(Debug, Args)]
struct InitArgs {
    /// Directory for ca.pem and ca.key; created with mode 0700 if it does not exist
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    /// Common name of the CA, for display
    #[arg(long, value_name = "CN", default_value = "tacit private CA",
          value_parser = name::parse_common_name)]
    name: String,
    /// Days until the CA expires
    #[arg(long, value_name = "N", default_value_t = CA_DAYS,
          value_parser = clap::value_parser!(u32).range(1..=i64::from(DAYS_MAX)))]
    days: u32,
}

#[derive(Debug, Args)]
struct IssueArgs {
    /// Host name, IP address or user name; becomes the first subject alternative name
    #[arg(value_name = "NAME")]
    name: LeafName,
    /// Directory of ca.pem and ca.key, in which NAME.pem and NAME.key are created
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    /// Additional subject alternative name; may be repeated
    #[arg(long, value_name = "DNS|IP|URI")]
    san: Vec<San>,
    /// Issue a certificate for servers only [default: for servers and clients]
    #[arg(long)]
    server: bool,
    /// Issue a certificate for clients only
    #[arg(long, conflicts_with = "server")]
    client: bool,
    /// Renew the certificate NAME: keep its names, usage and key, and change the dates
    #[arg(long, conflicts_with_all = ["san", "server", "client"])]
    renew: bool,
    /// Days until the certificate expires
    #[arg(long, value_name = "N", default_value_t = LEAF_DAYS,
          value_parser = clap::value_parser!(u32).range(1..=i64::from(DAYS_MAX)))]
    days: u32,
}

#[derive(Debug, Args)]
struct ShowArgs {
    /// Directory to list
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command and prints the result to standard output.
///
/// # Errors
/// See [`CaError`]. Files created before the error are removed.
pub fn run(args: CaArgs) -> Result<(), CaError> {
    match run_at(args, SystemTime::now(), &mut io::stdout().lock()) {
        // The reader has closed the pipe.
        Err(CaError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

fn run_at(args: CaArgs, now: SystemTime, out: &mut dyn Write) -> Result<(), CaError> {
    let text = match args.verb {
        Verb::Init(args) => init(&args, now)?,
        Verb::Issue(args) if args.renew => renew(&args, now)?,
        Verb::Issue(args) => issue(args, now)?,
        Verb::Show(args) => {
            let form = if args.json { show::OutputFormat::Json } else { show::OutputFormat::Table };
            show::directory(&args.dir, form, now)?
        }
    };
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(CaError::Output)
}

fn init(args: &InitArgs, now: SystemTime) -> Result<String, CaError> {
    file::make_directory(&args.dir)?;
    let cert_path = args.dir.join(CA_CERT);
    let key_path = args.dir.join(CA_KEY);

    let mut params = dated(now, args.days);
    params.distinguished_name = common_name(&args.name);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let cert = params.self_signed(&key)?;
    file::create_pair(&cert_path, &cert.pem(), &key_path, &key.serialize_pem())?;

    let dir = shown_directory(&args.dir);
    Ok(format!(
        "created {cert}  the certificate: copy it to each host that must trust this CA\n\
         created {key}  its private key (mode 0600): keep it secret, because it can sign \
         certificates for any name\n\
         the CA expires {expiry}\n\
         \n\
         Add to the policy:\n\
         \n    [trust.private]\n    ca = {absolute}\n\
         \n\
         Next step: tacit ca issue{dir} NAME\n",
        cert = cert_path.display(),
        key = key_path.display(),
        expiry = utc(unix_seconds(now + days(args.days))),
        absolute = in_policy(&cert_path),
    ))
}

fn issue(args: IssueArgs, now: SystemTime) -> Result<String, CaError> {
    let ca = Ca::open(&args.dir)?;
    ca.check_outlives(now, args.days)?;

    let mut params = dated(now, args.days);
    params.distinguished_name = common_name(args.name.as_str());
    params.subject_alt_names.push(args.name.san().into_rcgen());
    for san in args.san.into_iter().map(San::into_rcgen) {
        if !params.subject_alt_names.contains(&san) {
            params.subject_alt_names.push(san);
        }
    }
    if !args.client {
        params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
    }
    if !args.server {
        params.extended_key_usages.push(ExtendedKeyUsagePurpose::ClientAuth);
    }
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let cert = ca.sign(params, &key)?;
    let LeafPaths { cert: cert_path, key: key_path } = LeafPaths::new(&args.dir, &args.name);
    file::create_pair(&cert_path, &cert, &key_path, &key.serialize_pem())?;

    let made = Certificate::read(&cert_path)?;
    Ok(format!(
        "created {cert}  the certificate: {usage}; valid for {names}\ncreated {key}  its private \
         key (mode 0600)\nthe certificate expires {expiry}\n\nAdd to the policy on the host that \
         uses this key:\n\n{policy}",
        cert = cert_path.display(),
        usage = made.roles().join(" and "),
        names = made.facts.sans.join(", "),
        key = key_path.display(),
        expiry = made.expiry(),
        policy = policy_lines(&args.name, &cert_path, &key_path, &made),
    ))
}

fn renew(args: &IssueArgs, now: SystemTime) -> Result<String, CaError> {
    let LeafPaths { cert: cert_path, key: key_path } = LeafPaths::new(&args.dir, &args.name);
    if !cert_path.exists() {
        return Err(CaError::NothingToRenew(cert_path));
    }
    let ca = Ca::open(&args.dir)?;
    ca.check_outlives(now, args.days)?;
    let old = Certificate::read(&cert_path)?;
    let key = read_key(&key_path)?;
    if !old.is_public_key_of(&key) {
        return Err(CaError::Mismatch { cert: cert_path, key: key_path });
    }

    let mut params = dated(now, args.days);
    params.distinguished_name = common_name(args.name.as_str());
    params.subject_alt_names = old.sans(&cert_path)?;
    params.extended_key_usages = old.extended_key_usages();
    // Only the certificate is replaced, so a running agent always sees a matching pair.
    file::replace(&cert_path, &ca.sign(params, &key)?)?;

    let made = Certificate::read(&cert_path)?;
    Ok(format!(
        "renewed {}  expires {}; expiry of the old certificate: {}\nA running agent loads the new \
         certificate within seconds; `tacit reload` loads it immediately\n",
        cert_path.display(),
        made.expiry(),
        old.expiry()
    ))
}

/// The CA of a directory, with its private key.
struct Ca {
    certificate: Certificate,
    issuer: Issuer<'static, KeyPair>,
}

impl Ca {
    fn open(dir: &Path) -> Result<Self, CaError> {
        let cert_path = dir.join(CA_CERT);
        let key_path = dir.join(CA_KEY);
        for path in [&cert_path, &key_path] {
            if !path.exists() {
                return Err(CaError::NoCa(path.clone()));
            }
        }
        let key = read_key(&key_path)?;
        let certificate = Certificate::read(&cert_path)?;
        if !certificate.facts.is_ca {
            let why = "the certificate is not a CA certificate, so peers would reject the \
                       certificates that it signs"
                .to_owned();
            return Err(CaError::Unusable(cert_path, why));
        }
        if !certificate.is_public_key_of(&key) {
            return Err(CaError::Mismatch { cert: cert_path, key: key_path });
        }
        let issuer = Issuer::from_ca_cert_pem(&file::read(&cert_path)?, key)?;
        Ok(Self { certificate, issuer })
    }

    /// Rejects the lifetime of a certificate that would expire after its CA.
    fn check_outlives(&self, now: SystemTime, leaf_days: u32) -> Result<(), CaError> {
        if unix_seconds(now + days(leaf_days)) <= self.certificate.facts.not_after {
            return Ok(());
        }
        Err(CaError::Outlives {
            ca_not_after: self.certificate.expiry(),
            // Rounded down: a certificate for this many days expires before its CA.
            ca_days_left: (self.certificate.facts.not_after - unix_seconds(now))
                .div_euclid(DAY_SECONDS.cast_signed()),
        })
    }

    fn sign(&self, mut params: CertificateParams, key: &KeyPair) -> Result<String, CaError> {
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.use_authority_key_identifier_extension = true;
        Ok(params.signed_by(key, &self.issuer)?.pem())
    }
}

fn read_key(path: &Path) -> Result<KeyPair, CaError> {
    let text = file::read_private(path)?;
    KeyPair::from_pem(&text).map_err(|error| CaError::Unusable(path.into(), error.to_string()))
}

fn dated(now: SystemTime, life_days: u32) -> CertificateParams {
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    let since_epoch = |time: SystemTime| time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut params = CertificateParams::default();
    params.not_before = epoch + since_epoch(now - BACKDATE);
    params.not_after = epoch + since_epoch(now + days(life_days));
    params
}

fn common_name(name: &str) -> DistinguishedName {
    let mut subject = DistinguishedName::new();
    subject.push(DnType::CommonName, name);
    subject
}

/// The files of a certificate and its key.
struct LeafPaths {
    cert: PathBuf,
    key: PathBuf,
}

impl LeafPaths {
    fn new(dir: &Path, name: &LeafName) -> Self {
        let cert = dir.join(format!("{name}.pem"));
        let key = dir.join(format!("{name}.key"));
        Self { cert, key }
    }
}

/// Returns lines for a policy: an `[identity.NAME]` table for the new certificate, and a `tls` line
/// for each kind of rule.
fn policy_lines(name: &LeafName, cert: &Path, key: &Path, made: &Certificate) -> String {
    let word = name.bare_key();
    let mut text = format!(
        "    [identity.{word}]\n    cert = {}\n    key  = {}\n",
        in_policy(cert),
        in_policy(key)
    );
    let identity = format!("identity = \"{word}\"");
    let trust = "trust = \"private\"";
    if made.roles().contains(&"server") {
        let tls = format!("{identity}, client-cert = \"required\", {trust}");
        text += "\nTo present this certificate to clients and require a certificate from them:\n";
        text += &rule_line("`listen` and `connect`", &format!("role = \"server\", {tls}"));
        text += &rule_line("`direction = \"inbound\"` (for `tacit run`)", &tls);
    }
    if made.roles().contains(&"client") {
        let tls = format!("{identity}, {trust}");
        text += "\nTo present this certificate to servers:\n";
        text += &rule_line("`listen` and `connect`", &format!("role = \"client\", {tls}"));
        text += &rule_line("`direction = \"outbound\"` (for `tacit run`)", &tls);
    }
    text
}

/// Returns a `tls` line, after a text with the `keys` of the rule to which the line belongs. The
/// text is needed because a rule cannot contain two `tls` lines.
fn rule_line(keys: &str, tls: &str) -> String {
    format!("in a rule with {keys}, add\n\n    tls = {{ {tls} }}\n\n")
}

/// Returns the option ` --dir DIR` for the next command. Returns an empty text for the default
/// directory.
fn shown_directory(dir: &Path) -> String {
    if dir == Path::new(".") { String::new() } else { format!(" --dir {}", dir.display()) }
}

/// The absolute path as a TOML string, so that it is valid wherever the policy is stored.
fn in_policy(path: &Path) -> String {
    let from_root = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    format!("{:?}", from_root.display().to_string())
}

fn days(count: u32) -> Duration {
    Duration::from_secs(u64::from(count) * DAY_SECONDS)
}

#[cfg(test)]
mod tests;
