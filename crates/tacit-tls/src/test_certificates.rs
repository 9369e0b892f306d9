//! Creates valid and invalid certificates for tests. This module uses the library rcgen. For
//! formats that rcgen does not support, this module uses the `openssl` command. The feature
//! `testing` makes this module available to tests of other crates.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "only tests use this module")]

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// The types by which tests adjust certificates.
pub use rcgen::{
    BasicConstraints, CertificateParams, CustomExtension, GeneralSubtree, IsCa, KeyUsagePurpose,
    NameConstraints, SanType, date_time_ymd,
};
use rcgen::{
    CertificateRevocationListParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose as Usage,
    KeyIdMethod, KeyPair, RevokedCertParams, SerialNumber,
};
use rustls::RootCertStore;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

/// The name in valid leaf certificates.
pub const NAME: &str = "db.example";

/// A valid leaf certificate in which these bytes, by position, have other values. A position beyond
/// the end counts from the beginning again.
#[must_use]
pub fn damaged_leaf(changes: &[(usize, u8)]) -> CertificateDer<'static> {
    static GOOD: OnceLock<Vec<u8>> = OnceLock::new();
    let good = GOOD.get_or_init(|| Ca::new("fuzz").leaf(LeafKind::Valid).chain[0].to_vec());
    let mut der = good.clone();
    for &(at, value) in changes {
        let at = at % der.len();
        der[at] = value;
    }
    der.into()
}

/// The fault of a leaf certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeafKind {
    /// None.
    Valid,
    /// It has expired.
    Expired,
    /// It is not valid yet.
    NotYetValid,
    /// Its usage is neither for servers nor for clients.
    WrongUsage,
    /// Its usage is for servers, not for clients.
    ServerOnly,
    /// It is for another host name.
    WrongName,
    /// It has no subjectAltName.
    CnOnly,
}

/// A chain with its key.
#[derive(Debug)]
pub struct Leaf {
    /// The certificate without its CA.
    pub chain: Vec<CertificateDer<'static>>,
    /// Its private key.
    pub key: PrivateKeyDer<'static>,
    /// The certificate in PEM.
    pub cert_pem: String,
    /// The private key in PEM.
    pub key_pem: String,
    /// The certificate's serial number.
    pub serial: SerialNumber,
}

impl Leaf {
    fn new(certificate: &rcgen::Certificate, key: &KeyPair) -> Self {
        let parsed = x509_parser::parse_x509_certificate(certificate.der()).unwrap().1;
        Self {
            serial: SerialNumber::from(parsed.raw_serial().to_vec()),
            chain: vec![certificate.der().clone()],
            key: PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
            cert_pem: certificate.pem(),
            key_pem: key.serialize_pem(),
        }
    }
}

/// A self-signed certificate that the TLS library may refuse to handle.
#[derive(Debug)]
pub struct OldLeaf {
    /// The certificate without its CA.
    pub chain: Vec<CertificateDer<'static>>,
    /// The certificate in PEM.
    pub cert_pem: String,
    /// The private key in PEM.
    pub key_pem: String,
}

/// A private CA for tests.
#[derive(Debug)]
pub struct Ca(CertifiedIssuer<'static, KeyPair>);

impl Ca {
    /// Creates a self-signed CA.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self::made(name, |_| {})
    }

    /// Creates a self-signed CA whose certificate is adjusted.
    #[must_use]
    pub fn made(name: &str, adjust: impl FnOnce(&mut CertificateParams)) -> Self {
        let params = ca_params(name, adjust);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// Creates a self-signed CA whose validity ends at a time, in unix seconds.
    #[must_use]
    pub fn until(name: &str, unix_seconds: i64) -> Self {
        let since_epoch = Duration::from_secs(unix_seconds.unsigned_abs());
        Self::made(name, |params| params.not_after = date_time_ymd(1970, 1, 1) + since_epoch)
    }

    /// Creates another self-signed certificate with this name and with the key of this CA.
    #[must_use]
    pub fn reissued(&self, name: &str, adjust: impl FnOnce(&mut CertificateParams)) -> Self {
        let key = KeyPair::from_pem(&self.0.key().serialize_pem()).unwrap();
        Self(CertifiedIssuer::self_signed(ca_params(name, adjust), key).unwrap())
    }

    /// Creates a CA below this one.
    #[must_use]
    pub fn ca(&self, name: &str, adjust: impl FnOnce(&mut CertificateParams)) -> Self {
        let params = ca_params(name, adjust);
        Self(CertifiedIssuer::signed_by(params, KeyPair::generate().unwrap(), &*self.0).unwrap())
    }

    /// Issues a valid leaf whose certificate is adjusted.
    #[must_use]
    pub fn leaf_made(&self, adjust: impl FnOnce(&mut CertificateParams)) -> Leaf {
        let key = KeyPair::generate().unwrap();
        let mut params = params(LeafKind::Valid);
        adjust(&mut params);
        Leaf::new(&params.signed_by(&key, &self.0).unwrap(), &key)
    }

    /// Issues another valid leaf with the name and the key of this one.
    #[must_use]
    pub fn leaf_again(&self, leaf: &Leaf) -> Leaf {
        let key = KeyPair::from_pem(&leaf.key_pem).unwrap();
        Leaf::new(&params(LeafKind::Valid).signed_by(&key, &self.0).unwrap(), &key)
    }

    /// Returns the CA's certificate.
    #[must_use]
    pub fn der(&self) -> CertificateDer<'static> {
        self.0.der().clone()
    }

    /// Returns a store of trust anchors with only this CA.
    #[must_use]
    pub fn roots(&self) -> Arc<RootCertStore> {
        let mut roots = RootCertStore::empty();
        roots.add(self.der()).unwrap();
        Arc::new(roots)
    }

    /// Returns the CA's certificate in PEM.
    #[must_use]
    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// Issues a leaf.
    #[must_use]
    pub fn leaf(&self, kind: LeafKind) -> Leaf {
        let key = KeyPair::generate().unwrap();
        let certificate = params(kind).signed_by(&key, &self.0).unwrap();
        Leaf::new(&certificate, &key)
    }

    /// Creates the CRL, in PEM, of these revoked leaves; it is current until `next_update`, in unix
    /// seconds.
    #[must_use]
    pub fn crl(&self, revoked: &[&Leaf], next_update: i64) -> String {
        const MADE_2021: i64 = 1_609_459_200;
        self.crl_made(MADE_2021, revoked, next_update)
    }

    /// The same; the CRL was issued at `made`, in unix seconds.
    #[must_use]
    pub fn crl_made(&self, made: i64, revoked: &[&Leaf], next_update: i64) -> String {
        let time = |unix_seconds: i64| {
            date_time_ymd(1970, 1, 1) + Duration::from_secs(unix_seconds.unsigned_abs())
        };
        let revoked_certs = revoked.iter().map(|leaf| RevokedCertParams {
            serial_number: leaf.serial.clone(),
            revocation_time: date_time_ymd(2021, 1, 1),
            reason_code: None,
            invalidity_date: None,
        });
        let list = CertificateRevocationListParams {
            this_update: time(made),
            next_update: time(next_update),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: revoked_certs.collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        list.signed_by(&self.0).unwrap().pem().unwrap()
    }

    /// Issues a valid leaf for another name.
    #[must_use]
    pub fn leaf_of(&self, name: &str) -> Leaf {
        self.leaf_of_all(&[name.to_owned()])
    }

    /// Issues a valid leaf for many names.
    #[must_use]
    pub fn leaf_of_all(&self, names: &[String]) -> Leaf {
        let key = KeyPair::generate().unwrap();
        let mut params = params(LeafKind::Valid);
        params.distinguished_name.push(DnType::CommonName, names[0].as_str());
        let san = |name: &String| SanType::DnsName(name.as_str().try_into().unwrap());
        params.subject_alt_names = names.iter().map(san).collect();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        Leaf::new(&certificate, &key)
    }

    /// Issues a valid leaf with an RSA key.
    #[must_use]
    pub fn rsa_leaf(&self) -> Leaf {
        let key = KeyPair::generate_for(&rcgen::PKCS_RSA_SHA256).unwrap();
        let certificate = params(LeafKind::Valid).signed_by(&key, &self.0).unwrap();
        Leaf::new(&certificate, &key)
    }

    /// Issues an intermediate X.509 v3 CA without basic constraints.
    #[must_use]
    pub fn without_constraints(&self) -> Leaf {
        let key = KeyPair::generate().unwrap();
        let mut params = params(LeafKind::CnOnly);
        params.extended_key_usages = Vec::new();
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let certificate = params.signed_by(&key, &self.0).unwrap();
        Leaf::new(&certificate, &key)
    }

    /// Issues a leaf that expires at a time, in unix seconds.
    #[must_use]
    pub fn leaf_until(&self, unix_seconds: i64) -> Leaf {
        let key = KeyPair::generate().unwrap();
        let mut params = params(LeafKind::Valid);
        let epoch = date_time_ymd(1970, 1, 1);
        params.not_after = epoch + Duration::from_secs(unix_seconds.unsigned_abs());
        let certificate = params.signed_by(&key, &self.0).unwrap();
        Leaf::new(&certificate, &key)
    }
}

/// Creates a self-signed leaf.
#[must_use]
pub fn self_signed() -> Leaf {
    let key = KeyPair::generate().unwrap();
    Leaf::new(&params(LeafKind::Valid).self_signed(&key).unwrap(), &key)
}

/// Creates a self-signed X.509 v1 certificate with an RSA key of this size.
#[must_use]
pub fn openssl_v1(bits: u32) -> OldLeaf {
    openssl_rsa(bits, &[])
}

/// Creates a self-signed X.509 v3 certificate with an RSA key of this size.
#[must_use]
pub fn openssl_v3(bits: u32) -> OldLeaf {
    openssl_rsa(bits, &["-extfile", "v3"])
}

fn openssl_rsa(bits: u32, extensions: &[&str]) -> OldLeaf {
    openssl_made(&["genrsa", &bits.to_string()], &[], extensions)
}

fn openssl_made(make_key: &[&str], digest: &[&str], extensions: &[&str]) -> OldLeaf {
    let directory = Directory::new();
    directory.write("v3", "subjectAltName = DNS:db.example\n", 0o600);
    let run = |arguments: &[&str]| {
        let output = Command::new("openssl").args(arguments).current_dir(directory.path()).output();
        let output = output.expect("these tests need the openssl command");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    let make_key = [&make_key[..1], &["-out", "key"], &make_key[1..]].concat();
    run(&make_key);
    run(&["req", "-new", "-key", "key", "-subj", "/CN=db.example", "-out", "csr"]);
    let sign = ["x509", "-req", "-in", "csr", "-signkey", "key", "-days", "9000", "-out", "cert"];
    run(&[&sign, digest, extensions].concat());
    let read = |name| std::fs::read_to_string(directory.path().join(name)).unwrap();
    let cert_pem = read("cert");
    let key_pem = read("key");
    let chain = vec![CertificateDer::from_pem_slice(cert_pem.as_bytes()).unwrap()];
    OldLeaf { chain, cert_pem, key_pem }
}

fn ca_params(name: &str, adjust: impl FnOnce(&mut CertificateParams)) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    adjust(&mut params);
    params
}

/// Creates a self-signed certificate with a key that the `openssl` command creates with these
/// arguments.
#[must_use]
pub fn openssl_key(make: &[&str]) -> OldLeaf {
    openssl_made(make, &["-sha256"], &["-extfile", "v3"])
}

/// Creates a self-signed RSA certificate that is signed with SHA-1.
#[must_use]
pub fn openssl_sha1() -> OldLeaf {
    openssl_made(&["genrsa", "2048"], &["-sha1"], &["-extfile", "v3"])
}

fn params(kind: LeafKind) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, "leaf");
    params.not_before = date_time_ymd(2020, 1, 1);
    params.not_after = date_time_ymd(2090, 1, 1);
    params.extended_key_usages = vec![Usage::ServerAuth, Usage::ClientAuth];
    params.subject_alt_names = vec![
        SanType::DnsName(NAME.try_into().unwrap()),
        SanType::IpAddress([10, 7, 0, 1].into()),
        SanType::IpAddress(std::net::Ipv6Addr::LOCALHOST.into()),
        SanType::URI("spiffe://example/db".try_into().unwrap()),
    ];
    match kind {
        LeafKind::Valid => {}
        LeafKind::Expired => params.not_after = date_time_ymd(2021, 2, 3),
        LeafKind::NotYetValid => params.not_before = date_time_ymd(2080, 4, 5),
        LeafKind::WrongUsage => params.extended_key_usages = vec![Usage::CodeSigning],
        LeafKind::ServerOnly => params.extended_key_usages = vec![Usage::ServerAuth],
        LeafKind::WrongName => {
            params.subject_alt_names = vec![SanType::DnsName("other.example".try_into().unwrap())];
        }
        LeafKind::CnOnly => params.subject_alt_names = Vec::new(),
    }
    params
}

/// A directory that is removed at the end of a test.
#[derive(Debug)]
pub struct Directory(std::path::PathBuf);

impl Directory {
    /// Creates an empty directory.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "`new` creates a directory on disk")]
    pub fn new() -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tacit-test-{}-{count}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// Returns its path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Writes a file in the directory.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>, mode: u32) {
        use std::os::unix::fs::PermissionsExt;
        let path = self.0.join(name);
        std::fs::write(&path, content).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
