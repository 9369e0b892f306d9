//! Measures the CPU time of TLS on this machine, in memory and without a network. This module
//! measures two kinds of work: the handshake of a server, and the encryption and decryption of
//! records. It measures records for each cipher suite and message length.
//!
//! The measurement runs the same code as the agent, and reads the CPU clock of the calling thread.
//! In a busy agent, the CPU caches have other contents. So the CPU time there can be higher or
//! lower than the measured time.

use std::fmt;
use std::time::{Duration, Instant};

use rustls::ConnectionTrafficSecrets as Secrets;
use rustls::crypto::cipher::{AeadKey, Iv};
use tacit_core::policy::{Group, Suite};
use tacit_core::record::{PAYLOAD_BYTES_MAX, RecordOpener, RecordSealer};
use tacit_core::statistics::median;
use tacit_sys::cpu;

use super::handshake::Handshake;
use super::keys::{DirectionKey, DirectionSecrets};
use super::machine::HandshakeProgress;
use super::settings_pair::{self, ServerAsks, SettingsPair};

/// The number of bytes that are sealed and then opened between two readings of the clock. Reading
/// the clock costs as much as a small record. This amount fits into the CPU caches, as an agent's
/// buffers do.
const ROUND_BYTES: usize = 256 * 1024;
/// The largest number of messages in a round, for short messages.
const ROUND_MESSAGES_MAX: usize = 1024;
/// The largest message; longer ones are split.
const MESSAGE_BYTES_MAX: usize = ROUND_BYTES;
/// The groups that are used by default. TLS 1.2 does not support the first one.
const GROUPS: [Group; 2] = [Group::X25519MLKEM768, Group::X25519];
/// The smallest number of rounds of a measurement, even if its time is short.
const ROUNDS_MIN: usize = 5;

/// The CPU time for a megabyte (10^6 bytes), in microseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RecordCosts {
    /// The CPU time for sealing.
    pub seal_us_per_mb: f64,
    /// The CPU time for opening.
    pub open_us_per_mb: f64,
}

/// The error that the TLS library has refused an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CannotMeasure;

impl fmt::Display for CannotMeasure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "cannot measure the speed of TLS: the TLS library rejected an operation; this is a bug \
             in tacit",
        )
    }
}

impl std::error::Error for CannotMeasure {}

/// Measures sealing and opening of messages of this length, for about this time.
///
/// # Errors
/// The library has refused an operation.
pub fn records(
    suite: Suite,
    message_bytes: usize,
    time: Duration,
) -> Result<RecordCosts, CannotMeasure> {
    let message_bytes = message_bytes.clamp(1, MESSAGE_BYTES_MAX);
    let mut bench = Bench::new(suite, message_bytes)?;
    let until = Instant::now() + time;
    let mut seal_ns = Vec::new();
    let mut open_ns = Vec::new();
    while seal_ns.len() < ROUNDS_MIN || Instant::now() < until {
        let start = cpu::thread_ns();
        bench.seal()?;
        let sealed = cpu::thread_ns();
        bench.open()?;
        let opened = cpu::thread_ns();
        seal_ns.push((sealed - start) as f64);
        open_ns.push((opened - sealed) as f64);
    }
    // A nanosecond for each byte is a millisecond for each megabyte.
    let us_per_mb = |ns: &[f64]| median(ns) / bench.payload_bytes() as f64 * 1000.0;
    Ok(RecordCosts { seal_us_per_mb: us_per_mb(&seal_ns), open_us_per_mb: us_per_mb(&open_ns) })
}

/// Measures the server's part of a full handshake, in microseconds of CPU time. It uses the first
/// group that the version supports and a P-256 certificate; the client has no certificate.
///
/// # Errors
/// The library has refused an operation.
pub fn server_handshake_us(suite: Suite, time: Duration) -> Result<f64, CannotMeasure> {
    let SettingsPair { client, server } =
        settings_pair::settings(suite, &GROUPS, ServerAsks::Nothing).map_err(|_| CannotMeasure)?;
    let until = Instant::now() + time;
    let mut handshakes_ns = Vec::new();
    while handshakes_ns.len() < ROUNDS_MIN || Instant::now() < until {
        let mut client = Handshake::client(&client, &[]).map_err(|_| CannotMeasure)?;
        let mut to_server = Vec::new();
        let mut to_client = Vec::new();
        let mut usage_ns = 0;
        let start = cpu::thread_ns();
        let mut server = Handshake::server(&server).map_err(|_| CannotMeasure)?;
        usage_ns += cpu::thread_ns() - start;
        loop {
            client.advance(&mut to_client, &mut to_server).map_err(|_| CannotMeasure)?;
            let start = cpu::thread_ns();
            let progress = server.advance(&mut to_server, &mut to_client);
            usage_ns += cpu::thread_ns() - start;
            if progress.map_err(|_| CannotMeasure)? == HandshakeProgress::Done {
                break;
            }
            if to_client.is_empty() {
                return Err(CannotMeasure);
            }
        }
        handshakes_ns.push(usage_ns as f64);
    }
    Ok(median(&handshakes_ns) / 1000.0)
}

/// Both ends of one direction, and the buffers of a round.
struct Bench {
    seal_key: DirectionKey,
    sealer: RecordSealer,
    open_key: DirectionKey,
    opener: RecordOpener,
    message_bytes: usize,
    messages: Vec<Vec<u8>>,
    sealed_bytes: usize,
}

impl Bench {
    fn new(suite: Suite, message_bytes: usize) -> Result<Self, CannotMeasure> {
        let split =
            || DirectionSecrets::split(secrets(suite), suite.version()).map_err(|_| CannotMeasure);
        let DirectionSecrets { key: seal_key, protection, iv } = split()?;
        let DirectionSecrets { key: open_key, .. } = split()?;
        let slots = message_bytes.div_ceil(PAYLOAD_BYTES_MAX);
        let message = vec![0x5a; slots * protection.slot_bytes()];
        Ok(Self {
            seal_key,
            sealer: RecordSealer::new(protection, iv, 0),
            open_key,
            opener: RecordOpener::new(protection, iv, 0),
            message_bytes,
            messages: vec![message; (ROUND_BYTES / message_bytes).clamp(1, ROUND_MESSAGES_MAX)],
            sealed_bytes: 0,
        })
    }

    fn payload_bytes(&self) -> usize {
        self.messages.len() * self.message_bytes
    }

    /// Seals each message as the relay does, with the expanded key that a worker caches.
    fn seal(&mut self) -> Result<(), CannotMeasure> {
        let mut key = self.seal_key.seal(&self.sealer).map_err(|_| CannotMeasure)?;
        for message in &mut self.messages {
            let sealed = self.sealer.seal_slots(&mut key, message, self.message_bytes);
            self.sealed_bytes = sealed.map_err(|_| CannotMeasure)?;
        }
        Ok(())
    }

    fn open(&mut self) -> Result<(), CannotMeasure> {
        let mut key = self.open_key.open(self.opener.protection()).map_err(|_| CannotMeasure)?;
        for message in &mut self.messages {
            let mut rest = &mut message[..self.sealed_bytes];
            while !rest.is_empty() {
                let record = self.opener.open_record(&mut key, rest).ok().flatten();
                let consumed = record.ok_or(CannotMeasure)?.consumed;
                rest = &mut rest[consumed..];
            }
        }
        Ok(())
    }
}

/// Keys for the measurement, which protect no data.
fn secrets(suite: Suite) -> Secrets {
    let key = AeadKey::from([7; 32]);
    let iv = Iv::new([9; 12]);
    let name = suite.name();
    if name.contains("CHACHA20") {
        Secrets::Chacha20Poly1305 { key, iv }
    } else if name.contains("AES_256") {
        Secrets::Aes256Gcm { key, iv }
    } else {
        Secrets::Aes128Gcm { key, iv }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIME: Duration = Duration::from_millis(5);

    #[test]
    fn every_suite_can_be_measured_at_any_length() {
        for suite in Suite::DEFAULT {
            for message_bytes in [0, 1, 500, 16_384, 16_385, 65_536, 1 << 30] {
                let costs = records(suite, message_bytes, Duration::ZERO).unwrap();
                let name = suite.name();
                assert!(costs.seal_us_per_mb > 0.0, "{name} {message_bytes}");
                assert!(costs.open_us_per_mb > 0.0, "{name} {message_bytes}");
            }
        }
    }

    #[test]
    fn small_messages_cost_more_a_megabyte() {
        let of = |bytes| records(Suite::TLS_AES_128_GCM_SHA256, bytes, TIME).unwrap();
        let small = of(100);
        let large = of(65_536);
        assert!(small.seal_us_per_mb > 2.0 * large.seal_us_per_mb, "{small:?} {large:?}");
        assert!(small.open_us_per_mb > 2.0 * large.open_us_per_mb, "{small:?} {large:?}");
    }

    #[test]
    fn a_handshake_can_be_measured_in_both_versions() {
        for suite in [Suite::TLS_AES_128_GCM_SHA256, Suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256]
        {
            assert!(server_handshake_us(suite, TIME).unwrap() > 1.0);
        }
    }
}
