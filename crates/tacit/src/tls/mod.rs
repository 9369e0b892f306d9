//! TLS: the only module that names rustls and aws-lc-rs.

mod diagnose;
pub mod facts;
pub mod failure;
pub mod files;
pub mod material;
pub mod verify;

#[cfg(test)]
mod test_certificates;
