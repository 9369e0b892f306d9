//! Contains the parts of tacit that need no I/O: decisions, message formats and protocol state
//! machines.
//!
//! The code of this crate depends on its inputs only: it uses no socket, file, clock or source of
//! random numbers. So tests can use a virtual clock, and fuzzers need no network.
//!
//! In reading order:
//! * [`flow`]: a connection or datagram exchange; rules match flows;
//! * [`policy`]: parses policies, and finds the rule that matches a flow;
//! * [`dns`]: a DNS forwarder that records the names of addresses;
//! * [`datagram`]: the table of UDP flows;
//! * [`failover`]: chooses one of several targets for a connection;
//! * [`icmp`]: ICMP errors for the sender of a datagram;
//! * [`held`]: SYN packets that wait until their destinations have answered;
//! * [`packet`]: builds datagrams as IP packets, for raw sockets;
//! * [`pcapng`]: captures of streams, for Wireshark and tshark;
//! * [`meter`]: measures the CPU time of each kind of work;
//! * [`proxy_protocol`]: headers that name the client of a proxied connection;
//! * [`query`]: requests of programs for information about their own connections;
//! * [`refusal`]: refused connections and sockets, with the policy lines that would allow them;
//! * [`limiter`]: limits repeated log lines to one a second;
//! * [`link_frame`]: the frames of a link, which lets programs use sockets of another kernel;
//! * [`message_id`], [`failure_kind`]: stable identifiers of log lines, errors and failures;
//! * [`record`]: the TLS record layer;
//! * [`starttls`]: STARTTLS exchanges, for programs that do not support TLS;
//! * [`projection`]: estimates, from measurements, how a change would affect the CPU time;
//! * [`statistics`]: percentiles, means and linear fits;
//! * [`workload`]: the protocol of the load generator `tacit workload`;
//! * [`parallel`]: divides work among two threads;
//! * [`page`]: tables, charts and HTML pages.
#![forbid(unsafe_code)]

pub mod audited;
pub mod coverage;
pub mod datagram;
pub mod dns;
pub mod failover;
pub mod failure_kind;
pub mod flow;
pub mod held;
pub mod icmp;
mod ip;
pub mod learn;
pub mod limiter;
pub mod link_frame;
pub mod message_id;
pub mod meter;
pub mod packet;
pub mod page;
pub mod parallel;
pub mod pcapng;
pub mod policy;
pub mod printable;
pub mod projection;
pub mod proxy_protocol;
pub mod query;
pub mod record;
pub mod refusal;
pub mod starttls;
pub mod statistics;
pub mod workload;
