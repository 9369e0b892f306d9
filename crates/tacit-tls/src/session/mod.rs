//! Encrypts and decrypts the records of a TLS connection after its handshake. Also handles session
//! tickets, key updates and alerts.
//!
//! The session does no I/O. The caller (the relay) reads and writes, and the session changes the
//! caller's buffers in place. If the peer requests a key update or a renegotiation, the session
//! must reply. The session stores the pending reply until the caller calls `seal_due`.
//!
//! ```text
//!   program ──bytes──> seal_slots ──records──> peer
//!   program <──bytes── open_batch <──records── peer
//!                          └─ seal_due encrypts the pending reply
//! ```
//!
//! Limits: [`MESSAGE_BYTES_MAX`] for a handshake message; [`IDLE_MESSAGES_MAX`] messages in a row
//! without data. Not supported: 0-RTT, renegotiation and post-handshake client certificates.

use std::fmt;
use std::ops::Range;
use std::time::Instant;

use rustls::client::ClientConnectionData;
use rustls::kernel::KernelConnection;
use tacit_core::policy::Rekey;
use tacit_core::record::{
    AlertDescription, ContentType, PAYLOAD_BYTES_MAX, RecordError, RecordOpener, RecordProtection,
    RecordSealer,
};

use super::failure::HandshakeRole;
use super::keys::{DirectionKey, HotKeys, OpenKey};
use super::secrets::{NextKey, Secret, Secrets};

/// The largest message after the handshake. The longest one is a ticket that contains a chain.
const MESSAGE_BYTES_MAX: usize = 64 * 1024;
/// The largest number of key updates, renegotiations and warnings that the peer may send without
/// data between them.
const IDLE_MESSAGES_MAX: u8 = 32;
/// The largest number of KeyUpdates that a rule causes without data between them. Peers treat more
/// as an attack: Go ends the connection at 17 and other libraries at 33, including answers to their
/// own.
const UPDATES_WITHOUT_DATA_MAX: u8 = 8;
/// The smallest number of records for which a key must suffice before a batch. One batch never
/// needs more.
const RECORDS_LEFT_MIN: u64 = 1024;
/// A TLS 1.2 key causes a warning when less than 1/`KEY_WARNING_PART` of its records is left.
const KEY_WARNING_PART: u64 = 10;
/// When a TLS 1.2 key suffices for fewer records, the relay reads no more from the program. One
/// batch needs less.
const LAST_RECORDS_MIN: u64 = 64;
/// The number of records of a key that are reserved for alerts.
const RECORDS_RESERVED: u64 = 2;

const HELLO_REQUEST: u8 = 0;
const CLIENT_HELLO: u8 = 1;
const NEW_SESSION_TICKET: u8 = 4;
const KEY_UPDATE: u8 = 24;

/// The part of the TLS library that stores tickets.
pub(super) type Tickets = KernelConnection<ClientConnectionData>;

/// The keys at the beginning of a session.
pub(super) struct SessionKeys {
    pub(super) seal_key: DirectionKey,
    pub(super) sealer: RecordSealer,
    pub(super) open_key: DirectionKey,
    pub(super) opener: RecordOpener,
}

/// The data that TLS 1.3 needs after the handshake; TLS 1.2 needs none.
pub(super) struct Tls13State {
    /// The secrets from which the next keys are derived.
    pub(super) secrets: Secrets,
    /// A client that stores tickets keeps this until it has received them.
    pub(super) tickets: Option<Box<Tickets>>,
}

/// When the rule requests new keys.
struct RekeyState {
    limits: Rekey,
    bytes_since: u64,
    last: Instant,
}

/// The bytes of handshake messages. There are rarely any, so a session has only a pointer for them.
#[derive(Default)]
struct HandshakeBytes {
    bytes: Vec<u8>,
}

/// Both directions of an established TLS connection.
pub struct Session {
    seal_key: DirectionKey,
    sealer: RecordSealer,
    open_key: DirectionKey,
    opener: RecordOpener,
    tls13: Option<Box<Tls13State>>,
    /// The role of tacit; only clients receive tickets.
    role: HandshakeRole,
    has_ticket: bool,
    /// An incomplete handshake message.
    message: Option<Box<HandshakeBytes>>,
    idle_messages: u8,
    pending_reply: Option<PendingReply>,
    /// `None` if the rule requests no new keys.
    rekey: Option<Box<RekeyState>>,
    /// The number of our KeyUpdates since we last sent data.
    updates_without_data: u8,
    /// The number of earlier keys of the sending direction.
    rekeys: u32,
    /// The number of earlier keys of the receiving direction.
    peer_rekeys: u32,
    close_notify_sent: bool,
    peer_closed: bool,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("protection", &self.sealer.protection()).finish()
    }
}

/// The answer that must be sent to the peer before more data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PendingReply {
    /// RFC 8446 section 4.6.3: one answer is sufficient for any number of KeyUpdates that request
    /// one.
    KeyUpdate,
    /// RFC 5246 section 7.2.2: a warning declines the renegotiation and does not end the
    /// connection.
    NoRenegotiation,
}

/// The result of opening the records at the beginning of a buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenedBatch {
    /// The number of bytes in complete records. The bytes after them are kept until their record is
    /// complete.
    pub consumed: usize,
    /// Whether the peer has ended its direction. The bytes after that are not part of this session.
    pub closed: bool,
}

/// How much of its sending key a session has used. TLS 1.2 has no KeyUpdate, so its connections end
/// before the limit of the key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum KeyUse {
    /// Little is used, or TLS 1.3 replaces the key before the limit.
    #[default]
    Low,
    /// Nine tenths are used.
    High,
    /// The session ends when the program pauses.
    Last,
    /// The session ends immediately.
    Full,
}

/// The reason why a requested KeyUpdate was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoRekey {
    /// TLS 1.2 has no KeyUpdate.
    OldVersion,
    /// One side has ended its direction.
    Closed,
    /// There were already as many KeyUpdates without data as peers accept.
    TooOften,
    /// The next key could not be derived.
    Session(SessionError),
}

/// The reason why a session fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionError {
    /// A record was invalid.
    Record(RecordError),
    /// The peer ended the connection with this alert.
    PeerAlert(AlertDescription),
    /// A message after the handshake was invalid.
    PeerMisbehaved(&'static str, AlertDescription),
    /// The library refused to derive the next keys or to process a ticket.
    Library(&'static str),
}

impl SessionError {
    /// Returns the alert to send to the peer; none if the peer has ended the connection.
    #[must_use]
    pub fn alert(&self) -> Option<AlertDescription> {
        match self {
            Self::Record(error) => Some(error.alert()),
            Self::PeerAlert(_) => None,
            Self::PeerMisbehaved(_, alert) => Some(*alert),
            Self::Library(_) => Some(AlertDescription::INTERNAL_ERROR),
        }
    }
}

impl From<RecordError> for SessionError {
    fn from(error: RecordError) -> Self {
        Self::Record(error)
    }
}

impl fmt::Display for SessionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Record(error) => write!(f, "{error}"),
            Self::PeerAlert(alert) => {
                let number = alert.0;
                write!(f, "the peer ended the connection with alert {number}")
            }
            Self::PeerMisbehaved(what, _) => f.write_str(what),
            Self::Library(what) => write!(f, "tacit could not {what}; this is a bug in tacit"),
        }
    }
}

impl std::error::Error for SessionError {}

impl Session {
    pub(super) fn new(
        keys: SessionKeys,
        role: HandshakeRole,
        tls13: Option<Box<Tls13State>>,
        limits: Rekey,
        now: Instant,
    ) -> Self {
        let SessionKeys { seal_key, sealer, open_key, opener } = keys;
        Self {
            seal_key,
            sealer,
            open_key,
            opener,
            tls13,
            role,
            has_ticket: false,
            message: None,
            idle_messages: 0,
            pending_reply: None,
            rekey: (limits != Rekey::default())
                .then(|| Box::new(RekeyState { limits, bytes_since: 0, last: now })),
            updates_without_data: 0,
            rekeys: 0,
            peer_rekeys: 0,
            close_notify_sent: false,
            peer_closed: false,
        }
    }

    /// Returns the layout of the slots for [`Self::seal_slots`].
    #[must_use]
    pub fn protection(&self) -> RecordProtection {
        self.sealer.protection()
    }

    /// Returns how much of the sending key is used.
    #[must_use]
    pub fn key_use(&self) -> KeyUse {
        if self.tls13.is_some() {
            return KeyUse::Low;
        }
        let left = self.sealer.records_left();
        if left < LAST_RECORDS_MIN {
            KeyUse::Full
        } else if left < RECORDS_LEFT_MIN {
            KeyUse::Last
        } else if left < self.sealer.protection().records_max() / KEY_WARNING_PART {
            KeyUse::High
        } else {
            KeyUse::Low
        }
    }

    /// Returns the number of KeyUpdates sent so far.
    #[must_use]
    pub fn rekeys(&self) -> u32 {
        self.rekeys
    }

    /// Seals the payload in the slots of `buffer`; returns the bytes to send. `hot` must be the
    /// slot of this connection.
    ///
    /// # Errors
    /// The key is used up; with TLS 1.3, [`Self::seal_due`] prevents this.
    pub fn seal_slots(
        &mut self,
        hot: &mut HotKeys,
        buffer: &mut [u8],
        payload_bytes: usize,
    ) -> Result<usize, SessionError> {
        let records = payload_bytes.div_ceil(PAYLOAD_BYTES_MAX) as u64;
        if self.sealer.records_left() < records + RECORDS_RESERVED {
            return Err(RecordError::KeyUsedUp.into());
        }
        let key = hot
            .seal(self.rekeys, &self.seal_key, &self.sealer)
            .map_err(|_| SessionError::Library("expand a key"))?;
        self.count_bytes(payload_bytes);
        self.updates_without_data = 0;
        Ok(self.sealer.seal_slots(key, buffer, payload_bytes)?)
    }

    /// Seals a few bytes from memory.
    ///
    /// # Errors
    /// The key is used up.
    pub fn seal(&mut self, payload: &[u8]) -> Result<Vec<u8>, SessionError> {
        let mut out = Vec::new();
        for part in payload.chunks(PAYLOAD_BYTES_MAX) {
            self.seal_message(ContentType::ApplicationData, part, &mut out)?;
        }
        Ok(out)
    }

    /// Appends the `close_notify` that ends our direction.
    ///
    /// # Errors
    /// The key is used up.
    pub fn seal_close(&mut self, out: &mut Vec<u8>) -> Result<(), SessionError> {
        self.seal_alert(AlertDescription::CLOSE_NOTIFY, out)
    }

    /// Appends an alert; every alert except `close_notify` is fatal.
    ///
    /// # Errors
    /// The key is used up.
    pub fn seal_alert(
        &mut self,
        alert: AlertDescription,
        out: &mut Vec<u8>,
    ) -> Result<(), SessionError> {
        let warning =
            matches!(alert, AlertDescription::CLOSE_NOTIFY | AlertDescription::NO_RENEGOTIATION);
        self.close_notify_sent |= alert != AlertDescription::NO_RENEGOTIATION;
        self.seal_message(ContentType::Alert, &[if warning { 1 } else { 2 }, alert.0], out)
    }

    /// Appends what must be sent before the next data: the pending reply, and a KeyUpdate if the
    /// rule's bytes or time have passed or the limit of the key is near (TLS 1.2 has no KeyUpdate).
    /// Appends nothing after our `close_notify`. Returns whether it has appended anything.
    ///
    /// # Errors
    /// The next key could not be derived.
    pub fn seal_due(
        &mut self,
        clock: fn() -> Instant,
        out: &mut Vec<u8>,
    ) -> Result<bool, SessionError> {
        if self.close_notify_sent {
            return Ok(false);
        }
        let pending_reply = self.pending_reply.take();
        match pending_reply {
            Some(PendingReply::KeyUpdate) => {
                self.update_sending_key(KeyUpdateRequest::NotRequested, out)?
            }
            Some(PendingReply::NoRenegotiation) => {
                self.seal_alert(AlertDescription::NO_RENEGOTIATION, out)?;
            }
            None => {}
        }
        if self.tls13.is_none() || !self.rekey_due(clock) {
            return Ok(pending_reply.is_some());
        }
        self.update_both(clock(), out)?;
        Ok(true)
    }

    /// Appends a requested KeyUpdate, even if none is due.
    ///
    /// # Errors
    /// The reason why none was appended.
    pub fn rekey(&mut self, now: Instant, out: &mut Vec<u8>) -> Result<(), NoRekey> {
        if self.tls13.is_none() {
            return Err(NoRekey::OldVersion);
        }
        if self.close_notify_sent || self.peer_closed {
            return Err(NoRekey::Closed);
        }
        if self.updates_without_data >= UPDATES_WITHOUT_DATA_MAX {
            return Err(NoRekey::TooOften);
        }
        self.update_both(now, out).map_err(NoRekey::Session)
    }

    fn update_both(&mut self, now: Instant, out: &mut Vec<u8>) -> Result<(), SessionError> {
        // RFC 8446 section 4.6.3: `update_requested` makes the other direction follow. A peer that
        // has closed its direction cannot answer; Go's crypto/tls loses its reading key if it gets
        // the request then.
        let request = match self.peer_closed {
            true => KeyUpdateRequest::NotRequested,
            false => KeyUpdateRequest::Requested,
        };
        self.update_sending_key(request, out)?;
        self.updates_without_data = self.updates_without_data.saturating_add(1);
        if let Some(rekey) = &mut self.rekey {
            rekey.bytes_since = 0;
            rekey.last = now;
        }
        // The peer did not cause the KeyUpdate that answers ours.
        self.idle_messages = 0;
        Ok(())
    }

    /// The clock is read only if the rule requests new keys by time.
    fn rekey_due(&self, clock: fn() -> Instant) -> bool {
        if self.sealer.records_left() < RECORDS_LEFT_MIN {
            return true;
        }
        let Some(rekey) = &self.rekey else { return false };
        let passed = |after| clock().duration_since(rekey.last) >= after;
        self.updates_without_data < UPDATES_WITHOUT_DATA_MAX
            && (rekey.limits.bytes.is_some_and(|bytes| rekey.bytes_since >= bytes.get())
                || rekey.limits.after.is_some_and(passed))
    }

    fn count_bytes(&mut self, bytes: usize) {
        if let Some(rekey) = &mut self.rekey {
            rekey.bytes_since += bytes as u64;
        }
    }

    /// Opens all complete records at the beginning of `buffer` in place. Appends the positions of
    /// the payloads to `payloads`. Replies to the peer wait for [`Self::seal_due`], so that a peer
    /// that sends requests and does not read costs no memory. `hot` must be the slot of this
    /// connection.
    ///
    /// # Errors
    /// The first invalid record, or a fatal alert of the peer. Payloads before it are valid.
    pub fn open_batch(
        &mut self,
        hot: &mut HotKeys,
        buffer: &mut [u8],
        payloads: &mut Vec<Range<usize>>,
    ) -> Result<OpenedBatch, SessionError> {
        let mut consumed = 0;
        let mut key = self.open_key(hot)?;
        while let Some(record) = self.opener.open_record(key, &mut buffer[consumed..])? {
            let payload = record.payload.start + consumed..record.payload.end + consumed;
            consumed += record.consumed;
            match record.content {
                ContentType::ApplicationData => self.take_payload(payload, payloads)?,
                ContentType::Handshake => {
                    let replaced = self.take_handshake(&buffer[payload])?;
                    if replaced {
                        key = self.open_key(hot)?;
                    }
                }
                ContentType::Alert => {
                    let closed = take_alert(&buffer[payload])?;
                    self.refuse_inside_message()?;
                    if closed {
                        self.peer_closed = true;
                        return Ok(OpenedBatch { consumed, closed });
                    }
                    self.count_idle_message()?;
                }
                // The record layer removes these records.
                ContentType::ChangeCipherSpec => {}
            }
        }
        Ok(OpenedBatch { consumed, closed: false })
    }

    fn take_payload(
        &mut self,
        payload: Range<usize>,
        payloads: &mut Vec<Range<usize>>,
    ) -> Result<(), SessionError> {
        self.refuse_inside_message()?;
        if !payload.is_empty() {
            self.idle_messages = 0;
            self.count_bytes(payload.len());
            self.take_no_more_tickets();
            payloads.push(payload);
        }
        Ok(())
    }

    /// Servers send their tickets before other data. Later tickets are not worth the memory.
    fn take_no_more_tickets(&mut self) {
        if std::mem::take(&mut self.has_ticket)
            && let Some(tls13) = &mut self.tls13
        {
            tls13.tickets = None;
        }
    }

    /// RFC 8446 section 5.1: no other record may come between the records of one handshake message.
    fn refuse_inside_message(&self) -> Result<(), SessionError> {
        if self.message.is_none() {
            return Ok(());
        }
        Err(SessionError::PeerMisbehaved(
            "the peer sent a record of another type in the middle of a handshake message",
            AlertDescription::UNEXPECTED_MESSAGE,
        ))
    }

    fn open_key<'hot>(&self, hot: &'hot mut HotKeys) -> Result<&'hot mut OpenKey, SessionError> {
        hot.open(self.peer_rekeys, &self.open_key, self.opener.protection())
            .map_err(|_| SessionError::Library("expand a key"))
    }

    /// Collects handshake messages and handles each complete one. Returns whether the receiving key
    /// was replaced.
    fn take_handshake(&mut self, fragment: &[u8]) -> Result<bool, SessionError> {
        let mut message = self.message.take().unwrap_or_default();
        if message.bytes.len() + fragment.len() > MESSAGE_BYTES_MAX {
            return Err(SessionError::PeerMisbehaved(
                "the peer sent a handshake message that is too long",
                AlertDescription::DECODE_ERROR,
            ));
        }
        message.bytes.extend_from_slice(fragment);
        let mut replaced = false;
        while let Some(HandshakeMessage { kind, body }) = split_message(&message.bytes) {
            if replaced {
                // RFC 8446 section 5.1: a message must not span a change of keys.
                return Err(SessionError::PeerMisbehaved(
                    "the peer sent a KeyUpdate and another message in the same record",
                    AlertDescription::UNEXPECTED_MESSAGE,
                ));
            }
            let end = 4 + body.len();
            replaced = self.take_message(kind, body)?;
            message.bytes.drain(..end);
        }
        if message.bytes.is_empty() {
            return Ok(replaced);
        }
        if replaced {
            return Err(SessionError::PeerMisbehaved(
                "the peer changed its traffic key in the middle of a handshake message",
                AlertDescription::UNEXPECTED_MESSAGE,
            ));
        }
        self.message = Some(message);
        Ok(replaced)
    }

    fn take_message(&mut self, kind: u8, body: &[u8]) -> Result<bool, SessionError> {
        match (kind, self.tls13.as_deref_mut()) {
            (KEY_UPDATE, Some(_)) => self.take_key_update(body).map(|()| true),
            (NEW_SESSION_TICKET, Some(tls13)) if self.role == HandshakeRole::Client => {
                self.has_ticket = true;
                let Some(tickets) = &mut tls13.tickets else { return Ok(false) };
                tickets.handle_new_session_ticket(body).map(|()| false).map_err(|_| {
                    SessionError::PeerMisbehaved(
                        "the peer sent a malformed session ticket",
                        AlertDescription::DECODE_ERROR,
                    )
                })
            }
            (HELLO_REQUEST | CLIENT_HELLO, None) => {
                self.pending_reply = Some(PendingReply::NoRenegotiation);
                self.count_idle_message().map(|()| false)
            }
            _ => Err(SessionError::PeerMisbehaved(
                "the peer sent a handshake message that is not legal after the handshake",
                AlertDescription::UNEXPECTED_MESSAGE,
            )),
        }
    }

    fn take_key_update(&mut self, body: &[u8]) -> Result<(), SessionError> {
        let requested = match body {
            [0] => false,
            [1] => true,
            _ => {
                return Err(SessionError::PeerMisbehaved(
                    "the peer sent a malformed KeyUpdate",
                    AlertDescription::ILLEGAL_PARAMETER,
                ));
            }
        };
        self.count_idle_message()?;
        let NextKey { key, iv } = self.next_key(|secrets| &mut secrets.receiving)?;
        self.open_key = key;
        self.opener = RecordOpener::new(self.opener.protection(), iv, 0);
        self.peer_rekeys += 1;
        if requested {
            self.pending_reply = Some(PendingReply::KeyUpdate);
        }
        Ok(())
    }

    fn count_idle_message(&mut self) -> Result<(), SessionError> {
        self.idle_messages += 1;
        if self.idle_messages > IDLE_MESSAGES_MAX {
            return Err(SessionError::PeerMisbehaved(
                "the peer sent too many KeyUpdates, renegotiation requests or warnings in a row",
                AlertDescription::UNEXPECTED_MESSAGE,
            ));
        }
        Ok(())
    }

    fn update_sending_key(
        &mut self,
        request: KeyUpdateRequest,
        out: &mut Vec<u8>,
    ) -> Result<(), SessionError> {
        self.seal_message(ContentType::Handshake, &[KEY_UPDATE, 0, 0, 1, request as u8], out)?;
        let NextKey { key, iv } = self.next_key(|secrets| &mut secrets.sending)?;
        self.seal_key = key;
        self.sealer = RecordSealer::new(self.sealer.protection(), iv, 0);
        self.rekeys += 1;
        Ok(())
    }

    fn next_key(
        &mut self,
        of: impl FnOnce(&mut Secrets) -> &mut Secret,
    ) -> Result<NextKey, SessionError> {
        let algorithm = self.seal_key.algorithm();
        let Some(tls13) = &mut self.tls13 else {
            return Err(SessionError::Library("update a TLS 1.2 key"));
        };
        of(&mut tls13.secrets)
            .next(algorithm)
            .map_err(|_| SessionError::Library("compute the next traffic key"))
    }

    /// Seals a record with any content, as a malicious peer would.
    #[cfg(feature = "fuzz")]
    pub(super) fn seal_content(
        &mut self,
        content: ContentType,
        message: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), SessionError> {
        self.seal_message(content, message, out)
    }

    /// Sends a KeyUpdate that requests another one, even if none is due.
    #[cfg(feature = "fuzz")]
    pub(super) fn change_keys(&mut self, out: &mut Vec<u8>) -> Result<(), SessionError> {
        self.update_sending_key(KeyUpdateRequest::Requested, out)
    }

    fn seal_message(
        &mut self,
        content: ContentType,
        message: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), SessionError> {
        let mut key =
            self.seal_key.seal(&self.sealer).map_err(|_| SessionError::Library("expand a key"))?;
        Ok(self.sealer.seal_message(&mut key, content, message, out)?)
    }
}

/// Whether a KeyUpdate requests that the peer update its key too (RFC 8446 section 4.6.3).
#[derive(Clone, Copy)]
#[repr(u8)]
enum KeyUpdateRequest {
    NotRequested = 0,
    Requested = 1,
}

/// `Ok(true)`: the peer has ended its direction with close_notify.
fn take_alert(alert: &[u8]) -> Result<bool, SessionError> {
    let &[_, description] = alert else {
        return Err(SessionError::PeerMisbehaved(
            "the peer sent a malformed alert",
            AlertDescription::DECODE_ERROR,
        ));
    };
    match AlertDescription(description) {
        AlertDescription::CLOSE_NOTIFY => Ok(true),
        // RFC 8446 section 6.1: a close_notify follows this alert. RFC 5246 section 7.2.2: this is
        // a warning.
        AlertDescription::USER_CANCELED | AlertDescription::NO_RENEGOTIATION => Ok(false),
        alert => Err(SessionError::PeerAlert(alert)),
    }
}

/// A handshake message.
struct HandshakeMessage<'b> {
    /// The type.
    kind: u8,
    body: &'b [u8],
}

/// Returns the first handshake message of `bytes`, if it is complete.
fn split_message(bytes: &[u8]) -> Option<HandshakeMessage<'_>> {
    let (&[kind, high, middle, low], rest) = bytes.split_first_chunk::<4>()?;
    let length = u32::from_be_bytes([0, high, middle, low]) as usize;
    rest.get(..length).map(|body| HandshakeMessage { kind, body })
}

#[cfg(test)]
mod tests;
