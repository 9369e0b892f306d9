//! Implements STARTTLS for SMTP clients that do not support TLS: tacit requests STARTTLS from the
//! server.

use super::words::{STARTTLS, offers_starttls, write_capabilities, write_command};
use crate::starttls::lines::{ReplyReader, ServerReply, take_line, verb};
use crate::starttls::machine::{
    ExchangeBuffers, ProtocolMachine, StarttlsError, StarttlsStep, shown,
};
use crate::starttls::side::StarttlsSide;

/// SMTP STARTTLS in the client role.
#[derive(Debug, Default)]
pub(crate) struct SmtpClient {
    waits_for: WaitsFor,
    replies: ReplyReader,
    /// The program's EHLO or HELO line.
    hello: Vec<u8>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum WaitsFor {
    /// The server's greeting.
    #[default]
    Greeting,
    /// The program's EHLO or HELO command.
    Hello,
    /// The server's reply to EHLO, with its capabilities.
    Capabilities,
    /// The server's reply to STARTTLS.
    GoAhead,
    /// The end of the TLS handshake.
    Handshake,
    /// The server's reply to EHLO under TLS.
    Welcome,
}

impl SmtpClient {
    /// Handles a reply of the server. Returns `true` if no later reply must be parsed.
    fn take_reply(
        &mut self,
        buffers: &mut ExchangeBuffers,
        reply: &ServerReply,
    ) -> Result<bool, StarttlsError> {
        match self.waits_for {
            WaitsFor::Greeting if reply.code == 220 => {
                reply.write(&mut buffers.program.output);
                self.waits_for = WaitsFor::Hello;
            }
            // The server closes with an error.
            WaitsFor::Greeting | WaitsFor::Hello if reply.code >= 400 => {
                reply.write(&mut buffers.program.output);
                return Err(not_offered("the server replied", reply));
            }
            WaitsFor::Greeting | WaitsFor::Hello | WaitsFor::Handshake => {
                return Err(StarttlsError::ProtocolViolation(
                    StarttlsSide::Peer,
                    "the server sent a reply that tacit did not request",
                ));
            }
            WaitsFor::Capabilities if reply.code == 250 && offers_starttls(reply) => {
                buffers.peer.send("STARTTLS\r\n");
                self.waits_for = WaitsFor::GoAhead;
            }
            WaitsFor::Capabilities => {
                return Err(reject_without_tls(
                    buffers,
                    "the server's reply to EHLO has no STARTTLS:",
                    reply,
                ));
            }
            WaitsFor::GoAhead if reply.code == 220 && buffers.peer.input.is_empty() => {
                self.waits_for = WaitsFor::Handshake;
            }
            WaitsFor::GoAhead if reply.code == 220 => {
                return Err(StarttlsError::ExtraData(StarttlsSide::Peer));
            }
            WaitsFor::GoAhead => {
                return Err(reject_without_tls(
                    buffers,
                    "the server's reply to STARTTLS is not 220:",
                    reply,
                ));
            }
            WaitsFor::Welcome => {
                let out = &mut buffers.program.output;
                match reply.code {
                    250 => write_capabilities(reply, |word| word != STARTTLS, "", out),
                    _ => reply.write(out),
                }
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Handles the program's EHLO, HELO or LHLO, and answers other commands that precede it.
    fn take_command(
        &mut self,
        buffers: &mut ExchangeBuffers,
        line: Vec<u8>,
    ) -> Result<(), StarttlsError> {
        let program = &mut buffers.program;
        match verb(&line).as_str() {
            // STARTTLS needs EHLO, even if the program sends HELO.
            "EHLO" | "HELO" => self.greet(buffers, "EHLO", line),
            "LHLO" => self.greet(buffers, "LHLO", line),
            "NOOP" | "RSET" => program.send("250 2.0.0 OK\r\n"),
            "QUIT" => {
                program.send("221 2.0.0 Bye\r\n");
                buffers.peer.send("QUIT\r\n");
                return Err(StarttlsError::Closed(StarttlsSide::Program));
            }
            _ => program.send("503 5.5.1 Send EHLO first\r\n"),
        }
        Ok(())
    }

    fn greet(&mut self, buffers: &mut ExchangeBuffers, verb: &str, line: Vec<u8>) {
        write_command(verb, &line, &mut buffers.peer.output);
        self.hello = line;
        self.waits_for = WaitsFor::Capabilities;
    }
}

/// Rejects the connection of the program, which has not sent mail or credentials yet.
fn reject_without_tls(
    buffers: &mut ExchangeBuffers,
    what: &str,
    reply: &ServerReply,
) -> StarttlsError {
    buffers
        .program
        .send("421 4.7.0 tacit: the server does not offer TLS, which the policy requires\r\n");
    buffers.peer.send("QUIT\r\n");
    not_offered(what, reply)
}

fn not_offered(what: &str, reply: &ServerReply) -> StarttlsError {
    let line = reply.lines.first().map(|line| shown(line)).unwrap_or_default();
    StarttlsError::NotOffered(format!("{what} `{line}`"))
}

impl ProtocolMachine for SmtpClient {
    fn next_step(&mut self, buffers: &mut ExchangeBuffers) -> Result<StarttlsStep, StarttlsError> {
        loop {
            if self.waits_for == WaitsFor::Handshake {
                return Ok(StarttlsStep::Handshake);
            }
            if let Some(reply) = self.replies.take(&mut buffers.peer.input, StarttlsSide::Peer)? {
                if self.take_reply(buffers, &reply)? {
                    return Ok(StarttlsStep::Relay);
                }
                continue;
            }
            if self.waits_for != WaitsFor::Hello
                || !self.replies.is_empty()
                || buffers.check_stalled()
            {
                return Ok(StarttlsStep::Wait);
            }
            let Some(line) = take_line(&mut buffers.program.input, StarttlsSide::Program)? else {
                return Ok(StarttlsStep::Wait);
            };
            self.take_command(buffers, line)?;
        }
    }

    fn continues_under_tls(&self) -> bool {
        true
    }

    fn handshake_succeeded(&mut self, buffers: &mut ExchangeBuffers) {
        // RFC 3207 section 4.2: what was learned from replies in clear is discarded.
        let hello = std::mem::take(&mut self.hello);
        write_command(&verb(&hello), &hello, &mut buffers.peer.output);
        self.waits_for = WaitsFor::Welcome;
    }

    fn handshake_failed(&mut self, buffers: &mut ExchangeBuffers) {
        let why = "421 4.7.0 tacit: TLS with the server failed, and the policy requires TLS\r\n";
        buffers.program.send(why);
    }

    fn continues_after_eof(&self, ended: StarttlsSide) -> bool {
        ended == StarttlsSide::Program
    }
}
