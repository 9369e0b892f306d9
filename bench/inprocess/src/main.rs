//! Runs the load client or the load server of the benchmark. Both call a TLS library directly, so
//! that the benchmark can compare tacit with programs that need no proxy.
//!
//! ```text
//! inprocess LIBRARY VERSION SUITE full|resumed DIR interactive server --json --listen ADDRESS
//! inprocess LIBRARY VERSION SUITE full|resumed DIR MODE client --connect ADDRESS ...
//! inprocess version LIBRARY
//! ```
//! LIBRARY, VERSION and SUITE select the TLS library, the TLS version and the cipher suite. `full`
//! and `resumed` select full or resumed handshakes. DIR contains the certificates. MODE selects the
//! kind of traffic, such as `interactive`. `inprocess version` prints the version of a TLS library.
//!
//! The load client and the load server use the protocol of `tacit workload`
//! (`tacit_core::workload`). Client and server use blocking sockets and the default settings of the
//! TLS library, like an ordinary program.

mod by_openssl;
mod by_rustls;
mod client;
mod load;
mod server;
mod tls_settings;
mod wire;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use load::Load;
use tls_settings::TlsSettings;
use wire::{Answer, Dial};

const USAGE: &str =
    "usage: inprocess LIBRARY VERSION SUITE full|resumed DIR MODE client|server OPTIONS";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match run(&words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("inprocess: {message}");
            ExitCode::FAILURE
        }
    }
}

fn run(words: &[&str]) -> Result<(), String> {
    match words {
        ["version", library] => {
            println!("{}", version(library)?);
            Ok(())
        }
        [library, version, suite, sessions, dir, mode, end, rest @ ..] => {
            let settings = TlsSettings::parse(version, suite, sessions)?;
            let dir = Path::new(dir);
            match *end {
                "client" => {
                    client::run(&Load::parse(mode, rest)?, &*dial(library, &settings, dir)?)
                }
                "server" => {
                    let listen = rest.last().copied().unwrap_or_default();
                    let address =
                        listen.parse().map_err(|error| format!("--listen {listen}: {error}"))?;
                    server::run(address, &answer(library, &settings, dir)?)
                }
                _ => Err(USAGE.to_owned()),
            }
        }
        _ => Err(USAGE.to_owned()),
    }
}

fn version(library: &str) -> Result<String, String> {
    match library {
        "openssl" => Ok(openssl::version::version().to_owned()),
        "rustls" => Ok("rustls 0.23 with aws-lc-rs".to_owned()),
        _ => Err(format!("unknown library `{library}`")),
    }
}

fn dial(library: &str, settings: &TlsSettings, dir: &Path) -> Result<Arc<Dial>, String> {
    match library {
        "openssl" => by_openssl::dial(settings, dir).map_err(|error| format!("OpenSSL: {error}")),
        "rustls" => by_rustls::dial(settings, dir).map_err(|error| format!("rustls: {error}")),
        _ => Err(format!("unknown library `{library}`")),
    }
}

fn answer(library: &str, settings: &TlsSettings, dir: &Path) -> Result<Arc<Answer>, String> {
    match library {
        "openssl" => by_openssl::answer(settings, dir).map_err(|error| format!("OpenSSL: {error}")),
        "rustls" => by_rustls::answer(settings, dir).map_err(|error| format!("rustls: {error}")),
        _ => Err(format!("unknown library `{library}`")),
    }
}
