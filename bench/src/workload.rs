//! Lists the workloads of the benchmark. Builds the command line of `tacit workload` for one sample
//! of a workload.

use crate::tls_settings::TlsSettings;

/// A workload; one row of the comparison.
#[derive(Debug)]
pub(crate) struct Workload {
    /// The name for `--workloads`.
    pub(crate) name: &'static str,
    /// The title in the report.
    pub(crate) title: &'static str,
    /// Concurrent connections; each has a thread in the client.
    pub(crate) connections: usize,
    /// What each connection does.
    pub(crate) kind: Kind,
    /// The TLS settings.
    pub(crate) settings: TlsSettings,
    /// The goal for tacit.
    pub(crate) goal: Option<Goal>,
}

/// A goal: CPU time relative to the best peer in its default configuration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Goal {
    pub(crate) target: f64,
    pub(crate) stretch: f64,
}

/// What a connection does, and the size of a sample.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    /// Requests and replies of `bytes` each, for a fixed time.
    Exchange { bytes: usize },
    /// The same, while another client receives `streams` streams from the server.
    Beside { bytes: usize, streams: usize },
    /// Streams of `bytes` to the server, `times` over all connections together; counted in MB.
    Stream { bytes: u64, times: usize },
    /// `count` connections, each with one byte in each direction.
    Connect { count: usize },
    /// `count` connections, each with a request and a reply of `bytes`.
    Visit { count: usize, bytes: usize },
}

/// The length of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Length {
    /// The length for the report.
    Whole,
    /// A shorter length for `--quick`.
    Quick,
}

/// Duration of a sample of requests and replies, and of one with `--quick`.
const EXCHANGE_TIME: &str = "1s";
const EXCHANGE_TIME_QUICK: &str = "400ms";
/// Duration of the warm-up before it.
const EXCHANGE_WARM_UP: &str = "200ms";
/// Duration of the concurrent streams: longer than the sample with its warm-up.
const BESIDE_TIME: &str = "4s";
/// The number of connections is divided by this with `--quick`.
const CONNECTIONS_QUICK_PART: usize = 3;

impl Kind {
    /// The unit of CPU time.
    pub(crate) fn unit(self) -> &'static str {
        match self {
            Self::Exchange { .. } | Self::Beside { .. } => "op",
            Self::Stream { .. } => "MB",
            Self::Connect { .. } | Self::Visit { .. } => "connect",
        }
    }

    /// The figure in the load client's report that counts these units.
    pub(crate) fn figure(self) -> &'static str {
        match self {
            Self::Exchange { .. } | Self::Beside { .. } => "exchanges",
            Self::Stream { .. } => "mb",
            Self::Connect { .. } | Self::Visit { .. } => "connections",
        }
    }
}

impl Workload {
    /// The arguments of `tacit workload` for one sample, without `--connect ADDRESS`.
    pub(crate) fn words(&self, length: Length) -> Vec<String> {
        let connections = self.connections.to_string();
        let words = match self.kind {
            Kind::Exchange { bytes } | Kind::Beside { bytes, .. } => {
                let bytes = bytes.to_string();
                let time = match length {
                    Length::Whole => EXCHANGE_TIME,
                    Length::Quick => EXCHANGE_TIME_QUICK,
                };
                words(&[
                    &["request-reply", "client", "--request", &bytes, "--reply", &bytes],
                    &["--connections", &connections],
                    &["--seconds", time, "--warm-up", EXCHANGE_WARM_UP],
                ])
            }
            Kind::Stream { bytes, times } => {
                let each = times.div_ceil(self.connections).to_string();
                words(&[
                    &["stream", "client", "out", "--bytes", &bytes.to_string()],
                    &["--connections", &connections, "--times", &each],
                ])
            }
            Kind::Connect { count } => connect_words(length, count, 1, &connections),
            Kind::Visit { count, bytes } => connect_words(length, count, bytes, &connections),
        };
        [words, vec!["--steered".to_owned()]].concat()
    }

    /// The arguments for concurrent streams, if the workload has any. They start before the sample
    /// and end after it.
    pub(crate) fn words_beside(&self) -> Option<Vec<String>> {
        let Kind::Beside { streams, .. } = self.kind else { return None };
        Some(words(&[
            &["stream", "client", "in", "--connections", &streams.to_string()],
            &["--seconds", BESIDE_TIME, "--steered"],
        ]))
    }
}

fn connect_words(length: Length, count: usize, bytes: usize, at_once: &str) -> Vec<String> {
    let count = match length {
        Length::Whole => count.to_string(),
        Length::Quick => (count / CONNECTIONS_QUICK_PART).to_string(),
    };
    let bytes = bytes.to_string();
    words(&[
        &["connect", "client", "--connections", &count, "--at-once", at_once],
        &["--bytes", &bytes],
    ])
}

fn words(groups: &[&[&str]]) -> Vec<String> {
    groups.concat().into_iter().map(str::to_owned).collect()
}

/// A gigabyte: 10^9 bytes.
const GB: u64 = 1_000_000_000;

const fn exchange(
    name: &'static str,
    title: &'static str,
    connections: usize,
    bytes: usize,
) -> Workload {
    let kind = Kind::Exchange { bytes };
    Workload { name, title, connections, kind, settings: TlsSettings::Usual, goal: None }
}

const fn under(
    settings: TlsSettings,
    name: &'static str,
    title: &'static str,
    same: &Workload,
) -> Workload {
    let Workload { connections, kind, .. } = *same;
    Workload { name, title, connections, kind, settings, goal: None }
}

const fn with_goal(workload: Workload, target: f64, stretch: f64) -> Workload {
    let Workload { name, title, connections, kind, settings, .. } = workload;
    Workload { name, title, connections, kind, settings, goal: Some(Goal { target, stretch }) }
}

const KB: usize = 1024;

const K2: Workload = exchange("2k", "2 KB request and reply, 10 connections", 10, 2 * KB);
const K16: Workload = exchange("16k", "16 KB request and reply, 10 connections", 10, 16 * KB);
const K32: Workload = exchange("32k", "32 KB request and reply, 10 connections", 10, 32 * KB);
const K64: Workload = exchange("64k", "64 KB request and reply, 10 connections", 10, 64 * KB);
const M1: Workload = exchange("1m", "1 MB request and reply, 1 connection", 1, KB * KB);
const BULK: Workload = Workload {
    name: "bulk",
    title: "1 GB one way, 1 connection",
    connections: 1,
    kind: Kind::Stream { bytes: GB, times: 1 },
    settings: TlsSettings::Usual,
    goal: None,
};
const CONNECT: Workload = Workload {
    name: "connect",
    title: "new connections with a full mutual handshake, 4 at a time: connect, 1 byte each way, \
            close",
    connections: 4,
    kind: Kind::Connect { count: 3000 },
    settings: TlsSettings::Usual,
    goal: None,
};

/// All workloads in the order of the report; those with a goal are the first.
pub(crate) static WORKLOADS: [Workload; 26] = [
    with_goal(K2, 0.75, 0.50),
    with_goal(K64, 0.60, 0.55),
    with_goal(M1, 0.65, 0.54),
    with_goal(BULK, 0.65, 0.54),
    with_goal(CONNECT, 0.60, 0.55),
    exchange("500", "500 byte request and reply, 10 connections", 10, 500),
    exchange("2k-1", "2 KB request and reply, 1 connection", 1, 2 * KB),
    K16,
    K32,
    Workload {
        name: "beside",
        title: "100 byte request and reply on 10 connections, while 5 other connections transfer \
                streams of data (CPU time of all connections)",
        connections: 10,
        kind: Kind::Beside { bytes: 100, streams: 5 },
        settings: TlsSettings::Usual,
        goal: None,
    },
    Workload {
        name: "5x20m",
        title: "20 MB one way on each of 5 connections, repeatedly",
        connections: 5,
        kind: Kind::Stream { bytes: GB / 50, times: 50 },
        settings: TlsSettings::Usual,
        goal: None,
    },
    under(
        TlsSettings::Resumed,
        "resumed",
        "new connections with a resumed mutual handshake, 4 at a time: connect, 1 byte each way, \
         close",
        &CONNECT,
    ),
    under(TlsSettings::Aes256, "2k-aes256", "2 KB, 10 connections, AES-256-GCM", &K2),
    under(TlsSettings::Aes256, "1m-aes256", "1 MB, 1 connection, AES-256-GCM", &M1),
    under(TlsSettings::Aes256, "bulk-aes256", "1 GB one way, AES-256-GCM", &BULK),
    under(
        TlsSettings::Aes256,
        "connect-aes256",
        "new connections with a full mutual handshake, AES-256-GCM",
        &CONNECT,
    ),
    under(TlsSettings::Tls12, "2k-tls12", "2 KB, 10 connections, TLS 1.2", &K2),
    under(TlsSettings::Tls12, "1m-tls12", "1 MB, 1 connection, TLS 1.2", &M1),
    under(TlsSettings::Tls12, "bulk-tls12", "1 GB one way, TLS 1.2", &BULK),
    under(
        TlsSettings::Tls12,
        "connect-tls12",
        "new connections with a full mutual handshake, TLS 1.2",
        &CONNECT,
    ),
    under(
        TlsSettings::ChaCha20,
        "2k-chacha20",
        "2 KB, 1 connection, ChaCha20-Poly1305",
        &alone(K2),
    ),
    under(
        TlsSettings::ChaCha20,
        "16k-chacha20",
        "16 KB, 1 connection, ChaCha20-Poly1305",
        &alone(K16),
    ),
    under(
        TlsSettings::ChaCha20,
        "32k-chacha20",
        "32 KB, 1 connection, ChaCha20-Poly1305",
        &alone(K32),
    ),
    under(
        TlsSettings::ChaCha20,
        "64k-chacha20",
        "64 KB, 1 connection, ChaCha20-Poly1305",
        &alone(K64),
    ),
    under(TlsSettings::ChaCha20, "1m-chacha20", "1 MB, 1 connection, ChaCha20-Poly1305", &M1),
    under(TlsSettings::ChaCha20, "bulk-chacha20", "1 GB one way, ChaCha20-Poly1305", &BULK),
];

/// The same workload on one connection, so that the latency is that of a single program.
const fn alone(workload: Workload) -> Workload {
    let Workload { name, title, kind, settings, goal, .. } = workload;
    Workload { name, title, connections: 1, kind, settings, goal }
}

/// The workloads for programs under `tacit run`.
pub(crate) static RUN_WORKLOADS: [Workload; 2] = [
    Workload {
        name: "visit",
        title: "new connections, 4 at a time: connect, 100 bytes each way, close",
        connections: 4,
        kind: Kind::Visit { count: 2000, bytes: 100 },
        settings: TlsSettings::Usual,
        goal: None,
    },
    Workload { name: "pour", ..BULK },
];

/// Finds a workload by its name.
pub(crate) fn workload(name: &str) -> Option<&'static Workload> {
    WORKLOADS.iter().find(|workload| workload.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_use_the_options_of_tacit_workload() {
        let whole = |name: &str| workload(name).unwrap().words(Length::Whole).join(" ");
        assert_eq!(
            whole("2k"),
            "request-reply client --request 2048 --reply 2048 --connections 10 --seconds 1s \
             --warm-up 200ms --steered"
        );
        let beside = workload("beside").unwrap().words_beside().unwrap().join(" ");
        assert_eq!(beside, "stream client in --connections 5 --seconds 4s --steered");
        assert_eq!(
            whole("5x20m"),
            "stream client out --bytes 20000000 --connections 5 --times 10 --steered"
        );
        assert_eq!(
            whole("connect"),
            "connect client --connections 3000 --at-once 4 --bytes 1 --steered"
        );
        let quick = RUN_WORKLOADS[0].words(Length::Quick).join(" ");
        assert_eq!(quick, "connect client --connections 666 --at-once 4 --bytes 100 --steered");
    }
}
