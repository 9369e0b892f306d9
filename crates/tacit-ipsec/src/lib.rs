//! Implements the protocols of IPsec, without I/O. IKEv2 (RFC 7296) negotiates keys; ESP (RFC 4303)
//! protects packets with these keys.
//!
//! The code depends only on its inputs, and uses no socket, file or clock. Time and randomness are
//! arguments, so tests run two peers with a virtual clock, and fuzzing needs no network. aws-lc-rs
//! provides the ciphers.
//!
//! ```text
//!   UDP datagrams      clock, random bytes
//!         │                   │
//!         v                   v
//!        ike: exchanges, retransmission, rekeying ──> datagrams to send, the next timeout
//!         │
//!         v
//!   [`ChildSa`]: SPIs, cipher, keys, traffic selectors of one tunnel
//!         │
//!         v
//!   inner packets <── esp: sealing and opening in place, replay window, checks ──> ESP packets
//! ```
//!
//! In reading order:
//! * [`Cipher`]: how packets and IKE messages are encrypted;
//! * [`TrafficSelector`]: which packets belong to a tunnel;
//! * [`ChildSa`]: a tunnel as IKE has negotiated it, ready for the data path;
//! * [`packet`]: the headers of inner packets;
//! * [`esp`]: the two directions of a tunnel;
//! * [`offload`]: large TCP packets, which a TUN device exchanges with the kernel.
//!
//! The crate knows no policy. Its caller converts rules to configurations, and failures to log
//! lines.
#![forbid(unsafe_code)]

mod child;
mod cipher;
mod cipher_key;
pub mod esp;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
pub mod ike;
pub mod offload;
pub mod packet;
mod secret;
mod selector;

pub use child::{ChildSa, EspSpi, SaKeys};
pub use cipher::{Cipher, IntegrityHash};
pub use secret::SecretBytes;
pub use selector::TrafficSelector;
