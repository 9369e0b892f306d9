//! What the client is asked for: some of the words of `tacit workload`.

use std::net::SocketAddr;
use std::time::Duration;

use tacit_core::policy::parse_duration;

/// A load, and where it goes.
#[derive(Debug)]
pub(crate) struct Load {
    pub(crate) kind: Kind,
    pub(crate) address: SocketAddr,
    /// Connections at a time, each with a thread.
    pub(crate) threads: usize,
    pub(crate) steering: Steering,
}

/// What each connection does.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    /// Requests and replies of `bytes` each, for a while.
    Exchange { bytes: usize, warm_up: Duration, time: Duration },
    /// Streams of `bytes` to the server, `times` on each connection.
    Stream { bytes: u64, times: u64 },
    /// `count` connections in all, after so many that are not measured.
    Connect { bytes: usize, warm_up: usize, count: usize },
}

/// Whether another program decides when it is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Steering {
    Absent,
    ByPipes,
}

impl Load {
    /// Reads the words behind `MODE client`.
    pub(crate) fn parse(mode: &str, words: &[&str]) -> Result<Self, String> {
        let options = Options(words);
        let kind = match mode {
            "request-reply" => Kind::Exchange {
                bytes: options.number("--request")?,
                warm_up: options.time("--warm-up")?,
                time: options.time("--seconds")?,
            },
            "stream" => Kind::Stream {
                bytes: options.number("--bytes")?,
                times: options.number("--times")?,
            },
            "connect" => {
                let count: usize = options.number("--connections")?;
                let warm_up = match options.value("--warm-up") {
                    Some(_) => options.number("--warm-up")?,
                    None => count.div_ceil(20),
                };
                Kind::Connect { bytes: options.number_or("--bytes", 1)?, warm_up, count }
            }
            _ => return Err(format!("no mode `{mode}` here")),
        };
        let threads = match kind {
            Kind::Connect { .. } => options.number("--at-once")?,
            _ => options.number("--connections")?,
        };
        let steering = match words.contains(&"--steered") {
            true => Steering::ByPipes,
            false => Steering::Absent,
        };
        Ok(Self { kind, address: options.number("--connect")?, threads, steering })
    }
}

/// Words, some of which have a value behind them.
struct Options<'a>(&'a [&'a str]);

impl Options<'_> {
    fn value(&self, name: &str) -> Option<&str> {
        let place = self.0.iter().position(|word| *word == name)?;
        self.0.get(place + 1).copied()
    }

    /// Whatever can be read from a word.
    fn number<T: std::str::FromStr>(&self, name: &str) -> Result<T, String> {
        let value = self.value(name).ok_or_else(|| format!("{name}: a value is missing"))?;
        value.parse().map_err(|_| format!("{name}: cannot read {value}"))
    }

    fn number_or<T: std::str::FromStr>(&self, name: &str, otherwise: T) -> Result<T, String> {
        if self.value(name).is_none() { Ok(otherwise) } else { self.number(name) }
    }

    fn time(&self, name: &str) -> Result<Duration, String> {
        let value = self.value(name).ok_or_else(|| format!("{name}: a value is missing"))?;
        parse_duration(value).ok_or_else(|| format!("{name}: cannot read {value}"))
    }
}
