//! Parses and writes the payloads of an IKE message, one after the other (RFC 7296 section 3.2).

use super::auth::AuthPayload;
use super::cert::{CertPayload, CertRequestPayload};
use super::config::ConfigPayload;
use super::delete::DeletePayload;
use super::encrypted::{self, ENCRYPTED, ENCRYPTED_FRAGMENT, EncryptedPart};
use super::error::CodecError;
use super::identification::IdPayload;
use super::key_exchange::KePayload;
use super::notify::NotifyPayload;
use super::reader::{Reader, with_length};
use super::security_association::{Proposal, encode_proposals, parse_proposals};
use super::traffic_selectors::TsPayload;

/// A payload. Unknown payloads that are not critical are skipped, and have no variant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum IkePayload {
    SecurityAssociation(Vec<Proposal>),
    KeyExchange(KePayload),
    IdInitiator(IdPayload),
    IdResponder(IdPayload),
    Cert(CertPayload),
    CertRequest(CertRequestPayload),
    Auth(AuthPayload),
    /// 16 to 256 bytes (RFC 7296 section 3.9).
    Nonce(Vec<u8>),
    Notify(NotifyPayload),
    Delete(DeletePayload),
    VendorId(Vec<u8>),
    TsInitiator(TsPayload),
    TsResponder(TsPayload),
    Config(ConfigPayload),
}

/// Reads the payloads of an opened SK payload, which must not contain another one.
pub(crate) fn parse_payloads(first: u8, bytes: &[u8]) -> Result<Vec<IkePayload>, CodecError> {
    match read(first, bytes, 0)? {
        (payloads, None) => Ok(payloads),
        (_, Some(_)) => Err(CodecError::Value("type of a payload inside the encrypted payload")),
    }
}

/// Reads the payloads from `start` to the end of `message`.
pub(super) fn read(
    first: u8,
    message: &[u8],
    start: usize,
) -> Result<(Vec<IkePayload>, Option<EncryptedPart>), CodecError> {
    let mut payloads = Vec::new();
    let mut kind = first;
    let mut reader = Reader::new("payload", message.get(start..).unwrap_or_default());
    let mut seen = 0;
    while kind != NO_NEXT {
        seen += 1;
        if seen > PAYLOADS_MAX {
            return Err(CodecError::TooMany("payloads"));
        }
        let next = reader.u8()?;
        let flags = reader.u8()?;
        let length = usize::from(reader.u16()?);
        let body_length = length.checked_sub(4).ok_or(CodecError::Length("payload"))?;
        let body = reader.take(body_length)?;
        if kind == ENCRYPTED || kind == ENCRYPTED_FRAGMENT {
            // It must be the last payload (RFC 7296 section 3.14).
            reader.end()?;
            let offset = message.len() - body.len();
            let part = encrypted::read(kind, next, offset, message)?;
            return Ok((payloads, Some(part)));
        }
        payloads.extend(parse(kind, flags, body)?);
        kind = next;
    }
    reader.end()?;
    Ok((payloads, None))
}

/// Reads the body of a payload. Returns `None` if it is to be skipped.
fn parse(kind: u8, flags: u8, body: &[u8]) -> Result<Option<IkePayload>, CodecError> {
    Ok(Some(match kind {
        33 => IkePayload::SecurityAssociation(parse_proposals(body)?),
        34 => IkePayload::KeyExchange(KePayload::parse(body)?),
        35 => IkePayload::IdInitiator(IdPayload::parse(body)?),
        36 => IkePayload::IdResponder(IdPayload::parse(body)?),
        37 => IkePayload::Cert(CertPayload::parse(body)?),
        38 => IkePayload::CertRequest(CertRequestPayload::parse(body)?),
        39 => IkePayload::Auth(AuthPayload::parse(body)?),
        40 if !NONCE_BYTES.contains(&body.len()) => return Err(CodecError::Length("nonce")),
        40 => IkePayload::Nonce(body.to_vec()),
        41 => IkePayload::Notify(NotifyPayload::parse(body)?),
        42 => IkePayload::Delete(DeletePayload::parse(body)?),
        43 => IkePayload::VendorId(body.to_vec()),
        44 => IkePayload::TsInitiator(TsPayload::parse(body)?),
        45 => IkePayload::TsResponder(TsPayload::parse(body)?),
        47 => IkePayload::Config(ConfigPayload::parse(body)?),
        other if flags & CRITICAL != 0 => return Err(CodecError::UnsupportedCritical(other)),
        _ => return Ok(None),
    }))
}

impl IkePayload {
    fn kind(&self) -> u8 {
        match self {
            Self::SecurityAssociation(_) => 33,
            Self::KeyExchange(_) => 34,
            Self::IdInitiator(_) => 35,
            Self::IdResponder(_) => 36,
            Self::Cert(_) => 37,
            Self::CertRequest(_) => 38,
            Self::Auth(_) => 39,
            Self::Nonce(_) => 40,
            Self::Notify(_) => 41,
            Self::Delete(_) => 42,
            Self::VendorId(_) => 43,
            Self::TsInitiator(_) => 44,
            Self::TsResponder(_) => 45,
            Self::Config(_) => 47,
        }
    }

    fn encode_body(&self, out: &mut Vec<u8>) {
        match self {
            Self::SecurityAssociation(proposals) => encode_proposals(proposals, out),
            Self::KeyExchange(payload) => payload.encode(out),
            Self::IdInitiator(payload) | Self::IdResponder(payload) => payload.encode(out),
            Self::Cert(payload) => payload.encode(out),
            Self::CertRequest(payload) => payload.encode(out),
            Self::Auth(payload) => payload.encode(out),
            Self::Nonce(bytes) | Self::VendorId(bytes) => out.extend(bytes),
            Self::Notify(payload) => payload.encode(out),
            Self::Delete(payload) => payload.encode(out),
            Self::TsInitiator(payload) | Self::TsResponder(payload) => payload.encode(out),
            Self::Config(payload) => payload.encode(out),
        }
    }
}

/// Writes payloads, and returns the type of the first with them.
pub(crate) fn encode_payloads(payloads: &[IkePayload]) -> (u8, Vec<u8>) {
    let mut out = Vec::new();
    let next = payloads.iter().skip(1).map(IkePayload::kind).chain([NO_NEXT]);
    for (payload, next) in payloads.iter().zip(next) {
        with_length(&mut out, 2, |out| {
            // Senders never set the critical bit of payloads that RFC 7296 defines.
            out.extend([next, 0, 0, 0]);
            payload.encode_body(out);
        });
    }
    (payloads.first().map_or(NO_NEXT, IkePayload::kind), out)
}

const NO_NEXT: u8 = 0;
const CRITICAL: u8 = 0x80;
const NONCE_BYTES: std::ops::RangeInclusive<usize> = 16..=256;
/// The most payloads in a message, with those that are skipped.
const PAYLOADS_MAX: usize = 64;
