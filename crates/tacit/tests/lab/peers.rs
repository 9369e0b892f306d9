//! Provides peers for tests. Some peers use TCP or UNIX sockets without TLS. The other peers are
//! TLS clients and servers that use Python's `ssl` (OpenSSL).

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use rustix::net::{AddressFamily, SocketType};
use serde_json::{Value, json};

use crate::harness::{Agent, Lab, PATIENCE, wait_for};

/// A stream of any family.
pub trait Stream: Read + Write + Send {
    /// Ends our direction.
    fn end(&self);
}

impl Stream for TcpStream {
    fn end(&self) {
        self.shutdown(Shutdown::Write).unwrap();
    }
}

impl Stream for UnixStream {
    fn end(&self) {
        self.shutdown(Shutdown::Write).unwrap();
    }
}

/// Connects to an address as the policy writes it.
pub fn dial(address: &str) -> Box<dyn Stream> {
    if let Some(name) = address.strip_prefix("unix:@") {
        let name = UnixAddress::from_abstract_name(name).unwrap();
        return with_patience(UnixStream::connect_addr(&name).unwrap());
    }
    match address.strip_prefix("unix:") {
        Some(path) => with_patience(UnixStream::connect(path).unwrap()),
        None => Box::new(crate::harness::connect(address)),
    }
}

fn with_patience(stream: UnixStream) -> Box<dyn Stream> {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    Box::new(stream)
}

/// Starts an echo server at an address as the policy writes it.
pub fn echo_at(address: &str) {
    if let Some(name) = address.strip_prefix("unix:@") {
        let name = UnixAddress::from_abstract_name(name).unwrap();
        let listener = UnixListener::bind_addr(&name).unwrap();
        std::thread::spawn(move || listener.incoming().flatten().for_each(echo_unix));
    } else if let Some(path) = address.strip_prefix("unix:") {
        let listener = UnixListener::bind(path).unwrap();
        std::thread::spawn(move || listener.incoming().flatten().for_each(echo_unix));
    } else {
        let listener = TcpListener::bind(address).unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let reader = stream.try_clone().unwrap();
                std::thread::spawn(move || echo(reader, stream));
            }
        });
    }
}

fn echo_unix(stream: UnixStream) {
    let reader = stream.try_clone().unwrap();
    std::thread::spawn(move || echo(reader, stream));
}

fn echo(mut reader: impl Read, mut writer: impl Stream) {
    if std::io::copy(&mut reader, &mut writer).is_ok() {
        writer.end();
    }
}

/// Sends bytes, ends, and reads everything that comes back.
pub fn exchange(mut stream: Box<dyn Stream>, bytes: &[u8]) -> std::io::Result<Vec<u8>> {
    stream.write_all(bytes)?;
    stream.end();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    Ok(answer)
}

/// One byte there and back: the connection is open end to end.
pub fn ping(stream: &mut (impl Read + Write + ?Sized)) -> bool {
    let mut back = [0];
    stream.write_all(b"p").is_ok() && stream.read_exact(&mut back).is_ok() && back == *b"p"
}

/// Connects over TCP from one of this host's addresses.
pub fn connect_from(source: &str, address: SocketAddr) -> TcpStream {
    let source: IpAddr = source.parse().unwrap();
    // Programs that other tests start at this moment are not to inherit it.
    let kind = SocketType::STREAM;
    let flags = rustix::net::SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::INET, kind, flags, None).unwrap();
    rustix::net::bind(&socket, &SocketAddr::new(source, 0)).unwrap();
    rustix::net::connect(&socket, &address).unwrap();
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Whether the other side resets: neither bytes nor an orderly end.
pub fn is_reset(stream: &mut impl Read) -> bool {
    let mut rest = Vec::new();
    let result = stream.read_to_end(&mut rest);
    let kind = result.err().map(|error| error.kind());
    kind == Some(std::io::ErrorKind::ConnectionReset) && rest.is_empty()
}

/// The audit line about a connection from a port of 127.0.0.1.
pub fn audit_of(agent: &Agent, port: u64) -> Value {
    audit_after(agent, 0, port)
}

/// The same, where so many bytes were written before the connection: its port may have been that
/// of an earlier one.
pub fn audit_after(agent: &Agent, bytes: usize, port: u64) -> Value {
    audit_line(agent, bytes, port, |_| true)
}

/// The same for the first line that `fits`.
pub fn audit_line(agent: &Agent, bytes: usize, port: u64, fits: impl Fn(&Value) -> bool) -> Value {
    let remote = format!("127.0.0.1:{port}");
    let find = || {
        let audit = agent.audit();
        let mut lines = audit[bytes..].lines().filter_map(|line| serde_json::from_str(line).ok());
        lines.find(|line: &Value| line["remote"] == remote.as_str() && fits(line))
    };
    wait_for("the audit line", || find().is_some());
    find().unwrap()
}

/// A TLS client in a process of its own; it ends its connection when dropped.
pub struct TlsClient {
    child: Child,
    stdin: Option<ChildStdin>,
    /// `version`, `cipher`, `alpn`, `subject`, `reply` to "ping", `port`; or `error`.
    pub result: Value,
}

impl TlsClient {
    /// Connects to a port of 127.0.0.1, and stays unless it is refused. Options: `cert`, `key`,
    /// `ca`, `name`, `alpn`, `min`, `max`, `ciphers`, `prefix` (hex, sent before TLS), `piece`
    /// (bytes a write).
    pub fn open(lab: &Lab, port: u16, options: &Value) -> Self {
        let mut options = options.clone();
        options["to"] = json!(port);
        let (mut child, stdout) = python(lab, CLIENT, &options);
        let result = read_line(stdout);
        Self { stdin: child.stdin.take(), child, result }
    }

    /// Connects, says "ping", ends, and says what happened.
    pub fn run(lab: &Lab, port: u16, options: &Value) -> Value {
        Self::open(lab, port, options).result.clone()
    }

    pub fn port(&self) -> u64 {
        self.result["port"].as_u64().unwrap()
    }
}

impl Drop for TlsClient {
    fn drop(&mut self) {
        drop(self.stdin.take());
        let _ = self.child.wait();
    }
}

/// A TLS echo server in a process of its own, ended when dropped.
pub struct TlsServer {
    child: Child,
    lines: BufReader<ChildStdout>,
    pub port: u16,
}

impl TlsServer {
    /// Serves on a free port of 127.0.0.1. Options: `cert`, `key`, `ca` (asks for a certificate),
    /// `alpn`, `min`, `max`.
    pub fn start(lab: &Lab, options: &Value) -> Self {
        let (child, mut lines) = python(lab, SERVER, options);
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        let port = line.trim().parse().unwrap();
        Self { child, lines, port }
    }

    /// What became of the next connection: `got` its plaintext, or `error`.
    pub fn next(&mut self) -> Value {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }
}

impl Drop for TlsServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn python(lab: &Lab, script: &str, options: &Value) -> (Child, BufReader<ChildStdout>) {
    let mut child = lab
        .command("python3")
        .args(["-W", "ignore", "-c", script, &options.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("python3: {error}; see scripts/install-deps.sh"));
    let stdout = BufReader::new(child.stdout.take().unwrap());
    (child, stdout)
}

fn read_line(mut lines: BufReader<ChildStdout>) -> Value {
    let mut line = String::new();
    lines.read_line(&mut line).unwrap();
    serde_json::from_str(&line).unwrap_or_else(|error| panic!("python3 said {line:?}: {error}"))
}

/// Writes a certificate and its key, readable by their owner alone, as `NAME.pem` and `NAME.key`.
pub fn write_pair(lab: &Lab, name: &str, cert_pem: &str, key_pem: &str) {
    use std::os::unix::fs::PermissionsExt;
    lab.write(&format!("{name}.pem"), cert_pem);
    let key = lab.write(&format!("{name}.key"), key_pem);
    set_mode(&key, std::fs::Permissions::from_mode(0o600));
}

fn set_mode(path: &Path, mode: std::fs::Permissions) {
    std::fs::set_permissions(path, mode).unwrap();
}

/// TLS over memory, so that the test decides how bytes reach the socket.
const CLIENT: &str = r#"
import json, socket, ssl, sys
o = json.loads(sys.argv[1])
c = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
c.check_hostname, c.verify_mode = False, ssl.CERT_NONE
c.set_ciphers(o.get("ciphers", "DEFAULT@SECLEVEL=0"))
versions = {"1.0": ssl.TLSVersion.TLSv1, "1.1": ssl.TLSVersion.TLSv1_1,
            "1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
c.minimum_version = versions[o.get("min", "1.2")]
c.maximum_version = versions[o.get("max", "1.3")]
if "ca" in o: c.load_verify_locations(o["ca"]); c.verify_mode = ssl.CERT_REQUIRED
if "cert" in o: c.load_cert_chain(o["cert"], o["key"])
if "alpn" in o: c.set_alpn_protocols(o["alpn"])
r, rx, tx = {}, ssl.MemoryBIO(), ssl.MemoryBIO()
s = socket.create_connection(("127.0.0.1", o["to"]), timeout=20)
s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
r["port"] = s.getsockname()[1]
t = c.wrap_bio(rx, tx, server_hostname=o.get("name"))
first = bytes.fromhex(o.get("prefix", ""))
def send():
    global first
    data, first = first + tx.read(), b""
    piece = o.get("piece", len(data) or 1)
    for at in range(0, len(data), piece): s.sendall(data[at:at + piece])
def drive(step):
    while True:
        try:
            done = step(); send(); return done
        except ssl.SSLWantReadError:
            send()
            data = s.recv(65536)
            if not data: rx.write_eof()
            rx.write(data)
        except ssl.SSLError:
            send(); raise
try:
    drive(t.do_handshake)
    r["version"], r["cipher"], r["alpn"] = t.version(), t.cipher()[0], t.selected_alpn_protocol()
    cert = t.getpeercert()
    if cert: r["sans"] = [name for _, name in cert.get("subjectAltName", ())]
    drive(lambda: t.write(b"ping"))
    r["reply"] = drive(lambda: t.read(64)).decode()
except Exception as e:
    r["error"] = f"{type(e).__name__}: {e}"
print(json.dumps(r), flush=True)
if "error" not in r:
    sys.stdin.read()
    try: t.unwrap()
    except ssl.SSLError: send()
"#;

const SERVER: &str = r#"
import json, socket, ssl, sys
o = json.loads(sys.argv[1])
c = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
c.set_ciphers("DEFAULT@SECLEVEL=0")
versions = {"1.1": ssl.TLSVersion.TLSv1_1, "1.2": ssl.TLSVersion.TLSv1_2,
            "1.3": ssl.TLSVersion.TLSv1_3}
c.minimum_version = versions[o.get("min", "1.2")]
c.maximum_version = versions[o.get("max", "1.3")]
c.load_cert_chain(o["cert"], o["key"])
if "ca" in o: c.load_verify_locations(o["ca"]); c.verify_mode = ssl.CERT_REQUIRED
if "alpn" in o: c.set_alpn_protocols(o["alpn"])
l = socket.create_server(("127.0.0.1", 0))
print(l.getsockname()[1], flush=True)
while True:
    s, _ = l.accept()
    s.settimeout(20)
    prefix = s.recv(o["prefix"], socket.MSG_WAITALL) if "prefix" in o else b""
    r = {"prefix": prefix.hex(), "got": ""}
    try:
        t = c.wrap_socket(s, server_side=True)
        r["version"], r["alpn"] = t.version(), t.selected_alpn_protocol()
        while data := t.recv(65536):
            r["got"] += data.decode()
            t.sendall(data)
        t.unwrap()
    except Exception as e:
        r["error"] = f"{type(e).__name__}: {e}"
    s.close()
    print(json.dumps(r), flush=True)
"#;
