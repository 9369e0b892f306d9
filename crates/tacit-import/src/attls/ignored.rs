//! Reports which attributes of an AT-TLS rule the import ignores, changes or rejects. Each report
//! contains the line of the attribute.

use super::context::Context;
use super::effective::Effective;
use super::map::ring_name;

/// How the import reports an attribute that the policy sets.
enum Notice {
    /// The attribute has no effect in tacit: why.
    Info(&'static str),
    /// The rule behaves differently without it: how, and what to do.
    Changed(&'static str, &'static str),
    /// The rule must not be imported without it: why, and what to do.
    Error(&'static str, &'static str),
}

impl Context<'_> {
    /// Reports every attribute of the rule that is not imported.
    pub(super) fn report_ignored(&mut self, rule: &Effective<'_>) {
        for field in rule.everything() {
            let word = field.attribute.word;
            let default = field.attribute.default.is_some_and(|default| default == field.value);
            if default || field.block.is_some() {
                continue;
            }
            match notice_of(word, &field.value) {
                None => {}
                Some(Notice::Info(why)) => {
                    self.findings.info(&field.at, format!("`{word}` is not imported: {why}"));
                }
                Some(Notice::Changed(why, fix)) => {
                    self.findings.changed(
                        &field.at,
                        format!("`{word}` has no effect in the imported policy: {why}"),
                        fix,
                    );
                }
                Some(Notice::Error(why, fix)) => {
                    self.findings.error(
                        &field.at,
                        format!("`{word}` cannot be imported: {why}"),
                        fix,
                    );
                }
            }
        }
        self.report_revocation(rule);
    }

    /// Reports that revocation is checked only with CRL files.
    fn report_revocation(&mut self, rule: &Effective<'_>) {
        let words = ["OcspUrl", "OcspAiaEnable", "HttpCdpEnable", "GSK_LDAP_SERVER"];
        let fields = words.iter().filter_map(|word| rule.field(word));
        let Some(field) = fields.into_iter().find(|field| field.value != "Off") else { return };
        let ring = rule.field("Keyring").and_then(|ring| self.map.keyring(&ring_name(&ring.value)));
        if ring.is_some_and(|ring| ring.crl.is_some()) {
            self.findings.info(
                &field.at,
                "tacit checks revocation only with the CRL files that the map file names",
            );
        } else {
            let message = "tacit accepts revoked certificates, because the map file names no \
                           `crl`, and tacit uses neither OCSP nor LDAP";
            let fix = "in the map file, add the CRL files to the table of this key ring: crl = \
                       \"corp.crl\"";
            self.findings.changed(&field.at, message, fix);
        }
    }
}

/// Whether the import reports an attribute, for at least one of its values.
#[cfg(test)]
pub(super) fn is_reported(word: &str) -> bool {
    let revocation = ["OcspUrl", "OcspAiaEnable", "HttpCdpEnable", "GSK_LDAP_SERVER"];
    notice_of(word, "Required").is_some() || revocation.contains(&word)
}

const RENEGOTIATION: Notice = Notice::Info("tacit never renegotiates");
const LIBRARY: Notice = Notice::Info("the TLS library of tacit has no setting for this attribute");

/// What to report about an attribute that is not at its default; `None` if it takes effect.
fn notice_of(word: &str, value: &str) -> Option<Notice> {
    Some(match word {
        "FIPS140" => Notice::Error(
            "tacit has no FIPS 140 mode",
            "if you do not need FIPS 140, set FIPS140 Off",
        ),
        "Envfile" => Notice::Changed(
            "tacit does not read the file that this attribute names",
            "copy the settings of this file into the policy that you import",
        ),
        "Renegotiation" | "RenegotiationIndicator" | "RenegotiationCertCheck" => RENEGOTIATION,
        "SignaturePairs"
        | "SignaturePairsCert"
        | "CertValidationMode"
        | "PeerMinCertVersion"
        | "ClientEDHGroupSize"
        | "ServerEDHGroupSize"
        | "PeerMinDhKeySize"
        | "PeerMinDsaKeySize"
        | "3DesKeyCheck"
        | "ServerScsv"
        | "MiddleBoxCompatMode" => LIBRARY,
        "PeerMinRsaKeySize" if above(value, 2048) => Notice::Changed(
            "tacit rejects RSA keys of less than 2048 bits; a policy cannot require longer keys",
            "make sure that the CA issues certificates only for keys of at least the size that \
             this attribute sets",
        ),
        "PeerMinEccKeySize" if above(value, 256) => Notice::Changed(
            "tacit accepts every elliptic curve key of at least 256 bits; a policy cannot \
             require longer keys",
            "make sure that the CA issues certificates only for keys of at least the size that \
             this attribute sets",
        ),
        "PeerMinRsaKeySize" | "PeerMinEccKeySize" => {
            Notice::Info("tacit always requires keys of at least the size that this attribute sets")
        }
        "KeyringPw" | "KeyringStashFile" => {
            Notice::Info("tacit needs no password, because it reads unencrypted PEM files")
        }
        "CtraceClearText" | "SyslogFacility" => {
            Notice::Info("tacit's agent has its own log options: see --log and --quiet in tacit(1)")
        }
        "GroupUserInstance" | "EnvironmentUserInstance" | "ConnectionUserInstance" => Notice::Info(
            "tacit does not need this attribute: the agent reloads changed certificates itself, \
             and `tacit reload` loads a changed policy",
        ),
        "AIACDPPriority"
        | "MaxSrcRevExtLocValues"
        | "MaxValidRevExtLocValues"
        | "RevocationSecurityLevel" => {
            Notice::Info("tacit checks revocation only with the CRL files that the map file names")
        }
        word if word.starts_with("GSK_LDAP") || word.starts_with("GSK_CRL") => {
            Notice::Info("tacit checks revocation only with the CRL files that the map file names")
        }
        word if ["Ocsp", "HttpCdp", "CRL", "LDAP"].iter().any(|head| word.starts_with(head)) => {
            Notice::Info("tacit checks revocation only with the CRL files that the map file names")
        }
        "GSK_V3_SESSION_TIMEOUT" | "GSK_V3_SIDCACHE_SIZE" if value == "0" => return None,
        word if word.starts_with("GSK_") => {
            Notice::Info("tacit has its own limits for TLS sessions and session tickets")
        }
        _ => return notice_of_extension(word, value),
    })
}

/// The same for extensions of the handshake.
fn notice_of_extension(word: &str, value: &str) -> Option<Notice> {
    Some(match word {
        "ClientExtendedMasterSecret" | "ServerExtendedMasterSecret" if value == "Required" => {
            Notice::Changed(
                "tacit uses the Extended Master Secret of TLS 1.2, but also accepts peers without \
                 this extension",
                "set TLSv1.2 Off: TLS 1.3 always binds keys to the whole handshake, and needs no \
                 Extended Master Secret",
            )
        }
        "ClientExtendedMasterSecret" | "ServerExtendedMasterSecret" => Notice::Info(
            "tacit uses the Extended Master Secret of TLS 1.2 if the peer supports this extension",
        ),
        "TruncatedHMAC" | "ClientMaxSSLFragment" | "ServerMaxSSLFragment"
            if value == "Required" =>
        {
            Notice::Changed(
                "tacit never uses the TLS extension that this attribute controls",
                "set the attribute to Off, and test the connection with each peer, because a peer \
                 may require this extension",
            )
        }
        "TruncatedHMAC" | "ClientMaxSSLFragment" | "ServerMaxSSLFragment" => {
            Notice::Info("tacit never uses the TLS extension that this attribute controls")
        }
        "ClientMaxSSLFragmentLength" | "ServerMaxSSLFragmentLength" => {
            Notice::Info("tacit never uses the TLS extension that this attribute controls")
        }
        "ServerHandshakeSNI" if value == "Required" => Notice::Changed(
            "tacit accepts a client that sends no server name, and uses the first certificate",
            "no change is possible: tacit has no setting that rejects clients without a server \
             name",
        ),
        "ServerHandshakeSNIMatch" if value == "Required" => Notice::Changed(
            "tacit accepts a client that sends a server name for which there is no certificate, \
             and uses the first certificate",
            "no change is possible: tacit has no setting that rejects clients with an unknown \
             server name",
        ),
        "ServerHandshakeSNI" | "ServerHandshakeSNIMatch" => {
            Notice::Info("tacit chooses the certificate by the server name that the client sends")
        }
        "ClientHandshakeSNI" if value == "Off" => return None,
        "ClientHandshakeSNI" => Notice::Info("tacit always sends the server name"),
        "ClientHandshakeSNIMatch" => {
            Notice::Info("the TLS server decides how to use the server name that a client sends")
        }
        _ => return None,
    })
}

fn above(value: &str, bits: u32) -> bool {
    value.parse::<u32>().is_ok_and(|value| value > bits)
}
