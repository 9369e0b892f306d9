//! The client role: what tacit says to a server before its program may say anything (RFC 4217).

use super::control::{AUTH, ControlPhase, FtpCommand, FtpControl, OwnCommand, PBSZ, PROT};
use super::reply::ReplyPart;
use crate::starttls::machine::{ExchangeBuffers, StarttlsError, StarttlsStep, shown};
use crate::starttls::side::StarttlsSide;

/// What a server may say before anybody has asked it anything.
pub const GREETING_BYTES_MAX: usize = 16 * 1024;

impl FtpControl {
    /// Goes on until the program may speak: greeting, AUTH, the handshake, PBSZ, PROT. `None`: it
    /// may.
    pub(super) fn prepare(
        &mut self,
        wires: &mut ExchangeBuffers,
    ) -> Result<Option<StarttlsStep>, StarttlsError> {
        let too_long = |_| StarttlsError::TooLong(StarttlsSide::Peer, "a line");
        while let Some(line) = self.replies.pop().map_err(too_long)? {
            let part = self.reply.take(&line);
            match &mut self.phase {
                ControlPhase::Greeting(greeting) => {
                    greeting.extend_from_slice(&line);
                    greeting.extend_from_slice(b"\r\n");
                    if greeting.len() > GREETING_BYTES_MAX {
                        return Err(StarttlsError::TooLong(StarttlsSide::Peer, "a greeting"));
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
                ControlPhase::Own(own, greeting) => {
                    let own = *own;
                    let code = part.complete();
                    let Some(code) = code else { continue };
                    let greeting = std::mem::take(greeting);
                    if !own.good.contains(&code) {
                        return Err(self.turn_away(wires, own, &line));
                    }
                    if *own == AUTH {
                        self.phase = ControlPhase::Handshake(greeting);
                        return self.begin_handshake().map(Some);
                    }
                    if *own == PBSZ {
                        self.ask_own(wires, &PROT, greeting);
                        continue;
                    }
                    wires.end_mut(StarttlsSide::Program).say(greeting);
                    self.phase = ControlPhase::Open;
                    return Ok(None);
                }
                _ => return Ok(None),
            }
        }
        Ok(Some(StarttlsStep::Wait))
    }

    /// A server that is not ready says so, and its program is told what it said.
    fn take_greeting(
        &mut self,
        wires: &mut ExchangeBuffers,
        part: ReplyPart,
        greeting: Vec<u8>,
    ) -> Result<(), StarttlsError> {
        if part.complete() != Some(220) {
            let refusal = StarttlsError::NotOffered(shown(&greeting));
            wires.end_mut(StarttlsSide::Program).say(greeting);
            return Err(refusal);
        }
        // The greeting of an implicit server comes under TLS.
        let next = if wires.is_secure { &PBSZ } else { &AUTH };
        self.ask_own(wires, next, greeting);
        Ok(())
    }

    /// Sends a command of tacit's own.
    pub(super) fn ask_own(
        &mut self,
        wires: &mut ExchangeBuffers,
        own: &'static OwnCommand,
        greeting: Vec<u8>,
    ) {
        wires.end_mut(StarttlsSide::Peer).say_line(own.text.as_bytes());
        self.phase = ControlPhase::Own(own, greeting);
    }

    fn begin_handshake(&mut self) -> Result<StarttlsStep, StarttlsError> {
        // A server waits for the client's first message: more is an attempt to be believed later.
        match self.replies.is_empty() {
            true => Ok(StarttlsStep::Secure),
            false => Err(StarttlsError::Stuffed(StarttlsSide::Peer)),
        }
    }

    fn turn_away(
        &mut self,
        wires: &mut ExchangeBuffers,
        own: &OwnCommand,
        said: &[u8],
    ) -> StarttlsError {
        let text = match *own == AUTH {
            true => "421 The server does not offer TLS, which the policy requires.",
            false => "421 The server does not protect data connections, which the policy requires.",
        };
        self.answer(wires, text);
        StarttlsError::NotOffered(format!("{} was answered: {}", own.text, shown(said)))
    }

    /// Whether it has answered a command itself: the program must not change what tacit agreed.
    pub(super) fn take_as_client(
        &mut self,
        wires: &mut ExchangeBuffers,
        command: &FtpCommand<'_>,
    ) -> bool {
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
