//! Stores the state of an FTP control connection. The state is its phase, the commands that wait
//! for a reply, and the commands that tacit itself has sent.

use super::line::LineBuffer;
use super::reply::ReplyTracker;
use crate::policy::StarttlsMode;
use crate::starttls::data::{ControlAddresses, DataRequest, UploadFlag};
use crate::starttls::lines;
use crate::starttls::machine::{ExchangeBuffers, StarttlsError};
use crate::starttls::side::{StarttlsRole, StarttlsSide};

/// A control connection.
#[derive(Debug)]
pub(crate) struct FtpControl {
    pub(super) role: StarttlsRole,
    /// Whether TLS is required.
    pub(super) required: bool,
    pub(super) ends: ControlAddresses,
    pub(super) phase: ControlPhase,
    pub(super) commands: LineBuffer,
    pub(super) replies: LineBuffer,
    /// The last forwarded command, until its reply is complete.
    pub(super) pending: Option<PendingCommand>,
    pub(super) reply: ReplyTracker,
    pub(super) data: DataState,
    /// Whether the control connection has TLS.
    pub(super) has_tls: bool,
    pub(super) uploads: UploadFlag,
    /// Whether the server has announced that it closes the control connection.
    pub(super) is_over: bool,
    pub(super) protection: DataProtection,
}

/// The phase of a control connection.
#[derive(Debug)]
pub(super) enum ControlPhase {
    /// TLS from the first byte.
    Implicit,
    /// Server role: the client has not requested TLS.
    Clear,
    /// Server role: the client logs in without TLS, which the rule permits. The driver must be
    /// informed.
    ContinuingInClear,
    /// Client role: the greeting is incomplete.
    Greeting(Vec<u8>),
    /// Client role: waiting for the reply to this command of tacit's own.
    Own(&'static OwnCommand, Vec<u8>),
    /// The handshake is in progress. Contains the greeting, which is sent after it.
    Handshake(Vec<u8>),
    /// Commands and replies are forwarded.
    Open,
    Refused(StarttlsError),
}

/// A command that tacit sends to a server itself.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct OwnCommand {
    pub(super) text: &'static str,
    /// The reply codes that mean success.
    pub(super) good: std::ops::RangeInclusive<u16>,
}

pub(super) const AUTH: OwnCommand = OwnCommand { text: "AUTH TLS", good: 234..=234 };
pub(super) const PBSZ: OwnCommand = OwnCommand { text: "PBSZ 0", good: 200..=299 };
pub(super) const PROT: OwnCommand = OwnCommand { text: "PROT P", good: 200..=299 };

/// A forwarded command that waits for its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PendingCommand {
    pub(super) what: CommandKind,
    /// The number of final replies that are still expected.
    pub(super) replies: u8,
    /// Whether a preliminary reply was received: a transfer is in progress.
    pub(super) in_transfer: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CommandKind {
    /// Any other command.
    Other,
    Features,
    /// `PASV`, or `EPSV`.
    Passive(AddressForm),
    /// `PORT` or `EPRT`.
    Active,
}

/// The format of an address in commands and replies about data connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AddressForm {
    /// `PORT` and `PASV`: IPv4 (RFC 959).
    Classic,
    /// `EPRT` and `EPSV`: IPv4 and IPv6 (RFC 2428).
    Extended,
}

/// The negotiation of a data connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DataState {
    None,
    /// A data connection that must be requested from the driver.
    Requested {
        request: DataRequest,
        question: CommandKind,
        form: AddressForm,
    },
    /// A data connection that was requested from the driver.
    Pending {
        question: CommandKind,
        form: AddressForm,
    },
}

/// The protection of data connections that the client requested, in the server role.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct DataProtection {
    pub(super) has_size: bool,
    pub(super) is_private: bool,
    /// Whether the last negotiated data connection is protected.
    pub(super) agreed: Option<bool>,
}

impl FtpControl {
    /// A new control connection with TLS from the first byte.
    pub(crate) fn implicit(role: StarttlsRole, mode: StarttlsMode) -> Self {
        Self::new(role, mode, ControlPhase::Implicit)
    }

    /// A new control connection in clear until `AUTH TLS`.
    pub(crate) fn explicit(role: StarttlsRole, mode: StarttlsMode) -> Self {
        let phase = match role {
            StarttlsRole::Server => ControlPhase::Clear,
            StarttlsRole::Client => ControlPhase::Greeting(Vec::new()),
        };
        Self::new(role, mode, phase)
    }

    fn new(role: StarttlsRole, mode: StarttlsMode, phase: ControlPhase) -> Self {
        Self {
            role,
            required: mode == StarttlsMode::Required,
            ends: ControlAddresses::default(),
            phase,
            commands: LineBuffer::default(),
            replies: LineBuffer::default(),
            pending: None,
            reply: ReplyTracker::default(),
            data: DataState::None,
            has_tls: false,
            uploads: UploadFlag::default(),
            is_over: false,
            protection: DataProtection::default(),
        }
    }

    /// Returns the end that sends commands.
    pub(super) fn client(&self) -> StarttlsSide {
        match self.role {
            StarttlsRole::Server => StarttlsSide::Peer,
            StarttlsRole::Client => StarttlsSide::Program,
        }
    }

    pub(super) fn server(&self) -> StarttlsSide {
        self.client().other()
    }

    /// Replies to a command in place of the server.
    pub(super) fn reply(&self, buffers: &mut ExchangeBuffers, text: &str) {
        buffers.end_mut(self.client()).send_line(text.as_bytes());
    }

    /// Sends a command to the server.
    pub(super) fn forward(
        &mut self,
        buffers: &mut ExchangeBuffers,
        line: &[u8],
        what: CommandKind,
    ) {
        self.uploads.note(&lines::verb(line));
        buffers.end_mut(self.server()).send_line(line);
        match &mut self.pending {
            // RFC 959 section 4.1.3: ABOR gets a reply for the transfer and a reply for itself;
            // some servers send only one of them.
            Some(requested) if lines::verb(line) == "ABOR" => requested.in_transfer = false,
            Some(requested) => requested.replies = requested.replies.saturating_add(1),
            None => self.pending = Some(PendingCommand { what, replies: 1, in_transfer: false }),
        }
    }

    /// Whether a data connection that is negotiated now gets TLS.
    pub(super) fn is_secure(&self) -> bool {
        match self.role {
            StarttlsRole::Server => self.protection.is_private,
            StarttlsRole::Client => true,
        }
    }
}

/// A command and its argument.
#[derive(Clone, Debug)]
pub(super) struct FtpCommand<'a> {
    /// The command in capital letters.
    pub(super) verb: String,
    pub(super) argument: &'a [u8],
}

impl<'a> FtpCommand<'a> {
    pub(super) fn of(line: &'a [u8]) -> Self {
        Self { verb: lines::verb(line), argument: lines::argument(line) }
    }
}
