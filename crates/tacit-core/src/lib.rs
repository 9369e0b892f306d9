//! Contains the decisions, wire formats and protocol state machines of tacit, without I/O.
//!
//! The code of this crate depends on its inputs only: it uses no socket, file, clock or source of
//! random numbers. So each part can be tested with a virtual clock, and fuzzed.
//!
//! In reading order:
//! * [`flow`]: a connection or datagram exchange, as rules match it;
//! * [`policy`]: from text to rules, and which rule a flow matches;
//! * [`dns`]: a DNS forwarder that records the names of addresses;
//! * [`datagram`]: the table of UDP flows;
//! * [`failover`]: which of several targets a connection is dialled to;
//! * [`icmp`]: ICMP errors for the sender of a datagram;
//! * [`held`]: connections with a SYN that is held until the destination has answered;
//! * [`packet`]: datagrams as IP packets, for raw sockets;
//! * [`pcapng`]: captures of streams, for Wireshark and tshark;
//! * [`meter`]: what CPU time is used for;
//! * [`proxy_protocol`]: the client behind a proxy;
//! * [`query`]: requests of programs about their connections;
//! * [`refusal`]: what was refused, and the policy line that would allow it;
//! * [`limiter`]: limits repeated log lines to one a second;
//! * [`message_id`]: identifiers of messages;
//! * [`record`]: the TLS record layer, sealed and opened in place;
//! * [`starttls`]: STARTTLS exchanges, for programs without TLS;
//! * [`projection`]: the CPU cost of a change, computed from measurements;
//! * [`statistics`]: percentiles, means and linear fits;
//! * [`workload`]: the protocol between the two ends of a workload;
//! * [`page`]: tables, charts and HTML pages.
#![forbid(unsafe_code)]

pub mod audited;
pub mod coverage;
pub mod datagram;
pub mod dns;
pub mod failover;
pub mod flow;
pub mod held;
pub mod icmp;
mod ip;
pub mod limiter;
pub mod message_id;
pub mod meter;
pub mod packet;
pub mod page;
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
