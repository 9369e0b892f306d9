//! Defines the options of the `ramp` workload.

use std::str::FromStr;
use std::time::Duration;

use clap::Args;

use super::super::arguments::{ClientArgs, count, time};
use super::super::limits::{CONNECTIONS_MAX, THREADS_MAX};

/// Open connections, keep them open, and measure the CPU time of each new connection
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tacit workload ramp client --connect 127.0.0.1:7000 --cpu-of agent=1234
  tacit workload ramp client --connections 600 --step 120 --ledger-of far=agent.sock \\
    --connect 127.0.0.1:7101 --label none --also preferred=127.0.0.1:7102")]
pub(in crate::workload) struct RampArgs {
    #[command(flatten)]
    pub(super) client: ClientArgs,
    /// Another address to measure: ramps use this address and --connect in turn, and the report
    /// compares the CPU time; may be repeated
    #[arg(long, value_name = "NAME=HOST:PORT")]
    pub(super) also: Vec<RouteArg>,
    /// Number of open connections at the end of each ramp
    #[arg(long, value_name = "N", default_value = "9000", value_parser = count(CONNECTIONS_MAX))]
    pub(super) connections: usize,
    /// Connections to open in each step
    #[arg(long, value_name = "N", default_value = "500", value_parser = count(CONNECTIONS_MAX))]
    pub(super) step: usize,
    /// Number of ramps for each address. A ramp opens all connections, and closes them at its end
    #[arg(long, value_name = "N", default_value = "5", value_parser = count(RAMPS_MAX))]
    pub(super) ramps: usize,
    /// Connections to open at the same time
    #[arg(long, value_name = "N", default_value = "1", value_parser = count(THREADS_MAX))]
    pub(super) at_once: usize,
    /// Before each ramp, wait for this time, and then until the measured processes are idle
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = time)]
    pub(super) pause: Duration,
}

const RAMPS_MAX: usize = 100;

/// An address to measure, under a name chosen by the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RouteArg {
    pub(super) name: String,
    pub(super) connect: String,
}

impl FromStr for RouteArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((name, connect)) if !name.is_empty() && !connect.is_empty() => {
                Ok(Self { name: name.to_owned(), connect: connect.to_owned() })
            }
            _ => Err("expected NAME=HOST:PORT, such as preferred=127.0.0.1:7102".to_owned()),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Words {
        #[command(flatten)]
        args: RampArgs,
    }

    pub(crate) fn args(words: &[&str]) -> RampArgs {
        let words = ["", "--connect", "here", "--pause", "10ms"].iter().chain(words);
        Words::try_parse_from(words).unwrap().args
    }

    #[test]
    fn routes_have_names() {
        let route = RouteArg { name: "none".to_owned(), connect: "here:7101".to_owned() };
        assert_eq!("none=here:7101".parse(), Ok(route));
        for wrong in ["here:7101", "=here:7101", "none="] {
            assert!(wrong.parse::<RouteArg>().is_err(), "{wrong}");
        }
    }
}
