//! The command `tacit`.
fn main() {}
