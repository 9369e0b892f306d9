//! Forwards the DNS queries of programs, and records which addresses each name has.
//!
//! ```text
//! Query          parses the message of a program
//! verdict        decides whether tacit forwards, answers or refuses the query
//! DnsClient      sends the query to a server and receives the response
//! answers        extracts the addresses from the response, for the NameTable
//! with_aliases   writes alias addresses into the response
//! for_program    builds the response for the program
//! ```
//!
//! [`DnsClient`] builds the messages to servers itself. From the program's message it copies only
//! the question, three flags and the maximum size of an answer. So a program cannot hide other data
//! in a query. Malformed messages are dropped.
//!
//! Several names can share an address. For programs under `tacit run`, only the first of these
//! names keeps the address. [`NameTable`] assigns a reserved address (an *alias*) to each further
//! name, so that an address identifies one name. [`with_aliases`] writes the aliases into the
//! response. With `tacit agent --host` there are no aliases: [`HostNames`] records all names of an
//! address.
//!
//! Limits: [`WAITING_MAX`] waiting queries of one [`DnsClient`], [`ADDRESSES_MAX`] addresses in an
//! answer, [`NAMES_MAX`] pairs of name and address. If aliases are disabled, [`SHARING_MAX`] names
//! can share an address.
//!
//! Not supported: a cache, recursive resolution and DNSSEC validation.

mod alias_answer;
mod aliases;
mod answers;
mod client;
mod configuration;
mod health;
mod host_answer;
mod host_names;
mod hosts;
mod message;
mod names;
mod outgoing;
mod query;
mod question;
mod response;
mod stream;
mod verdict;

#[cfg(test)]
mod testing;

pub use alias_answer::{address_answer, name_answer, with_aliases};
pub use aliases::{ALIAS_BITS_V4, ALIAS_BITS_V6, AliasPolicy, AliasRanges, Aliases};
pub use answers::{ADDRESSES_MAX, AnswerChain, ResolvedAddress, answers, chain};
pub use client::{
    ClientAction, DnsClient, FinishedQuery, LATE_MAX, NEXT_DELAY, QUERIES_PER_SOCKET_MAX,
    QueryContext, QueryWaiter, SOCKET_LIFE, SOCKETS_PER_SERVER, SUSPECTED_DELAY, ServerList,
    Servers, TRIES_MAX, TooMany, WAITING_MAX,
};
pub use configuration::{NAMESERVERS_MAX, Nameserver, ResolverConfig, ResolverOptions, SEARCH_MAX};
pub use health::{Health, SERVERS_MAX, SUSPECTED_FOR, ServerChange};
pub use host_answer::with_addresses;
pub use host_names::{
    HOST_TTL_MAX, HostAnswer, HostLearning, HostNames, HostNotLearnt, KEPT_AFTER_TTL,
    NAME_BYTES_MAX, STORED_EARLY,
};
pub use hosts::{HOSTS_MAX, HostsEntry, hosts};
pub use message::{DnsError, EDNS_BYTES};
pub use names::{
    FRESH_MAX, KnownName, Learning, NAMES_MAX, NameTable, NamedDestination, NotLearnt, SHARING_MAX,
    TTL_MAX, is_nameable,
};
pub use outgoing::OutgoingQuery;
pub use query::{PLAIN_BYTES_MAX, Query, QueryFlags, refuse};
pub use question::{DnsQuestion, ResponseCode, question, response_question};
pub use response::{for_program, is_refusal, is_truncated};
pub use stream::{Framed, MESSAGE_BYTES_MAX, framed, next_message};
pub use verdict::{Verdict, asked_address, open_verdict, verdict};
