//! Rejects messages of later versions of IKE (RFC 7296 section 2.5).

use super::chain::IkePayload;
use super::header::{
    ExchangeType, FLAG_INITIATOR, FLAG_RESPONSE, HEADER_BYTES, IkeHeader, MAJOR_VERSION,
};
use super::message::encode_message;
use super::notify::{self, NotifyPayload};
use super::reader::Reader;

/// The response to a request with a higher major version: INVALID_MAJOR_VERSION (RFC 7296 section
/// 2.5). Returns `None` for every other message, and for one that is shorter than the response, so
/// that nothing is amplified.
pub(crate) fn refuse_version(bytes: &[u8]) -> Option<Vec<u8>> {
    let &[version, exchange, flags, ..] = bytes.get(17..HEADER_BYTES)? else { return None };
    if version >> 4 <= MAJOR_VERSION || flags & FLAG_RESPONSE != 0 {
        return None;
    }
    let mut reader = Reader::new("header", bytes);
    let header = IkeHeader {
        initiator_spi: reader.u64().ok()?,
        responder_spi: reader.u64().ok()?,
        exchange: ExchangeType::from_number(exchange),
        from_initiator: flags & FLAG_INITIATOR == 0,
        is_response: true,
        message_id: u32::from_be_bytes(*bytes.get(20..)?.first_chunk()?),
    };
    let notify = NotifyPayload::new(notify::INVALID_MAJOR_VERSION, []);
    let response = encode_message(&header, &[IkePayload::Notify(notify)]);
    (response.len() <= bytes.len()).then_some(response)
}
