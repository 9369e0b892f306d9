//! Provides what all tests in this directory use: certificates, agents, servers without TLS, and
//! functions to run commands.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

/// The program under test.
pub const TACIT: &str = env!("CARGO_BIN_EXE_tacit");
/// Longest wait for anything that should happen soon.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// A test's own directory. It holds `ca.pem`, `localhost.pem/.key` (names localhost and
/// 127.0.0.1, both usages) and `alice.pem/.key` (a client), made by `tacit ca`.
pub struct Lab {
    pub directory: PathBuf,
}

impl Lab {
    pub fn new() -> Self {
        let lab = Self { directory: new_directory(Path::new(env!("CARGO_TARGET_TMPDIR"))) };
        lab.tacit(&["ca", "init"]);
        lab.tacit(&["ca", "issue", "localhost", "--san", "127.0.0.1"]);
        lab.tacit(&["ca", "issue", "alice", "--client"]);
        lab
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    pub fn write(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    /// Runs `tacit` in the directory and expects it to succeed; returns standard output.
    pub fn tacit(&self, arguments: &[&str]) -> String {
        let output = self.run(TACIT, arguments);
        assert!(output.status.success(), "tacit {arguments:?}: {}", text_of(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs any program in the directory to its end, at most [`PATIENCE`].
    pub fn run(&self, program: &str, arguments: &[&str]) -> Output {
        self.run_with_input(program, arguments, b"")
    }

    /// The same with bytes on standard input.
    pub fn run_with_input(&self, program: &str, arguments: &[&str], input: &[u8]) -> Output {
        let mut child = self
            .command(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{program}: {error}; see scripts/install-deps.sh"));
        let mut stdin = child.stdin.take().unwrap();
        let input = input.to_vec();
        // A program that ends without reading all is its own business.
        std::thread::spawn(move || drop(stdin.write_all(&input)));
        let pid = child.id();
        let watchdog = Watchdog::start(pid);
        let output = child.wait_with_output().unwrap();
        watchdog.stop();
        output
    }

    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.directory);
        command
    }

    /// Starts an agent with this policy below the usual identities and trust, and waits until it
    /// serves.
    pub fn agent(&self, rules: &str) -> Agent {
        self.agent_with(rules, &[])
    }

    /// The same with more arguments for `tacit agent`.
    pub fn agent_with(&self, rules: &str, arguments: &[&str]) -> Agent {
        let agent = self.try_agent(rules, arguments);
        agent.wait_until_serving();
        agent
    }

    /// Starts an agent whose environment has one more variable.
    pub fn agent_with_variable(&self, rules: &str, name: &str, value: &str) -> Agent {
        let agent = self.start_agent(rules, &[], &[(name, value)]);
        agent.wait_until_serving();
        agent
    }

    /// Starts an agent with a limit, given as the arguments of `ulimit`.
    pub fn agent_within(&self, rules: &str, limit: &str) -> Agent {
        let file = self.write("few.toml", policy(rules));
        let log = self.path("few.log");
        let command =
            format!("ulimit {limit}; exec {TACIT} agent --policy few.toml --control few.sock");
        let child = self
            .command("sh")
            .args(["-c", &command])
            .stdin(Stdio::null())
            .stderr(std::fs::File::create(&log).unwrap())
            .spawn()
            .unwrap();
        let control = self.path("few.sock");
        let agent = Agent { child, policy: file, control, audit: self.path("x"), log };
        agent.wait_until_serving();
        agent
    }

    /// Starts an agent that may well refuse.
    pub fn try_agent(&self, rules: &str, arguments: &[&str]) -> Agent {
        self.start_agent(rules, arguments, &[])
    }

    fn start_agent(&self, rules: &str, arguments: &[&str], variables: &[(&str, &str)]) -> Agent {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let policy = self.write(&format!("policy-{number}.toml"), policy(rules));
        let control = self.path(&format!("agent-{number}.sock"));
        let audit = self.path(&format!("audit-{number}.jsonl"));
        let log = self.path(&format!("agent-{number}.log"));
        let child = self
            .command(TACIT)
            .arg("agent")
            .arg("--policy")
            .arg(&policy)
            .arg("--control")
            .arg(&control)
            .arg("--audit")
            .arg(&audit)
            .args(arguments)
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stderr(std::fs::File::create(&log).unwrap())
            .spawn()
            .unwrap();
        Agent { child, policy, control, audit, log }
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let _ = std::fs::remove_dir_all(&self.directory);
        }
    }
}

/// Creates a directory of its own. One with the number of this process may be left by an earlier
/// process that had the same.
pub fn new_directory(parent: &Path) -> PathBuf {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    loop {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let directory = parent.join(format!("lab-{}-{number}", std::process::id()));
        match std::fs::create_dir(&directory) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            created => {
                created.unwrap();
                return directory;
            }
        }
    }
}

/// `rules` below identities `localhost` and `alice` and trust `ca`, each only if it is used.
pub fn policy(rules: &str) -> String {
    let mut text = "version = 1\n".to_owned();
    for name in ["localhost", "alice"] {
        if rules.contains(&format!("\"{name}\"")) && !rules.contains(&format!("[identity.{name}]"))
        {
            text.push_str(&format!(
                "[identity.{name}]\ncert = \"{name}.pem\"\nkey = \"{name}.key\"\n"
            ));
        }
    }
    if rules.contains("\"ca\"") && !rules.contains("[trust.ca]") {
        text.push_str("[trust.ca]\nca = \"ca.pem\"\n");
    }
    text.push_str(rules);
    text
}

/// A running agent; ended with the test.
pub struct Agent {
    pub child: Child,
    pub policy: PathBuf,
    pub control: PathBuf,
    pub audit: PathBuf,
    pub log: PathBuf,
}

impl Agent {
    pub fn wait_until_serving(&self) {
        let says = |log: &str| log.contains(" serving ") || log.contains("\"serving\"");
        wait_for("the agent to serve", || says(&self.log()) || self.is_dead());
        assert!(!self.is_dead(), "the agent ended: {}", self.log());
        wait_for("the control socket", || self.control.exists());
    }

    /// A zombie counts as dead.
    pub fn is_dead(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()));
        stat.is_ok_and(|stat| stat.rsplit(')').next().unwrap().trim_start().starts_with('Z'))
    }

    /// The agent processes below the one that was started, the newest last.
    pub fn serving_pids(&self) -> Vec<u32> {
        let pid = self.child.id();
        let path = format!("/proc/{pid}/task/{pid}/children");
        let children = std::fs::read_to_string(path).unwrap_or_default();
        children.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
    }

    /// Resident memory of the process that serves.
    pub fn resident_bytes(&self) -> usize {
        let pid = *self.serving_pids().last().unwrap();
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 1024
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    pub fn audit(&self) -> String {
        std::fs::read_to_string(&self.audit).unwrap_or_default()
    }

    pub fn wait_for_log(&self, needle: &str) {
        wait_for_or(needle, || self.log().contains(needle), || self.log());
    }

    /// Runs a verb against this agent's control socket.
    pub fn verb(&self, arguments: &[&str]) -> Output {
        Command::new(TACIT).args(arguments).arg("--control").arg(&self.control).output().unwrap()
    }

    /// Runs a verb and expects it to succeed.
    pub fn ok(&self, arguments: &[&str]) -> String {
        let output = self.verb(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", text_of(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    pub fn show(&self, what: &str) -> Value {
        let mut shown: Value = serde_json::from_str(&self.ok(&["show", what, "--json"])).unwrap();
        assert_eq!(shown["version"], 1, "{shown}");
        match what {
            "connections" | "runs" | "limits" => shown[what].take(),
            _ => shown,
        }
    }

    /// Replaces the policy file; `tacit reload` is up to the test.
    pub fn write_policy(&self, rules: &str) {
        std::fs::write(&self.policy, policy(rules)).unwrap();
    }

    pub fn signal(&self, signal: &str) {
        signal_process(self.child.id(), signal);
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let pids = self.serving_pids();
        if self.child.try_wait().is_ok_and(|status| status.is_none()) {
            self.signal("TERM");
            let end = Instant::now() + Duration::from_secs(5);
            while self.child.try_wait().is_ok_and(|status| status.is_none()) {
                if Instant::now() > end {
                    let _ = self.child.kill();
                    pids.iter().for_each(|pid| signal_process(*pid, "KILL"));
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
}

/// Sends a signal to a process this test started.
pub fn signal_process(pid: u32, signal: &str) {
    let _ = Command::new("kill").arg(format!("-{signal}")).arg(pid.to_string()).output();
}

/// Keeps other processes from opening a file, as a file system that responds slowly does. It ends
/// with this value, and the kernel ends it when another process has waited for
/// `/proc/sys/fs/lease-break-time`, 45 seconds.
pub struct FileLease {
    holder: Child,
}

impl FileLease {
    pub fn new(path: &Path) -> Self {
        let mut holder = Command::new("python3")
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/peers/lease.py"))
            .arg(path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut ready = [0; 5];
        holder.stdout.take().unwrap().read_exact(&mut ready).unwrap();
        Self { holder }
    }
}

impl Drop for FileLease {
    fn drop(&mut self) {
        drop(self.holder.stdin.take());
        let _ = self.holder.wait();
    }
}

/// Ends a tool that hangs.
struct Watchdog {
    stop: std::sync::mpsc::SyncSender<()>,
}

impl Watchdog {
    fn start(pid: u32) -> Self {
        let (stop, stopped) = std::sync::mpsc::sync_channel::<()>(1);
        std::thread::spawn(move || {
            if stopped.recv_timeout(PATIENCE * 3).is_err() {
                signal_process(pid, "KILL");
            }
        });
        Self { stop }
    }

    fn stop(self) {
        let _ = self.stop.send(());
    }
}

/// A port that is free now and that the kernel assigns to no socket by itself: it lies below the
/// range of ephemeral ports, and no other test of this process gets it.
pub fn free_port() -> u16 {
    const FIRST: u32 = 20_000;
    const COUNT: u32 = 12_000;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let start = std::process::id().wrapping_mul(97);
    loop {
        let next = start.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        let port = u16::try_from(FIRST + next % COUNT).unwrap();
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
}

/// Starts a plain TCP server on a free port of 127.0.0.1; `serve` gets each connection in a thread
/// of its own.
pub fn serve(serve: impl Fn(TcpStream) + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let serve = std::sync::Arc::new(serve);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let serve = std::sync::Arc::clone(&serve);
            std::thread::spawn(move || serve(stream));
        }
    });
    address
}

/// A server that sends back what it gets, and ends when the client does.
pub fn echo() -> SocketAddr {
    serve(|mut stream| {
        stream.set_nodelay(true).unwrap();
        let mut reader = stream.try_clone().unwrap();
        if std::io::copy(&mut reader, &mut stream).is_ok() {
            let _ = stream.shutdown(Shutdown::Write);
        }
    })
}

/// Connects, with time-outs so that no test hangs.
pub fn connect(address: impl std::net::ToSocketAddrs) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Sends bytes, ends, and reads everything that comes back.
pub fn exchange(mut stream: TcpStream, bytes: &[u8]) -> Vec<u8> {
    stream.write_all(bytes).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    answer
}

/// Waits until something holds.
pub fn wait_for(what: &str, holds: impl FnMut() -> bool) {
    wait_for_or(what, holds, String::new);
}

/// The same with words for the case that it never does.
pub fn wait_for_or(what: &str, mut holds: impl FnMut() -> bool, context: impl Fn() -> String) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "waited in vain for {what}\n{}", context());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Both outputs of a program, for messages.
pub fn text_of(output: &Output) -> String {
    let out = &output.stdout;
    let err = &output.stderr;
    format!("{}\n{}{}", output.status, String::from_utf8_lossy(out), String::from_utf8_lossy(err))
}
