//! Implements STARTTLS for SMTP servers that do not support TLS: tacit offers STARTTLS to the
//! clients.

use super::words::{AUTH, STARTTLS, write_capabilities, write_command};
use crate::policy::StarttlsMode;
use crate::starttls::lines::{ReplyReader, ServerReply, argument, take_line, verb};
use crate::starttls::machine::{ExchangeBuffers, ProtocolMachine, StarttlsError, StarttlsStep};
use crate::starttls::side::StarttlsSide;

/// The server role.
#[derive(Debug)]
pub(crate) struct SmtpServer {
    mode: StarttlsMode,
    waits_for: WaitsFor,
    replies: ReplyReader,
    /// Whether the client has sent EHLO under TLS.
    is_greeted: bool,
    /// Whether the client has sent QUIT.
    has_quit: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WaitsFor {
    /// The server's greeting.
    Greeting,
    /// The greeting of the second connection, after TLS, which is not forwarded.
    SecondGreeting,
    /// The client's next command.
    Command,
    /// The server's reply to the last command.
    Reply,
    /// The server's reply to EHLO, with its capabilities.
    Capabilities,
}

impl SmtpServer {
    pub(crate) fn new(mode: StarttlsMode) -> Self {
        let waits_for = WaitsFor::Greeting;
        let replies = ReplyReader::default();
        Self { mode, waits_for, replies, is_greeted: false, has_quit: false }
    }

    /// RFC 3207 section 4: 530 to all but a few commands if TLS is required.
    fn command_in_clear(&mut self, buffers: &mut ExchangeBuffers, line: &[u8]) -> StarttlsStep {
        let verb = verb(line);
        let peer = &mut buffers.peer;
        match verb.as_str() {
            "EHLO" | "LHLO" => self.pass(buffers, &verb, line, WaitsFor::Capabilities),
            "HELO" | "NOOP" | "RSET" | "QUIT" | "HELP" => {
                self.pass(buffers, &verb, line, WaitsFor::Reply);
            }
            STARTTLS if !argument(line).is_empty() => {
                peer.send("501 5.5.4 STARTTLS takes no argument\r\n");
            }
            STARTTLS => {
                // Commands after STARTTLS that were received in clear are not executed under TLS.
                peer.input.clear();
                peer.send("220 2.0.0 Go ahead with TLS\r\n");
                buffers.program.send("QUIT\r\n");
                return StarttlsStep::Handshake;
            }
            AUTH => peer.send("538 5.7.11 Encryption required: send STARTTLS first\r\n"),
            _ if self.mode == StarttlsMode::Optional => {
                buffers.program.send(line);
                buffers.program.send("\r\n");
                return StarttlsStep::Relay;
            }
            _ => peer.send("530 5.7.0 Must issue a STARTTLS command first\r\n"),
        }
        StarttlsStep::Wait
    }

    fn command_under_tls(&mut self, buffers: &mut ExchangeBuffers, line: &[u8]) -> StarttlsStep {
        let verb = verb(line);
        match verb.as_str() {
            "EHLO" | "LHLO" => {
                self.is_greeted = true;
                self.pass(buffers, &verb, line, WaitsFor::Capabilities);
            }
            "HELO" | "NOOP" | "RSET" | "QUIT" | "HELP" | "VRFY" => {
                self.is_greeted |= verb == "HELO";
                self.pass(buffers, &verb, line, WaitsFor::Reply);
            }
            STARTTLS => buffers.peer.send("503 5.5.1 TLS already active\r\n"),
            // RFC 3207 section 4.2: commands in clear are discarded, including EHLO.
            _ if !self.is_greeted => buffers.peer.send("503 5.5.1 Send EHLO first\r\n"),
            _ => {
                buffers.program.send(line);
                buffers.program.send("\r\n");
                return StarttlsStep::Relay;
            }
        }
        StarttlsStep::Wait
    }

    fn pass(
        &mut self,
        buffers: &mut ExchangeBuffers,
        verb: &str,
        line: &[u8],
        waits_for: WaitsFor,
    ) {
        write_command(verb, line, &mut buffers.program.output);
        self.waits_for = waits_for;
        self.has_quit = verb == "QUIT";
    }
}

fn pass_capabilities(buffers: &mut ExchangeBuffers, reply: &ServerReply) {
    let out = &mut buffers.peer.output;
    match buffers.is_secure {
        // RFC 3207 section 4.2: STARTTLS is not offered again. AUTH is only offered under TLS.
        true => write_capabilities(reply, |word| word != STARTTLS, "", out),
        false => {
            let keep = |word: &str| word != STARTTLS && word != AUTH;
            write_capabilities(reply, keep, STARTTLS, out);
        }
    }
}

impl ProtocolMachine for SmtpServer {
    // RFC 3207 section 4.2: a server discards its state about the client. The server behind tacit
    // does not do this, and some servers reject a second EHLO.
    fn needs_new_program_connection(&self) -> bool {
        true
    }

    fn next_step(&mut self, buffers: &mut ExchangeBuffers) -> Result<StarttlsStep, StarttlsError> {
        loop {
            // A server may send 421 at any time.
            if let Some(reply) =
                self.replies.take(&mut buffers.program.input, StarttlsSide::Program)?
            {
                match (self.waits_for, reply.code) {
                    (WaitsFor::SecondGreeting, 220) => {}
                    (WaitsFor::Capabilities, 250) => pass_capabilities(buffers, &reply),
                    _ => reply.write(&mut buffers.peer.output),
                }
                if self.has_quit && !buffers.is_secure {
                    return Err(StarttlsError::Closed(StarttlsSide::Peer));
                }
                self.waits_for = WaitsFor::Command;
                continue;
            }
            if self.waits_for != WaitsFor::Command
                || !self.replies.is_empty()
                || buffers.check_stalled()
            {
                return Ok(StarttlsStep::Wait);
            }
            let Some(line) = take_line(&mut buffers.peer.input, StarttlsSide::Peer)? else {
                return Ok(StarttlsStep::Wait);
            };
            let step = match buffers.is_secure {
                false => self.command_in_clear(buffers, &line),
                true => self.command_under_tls(buffers, &line),
            };
            if step != StarttlsStep::Wait {
                return Ok(step);
            }
        }
    }

    fn continues_under_tls(&self) -> bool {
        true
    }

    fn handshake_succeeded(&mut self, _: &mut ExchangeBuffers) {
        self.waits_for = WaitsFor::SecondGreeting;
        self.replies = ReplyReader::default();
    }

    // The last commands still get their replies.
    fn continues_after_eof(&self, ended: StarttlsSide) -> bool {
        ended == StarttlsSide::Peer
            && (self.waits_for != WaitsFor::Command || !self.replies.is_empty())
    }
}
