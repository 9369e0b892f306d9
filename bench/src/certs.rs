//! Calls the command `openssl` to create a temporary CA, and certificates for the client and the
//! server.
//!
//! All keys are ECDSA P-256, because all compared programs support this kind of key. This kind also
//! needs the least CPU time.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// The name in the server's certificate, which every client verifies.
pub(crate) const SERVER_NAME: &str = "server.test";

/// Writes `ca.pem`, and for `client` and `server` the files `NAME.pem`, `NAME.key`, and
/// `NAME.both.pem` with both, which HAProxy needs, to `dir`.
pub(crate) fn make(dir: &Path) -> Result<(), String> {
    let ca = ["-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=bench CA"];
    let usage = "keyUsage=critical,keyCertSign,cRLSign";
    openssl(dir, &[&ca[..], &["-addext", usage]].concat())?;
    leaf(dir, "client", "clientAuth", "DNS:client.test")?;
    leaf(dir, "server", "serverAuth", &format!("DNS:{SERVER_NAME},IP:127.0.0.1"))
}

fn leaf(dir: &Path, name: &str, usage: &str, names: &str) -> Result<(), String> {
    let key = format!("{name}.key");
    let cert = format!("{name}.pem");
    let subject = format!("/CN={name}.test");
    let names = format!("subjectAltName={names}");
    let usage = format!("extendedKeyUsage={usage}");
    let files = ["-CA", "ca.pem", "-CAkey", "ca.key", "-keyout", &key, "-out", &cert];
    let content = ["-subj", &subject, "-addext", &names, "-addext", &usage];
    let basic = ["-addext", "basicConstraints=critical,CA:FALSE"];
    openssl(dir, &[&files[..], &content, &basic].concat())?;
    let file = |name: &str| {
        fs::read_to_string(dir.join(name)).map_err(|error| format!("cannot read {name}: {error}"))
    };
    private(dir, &format!("{name}.both.pem"), &(file(&cert)? + &file(&key)?))
}

/// Creates a certificate with its key.
fn openssl(dir: &Path, rest: &[&str]) -> Result<(), String> {
    let new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"];
    let output = Command::new("openssl")
        .args(["req", "-x509", "-sha256", "-days", "30"])
        .args(new_key)
        .args(rest)
        .current_dir(dir)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| {
            format!("cannot run openssl: {error}: install openssl with scripts/install-bench.sh")
        })?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!(
        "openssl req {} failed: {}",
        rest.join(" "),
        String::from_utf8_lossy(&output.stderr)
    ))
}

/// Writes a file that only its owner can read.
fn private(dir: &Path, name: &str, text: &str) -> Result<(), String> {
    let path = dir.join(name);
    fs::write(&path, "")
        .and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(0o600)))
        .and_then(|()| fs::write(&path, text))
        .map_err(|error| format!("cannot write {name}: {error}"))
}
