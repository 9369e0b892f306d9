//! What the originals can say and what is not, or differently, here: each is told where it is said.

use super::context::Context;
use super::effective::Effective;
use super::map::ring_name;

/// How the import reports an attribute that the policy sets.
enum Tell {
    /// Nothing is lost.
    Info(&'static str),
    /// Something is: why, and what to do.
    Changed(&'static str, &'static str),
    /// It must not be lost.
    Error(&'static str, &'static str),
}

impl Context<'_> {
    /// Tells of every attribute of the rule that becomes nothing.
    pub(super) fn tell_ignored(&mut self, rule: &Effective<'_>) {
        for field in rule.everything() {
            let word = field.attribute.word;
            let default = field.attribute.default.is_some_and(|default| default == field.value);
            if default || field.block.is_some() {
                continue;
            }
            match tell(word, &field.value) {
                None => {}
                Some(Tell::Info(why)) => {
                    self.findings.info(&field.at, format!("`{word}` is not taken over: {why}"));
                }
                Some(Tell::Changed(why, fix)) => {
                    self.findings.changed(&field.at, format!("`{word}` is dropped: {why}"), fix);
                }
                Some(Tell::Error(why, fix)) => {
                    self.findings.error(&field.at, format!("`{word}` cannot be kept: {why}"), fix);
                }
            }
        }
        self.tell_revocation(rule);
    }

    /// Certificates may be revoked in ways that are looked up elsewhere; here in files.
    fn tell_revocation(&mut self, rule: &Effective<'_>) {
        let words = ["OcspUrl", "OcspAiaEnable", "HttpCdpEnable", "GSK_LDAP_SERVER"];
        let asked = words.iter().filter_map(|word| rule.said(word));
        let Some(field) = asked.into_iter().find(|field| field.value != "Off") else { return };
        let ring = rule.said("Keyring").and_then(|ring| self.map.keyring(&ring_name(&ring.value)));
        if ring.is_some_and(|ring| ring.crl.is_some()) {
            self.findings.info(&field.at, "revocation is checked by the `crl` of the map only");
        } else {
            let message = "revocation is not asked for online, and the map names no `crl`";
            let fix = "name files of revocation lists: crl = \"corp.crl\" in the key ring's table";
            self.findings.changed(&field.at, message, fix);
        }
    }
}

/// Whether the import reports an attribute, for at least one of its values.
#[cfg(test)]
pub(super) fn is_told(word: &str) -> bool {
    let revocation = ["OcspUrl", "OcspAiaEnable", "HttpCdpEnable", "GSK_LDAP_SERVER"];
    tell(word, "Required").is_some() || revocation.contains(&word)
}

const RENEGOTIATION: Tell = Tell::Info("nothing is ever renegotiated");
const LIBRARY: Tell = Tell::Info("the TLS library decides");

/// What to report about an attribute that is not at its default; `None` if it takes effect.
fn tell(word: &str, value: &str) -> Option<Tell> {
    Some(match word {
        "FIPS140" => Tell::Error(
            "there is no FIPS 140 mode",
            "say FIPS140 Off in what is imported, if you may do without",
        ),
        "Envfile" => Tell::Changed("the file is not read", "move what it sets into this policy"),
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
        "PeerMinRsaKeySize" if above(value, 2048) => Tell::Changed(
            "keys of RSA have 2048 bits at least, and no more is demanded",
            "have the CA issue larger keys",
        ),
        "PeerMinEccKeySize" if above(value, 256) => Tell::Changed(
            "keys of elliptic curves have 256 bits at least, and no more is demanded",
            "have the CA issue larger keys",
        ),
        "PeerMinRsaKeySize" | "PeerMinEccKeySize" => Tell::Info("no less is taken in any case"),
        "KeyringPw" | "KeyringStashFile" => Tell::Info("the files of the map have no password"),
        "CtraceClearText" | "SyslogFacility" => Tell::Info("the log has settings of its own"),
        "GroupUserInstance" | "EnvironmentUserInstance" | "ConnectionUserInstance" => {
            Tell::Info("certificates and policies are reloaded without it")
        }
        "AIACDPPriority"
        | "MaxSrcRevExtLocValues"
        | "MaxValidRevExtLocValues"
        | "RevocationSecurityLevel" => Tell::Info("revocation is checked by the `crl` of the map"),
        word if word.starts_with("GSK_LDAP") || word.starts_with("GSK_CRL") => {
            Tell::Info("revocation is checked by the `crl` of the map")
        }
        word if ["Ocsp", "HttpCdp", "CRL", "LDAP"].iter().any(|head| word.starts_with(head)) => {
            Tell::Info("revocation is checked by the `crl` of the map")
        }
        "GSK_V3_SESSION_TIMEOUT" | "GSK_V3_SIDCACHE_SIZE" if value == "0" => return None,
        word if word.starts_with("GSK_") => {
            Tell::Info("sessions and tickets have their own limits")
        }
        _ => return tell_extension(word, value),
    })
}

/// The same of extensions of the handshake.
fn tell_extension(word: &str, value: &str) -> Option<Tell> {
    Some(match word {
        "ClientExtendedMasterSecret" | "ServerExtendedMasterSecret" if value == "Required" => {
            Tell::Changed("it is used, and not demanded", "say TLSv1.2 Off: TLS 1.3 always has it")
        }
        "ClientExtendedMasterSecret" | "ServerExtendedMasterSecret" => {
            Tell::Info("it is used wherever the peer offers it")
        }
        "TruncatedHMAC" | "ClientMaxSSLFragment" | "ServerMaxSSLFragment"
            if value == "Required" =>
        {
            Tell::Changed("the extension is never used", "say Off, and try it with the peers")
        }
        "TruncatedHMAC" | "ClientMaxSSLFragment" | "ServerMaxSSLFragment" => {
            Tell::Info("the extension is never used")
        }
        "ClientMaxSSLFragmentLength" | "ServerMaxSSLFragmentLength" => {
            Tell::Info("the extension is never used")
        }
        "ServerHandshakeSNI" if value == "Required" => Tell::Changed(
            "a client that names no server gets the first certificate",
            "expect it; nothing is refused for it",
        ),
        "ServerHandshakeSNIMatch" if value == "Required" => Tell::Changed(
            "a client that names another server gets the first certificate",
            "expect it; nothing is refused for it",
        ),
        "ServerHandshakeSNI" | "ServerHandshakeSNIMatch" => {
            Tell::Info("the certificate is chosen by the name that a client sends")
        }
        "ClientHandshakeSNI" if value == "Off" => return None,
        "ClientHandshakeSNI" => Tell::Info("the name is sent in any case"),
        "ClientHandshakeSNIMatch" => Tell::Info("what the server makes of the name is its own"),
        _ => return None,
    })
}

fn above(value: &str, bits: u32) -> bool {
    value.parse::<u32>().is_ok_and(|value| value > bits)
}
