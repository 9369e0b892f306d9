//! Checks that a server's response answers the query, and builds the response for the program.
//!
//! The response for the program contains the question that the program sent, and the records that
//! the server sent. The program's question and the question to the server may differ in upper and
//! lower case. Their lengths are equal, so the compression pointers in the records stay valid.

use super::message::{
    AUTHENTIC_DATA, AUTHORITATIVE, CODE, HEADER_BYTES, INTERNET, MessageHeader, OPERATION, OPT,
    OPT_BYTES, RECURSION_AVAILABLE, RESPONSE, TRUNCATED, question_end, record,
};
use super::query::Query;
use super::question::ResponseCode;

/// The relation of a message to a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Match {
    /// The answer to the query, with an identical question.
    Exact,
    /// The answer to the query, but with another case of letters: it is forged, or from a resolver
    /// that changes the case.
    Folded,
    /// An error about the format of the query, without a question.
    Unreadable,
    /// Another message.
    None,
}

/// Determines whether `response` answers the query `sent`.
pub(super) fn matches(response: &[u8], sent: &[u8]) -> Match {
    let (Ok(head), Ok(requested)) = (MessageHeader::read(response), MessageHeader::read(sent))
    else {
        return Match::None;
    };
    if head.id != requested.id || head.flags & (RESPONSE | OPERATION) != RESPONSE {
        return Match::None;
    }
    if head.counts[0] == 0 && head.flags & CODE == ResponseCode::FormatError as u16 {
        return Match::Unreadable;
    }
    let (Ok(end), Ok(sent_end)) = (question_end(response), question_end(sent)) else {
        return Match::None;
    };
    let answered = &response[HEADER_BYTES..end];
    let requested = &sent[HEADER_BYTES..sent_end];
    let name_bytes = requested.len() - 4;
    if head.counts[0] != 1 || answered.len() != requested.len() {
        Match::None
    } else if answered == requested {
        Match::Exact
    } else if answered[name_bytes..] == requested[name_bytes..]
        && answered.eq_ignore_ascii_case(requested)
    {
        Match::Folded
    } else {
        Match::None
    }
}

/// Whether the response is truncated (TC flag).
#[must_use]
pub fn is_truncated(response: &[u8]) -> bool {
    MessageHeader::read(response).is_ok_and(|head| head.flags & TRUNCATED != 0)
}

/// Whether the resolver failed or refused, so that another one may answer.
#[must_use]
pub fn is_refusal(response: &[u8]) -> bool {
    let codes = [ResponseCode::ServerFailure, ResponseCode::NotImplemented, ResponseCode::Refused];
    MessageHeader::read(response).is_ok_and(|head| codes.iter().any(|why| is_code(head, *why)))
}

/// Whether the resolver rejected the format of the query, mostly because of EDNS.
pub(super) fn is_about_form(response: &[u8]) -> bool {
    let codes = [ResponseCode::FormatError, ResponseCode::NotImplemented];
    MessageHeader::read(response).is_ok_and(|head| codes.iter().any(|why| is_code(head, *why)))
}

fn is_code(head: MessageHeader, why: ResponseCode) -> bool {
    head.flags & CODE == why as u16
}

/// Builds the program's response from a resolver's response: with the program's ID and question,
/// and with EDNS if the program used it. A response longer than `bytes_max` is truncated after a
/// complete record; it has the TC flag if answers are missing.
///
/// `None` if the response is malformed or answers another question.
#[must_use]
pub fn for_program(response: &[u8], query: &Query, bytes_max: usize) -> Option<Vec<u8>> {
    let head = MessageHeader::read(response).ok()?;
    let start = HEADER_BYTES + query.wire.len();
    let requested = response.get(HEADER_BYTES..start)?;
    if head.counts[0] != 1 || !requested.eq_ignore_ascii_case(&query.wire) {
        return None;
    }
    let opt_bytes = if query.has_edns() { OPT_BYTES } else { 0 };
    let kept = Kept::of(response, head, start, bytes_max.saturating_sub(opt_bytes))?;
    let code = match (query.has_edns(), kept.code_high) {
        // A program without EDNS cannot read the extended response code.
        (false, 1..) => ResponseCode::ServerFailure as u16,
        _ => head.flags & CODE,
    };
    let is_told = query.bits.authentic_data || query.bits.dnssec_ok;
    let authentic = if is_told { head.flags & AUTHENTIC_DATA } else { 0 };
    let truncated = if kept.is_cut { TRUNCATED } else { 0 };
    let passed_on = head.flags & (AUTHORITATIVE | TRUNCATED | RECURSION_AVAILABLE);
    let flags = RESPONSE | query.own_flags() | passed_on | authentic | truncated | code;
    let [answers, authority, additional] = kept.counts;
    let counts = [1, answers, authority, additional + u16::from(query.has_edns())];
    let mut message = Vec::with_capacity(kept.end + opt_bytes);
    MessageHeader { id: query.id, flags, counts }.push(&mut message);
    message.extend_from_slice(&query.wire);
    message.extend_from_slice(response.get(start..kept.end)?);
    restore_case(&mut message, query, kept.counts);
    query.push_opt(&mut message, kept.code_high);
    Some(message)
}

/// The records that fit into the program's response.
struct Kept {
    /// Answers, authority records, additional records.
    counts: [u16; 3],
    end: usize,
    /// Whether answers or authority records were omitted.
    is_cut: bool,
    /// The upper part of the response code (RFC 6891, section 6.1.3).
    code_high: u8,
}

impl Kept {
    fn of(response: &[u8], head: MessageHeader, start: usize, bytes_max: usize) -> Option<Self> {
        let mut kept = Self { counts: [0; 3], end: start, is_cut: false, code_high: 0 };
        let mut at = start;
        let mut is_over = false;
        for (section, count) in head.counts[1..].iter().enumerate() {
            for _ in 0..*count {
                let record = record(response, at)?;
                at = record.end;
                if record.kind == OPT {
                    // The record cannot be removed, because the records after it would move.
                    kept.code_high = record.ttl.to_be_bytes()[0];
                    is_over = true;
                } else if is_over || at > bytes_max {
                    is_over = true;
                    kept.is_cut = kept.is_cut || section < 2;
                } else {
                    kept.counts[section] += 1;
                    kept.end = at;
                }
            }
        }
        Some(kept)
    }
}

/// Changes the case of uncompressed owner names to that of the program's question.
fn restore_case(message: &mut [u8], query: &Query, counts: [u16; 3]) {
    let name_bytes = query.wire.len().saturating_sub(4);
    let mut at = HEADER_BYTES + query.wire.len();
    for _ in 0..counts.iter().map(|count| u32::from(*count)).sum() {
        let Some(record) = record(message, at) else { return };
        let name = &query.wire[..name_bytes];
        if let Some(owner) = message.get_mut(at..at + name_bytes)
            && owner.eq_ignore_ascii_case(name)
            && record.class == INTERNET
        {
            owner.copy_from_slice(name);
        }
        at = record.end;
    }
}

#[cfg(test)]
mod tests;
