//! Learns which connections the programs of a host use, and writes a first policy that permits
//! them.
//!
//! ```text
//!   copied packets ─> SeenPacket ─┐
//!                                 ├─> LearntTraffic ─> policy_text
//!   lists of open sockets ────────┘
//! ```
//!
//! [`SeenPacket`] parses the copy of a packet. [`LearntTraffic`] counts connections by their
//! destination, or by their port if they are inbound. [`policy_text`] writes the policy.
//!
//! Limits: see [`LearntTraffic`].

mod packet;
mod text;
mod traffic;

pub use packet::{DnsExchange, SeenPacket};
pub use text::policy_text;
pub use traffic::{
    ADDRESSES_MAX, CONNECTIONS_MAX, FlowOwner, LearntFlow, LearntPlace, LearntTraffic, NAMES_MAX,
    OWNERS_MAX, PLACES_MAX, PlaceKey, WAITING_MAX,
};
