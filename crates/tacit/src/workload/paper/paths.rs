//! Gives a program a network in different ways: a TCP/IP stack in user space, a pair of interfaces,
//! and the paths of tacit.
//!
//! ```text
//! slirp4netns, pasta   program ── its kernel's TCP/IP ── TAP ── TCP/IP in user space ──> server
//! veth                 program ── its kernel's TCP/IP ── pair of interfaces ───────────> server
//! relay                program ── tacit run, the agent relays ────────────────────────> server
//! handed               program ── tacit run, the program gets a socket of the agent ──> server
//! link                 program ── tacit run --link, a socket of tacit link serve ─────> server
//! direct               program ───────────────────────────────────────────────────────> server
//! ```

use std::io::Read as _;
use std::os::fd::OwnedFd;

use serde_json::Value;

use super::cell::Gap;
use super::session::Session;
use super::stage::{SERVER, Stage, StagedProcess};

/// The addresses of a pair of interfaces: here, and in the namespace of the other side.
pub(super) const HERE: &str = "10.99.0.1";
pub(super) const THERE: &str = "10.99.0.2";

/// How a program reaches the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NetworkPath {
    Slirp,
    Pasta,
    Veth,
    Relay,
    Handed,
    Link,
    Direct,
}

/// The namespace of another side, and the link server: what paths share.
#[derive(Debug)]
pub(super) struct PathContext {
    pub(super) peer: StagedProcess,
    link: StagedProcess,
}

/// slirp4netns, attached to the namespace of a program.
#[derive(Debug)]
pub(super) struct Attached(StagedProcess);

const INSTALL: &str = "scripts/install-bench.sh";

/// The policies of runs and of the link server.
const RUN_POLICY: &str = "version = 1\n[[rule]]\nname = \"lfp\"\ndirection = \"outbound\"\n\
    remote = \"10.9.8.7\"\npermit = true\n";
const LINK_POLICY: &str = "version = 1\n[link.guest]\n[[rule]]\nname = \"lfp\"\nlink = \"guest\"\n\
    direction = \"outbound\"\nremote = \"10.9.8.7\"\npermit = true\n";

/// Executes a program in a new namespace in which only `lo` exists.
const WITHOUT_NETWORK: &str = "ip link set lo up && exec \"$@\"";
/// Prints a line, and executes the program after it has read one: meanwhile slirp4netns is
/// attached.
const ATTACHED: &str = "echo attach; read go; exec \"$@\"";

impl NetworkPath {
    pub(super) const ALL: [Self; 7] =
        [Self::Slirp, Self::Pasta, Self::Veth, Self::Relay, Self::Handed, Self::Link, Self::Direct];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Slirp => "slirp4netns",
            Self::Pasta => "pasta",
            Self::Veth => "veth",
            Self::Relay => "relay",
            Self::Handed => "handed",
            Self::Link => "link",
            Self::Direct => "direct",
        }
    }

    /// The reason why the path is not measured.
    pub(super) fn missing(self, stage: &Stage) -> Option<Gap> {
        match self {
            Self::Slirp => stage.missing("slirp4netns", INSTALL),
            Self::Pasta => stage.missing("pasta", INSTALL),
            _ => None,
        }
    }

    /// The address of the server on this path.
    pub(super) fn server(self) -> &'static str {
        if self == Self::Veth { HERE } else { SERVER }
    }

    /// The words in front of the program.
    fn prefix(self, stage: &Stage, context: &PathContext) -> Result<Vec<String>, Gap> {
        let tacit = stage.tacit();
        let peer = context.peer.program_id()?.to_string();
        let words: Vec<&str> = match self {
            Self::Slirp => vec!["unshare", "-rn", "sh", "-c", ATTACHED, "sh"],
            Self::Pasta => vec!["pasta", "-q", "-f", "--config-net", "--"],
            Self::Veth => vec!["nsenter", "-t", &peer, "-n"],
            Self::Relay => vec![tacit, "run", "--policy", "lfp.toml", "--path", "relay", "--"],
            Self::Handed => vec![tacit, "run", "--policy", "handed.toml", "--"],
            Self::Link => {
                let run = [tacit, "run", "--link", "guest", "--policy", "lfp.toml", "--"];
                [&["unshare", "-n", "sh", "-c", WITHOUT_NETWORK, "sh"][..], &run].concat()
            }
            Self::Direct => Vec::new(),
        };
        Ok(words.into_iter().map(str::to_owned).collect())
    }

    /// Starts a program on this path, and waits until it is ready.
    pub(super) fn start(
        self,
        stage: &Stage,
        context: &PathContext,
        words: &[&str],
    ) -> Result<(Session, Option<Attached>), Gap> {
        if let Some(gap) = self.missing(stage) {
            return Err(gap);
        }
        let prefix = self.prefix(stage, context)?;
        let words: Vec<_> =
            prefix.iter().map(String::as_str).chain(words.iter().copied()).collect();
        let mut session = Session::start(stage, self.name(), &words)?;
        let mut attached = None;
        if self == Self::Slirp {
            session.ready()?;
            attached = Some(attach(stage, session.process.program_id()?)?);
            session.write("go")?;
        }
        session.ready()?;
        Ok((session, attached))
    }

    /// Checks that the open connections of a run take this path. The agent of a run with a link is
    /// in another namespace, and cannot be asked from here; such a run has no other path.
    pub(super) fn check(self, stage: &Stage, session: &Session) -> Result<(), Gap> {
        let wanted = match self {
            Self::Relay => "relay",
            Self::Handed => "handed",
            _ => return Ok(()),
        };
        let launcher = session.process.program_id()?;
        let text = stage.shell(&format!(
            "{} show connections --json --control tacit-run-{launcher}/agent.sock",
            stage.tacit()
        ))?;
        let shown: Value = serde_json::from_str(&text)
            .map_err(|error| Gap::failed(format!("no connections of the run: {error}")))?;
        let paths = shown["connections"].as_array().into_iter().flatten();
        let other =
            paths.filter_map(|one| one["path"].as_str()).find(|path| !path.starts_with(wanted));
        match other {
            Some(other) => Err(Gap::failed(format!("the path is {other}, not {wanted}"))),
            None => Ok(()),
        }
    }

    /// The processes of the path that are not descendants of the session.
    pub(super) fn others(self, context: &PathContext, attached: Option<&Attached>) -> Vec<u32> {
        let attached = attached.map(|Attached(process)| process.id());
        let link = (self == Self::Link).then(|| context.link.id());
        attached.into_iter().chain(link).collect()
    }
}

impl PathContext {
    /// Makes the namespace of the other side, with a pair of interfaces to it, and starts the
    /// server of the link.
    pub(super) fn prepare(stage: &Stage) -> Result<Self, Gap> {
        let peer = other_side(stage)?;
        stage.write("lfp.toml", RUN_POLICY)?;
        stage.write("handed.toml", &format!("{RUN_POLICY}path = \"auto\"\n"))?;
        stage.write("link.toml", LINK_POLICY)?;
        let words = [stage.tacit(), "link", "serve", "--policy", "link.toml"];
        let link = stage.start("link", &words)?;
        Ok(Self { peer, link })
    }
}

/// Makes a namespace that a pair of interfaces joins with this one.
pub(super) fn other_side(stage: &Stage) -> Result<StagedProcess, Gap> {
    let mut peer = stage.start("peer", &["unshare", "-n", "sleep", "3600"])?;
    let own = std::fs::read_link("/proc/self/ns/net").ok();
    let pid = peer.id();
    stage.wait("no second namespace", &mut peer, || {
        let family = tacit_sys::process::descendants(pid).unwrap_or_default();
        let first =
            family.first().and_then(|pid| std::fs::read_link(format!("/proc/{pid}/ns/net")).ok());
        first.is_some() && first != own
    })?;
    let pid = peer.program_id()?;
    stage.shell(&format!(
        "ip link delete w0 2>/dev/null || true\n\
         ip link add w0 type veth peer name w1 netns {pid}\n\
         ip address add {HERE}/24 dev w0\n\
         ip link set w0 up\n\
         nsenter -t {pid} -n sh -ec '\n\
         ip link set lo up\n\
         ip address add {THERE}/24 dev w1\n\
         ip link set w1 up\n\
         ip route add default via {HERE}'\n\
         cp /proc/sys/net/ipv4/tcp_congestion_control congestion\n\
         nsenter -t {pid} -n sh -c \
             'cat congestion >/proc/sys/net/ipv4/tcp_congestion_control' || true\n"
    ))?;
    Ok(peer)
}

/// Attaches slirp4netns to the namespace of a process, and waits until the network is ready.
fn attach(stage: &Stage, pid: u32) -> Result<Attached, Gap> {
    let failed = |error: std::io::Error| Gap::failed(format!("slirp4netns: {error}"));
    let (mut ready, told) = std::io::pipe().map_err(failed)?;
    let pid = pid.to_string();
    let words = ["slirp4netns", "--configure", "--mtu=65520", "--ready-fd=0", &pid, "tap0"];
    let process = stage.start_with_input("slirp4netns", &words, OwnedFd::from(told).into())?;
    let mut told = [0];
    match ready.read(&mut told) {
        Ok(1) => Ok(Attached(process)),
        _ => Err(Gap::failed(format!("slirp4netns ended: {}", process.log_end()))),
    }
}
