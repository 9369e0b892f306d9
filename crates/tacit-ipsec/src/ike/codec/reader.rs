//! Defines a cursor that reads the fields of an IKE message. The cursor never reads past the end of
//! the message.

use super::error::CodecError;

/// The bytes of a payload or of a part of it that have not been read.
pub(super) struct Reader<'a> {
    rest: &'a [u8],
    /// What the bytes are, for errors.
    what: &'static str,
}

impl<'a> Reader<'a> {
    pub(super) fn new(what: &'static str, rest: &'a [u8]) -> Self {
        Self { rest, what }
    }

    pub(super) fn take(&mut self, count: usize) -> Result<&'a [u8], CodecError> {
        let (taken, rest) =
            self.rest.split_at_checked(count).ok_or(CodecError::Truncated(self.what))?;
        self.rest = rest;
        Ok(taken)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], CodecError> {
        let (taken, rest) =
            self.rest.split_first_chunk::<N>().ok_or(CodecError::Truncated(self.what))?;
        self.rest = rest;
        Ok(*taken)
    }

    pub(super) fn u8(&mut self) -> Result<u8, CodecError> {
        self.array().map(u8::from_be_bytes)
    }

    pub(super) fn u16(&mut self) -> Result<u16, CodecError> {
        self.array().map(u16::from_be_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, CodecError> {
        self.array().map(u32::from_be_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, CodecError> {
        self.array().map(u64::from_be_bytes)
    }

    /// Takes the rest.
    pub(super) fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }

    /// Takes the rest as a vector. An empty rest is an error.
    pub(super) fn nonempty(&mut self) -> Result<Vec<u8>, CodecError> {
        match self.rest() {
            [] => Err(CodecError::Truncated(self.what)),
            bytes => Ok(bytes.to_vec()),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.rest.len()
    }

    /// Checks that every byte has been read.
    pub(super) fn end(&self) -> Result<(), CodecError> {
        if self.is_empty() { Ok(()) } else { Err(CodecError::Length(self.what)) }
    }
}

/// Appends a length that is known only after what it counts has been written: `write` appends to
/// `out`, and the 16-bit field at `field`, counted from the start of this part, gets the number of
/// bytes of the part.
pub(super) fn with_length(out: &mut Vec<u8>, field: usize, write: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    write(out);
    // Limits of every list keep a part below 64 KB; a longer one would be refused by the peer.
    let length = u16::try_from(out.len() - start).unwrap_or(u16::MAX);
    if let Some(place) = out.get_mut(start + field..start + field + 2) {
        place.copy_from_slice(&length.to_be_bytes());
    }
}
