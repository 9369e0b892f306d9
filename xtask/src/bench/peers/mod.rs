//! The peers: each a pair of proxies that puts mutual TLS 1.3 between two plain programs.
//!
//! ```text
//! load client -> [client proxy] == TLS 1.3, mutual ==> [server proxy] -> load server
//!          entry address          TLS address              application address
//! ```
//! One file a peer, which holds its configuration and what it needs to be compared fairly:
//! X25519, TLS_AES_128_GCM_SHA256, both sides verify the chain and the client side the name, no
//! resumption, no delay of small writes, one worker thread where that can be set, no log of
//! connections. A new peer is a file with a `PROXY` and a line in [`PEERS`].

mod check;
mod envoy;
mod haproxy;
mod hello;
mod stunnel;
mod tacit;

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use self::check::Tap;
use super::load::client::knock;
use super::process::Process;

/// A pair of proxies that cannot carry a byte so long after its start has failed.
const START_TIME_MAX: Duration = Duration::from_secs(15);

/// Who is compared.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) name: &'static str,
    /// None: no proxy and no TLS, the price of the two programs and of loopback alone.
    proxy: Option<Proxy>,
}

/// The peer that the others are compared with.
pub(crate) const SUBJECT: &str = "tacit";

/// Everybody, in the order of the report.
pub(crate) static PEERS: [Peer; 5] = [
    Peer { name: "direct", proxy: None },
    Peer { name: "stunnel", proxy: Some(stunnel::PROXY) },
    Peer { name: "haproxy", proxy: Some(haproxy::PROXY) },
    Peer { name: "envoy", proxy: Some(envoy::PROXY) },
    Peer { name: SUBJECT, proxy: Some(tacit::PROXY) },
];

/// How to run one end of a peer.
#[derive(Debug)]
struct Proxy {
    /// The program; the argument is the build directory.
    program: fn(&Path) -> PathBuf,
    /// The argument that makes it print its version.
    version: &'static str,
    /// How its configuration file is called after the dot.
    extension: &'static str,
    /// The text of its configuration.
    config: fn(&Plan<'_>) -> String,
    /// Its arguments before the name of that file; the argument is the name of the process.
    arguments: fn(&str) -> Vec<String>,
}

/// What one proxy is to do.
#[derive(Debug)]
struct Plan<'a> {
    side: Side,
    listen: SocketAddr,
    connect: SocketAddr,
    setting: &'a Setting,
}

/// What is the same for all peers.
#[derive(Debug)]
pub(crate) struct Setting {
    /// Where the load server listens.
    pub(crate) application: SocketAddr,
    /// Certificates, configurations and logs; the working directory of the proxies.
    pub(crate) dir: PathBuf,
    /// The build directory.
    pub(crate) target: PathBuf,
    /// The congestion control of every socket, for a peer that would choose its own.
    pub(crate) congestion: String,
}

/// Which end of the TLS connection a proxy is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Client,
    Server,
}

impl Side {
    /// Names the side in files, and its certificate.
    fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Server => "server",
        }
    }
}

/// A peer that carries bytes.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) peer: &'static Peer,
    /// What its program says of itself, one line.
    pub(crate) version: String,
    /// What the pair was seen to negotiate.
    pub(crate) negotiated: String,
    /// Where the load client connects.
    pub(crate) entry: SocketAddr,
    /// The client proxy and the server proxy.
    pub(crate) proxies: Option<[Process; 2]>,
}

/// Finds a peer by its name.
pub(crate) fn peer(name: &str) -> Option<&'static Peer> {
    PEERS.iter().find(|peer| peer.name == name)
}

impl Peer {
    /// Starts both proxies and returns once a byte has gone through them and back and the pair
    /// has passed its check.
    pub(crate) fn start(&'static self, setting: &Setting) -> Result<Running, String> {
        let Setting { application, dir, target, .. } = setting;
        let mut running = Running {
            peer: self,
            version: "no proxy".to_owned(),
            negotiated: "in clear".to_owned(),
            entry: *application,
            proxies: None,
        };
        if let Some(proxy) = &self.proxy {
            let blame = |error| format!("{}: {error}", self.name);
            running.version = proxy.version(target).map_err(blame)?;
            let start =
                |part: &str, plan: &Plan<'_>| proxy.start(&format!("{}-{part}", self.name), plan);
            let [entry, tls] = free_addresses()?;
            let plan = Plan { side: Side::Server, listen: tls, connect: *application, setting };
            let mut server = start("server", &plan)?;
            let plan = Plan { side: Side::Client, listen: entry, connect: tls, setting };
            let mut client = start("client", &plan)?;
            wait_ready(entry, &mut client, &mut server).map_err(blame)?;

            check::refuses_without_certificate(tls, dir).map_err(blame)?;
            let tap = Tap::new(tls).map_err(|error| format!("the tap: {error}"))?;
            let [entry_of_probe, _] = free_addresses()?;
            let plan = Plan { listen: entry_of_probe, connect: tap.address, ..plan };
            let mut probe = start("probe", &plan)?;
            wait_ready(entry_of_probe, &mut probe, &mut server).map_err(blame)?;
            knock(entry_of_probe).map_err(|error| format!("{}: {error}", self.name))?;
            running.negotiated = tap.negotiated().map_err(blame)?;

            client.count_descendants()?;
            server.count_descendants()?;
            running.entry = entry;
            running.proxies = Some([client, server]);
        }
        Ok(running)
    }
}

impl Proxy {
    fn start(&self, name: &str, plan: &Plan<'_>) -> Result<Process, String> {
        let Setting { dir, target, .. } = plan.setting;
        let file = dir.join(format!("{name}.{}", self.extension));
        fs::write(&file, (self.config)(plan))
            .map_err(|error| format!("writing {}: {error}", file.display()))?;
        let mut command = Command::new((self.program)(target));
        command.args((self.arguments)(name)).arg(file);
        Process::start(name.to_owned(), &command, dir)
    }

    /// The first line of what the program prints that holds a digit.
    fn version(&self, target: &Path) -> Result<String, String> {
        let program = (self.program)(target);
        let output = Command::new(&program).arg(self.version).output().map_err(|error| {
            format!(
                "cannot run {}: {error}; scripts/install-bench.sh installs the peers, --peers \
                 chooses among them",
                program.display()
            )
        })?;
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text);
        let line = text.lines().find(|line| line.contains(|c: char| c.is_ascii_digit()));
        let line = line.unwrap_or("version unknown");
        let line = line.trim_start_matches(&*program.to_string_lossy());
        Ok(line.trim().to_owned())
    }
}

/// Two addresses of loopback that nobody listens on.
fn free_addresses() -> Result<[SocketAddr; 2], String> {
    let bound = || {
        let listeners = [TcpListener::bind("127.0.0.1:0")?, TcpListener::bind("127.0.0.1:0")?];
        Ok::<_, std::io::Error>([listeners[0].local_addr()?, listeners[1].local_addr()?])
    };
    bound().map_err(|error| format!("no free port on loopback: {error}"))
}

/// Waits until a connection goes through the whole chain.
fn wait_ready(entry: SocketAddr, client: &mut Process, server: &mut Process) -> Result<(), String> {
    let start = Instant::now();
    loop {
        let Err(error) = knock(entry) else { return Ok(()) };
        client.check_running()?;
        server.check_running()?;
        if start.elapsed() > START_TIME_MAX {
            let [client, server] = [client.log_tail(), server.log_tail()];
            return Err(format!("carries no byte to the other end: {error}\n{client}\n{server}"));
        }
        thread::sleep(Duration::from_millis(50));
    }
}
