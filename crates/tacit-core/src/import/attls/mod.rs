//! Policies of AT-TLS, the TLS of z/OS.

pub mod lex;
pub mod text;
