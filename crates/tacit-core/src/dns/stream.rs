//! Extracts DNS messages from a TCP stream. Before each message, the stream contains the length of
//! the message, as two bytes (RFC 1035, section 4.2.2).

use super::message::DnsError;

/// The largest length that two bytes can express.
pub const MESSAGE_BYTES_MAX: usize = u16::MAX as usize;
/// The length of a header. A shorter message is invalid.
const MESSAGE_BYTES_MIN: usize = 12;

/// A message from a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Framed<'b> {
    /// The message without its length.
    pub message: &'b [u8],
    /// The number of bytes that it occupies in the stream, including the length field.
    pub consumed: usize,
}

/// Parses the first message of a stream; `None` if more bytes are needed.
///
/// # Errors
/// The length is too small for a message.
pub fn next_message(bytes: &[u8]) -> Result<Option<Framed<'_>>, DnsError> {
    let Some((length, rest)) = bytes.split_first_chunk::<2>() else { return Ok(None) };
    let length = usize::from(u16::from_be_bytes(*length));
    if length < MESSAGE_BYTES_MIN {
        return Err(DnsError::Malformed);
    }
    Ok(rest.get(..length).map(|message| Framed { message, consumed: 2 + length }))
}

/// Adds the length field to a message; `None` if the message is too long.
#[must_use]
pub fn framed(message: &[u8]) -> Option<Vec<u8>> {
    let length = u16::try_from(message.len()).ok()?;
    Some([&length.to_be_bytes(), message].concat())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_length_below_a_header_is_refused() {
        assert_eq!(next_message(&[0, 11]), Err(DnsError::Malformed));
        assert_eq!(next_message(&[0, 12]), Ok(None));
        assert_eq!(framed(&[0; MESSAGE_BYTES_MAX + 1]), None);
    }

    proptest! {
        #[test]
        fn messages_come_out_as_they_went_in_wherever_the_stream_is_cut(
            messages in prop::collection::vec(prop::collection::vec(any::<u8>(), 12..90), 0..5),
            chunk in 1_usize..40,
        ) {
            let stream: Vec<u8> = messages.iter().flat_map(|one| framed(one).unwrap()).collect();
            let mut held = Vec::new();
            let mut out = Vec::new();
            for part in stream.chunks(chunk) {
                held.extend_from_slice(part);
                while let Some(Framed { message, consumed }) = next_message(&held).unwrap() {
                    out.push(message.to_vec());
                    held.drain(..consumed);
                }
            }
            prop_assert_eq!(out, messages);
            prop_assert!(held.is_empty());
        }
    }
}
