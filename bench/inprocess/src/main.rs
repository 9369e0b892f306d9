//! The load programs of the benchmark with a TLS library in them: `inprocess END LIBRARY TERMS DIR
//! ADDRESS …`, or `inprocess version LIBRARY`.
//!
//! Client and server are those of every other peer; what they read and write goes through the
//! library in their own threads, with blocking sockets, as its documentation shows. Nothing is
//! tuned: this is what a program pays that has TLS built in.

mod by_openssl;
mod by_rustls;
#[expect(dead_code, unused_imports, reason = "the benchmark's driver uses the rest of it")]
#[path = "../../src/load/mod.rs"]
mod load;

use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use load::client::{self, Dial};
use load::server::{self, Answer};
use load::terms::Terms;

/// The name in the server's certificate, which the client checks.
const SERVER_NAME: &str = "server.test";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
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
        ["server", library, terms, dir, at] => {
            server::main(address(at)?, answer(library, named(terms)?, Path::new(dir))?)
        }
        ["client", library, terms, dir, at, workload, rest @ ..] => {
            let workload = load::workload(workload).ok_or("no such workload")?;
            let dial = dial(library, named(terms)?, Path::new(dir))?;
            client::main(address(at)?, workload, rest == ["quick"], &dial)
        }
        ["knock", library, terms, dir, at, count] => {
            let count = count.parse().map_err(|error| format!("{count}: {error}"))?;
            client::knocks(address(at)?, count, &dial(library, named(terms)?, Path::new(dir))?)
        }
        ["hold", library, terms, dir, at, counts @ ..] => {
            let counts: Result<Vec<_>, _> = counts.iter().map(|count| count.parse()).collect();
            let counts = counts.map_err(|error| format!("{error}"))?;
            let dial = dial(library, named(terms)?, Path::new(dir))?;
            client::hold_all(address(at)?, &counts, &dial)
        }
        _ => {
            Err("usage: inprocess server|client|knock|hold LIBRARY TERMS DIR ADDRESS …".to_owned())
        }
    }
}

fn version(library: &str) -> Result<String, String> {
    match library {
        "openssl" => Ok(openssl::version::version().to_owned()),
        "rustls" => Ok("rustls 0.23 with aws-lc-rs".to_owned()),
        _ => Err(format!("no library `{library}` here")),
    }
}

fn dial(library: &str, terms: Terms, dir: &Path) -> Result<Arc<Dial>, String> {
    match library {
        "openssl" => by_openssl::dial(terms, dir).map_err(|error| format!("OpenSSL: {error}")),
        "rustls" => by_rustls::dial(terms, dir).map_err(|error| format!("rustls: {error}")),
        _ => Err(format!("no library `{library}` here")),
    }
}

fn answer(library: &str, terms: Terms, dir: &Path) -> Result<Arc<Answer>, String> {
    match library {
        "openssl" => by_openssl::answer(terms, dir).map_err(|error| format!("OpenSSL: {error}")),
        "rustls" => by_rustls::answer(terms, dir).map_err(|error| format!("rustls: {error}")),
        _ => Err(format!("no library `{library}` here")),
    }
}

fn named(terms: &str) -> Result<Terms, String> {
    let found = Terms::ALL.into_iter().find(|known| known.name() == terms);
    found.ok_or_else(|| format!("no terms `{terms}` here"))
}

fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|error| format!("{text}: {error}"))
}
