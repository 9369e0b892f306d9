//! The steps of a control connection: commands and replies, one at a time.

use std::net::SocketAddr;

use super::address::{self, Unusable};
use super::control::{
    AddressForm, CommandKind, ControlPhase, DataProtection, DataState, FtpCommand, FtpControl,
    PBSZ, PendingCommand,
};
use crate::starttls::data::{ControlAddresses, DataRequest, UploadFlag};
use crate::starttls::lines;
use crate::starttls::machine::{ExchangeBuffers, ProtocolMachine, StarttlsError, StarttlsStep};
use crate::starttls::side::{StarttlsRole, StarttlsSide};

/// Ports below are not dialled for a client that names one (RFC 2577 section 3).
const DIALLED_PORT_MIN: u16 = 1024;

impl FtpControl {
    /// Splits what has come, as far as there is room for it.
    fn take_input(&mut self, wires: &mut ExchangeBuffers) {
        for side in [StarttlsSide::Peer, StarttlsSide::Program] {
            let lines = if side == self.client() { &mut self.commands } else { &mut self.replies };
            if !lines.is_full() {
                lines.push(&std::mem::take(&mut wires.end_mut(side).input));
            }
        }
    }

    /// Passes commands and replies on until something has to come first.
    fn pass(&mut self, wires: &mut ExchangeBuffers) -> Result<StarttlsStep, StarttlsError> {
        loop {
            match self.data {
                DataState::Wanted { request, question, form } => {
                    self.data = DataState::Asked { question, form };
                    return Ok(StarttlsStep::Listen(request));
                }
                DataState::Asked { .. } => return Ok(StarttlsStep::Wait),
                DataState::None => {}
            }
            match self.phase {
                ControlPhase::Handshake(_) => return Ok(StarttlsStep::Secure),
                ControlPhase::Settling => {
                    self.phase = ControlPhase::Open;
                    return Ok(StarttlsStep::Settle);
                }
                _ => {}
            }
            let too_long = |side| move |_| StarttlsError::TooLong(side, "a line");
            if let Some(line) = self.replies.pop().map_err(too_long(self.server()))? {
                self.take_reply(wires, &line);
                continue;
            }
            let client = self.client();
            let asked = self.asked;
            let next = self.commands.peek().map_err(too_long(client))?;
            let may_go = next.is_some_and(|line| may_follow(asked, &lines::verb(line)));
            if !may_go || wires.stall() {
                return Ok(StarttlsStep::Wait);
            }
            if let Some(line) = self.commands.pop().map_err(too_long(client))? {
                self.take_command(wires, &line);
            }
        }
    }

    fn take_command(&mut self, wires: &mut ExchangeBuffers, line: &[u8]) {
        let command = FtpCommand::of(line);
        if line.contains(&b'\r') || line.contains(&0) {
            return self.answer(wires, "500 A command is one line.");
        }
        let taken = match self.role {
            StarttlsRole::Server => self.take_as_server(wires, &command),
            StarttlsRole::Client => self.take_as_client(wires, &command),
        };
        if taken {
            return;
        }
        match command.verb.as_str() {
            "FEAT" => self.pass_on(wires, line, CommandKind::Features),
            "PASV" | "EPSV" => self.take_passive(wires, line, &command),
            "PORT" => {
                let address = address::port(command.argument);
                self.take_active(wires, address, AddressForm::Classic);
            }
            "EPRT" => {
                let address = address::extended_port(command.argument);
                self.take_active(wires, address, AddressForm::Extended);
            }
            "LPSV" | "LPRT" | "CPSV" | "SPSV" | "SSCN" => {
                self.answer(wires, "502 Not implemented: use EPSV or EPRT.");
            }
            _ => self.pass_on(wires, line, CommandKind::Other),
        }
    }

    fn take_passive(&mut self, wires: &mut ExchangeBuffers, line: &[u8], command: &FtpCommand<'_>) {
        let extended = command.verb == "EPSV";
        let form = if extended { AddressForm::Extended } else { AddressForm::Classic };
        if extended && command.argument.eq_ignore_ascii_case(b"ALL") {
            return self.pass_on(wires, line, CommandKind::Other);
        }
        let client = self.ends.of(self.client());
        let server = self.ends.of(self.server());
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
        self.pass_on(wires, verb, CommandKind::Passive(form));
    }

    fn take_active(
        &mut self,
        wires: &mut ExchangeBuffers,
        address: Result<SocketAddr, Unusable>,
        form: AddressForm,
    ) {
        let client = self.ends.of(self.client());
        let server = self.ends.of(self.server());
        // Some clients leave it to the server to fill in where they are.
        let unsaid = address.ok().filter(|address| address.ip().is_unspecified());
        let filled = unsaid.zip(client).map(|(address, ip)| SocketAddr::new(ip, address.port()));
        match filled.map_or(address, Ok) {
            Err(Unusable::Malformed) => self.answer(wires, "501 That is not an address."),
            Err(Unusable::Protocol) => self.answer(wires, "522 Use IPv4 or IPv6 (1,2)."),
            Ok(_) if client.is_none() || server.is_none() => self.answer(wires, NO_ADDRESS),
            Ok(address) if Some(address.ip().to_canonical()) != client => {
                self.answer(wires, "501 Only this client's own address is allowed.");
            }
            Ok(address) if address.port() < DIALLED_PORT_MIN => {
                self.answer(wires, "501 Ports below 1024 are not allowed.");
            }
            Ok(dial) => {
                let connects = self.server();
                let secure = self.is_secure();
                let request = DataRequest { connects, dial, secure };
                self.data = DataState::Wanted { request, question: CommandKind::Active, form };
            }
        }
    }

    /// Goes on with a data connection; `at` is where its listener is, if there is one.
    fn agree(&mut self, wires: &mut ExchangeBuffers, at: Option<SocketAddr>) {
        let DataState::Asked { question, form } =
            std::mem::replace(&mut self.data, DataState::None)
        else {
            return;
        };
        self.protection.agreed = at.map(|_| self.protection.is_private);
        let canonical = at.map(|at| SocketAddr::new(at.ip().to_canonical(), at.port()));
        match (question, canonical) {
            (CommandKind::Active, Some(at)) => {
                let command = address::port_command(at, form);
                self.pass_on(wires, command.as_bytes(), CommandKind::Active);
            }
            (CommandKind::Passive(AddressForm::Extended), Some(at)) => {
                self.answer(wires, &address::extended_passive_reply(at.port()));
            }
            (_, Some(SocketAddr::V4(at))) => {
                self.answer(wires, &address::passive_reply(*at.ip(), at.port()));
            }
            (_, _) => self.answer(wires, "425 Cannot open a data connection now."),
        }
    }
}

impl ProtocolMachine for FtpControl {
    fn needs_program(&self) -> bool {
        !matches!(self.phase, ControlPhase::Implicit)
    }

    fn step(&mut self, wires: &mut ExchangeBuffers) -> Result<StarttlsStep, StarttlsError> {
        if let ControlPhase::Refused(refusal) = &self.phase {
            return Err(refusal.clone());
        }
        if let ControlPhase::Implicit = self.phase {
            return Ok(StarttlsStep::Secure);
        }
        self.take_input(wires);
        let prepared = match self.phase {
            ControlPhase::Greeting(_) | ControlPhase::Own(..) => self.prepare(wires),
            // The driver has not told yet what became of it.
            ControlPhase::Handshake(_) => Ok(Some(StarttlsStep::Secure)),
            _ => Ok(None),
        };
        let passed = match prepared {
            Ok(Some(step)) => Ok(step),
            Ok(None) => self.pass(wires),
            Err(refusal) => Err(refusal),
        };
        passed.inspect_err(|refusal| self.phase = ControlPhase::Refused(refusal.clone()))
    }

    fn goes_on(&self) -> bool {
        true
    }

    fn secured(&mut self, wires: &mut ExchangeBuffers) {
        let greeting = match std::mem::replace(&mut self.phase, ControlPhase::Open) {
            ControlPhase::Handshake(greeting) => Some(greeting),
            _ => None,
        };
        self.has_tls = true;
        match (self.role, greeting) {
            (StarttlsRole::Client, Some(greeting)) => self.ask_own(wires, &PBSZ, greeting),
            (StarttlsRole::Client, None) => self.phase = ControlPhase::Greeting(Vec::new()),
            (StarttlsRole::Server, Some(_)) => {}
            // Who has TLS from the first byte has it on data connections too.
            (StarttlsRole::Server, None) => {
                self.protection = DataProtection { has_size: true, is_private: true, agreed: None };
            }
        }
    }

    fn unsecured(&mut self, wires: &mut ExchangeBuffers) {
        if self.role == StarttlsRole::Client {
            self.answer(wires, "421 No TLS with the server; see the log of tacit.");
        }
    }

    fn stays(&self) -> bool {
        true
    }

    fn is_over(&self) -> bool {
        self.is_over
    }

    fn uploads(&self) -> UploadFlag {
        self.uploads.clone()
    }

    fn holds(&self, from: StarttlsSide) -> bool {
        let lines = if from == self.client() { &self.commands } else { &self.replies };
        lines.has_line()
    }

    fn set_ends(&mut self, ends: ControlAddresses) {
        self.ends = ends;
    }

    fn listens(&mut self, wires: &mut ExchangeBuffers, at: Option<SocketAddr>) {
        self.agree(wires, at);
    }
}

const NO_ADDRESS: &str = "425 Data connections need IP addresses on both sides.";

/// Whether a command may be taken now: after the reply to the one before, or in a transfer.
fn may_follow(asked: Option<PendingCommand>, verb: &str) -> bool {
    let interrupts = matches!(verb, "ABOR" | "STAT" | "QUIT" | "NOOP");
    asked.is_none_or(|asked| asked.in_transfer && interrupts)
}
