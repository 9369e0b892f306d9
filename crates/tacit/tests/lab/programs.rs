//! Starts programs of other projects for tests, reads their output, and ends them.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, LazyLock, Mutex};

use serde_json::Value;

use crate::harness::{Agent, Lab, serve, wait_for_or};

/// Sources of the peers written for these tests.
const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/peers");
/// Where what must be compiled goes; kept for the next run.
const BUILT: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/peers");

/// How a program ended.
pub struct Ended {
    /// All it said.
    pub said: String,
    pub succeeded: bool,
}

/// A running program whose output is read as it comes. Killed when dropped.
pub struct Peer {
    child: Child,
    stdin: Option<ChildStdin>,
    said: Arc<Mutex<Vec<u8>>>,
    examined: usize,
}

impl Peer {
    pub fn start(command: &mut Command) -> Self {
        let program = command.get_program().to_string_lossy().into_owned();
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{program}: {error}; see scripts/install-deps.sh"));
        let said = Arc::default();
        listen(child.stdout.take().unwrap(), Arc::clone(&said));
        listen(child.stderr.take().unwrap(), Arc::clone(&said));
        let stdin = child.stdin.take();
        Self { child, stdin, said, examined: 0 }
    }

    /// Everything said so far, standard output and standard error as they came.
    pub fn said(&self) -> String {
        String::from_utf8_lossy(&self.said_bytes()).into_owned()
    }

    pub fn said_bytes(&self) -> Vec<u8> {
        self.said.lock().unwrap().clone()
    }

    /// Waits until the words are said, after those waited for before; returns what is said up to
    /// there.
    pub fn wait_for(&mut self, words: &str) -> String {
        let mut found = None;
        wait_for_or(
            words,
            || {
                let said = self.said.lock().unwrap();
                let new = &said[self.examined..];
                found = new.windows(words.len()).position(|window| window == words.as_bytes());
                found.is_some()
            },
            || self.said(),
        );
        let end = self.examined + found.unwrap() + words.len();
        let text = String::from_utf8_lossy(&self.said.lock().unwrap()[self.examined..end]).into();
        self.examined = end;
        text
    }

    /// The number in the next `port N`.
    pub fn port(&mut self) -> u16 {
        self.wait_for("port ");
        self.wait_for("\n").trim().parse().unwrap()
    }

    pub fn say(&mut self, words: impl AsRef<[u8]>) {
        self.stdin.as_mut().unwrap().write_all(words.as_ref()).unwrap();
    }

    /// Ends its input and waits for its end.
    pub fn end(mut self) -> Ended {
        drop(self.stdin.take());
        let child = &mut self.child;
        let said = &self.said;
        let text = || String::from_utf8_lossy(&said.lock().unwrap()).into_owned();
        let mut ended = || child.try_wait().unwrap().is_some();
        wait_for_or("the end of a program", &mut ended, text);
        // The readers hold the other references until they have read to the end.
        wait_for_or("its output", || Arc::strong_count(said) == 1, text);
        let succeeded = child.wait().unwrap().success();
        Ended { said: text(), succeeded }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn listen(mut pipe: impl Read + Send + 'static, said: Arc<Mutex<Vec<u8>>>) {
    std::thread::spawn(move || {
        let mut chunk = [0; 65536];
        while let Ok(count @ 1..) = pipe.read(&mut chunk) {
            said.lock().unwrap().extend_from_slice(&chunk[..count]);
        }
    });
}

/// The peers written for these tests; they take the same arguments and say the same.
#[derive(Clone, Copy, Debug)]
pub enum Program {
    Go,
    Java,
    Python,
}

impl Program {
    /// The program with its arguments, in the lab's directory.
    pub fn start(self, lab: &Lab, arguments: &[&str]) -> Peer {
        let mut command = match self {
            Self::Go => lab.command(GO.to_str().unwrap()),
            Self::Java => {
                let mut java = lab.command("java");
                java.args(["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m", "-cp"]);
                java.arg(JAVA.as_path()).arg("Peer");
                java
            }
            Self::Python => {
                let mut python = lab.command("python3");
                python.arg(Path::new(SOURCES).join("peer.py"));
                python
            }
        };
        Peer::start(command.args(arguments))
    }
}

static GO: LazyLock<PathBuf> = LazyLock::new(|| {
    let program = Path::new(BUILT).join("peer-go");
    let mut go = Command::new("go");
    // Nothing but the standard library, and nothing from the network.
    go.env("GO111MODULE", "on").env("GOPROXY", "off").env("GOTOOLCHAIN", "local");
    compile(go.arg("build").arg("-o").arg(&program).arg("peer.go"));
    program
});

static JAVA: LazyLock<PathBuf> = LazyLock::new(|| {
    let classes = Path::new(BUILT).join("java");
    compile(Command::new("javac").arg("-d").arg(&classes).arg("Peer.java"));
    classes
});

fn compile(command: &mut Command) {
    let run = command.current_dir(SOURCES).output();
    let output = run.unwrap_or_else(|error| {
        panic!("{:?}: {error}; see scripts/install-deps.sh", command.get_program())
    });
    assert!(output.status.success(), "{}", crate::harness::text_of(&output));
}

/// Whether Go's crypto/tls offers X25519MLKEM768 unasked: since 1.24.
pub fn go_is_post_quantum() -> bool {
    let printed = Command::new("go").args(["env", "GOVERSION"]).output().unwrap().stdout;
    let version = String::from_utf8(printed).unwrap();
    let minor = version.trim().strip_prefix("go1.").unwrap().split('.').next().unwrap();
    minor.parse::<u32>().unwrap() >= 24
}

/// Bytes whose order shows in every place; the peers know them too.
#[allow(clippy::cast_possible_truncation, reason = "the low byte is wanted")]
pub fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|i| (i ^ i >> 8 ^ i >> 16) as u8).collect()
}

/// Sends bytes while reading them back from an echo, both at full length.
pub fn echo_exactly(stream: &TcpStream, bytes: &[u8]) {
    let mut got = vec![0; bytes.len()];
    std::thread::scope(|scope| {
        scope.spawn(|| { stream }.write_all(bytes).unwrap());
        { stream }.read_exact(&mut got).unwrap();
    });
    assert!(got == bytes, "the echo differs");
}

/// Ends our direction and reads on to an orderly end.
pub fn end_and_read(mut stream: TcpStream) -> String {
    stream.shutdown(Shutdown::Write).unwrap();
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    rest
}

/// A plain echo that says `bye` when its client has ended.
pub fn echo_and_bye() -> SocketAddr {
    serve(|mut stream| {
        stream.set_nodelay(true).unwrap();
        let mut reader = stream.try_clone().unwrap();
        if std::io::copy(&mut reader, &mut stream).is_ok() {
            let _ = stream.write_all(b"bye");
        }
    })
}

/// What `show` says of the only open connection of a rule.
pub fn only_connection(agent: &Agent, rule: &str) -> Value {
    let connections = agent.show("connections");
    let mut of_rule = connections.as_array().unwrap().iter().filter(|one| one["rule"] == rule);
    let only = of_rule.next().unwrap_or_else(|| panic!("none of {rule}: {connections}")).clone();
    assert!(of_rule.next().is_none(), "more than one of {rule}: {connections}");
    only
}

/// A rule of the server role that asks for a certificate.
pub fn server_rule(name: &str, listen: u16, connect: &str, more: &str) -> String {
    let role = r#"role = "server", identity = "localhost", client-cert = "required""#;
    rule(name, listen, connect, &format!("{role}{more}"))
}

/// A rule of the client role that shows one.
pub fn client_rule(name: &str, listen: u16, connect: u16, more: &str) -> String {
    let role = r#"role = "client", identity = "alice""#;
    rule(name, listen, &format!("localhost:{connect}"), &format!("{role}{more}"))
}

fn rule(name: &str, listen: u16, connect: &str, tls: &str) -> String {
    format!(
        r#"
        [[rule]]
        name = "{name}"
        listen = "127.0.0.1:{listen}"
        connect = "{connect}"
        log = true
        tls = {{ {tls}, trust = "ca" }}
        "#
    )
}

/// New keys as often as a policy may ask for.
pub const REKEY: &str = r#", min-version = "1.3", rekey = { bytes = "1MiB", after = "1s" }"#;
