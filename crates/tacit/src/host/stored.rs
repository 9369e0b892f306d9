//! Stores the installed policy in a file (`tacit agent --host --last-policy FILE`). At the next
//! boot, the policy of the host may have an error. Then a guard (`tacit agent --host --guard`)
//! installs the nftables rules of the stored policy. If the guard cannot use the stored policy
//! either, the guard permits only DHCP and SSH.
//!
//! ```text
//! tacit-policy 1 LENGTH CHECKSUM
//! the policy, and the files that it includes
//! ```
//!
//! The agent replaces the file atomically, with mode 0600. A guard uses the file only if the file
//! belongs to the guard's user or to root. No other user may have permission to write to the file.
//! Length and checksum must be right. The checksum (FNV-1a) detects damage. The checksum need not
//! detect forgery, because only the owner can write to the file.
//!
//! Limit: [`POLICY_BYTES_MAX`] bytes of policy.

use std::fmt;
use std::fs::{File, OpenOptions, remove_file};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use tacit_core::policy::{Diagnostic, POLICY_BYTES_MAX};
use tacit_sys::process;

use crate::live::directory_of;
use crate::temporary_file::TemporaryFile;

/// The first word of the file.
const FORMAT: &str = "tacit-policy";
/// The version of the format.
const VERSION: &str = "1";
/// The longest first line.
const HEADER_BYTES_MAX: usize = 64;
const MODE: u32 = 0o600;
/// The mode bits that let other users write.
const WRITABLE_BY_OTHERS: u32 = 0o022;
/// The most characters of an unknown version in a message.
const VERSION_CHARS_MAX: usize = 16;

/// Why a stored policy cannot be used.
#[derive(Debug)]
pub(super) enum StoredPolicyError {
    /// It cannot be read.
    Unreadable(io::Error),
    /// It is a directory, a link, a device or the like.
    NoFile,
    /// It belongs to this user.
    Owner(u32),
    /// It has this mode.
    Writable(u32),
    /// It is longer than a policy can be.
    TooLong,
    /// It does not begin like a stored policy.
    NoPolicy,
    /// Another version of tacit has written it, in this version of the format.
    Version(String),
    /// It has less text than its first line says.
    Truncated,
    /// It has other text than its first line says.
    Damaged,
    /// Its policy has these errors.
    Invalid(Vec<Diagnostic>),
}

impl fmt::Display for StoredPolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable(error) => error.fmt(f),
            Self::NoFile => f.write_str("the file is not a regular file"),
            Self::Owner(user) => {
                write!(
                    f,
                    "the file belongs to user {user}, and not to root or the user of this process"
                )
            }
            Self::Writable(mode) => {
                write!(
                    f,
                    "other users can write to the file (mode {mode:04o}; the agent uses 0600)"
                )
            }
            Self::TooLong => write!(f, "the file is longer than {POLICY_BYTES_MAX} bytes"),
            Self::NoPolicy => f.write_str("the file does not contain a stored policy"),
            Self::Version(version) => {
                write!(
                    f,
                    "the file has version {version} of the format, but this tacit reads only \
                     version {VERSION}"
                )
            }
            Self::Truncated => f.write_str("the file is truncated"),
            Self::Damaged => f.write_str("the file is damaged: its checksum is wrong"),
            Self::Invalid(findings) => {
                f.write_str("the policy in the file has an error")?;
                findings.first().map_or(Ok(()), |first| write!(f, ": {}", first.message))
            }
        }
    }
}

/// Why a policy is not stored.
#[derive(Debug)]
pub struct StoreError {
    /// The error of a system call.
    pub error: io::Error,
    /// Why an older policy may still be there; `None`: no policy is stored.
    pub left: Option<io::Error>,
}

/// Replaces the stored policy.
///
/// # Errors
/// The error of a system call. The older policy is then removed, so that a guard does not install
/// it: who fills the file system does not decide which policy is in force.
pub fn store_policy(path: &Path, text: &str) -> Result<(), StoreError> {
    replace(path, text).map_err(|error| StoreError { error, left: remove_policy(path).err() })
}

fn remove_policy(path: &Path) -> io::Result<()> {
    match remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(()) => File::open(directory_of(path))?.sync_all(),
    }
}

fn replace(path: &Path, text: &str) -> io::Result<()> {
    let temporary = temporary_of(path);
    match remove_file(&temporary) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let made = TemporaryFile::create(temporary, MODE)?;
    made.write(&header(text))?;
    made.write(text)?;
    made.file().sync_all()?;
    made.replace(path)?;
    // A power failure then loses neither the old file nor the new one.
    File::open(directory_of(path))?.sync_all()
}

fn temporary_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    name.into()
}

fn header(text: &str) -> String {
    format!("{FORMAT} {VERSION} {} {:016x}\n", text.len(), checksum(text))
}

/// Reads the text of the stored policy.
///
/// # Errors
/// The file cannot be used.
pub(super) fn stored_policy(path: &Path) -> Result<String, StoredPolicyError> {
    // Opening waits neither for the writer of a FIFO nor follows a link.
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path);
    let file = file.map_err(|error| match error.raw_os_error() {
        Some(errno) if errno == rustix::io::Errno::LOOP.raw_os_error() => StoredPolicyError::NoFile,
        _ => StoredPolicyError::Unreadable(error),
    })?;
    let metadata = file.metadata().map_err(StoredPolicyError::Unreadable)?;
    if !metadata.is_file() {
        return Err(StoredPolicyError::NoFile);
    }
    if ![0, process::effective_user()].contains(&metadata.uid()) {
        return Err(StoredPolicyError::Owner(metadata.uid()));
    }
    if metadata.mode() & WRITABLE_BY_OTHERS != 0 {
        return Err(StoredPolicyError::Writable(metadata.mode() & 0o7777));
    }
    let bytes_max = HEADER_BYTES_MAX + POLICY_BYTES_MAX;
    let mut content = Vec::new();
    let taken = file.take(bytes_max as u64 + 1).read_to_end(&mut content);
    taken.map_err(StoredPolicyError::Unreadable)?;
    if content.len() > bytes_max {
        return Err(StoredPolicyError::TooLong);
    }
    parse(&content).map(str::to_owned)
}

/// The policy in the content of a file.
fn parse(content: &[u8]) -> Result<&str, StoredPolicyError> {
    let end = content.iter().take(HEADER_BYTES_MAX).position(|byte| *byte == b'\n');
    let (header, text) = content.split_at(end.ok_or(StoredPolicyError::NoPolicy)?);
    let header = std::str::from_utf8(header).map_err(|_| StoredPolicyError::NoPolicy)?;
    let text = text.get(1..).unwrap_or_default();
    let mut words = header.split(' ');
    if words.next() != Some(FORMAT) {
        return Err(StoredPolicyError::NoPolicy);
    }
    match words.next() {
        Some(VERSION) => {}
        other => {
            let shown: String = other.unwrap_or("(none)").chars().take(VERSION_CHARS_MAX).collect();
            return Err(StoredPolicyError::Version(shown.escape_default().to_string()));
        }
    }
    let length = words.next().and_then(|word| word.parse::<usize>().ok());
    let wanted = words.next().and_then(|word| u64::from_str_radix(word, 16).ok());
    let (Some(length), Some(wanted), None) = (length, wanted, words.next()) else {
        return Err(StoredPolicyError::Damaged);
    };
    if text.len() < length {
        return Err(StoredPolicyError::Truncated);
    }
    let text = std::str::from_utf8(text).map_err(|_| StoredPolicyError::Damaged)?;
    if text.len() > length || checksum(text) != wanted {
        return Err(StoredPolicyError::Damaged);
    }
    Ok(text)
}

/// FNV-1a with 64 bits.
fn checksum(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    const TEXT: &str = "version = 1\n[host]\nunmatched = \"permit\"\n";

    fn directory(name: &str) -> PathBuf {
        let directory = std::env::temp_dir().join(format!("tacit-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir(&directory).unwrap();
        directory
    }

    fn refusal(content: &[u8]) -> String {
        parse(content).unwrap_err().to_string()
    }

    #[test]
    fn the_checksum_is_fnv_1a() {
        assert_eq!(checksum(""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(checksum("foobar"), 0x8594_4171_f739_67e8);
    }

    #[test]
    fn no_cut_or_changed_file_is_a_policy() {
        let whole = format!("{}{TEXT}", header(TEXT)).into_bytes();
        assert_eq!(parse(&whole).unwrap(), TEXT);
        for end in 0..whole.len() {
            assert!(parse(&whole[..end]).is_err(), "{end}");
        }
        for at in 0..whole.len() {
            for bit in 0..8 {
                let mut changed = whole.clone();
                changed[at] ^= 1 << bit;
                let is_same = parse(&changed).is_ok_and(|text| text == TEXT);
                // The case of a digit of the checksum has no meaning.
                assert!(parse(&changed).is_err() || is_same, "{at} {bit}");
            }
        }
    }

    #[test]
    fn a_file_that_cannot_be_used_has_a_reason() {
        assert_eq!(refusal(b""), "the file does not contain a stored policy");
        assert_eq!(refusal(TEXT.as_bytes()), "the file does not contain a stored policy");
        assert_eq!(
            refusal(b"tacit-policy 2 0 cbf29ce484222325\n"),
            "the file has version 2 of the format, but this tacit reads only version 1"
        );
        assert_eq!(refusal(b"tacit-policy 1 1 cbf29ce484222325\n"), "the file is truncated");
        for damaged in ["1 0 0\n", "1 0\n", "1 0 cbf29ce484222325 x\n", "1 0 cbf29ce484222325\nx"] {
            let found = refusal(format!("tacit-policy {damaged}").as_bytes());
            assert_eq!(found, "the file is damaged: its checksum is wrong", "{damaged}");
        }
    }

    #[test]
    fn a_stored_policy_is_read_as_it_was_written() {
        let directory = directory("stored");
        let path = directory.join("policy");
        for text in ["", TEXT] {
            store_policy(&path, text).unwrap();
            assert_eq!(stored_policy(&path).unwrap(), text);
            assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o600);
        }
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 1, "no other file is left");
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn a_policy_that_cannot_be_stored_takes_the_older_one_with_it() {
        let directory = directory("unstored");
        let path = directory.join("policy");
        store_policy(&path, TEXT).unwrap();
        // No file can be written beside the older one.
        let temporary = temporary_of(&path);
        fs::create_dir(&temporary).unwrap();
        let StoreError { left, .. } = store_policy(&path, "another").unwrap_err();
        assert!(left.is_none(), "{left:?}");
        let found = stored_policy(&path).unwrap_err();
        assert!(found.to_string().starts_with("No such file"), "{found}");
        fs::remove_dir(&temporary).unwrap();
        store_policy(&path, "another").unwrap();
        assert_eq!(stored_policy(&path).unwrap(), "another");
        // What cannot be removed is reported.
        remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(store_policy(&path, TEXT).unwrap_err().left.is_some());
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn a_file_that_another_user_could_write_is_refused() {
        let directory = directory("writable");
        let path = directory.join("policy");
        store_policy(&path, TEXT).unwrap();
        for mode in [0o620, 0o602, 0o666] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let found = stored_policy(&path).unwrap_err().to_string();
            assert!(found.starts_with("other users can write to the file (mode 0"), "{found}");
        }
        let link = directory.join("link");
        symlink(&path, &link).unwrap();
        for other in [&link, &directory] {
            assert_eq!(
                stored_policy(other).unwrap_err().to_string(),
                "the file is not a regular file"
            );
        }
        fs::remove_dir_all(directory).unwrap();
    }
}
