//! The Linux ABI of tacit: sockets, descriptors between processes, and the process itself.
//!
//! Every `unsafe` line of the project lives here, each with the reason why it is sound. Nothing
//! here knows a rule or a policy. Most of it is a thin, safe layer over `rustix`; `libc` is used
//! where rustix has no wrapper (`TCP_INFO`, `SIOCOUTQ`, descriptors inherited by number).

pub mod cpu;
pub mod descriptor;
pub mod process;
pub mod socket;
pub mod watch;
