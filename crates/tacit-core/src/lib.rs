//! What tacit decides and how it speaks, without I/O.
//!
//! Everything here is a function of its inputs: no socket, no file, no clock, no randomness of its
//! own. That is what lets each part be tested with a virtual clock, and fuzzed on stable.
//!
//! In reading order:
//! * [`flow`]: who talks to whom, the thing a rule is matched against;
//! * [`policy`]: text to rules, and which rule a flow gets;
//! * [`dns`]: which names programs ask for, and the addresses they are given;
//! * [`datagram`]: which datagrams belong together, and for how long;
//! * [`failover`]: which of several targets a connection is dialled to;
//! * [`icmp`]: errors about a datagram, told to the one who sent it;
//! * [`held`]: connections whose first segment waits until their destination has answered;
//! * [`packet`]: datagrams as whole IP packets, for raw sockets;
//! * [`meter`]: what CPU time is spent on, and how stamps become microseconds;
//! * [`proxy_protocol`]: who the client behind a proxy is;
//! * [`query`]: what programs ask about their connections;
//! * [`refusal`]: what programs were refused, and the line that would allow it;
//! * [`limiter`]: one line a second about one thing;
//! * [`record`]: the TLS record layer, sealed and opened in place;
//! * [`starttls`]: dialogues in clear that end in TLS, for programs that know nothing of it;
//! * [`projection`]: what something would cost, from what was measured;
//! * [`statistics`]: percentiles and lines through what was measured;
//! * [`workload`]: what the two ends of a workload send to each other;
//! * [`page`]: tables, charts and pages that show it.
#![forbid(unsafe_code)]

pub mod datagram;
pub mod dns;
pub mod failover;
pub mod flow;
pub mod held;
pub mod icmp;
mod ip;
pub mod limiter;
pub mod meter;
pub mod packet;
pub mod page;
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
