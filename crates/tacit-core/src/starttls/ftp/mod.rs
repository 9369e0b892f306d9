//! FTP: both roles, from the greeting to the end of the control connection.
//!
//! ```text
//!   server role    client ══TLS══ tacit ──clear── server     AUTH, PBSZ, PROT answered by tacit
//!   client role    client ──clear── tacit ══TLS══ server     AUTH, PBSZ, PROT sent by tacit
//!
//!   PASV, EPSV     the client is told an address where tacit listens; the server's is dialled
//!   PORT, EPRT     the server is told an address where tacit listens; the client's is dialled
//! ```
//!
//! RFC 959, 2228, 2428, 4217. Unlike other dialogues this one never comes to an end under TLS: each
//! data connection is agreed on the control connection.
//!
//! Commands go on one at a time: the next waits for the last reply of the one before, so that what
//! tacit answers itself stands in order. Only what may interrupt a transfer does not wait.
//!
//! What is not understood fails closed: an address of the server that nobody asked for is withheld;
//! addresses other than those of the control connection's own ends are not used (RFC 2577 section
//! 3); before TLS a client that must use it gets nothing but a greeting and an answer to harmless
//! questions, and a server nothing but `AUTH TLS`.
//!
//! Limits: [`LINE_BYTES_MAX`], [`GREETING_BYTES_MAX`]. CCC, REIN under TLS, security mechanisms
//! other than TLS, RFC 1639 addresses and transfers between two servers are refused.

mod address;
mod client;
mod line;
mod reply;
mod server;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub use line::LINE_BYTES_MAX;

use super::{Machine, Refusal, Role, Side, Step, Wires, lines};
use address::Unusable;
use line::Lines;
use reply::{Part, Reply};

/// What a server may say before anybody has asked it anything.
pub const GREETING_BYTES_MAX: usize = 16 * 1024;
/// Ports below are not dialled for a client that names one (RFC 2577 section 3).
const DIALLED_PORT_MIN: u16 = 1024;

/// Where the two ends of a control connection are; `None`: not at an IP address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ends {
    /// The end away from the program.
    pub peer: Option<IpAddr>,
    /// The program.
    pub program: Option<IpAddr>,
}

impl Ends {
    fn of(&self, side: Side) -> Option<IpAddr> {
        match side {
            Side::Peer => self.peer,
            Side::Program => self.program,
        }
    }
}

/// A data connection that is about to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataRequest {
    /// The end that will connect to tacit.
    pub connects: Side,
    /// Where the other end is to be dialled then.
    pub dial: SocketAddr,
    /// Whether the peer's leg gets TLS.
    pub secure: bool,
}

/// Whether the last transfer that a client asked for goes to the server. For whoever shakes hands
/// on its data connection, which happens elsewhere: clients that only write there do not read what
/// is sent to them besides, and a kernel that is left with unread bytes resets what was written.
#[derive(Clone, Debug, Default)]
pub struct Uploads(Arc<AtomicBool>);

impl Uploads {
    /// Whether it does, as far as is known by now.
    #[must_use]
    pub fn now(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    fn note(&self, verb: &str) {
        match verb {
            "STOR" | "STOU" | "APPE" => self.0.store(true, Ordering::Relaxed),
            "RETR" | "LIST" | "NLST" | "MLSD" => self.0.store(false, Ordering::Relaxed),
            _ => {}
        }
    }
}

/// A control connection.
#[derive(Debug)]
pub(super) struct Ftp {
    role: Role,
    /// Whether nothing may be done in clear.
    required: bool,
    ends: Ends,
    phase: Phase,
    commands: Lines,
    replies: Lines,
    /// The command that was passed on last, while its reply is not complete.
    asked: Option<Asked>,
    reply: Reply,
    data: Data,
    /// There is TLS on the control connection.
    has_tls: bool,
    uploads: Uploads,
    /// The server has closed the control connection in words.
    is_over: bool,
    protection: Protection,
}

/// How far it is.
#[derive(Debug)]
enum Phase {
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
struct Own {
    text: &'static str,
    /// The replies that mean success.
    good: std::ops::RangeInclusive<u16>,
}

const AUTH: Own = Own { text: "AUTH TLS", good: 234..=234 };
const PBSZ: Own = Own { text: "PBSZ 0", good: 200..=299 };
const PROT: Own = Own { text: "PROT P", good: 200..=299 };

/// What a client asked the server, as far as its reply matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Asked {
    what: Question,
    /// Final replies that are still to come.
    replies: u8,
    /// A preliminary reply has come: a transfer runs.
    in_transfer: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Question {
    /// Whatever has no meaning here.
    Other,
    Features,
    /// `PASV`, or `EPSV`.
    Passive {
        extended: bool,
    },
    /// `PORT` or `EPRT`.
    Active,
}

/// A data connection on its way to be agreed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Data {
    None,
    /// To be asked of the driver, and asked.
    Wanted(DataRequest, Question, bool),
    /// The client wants `EPRT` on.
    Asked(Question, bool),
}

/// What the client has asked for its data connections, in the server role.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Protection {
    has_size: bool,
    is_private: bool,
    /// What it was when the last data connection was agreed on.
    agreed: Option<bool>,
}

impl Ftp {
    /// A control connection that has just been opened.
    pub(super) fn new(role: Role, required: bool, implicit: bool) -> Self {
        let phase = match (implicit, role) {
            (true, _) => Phase::Implicit,
            (false, Role::Server) => Phase::Clear,
            (false, Role::Client) => Phase::Greeting(Vec::new()),
        };
        Self {
            role,
            required,
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
    fn client(&self) -> Side {
        match self.role {
            Role::Server => Side::Peer,
            Role::Client => Side::Program,
        }
    }

    fn server(&self) -> Side {
        self.client().other()
    }

    /// Answers a command instead of the server.
    fn answer(&self, wires: &mut Wires, text: &str) {
        wires.end_mut(self.client()).say_line(text.as_bytes());
    }

    /// Splits what has come, as far as there is room for it.
    fn take_input(&mut self, wires: &mut Wires) {
        for side in [Side::Peer, Side::Program] {
            let lines = if side == self.client() { &mut self.commands } else { &mut self.replies };
            if !lines.is_full() {
                lines.push(&std::mem::take(&mut wires.end_mut(side).input));
            }
        }
    }

    /// Passes commands and replies on until something has to come first.
    fn pass(&mut self, wires: &mut Wires) -> Result<Step, Refusal> {
        loop {
            match self.data {
                Data::Wanted(request, question, extended) => {
                    self.data = Data::Asked(question, extended);
                    return Ok(Step::Listen(request));
                }
                Data::Asked(..) => return Ok(Step::Wait),
                Data::None => {}
            }
            match self.phase {
                Phase::Handshake(_) => return Ok(Step::Secure),
                Phase::Settling => {
                    self.phase = Phase::Open;
                    return Ok(Step::Settle);
                }
                _ => {}
            }
            let too_long = |side| move |_| Refusal::TooLong(side, "a line");
            if let Some(line) = self.replies.pop().map_err(too_long(self.server()))? {
                self.take_reply(wires, &line);
                continue;
            }
            let (client, asked) = (self.client(), self.asked);
            let next = self.commands.peek().map_err(too_long(client))?;
            let may_go = next.is_some_and(|line| may_follow(asked, &lines::verb(line)));
            if !may_go || wires.stall() {
                return Ok(Step::Wait);
            }
            if let Some(line) = self.commands.pop().map_err(too_long(client))? {
                self.take_command(wires, &line);
            }
        }
    }

    fn take_command(&mut self, wires: &mut Wires, line: &[u8]) {
        let command = Command::of(line);
        if line.contains(&b'\r') || line.contains(&0) {
            return self.answer(wires, "500 A command is one line.");
        }
        let taken = match self.role {
            Role::Server => self.take_as_server(wires, &command),
            Role::Client => self.take_as_client(wires, &command),
        };
        if taken {
            return;
        }
        match command.verb.as_str() {
            "FEAT" => self.pass_on(wires, line, Question::Features),
            "PASV" | "EPSV" => self.take_passive(wires, line, &command),
            "PORT" => self.take_active(wires, address::port(command.argument), false),
            "EPRT" => self.take_active(wires, address::extended_port(command.argument), true),
            "LPSV" | "LPRT" | "CPSV" | "SPSV" | "SSCN" => {
                self.answer(wires, "502 Not implemented: use EPSV or EPRT.");
            }
            _ => self.pass_on(wires, line, Question::Other),
        }
    }

    /// Sends a command to the server.
    fn pass_on(&mut self, wires: &mut Wires, line: &[u8], what: Question) {
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

    fn take_passive(&mut self, wires: &mut Wires, line: &[u8], command: &Command<'_>) {
        let extended = command.verb == "EPSV";
        if extended && command.argument.eq_ignore_ascii_case(b"ALL") {
            return self.pass_on(wires, line, Question::Other);
        }
        let (client, server) = (self.ends.of(self.client()), self.ends.of(self.server()));
        let (Some(client), Some(server)) = (client, server) else {
            return self.answer(wires, NO_ADDRESS);
        };
        let family = if client.is_ipv4() { b"1" } else { b"2" };
        if extended && !command.argument.is_empty() && command.argument != family {
            let text =
                format!("522 Use the protocol of this connection ({}).", char::from(family[0]));
            return self.answer(wires, &text);
        }
        if !extended && client.is_ipv6() {
            return self.answer(wires, "425 PASV is for IPv4: use EPSV.");
        }
        // The server's own family is what counts there, and the client's here.
        let verb: &[u8] = if extended || server.is_ipv6() { b"EPSV" } else { b"PASV" };
        self.pass_on(wires, verb, Question::Passive { extended });
    }

    fn take_active(
        &mut self,
        wires: &mut Wires,
        address: Result<SocketAddr, Unusable>,
        extended: bool,
    ) {
        let (client, server) = (self.ends.of(self.client()), self.ends.of(self.server()));
        // Some clients leave it to the server to fill in where they are.
        let unsaid = address.ok().filter(|address| address.ip().is_unspecified());
        let filled = unsaid.zip(client).map(|(address, ip)| SocketAddr::new(ip, address.port()));
        match filled.map_or(address, Ok) {
            Err(Unusable::Malformed) => self.answer(wires, "501 That is no address."),
            Err(Unusable::Protocol) => self.answer(wires, "522 Use IPv4 or IPv6 (1,2)."),
            Ok(_) if client.is_none() || server.is_none() => self.answer(wires, NO_ADDRESS),
            Ok(address) if Some(address.ip().to_canonical()) != client => {
                self.answer(wires, "501 Only this client's own address is connected to.");
            }
            Ok(address) if address.port() < DIALLED_PORT_MIN => {
                self.answer(wires, "501 Ports below 1024 are not connected to.");
            }
            Ok(dial) => {
                let (connects, secure) = (self.server(), self.is_secure());
                let request = DataRequest { connects, dial, secure };
                self.data = Data::Wanted(request, Question::Active, extended);
            }
        }
    }

    /// Whether a data connection that is agreed now gets TLS.
    fn is_secure(&self) -> bool {
        match self.role {
            Role::Server => self.protection.is_private,
            Role::Client => true,
        }
    }

    /// Goes on with a data connection; `at` is where its listener is, if there is one.
    fn agree(&mut self, wires: &mut Wires, at: Option<SocketAddr>) {
        let Data::Asked(question, extended) = std::mem::replace(&mut self.data, Data::None) else {
            return;
        };
        self.protection.agreed = at.map(|_| self.protection.is_private);
        match (question, at.map(|at| (at.ip().to_canonical(), at.port()))) {
            (Question::Active, Some(at)) => {
                let command = address::port_command(at.into(), extended);
                self.pass_on(wires, command.as_bytes(), Question::Active);
            }
            (Question::Passive { extended: true }, Some((_, port))) => {
                self.answer(wires, &address::extended_passive_reply(port));
            }
            (_, Some((IpAddr::V4(ip), port))) => {
                self.answer(wires, &address::passive_reply(ip, port));
            }
            (_, _) => self.answer(wires, "425 No data connection can be made now."),
        }
    }
}

impl Machine for Ftp {
    fn needs_program(&self) -> bool {
        !matches!(self.phase, Phase::Implicit)
    }

    fn step(&mut self, wires: &mut Wires) -> Result<Step, Refusal> {
        if let Phase::Refused(refusal) = &self.phase {
            return Err(refusal.clone());
        }
        if let Phase::Implicit = self.phase {
            return Ok(Step::Secure);
        }
        self.take_input(wires);
        let passed = match self.phase {
            Phase::Greeting(_) | Phase::Own(..) => self.prepare(wires),
            // The driver has not told yet what became of it.
            Phase::Handshake(_) => Ok(Some(Step::Secure)),
            _ => Ok(None),
        };
        let passed = match passed {
            Ok(Some(step)) => Ok(step),
            Ok(None) => self.pass(wires),
            Err(refusal) => Err(refusal),
        };
        passed.inspect_err(|refusal| self.phase = Phase::Refused(refusal.clone()))
    }

    fn goes_on(&self) -> bool {
        true
    }

    fn secured(&mut self, wires: &mut Wires) {
        let greeting = match std::mem::replace(&mut self.phase, Phase::Open) {
            Phase::Handshake(greeting) => Some(greeting),
            _ => None,
        };
        self.has_tls = true;
        match (self.role, greeting) {
            (Role::Client, Some(greeting)) => self.ask_own(wires, &PBSZ, greeting),
            (Role::Client, None) => self.phase = Phase::Greeting(Vec::new()),
            (Role::Server, Some(_)) => {}
            // Who has TLS from the first byte has it on data connections too.
            (Role::Server, None) => {
                self.protection = Protection { has_size: true, is_private: true, agreed: None };
            }
        }
    }

    fn unsecured(&mut self, wires: &mut Wires) {
        if self.role == Role::Client {
            self.answer(wires, "421 There is no TLS with the server; see the log of tacit.");
        }
    }

    fn stays(&self) -> bool {
        true
    }

    fn is_over(&self) -> bool {
        self.is_over
    }

    fn uploads(&self) -> Uploads {
        self.uploads.clone()
    }

    fn holds(&self, from: Side) -> bool {
        let lines = if from == self.client() { &self.commands } else { &self.replies };
        lines.has_line()
    }

    fn set_ends(&mut self, ends: Ends) {
        self.ends = ends;
    }

    fn listens(&mut self, wires: &mut Wires, at: Option<SocketAddr>) {
        self.agree(wires, at);
    }
}

const NO_ADDRESS: &str = "425 Data connections need IP addresses on both sides.";

/// A command with what follows it.
#[derive(Clone, Debug)]
struct Command<'a> {
    /// In capitals.
    verb: String,
    argument: &'a [u8],
}

impl<'a> Command<'a> {
    fn of(line: &'a [u8]) -> Self {
        Self { verb: lines::verb(line), argument: lines::argument(line) }
    }
}

/// Whether a command may be taken now: after the reply to the one before, or in a transfer.
fn may_follow(asked: Option<Asked>, verb: &str) -> bool {
    let interrupts = matches!(verb, "ABOR" | "STAT" | "QUIT" | "NOOP");
    asked.is_none_or(|asked| asked.in_transfer && interrupts)
}

#[cfg(test)]
mod tests;
