//! Parses and writes a whole IKE message: its header and its unencrypted payloads.

use super::chain::{self, IkePayload};
use super::encrypted::EncryptedPart;
use super::error::CodecError;
use super::header::{self, HEADER_BYTES, IkeHeader};

/// A message whose encrypted part, if any, has not been opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct IkeMessage {
    pub(crate) header: IkeHeader,
    /// The payloads in clear.
    pub(crate) payloads: Vec<IkePayload>,
    /// Where the encrypted payloads are.
    pub(crate) encrypted: Option<EncryptedPart>,
}

impl IkeMessage {
    /// Reads a message that fills `bytes`.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, CodecError> {
        let read = header::read(bytes)?;
        if bytes.len() > MESSAGE_BYTES_MAX || read.length != bytes.len() {
            return Err(CodecError::Length("message"));
        }
        let (payloads, encrypted) = chain::read(read.first_payload, bytes, HEADER_BYTES)?;
        Ok(Self { header: read.header, payloads, encrypted })
    }
}

/// Writes a message in clear.
pub(crate) fn encode_message(header: &IkeHeader, payloads: &[IkePayload]) -> Vec<u8> {
    let (first, body) = chain::encode_payloads(payloads);
    let length = u32::try_from(HEADER_BYTES + body.len()).unwrap_or(u32::MAX);
    let mut out = Vec::with_capacity(HEADER_BYTES + body.len());
    header.encode(first, length, &mut out);
    out.extend(body);
    out
}

/// The longest message that tacit reads, after its fragments are joined. A chain of four RSA-4096
/// certificates takes 8 KB.
pub(crate) const MESSAGE_BYTES_MAX: usize = 32 * 1024;
