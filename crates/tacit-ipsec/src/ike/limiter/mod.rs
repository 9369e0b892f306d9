//! Decides whether the first request of an unknown sender gets an IKE SA (a security association;
//! RFC 7296 section 2.6). So forged requests cannot use up the memory.
//!
//! ```text
//!   first request ──> few half-open IKE SAs ──> accept
//!                ├──> many, without a cookie ──> reply COOKIE: the sender repeats its request
//!                ├──> many, with tacit's cookie ──> accept
//!                └──> too many ──> drop
//! ```
//!
//! If the sender's address already has its maximum of half-open IKE SAs, the new IKE SA replaces
//! one of them.
//!
//! The responder may still refuse an accepted first request, for example if the request contains no
//! suitable proposal. Each refusal costs a response and a line of the audit log. So a refused first
//! request counts as a half-open IKE SA for [`REFUSED_COUNTED`].
//!
//! The cookie is a MAC of the sender's address, SPI and nonce. A sender with a forged address does
//! not receive the cookie. When tacit demands a cookie, tacit stores data about the sender only
//! after a request that contains the cookie.
//!
//! Limits: [`HALF_OPEN_MAX`] half-open IKE SAs in total, [`HALF_OPEN_OF_ADDRESS_MAX`] for one
//! address, [`FIRST_REQUEST_BYTES_MAX`] for a first request. All IPv6 addresses of a /64 network
//! count as one address. All half-open IKE SAs together use less than 40 MB.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use aws_lc_rs::hmac;

use super::codec::{
    ExchangeType, IkeHeader, IkeMessage, IkePayload, NotifyPayload, encode_message, notify,
    refuse_version,
};
use super::crypto::{RandomFailed, RandomSource, random_array};

/// Counts half-open IKE SAs, and demands cookies when there are many.
#[derive(Debug)]
pub struct IkeLimiter {
    secrets: [hmac::Key; 2],
    /// The version of the newer secret; it is the first byte of a cookie.
    version: u8,
    changed_at: Instant,
    half_open: BTreeMap<IpAddr, usize>,
    total: usize,
    /// When the last first requests were refused; at most [`COOKIES_FROM`].
    refused: VecDeque<Instant>,
}

/// What to do with a first request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FirstRequestDecision {
    /// Make a connection with [`IkeConnection::accept`](super::IkeConnection::accept).
    Accept,
    /// The same, but in place of another half-open IKE SA of the same address, which is
    /// [`network`].
    Replace,
    /// Send this response, and keep nothing.
    Respond(Vec<u8>),
    /// Send nothing.
    Drop,
}

impl IkeLimiter {
    /// Creates a limiter without half-open IKE SAs.
    ///
    /// # Errors
    ///
    /// If there are no random bytes.
    pub fn new(random: &mut dyn RandomSource, now: Instant) -> Result<Self, RandomFailed> {
        let secrets = [secret(random)?, secret(random)?];
        let half_open = BTreeMap::new();
        let refused = VecDeque::new();
        Ok(Self { secrets, version: 0, changed_at: now, half_open, total: 0, refused })
    }

    /// Decides about a message that belongs to no connection.
    ///
    /// # Errors
    ///
    /// If there are no random bytes for the next secret of cookies.
    pub fn check(
        &mut self,
        now: Instant,
        remote: SocketAddr,
        bytes: &[u8],
        random: &mut dyn RandomSource,
    ) -> Result<FirstRequestDecision, RandomFailed> {
        let Some(first) = FirstRequest::read(bytes) else {
            return Ok(refuse_version(bytes)
                .map_or(FirstRequestDecision::Drop, FirstRequestDecision::Respond));
        };
        if self.total >= HALF_OPEN_MAX {
            return Ok(FirstRequestDecision::Drop);
        }
        if self.total + self.refused_lately(now) < COOKIES_FROM {
            return Ok(FirstRequestDecision::Accept);
        }
        if now.saturating_duration_since(self.changed_at) >= SECRET_LIFETIME {
            let [newer, _] = &self.secrets;
            self.secrets = [secret(random)?, newer.clone()];
            self.version = self.version.wrapping_add(1);
            self.changed_at = now;
        }
        let is_ours =
            first.cookie.as_ref().is_some_and(|cookie| self.verify(&first, remote, cookie));
        if !is_ours {
            let [newer, _] = &self.secrets;
            let cookie = cookie(newer, self.version, &first, remote);
            return Ok(FirstRequestDecision::Respond(first.demand(cookie)));
        }
        Ok(if self.has_many(remote.ip()) {
            FirstRequestDecision::Replace
        } else {
            FirstRequestDecision::Accept
        })
    }

    /// Counts a first request that was not accepted as a connection.
    pub fn note_refused(&mut self, now: Instant) {
        if self.refused.len() == COOKIES_FROM {
            self.refused.pop_front();
        }
        self.refused.push_back(now);
    }

    fn refused_lately(&self, now: Instant) -> usize {
        let is_counted = |at: &&Instant| now.saturating_duration_since(**at) < REFUSED_COUNTED;
        self.refused.iter().filter(is_counted).count()
    }

    fn has_many(&self, address: IpAddr) -> bool {
        let of_address = self.half_open.get(&network(address)).copied().unwrap_or_default();
        of_address >= HALF_OPEN_OF_ADDRESS_MAX
    }

    /// Counts a connection that was accepted and is not established.
    pub fn note_opened(&mut self, address: IpAddr) {
        *self.half_open.entry(network(address)).or_default() += 1;
        self.total += 1;
    }

    /// Counts a connection that has become established or has ended.
    pub fn note_closed(&mut self, address: IpAddr) {
        let address = network(address);
        let Some(count) = self.half_open.get_mut(&address) else { return };
        *count -= 1;
        self.total -= 1;
        if *count == 0 {
            self.half_open.remove(&address);
        }
    }

    /// A cookie of the secret before is valid too, so that a change refuses no peer.
    fn verify(&self, first: &FirstRequest, remote: SocketAddr, received: &[u8]) -> bool {
        let versions = [self.version, self.version.wrapping_sub(1)];
        self.secrets.iter().zip(versions).any(|(key, version)| {
            let expected = cookie(key, version, first, remote);
            aws_lc_rs::constant_time::verify_slices_are_equal(&expected, received).is_ok()
        })
    }
}

/// What a cookie depends on.
struct FirstRequest {
    header: IkeHeader,
    nonce: Vec<u8>,
    cookie: Option<Vec<u8>>,
}

impl FirstRequest {
    /// Reads a first request. Returns `None` for every other message.
    fn read(bytes: &[u8]) -> Option<Self> {
        if bytes.len() > FIRST_REQUEST_BYTES_MAX {
            return None;
        }
        let message = IkeMessage::parse(bytes).ok()?;
        let header = message.header;
        let is_first = header.exchange == ExchangeType::SaInit
            && header.from_initiator
            && !header.is_response
            && (header.responder_spi, header.message_id) == (0, 0);
        let nonce = message.payloads.iter().find_map(|payload| match payload {
            IkePayload::Nonce(nonce) => Some(nonce.clone()),
            _ => None,
        });
        let cookie = message.payloads.iter().find_map(|payload| match payload {
            IkePayload::Notify(one) if one.kind == notify::COOKIE => Some(one.data.clone()),
            _ => None,
        });
        Some(Self { header, nonce: nonce.filter(|_| is_first)?, cookie })
    }

    /// The response that demands the cookie. It is shorter than the request, so it amplifies
    /// nothing.
    fn demand(&self, cookie: Vec<u8>) -> Vec<u8> {
        let header = IkeHeader { from_initiator: false, is_response: true, ..self.header };
        encode_message(&header, &[IkePayload::Notify(NotifyPayload::new(notify::COOKIE, cookie))])
    }
}

/// Returns what counts as one address: a host has a network of 64 bits of IPv6.
#[must_use]
pub fn network(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(v6) => {
            let [a, b, c, d, ..] = v6.segments();
            IpAddr::from([a, b, c, d, 0, 0, 0, 0])
        }
    }
}

/// Cookie = version | MAC(Ni | IPi | port | SPIi) (RFC 7296 section 2.6).
fn cookie(key: &hmac::Key, version: u8, first: &FirstRequest, remote: SocketAddr) -> Vec<u8> {
    let mut context = hmac::Context::with_key(key);
    context.update(&first.nonce);
    match remote.ip() {
        IpAddr::V4(address) => context.update(&address.octets()),
        IpAddr::V6(address) => context.update(&address.octets()),
    }
    context.update(&remote.port().to_be_bytes());
    context.update(&first.header.initiator_spi.to_be_bytes());
    let mac = context.sign();
    [&[version], mac.as_ref()].concat()
}

fn secret(random: &mut dyn RandomSource) -> Result<hmac::Key, RandomFailed> {
    Ok(hmac::Key::new(hmac::HMAC_SHA256, &random_array::<32>(random)?))
}

/// From this number of half-open IKE SAs on, every first request needs a cookie. It is low, because
/// anyone can send the requests below it with the address of a peer.
const COOKIES_FROM: usize = 4;
/// How long a refused first request counts.
const REFUSED_COUNTED: Duration = Duration::from_secs(10);
/// The most half-open IKE SAs.
pub const HALF_OPEN_MAX: usize = 1024;
/// The most half-open IKE SAs of one address while cookies are demanded.
pub const HALF_OPEN_OF_ADDRESS_MAX: usize = 16;
/// The longest first request that is read; it is never in fragments (RFC 7383 section 2).
pub const FIRST_REQUEST_BYTES_MAX: usize = 4096;
/// How long a secret makes cookies; they are valid for as long again.
const SECRET_LIFETIME: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests;
