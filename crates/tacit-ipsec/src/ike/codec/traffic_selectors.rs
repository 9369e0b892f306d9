//! Parses and writes the traffic selector payload (RFC 7296 section 3.13).

use std::net::IpAddr;

use super::error::CodecError;
use super::reader::{Reader, with_length};
use crate::selector::TrafficSelector;

/// The packets at one end of a tunnel: one to [`SELECTORS_MAX`] selectors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TsPayload {
    pub(crate) selectors: Vec<TrafficSelector>,
}

impl TsPayload {
    pub(super) fn parse(body: &[u8]) -> Result<Self, CodecError> {
        let mut reader = Reader::new("traffic selector payload", body);
        let count = usize::from(reader.u8()?);
        reader.take(3)?; // RESERVED: ignored on receipt
        if count == 0 {
            return Err(CodecError::Value("number of traffic selectors"));
        }
        if count > SELECTORS_MAX {
            return Err(CodecError::TooMany("traffic selectors"));
        }
        let mut selectors = Vec::with_capacity(count);
        for _ in 0..count {
            selectors.extend(read_selector(&mut reader)?);
        }
        reader.end()?;
        Ok(Self { selectors })
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.push(u8::try_from(self.selectors.len()).unwrap_or(u8::MAX));
        out.extend([0, 0, 0]);
        for selector in &self.selectors {
            encode_selector(selector, out);
        }
    }
}

/// Reads a selector. Returns `None` for an unknown type, and for the ranges that never match a
/// packet with a port: OPAQUE, with the first port 65535 and the last 0 (RFC 7296 section 3.13.1).
fn read_selector(reader: &mut Reader<'_>) -> Result<Option<TrafficSelector>, CodecError> {
    let kind = reader.u8()?;
    let protocol = reader.u8()?;
    let length = usize::from(reader.u16()?);
    let body = length.checked_sub(4).ok_or(CodecError::Length("traffic selector"))?;
    let mut body = Reader::new("traffic selector", reader.take(body)?);
    let (first, last): (IpAddr, IpAddr);
    let ports;
    match kind {
        TS_IPV4 => {
            ports = (body.u16()?, body.u16()?);
            (first, last) = (body.array::<4>()?.into(), body.array::<4>()?.into());
        }
        TS_IPV6 => {
            ports = (body.u16()?, body.u16()?);
            (first, last) = (body.array::<16>()?.into(), body.array::<16>()?.into());
        }
        _ => return Ok(None),
    }
    body.end()?;
    if ports == (u16::MAX, 0) {
        return Ok(None);
    }
    let selector = TrafficSelector::new(protocol, ports, (first, last));
    selector.map(Some).ok_or(CodecError::Value("traffic selector"))
}

fn encode_selector(selector: &TrafficSelector, out: &mut Vec<u8>) {
    let (first, last) = selector.addresses();
    let kind = if first.is_ipv4() { TS_IPV4 } else { TS_IPV6 };
    with_length(out, 2, |out| {
        out.extend([kind, selector.protocol(), 0, 0]);
        out.extend(selector.ports().0.to_be_bytes());
        out.extend(selector.ports().1.to_be_bytes());
        for address in [first, last] {
            match address {
                IpAddr::V4(address) => out.extend(address.octets()),
                IpAddr::V6(address) => out.extend(address.octets()),
            }
        }
    });
}

const TS_IPV4: u8 = 7;
const TS_IPV6: u8 = 8;
/// The most selectors of one end.
const SELECTORS_MAX: usize = 64;
