//! The peers: each a way to put mutual TLS between two programs.
//!
//! ```text
//! proxies      load client -> [client proxy] == mutual TLS ==> [server proxy] -> load server
//!                       entry address       TLS address             application address
//! in-process   load client with a library == mutual TLS ==> load server with a library
//! runs         [tacit run [load client]] == mutual TLS ==> [tacit run [load server]]
//! ```
//! One file a peer, which holds its configuration and what it needs to be compared fairly:
//! X25519, TLS_AES_128_GCM_SHA256, both sides verify the chain and the client side the name, no
//! resumption, no delay of small writes, one worker thread where that can be set, no log of
//! connections. A new proxy is a file with a `PROXY` and a line in [`PEERS`].

mod check;
mod envoy;
mod haproxy;
mod hello;
mod inprocess;
mod nginx;
mod runs;
mod stunnel;
mod tacit;

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use self::check::Tap;
use super::load::client;
use super::load::terms::Terms;
use super::measure::LoadServer;
use super::place::Place;
use super::process::{Process, guarded};
use super::room::{self, Room};

/// A pair of proxies that cannot carry a byte so long after its start has failed.
const START_TIME_MAX: Duration = Duration::from_secs(15);

/// Who is compared.
#[derive(Debug)]
pub(crate) struct Peer {
    /// What `--peers` calls it.
    pub(crate) name: &'static str,
    /// What it is, for people.
    pub(crate) title: &'static str,
    form: Form,
}

/// How it is put between the programs.
#[derive(Debug)]
enum Form {
    /// Not at all, and no TLS: the price of the two programs and of loopback alone.
    Direct,
    /// By a library in both programs.
    InProcess(&'static str),
    /// By two proxies.
    Proxies(Proxy),
    /// By the same two proxies in a [`Room`], one CPU for each side.
    Given(Proxy),
    /// By `tacit run`, with the placement that its policy asks for.
    Runs(Option<&'static str>),
}

/// The form that the goals are about.
pub(crate) const SUBJECT: &str = "tacit-split";

/// The two whose difference is the price of the ledger.
pub(crate) const METERED: &str = "tacit-given";
/// See [`METERED`].
pub(crate) const UNMETERED: &str = "tacit-unmetered";

/// Everybody, in the order of the report.
pub(crate) static PEERS: [Peer; 15] = [
    Peer { name: "direct", title: "no TLS at all", form: Form::Direct },
    Peer {
        name: "inproc-openssl",
        title: "OpenSSL in both programs",
        form: Form::InProcess("openssl"),
    },
    Peer {
        name: "inproc-rustls",
        title: "rustls in both programs",
        form: Form::InProcess("rustls"),
    },
    Peer { name: "stunnel", title: "as installed", form: Form::Proxies(stunnel::PROXY) },
    Peer { name: "haproxy", title: "as installed", form: Form::Proxies(haproxy::PROXY) },
    Peer { name: "nginx", title: "as installed", form: Form::Proxies(nginx::PROXY) },
    Peer { name: "envoy", title: "as installed", form: Form::Proxies(envoy::PROXY) },
    Peer {
        name: "nginx-given",
        title: "given large segments and a CPU for each side",
        form: Form::Given(nginx::PROXY),
    },
    Peer {
        name: "envoy-given",
        title: "given large segments and a CPU for each side",
        form: Form::Given(envoy::PROXY),
    },
    Peer { name: "tacit-fixed", title: "fixed ports", form: Form::Proxies(tacit::PROXY) },
    Peer {
        name: METERED,
        title: "fixed ports, given large segments and a CPU for each side",
        form: Form::Given(tacit::PROXY),
    },
    Peer {
        name: UNMETERED,
        title: "the same with accounting = false",
        form: Form::Given(tacit::UNMETERED),
    },
    Peer { name: "tacit-run", title: "two tacit runs, default settings", form: Form::Runs(None) },
    Peer {
        name: SUBJECT,
        title: "two tacit runs, placement = \"split\"",
        form: Form::Runs(Some("split")),
    },
    Peer {
        name: "tacit-one-cpu",
        title: "two tacit runs, placement = \"one-cpu\"",
        form: Form::Runs(Some("one-cpu")),
    },
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
    terms: Terms,
    setting: &'a Setting<'a>,
}

/// What is the same for all peers.
#[derive(Debug)]
pub(crate) struct Setting<'a> {
    /// Where the load server listens.
    pub(crate) application: SocketAddr,
    /// Certificates, configurations and logs; the working directory of the proxies.
    pub(crate) dir: PathBuf,
    /// The build directory.
    pub(crate) target: PathBuf,
    /// The congestion control of every socket, for a peer that would choose its own.
    pub(crate) congestion: String,
    /// Where programs run as an ordinary user, if they can.
    pub(crate) place: Option<&'a Place>,
    /// Where peers get what `tacit run` has, if that can be had.
    pub(crate) room: Option<&'a Room>,
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

    /// The CPU of the side in a room.
    fn cpu(self) -> usize {
        match self {
            Self::Client => 0,
            Self::Server => 1,
        }
    }
}

/// A peer that carries bytes.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) peer: &'static Peer,
    pub(crate) terms: Terms,
    /// What its program says of itself, one line.
    pub(crate) version: String,
    /// What the pair was seen to negotiate.
    pub(crate) negotiated: String,
    /// Where the load client connects.
    pub(crate) entry: SocketAddr,
    client: Client,
    /// The client proxy and the server proxy.
    pub(crate) proxies: Option<[Process; 2]>,
    pub(crate) far: Far,
}

/// How the load client is started.
#[derive(Debug)]
enum Client {
    /// By itself, after these words.
    Plain(Vec<String>),
    /// With a library in it.
    InProcess { library: &'static str },
    /// Under `tacit run` with this policy.
    Run { policy: String },
}

/// The load server at the far end.
#[derive(Debug)]
pub(crate) enum Far {
    /// The one of all peers.
    Shared,
    /// One of its own.
    Own(LoadServer),
    /// One of its own, under `tacit run`, which is the server proxy.
    Run(LoadServer),
}

/// Finds a peer by its name.
pub(crate) fn peer(name: &str) -> Option<&'static Peer> {
    PEERS.iter().find(|peer| peer.name == name)
}

impl Peer {
    /// Whether the peer is measured on these terms. Other suites are for tacit and for OpenSSL in
    /// the program: what the choice of a suite costs is a question to a library, and to a relay.
    pub(crate) fn takes(&self, terms: Terms) -> bool {
        match (&self.form, terms) {
            (_, Terms::Usual) => true,
            (Form::Direct | Form::Given(_), _) => false,
            // Its sessions can be taken up by unsafe code alone.
            (Form::InProcess(library), Terms::Resumed) => *library != "openssl",
            (_, Terms::Resumed) => true,
            (Form::InProcess(library), _) => *library == "openssl",
            (Form::Runs(_), _) => true,
            (Form::Proxies(_), _) => self.is_tacit(),
        }
    }

    /// Whether it is a product that others install, as they install it.
    pub(crate) fn is_rival(&self) -> bool {
        matches!(self.form, Form::Proxies(_)) && !self.is_tacit()
    }

    /// Whether it is such a product with what `tacit run` has.
    pub(crate) fn is_given(&self) -> bool {
        matches!(self.form, Form::Given(_)) && !self.is_tacit()
    }

    /// Whether it is tacit, in whatever form.
    pub(crate) fn is_tacit(&self) -> bool {
        self.name.starts_with("tacit")
    }

    /// Starts what runs all the time, and returns once the pair has passed its check.
    pub(crate) fn start(
        &'static self,
        terms: Terms,
        setting: &Setting<'_>,
    ) -> Result<Running, String> {
        let started = match &self.form {
            Form::Direct => Ok(Running {
                peer: self,
                terms,
                version: "no proxy".to_owned(),
                negotiated: "in clear".to_owned(),
                entry: setting.application,
                client: Client::Plain(Vec::new()),
                proxies: None,
                far: Far::Shared,
            }),
            Form::InProcess(library) => inprocess::start(self, library, terms, setting),
            Form::Proxies(proxy) => self.start_proxies(proxy, terms, setting),
            Form::Given(proxy) => self.start_given(proxy, terms, setting),
            Form::Runs(placement) => runs::start(self, *placement, terms, setting),
        };
        started.map_err(|error| format!("{}: {error}", self.name))
    }

    fn start_proxies(
        &'static self,
        proxy: &Proxy,
        terms: Terms,
        setting: &Setting<'_>,
    ) -> Result<Running, String> {
        let version = proxy.version(&setting.target)?;
        let start = |part: &str, plan: &Plan<'_>| {
            proxy.start(&format!("{}-{}-{part}", self.name, terms.name()), plan, &[])
        };
        let [entry, tls] = free_addresses()?;
        let connect = setting.application;
        let plan = Plan { side: Side::Server, listen: tls, connect, terms, setting };
        let mut server = start("server", &plan)?;
        let plan = Plan { side: Side::Client, listen: entry, connect: tls, terms, setting };
        let mut client = start("client", &plan)?;
        wait_ready(entry, &mut client, &mut server)?;

        check::refuses_without_certificate(tls, &setting.dir)?;
        let tap = Tap::new(tls).map_err(|error| format!("the tap: {error}"))?;
        let [entry_of_probe, _] = free_addresses()?;
        let plan = Plan { listen: entry_of_probe, connect: tap.address, ..plan };
        let mut probe = start("probe", &plan)?;
        wait_ready(entry_of_probe, &mut probe, &mut server)?;
        client::knocks(entry_of_probe, 1, &client::plain())?;
        let negotiated = tap.negotiated(terms.resumes())?;

        client.count_descendants()?;
        server.count_descendants()?;
        Ok(Running {
            peer: self,
            terms,
            version,
            negotiated,
            entry,
            client: Client::Plain(Vec::new()),
            proxies: Some([client, server]),
            far: Far::Shared,
        })
    }

    /// The same configuration in a room. Its check was that of the peer as installed.
    fn start_given(
        &'static self,
        proxy: &Proxy,
        terms: Terms,
        setting: &Setting<'_>,
    ) -> Result<Running, String> {
        let room = setting.room.ok_or("no network namespace with large segments was granted")?;
        let [entry, tls, application] =
            [room::ENTRY, room::TLS, room::APPLICATION].map(|port| self.address(port));
        let mut command = command(&room.words(Side::Server.cpu()));
        command.arg(own_program()?).args(["bench-server", &application.to_string()]);
        let far = LoadServer::adopt(&command, &setting.dir)?;
        let start = |side: Side, listen, connect| {
            let plan = Plan { side, listen, connect, terms, setting };
            let words = room.words(side.cpu());
            proxy.start(&format!("{}-{}", self.name, side.name()), &plan, &words)
        };
        let mut server = start(Side::Server, tls, application)?;
        let mut client = start(Side::Client, entry, tls)?;
        let words = room.words(Side::Client.cpu());
        let mut knock = command_of(&words, &own_program()?);
        knock.args(["bench-knock", &entry.to_string(), "1"]);
        wait_until(&mut client, &mut server, || {
            let output = knock.output().map_err(|error| error.to_string())?;
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            if output.status.success() { Ok(()) } else { Err(said) }
        })?;
        client.count_descendants()?;
        server.count_descendants()?;
        Ok(Running {
            peer: self,
            terms,
            version: proxy.version(&setting.target)?,
            negotiated: "as above".to_owned(),
            entry,
            client: Client::Plain(words),
            proxies: Some([client, server]),
            far: Far::Own(far),
        })
    }

    /// An address of loopback that no other peer in the room has.
    fn address(&self, port: u16) -> SocketAddr {
        let own = PEERS.iter().position(|peer| peer.name == self.name).unwrap_or(0);
        room::address(u8::try_from(own).unwrap_or(0), port)
    }
}

impl Running {
    /// The load client with a verb, `client`, `knock` or `hold`, and what that asks for, as it is
    /// started for this peer.
    pub(crate) fn client_command(
        &self,
        setting: &Setting<'_>,
        verb: &str,
        words: &[&str],
    ) -> Command {
        let own_verb = format!("bench-{verb}");
        let own = [&[own_verb.as_str()], words].concat();
        match &self.client {
            Client::Plain(before) => {
                // The driver has found itself before: it is running.
                let program = own_program().unwrap_or_default();
                let mut command = command_of(before, &program);
                command.args(own);
                guarded(&command)
            }
            Client::InProcess { library } => {
                let mut command = Command::new(inprocess::program(&setting.target));
                command.args(inprocess::words(verb, library, self.terms, &setting.dir));
                command.args(words);
                guarded(&command)
            }
            Client::Run { policy } => match setting.place {
                Some(place) => {
                    let program = place.dir.join("bench");
                    let program = program.to_string_lossy();
                    let run = ["run", "--policy", policy, "--", &program];
                    place.ordinary("./tacit", &[&run[..], &own].concat())
                }
                None => Command::new("false"),
            },
        }
    }

    /// Whether the load client's descendants are the client proxy.
    pub(crate) fn client_is_run(&self) -> bool {
        matches!(self.client, Client::Run { .. })
    }
}

impl Proxy {
    /// Starts one end, after the words in `before`.
    fn start(&self, name: &str, plan: &Plan<'_>, before: &[String]) -> Result<Process, String> {
        let Setting { dir, target, .. } = plan.setting;
        let file = dir.join(format!("{name}.{}", self.extension));
        fs::write(&file, (self.config)(plan))
            .map_err(|error| format!("writing {}: {error}", file.display()))?;
        let mut command = command_of(before, &(self.program)(target));
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

/// A command that begins with these words.
fn command(words: &[String]) -> Command {
    let mut words = words.iter();
    let mut command = Command::new(words.next().map_or("env", String::as_str));
    command.args(words);
    command
}

/// A program, after these words if there are any.
fn command_of(before: &[String], program: &Path) -> Command {
    if before.is_empty() {
        return Command::new(program);
    }
    let mut command = command(before);
    command.arg(program);
    command
}

fn own_program() -> Result<PathBuf, String> {
    std::env::current_exe().map_err(|error| format!("where am I: {error}"))
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
    wait_until(client, server, || client::knocks(entry, 1, &client::plain()))
}

fn wait_until(
    client: &mut Process,
    server: &mut Process,
    mut try_once: impl FnMut() -> Result<(), String>,
) -> Result<(), String> {
    let start = Instant::now();
    loop {
        let Err(error) = try_once() else { return Ok(()) };
        client.check_running()?;
        server.check_running()?;
        if start.elapsed() > START_TIME_MAX {
            let [client, server] = [client.log_tail(), server.log_tail()];
            return Err(format!("carries no byte to the other end: {error}\n{client}\n{server}"));
        }
        thread::sleep(Duration::from_millis(50));
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn setting() -> Setting<'static> {
        Setting {
            application: "127.0.0.1:9000".parse().unwrap(),
            dir: PathBuf::new(),
            target: PathBuf::new(),
            congestion: "cubic".to_owned(),
            place: None,
            room: None,
        }
    }

    #[test]
    fn everybody_takes_the_usual_terms_and_few_take_other_suites() {
        let takers = |terms| PEERS.iter().filter(|peer| peer.takes(terms)).count();
        assert_eq!(takers(Terms::Usual), PEERS.len());
        for terms in [Terms::Aes256, Terms::ChaCha20, Terms::Tls12] {
            let names = PEERS.iter().filter(|peer| peer.takes(terms)).map(|peer| peer.name);
            assert!(names.clone().all(|n| n.starts_with("tacit") || n == "inproc-openssl"));
            assert_eq!(names.count(), 5);
        }
        assert!(PEERS.iter().all(|peer| !(peer.is_rival() && peer.is_tacit())));
    }
}
