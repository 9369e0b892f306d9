//! One dialogue, whatever its protocol.

use std::net::SocketAddr;

use super::data::{ControlAddresses, UploadFlag};
use super::ftp::FtpControl;
use super::machine::{
    EndBuffers, ExchangeBuffers, INPUT_BYTES_MAX, OUTPUT_BYTES_MAX, ProtocolMachine, StarttlsError,
    StarttlsStep,
};
use super::side::{StarttlsRole, StarttlsSide};
use super::{postgres, smtp, telnet};
use crate::policy::{Starttls, StarttlsProtocol};

/// One dialogue, of whatever protocol.
#[derive(Debug)]
pub struct Dialogue {
    wires: ExchangeBuffers,
    machine: Box<dyn ProtocolMachine>,
    /// What the machine said that does not change any more, until it is told.
    settled: Option<StarttlsStep>,
}

impl Dialogue {
    /// Begins the dialogue that a rule wants.
    #[must_use]
    pub fn new(starttls: &Starttls, role: StarttlsRole) -> Self {
        let mode = starttls.mode;
        let machine: Box<dyn ProtocolMachine> = match (&starttls.protocol, role) {
            (StarttlsProtocol::Ftp(ftp), role) if ftp.implicit => {
                Box::new(FtpControl::implicit(role, mode))
            }
            (StarttlsProtocol::Ftp(_), role) => Box::new(FtpControl::explicit(role, mode)),
            (StarttlsProtocol::Postgres(postgres), StarttlsRole::Server) => {
                Box::new(postgres::PostgresServer::new(mode, postgres.cancel))
            }
            (StarttlsProtocol::Postgres(_), StarttlsRole::Client) => {
                Box::new(postgres::PostgresClient::new())
            }
            (StarttlsProtocol::Smtp, StarttlsRole::Server) => Box::new(smtp::SmtpServer::new(mode)),
            (StarttlsProtocol::Smtp, StarttlsRole::Client) => Box::new(smtp::SmtpClient::default()),
            (StarttlsProtocol::Telnet, StarttlsRole::Server) => {
                Box::new(telnet::TelnetServer::new(mode))
            }
            (StarttlsProtocol::Telnet, StarttlsRole::Client) => {
                Box::new(telnet::TelnetClient::default())
            }
        };
        Self { wires: ExchangeBuffers::default(), machine, settled: None }
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
    pub fn has_room(&self, from: StarttlsSide) -> bool {
        let is_full = |side| self.wires.end(side).output.len() >= OUTPUT_BYTES_MAX;
        // Where all passes, one that does not read must still be heard: it may wait for us.
        let is_stuck = match &self.settled {
            None => is_full(from) || is_full(from.other()),
            Some(StarttlsStep::Relay) => is_full(from.other()),
            Some(_) => true,
        };
        !is_stuck && self.wires.end(from).input.len() < INPUT_BYTES_MAX
    }

    /// Takes what one end sent.
    pub fn receive(&mut self, from: StarttlsSide, bytes: &[u8]) {
        let is_beyond = self.wires.is_beyond();
        let end = self.wires.end_mut(from);
        end.input.extend_from_slice(bytes);
        if !is_beyond {
            end.clear_bytes = end.clear_bytes.saturating_add(bytes.len());
        }
    }

    /// Takes the end of what one end sends.
    pub fn end(&mut self, from: StarttlsSide) {
        self.wires.end_mut(from).ended = true;
    }

    /// Says what to do next. What it answers other than [`StarttlsStep::Wait`] it answers again until it
    /// is told what came of it.
    pub fn step(&mut self) -> StarttlsStep {
        if self.settled.is_none() {
            self.wires.is_stalled = false;
            let step = match self.go_on() {
                StarttlsStep::Wait if !self.wires.is_stalled => self.wires.outlast(&*self.machine),
                step => step,
            };
            if step == StarttlsStep::Wait {
                return step;
            }
            self.settled = Some(step);
        }
        if self.settled == Some(StarttlsStep::Relay) {
            self.wires.pass_all();
        }
        self.settled.clone().unwrap_or(StarttlsStep::Wait)
    }

    fn go_on(&mut self) -> StarttlsStep {
        if self.wires.is_secure && !self.machine.goes_on() {
            return StarttlsStep::Relay;
        }
        self.machine.step(&mut self.wires).unwrap_or_else(StarttlsStep::Refuse)
    }

    /// Whether it waits only because too much waits to be sent: it goes on once that is taken.
    #[must_use]
    pub fn is_stalled(&self) -> bool {
        self.wires.is_stalled
    }

    /// Whether all that one end ever says has been passed on, where all passes, or the dialogue
    /// goes on to the end.
    #[must_use]
    pub fn has_passed(&self, from: StarttlsSide) -> bool {
        let one = self.wires.end(from);
        let other = self.wires.end(from.other());
        let is_last = self.settled == Some(StarttlsStep::Relay)
            || self.stays() && self.wires.is_beyond() && !self.machine.holds(from);
        is_last && one.ended && one.input.is_empty() && other.output.is_empty()
    }

    /// Takes what must be sent to one end.
    #[must_use]
    pub fn take_output(&mut self, to: StarttlsSide) -> Vec<u8> {
        std::mem::take(&mut self.wires.end_mut(to).output)
    }

    /// Takes what the peer sent that the handshake begins with; after [`StarttlsStep::Secure`].
    #[must_use]
    pub fn take_input(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.wires.peer.input)
    }

    /// The application protocol that the handshake must agree on; after [`StarttlsStep::Secure`]. `None`:
    /// what was said before is proof enough that the peer speaks the protocol.
    #[must_use]
    pub fn required_alpn(&self) -> Option<&'static str> {
        self.machine.required_alpn()
    }

    /// The peer's leg has TLS from here on.
    pub fn secured(&mut self) {
        self.settled = None;
        self.wires.is_secure = true;
        if self.machine.needs_fresh_program() {
            self.wires.program = EndBuffers::default();
        }
        self.machine.secured(&mut self.wires);
    }

    /// Whether it goes on under TLS to the end of the connection.
    #[must_use]
    pub fn stays(&self) -> bool {
        self.machine.stays()
    }

    /// Goes on after [`StarttlsStep::Settle`].
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
    pub fn uploads(&self) -> UploadFlag {
        self.machine.uploads()
    }

    /// Says where both ends are, once that is known.
    pub fn set_ends(&mut self, ends: ControlAddresses) {
        self.machine.set_ends(ends);
    }

    /// Answers [`StarttlsStep::Listen`]: where the door is, as the end that connects sees it; `None`: there
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
            Some(StarttlsStep::Refuse(
                StarttlsError::NotOffered(_) | StarttlsError::Ended(StarttlsSide::Program)
            ))
        );
        if !is_told {
            self.machine.unsecured(&mut self.wires);
        }
    }
}
