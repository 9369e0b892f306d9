//! The client role: what tacit says to a server before its program may say anything (RFC 4217).

use super::control::{AUTH, Command, Ftp, Own, PBSZ, PROT, Phase};
use super::reply::Part;
use crate::starttls::machine::{Refusal, Step, Wires, shown};
use crate::starttls::side::Side;

/// What a server may say before anybody has asked it anything.
pub const GREETING_BYTES_MAX: usize = 16 * 1024;

impl Ftp {
    /// Goes on until the program may speak: greeting, AUTH, the handshake, PBSZ, PROT. `None`: it
    /// may.
    pub(super) fn prepare(&mut self, wires: &mut Wires) -> Result<Option<Step>, Refusal> {
        let too_long = |_| Refusal::TooLong(Side::Peer, "a line");
        while let Some(line) = self.replies.pop().map_err(too_long)? {
            let part = self.reply.take(&line);
            match &mut self.phase {
                Phase::Greeting(greeting) => {
                    greeting.extend_from_slice(&line);
                    greeting.extend_from_slice(b"\r\n");
                    if greeting.len() > GREETING_BYTES_MAX {
                        return Err(Refusal::TooLong(Side::Peer, "a greeting"));
                    }
                    let greeting = match part.complete() {
                        None => continue,
                        // The service comes in a while.
                        Some(100..=199) => {
                            greeting.clear();
                            continue;
                        }
                        Some(_) => std::mem::take(greeting),
                    };
                    self.take_greeting(wires, part, greeting)?;
                }
                Phase::Own(own, greeting) => {
                    let own = *own;
                    let code = part.complete();
                    let Some(code) = code else { continue };
                    let greeting = std::mem::take(greeting);
                    if !own.good.contains(&code) {
                        return Err(self.turn_away(wires, own, &line));
                    }
                    if *own == AUTH {
                        self.phase = Phase::Handshake(greeting);
                        return self.begin_handshake().map(Some);
                    }
                    if *own == PBSZ {
                        self.ask_own(wires, &PROT, greeting);
                        continue;
                    }
                    wires.end_mut(Side::Program).say(greeting);
                    self.phase = Phase::Open;
                    return Ok(None);
                }
                _ => return Ok(None),
            }
        }
        Ok(Some(Step::Wait))
    }

    /// A server that is not ready says so, and its program is told what it said.
    fn take_greeting(
        &mut self,
        wires: &mut Wires,
        part: Part,
        greeting: Vec<u8>,
    ) -> Result<(), Refusal> {
        if part.complete() != Some(220) {
            let refusal = Refusal::NotOffered(shown(&greeting));
            wires.end_mut(Side::Program).say(greeting);
            return Err(refusal);
        }
        // The greeting of an implicit server comes under TLS.
        let next = if wires.is_secure { &PBSZ } else { &AUTH };
        self.ask_own(wires, next, greeting);
        Ok(())
    }

    /// Sends a command of tacit's own.
    pub(super) fn ask_own(&mut self, wires: &mut Wires, own: &'static Own, greeting: Vec<u8>) {
        wires.end_mut(Side::Peer).say_line(own.text.as_bytes());
        self.phase = Phase::Own(own, greeting);
    }

    fn begin_handshake(&mut self) -> Result<Step, Refusal> {
        // A server waits for the client's first message: more is an attempt to be believed later.
        match self.replies.is_empty() {
            true => Ok(Step::Secure),
            false => Err(Refusal::Stuffed(Side::Peer)),
        }
    }

    fn turn_away(&mut self, wires: &mut Wires, own: &Own, said: &[u8]) -> Refusal {
        let text = match *own == AUTH {
            true => "421 The server offers no TLS, which is required here.",
            false => "421 The server does not protect data connections, which is required here.",
        };
        self.answer(wires, text);
        Refusal::NotOffered(format!("{} was answered: {}", own.text, shown(said)))
    }

    /// Whether it has answered a command itself: the program must not change what tacit agreed.
    pub(super) fn take_as_client(&mut self, wires: &mut Wires, command: &Command<'_>) -> bool {
        let is_own = matches!(
            command.verb.as_str(),
            "AUTH" | "ADAT" | "PBSZ" | "PROT" | "CCC" | "MIC" | "CONF" | "ENC" | "REIN"
        );
        if is_own {
            self.answer(wires, "502 Not implemented: tacit protects this connection.");
        }
        is_own
    }
}
