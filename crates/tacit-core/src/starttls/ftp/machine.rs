//! The steps of a control connection: commands and replies, one at a time.

use std::net::SocketAddr;

use super::address::{self, Unusable};
use super::control::{AddressForm, Asked, Command, Data, Ftp, PBSZ, Phase, Protection, Question};
use crate::starttls::data::{DataRequest, Ends, Uploads};
use crate::starttls::lines;
use crate::starttls::machine::{Machine, Refusal, Step, Wires};
use crate::starttls::side::{Role, Side};

/// Ports below are not dialled for a client that names one (RFC 2577 section 3).
const DIALLED_PORT_MIN: u16 = 1024;

impl Ftp {
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
                Data::Wanted { request, question, form } => {
                    self.data = Data::Asked { question, form };
                    return Ok(Step::Listen(request));
                }
                Data::Asked { .. } => return Ok(Step::Wait),
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
            let client = self.client();
            let asked = self.asked;
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
            _ => self.pass_on(wires, line, Question::Other),
        }
    }

    fn take_passive(&mut self, wires: &mut Wires, line: &[u8], command: &Command<'_>) {
        let extended = command.verb == "EPSV";
        let form = if extended { AddressForm::Extended } else { AddressForm::Classic };
        if extended && command.argument.eq_ignore_ascii_case(b"ALL") {
            return self.pass_on(wires, line, Question::Other);
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
        self.pass_on(wires, verb, Question::Passive(form));
    }

    fn take_active(
        &mut self,
        wires: &mut Wires,
        address: Result<SocketAddr, Unusable>,
        form: AddressForm,
    ) {
        let client = self.ends.of(self.client());
        let server = self.ends.of(self.server());
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
                let connects = self.server();
                let secure = self.is_secure();
                let request = DataRequest { connects, dial, secure };
                self.data = Data::Wanted { request, question: Question::Active, form };
            }
        }
    }

    /// Goes on with a data connection; `at` is where its listener is, if there is one.
    fn agree(&mut self, wires: &mut Wires, at: Option<SocketAddr>) {
        let Data::Asked { question, form } = std::mem::replace(&mut self.data, Data::None) else {
            return;
        };
        self.protection.agreed = at.map(|_| self.protection.is_private);
        let canonical = at.map(|at| SocketAddr::new(at.ip().to_canonical(), at.port()));
        match (question, canonical) {
            (Question::Active, Some(at)) => {
                let command = address::port_command(at, form);
                self.pass_on(wires, command.as_bytes(), Question::Active);
            }
            (Question::Passive(AddressForm::Extended), Some(at)) => {
                self.answer(wires, &address::extended_passive_reply(at.port()));
            }
            (_, Some(SocketAddr::V4(at))) => {
                self.answer(wires, &address::passive_reply(*at.ip(), at.port()));
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
        let prepared = match self.phase {
            Phase::Greeting(_) | Phase::Own(..) => self.prepare(wires),
            // The driver has not told yet what became of it.
            Phase::Handshake(_) => Ok(Some(Step::Secure)),
            _ => Ok(None),
        };
        let passed = match prepared {
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

/// Whether a command may be taken now: after the reply to the one before, or in a transfer.
fn may_follow(asked: Option<Asked>, verb: &str) -> bool {
    let interrupts = matches!(verb, "ABOR" | "STAT" | "QUIT" | "NOOP");
    asked.is_none_or(|asked| asked.in_transfer && interrupts)
}
