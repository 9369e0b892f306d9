//! tacit asks a server for a program in clear.

use super::words::{STARTTLS, offers_starttls, write_capabilities, write_command};
use crate::starttls::lines::{ReplyReader, ServerReply, take_line, verb};
use crate::starttls::machine::{
    ExchangeBuffers, ProtocolMachine, StarttlsError, StarttlsStep, shown,
};
use crate::starttls::side::StarttlsSide;

/// The client role.
#[derive(Debug, Default)]
pub(crate) struct SmtpClient {
    waits_for: WaitsFor,
    replies: ReplyReader,
    /// How the program greeted: the whole line.
    hello: Vec<u8>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum WaitsFor {
    /// The server's first word.
    #[default]
    Greeting,
    /// The program's EHLO or HELO.
    Hello,
    /// What the server can do.
    Capabilities,
    /// The server's answer to STARTTLS.
    GoAhead,
    /// The handshake.
    Handshake,
    /// The server's answer to the greeting under TLS.
    Welcome,
}

impl SmtpClient {
    /// `true`: it was the last that there is to look at.
    fn take_reply(
        &mut self,
        wires: &mut ExchangeBuffers,
        reply: &ServerReply,
    ) -> Result<bool, StarttlsError> {
        match self.waits_for {
            WaitsFor::Greeting if reply.code == 220 => {
                reply.write(&mut wires.program.output);
                self.waits_for = WaitsFor::Hello;
            }
            // Good-bye, before or after anything was said.
            WaitsFor::Greeting | WaitsFor::Hello if reply.code >= 400 => {
                reply.write(&mut wires.program.output);
                return Err(not_offered("it says", reply));
            }
            WaitsFor::Greeting | WaitsFor::Hello | WaitsFor::Handshake => {
                return Err(StarttlsError::Garbled(StarttlsSide::Peer, "a reply to nothing"));
            }
            WaitsFor::Capabilities if reply.code == 250 && offers_starttls(reply) => {
                wires.peer.say("STARTTLS\r\n");
                self.waits_for = WaitsFor::GoAhead;
            }
            WaitsFor::Capabilities => return Err(give_up(wires, "no STARTTLS in", reply)),
            WaitsFor::GoAhead if reply.code == 220 && wires.peer.input.is_empty() => {
                self.waits_for = WaitsFor::Handshake;
            }
            WaitsFor::GoAhead if reply.code == 220 => {
                return Err(StarttlsError::Stuffed(StarttlsSide::Peer));
            }
            WaitsFor::GoAhead => return Err(give_up(wires, "to STARTTLS it says", reply)),
            WaitsFor::Welcome => {
                let out = &mut wires.program.output;
                match reply.code {
                    250 => write_capabilities(reply, |word| word != STARTTLS, "", out),
                    _ => reply.write(out),
                }
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// What a program may say before it has said who it is, which nobody but tacit hears.
    fn take_command(
        &mut self,
        wires: &mut ExchangeBuffers,
        line: Vec<u8>,
    ) -> Result<(), StarttlsError> {
        let program = &mut wires.program;
        match verb(&line).as_str() {
            // STARTTLS belongs to ESMTP: a program that knows HELO alone does not hear of it.
            "EHLO" | "HELO" => self.greet(wires, "EHLO", line),
            "LHLO" => self.greet(wires, "LHLO", line),
            "NOOP" | "RSET" => program.say("250 2.0.0 OK\r\n"),
            "QUIT" => {
                program.say("221 2.0.0 Bye\r\n");
                wires.peer.say("QUIT\r\n");
                return Err(StarttlsError::Ended(StarttlsSide::Program));
            }
            _ => program.say("503 5.5.1 Send EHLO first\r\n"),
        }
        Ok(())
    }

    fn greet(&mut self, wires: &mut ExchangeBuffers, verb: &str, line: Vec<u8>) {
        write_command(verb, &line, &mut wires.peer.output);
        self.hello = line;
        self.waits_for = WaitsFor::Capabilities;
    }
}

/// The program hears that its connection cannot be, before it has sent anything that matters.
fn give_up(wires: &mut ExchangeBuffers, what: &str, reply: &ServerReply) -> StarttlsError {
    wires.program.say(
        "421 4.7.0 tacit: the server does not offer TLS, which the policy \
                       requires\r\n",
    );
    wires.peer.say("QUIT\r\n");
    not_offered(what, reply)
}

fn not_offered(what: &str, reply: &ServerReply) -> StarttlsError {
    let line = reply.lines.first().map(|line| shown(line)).unwrap_or_default();
    StarttlsError::NotOffered(format!("{what} `{line}`"))
}

impl ProtocolMachine for SmtpClient {
    fn step(&mut self, wires: &mut ExchangeBuffers) -> Result<StarttlsStep, StarttlsError> {
        loop {
            if self.waits_for == WaitsFor::Handshake {
                return Ok(StarttlsStep::Secure);
            }
            if let Some(reply) = self.replies.take(&mut wires.peer.input, StarttlsSide::Peer)? {
                if self.take_reply(wires, &reply)? {
                    return Ok(StarttlsStep::Relay);
                }
                continue;
            }
            if self.waits_for != WaitsFor::Hello || !self.replies.is_empty() || wires.stall() {
                return Ok(StarttlsStep::Wait);
            }
            let Some(line) = take_line(&mut wires.program.input, StarttlsSide::Program)? else {
                return Ok(StarttlsStep::Wait);
            };
            self.take_command(wires, line)?;
        }
    }

    fn goes_on(&self) -> bool {
        true
    }

    fn secured(&mut self, wires: &mut ExchangeBuffers) {
        // RFC 3207 section 4.2: what the server said in clear is forgotten.
        let hello = std::mem::take(&mut self.hello);
        write_command(&verb(&hello), &hello, &mut wires.peer.output);
        self.waits_for = WaitsFor::Welcome;
    }

    fn unsecured(&mut self, wires: &mut ExchangeBuffers) {
        let why = "421 4.7.0 tacit: no TLS with the server, which the policy requires\r\n";
        wires.program.say(why);
    }

    fn outlasts(&self, ended: StarttlsSide) -> bool {
        ended == StarttlsSide::Program
    }
}
