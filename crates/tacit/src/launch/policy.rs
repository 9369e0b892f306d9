//! Determines the policy of `tacit run`: a file, or the option `--tls`.
//!
//! `--tls` creates a policy with two rules for outbound TCP connections. One rule is for all
//! servers on other hosts. The other rule is for servers on the loopback addresses of this host.
//! The agent rejects all other connections, and all UDP datagrams except DNS.

use std::collections::BTreeSet;
use std::fmt;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use clap::Args;
use tacit_sys::input_file::open_regular;

/// The value of `--ca` that selects the CA certificates of the distribution.
const SYSTEM: &str = "system";
/// The file name of the generated policy in the directory of the run.
const FILE: &str = "policy.toml";

/// The message of `tacit run` without a policy.
pub(super) const HOW_TO_START: &str = "\
the command line does not state how to protect the program's connections
    fix: use one of
      tacit run --tls --ca ca.pem -- CMD          use TLS for every TCP connection of CMD
      tacit run --policy FILE -- CMD              use the rules of a policy (or set TACIT_POLICY)
      tacit run --tls --ca ca.pem --print-policy  print an example policy; see tacit.toml(5)";

/// TLS without a policy file
#[derive(Debug, Args)]
pub(super) struct TlsArgs {
    /// Use TLS for every outbound TCP connection of the program, without a policy file
    #[arg(long, requires = "ca", conflicts_with_all = ["policy", "agent"])]
    pub(super) tls: bool,
    /// PEM file with CA certificates, to verify servers; may be repeated. `system` selects the CA
    /// certificates of the distribution
    #[arg(long, value_name = "FILE", requires = "tls")]
    ca: Vec<PathBuf>,
    /// PEM file with a certificate for servers that require one
    #[arg(long, value_name = "FILE", requires_all = ["tls", "key"])]
    cert: Option<PathBuf>,
    /// PEM file with the private key of --cert
    #[arg(long, value_name = "FILE", requires_all = ["tls", "cert"])]
    key: Option<PathBuf>,
    /// Print the policy that --tls and its options generate, and exit
    #[arg(long, requires = "tls")]
    pub(super) print_policy: bool,
}

/// The source of the policy of a run.
#[derive(Debug)]
pub(super) enum PolicySource {
    /// A policy file. The run gets an agent of its own.
    File(PathBuf),
    /// The options of `--tls`. The run gets an agent of its own.
    Options,
    /// The policy of the running agent at this socket.
    Agent(PathBuf),
}

/// The reason why the options are invalid.
#[derive(Debug)]
pub enum OptionsError {
    /// A file cannot be read.
    Unreadable(&'static str, PathBuf, io::Error),
    /// A policy cannot contain this file name: it is not UTF-8 or has control characters.
    NotText(&'static str, PathBuf),
    /// The command line contains both `--ca system` and `--ca FILE`.
    SystemAndFiles,
}

impl fmt::Display for OptionsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable(option, path, error) => {
                write!(
                    f,
                    "cannot read {option} {}: {error}\n    \
                     fix: set {option} to a PEM file that this user can read",
                    path.display()
                )
            }
            Self::NotText(option, path) => write!(
                f,
                "{option} {path:?}: this file name cannot be written in a policy\n    \
                 fix: use a name in UTF-8 without control characters"
            ),
            Self::SystemAndFiles => f.write_str(
                "--ca system cannot be combined with --ca FILE\n    fix: replace \
                 `system` by the path of the distribution's CA certificates, such as \
                 /etc/ssl/certs/ca-certificates.crt",
            ),
        }
    }
}

impl std::error::Error for OptionsError {}

impl TlsArgs {
    /// The text of the policy, with absolute paths.
    pub(super) fn policy_text(&self) -> Result<String, OptionsError> {
        let is_system = |ca: &PathBuf| ca.as_os_str() == SYSTEM;
        let mut text = BEGINNING.to_owned();
        let trust = if self.ca.iter().any(is_system) {
            if !self.ca.iter().all(is_system) {
                return Err(OptionsError::SystemAndFiles);
            }
            SYSTEM
        } else {
            let files = self.ca.iter().map(|ca| quoted("--ca", ca));
            // Remove duplicates: a list in a policy must not have any.
            let files: BTreeSet<String> = files.collect::<Result<_, _>>()?;
            let files: Vec<_> = files.into_iter().collect();
            text.push_str(&format!("\n[trust.given]\nca = [{}]\n", files.join(", ")));
            "given"
        };
        let mut tls = format!("trust = \"{trust}\"");
        if let (Some(cert), Some(key)) = (&self.cert, &self.key) {
            let cert = quoted("--cert", cert)?;
            let key = quoted("--key", key)?;
            text.push_str(&format!("\n[identity.given]\ncert = {cert}\nkey  = {key}\n"));
            tls.push_str(", identity = \"given\"");
        }
        text.push_str(&format!("{EVERY_SERVER}tls       = {{ {tls} }}\n"));
        text.push_str(&format!("{LOOPBACK}tls       = {{ {tls}, server-name = \"localhost\" }}\n"));
        Ok(text)
    }
}

/// Writes the policy to a file in the directory of the run, and returns the path of the file. A
/// reload and the agent's successor read this file.
pub(super) fn write(text: &str, directory: &Path) -> io::Result<PathBuf> {
    let path = directory.join(FILE);
    let mut file =
        std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
    file.write_all(text.as_bytes())?;
    Ok(path)
}

/// The absolute path of a readable file, as a TOML string.
fn quoted(option: &'static str, path: &Path) -> Result<String, OptionsError> {
    let unreadable = |error| OptionsError::Unreadable(option, path.to_owned(), error);
    open_regular(path).map_err(unreadable)?;
    let absolute = std::path::absolute(path).map_err(unreadable)?;
    match absolute.to_str() {
        Some(text) if !text.chars().any(char::is_control) => {
            Ok(format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"")))
        }
        _ => Err(OptionsError::NotText(option, path.to_owned())),
    }
}

const BEGINNING: &str = "\
# The policy that `tacit run --tls` uses with the given options: TLS for every TCP connection that
# the program opens. The program can resolve every name with DNS. tacit rejects connections from
# outside, and UDP traffic that is not DNS.
version = 1
";

const EVERY_SERVER: &str = "
# Every server on other hosts. (Without `remote`, a rule does not match servers on this host.) The
# certificate of the server must be valid for the name that the program resolved, or for the address
# if the program resolved no name.
[[rule]]
name      = \"every-server\"
direction = \"outbound\"
";

const LOOPBACK: &str = "
# Servers on the loopback addresses of this host, at ports where the program itself does not
# listen. Their certificate must be valid for localhost.
[[rule]]
name      = \"loopback\"
direction = \"outbound\"
remote    = \"loopback\"
";

#[cfg(test)]
mod tests {
    use tacit_core::policy::parse;

    use super::*;

    /// A file that exists, by a relative path.
    const PEM: &str = "Cargo.toml";

    fn options(ca: &[&str], identity: Option<PathBuf>) -> TlsArgs {
        let ca = ca.iter().map(PathBuf::from).collect();
        TlsArgs { tls: true, ca, cert: identity.clone(), key: identity, print_policy: false }
    }

    #[test]
    fn the_options_generate_a_policy_with_two_rules() {
        let absolute = std::path::absolute(PEM).unwrap();
        let identity = Some(PathBuf::from(PEM));
        for (ca, identity) in [(&[PEM][..], None), (&[PEM, PEM], identity), (&[SYSTEM], None)] {
            let args = options(ca, identity);
            let text = args.policy_text().unwrap();
            let parsed = parse(&text);
            assert!(parsed.diagnostics.is_empty(), "{text}\n{:?}", parsed.diagnostics);
            let rules: Vec<_> =
                parsed.policy.unwrap().rules.iter().map(|rule| rule.name.clone()).collect();
            assert_eq!(rules, ["every-server", "loopback"]);
            let has_path = text.contains(&*absolute.to_string_lossy());
            assert_eq!(has_path, ca != [SYSTEM], "{text}");
        }
    }

    #[test]
    fn paths_are_quoted_so_that_the_policy_reads_them_unchanged() {
        let base = std::env::temp_dir().join(format!("tacit-quoted-{}", std::process::id()));
        std::fs::create_dir(&base).unwrap();
        let odd = base.join("a\"b\\c.pem");
        std::fs::write(&odd, "").unwrap();
        let quoted_text = quoted("--ca", &odd).unwrap();
        assert!(quoted_text.ends_with("/a\\\"b\\\\c.pem\""), "{quoted_text}");
        let line = base.join("a\nb.pem");
        std::fs::write(&line, "").unwrap();
        assert!(matches!(quoted("--ca", &line), Err(OptionsError::NotText(..))));
        let absent = quoted("--ca", &base.join("absent")).unwrap_err().to_string();
        assert!(
            absent.starts_with("cannot read --ca /") && absent.contains("No such file"),
            "{absent}"
        );
        std::fs::remove_dir_all(base).unwrap();
    }

    #[test]
    fn the_system_cannot_be_combined_with_files() {
        let both = options(&[SYSTEM, PEM], None).policy_text();
        assert!(matches!(both, Err(OptionsError::SystemAndFiles)));
    }
}
