//! Reads the encryption and HMAC keys of manual IPsec SAs (security associations without IKE) from
//! files. In the policy, `keys-in` and `keys-out` of the table `[sa.NAME]` contain the paths of
//! these files.
//!
//! A file has two lines of hexadecimal digits: the key of the cipher, then the key of the HMAC. AH
//! has no cipher, so the file has only the key of the HMAC. Empty lines, and lines that begin with
//! `#`, are ignored.

use std::collections::BTreeMap;
use std::path::Path;

use tacit_core::message_id::MessageId;
use tacit_core::policy::{
    Diagnostic, ManualProtection, ManualSa, Policy, SaKeyFile, SourcePosition,
};
use tacit_ipsec::{DirectionKeys, ManualKeys, SecretBytes};
use tacit_tls::files::read_secret;

use super::shared_keys::fix_of;

/// A random key of at least 16 bytes has as good as always more different bytes.
const DIFFERENT_BYTES_MIN: usize = 5;

/// The keys, by the name of the table. Adds errors to `findings`.
pub(super) fn load(
    policy: &Policy,
    base: &Path,
    findings: &mut Vec<Diagnostic>,
) -> BTreeMap<String, ManualKeys> {
    let mut keys = BTreeMap::new();
    let mut known = KnownKeys::default();
    for (name, sa) in &policy.sas {
        let mut read_one = |keys: &SaKeyFile| {
            let read = read(sa, &base.join(&keys.file), keys.position);
            let read = read.and_then(|read| known.admit(read, keys));
            read.map_err(|finding| findings.push(finding)).ok()
        };
        let inbound = read_one(&sa.keys_in);
        let outbound = read_one(&sa.keys_out);
        if let Some((inbound, outbound)) = inbound.zip(outbound) {
            keys.insert(name.clone(), ManualKeys { inbound, outbound });
        }
    }
    keys
}

/// All keys that were read, each with its file: no key may be used twice.
#[derive(Default)]
struct KnownKeys(Vec<(SecretBytes, String)>);

impl KnownKeys {
    fn admit(&mut self, keys: DirectionKeys, of: &SaKeyFile) -> Result<DirectionKeys, Diagnostic> {
        let all = [&keys.encryption, &keys.integrity];
        // AH has no key of a cipher.
        for key in all.into_iter().filter(|key| !key.as_bytes().is_empty()) {
            if let Some((_, other)) = self.0.iter().find(|(known, _)| known == key) {
                let message = format!(
                    "a key occurs twice: in {file} and in {other}",
                    file = of.file.display()
                );
                let fix = "write a different key on each line of these files: `openssl rand -hex \
                           32` prints a key with 32 bytes";
                let id = MessageId("shared-keys");
                return Err(Diagnostic::error(id, of.position, message).with_fix(fix));
            }
            self.0.push((key.clone(), of.file.display().to_string()));
        }
        Ok(keys)
    }
}

/// Reads the keys of one direction.
fn read(sa: &ManualSa, path: &Path, position: SourcePosition) -> Result<DirectionKeys, Diagnostic> {
    let shown = path.display();
    let refused = |what: String, fix: String| {
        let message = format!("cannot use the keys in {shown}: {what}");
        Diagnostic::error(MessageId("unusable-file"), position, message).with_fix(fix)
    };
    let bytes = read_secret(path).map(SecretBytes::new).map_err(|fault| {
        let fix = fix_of(&fault, path, "write the keys to the file, or correct the file name");
        refused(fault.to_string(), fix)
    })?;
    let KeyBytes { encryption: encryption_bytes, integrity: integrity_bytes } = key_bytes(sa);
    let how = match encryption_bytes {
        Some(encryption_bytes) => format!(
            "write two lines. `openssl rand -hex {encryption_bytes}` prints the first line, the \
             key of the cipher. `openssl rand -hex {integrity_bytes}` prints the second line, the \
             key of the HMAC"
        ),
        None => format!(
            "write one line, the key of the HMAC: `openssl rand -hex {integrity_bytes}` prints \
             this line"
        ),
    };
    let refused = |what: String| refused(what, how.clone());
    let lines = bytes.as_bytes().split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    let lines: Vec<&[u8]> =
        lines.filter(|line| !line.is_empty() && !line.starts_with(b"#")).collect();
    let wanted = if encryption_bytes.is_some() { 2 } else { 1 };
    let last = lines.split_last().filter(|_| lines.len() == wanted);
    let Some((integrity, before)) = last else {
        return Err(refused(format!(
            "the number of lines with keys is {}, but must be {wanted}",
            lines.len()
        )));
    };
    let key = |line: &[u8], what: &str, wanted: usize| {
        let key = hexadecimal(line)
            .ok_or_else(|| refused(format!("the key of {what} is not hexadecimal")))?;
        let found = key.as_bytes().len();
        if found != wanted {
            let message = format!("the key of {what} has {found} bytes, but must have {wanted}");
            return Err(refused(message));
        }
        if is_pattern(key.as_bytes()) {
            return Err(refused(format!(
                "the key of {what} has too few different bytes, so it is not random"
            )));
        }
        Ok(key)
    };
    let encryption = match (before, encryption_bytes) {
        ([encryption], Some(bytes)) => key(encryption, "the cipher", bytes)?,
        _ => SecretBytes::new(Vec::new()),
    };
    Ok(DirectionKeys { encryption, integrity: key(integrity, "the HMAC", integrity_bytes)? })
}

/// The lengths of the keys of one direction.
struct KeyBytes {
    /// That of the cipher; AH has none.
    encryption: Option<usize>,
    /// That of the HMAC (RFC 4868 section 2.1.1).
    integrity: usize,
}

fn key_bytes(sa: &ManualSa) -> KeyBytes {
    match sa.protection {
        ManualProtection::EspInUdp(cipher) | ManualProtection::Esp { cipher, .. } => {
            let cipher = crate::ike::esp_cipher(cipher);
            let encryption = Some(cipher.key_bytes());
            KeyBytes { encryption, integrity: cipher.integrity_key_bytes() }
        }
        ManualProtection::Ah { hash, .. } => {
            KeyBytes { encryption: None, integrity: crate::ike::ah_hash(hash).key_bytes() }
        }
    }
}

/// The bytes of hexadecimal digits, which may begin with `0x`.
fn hexadecimal(text: &[u8]) -> Option<SecretBytes> {
    let digits = text.strip_prefix(b"0x").unwrap_or(text);
    let (pairs, []) = digits.as_chunks::<2>() else { return None };
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let byte = |pair: &[u8; 2]| Some(digit(pair[0])? << 4 | digit(pair[1])?);
    pairs.iter().map(byte).collect::<Option<Vec<u8>>>().map(SecretBytes::new)
}

/// Whether a key has so few different bytes that it was typed, and is not random.
fn is_pattern(key: &[u8]) -> bool {
    let mut bytes = key.to_vec();
    bytes.sort_unstable();
    bytes.dedup();
    let different = bytes.len();
    drop(SecretBytes::new(bytes));
    different < DIFFERENT_BYTES_MIN
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const CIPHER_KEY: &str = "000102030405060708090a0b0c0d0e0f";
    const HMAC_KEY: &str = "202122232425262728292a2b2c2d2e2f303132333435363738393a3b3c3d3e3f";
    const OTHER_KEYS: &str = "101112131415161718191a1b1c1d1e1f\n\
        404142434445464748494a4b4c4d4e4f505152535455565758595a5b5c5d5e5f\n";

    struct Files(std::path::PathBuf);

    impl Files {
        fn new(test: &str) -> Self {
            let name = format!("tacit-sa-{test}-{}", std::process::id());
            let directory = std::env::temp_dir().join(name);
            fs::create_dir_all(&directory).unwrap();
            Self(directory)
        }

        fn write(&self, name: &str, content: &str, mode: u32) {
            let path = self.0.join(name);
            fs::write(&path, content).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        }

        fn load(&self) -> Result<ManualKeys, Vec<String>> {
            let text = "version = 1\n[sa.a]\npeer = \"192.0.2.1\"\nencryption = \"aes128-cbc\"\n\
                        integrity = \"sha256\"\nspi-in = 256\nspi-out = 256\nkeys-in = \"in\"\n\
                        keys-out = \"out\"\ninner = \"10.1.0.1\"\n";
            let policy = tacit_core::policy::parse(text).policy.unwrap();
            let mut findings = Vec::new();
            let mut keys = load(&policy, &self.0, &mut findings);
            keys.remove("a").ok_or_else(|| findings.into_iter().map(|one| one.message).collect())
        }
    }

    impl Drop for Files {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    #[test]
    fn a_file_has_two_keys_of_the_right_length() {
        let files = Files::new("lengths");
        files.write("out", OTHER_KEYS, 0o600);
        files.write("in", &format!("# keys\n\n0x{CIPHER_KEY}\r\n{HMAC_KEY}"), 0o600);
        let keys = files.load().unwrap();
        assert_eq!(keys.inbound.encryption.as_bytes(), (0..16).collect::<Vec<u8>>());
        assert_eq!(keys.inbound.integrity.as_bytes(), (32..64).collect::<Vec<u8>>());
        for (content, why) in [
            (CIPHER_KEY.to_owned(), "the number of lines with keys is 1, but must be 2"),
            (format!("{CIPHER_KEY}\n{CIPHER_KEY}"), "of the HMAC has 16 bytes, but must have 32"),
            (format!("{HMAC_KEY}\n{HMAC_KEY}"), "of the cipher has 32 bytes, but must have 16"),
            (format!("{CIPHER_KEY}\n{HMAC_KEY}0"), "of the HMAC is not hexadecimal"),
            (format!("{CIPHER_KEY}\n{}", HMAC_KEY.replace('2', "g")), "is not hexadecimal"),
            (format!("{CIPHER_KEY}\n{}", "ab".repeat(32)), "HMAC has too few different bytes"),
        ] {
            files.write("in", &content, 0o600);
            let messages = files.load().unwrap_err();
            assert!(messages.iter().any(|one| one.contains(why)), "{messages:?}");
            assert!(messages.iter().all(|one| !one.contains("0102")), "{messages:?}");
        }
        files.write("in", OTHER_KEYS, 0o640);
        assert!(files.load().unwrap_err()[0].contains("mode 0640"));
    }

    #[test]
    fn no_key_is_used_twice() {
        let files = Files::new("twice");
        let half = HMAC_KEY.split_at(32).0;
        for (content, other) in [
            (format!("{CIPHER_KEY}\n{HMAC_KEY}"), format!("{CIPHER_KEY}\n{HMAC_KEY}")),
            (format!("{CIPHER_KEY}\n{HMAC_KEY}"), format!("{half}\n{HMAC_KEY}")),
        ] {
            files.write("in", &content, 0o600);
            files.write("out", &other, 0o600);
            let messages = files.load().unwrap_err();
            assert!(messages[0].contains("a key occurs twice: in out and in in"), "{messages:?}");
        }
    }
}
