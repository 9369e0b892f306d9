//! Handles the commands and replies of an FTP control connection, one at a time.

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

/// The smallest port that is dialled for a client (RFC 2577 section 3).
const DIALLED_PORT_MIN: u16 = 1024;

impl FtpControl {
    /// Splits input into lines, as long as there is room.
    fn take_input(&mut self, buffers: &mut ExchangeBuffers) {
        for side in [StarttlsSide::Peer, StarttlsSide::Program] {
            let lines = if side == self.client() { &mut self.commands } else { &mut self.replies };
            if !lines.is_full() {
                lines.push(&std::mem::take(&mut buffers.end_mut(side).input));
            }
        }
    }

    /// Forwards commands and replies until it has to wait.
    fn pass(&mut self, buffers: &mut ExchangeBuffers) -> Result<StarttlsStep, StarttlsError> {
        loop {
            match self.data {
                DataState::Requested { request, question, form } => {
                    self.data = DataState::Pending { question, form };
                    return Ok(StarttlsStep::Listen(request));
                }
                DataState::Pending { .. } => return Ok(StarttlsStep::Wait),
                DataState::None => {}
            }
            match self.phase {
                ControlPhase::Handshake(_) => return Ok(StarttlsStep::Handshake),
                ControlPhase::ContinuingInClear => {
                    self.phase = ControlPhase::Open;
                    return Ok(StarttlsStep::ContinueInClear);
                }
                _ => {}
            }
            let too_long = |side| move |_| StarttlsError::TooLong(side, "a line");
            if let Some(line) = self.replies.pop().map_err(too_long(self.server()))? {
                self.take_reply(buffers, &line);
                continue;
            }
            let client = self.client();
            let requested = self.pending;
            let next = self.commands.peek().map_err(too_long(client))?;
            let may_go = next.is_some_and(|line| may_follow(requested, &lines::verb(line)));
            if !may_go || buffers.check_stalled() {
                return Ok(StarttlsStep::Wait);
            }
            if let Some(line) = self.commands.pop().map_err(too_long(client))? {
                self.take_command(buffers, &line);
            }
        }
    }

    fn take_command(&mut self, buffers: &mut ExchangeBuffers, line: &[u8]) {
        let command = FtpCommand::of(line);
        if line.contains(&b'\r') || line.contains(&0) {
            return self.reply(buffers, "500 A command must be a single line.");
        }
        let taken = match self.role {
            StarttlsRole::Server => self.take_as_server(buffers, &command),
            StarttlsRole::Client => self.take_as_client(buffers, &command),
        };
        if taken {
            return;
        }
        match command.verb.as_str() {
            "FEAT" => self.forward(buffers, line, CommandKind::Features),
            "PASV" | "EPSV" => self.take_passive(buffers, line, &command),
            "PORT" => {
                let address = address::port(command.argument);
                self.take_active(buffers, address, AddressForm::Classic);
            }
            "EPRT" => {
                let address = address::extended_port(command.argument);
                self.take_active(buffers, address, AddressForm::Extended);
            }
            "LPSV" | "LPRT" | "CPSV" | "SPSV" | "SSCN" => {
                self.reply(buffers, "502 Not implemented: use EPSV or EPRT.");
            }
            _ => self.forward(buffers, line, CommandKind::Other),
        }
    }

    fn take_passive(
        &mut self,
        buffers: &mut ExchangeBuffers,
        line: &[u8],
        command: &FtpCommand<'_>,
    ) {
        let extended = command.verb == "EPSV";
        let form = if extended { AddressForm::Extended } else { AddressForm::Classic };
        if extended && command.argument.eq_ignore_ascii_case(b"ALL") {
            return self.forward(buffers, line, CommandKind::Other);
        }
        let client = self.ends.of(self.client());
        let server = self.ends.of(self.server());
        let (Some(client), Some(server)) = (client, server) else {
            return self.reply(buffers, NO_ADDRESS);
        };
        let family = if client.is_ipv4() { b"1" } else { b"2" };
        if extended && !command.argument.is_empty() && command.argument != family {
            let text = format!(
                "522 Use the address family of the control connection ({family}).",
                family = char::from(family[0])
            );
            return self.reply(buffers, &text);
        }
        if !extended && client.is_ipv6() {
            return self.reply(buffers, "425 PASV is for IPv4: use EPSV.");
        }
        // The command depends on the address family of the server, and the reply on that of the
        // client.
        let verb: &[u8] = if extended || server.is_ipv6() { b"EPSV" } else { b"PASV" };
        self.forward(buffers, verb, CommandKind::Passive(form));
    }

    fn take_active(
        &mut self,
        buffers: &mut ExchangeBuffers,
        address: Result<SocketAddr, Unusable>,
        form: AddressForm,
    ) {
        let client = self.ends.of(self.client());
        let server = self.ends.of(self.server());
        // Some clients send an unspecified address, which the server fills in.
        let unsaid = address.ok().filter(|address| address.ip().is_unspecified());
        let filled = unsaid.zip(client).map(|(address, ip)| SocketAddr::new(ip, address.port()));
        match filled.map_or(address, Ok) {
            Err(Unusable::Malformed) => self.reply(buffers, "501 The argument is not an address."),
            Err(Unusable::Protocol) => self.reply(buffers, "522 Use IPv4 or IPv6 (1,2)."),
            Ok(_) if client.is_none() || server.is_none() => self.reply(buffers, NO_ADDRESS),
            Ok(address) if Some(address.ip().to_canonical()) != client => {
                self.reply(buffers, "501 Only this client's own address is allowed.");
            }
            Ok(address) if address.port() < DIALLED_PORT_MIN => {
                self.reply(buffers, "501 Ports below 1024 are not allowed.");
            }
            Ok(dial) => {
                let connects = self.server();
                let secure = self.is_secure();
                let request = DataRequest { connects, dial, secure };
                self.data = DataState::Requested { request, question: CommandKind::Active, form };
            }
        }
    }

    /// Continues a data connection; `at` is the address of its listener, if there is one.
    fn agree(&mut self, buffers: &mut ExchangeBuffers, at: Option<SocketAddr>) {
        let DataState::Pending { question, form } =
            std::mem::replace(&mut self.data, DataState::None)
        else {
            return;
        };
        self.protection.agreed = at.map(|_| self.protection.is_private);
        let canonical = at.map(|at| SocketAddr::new(at.ip().to_canonical(), at.port()));
        match (question, canonical) {
            (CommandKind::Active, Some(at)) => {
                let command = address::port_command(at, form);
                self.forward(buffers, command.as_bytes(), CommandKind::Active);
            }
            (CommandKind::Passive(AddressForm::Extended), Some(at)) => {
                self.reply(buffers, &address::extended_passive_reply(at.port()));
            }
            (_, Some(SocketAddr::V4(at))) => {
                self.reply(buffers, &address::passive_reply(*at.ip(), at.port()));
            }
            (_, _) => self.reply(buffers, "425 Cannot open a data connection now."),
        }
    }
}

impl ProtocolMachine for FtpControl {
    fn needs_program(&self) -> bool {
        !matches!(self.phase, ControlPhase::Implicit)
    }

    fn next_step(&mut self, buffers: &mut ExchangeBuffers) -> Result<StarttlsStep, StarttlsError> {
        if let ControlPhase::Refused(refusal) = &self.phase {
            return Err(refusal.clone());
        }
        if let ControlPhase::Implicit = self.phase {
            return Ok(StarttlsStep::Handshake);
        }
        self.take_input(buffers);
        let prepared = match self.phase {
            ControlPhase::Greeting(_) | ControlPhase::Own(..) => self.prepare(buffers),
            // The driver has not reported the result yet.
            ControlPhase::Handshake(_) => Ok(Some(StarttlsStep::Handshake)),
            _ => Ok(None),
        };
        let passed = match prepared {
            Ok(Some(step)) => Ok(step),
            Ok(None) => self.pass(buffers),
            Err(refusal) => Err(refusal),
        };
        passed.inspect_err(|refusal| self.phase = ControlPhase::Refused(refusal.clone()))
    }

    fn continues_under_tls(&self) -> bool {
        true
    }

    fn handshake_succeeded(&mut self, buffers: &mut ExchangeBuffers) {
        let greeting = match std::mem::replace(&mut self.phase, ControlPhase::Open) {
            ControlPhase::Handshake(greeting) => Some(greeting),
            _ => None,
        };
        self.has_tls = true;
        match (self.role, greeting) {
            (StarttlsRole::Client, Some(greeting)) => {
                self.send_own_command(buffers, &PBSZ, greeting)
            }
            (StarttlsRole::Client, None) => self.phase = ControlPhase::Greeting(Vec::new()),
            (StarttlsRole::Server, Some(_)) => {}
            // With TLS from the first byte, data connections have TLS too.
            (StarttlsRole::Server, None) => {
                self.protection = DataProtection { has_size: true, is_private: true, agreed: None };
            }
        }
    }

    fn handshake_failed(&mut self, buffers: &mut ExchangeBuffers) {
        if self.role == StarttlsRole::Client {
            self.reply(buffers, "421 TLS with the server failed; see the log of tacit.");
        }
    }

    fn is_persistent(&self) -> bool {
        true
    }

    fn has_closed_orderly(&self) -> bool {
        self.is_over
    }

    fn upload_flag(&self) -> UploadFlag {
        self.uploads.clone()
    }

    fn has_pending_line(&self, from: StarttlsSide) -> bool {
        let lines = if from == self.client() { &self.commands } else { &self.replies };
        lines.has_line()
    }

    fn set_addresses(&mut self, ends: ControlAddresses) {
        self.ends = ends;
    }

    fn set_data_listener(&mut self, buffers: &mut ExchangeBuffers, at: Option<SocketAddr>) {
        self.agree(buffers, at);
    }
}

const NO_ADDRESS: &str = "425 Data connections need IP addresses for client and server.";

/// Whether a command may be handled now: after the reply to the previous command, or during a
/// transfer.
fn may_follow(requested: Option<PendingCommand>, verb: &str) -> bool {
    let interrupts = matches!(verb, "ABOR" | "STAT" | "QUIT" | "NOOP");
    requested.is_none_or(|requested| requested.in_transfer && interrupts)
}
