//! Writes captures in the pcapng format (draft-ietf-opsawg-pcapng), which Wireshark and tshark
//! read.
//!
//! ```text
//!   section header, interface description | packet | packet | … | interface statistics
//! ```
//!
//! Each function appends one block to a buffer; the caller writes the buffer to a file. A packet
//! begins with its IP header (`LINKTYPE_RAW`). Decrypted bytes were never sent as packets, so
//! [`SyntheticStream`] creates TCP packets for them.
//!
//! Limit: a comment has at most [`COMMENT_BYTES_MAX`] bytes; a longer comment is truncated.

mod stream;

pub use stream::{PAYLOAD_BYTES_MAX, Side, StreamEnd, SyntheticStream, segments};

/// The largest length of a comment or a name.
pub const COMMENT_BYTES_MAX: usize = 4096;

/// The link type for packets that begin with an IPv4 or IPv6 header.
const LINKTYPE_RAW: u16 = 101;

/// The types of blocks.
const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
const INTERFACE_STATISTICS: u32 = 5;
const ENHANCED_PACKET: u32 = 6;

/// Marks the byte order for readers. It is little-endian on every machine.
const BYTE_ORDER: u32 = 0x1a2b_3c4d;
/// The format's version, 1.0.
const VERSION: [u16; 2] = [1, 0];
/// The value for a section length that is not known yet.
const UNKNOWN_LENGTH: u64 = u64::MAX;
/// Times are in units of 10^-9 seconds.
const TIME_DIGITS: u8 = 9;

/// Codes of options.
const END: u16 = 0;
const COMMENT: u16 = 1;
const APPLICATION: u16 = 4;
const INTERFACE_NAME: u16 = 2;
const TIME_RESOLUTION: u16 = 9;
const START_TIME: u16 = 2;
const END_TIME: u16 = 3;
const RECEIVED: u16 = 4;
const DROPPED: u16 = 5;

/// The description of a capture.
#[derive(Clone, Copy, Debug)]
pub struct CaptureHeader<'a> {
    /// The program that writes the capture, with its version.
    pub application: &'a str,
    /// The name of the interface.
    pub interface: &'a str,
    /// A comment about the interface.
    pub comment: &'a str,
}

/// The packet counts of a complete capture; times are in nanoseconds since the epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CaptureStatistics {
    /// When the capture began.
    pub started_ns: u64,
    /// When the capture ended.
    pub ended_ns: u64,
    /// The number of packets, including dropped ones.
    pub received: u64,
    /// The number of packets that are not in the capture.
    pub dropped: u64,
}

/// Appends the beginning of a capture.
pub fn begin(out: &mut Vec<u8>, header: CaptureHeader<'_>) {
    block(out, SECTION_HEADER, |body| {
        body.extend_from_slice(&BYTE_ORDER.to_le_bytes());
        VERSION.iter().for_each(|number| body.extend_from_slice(&number.to_le_bytes()));
        body.extend_from_slice(&UNKNOWN_LENGTH.to_le_bytes());
        text_option(body, APPLICATION, header.application);
        end_options(body);
    });
    block(out, INTERFACE_DESCRIPTION, |body| {
        body.extend_from_slice(&LINKTYPE_RAW.to_le_bytes());
        body.extend_from_slice(&[0; 2]);
        // No maximum length: packets are never truncated.
        body.extend_from_slice(&0_u32.to_le_bytes());
        text_option(body, COMMENT, header.comment);
        text_option(body, INTERFACE_NAME, header.interface);
        option(body, TIME_RESOLUTION, &[TIME_DIGITS]);
        end_options(body);
    });
}

/// Appends an IP packet with the time of its capture, in nanoseconds since the epoch.
pub fn packet(out: &mut Vec<u8>, time_ns: u64, packet: &[u8], comment: Option<&str>) {
    block(out, ENHANCED_PACKET, |body| {
        body.extend_from_slice(&0_u32.to_le_bytes());
        time(body, time_ns);
        let length = u32::try_from(packet.len()).unwrap_or(u32::MAX);
        body.extend_from_slice(&length.to_le_bytes());
        body.extend_from_slice(&length.to_le_bytes());
        body.extend_from_slice(packet);
        pad(body);
        if let Some(comment) = comment {
            text_option(body, COMMENT, comment);
            end_options(body);
        }
    });
}

/// Appends the end of a capture.
pub fn end(out: &mut Vec<u8>, statistics: CaptureStatistics) {
    block(out, INTERFACE_STATISTICS, |body| {
        body.extend_from_slice(&0_u32.to_le_bytes());
        time(body, statistics.ended_ns);
        for (code, time_ns) in
            [(START_TIME, statistics.started_ns), (END_TIME, statistics.ended_ns)]
        {
            let mut value = Vec::with_capacity(8);
            time(&mut value, time_ns);
            option(body, code, &value);
        }
        option(body, RECEIVED, &statistics.received.to_le_bytes());
        option(body, DROPPED, &statistics.dropped.to_le_bytes());
        end_options(body);
    });
}

/// Appends a block: its type, its length, its body, and its length again.
fn block(out: &mut Vec<u8>, kind: u32, write_body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&kind.to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    // The body has a buffer of its own, because padding counts from the start of the body.
    let mut body = Vec::new();
    write_body(&mut body);
    out.append(&mut body);
    let length = u32::try_from(out.len() - start + 4).unwrap_or(u32::MAX).to_le_bytes();
    if let Some(field) = out.get_mut(start + 4..start + 8) {
        field.copy_from_slice(&length);
    }
    out.extend_from_slice(&length);
}

/// Appends a time: its upper half, then its lower half.
fn time(out: &mut Vec<u8>, time_ns: u64) {
    let [a, b, c, d, e, f, g, h] = time_ns.to_le_bytes();
    out.extend_from_slice(&[e, f, g, h, a, b, c, d]);
}

fn text_option(body: &mut Vec<u8>, code: u16, text: &str) {
    let fits = |(at, character): &(usize, char)| at + character.len_utf8() <= COMMENT_BYTES_MAX;
    let text: String =
        text.char_indices().take_while(fits).map(|(_, character)| character).collect();
    option(body, code, text.as_bytes());
}

fn option(body: &mut Vec<u8>, code: u16, value: &[u8]) {
    let length = u16::try_from(value.len()).unwrap_or(u16::MAX);
    body.extend_from_slice(&code.to_le_bytes());
    body.extend_from_slice(&length.to_le_bytes());
    body.extend_from_slice(value);
    pad(body);
}

fn end_options(body: &mut Vec<u8>) {
    option(body, END, &[]);
}

/// Pads the body to a multiple of 32 bits.
fn pad(body: &mut Vec<u8>) {
    body.resize(body.len().next_multiple_of(4), 0);
}

#[cfg(test)]
mod tests;
