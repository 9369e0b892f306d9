//! Parses and writes the header of IKE messages (RFC 7296 section 3.1).

use super::error::CodecError;
use super::reader::Reader;

/// The header of a message, without the type of its first payload and without its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IkeHeader {
    pub(crate) initiator_spi: u64,
    /// Zero in the first request.
    pub(crate) responder_spi: u64,
    pub(crate) exchange: ExchangeType,
    /// Whether the sender is the original initiator of the IKE SA.
    pub(crate) from_initiator: bool,
    pub(crate) is_response: bool,
    pub(crate) message_id: u32,
}

/// What an exchange is for (RFC 7296 section 3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExchangeType {
    SaInit,
    Auth,
    CreateChildSa,
    Informational,
    /// An exchange that tacit does not have, as `IKE_INTERMEDIATE`.
    Other(u8),
}

impl ExchangeType {
    fn number(self) -> u8 {
        match self {
            Self::SaInit => 34,
            Self::Auth => 35,
            Self::CreateChildSa => 36,
            Self::Informational => 37,
            Self::Other(number) => number,
        }
    }

    pub(crate) fn from_number(number: u8) -> Self {
        match number {
            34 => Self::SaInit,
            35 => Self::Auth,
            36 => Self::CreateChildSa,
            37 => Self::Informational,
            other => Self::Other(other),
        }
    }
}

/// A header as it was read.
pub(super) struct ReadHeader {
    pub(super) header: IkeHeader,
    pub(super) first_payload: u8,
    /// The length of the message according to the header.
    pub(super) length: usize,
}

/// Reads the header. Unknown flags and the minor version are ignored (RFC 7296 section 3.1).
pub(super) fn read(bytes: &[u8]) -> Result<ReadHeader, CodecError> {
    let mut reader = Reader::new("header", bytes);
    let initiator_spi = reader.u64()?;
    let responder_spi = reader.u64()?;
    let first_payload = reader.u8()?;
    let version = reader.u8()?;
    let exchange = reader.u8()?;
    let flags = reader.u8()?;
    let message_id = reader.u32()?;
    let length = usize::try_from(reader.u32()?).unwrap_or(usize::MAX);
    if version >> 4 != MAJOR_VERSION {
        return Err(CodecError::Version(version >> 4));
    }
    let header = IkeHeader {
        initiator_spi,
        responder_spi,
        exchange: ExchangeType::from_number(exchange),
        from_initiator: flags & FLAG_INITIATOR != 0,
        is_response: flags & FLAG_RESPONSE != 0,
        message_id,
    };
    Ok(ReadHeader { header, first_payload, length })
}

impl IkeHeader {
    /// Appends the header of a message of `length` bytes.
    pub(crate) fn encode(&self, first_payload: u8, length: u32, out: &mut Vec<u8>) {
        let initiator = if self.from_initiator { FLAG_INITIATOR } else { 0 };
        let response = if self.is_response { FLAG_RESPONSE } else { 0 };
        out.extend(self.initiator_spi.to_be_bytes());
        out.extend(self.responder_spi.to_be_bytes());
        out.extend([first_payload, MAJOR_VERSION << 4, self.exchange.number()]);
        out.push(initiator | response);
        out.extend(self.message_id.to_be_bytes());
        out.extend(length.to_be_bytes());
    }
}

/// The length of the header in bytes.
pub(crate) const HEADER_BYTES: usize = 28;

pub(super) const MAJOR_VERSION: u8 = 2;
pub(super) const FLAG_INITIATOR: u8 = 0x08;
pub(super) const FLAG_RESPONSE: u8 = 0x20;
