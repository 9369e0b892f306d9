//! Parses and writes the notify payload, and defines the notify message types (RFC 7296 section
//! 3.10).

use super::error::CodecError;
use super::reader::Reader;
use super::security_association::ProtocolId;

/// An error or a status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NotifyPayload {
    /// The SA that is meant, if it is not the IKE SA of the message.
    pub(crate) spi: Option<(ProtocolId, u32)>,
    /// The number of the notification; a constant of this module.
    pub(crate) kind: u16,
    pub(crate) data: Vec<u8>,
}

impl NotifyPayload {
    /// Creates a notification about the IKE SA of the message.
    pub(crate) fn new(kind: u16, data: impl Into<Vec<u8>>) -> Self {
        Self { spi: None, kind, data: data.into() }
    }

    pub(super) fn parse(body: &[u8]) -> Result<Self, CodecError> {
        let mut reader = Reader::new("notify payload", body);
        let protocol = reader.u8()?;
        let spi_bytes = reader.u8()?;
        let kind = reader.u16()?;
        let spi = match spi_bytes {
            0 => None,
            4 => {
                let protocol = ProtocolId::from_number(protocol);
                Some((protocol, reader.u32()?))
            }
            // The SPIs of an IKE SA are in the header.
            _ => return Err(CodecError::Length("SPI of a notify payload")),
        };
        Ok(Self { spi, kind, data: reader.rest().to_vec() })
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        match self.spi {
            None => out.extend([0, 0]),
            Some((protocol, _)) => out.extend([protocol.number(), 4]),
        }
        out.extend(self.kind.to_be_bytes());
        if let Some((_, spi)) = self.spi {
            out.extend(spi.to_be_bytes());
        }
        out.extend(&self.data);
    }

    /// Reports whether this is an error (RFC 7296 section 3.10.1).
    pub(crate) fn is_error(&self) -> bool {
        self.kind < INITIAL_CONTACT
    }
}

pub(crate) const UNSUPPORTED_CRITICAL_PAYLOAD: u16 = 1;
pub(crate) const INVALID_MAJOR_VERSION: u16 = 5;
pub(crate) const INVALID_SYNTAX: u16 = 7;
pub(crate) const NO_PROPOSAL_CHOSEN: u16 = 14;
pub(crate) const INVALID_KE_PAYLOAD: u16 = 17;
pub(crate) const AUTHENTICATION_FAILED: u16 = 24;
pub(crate) const SINGLE_PAIR_REQUIRED: u16 = 34;
pub(crate) const NO_ADDITIONAL_SAS: u16 = 35;
pub(crate) const INTERNAL_ADDRESS_FAILURE: u16 = 36;
pub(crate) const FAILED_CP_REQUIRED: u16 = 37;
pub(crate) const TS_UNACCEPTABLE: u16 = 38;
pub(crate) const INVALID_SELECTORS: u16 = 39;
pub(crate) const TEMPORARY_FAILURE: u16 = 43;
pub(crate) const CHILD_SA_NOT_FOUND: u16 = 44;
/// The first status; smaller numbers are errors.
pub(crate) const INITIAL_CONTACT: u16 = 16384;
pub(crate) const NAT_DETECTION_SOURCE_IP: u16 = 16388;
pub(crate) const NAT_DETECTION_DESTINATION_IP: u16 = 16389;
pub(crate) const COOKIE: u16 = 16390;
pub(crate) const REKEY_SA: u16 = 16393;
/// RFC 7383.
pub(crate) const IKEV2_FRAGMENTATION_SUPPORTED: u16 = 16430;
/// RFC 7427.
pub(crate) const SIGNATURE_HASH_ALGORITHMS: u16 = 16431;

/// The name of a notification, for messages to operators.
pub(crate) fn name(kind: u16) -> &'static str {
    match kind {
        UNSUPPORTED_CRITICAL_PAYLOAD => "UNSUPPORTED_CRITICAL_PAYLOAD",
        INVALID_MAJOR_VERSION => "INVALID_MAJOR_VERSION",
        INVALID_SYNTAX => "INVALID_SYNTAX",
        NO_PROPOSAL_CHOSEN => "NO_PROPOSAL_CHOSEN",
        INVALID_KE_PAYLOAD => "INVALID_KE_PAYLOAD",
        AUTHENTICATION_FAILED => "AUTHENTICATION_FAILED",
        SINGLE_PAIR_REQUIRED => "SINGLE_PAIR_REQUIRED",
        NO_ADDITIONAL_SAS => "NO_ADDITIONAL_SAS",
        INTERNAL_ADDRESS_FAILURE => "INTERNAL_ADDRESS_FAILURE",
        FAILED_CP_REQUIRED => "FAILED_CP_REQUIRED",
        TS_UNACCEPTABLE => "TS_UNACCEPTABLE",
        INVALID_SELECTORS => "INVALID_SELECTORS",
        TEMPORARY_FAILURE => "TEMPORARY_FAILURE",
        CHILD_SA_NOT_FOUND => "CHILD_SA_NOT_FOUND",
        _ => "an unknown error",
    }
}
