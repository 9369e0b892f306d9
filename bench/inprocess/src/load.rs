//! Parses the command line of the load client. In the benchmark, the load client opens
//! connections and measures them. It accepts some of the options of `tacit workload client`.

use std::net::SocketAddr;
use std::time::Duration;

use tacit_core::policy::parse_duration;

/// A load, and the address of the server.
#[derive(Debug)]
pub(crate) struct Load {
    pub(crate) kind: Kind,
    pub(crate) address: SocketAddr,
    /// Concurrent connections; each has a thread.
    pub(crate) threads: usize,
    pub(crate) steering: Steering,
}

/// What each connection does.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    /// Requests and replies of `bytes` each, for a fixed time.
    Exchange { bytes: usize, warm_up: Duration, time: Duration },
    /// Streams of `bytes` to the server, `times` on each connection.
    Stream { bytes: u64, times: u64 },
    /// `count` connections in total, after `warm_up` ones that are not measured.
    Connect { bytes: usize, warm_up: usize, count: usize },
}

/// Whether another program controls the measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Steering {
    Absent,
    ByPipes,
}

impl Load {
    /// Parses the words after `MODE client`.
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
            _ => return Err(format!("unknown mode `{mode}`")),
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

/// Options with values.
struct Options<'a>(&'a [&'a str]);

impl Options<'_> {
    fn value(&self, name: &str) -> Option<&str> {
        let place = self.0.iter().position(|word| *word == name)?;
        self.0.get(place + 1).copied()
    }

    /// Parses the value of an option.
    fn number<T: std::str::FromStr>(&self, name: &str) -> Result<T, String> {
        let value = self.value(name).ok_or_else(|| format!("{name} needs a value"))?;
        value.parse().map_err(|_| format!("{name} {value}: invalid number"))
    }

    fn number_or<T: std::str::FromStr>(&self, name: &str, otherwise: T) -> Result<T, String> {
        if self.value(name).is_none() { Ok(otherwise) } else { self.number(name) }
    }

    fn time(&self, name: &str) -> Result<Duration, String> {
        let value = self.value(name).ok_or_else(|| format!("{name} needs a value"))?;
        parse_duration(value).ok_or_else(|| format!("{name} {value}: invalid duration"))
    }
}
