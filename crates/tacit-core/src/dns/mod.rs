//! DNS as far as a forwarder that takes notes needs it.
//!
//! ```text
//! query ─ question ─ verdict ─┬─ forward ── resolver's response ─ is_answer_to ─ answers ─ Names
//!                             └─ refuse: an answer without asking anybody
//! ```
//!
//! Messages are forwarded as they are. Of a query only the header and the question are read; of a
//! response also the addresses it gives, through aliases. What cannot be read is not forwarded.
//!
//! [`Names`] remembers which names an address has; [`hosts()`] reads the file that gives addresses
//! without a question, [`Configuration`] the one that says whom to ask; [`next_message`] cuts
//! messages out of a TCP stream.
//!
//! Limits: [`ADDRESSES_MAX`] addresses an answer, [`NAMES_MAX`] pairs of name and address,
//! [`HOSTS_MAX`] of them from the file.
//!
//! It does not cache, resolve, validate DNSSEC, or change an answer.

mod answers;
mod configuration;
mod hosts;
mod names;
mod question;
mod stream;
mod verdict;

#[cfg(test)]
mod testing;

pub use answers::{ADDRESSES_MAX, Answer, answers, is_answer_to, is_refusal, is_truncated};
pub use configuration::{Configuration, NAMESERVERS_MAX, Nameserver, SEARCH_MAX};
pub use hosts::{HOSTS_MAX, Host, hosts};
pub use names::{GRACE, Known, NAMES_MAX, Names, TTL_MAX, is_nameable};
pub use question::{DnsError, Question, Refusal, question, refuse};
pub use stream::{Framed, MESSAGE_BYTES_MAX, framed, next_message};
pub use verdict::{Verdict, verdict};
