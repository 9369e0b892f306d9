//! Parses and writes the delete payload (RFC 7296 section 3.11).

use super::error::CodecError;
use super::reader::Reader;

/// What the sender no longer receives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DeletePayload {
    /// The IKE SA of the message, with all its children.
    IkeSa,
    /// ESP SAs by the SPI that the sender expects in packets it receives.
    Esp(Vec<u32>),
    /// AH SAs, of which tacit has none.
    Ah,
}

impl DeletePayload {
    pub(super) fn parse(body: &[u8]) -> Result<Self, CodecError> {
        let mut reader = Reader::new("delete payload", body);
        let protocol = reader.u8()?;
        let spi_bytes = reader.u8()?;
        let count = usize::from(reader.u16()?);
        let expected = count.checked_mul(usize::from(spi_bytes));
        if expected != Some(reader.len()) {
            return Err(CodecError::Length("delete payload"));
        }
        match (protocol, spi_bytes, count) {
            // The SPI size is zero for the IKE SA; the count is zero.
            (1, 0, 0) => Ok(Self::IkeSa),
            (2, 4, _) => Ok(Self::Ah),
            (3, 4, 0) => Err(CodecError::Value("delete payload")),
            (3, 4, SPIS_OVER_MAX..) => Err(CodecError::TooMany("SPIs in a delete payload")),
            (3, 4, _) => {
                let spis: Result<Vec<u32>, _> = (0..count).map(|_| reader.u32()).collect();
                Ok(Self::Esp(spis?))
            }
            _ => Err(CodecError::Value("delete payload")),
        }
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::IkeSa => out.extend([1, 0, 0, 0]),
            Self::Ah => out.extend([2, 4, 0, 0]),
            Self::Esp(spis) => {
                out.extend([3, 4]);
                out.extend(u16::try_from(spis.len()).unwrap_or(u16::MAX).to_be_bytes());
                out.extend(spis.iter().flat_map(|spi| spi.to_be_bytes()));
            }
        }
    }
}

/// One more than the most SPIs in a delete payload.
const SPIS_OVER_MAX: usize = 65;
