//! The state of a control connection, and what every step does with it.

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
    /// Whether nothing may be done in clear.
    pub(super) required: bool,
    pub(super) ends: ControlAddresses,
    pub(super) phase: ControlPhase,
    pub(super) commands: LineBuffer,
    pub(super) replies: LineBuffer,
    /// The command that was passed on last, while its reply is not complete.
    pub(super) asked: Option<PendingCommand>,
    pub(super) reply: ReplyTracker,
    pub(super) data: DataState,
    /// There is TLS on the control connection.
    pub(super) has_tls: bool,
    pub(super) uploads: UploadFlag,
    /// The server has closed the control connection in words.
    pub(super) is_over: bool,
    pub(super) protection: DataProtection,
}

/// How far it is.
#[derive(Debug)]
pub(super) enum ControlPhase {
    /// TLS at the first byte.
    Implicit,
    /// Server role: the client has not asked for TLS.
    Clear,
    /// Server role: the client has logged in without it, as it may; the driver has to know.
    Settling,
    /// Client role: the greeting has not come whole.
    Greeting(Vec<u8>),
    /// Client role: of the commands that tacit sends itself, this one is not answered.
    Own(&'static OwnCommand, Vec<u8>),
    /// The handshake is under way; the greeting that waits for its end.
    Handshake(Vec<u8>),
    /// Commands and replies are passed on.
    Open,
    Refused(StarttlsError),
}

/// A command that tacit sends to a server itself.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct OwnCommand {
    pub(super) text: &'static str,
    /// The replies that mean success.
    pub(super) good: std::ops::RangeInclusive<u16>,
}

pub(super) const AUTH: OwnCommand = OwnCommand { text: "AUTH TLS", good: 234..=234 };
pub(super) const PBSZ: OwnCommand = OwnCommand { text: "PBSZ 0", good: 200..=299 };
pub(super) const PROT: OwnCommand = OwnCommand { text: "PROT P", good: 200..=299 };

/// What a client asked the server, as far as its reply matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PendingCommand {
    pub(super) what: CommandKind,
    /// Final replies that are still to come.
    pub(super) replies: u8,
    /// A preliminary reply has come: a transfer runs.
    pub(super) in_transfer: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CommandKind {
    /// Whatever has no meaning here.
    Other,
    Features,
    /// `PASV`, or `EPSV`.
    Passive(AddressForm),
    /// `PORT` or `EPRT`.
    Active,
}

/// How commands and replies write the address of a data connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AddressForm {
    /// `PORT` and `PASV`: IPv4 (RFC 959).
    Classic,
    /// `EPRT` and `EPSV`: IPv4 and IPv6 (RFC 2428).
    Extended,
}

/// A data connection on its way to be agreed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DataState {
    None,
    /// To be asked of the driver.
    Wanted {
        request: DataRequest,
        question: CommandKind,
        form: AddressForm,
    },
    /// The driver has been asked.
    Asked {
        question: CommandKind,
        form: AddressForm,
    },
}

/// What the client has asked for its data connections, in the server role.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct DataProtection {
    pub(super) has_size: bool,
    pub(super) is_private: bool,
    /// What it was when the last data connection was agreed on.
    pub(super) agreed: Option<bool>,
}

impl FtpControl {
    /// A control connection that has just been opened, with TLS from the first byte.
    pub(crate) fn implicit(role: StarttlsRole, mode: StarttlsMode) -> Self {
        Self::new(role, mode, ControlPhase::Implicit)
    }

    /// A control connection that has just been opened, in clear until `AUTH TLS`.
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
            asked: None,
            reply: ReplyTracker::default(),
            data: DataState::None,
            has_tls: false,
            uploads: UploadFlag::default(),
            is_over: false,
            protection: DataProtection::default(),
        }
    }

    /// The end that sends commands.
    pub(super) fn client(&self) -> StarttlsSide {
        match self.role {
            StarttlsRole::Server => StarttlsSide::Peer,
            StarttlsRole::Client => StarttlsSide::Program,
        }
    }

    pub(super) fn server(&self) -> StarttlsSide {
        self.client().other()
    }

    /// Answers a command instead of the server.
    pub(super) fn answer(&self, wires: &mut ExchangeBuffers, text: &str) {
        wires.end_mut(self.client()).say_line(text.as_bytes());
    }

    /// Sends a command to the server.
    pub(super) fn pass_on(&mut self, wires: &mut ExchangeBuffers, line: &[u8], what: CommandKind) {
        self.uploads.note(&lines::verb(line));
        wires.end_mut(self.server()).say_line(line);
        match &mut self.asked {
            // RFC 959 section 4.1.3: ABOR has the transfer answered, and then itself; some servers
            // say it in one.
            Some(asked) if lines::verb(line) == "ABOR" => asked.in_transfer = false,
            Some(asked) => asked.replies = asked.replies.saturating_add(1),
            None => self.asked = Some(PendingCommand { what, replies: 1, in_transfer: false }),
        }
    }

    /// Whether a data connection that is agreed now gets TLS.
    pub(super) fn is_secure(&self) -> bool {
        match self.role {
            StarttlsRole::Server => self.protection.is_private,
            StarttlsRole::Client => true,
        }
    }
}

/// A command with what follows it.
#[derive(Clone, Debug)]
pub(super) struct FtpCommand<'a> {
    /// In capitals.
    pub(super) verb: String,
    pub(super) argument: &'a [u8],
}

impl<'a> FtpCommand<'a> {
    pub(super) fn of(line: &'a [u8]) -> Self {
        Self { verb: lines::verb(line), argument: lines::argument(line) }
    }
}
