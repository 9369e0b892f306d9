//! Reads the pre-shared keys of IPsec tunnels from files. The setting `psk-file` in the policy
//! contains the path of such a file.

use std::collections::BTreeMap;
use std::path::Path;

use tacit_core::message_id::MessageId;
use tacit_core::policy::{Diagnostic, IkeCredentials, Policy, SourcePosition};
use tacit_ipsec::SecretBytes;
use tacit_tls::files::{SecretFileFault, read_secret};

/// The longest key.
const KEY_BYTES_MAX: usize = 4096;
/// The shortest key that is not warned about: 16 random bytes (RFC 7296 section 2.15).
const KEY_BYTES_ADVISED: usize = 16;

/// The keys, by the name of the peer. Adds errors and warnings to `findings`.
pub(super) fn load(
    policy: &Policy,
    base: &Path,
    findings: &mut Vec<Diagnostic>,
) -> BTreeMap<String, SecretBytes> {
    let mut keys = BTreeMap::new();
    for (name, peer) in &policy.ikes {
        let IkeCredentials::SharedKey { file, position } = &peer.credentials else { continue };
        match read(&base.join(file), *position) {
            Ok(key) => {
                findings.extend(doubt(&key, file, *position));
                keys.insert(name.clone(), key);
            }
            Err(finding) => findings.push(finding),
        }
    }
    keys
}

/// Reads one key. The newline at the end of the file is not part of it.
fn read(path: &Path, position: SourcePosition) -> Result<SecretBytes, Diagnostic> {
    let shown = path.display();
    let refused = |what: String, fix: String| {
        let message = format!("cannot use the pre-shared key in {shown}: {what}");
        Diagnostic::error(MessageId("unusable-file"), position, message).with_fix(fix)
    };
    let mut bytes = read_secret(path).map_err(|fault| {
        let fix = fix_of(&fault, path, "write the key to the file, or correct `psk-file`");
        refused(fault.to_string(), fix)
    })?;
    if bytes.last() == Some(&b'\n') {
        bytes.pop();
    }
    match bytes.len() {
        0 => Err(refused("the file is empty".to_owned(), "write the key to the file".to_owned())),
        1..=KEY_BYTES_MAX => Ok(SecretBytes::new(bytes)),
        _ => Err(refused(
            format!("the key is longer than {KEY_BYTES_MAX} bytes"),
            "write only the key to the file".to_owned(),
        )),
    }
}

/// The next step after a fault; `otherwise` is for a file that has no usable content.
pub(super) fn fix_of(fault: &SecretFileFault, path: &Path, otherwise: &str) -> String {
    let shown = path.display();
    match fault {
        SecretFileFault::Exposed { .. } => format!("run: chmod 600 {shown}"),
        SecretFileFault::Owner { .. } => {
            format!("change the owner of the file to the agent's user: chown USER {shown}")
        }
        SecretFileFault::Io(_) | SecretFileFault::NotRegular | SecretFileFault::TooLarge => {
            otherwise.to_owned()
        }
    }
}

/// Warns about a key that an attacker can guess from recorded messages.
fn doubt(key: &SecretBytes, file: &Path, position: SourcePosition) -> Option<Diagnostic> {
    let bytes = key.as_bytes().len();
    (bytes < KEY_BYTES_ADVISED).then(|| {
        let message = format!(
            "the pre-shared key in {} has only {bytes} bytes: an attacker who intercepts the IKE \
             messages can guess a short key",
            file.display()
        );
        let fix = format!(
            "on both sides, use the same random key of at least {KEY_BYTES_ADVISED} bytes, for \
             example from: openssl rand -base64 32"
        );
        Diagnostic::warning(MessageId("doubtful-file"), position, message).with_fix(fix)
    })
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixListener;

    use tacit_sys::process;

    use super::*;

    #[test]
    fn only_a_private_file_with_a_key_is_used() {
        let start = SourcePosition { file: 0, line: 1, column: 1 };
        let path = std::env::temp_dir().join(format!("tacit-psk-{}", std::process::id()));
        let read_with = |content: &[u8], mode: u32| {
            fs::write(&path, content).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            read(&path, start).map_err(|finding| finding.message)
        };
        let key = read_with(b"a shared key\n", 0o600).unwrap();
        assert_eq!(key.as_bytes(), b"a shared key");
        assert!(doubt(&key, &path, start).is_some());
        let key = read_with(&[b'k'; 44], 0o400).unwrap();
        assert!(doubt(&key, &path, start).is_none());
        for (content, mode, why) in [
            (&b"a shared key"[..], 0o640, "mode 0640"),
            (b"\n", 0o600, "empty"),
            (&[b'k'; 4097], 0o600, "longer than 4096"),
        ] {
            let message = read_with(content, mode).unwrap_err();
            assert!(message.contains(why) && !message.contains("kk"), "{message}");
        }
        let refusal = |path: &Path| read(path, start).unwrap_err().message;
        fs::write(&path, "a shared key").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        if process::effective_user() == 0 {
            std::os::unix::fs::chown(&path, Some(54321), None).unwrap();
            assert!(refusal(&path).contains("belongs to user 54321"), "{}", refusal(&path));
        }
        fs::remove_file(&path).unwrap();
        assert!(refusal(Path::new("/dev/null")).contains("not a regular file"));
        let _listener = UnixListener::bind(&path).unwrap();
        assert!(read(&path, start).is_err());
        fs::remove_file(&path).unwrap();
        assert!(read(&path, start).unwrap_err().message.contains("No such file"));
    }
}
