//! The state of a control connection, and what every step does with it.

use super::line::Lines;
use super::reply::Reply;
use crate::policy::StarttlsMode;
use crate::starttls::data::{DataRequest, Ends, Uploads};
use crate::starttls::lines;
use crate::starttls::machine::{Refusal, Wires};
use crate::starttls::side::{Role, Side};

/// A control connection.
#[derive(Debug)]
pub(crate) struct Ftp {
    pub(super) role: Role,
    /// Whether nothing may be done in clear.
    pub(super) required: bool,
    pub(super) ends: Ends,
    pub(super) phase: Phase,
    pub(super) commands: Lines,
    pub(super) replies: Lines,
    /// The command that was passed on last, while its reply is not complete.
    pub(super) asked: Option<Asked>,
    pub(super) reply: Reply,
    pub(super) data: Data,
    /// There is TLS on the control connection.
    pub(super) has_tls: bool,
    pub(super) uploads: Uploads,
    /// The server has closed the control connection in words.
    pub(super) is_over: bool,
    pub(super) protection: Protection,
}

/// How far it is.
#[derive(Debug)]
pub(super) enum Phase {
    /// TLS at the first byte.
    Implicit,
    /// Server role: the client has not asked for TLS.
    Clear,
    /// Server role: the client has logged in without it, as it may; the driver has to know.
    Settling,
    /// Client role: the greeting has not come whole.
    Greeting(Vec<u8>),
    /// Client role: of the commands that tacit sends itself, this one is not answered.
    Own(&'static Own, Vec<u8>),
    /// The handshake is under way; the greeting that waits for its end.
    Handshake(Vec<u8>),
    /// Commands and replies are passed on.
    Open,
    Refused(Refusal),
}

/// A command that tacit sends to a server itself.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Own {
    pub(super) text: &'static str,
    /// The replies that mean success.
    pub(super) good: std::ops::RangeInclusive<u16>,
}

pub(super) const AUTH: Own = Own { text: "AUTH TLS", good: 234..=234 };
pub(super) const PBSZ: Own = Own { text: "PBSZ 0", good: 200..=299 };
pub(super) const PROT: Own = Own { text: "PROT P", good: 200..=299 };

/// What a client asked the server, as far as its reply matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Asked {
    pub(super) what: Question,
    /// Final replies that are still to come.
    pub(super) replies: u8,
    /// A preliminary reply has come: a transfer runs.
    pub(super) in_transfer: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Question {
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
pub(super) enum Data {
    None,
    /// To be asked of the driver.
    Wanted {
        request: DataRequest,
        question: Question,
        form: AddressForm,
    },
    /// The driver has been asked.
    Asked {
        question: Question,
        form: AddressForm,
    },
}

/// What the client has asked for its data connections, in the server role.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Protection {
    pub(super) has_size: bool,
    pub(super) is_private: bool,
    /// What it was when the last data connection was agreed on.
    pub(super) agreed: Option<bool>,
}

impl Ftp {
    /// A control connection that has just been opened, with TLS from the first byte.
    pub(crate) fn implicit(role: Role, mode: StarttlsMode) -> Self {
        Self::new(role, mode, Phase::Implicit)
    }

    /// A control connection that has just been opened, in clear until `AUTH TLS`.
    pub(crate) fn explicit(role: Role, mode: StarttlsMode) -> Self {
        let phase = match role {
            Role::Server => Phase::Clear,
            Role::Client => Phase::Greeting(Vec::new()),
        };
        Self::new(role, mode, phase)
    }

    fn new(role: Role, mode: StarttlsMode, phase: Phase) -> Self {
        Self {
            role,
            required: mode == StarttlsMode::Required,
            ends: Ends::default(),
            phase,
            commands: Lines::default(),
            replies: Lines::default(),
            asked: None,
            reply: Reply::default(),
            data: Data::None,
            has_tls: false,
            uploads: Uploads::default(),
            is_over: false,
            protection: Protection::default(),
        }
    }

    /// The end that sends commands.
    pub(super) fn client(&self) -> Side {
        match self.role {
            Role::Server => Side::Peer,
            Role::Client => Side::Program,
        }
    }

    pub(super) fn server(&self) -> Side {
        self.client().other()
    }

    /// Answers a command instead of the server.
    pub(super) fn answer(&self, wires: &mut Wires, text: &str) {
        wires.end_mut(self.client()).say_line(text.as_bytes());
    }

    /// Sends a command to the server.
    pub(super) fn pass_on(&mut self, wires: &mut Wires, line: &[u8], what: Question) {
        self.uploads.note(&lines::verb(line));
        wires.end_mut(self.server()).say_line(line);
        match &mut self.asked {
            // RFC 959 section 4.1.3: ABOR has the transfer answered, and then itself; some servers
            // say it in one.
            Some(asked) if lines::verb(line) == "ABOR" => asked.in_transfer = false,
            Some(asked) => asked.replies = asked.replies.saturating_add(1),
            None => self.asked = Some(Asked { what, replies: 1, in_transfer: false }),
        }
    }

    /// Whether a data connection that is agreed now gets TLS.
    pub(super) fn is_secure(&self) -> bool {
        match self.role {
            Role::Server => self.protection.is_private,
            Role::Client => true,
        }
    }
}

/// A command with what follows it.
#[derive(Clone, Debug)]
pub(super) struct Command<'a> {
    /// In capitals.
    pub(super) verb: String,
    pub(super) argument: &'a [u8],
}

impl<'a> Command<'a> {
    pub(super) fn of(line: &'a [u8]) -> Self {
        Self { verb: lines::verb(line), argument: lines::argument(line) }
    }
}
