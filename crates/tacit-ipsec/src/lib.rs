//! Implements the protocols of IPsec, without I/O. IKEv2 (RFC 7296) negotiates keys; ESP (RFC 4303)
//! encrypts packets with these keys, and AH (RFC 4302) authenticates packets.
//!
//! Time and random bytes are arguments. So tests run two peers with a virtual clock, and fuzzing
//! needs no network. aws-lc-rs provides the ciphers.
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
//! * [`Cipher`]: the algorithms that encrypt packets and IKE messages;
//! * [`TrafficSelector`]: selects the packets of a tunnel;
//! * [`ChildSa`]: the keys and settings of a tunnel, which IKE passes to ESP;
//! * [`packet`]: the headers of inner packets;
//! * [`esp`]: encrypts and decrypts the packets of a tunnel;
//! * [`offload`]: divides and joins large TCP packets.
//!
//! This crate does not know the policy. The caller of this crate converts rules to configurations,
//! and failures to log lines.
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

pub use child::{
    ChildSa, DirectionKeys, EspSpi, KeyOrigin, ManualKeys, ReplayCheck, SaKeys, SaMode, SaProtocol,
    UnderlayEnds,
};
pub use cipher::{Cipher, IntegrityHash};
pub use secret::SecretBytes;
pub use selector::TrafficSelector;
