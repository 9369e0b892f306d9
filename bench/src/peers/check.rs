//! Checks a pair of proxies before the benchmark measures it, so that the comparison is fair.
//!
//! The check rejects a pair of proxies in each of these cases:
//! * The pair sends clear text.
//! * The server's proxy accepts clients without a certificate.
//! * The workload needs full handshakes, but the pair resumes sessions.
//! * The workload needs resumed handshakes, but the pair does not resume sessions.
//!
//! The check puts a relay between the two proxies, makes two connections, and parses the first TLS
//! messages of the server. The check also connects to the server's proxy with `openssl s_client`.
//!
//! The check does not test whether the client's proxy verifies the server.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::hello::ServerHello;
use crate::process::{Process, guarded};
use crate::tls_settings::Handshake;

/// A server that keeps a client without certificate connected for this long has accepted it.
const REFUSAL_TIME_MAX: Duration = Duration::from_secs(3);

/// The tap treats a connection without traffic for this long as ended.
const SILENCE_MAX: Duration = Duration::from_secs(3);

/// Larger than the first flight of any server.
const HELLO_BYTES_MAX: usize = 4096;

/// A relay between the proxies that accepts two connections, one after the other.
#[derive(Debug)]
pub(super) struct Tap {
    pub(super) address: SocketAddr,
    connections: JoinHandle<io::Result<[Vec<u8>; 2]>>,
}

impl Tap {
    /// Relays the next two connections to `server`.
    pub(super) fn new(server: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let connections =
            thread::spawn(move || Ok([relay(&listener, server)?, relay(&listener, server)?]));
        Ok(Self { address, connections })
    }

    /// What the server negotiated: version, cipher suite and group. Both connections must have been
    /// made; the first must be a full handshake, the second as `wanted`.
    pub(super) fn negotiated(self, wanted: Handshake) -> Result<String, String> {
        let joined = self.connections.join().map_err(|_| "the tap panicked")?;
        let seen = joined
            .map_err(|error| format!("cannot read the bytes between the two proxies: {error}"))?;
        let [Some(hello), Some(second)] = seen.map(|bytes| ServerHello::parse(&bytes)) else {
            return Err("the server side used neither TLS 1.3 nor TLS 1.2".to_owned());
        };
        if wanted == Handshake::Full && second.resumed {
            return Err(
                "the second connection resumed a TLS session, but this workload needs full \
                 handshakes: disable session resumption in both proxies"
                    .to_owned(),
            );
        }
        if wanted == Handshake::Resumed && !second.resumed {
            return Err(
                "the second connection did not resume the TLS session of the first connection: \
                 enable session resumption in both proxies"
                    .to_owned(),
            );
        }
        if hello.resumed {
            return Err(
                "the first connection resumed a TLS session of an earlier measurement: remove \
                 stored sessions, and restart both proxies"
                    .to_owned(),
            );
        }
        Ok(second.to_string())
    }
}

/// Relays one connection; returns the first bytes from `server`.
fn relay(listener: &TcpListener, server: SocketAddr) -> io::Result<Vec<u8>> {
    let (mut near, _) = listener.accept()?;
    let mut far = TcpStream::connect(server)?;
    far.set_read_timeout(Some(SILENCE_MAX))?;
    let [mut requests, mut onward] = [near.try_clone()?, far.try_clone()?];
    thread::spawn(move || {
        // Either side may close first; the other direction reports the relevant errors.
        let _ = io::copy(&mut requests, &mut onward);
        let _ = onward.shutdown(Shutdown::Write);
    });
    let mut seen = Vec::new();
    let mut buffer = [0; HELLO_BYTES_MAX];
    // A reset or a timeout at the end does not matter: the hello has been read.
    while let Ok(read @ 1..) = far.read(&mut buffer) {
        seen.extend_from_slice(&buffer[..read.min(HELLO_BYTES_MAX - seen.len())]);
        if near.write_all(&buffer[..read]).is_err() {
            break;
        }
    }
    let _ = near.shutdown(Shutdown::Write);
    Ok(seen)
}

/// Checks that the server side at `address` refuses a client without a certificate.
pub(super) fn refuses_without_certificate(address: SocketAddr, dir: &Path) -> Result<(), String> {
    let mut command = Command::new("openssl");
    command.args(["s_client", "-connect", &address.to_string(), "-CAfile", "ca.pem"]);
    // In TLS 1.3 the client finishes before the server detects the missing certificate. s_client
    // waits for the server to close because its standard input stays open.
    let child = guarded(&command)
        .current_dir(dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| format!("cannot run openssl s_client: {error}"))?;
    let mut probe = Process::adopt("openssl s_client", child);
    let start = Instant::now();
    while start.elapsed() < REFUSAL_TIME_MAX {
        if probe.child().try_wait().is_ok_and(|status| status.is_some()) {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(10));
    }
    Err("the server-side proxy accepts a client without a certificate: configure this proxy to \
         require a client certificate"
        .to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tap_relays_both_directions_and_records_the_servers_bytes() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let tap = Tap::new(server.local_addr().unwrap()).unwrap();
        for _ in 0..2 {
            let mut client = TcpStream::connect(tap.address).unwrap();
            let (mut end, _) = server.accept().unwrap();
            client.write_all(b"ask").unwrap();
            let mut requested = [0; 3];
            end.read_exact(&mut requested).unwrap();
            end.write_all(&[b'x'; 2 * HELLO_BYTES_MAX]).unwrap();
            drop(end);
            let mut answer = Vec::new();
            client.read_to_end(&mut answer).unwrap();
            assert_eq!((&requested, answer.len()), (b"ask", 2 * HELLO_BYTES_MAX));
            drop(client);
        }
        assert!(tap.negotiated(Handshake::Full).unwrap_err().contains("neither TLS 1.3"));
    }
}
