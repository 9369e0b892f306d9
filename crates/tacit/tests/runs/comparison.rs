//! Runs a program with tacit and without tacit, and compares the results: output and status must be
//! the same. Each test file defines its programs as constants, so that the tests of links can run
//! the same programs.

use crate::network::{Network, Way};

/// A program that must not notice tacit.
pub struct Comparison {
    /// Ports of its servers.
    pub ports: &'static [u16],
    /// Shell commands that build it, from sources in `$PEERS`.
    pub builds: &'static [&'static str],
    /// Scripts that start its servers at 10.9.8.7.
    pub servers: &'static [&'static str],
    /// Rules before those for the ports.
    pub rules: &'static str,
    /// The program, a shell script; `$HOST` is the name of the server.
    pub script: &'static str,
    /// Parts of the output without which a comparison proves nothing.
    pub wanted: &'static [&'static str],
    /// IPv6 works in the network.
    pub ipv6: bool,
    /// The program runs as root, where the one who tests is root.
    pub as_root: bool,
}

impl Comparison {
    pub const NONE: Self = Self {
        ports: &[],
        builds: &[],
        servers: &[],
        rules: "",
        script: "",
        wanted: &[],
        ipv6: false,
        as_root: false,
    };

    /// The network with its servers.
    pub fn network(&self) -> Network {
        let mut network = Network::new(self.ports, &self.servers.join("\n"));
        network = network.with_rules(self.rules);
        for build in self.builds {
            network = network.with_build(build);
        }
        if self.ipv6 {
            network = network.with_ipv6();
        }
        if self.as_root {
            network = network.with_root();
        }
        network
    }

    /// Compares in each way of `tacit run`; returns the output.
    pub fn compare(&self) -> String {
        self.compare_in(&self.network(), &Way::OF_RUNS)
    }

    /// The same in other ways, with scripts of the network that start programs in these ways.
    pub fn compare_in(&self, network: &Network, ways: &[Way]) -> String {
        let same = network.compare(self.script, ways);
        for wanted in self.wanted {
            assert!(same.contains(wanted), "{wanted} is missing: {same}");
        }
        same
    }
}
