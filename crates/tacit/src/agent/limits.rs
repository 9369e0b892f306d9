//! Collects the limits of a running agent, and their current use, for `tacit show limits`.

use tacit_core::audited::AUDITED_FLOWS_MAX;
use tacit_core::coverage::{COVERAGE_FLOWS_MAX, COVERAGE_SOCKETS_MAX};
use tacit_core::dns::NAMES_MAX;
use tacit_core::policy::{
    FORWARDED_MAX, HOST_RANGES_MAX, HOST_SECTIONS_MAX, HOST_UNITS_MAX, NAMED_PORTS_MAX,
    PORT_PARTS_MAX, SENDER_CHECKS_MAX,
};
use tacit_core::refusal::REFUSALS_MAX;
use tacit_sys::netlink::nft::host::{FLOWS_MAX, NAMED_ADDRESSES_MAX};
use tacit_sys::socket;
use tacit_tls::verify::CHAINS_MAX;

use super::{Agent, sandbox};
use crate::cgroups;
use crate::control::display::VERSION;
use crate::control::display::limits::{LimitDisplay, LimitsDisplay};
use crate::session::trace::{QUEUE_BYTES_MAX, TRACES_MAX};
use crate::stream::relay;

impl Agent {
    /// `tacit show limits`.
    pub(super) fn show_limits(&self) -> LimitsDisplay {
        let mut all = self.limits_of_connections();
        all.extend(self.limits_of_runs());
        all.extend(self.limits_of_host());
        all.extend(self.limits_of_threads());
        match &self.sandbox {
            Some(sandbox) => all.extend(sandbox.show()),
            None => all.push(sandbox::show_none()),
        }
        LimitsDisplay { version: VERSION, limits: all }
    }

    fn limits_of_connections(&self) -> Vec<LimitDisplay> {
        let live = self.shared.live.load();
        let limits = live.limits();
        let chains = self.credentials.chains.as_ref();
        vec![
            LimitDisplay::new("connections", self.connections_max)
                .used(self.shared.table.len())
                .beyond("new connections wait in the kernel's accept queue"),
            LimitDisplay::new("handshakes", limits.handshakes)
                .used(self.shared.limiter.in_flight())
                .beyond("new handshakes wait"),
            LimitDisplay::new("handshakes-per-rule", limits.handshakes_per_rule)
                .beyond("new handshakes wait"),
            LimitDisplay::new("handshakes-per-source", limits.handshakes_per_source)
                .beyond("new handshakes wait"),
            LimitDisplay::new("connections-per-source", limits.connections_per_source)
                .beyond("the agent refuses the connection"),
            LimitDisplay::new("connections-per-rule", limits.connections_per_rule)
                .beyond("the agent refuses the connection"),
            LimitDisplay::new("connections-per-run", limits.connections_per_run)
                .beyond("the agent refuses the connection"),
            LimitDisplay::new("handshake-bytes", tacit_tls::INCOMING_BYTES_MAX)
                .beyond("the handshake fails, and the agent closes the connection"),
            LimitDisplay::new("verified-chains", chains.map_or(0, |_| CHAINS_MAX))
                .used(chains.map_or(0, |chains| chains.len()))
                .beyond(
                    "the agent removes the certificate chain that was used least recently, and \
                     verifies this chain again when a peer sends it",
                ),
            LimitDisplay::new("batch-records", relay::BATCH_RECORDS_MAX),
            LimitDisplay::new("held-bytes-per-worker", relay::HELD_BYTES_MAX)
                .beyond("the agent reads at most one TLS record at a time"),
            LimitDisplay::new("listen-backlog", u32::try_from(socket::LISTEN_BACKLOG).ok())
                .beyond("the kernel drops the SYN; the client repeats the SYN"),
        ]
    }

    fn limits_of_runs(&self) -> Vec<LimitDisplay> {
        vec![
            LimitDisplay::new("datagram-flows-per-run", crate::datagram::FLOWS_MAX)
                .beyond("the agent closes the flow that was idle for the longest time"),
            LimitDisplay::new("held-syns-per-run", self.runs.held_syns_max)
                .used(self.runs.most_held())
                .beyond(
                    "the agent does not answer the SYN, and the kernel repeats the SYN for the \
                     program",
                ),
            LimitDisplay::new("questions-per-run", crate::dns::QUERIES_MAX).beyond(
                "the agent drops further DNS queries, and counts them; the program repeats the \
                 queries",
            ),
            LimitDisplay::new("query-connections-per-run", crate::query::QUERY_CLIENTS_MAX)
                .beyond("the agent closes the connection that was idle for the longest time"),
            LimitDisplay::new("refusals-shown", REFUSALS_MAX)
                .used(self.shared.refusals.entries().len())
                .beyond("the agent removes the oldest entry of `tacit show refused`"),
            LimitDisplay::new("runs", crate::run::launchers::RUNS_MAX)
                .used(self.runs.registry.len())
                .beyond("the agent refuses the run"),
        ]
    }

    /// The limits of a captured host; none if the host is not captured.
    fn limits_of_host(&self) -> Vec<LimitDisplay> {
        let Some(host) = self.runs.registry.host() else { return Vec::new() };
        let names = host.run.host_names().map_or(0, |names| names.count());
        vec![
            LimitDisplay::new("host-ranges", HOST_RANGES_MAX)
                .beyond("the agent rejects the policy"),
            LimitDisplay::new("host-sender-changes", HOST_SECTIONS_MAX)
                .beyond("the agent rejects the policy"),
            LimitDisplay::new("host-senders-per-rule", SENDER_CHECKS_MAX)
                .beyond("the agent rejects the policy"),
            LimitDisplay::new("host-units", HOST_UNITS_MAX).beyond("the agent rejects the policy"),
            LimitDisplay::new("host-forwarded", FORWARDED_MAX)
                .beyond("the agent rejects the policy"),
            LimitDisplay::new("host-name-ports", NAMED_PORTS_MAX)
                .beyond("the agent rejects the policy"),
            LimitDisplay::new("host-name-port-parts", PORT_PARTS_MAX)
                .beyond("the agent rejects the policy"),
            LimitDisplay::new("host-names", NAMES_MAX)
                .used(names)
                .beyond("programs get SERVFAIL for further names, until a stored name expires"),
            LimitDisplay::new("host-named-addresses", NAMED_ADDRESSES_MAX).beyond(
                "programs get SERVFAIL for names with further addresses, until a stored address \
                 expires",
            ),
            LimitDisplay::new("host-flows", FLOWS_MAX).beyond(
                "the kernel refuses new captured flows of programs, and new flows from clients",
            ),
            LimitDisplay::new("host-audited-flows-per-rule", AUDITED_FLOWS_MAX)
                .beyond("the agent removes the flow that was seen least recently"),
            LimitDisplay::new("host-coverage-flows", COVERAGE_FLOWS_MAX)
                .used(self.covered_flows())
                .beyond(
                    "the agent removes the flow that was seen least recently, but the totals still \
                     include this flow",
                ),
            LimitDisplay::new("host-coverage-sockets", COVERAGE_SOCKETS_MAX)
                .beyond("the agent does not count further sockets"),
            LimitDisplay::new("host-cgroups-per-second", cgroups::READ_MAX).beyond(
                "the agent stops searching for control groups, and uses only the paths in its \
                 cache",
            ),
        ]
    }

    fn limits_of_threads(&self) -> Vec<LimitDisplay> {
        vec![
            LimitDisplay::new("log-queue-lines", crate::log::QUEUE_LINES_MAX)
                .used(self.shared.log.lost())
                .beyond(
                    "the agent drops log lines; the column USED shows the number of dropped lines",
                ),
            LimitDisplay::new("workers", self.workers.count_max())
                .used(self.workers.count())
                .beyond(
                    "the agent starts no further worker, and the existing workers serve all \
                     connections",
                ),
            LimitDisplay::new("handed-per-worker", crate::engine::HAND_OVER_QUEUE_MAX).beyond(
                "further connections stay on the engine until the queue of the data worker has \
                 room",
            ),
            LimitDisplay::new("traces", TRACES_MAX)
                .used(self.shared.table.traces().len())
                .beyond("the agent refuses the trace"),
            LimitDisplay::new("trace-queue-bytes", QUEUE_BYTES_MAX)
                .beyond("the agent drops packets of the trace, and counts these packets"),
        ]
    }
}
