//! Dialogues in clear that end in TLS, held for programs that know nothing of it.
//!
//! ```text
//!   peer <──TLS, sooner or later──> Dialogue <──in clear──> program
//!            receive, take_output             receive, take_output
//! ```
//!
//! A [`Dialogue`] reads what both ends say and speaks to both. Whoever drives it hands it what
//! arrives, sends what it has to say, and then asks [`Dialogue::step`] what to do:
//!
//! ```text
//!   Wait ──> more from one of the ends
//!   Secure ──> a handshake with the peer ──> secured(), and Wait or Relay again, under TLS
//!        └──> it failed: unsecured(), which may tell the program why, and the end
//!   Relay ──> nothing more to look at: the relay carries the rest, in clear or under TLS
//!   Listen ──> a data connection is agreed: listens(), and Wait again (FTP, which never relays)
//!   Refuse ──> the end
//! ```
//!
//! What a peer says in clear behind its last word before TLS is never taken for something said
//! under TLS: it is thrown away where the protocol's own servers do so, and refused elsewhere. The
//! bytes that are the handshake's already are left for it ([`Dialogue::take_input`]).
//!
//! Limits: [`INPUT_BYTES_MAX`] that one end said and nobody understood yet, [`OUTPUT_BYTES_MAX`]
//! that wait for one end, before nothing more is read ([`Dialogue::has_room`]), each with what one
//! read may add; and [`CLEAR_BYTES_MAX`] from one end before TLS, all together. Time is the
//! driver's to bound.

use std::fmt;
use std::net::SocketAddr;

use ftp::{DataRequest, Ends, Uploads};

use crate::policy::{Starttls, StarttlsMode, StarttlsProtocol};

pub mod ftp;
mod lines;
mod postgres;
mod smtp;
mod telnet;
#[cfg(test)]
mod testing;

/// Bytes of one end that may wait to be understood: a reply of many lines fits.
pub const INPUT_BYTES_MAX: usize = 16 * 1024;
/// Bytes that may wait for one end before nothing is read that could make more.
pub const OUTPUT_BYTES_MAX: usize = 32 * 1024;
/// Bytes that one end may send before TLS: who says more talks for ever.
pub const CLEAR_BYTES_MAX: usize = 64 * 1024;
/// Bytes of a reply shown in a refusal.
const SHOWN_BYTES_MAX: usize = 80;

/// One end of a dialogue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Away from the program: the end that gets TLS.
    Peer,
    /// The program on this host, which stays in clear.
    Program,
}

impl Side {
    /// The end across.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::Peer => Self::Program,
            Self::Program => Self::Peer,
        }
    }
}

/// Which side of the handshake tacit takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The peer is a client, the program a server.
    Server,
    /// The peer is a server, the program a client.
    Client,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Send what there is, and wait for more.
    Wait,
    /// Send what there is, then shake hands with the peer. What it has sent already and is not
    /// taken by [`Dialogue::take_input`] is not part of it.
    Secure,
    /// Send what there is; the rest is nobody's business.
    Relay,
    /// Nothing need be secured any more, but the dialogue goes on to the end of the connection:
    /// send what there is, and say so by [`Dialogue::settle`].
    Settle,
    /// Open a door for a data connection, and say where it is by [`Dialogue::listens`].
    Listen(DataRequest),
    /// Send what there is, then end both.
    Refuse(Refusal),
}

/// Why a dialogue did not end in TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// One end closed its connection first.
    Ended(Side),
    /// The client goes on in clear, which the rule does not allow.
    InClear,
    /// The server offers no TLS, or refuses it; what it said instead.
    NotOffered(String),
    /// One end sent more in clear behind its last word before TLS.
    Stuffed(Side),
    /// One end sent something of which no more than the limit is read.
    TooLong(Side, &'static str),
    /// One end does not speak the protocol; what is wrong.
    Garbled(Side, &'static str),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let who = |side: &Side| match side {
            Side::Peer => "the peer",
            Side::Program => "the program",
        };
        match self {
            Self::Ended(side) => write!(f, "{} ended the connection before TLS", who(side)),
            Self::InClear => f.write_str(
                "the client goes on in clear, and the rule requires TLS: have it use STARTTLS, or \
                 say mode = \"optional\"",
            ),
            Self::NotOffered(said) => write!(
                f,
                "the server offers no TLS here, and nothing is sent to it in clear ({said}): turn \
                 TLS on there"
            ),
            Self::Stuffed(side) => write!(
                f,
                "{} sent more in clear behind its last word before TLS, as an attacker would to \
                 have it believed under TLS",
                who(side)
            ),
            Self::TooLong(side, what) => {
                write!(f, "{} sent {what} before TLS that is longer than the limit", who(side))
            }
            Self::Garbled(side, what) => {
                write!(f, "{} does not speak the rule's `starttls` protocol: {what}", who(side))
            }
        }
    }
}

/// One dialogue, of whatever protocol.
#[derive(Debug)]
pub struct Dialogue {
    wires: Wires,
    machine: Box<dyn Machine>,
    /// What the machine said that does not change any more, until it is told.
    settled: Option<Step>,
}

impl Dialogue {
    /// Begins the dialogue that a rule wants.
    #[must_use]
    pub fn new(starttls: &Starttls, role: Role) -> Self {
        let mode = starttls.mode;
        let required = mode == StarttlsMode::Required;
        let machine: Box<dyn Machine> = match (&starttls.protocol, role) {
            (StarttlsProtocol::Ftp(ftp), role) => {
                Box::new(ftp::Ftp::new(role, required, ftp.implicit))
            }
            (StarttlsProtocol::Postgres, Role::Server) => Box::new(postgres::Server::new(mode)),
            (StarttlsProtocol::Postgres, Role::Client) => Box::new(postgres::Client::new()),
            (StarttlsProtocol::Smtp, Role::Server) => Box::new(smtp::Server::new(mode)),
            (StarttlsProtocol::Smtp, Role::Client) => Box::new(smtp::Client::default()),
            (StarttlsProtocol::Telnet, Role::Server) => Box::new(telnet::Server::new(mode)),
            (StarttlsProtocol::Telnet, Role::Client) => Box::new(telnet::Client::default()),
        };
        Self { wires: Wires::default(), machine, settled: None }
    }

    /// Whether it needs the program before TLS; if not, a server's program is dialled after the
    /// client has proved itself.
    #[must_use]
    pub fn needs_program(&self) -> bool {
        self.machine.needs_program()
    }

    /// Whether the program is to be dialled anew under TLS: then it knows nothing of what was said
    /// in clear. What the first connection to it still sends is not handed over any more.
    #[must_use]
    pub fn needs_fresh_program(&self) -> bool {
        self.machine.needs_fresh_program()
    }

    /// Whether that end may be read now; what is read at once is handed over whole.
    #[must_use]
    pub fn has_room(&self, from: Side) -> bool {
        let is_full = |side| self.wires.end(side).output.len() >= OUTPUT_BYTES_MAX;
        // Where all passes, one that does not read must still be heard: it may wait for us.
        let is_stuck = match &self.settled {
            None => is_full(from) || is_full(from.other()),
            Some(Step::Relay) => is_full(from.other()),
            Some(_) => true,
        };
        !is_stuck && self.wires.end(from).input.len() < INPUT_BYTES_MAX
    }

    /// Takes what one end sent.
    pub fn receive(&mut self, from: Side, bytes: &[u8]) {
        let is_beyond = self.wires.is_beyond();
        let end = self.wires.end_mut(from);
        end.input.extend_from_slice(bytes);
        if !is_beyond {
            end.clear_bytes = end.clear_bytes.saturating_add(bytes.len());
        }
    }

    /// Takes the end of what one end sends.
    pub fn end(&mut self, from: Side) {
        self.wires.end_mut(from).ended = true;
    }

    /// Says what to do next. What it answers other than [`Step::Wait`] it answers again until it
    /// is told what came of it.
    pub fn step(&mut self) -> Step {
        if self.settled.is_none() {
            self.wires.is_stalled = false;
            let step = match self.go_on() {
                Step::Wait if !self.wires.is_stalled => self.wires.outlast(&*self.machine),
                step => step,
            };
            if step == Step::Wait {
                return step;
            }
            self.settled = Some(step);
        }
        if self.settled == Some(Step::Relay) {
            self.wires.pass_all();
        }
        self.settled.clone().unwrap_or(Step::Wait)
    }

    fn go_on(&mut self) -> Step {
        if self.wires.is_secure && !self.machine.goes_on() {
            return Step::Relay;
        }
        self.machine.step(&mut self.wires).unwrap_or_else(Step::Refuse)
    }

    /// Whether it waits only because too much waits to be sent: it goes on once that is taken.
    #[must_use]
    pub fn is_stalled(&self) -> bool {
        self.wires.is_stalled
    }

    /// Whether all that one end ever says has been passed on, where all passes, or the dialogue
    /// goes on to the end.
    #[must_use]
    pub fn has_passed(&self, from: Side) -> bool {
        let (one, other) = (self.wires.end(from), self.wires.end(from.other()));
        let is_last = self.settled == Some(Step::Relay)
            || self.stays() && self.wires.is_beyond() && !self.machine.holds(from);
        is_last && one.ended && one.input.is_empty() && other.output.is_empty()
    }

    /// Takes what must be sent to one end.
    #[must_use]
    pub fn take_output(&mut self, to: Side) -> Vec<u8> {
        std::mem::take(&mut self.wires.end_mut(to).output)
    }

    /// Takes what the peer sent that the handshake begins with; after [`Step::Secure`].
    #[must_use]
    pub fn take_input(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.wires.peer.input)
    }

    /// The peer's leg has TLS from here on.
    pub fn secured(&mut self) {
        self.settled = None;
        self.wires.is_secure = true;
        if self.machine.needs_fresh_program() {
            self.wires.program = End::default();
        }
        self.machine.secured(&mut self.wires);
    }

    /// Whether it goes on under TLS to the end of the connection.
    #[must_use]
    pub fn stays(&self) -> bool {
        self.machine.stays()
    }

    /// Goes on after [`Step::Settle`].
    pub fn settle(&mut self) {
        self.settled = None;
        self.wires.is_settled = true;
    }

    /// Whether the protocol has said itself that nothing more comes: an end without more words is
    /// then no cut.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.machine.is_over()
    }

    /// Which way the transfers go that are asked for.
    #[must_use]
    pub fn uploads(&self) -> Uploads {
        self.machine.uploads()
    }

    /// Says where both ends are, once that is known.
    pub fn set_ends(&mut self, ends: Ends) {
        self.machine.set_ends(ends);
    }

    /// Answers [`Step::Listen`]: where the door is, as the end that connects sees it; `None`: there
    /// is none.
    pub fn listens(&mut self, at: Option<SocketAddr>) {
        self.settled = None;
        self.machine.listens(&mut self.wires, at);
    }

    /// There will be no TLS with the peer. There may be something to tell the program.
    pub fn unsecured(&mut self) {
        // Then it has been told already, or is gone.
        let is_told = matches!(
            &self.settled,
            Some(Step::Refuse(Refusal::NotOffered(_) | Refusal::Ended(Side::Program)))
        );
        if !is_told {
            self.machine.unsecured(&mut self.wires);
        }
    }
}

/// One protocol in one role.
trait Machine: fmt::Debug + Send + Sync {
    /// See [`Dialogue::needs_program`].
    fn needs_program(&self) -> bool {
        true
    }
    /// See [`Dialogue::needs_fresh_program`].
    fn needs_fresh_program(&self) -> bool {
        false
    }
    /// Goes on as far as the input allows.
    fn step(&mut self, wires: &mut Wires) -> Result<Step, Refusal>;
    /// Whether there is anything to be looked at under TLS.
    fn goes_on(&self) -> bool {
        false
    }
    /// See [`Dialogue::secured`].
    fn secured(&mut self, _: &mut Wires) {}
    /// See [`Dialogue::unsecured`].
    fn unsecured(&mut self, _: &mut Wires) {}
    /// See [`Dialogue::stays`].
    fn stays(&self) -> bool {
        false
    }
    /// See [`Dialogue::is_over`].
    fn is_over(&self) -> bool {
        false
    }
    /// See [`Dialogue::uploads`].
    fn uploads(&self) -> Uploads {
        Uploads::default()
    }
    /// Whether there is something to be done yet when this end says no more.
    fn outlasts(&self, _: Side) -> bool {
        self.stays()
    }
    /// Whether something whole that this end has said waits for its turn.
    fn holds(&self, _: Side) -> bool {
        false
    }
    /// See [`Dialogue::set_ends`].
    fn set_ends(&mut self, _: Ends) {}
    /// See [`Dialogue::listens`].
    fn listens(&mut self, _: &mut Wires, _: Option<SocketAddr>) {}
}

/// What both ends have said and are to be told.
#[derive(Debug, Default)]
struct Wires {
    peer: End,
    program: End,
    is_secure: bool,
    /// It stays in clear.
    is_settled: bool,
    /// See [`Dialogue::is_stalled`].
    is_stalled: bool,
}

/// What one end has said and is to be told.
#[derive(Debug, Default)]
struct End {
    /// Not understood yet.
    input: Vec<u8>,
    /// Not sent yet.
    output: Vec<u8>,
    /// It sends no more.
    ended: bool,
    /// How much it said before TLS.
    clear_bytes: usize,
}

impl End {
    fn say(&mut self, bytes: impl AsRef<[u8]>) {
        self.output.extend_from_slice(bytes.as_ref());
    }

    fn say_line(&mut self, line: impl AsRef<[u8]>) {
        self.say(line);
        self.say(b"\r\n");
    }
}

impl Wires {
    fn end(&self, side: Side) -> &End {
        match side {
            Side::Peer => &self.peer,
            Side::Program => &self.program,
        }
    }

    fn end_mut(&mut self, side: Side) -> &mut End {
        match side {
            Side::Peer => &mut self.peer,
            Side::Program => &mut self.program,
        }
    }

    /// Whether too much waits to be sent for a command to be taken up that may make more.
    fn stall(&mut self) -> bool {
        let is_full = |end: &End| end.output.len() >= OUTPUT_BYTES_MAX;
        self.is_stalled = is_full(&self.peer) || is_full(&self.program);
        self.is_stalled
    }

    /// Whether all is said that comes before TLS.
    fn is_beyond(&self) -> bool {
        self.is_secure || self.is_settled
    }

    /// Passes everything that was said.
    fn pass_all(&mut self) {
        let Self { peer, program, .. } = self;
        program.output.append(&mut peer.input);
        peer.output.append(&mut program.input);
    }

    /// What a machine that waits cannot wait for.
    fn outlast(&self, machine: &dyn Machine) -> Step {
        for side in [Side::Peer, Side::Program] {
            let end = self.end(side);
            match self.is_beyond() {
                false if end.clear_bytes > CLEAR_BYTES_MAX => {
                    return Step::Refuse(Refusal::TooLong(side, "a dialogue"));
                }
                false if end.ended => return Step::Refuse(Refusal::Ended(side)),
                // Beyond that nothing is left to be kept from anybody: what remains, passes.
                true if end.ended && (!machine.outlasts(side) || self.end(side.other()).ended) => {
                    return Step::Relay;
                }
                _ => {}
            }
        }
        Step::Wait
    }
}

/// Text of a peer for a log line: one line, not too long.
fn shown(text: &[u8]) -> String {
    let cut = text.get(..SHOWN_BYTES_MAX).unwrap_or(text);
    String::from_utf8_lossy(cut).trim_end().escape_debug().to_string()
}
