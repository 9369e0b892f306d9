//! tacit answers clients for a server in clear.

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
    /// The client said who it is, under TLS.
    is_greeted: bool,
    /// The client said good-bye.
    is_leaving: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WaitsFor {
    /// The server's first word.
    Greeting,
    /// The same on the connection under TLS, whose client was greeted before.
    SecondGreeting,
    /// The client's next command.
    Command,
    /// The server's answer to the last one.
    Reply,
    /// The same, which lists what the server can do.
    Capabilities,
}

impl SmtpServer {
    pub(crate) fn new(mode: StarttlsMode) -> Self {
        let waits_for = WaitsFor::Greeting;
        let replies = ReplyReader::default();
        Self { mode, waits_for, replies, is_greeted: false, is_leaving: false }
    }

    /// RFC 3207 section 4: 530 to all but a few commands where TLS is required.
    fn command_in_clear(&mut self, wires: &mut ExchangeBuffers, line: &[u8]) -> StarttlsStep {
        let verb = verb(line);
        let peer = &mut wires.peer;
        match verb.as_str() {
            "EHLO" | "LHLO" => self.pass(wires, &verb, line, WaitsFor::Capabilities),
            "HELO" | "NOOP" | "RSET" | "QUIT" | "HELP" => {
                self.pass(wires, &verb, line, WaitsFor::Reply);
            }
            STARTTLS if !argument(line).is_empty() => {
                peer.say("501 5.5.4 STARTTLS takes no argument\r\n");
            }
            STARTTLS => {
                // Commands behind it came in clear and are not executed under TLS.
                peer.input.clear();
                peer.say("220 2.0.0 Go ahead with TLS\r\n");
                wires.program.say("QUIT\r\n");
                return StarttlsStep::Secure;
            }
            AUTH => peer.say("538 5.7.11 Encryption required: send STARTTLS first\r\n"),
            _ if self.mode == StarttlsMode::Optional => {
                wires.program.say(line);
                wires.program.say("\r\n");
                return StarttlsStep::Relay;
            }
            _ => peer.say("530 5.7.0 Must issue a STARTTLS command first\r\n"),
        }
        StarttlsStep::Wait
    }

    fn command_under_tls(&mut self, wires: &mut ExchangeBuffers, line: &[u8]) -> StarttlsStep {
        let verb = verb(line);
        match verb.as_str() {
            "EHLO" | "LHLO" => {
                self.is_greeted = true;
                self.pass(wires, &verb, line, WaitsFor::Capabilities);
            }
            "HELO" | "NOOP" | "RSET" | "QUIT" | "HELP" | "VRFY" => {
                self.is_greeted |= verb == "HELO";
                self.pass(wires, &verb, line, WaitsFor::Reply);
            }
            STARTTLS => wires.peer.say("503 5.5.1 TLS already active\r\n"),
            // RFC 3207 section 4.2: what the client said in clear is forgotten, its name too.
            _ if !self.is_greeted => wires.peer.say("503 5.5.1 Send EHLO first\r\n"),
            _ => {
                wires.program.say(line);
                wires.program.say("\r\n");
                return StarttlsStep::Relay;
            }
        }
        StarttlsStep::Wait
    }

    fn pass(&mut self, wires: &mut ExchangeBuffers, verb: &str, line: &[u8], waits_for: WaitsFor) {
        write_command(verb, line, &mut wires.program.output);
        self.waits_for = waits_for;
        self.is_leaving = verb == "QUIT";
    }
}

fn pass_capabilities(wires: &mut ExchangeBuffers, reply: &ServerReply) {
    let out = &mut wires.peer.output;
    match wires.is_secure {
        // RFC 3207 section 4.2: not offered again. Passwords only where nobody listens.
        true => write_capabilities(reply, |word| word != STARTTLS, "", out),
        false => {
            let keep = |word: &str| word != STARTTLS && word != AUTH;
            write_capabilities(reply, keep, STARTTLS, out);
        }
    }
}

impl ProtocolMachine for SmtpServer {
    // RFC 3207 section 4.2: a server forgets what it knows of the client. One in clear has no
    // reason to, and some take a second EHLO for a mistake.
    fn needs_fresh_program(&self) -> bool {
        true
    }

    fn step(&mut self, wires: &mut ExchangeBuffers) -> Result<StarttlsStep, StarttlsError> {
        loop {
            // A server may say good-bye (421) whenever it likes.
            if let Some(reply) =
                self.replies.take(&mut wires.program.input, StarttlsSide::Program)?
            {
                match (self.waits_for, reply.code) {
                    (WaitsFor::SecondGreeting, 220) => {}
                    (WaitsFor::Capabilities, 250) => pass_capabilities(wires, &reply),
                    _ => reply.write(&mut wires.peer.output),
                }
                if self.is_leaving && !wires.is_secure {
                    return Err(StarttlsError::Ended(StarttlsSide::Peer));
                }
                self.waits_for = WaitsFor::Command;
                continue;
            }
            if self.waits_for != WaitsFor::Command || !self.replies.is_empty() || wires.stall() {
                return Ok(StarttlsStep::Wait);
            }
            let Some(line) = take_line(&mut wires.peer.input, StarttlsSide::Peer)? else {
                return Ok(StarttlsStep::Wait);
            };
            let step = match wires.is_secure {
                false => self.command_in_clear(wires, &line),
                true => self.command_under_tls(wires, &line),
            };
            if step != StarttlsStep::Wait {
                return Ok(step);
            }
        }
    }

    fn goes_on(&self) -> bool {
        true
    }

    fn secured(&mut self, _: &mut ExchangeBuffers) {
        self.waits_for = WaitsFor::SecondGreeting;
        self.replies = ReplyReader::default();
    }

    // Its last commands are answered one after the other too.
    fn outlasts(&self, ended: StarttlsSide) -> bool {
        ended == StarttlsSide::Peer
            && (self.waits_for != WaitsFor::Command || !self.replies.is_empty())
    }
}
