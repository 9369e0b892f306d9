//! Sets up the network paths that `lfp.rs` compares. Each path gives a program in a network
//! namespace access to a server outside.
//!
//! ```text
//! slirp4netns, pasta   program ── TCP/IP in the kernel ── TAP ── TCP/IP in user space ─> server
//! veth                 program ── TCP/IP in the kernel ── veth pair ───────────────────> server
//! relay                program ── tacit run, the agent relays ────────────────────────> server
//! handed               program ── tacit run, the program gets a socket of the agent ──> server
//! link                 program ── tacit run --link, a socket of tacit link serve ─────> server
//! link over TLS        program ── tacit run --link, tacit link serve ══ TLS over TCP ══
//!                                 tacit link serve ───────────────────────────────────> server
//! direct               program ───────────────────────────────────────────────────────> server
//! ```

use std::io::Read as _;
use std::os::fd::OwnedFd;

use serde_json::Value;

use super::agents;
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
    /// A link between kernels, here with both ends on this one.
    TlsLink,
    Direct,
}

/// The namespace of another side, and the link server: what paths share.
#[derive(Debug)]
pub(super) struct PathContext {
    pub(super) peer: StagedProcess,
    link: StagedProcess,
    /// The servers of a link with TLS: with the network, and without.
    tls_link: Result<[StagedProcess; 2], Gap>,
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

/// The policies of the two servers of a link with TLS.
const FAR_POLICY: &str = "version = 1\n\
    [identity.localhost]\ncert = \"pki/localhost.pem\"\nkey = \"pki/localhost.key\"\n\
    [trust.ca]\nca = \"pki/ca.pem\"\n[link.far]\nlisten = \"127.0.0.1:7443\"\n\
    tls = { identity = \"localhost\", trust = \"ca\", client-cert = \"required\" }\n\
    [[rule]]\nname = \"lfp\"\nlink = \"far\"\ndirection = \"outbound\"\n\
    remote = \"10.9.8.7\"\npermit = true\n";
const NEAR_POLICY: &str = "version = 1\n\
    [identity.alice]\ncert = \"pki/alice.pem\"\nkey = \"pki/alice.key\"\n\
    [trust.ca]\nca = \"pki/ca.pem\"\n[link.near]\nconnect = \"127.0.0.1:7443\"\n\
    tls = { identity = \"alice\", trust = \"ca\" }\n";

/// Executes a program in a new namespace in which only `lo` exists.
const WITHOUT_NETWORK: &str = "ip link set lo up && exec \"$@\"";
/// Prints a line, and executes the program after it has read one: meanwhile slirp4netns is
/// attached.
const ATTACHED: &str = "echo attach; read go; exec \"$@\"";

impl NetworkPath {
    pub(super) const ALL: [Self; 8] = [
        Self::Slirp,
        Self::Pasta,
        Self::Veth,
        Self::Relay,
        Self::Handed,
        Self::Link,
        Self::TlsLink,
        Self::Direct,
    ];

    /// All paths. Each round begins with another one.
    pub(super) fn turns(round: usize) -> impl Iterator<Item = Self> {
        (0..Self::ALL.len()).map(move |turn| Self::ALL[(turn + round) % Self::ALL.len()])
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Slirp => "slirp4netns",
            Self::Pasta => "pasta",
            Self::Veth => "veth",
            Self::Relay => "relay",
            Self::Handed => "handed",
            Self::Link => "link",
            Self::TlsLink => "link over TLS",
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
            Self::Handed => vec![tacit, "run", "--policy", "lfp.toml", "--"],
            Self::Link | Self::TlsLink => {
                let name = if self == Self::Link { "guest" } else { "near" };
                let run = [tacit, "run", "--link", name, "--policy", "lfp.toml", "--"];
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
        if let (Self::TlsLink, Err(gap)) = (self, &context.tls_link) {
            return Err(gap.clone());
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
    /// in another namespace, and cannot be asked from here.
    pub(super) fn check(self, stage: &Stage, session: &Session) -> Result<(), Gap> {
        let wanted = match self {
            Self::Relay => "relay",
            Self::Handed => "handed",
            _ => return Ok(()),
        };
        let launcher = session.process.program_id()?;
        let text = stage.shell(&format!(
            "{tacit} show connections --json --control tacit-run-{launcher}/agent.sock",
            tacit = stage.tacit()
        ))?;
        let shown: Value = serde_json::from_str(&text).map_err(|error| {
            Gap::failed(format!("cannot parse the list of connections: {error}"))
        })?;
        let paths = shown["connections"].as_array().into_iter().flatten();
        let other =
            paths.filter_map(|one| one["path"].as_str()).find(|path| !path.starts_with(wanted));
        match other {
            Some(other) => {
                Err(Gap::failed(format!("a connection uses the path {other}, not {wanted}")))
            }
            None => Ok(()),
        }
    }

    /// The processes of the path that are not descendants of the session.
    pub(super) fn others(self, context: &PathContext, attached: Option<&Attached>) -> Vec<u32> {
        let attached = attached.map(|Attached(process)| process.id());
        let links: Vec<&StagedProcess> = match self {
            Self::Link => vec![&context.link],
            Self::TlsLink => context.tls_link.iter().flatten().collect(),
            _ => Vec::new(),
        };
        attached.into_iter().chain(links.into_iter().map(StagedProcess::id)).collect()
    }
}

impl PathContext {
    /// Makes the namespace of the other side, with a pair of interfaces to it, and starts the
    /// server of the link.
    pub(super) fn prepare(stage: &Stage) -> Result<Self, Gap> {
        let peer = other_side(stage)?;
        stage.write("lfp.toml", RUN_POLICY)?;
        stage.write("link.toml", LINK_POLICY)?;
        let words = [stage.tacit(), "link", "serve", "--policy", "link.toml"];
        let link = stage.start("link", &words)?;
        Ok(Self { peer, link, tls_link: tls_link(stage) })
    }
}

/// Starts the two servers of a link with TLS.
fn tls_link(stage: &Stage) -> Result<[StagedProcess; 2], Gap> {
    agents::certificates(stage)?;
    stage.write("link-far.toml", FAR_POLICY)?;
    stage.write("link-near.toml", NEAR_POLICY)?;
    let serve = |name: &str| {
        let policy = format!("{name}.toml");
        stage.start(name, &[stage.tacit(), "link", "serve", "--policy", &policy])
    };
    let mut far = serve("link-far")?;
    stage.wait_for_listener("127.0.0.1:7443", &mut far)?;
    let mut near = serve("link-near")?;
    let lists = || {
        let listed = stage.shell(&format!("{} link list", stage.tacit()));
        listed.is_ok_and(|list| list.contains("near"))
    };
    stage.wait("`tacit link list` does not show the link `near`", &mut near, lists)?;
    Ok([far, near])
}

/// Makes a namespace that a pair of interfaces joins with this one.
pub(super) fn other_side(stage: &Stage) -> Result<StagedProcess, Gap> {
    let mut peer = stage.start("peer", &["unshare", "-n", "sleep", "3600"])?;
    let own = std::fs::read_link("/proc/self/ns/net").ok();
    let pid = peer.id();
    stage.wait("cannot create a second network namespace", &mut peer, || {
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
    let (mut ready, write_end) = std::io::pipe().map_err(failed)?;
    let pid = pid.to_string();
    let words = ["slirp4netns", "--configure", "--mtu=65520", "--ready-fd=0", &pid, "tap0"];
    let process = stage.start_with_input("slirp4netns", &words, OwnedFd::from(write_end).into())?;
    let mut byte = [0];
    match ready.read(&mut byte) {
        Ok(1) => Ok(Attached(process)),
        _ => Err(Gap::failed(format!("slirp4netns ended: {}", process.log_end()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_policies_are_valid() {
        for text in [RUN_POLICY, LINK_POLICY, FAR_POLICY, NEAR_POLICY] {
            let parsed = tacit_core::policy::parse(text);
            assert!(parsed.policy.is_some(), "{parsed:?}\n{text}");
        }
    }

    #[test]
    fn each_round_has_every_path_and_begins_with_another() {
        let firsts: Vec<_> = (1..=8).filter_map(|round| NetworkPath::turns(round).next()).collect();
        for path in NetworkPath::ALL {
            assert!(firsts.contains(&path) && NetworkPath::turns(3).any(|other| other == path));
        }
    }
}
