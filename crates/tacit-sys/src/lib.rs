//! Provides the interface to the Linux kernel. The interface covers sockets, descriptors that
//! processes pass to each other, network namespaces, and settings of the process itself. The
//! [`allocator`] of the program is here too.
//!
//! This crate contains every `unsafe` line of the project, each with a reason. The crate does not
//! know rules or policies. Most of the crate is a thin, safe layer over `rustix`, or over `libc`
//! where rustix has no wrapper.
//!
//! Four modules together run a program under `tacit run`. [`namespace`] creates the program's
//! network in a helper process. [`spawn`] starts the program in this network. [`netlink`] installs
//! the nftables rules that capture the program's traffic. [`transparent`] opens the sockets that
//! receive this traffic.

pub mod allocator;
pub mod clock;
pub mod cpu;
pub mod datagram;
pub mod datagram_batch;
pub mod datagram_queue;
pub mod descriptor;
pub mod handed;
pub mod host;
pub mod input_file;
mod ip_version;
pub mod job;
pub mod machine;
pub mod mark;
mod message;
pub mod mirror;
pub mod namespace;
pub mod netlink;
mod option;
pub mod orphan;
pub mod owner;
mod packet_filter;
pub mod packet_watch;
pub mod peer;
pub mod process;
pub mod processors;
pub mod query;
pub mod raw_ip;
pub mod sandbox;
pub mod schedule;
mod seccomp;
pub mod socket;
pub mod spawn;
pub mod syn_log;
pub mod transparent;
pub mod tun;
pub mod vsock;
pub mod watch;

pub use ip_version::{IpSupport, IpVersion};
