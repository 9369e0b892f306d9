//! The developers' own commands.
fn main() {}
