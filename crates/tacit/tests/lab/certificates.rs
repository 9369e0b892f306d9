//! Creates valid and invalid certificates for the tests in this directory. The unit tests of
//! certificate verification also use these certificates.

use serde_json::{Value, json};

use crate::harness::Lab;
use crate::peers::write_pair;

use tacit_tls::test_certificates as made;
pub(crate) use tacit_tls::test_certificates::{Ca, Leaf, LeafKind, NAME};

/// Writes `NAME.pem` and `NAME.key` of every kind of certificate, `corp.pem` with the CA that
/// the valid ones come from, and says the words that a refusal must contain.
pub fn write_all(lab: &Lab) -> Vec<(&'static str, &'static str)> {
    write_of(lab, &Ca::new("corp CA"))
}

/// The same with a CA that the test keeps.
pub fn write_of(lab: &Lab, corp: &Ca) -> Vec<(&'static str, &'static str)> {
    let stranger = Ca::new("stranger CA");
    lab.write("corp.pem", corp.pem());
    let kinds = [
        ("valid", LeafKind::Valid, ""),
        ("expired", LeafKind::Expired, "expired at 2021-02-03 00:00 UTC"),
        ("not-yet", LeafKind::NotYetValid, "not valid before 2080-04-05 00:00 UTC"),
        ("wrong-usage", LeafKind::WrongUsage, "allows codeSigning, but not"),
        ("wrong-name", LeafKind::WrongName, "is for other.example, not for db.example"),
        ("cn-only", LeafKind::CnOnly, "has no subjectAltName, and tacit ignores common"),
    ];
    let mut all = Vec::new();
    for (name, kind, words) in kinds {
        let leaf = corp.leaf(kind);
        write_pair(lab, name, &leaf.cert_pem, &leaf.key_pem);
        all.push((name, words));
    }
    let foreign = stranger.leaf(LeafKind::Valid);
    let own = made::self_signed();
    write_pair(lab, "wrong-ca", &foreign.cert_pem, &foreign.key_pem);
    write_pair(lab, "self-signed", &own.cert_pem, &own.key_pem);
    for (name, old) in [("v1", made::openssl_v1(2048)), ("rsa-1024", made::openssl_v3(1024))] {
        write_pair(lab, name, &old.cert_pem, &old.key_pem);
    }
    all.extend([
        ("wrong-ca", "ends at the issuer CN=stranger CA, but [trust.corp] does not contain this"),
        ("self-signed", "is self-signed, and [trust.corp] does not contain the issuer"),
        (
            "v1",
            "is X.509 v1, which supports neither host names nor usages: reissue the certificate",
        ),
        ("rsa-1024", "has a key that is too weak (RSA 1024): reissue the certificate"),
    ]);
    all
}

/// A peer's options with that certificate.
pub fn with(name: &str) -> Value {
    json!({ "cert": format!("{name}.pem"), "key": format!("{name}.key") })
}
