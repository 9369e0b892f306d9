//! Defines the peers of the benchmark. A peer is one method to add mutual TLS to a connection
//! between two programs.
//!
//! ```text
//! proxies      load client -> [client proxy] == mutual TLS ==> [server proxy] -> load server
//!                       entry address       TLS address             application address
//! relays       load client -> [relay] -> [relay] -> load server, without TLS
//! in-process   load client with a library == mutual TLS ==> load server with a library
//! tacit        [tacit run [load client]] == mutual TLS ==> [tacit run [load server]]
//! ```
//! Each proxy has its own source file, which defines the configuration of the proxy. For a fair
//! comparison, all peers use X25519 and verify the certificate of the other side. Unless the
//! workload requires other settings, all peers use TLS_AES_128_GCM_SHA256 and do not resume
//! sessions. To add a proxy, add a file with a `PROXY` constant, and an entry in [`PEERS`].

mod check;
mod envoy;
mod haproxy;
mod hello;
mod library;
mod nginx;
pub(crate) mod peer;
pub(crate) mod plan;
mod proxies;
pub(crate) mod running;
mod runs;
mod stunnel;
pub(crate) mod tacit;

use self::peer::Form;
pub(crate) use self::peer::Peer;
pub(crate) use self::plan::{Setting, without};
pub(crate) use self::running::{Far, Running};
use crate::tls_settings::TlsSettings;

/// The configuration that the goals apply to: the default.
pub(crate) const SUBJECT: &str = "tacit-run";
/// The configuration with the same network as the peers of [`Form::Given`].
pub(crate) const PLACED: &str = "tacit-split";

/// The two configurations whose difference is the cost of the ledger.
pub(crate) const METERED: &str = "tacit-given";
/// See [`METERED`].
pub(crate) const UNMETERED: &str = "tacit-unmetered";

/// All peers, in the order of the report.
pub(crate) static PEERS: [Peer; 17] = [
    Peer { name: "direct", title: "no TLS at all", form: Form::Direct },
    Peer { name: "relays", title: "no TLS, two relays that only copy bytes", form: Form::Relays },
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
        title: "with large TCP segments and one CPU for each side",
        form: Form::Given(nginx::PROXY),
    },
    Peer {
        name: "envoy-given",
        title: "with large TCP segments and one CPU for each side",
        form: Form::Given(envoy::PROXY),
    },
    Peer { name: "tacit-fixed", title: "forwarding rules", form: Form::Proxies(tacit::PROXY) },
    Peer {
        name: "tacit-fixed-no-cache",
        title: "forwarding rules with chain-cache = false",
        form: Form::Proxies(tacit::WITHOUT_CHAIN_CACHE),
    },
    Peer {
        name: METERED,
        title: "forwarding rules, with large TCP segments and one CPU for each side",
        form: Form::Given(tacit::PROXY),
    },
    Peer {
        name: UNMETERED,
        title: "the same as tacit-given, but with accounting = false",
        form: Form::Given(tacit::UNMETERED),
    },
    Peer { name: SUBJECT, title: "two tacit runs with default settings", form: Form::Runs(None) },
    Peer {
        name: PLACED,
        title: "two tacit runs with placement = \"split\"",
        form: Form::Runs(Some("split")),
    },
    Peer {
        name: "tacit-one-cpu",
        title: "two tacit runs with placement = \"one-cpu\"",
        form: Form::Runs(Some("one-cpu")),
    },
];

/// Finds a peer by its name.
pub(crate) fn peer(name: &str) -> Option<&'static Peer> {
    PEERS.iter().find(|peer| peer.name == name)
}

/// Starts the proxies and the server of a peer, and returns when they have passed the check.
pub(crate) fn start(
    peer: &'static Peer,
    settings: TlsSettings,
    setting: &Setting<'_>,
) -> Result<Running, String> {
    let started = match &peer.form {
        Form::Direct => {
            Ok(Running::in_clear(peer, settings, "no proxy", setting.application, None))
        }
        Form::Relays => proxies::start_relays(peer, settings, setting),
        Form::InProcess(library) => library::start(peer, library, settings, setting),
        Form::Proxies(proxy) => proxies::start(peer, proxy, settings, setting),
        Form::Given(proxy) => {
            proxies::start_in_network(peer, number_of(peer), proxy, settings, setting)
        }
        Form::Runs(placement) => runs::start(peer, *placement, settings, setting),
    };
    started.map_err(|error| format!("{}: {error}", peer.name))
}

/// The index of a peer in the table.
fn number_of(peer: &Peer) -> u8 {
    let index = PEERS.iter().position(|known| known.name == peer.name);
    index.and_then(|index| u8::try_from(index).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everybody_takes_the_usual_terms_and_few_take_other_suites() {
        let takers = |settings| PEERS.iter().filter(|peer| peer.takes(settings)).count();
        assert_eq!(takers(TlsSettings::Usual), PEERS.len());
        for settings in [TlsSettings::Aes256, TlsSettings::ChaCha20, TlsSettings::Tls12] {
            let names = PEERS.iter().filter(|peer| peer.takes(settings)).map(|peer| peer.name);
            assert!(names.clone().all(|n| n.starts_with("tacit") || n == "inproc-openssl"));
            assert_eq!(names.count(), 6);
        }
        assert!(PEERS.iter().all(|peer| !(peer.is_rival() && peer.is_tacit())));
    }
}
