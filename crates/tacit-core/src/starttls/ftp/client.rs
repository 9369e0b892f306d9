//! Implements TLS for FTP clients that do not support TLS. tacit starts TLS (RFC 4217) with the
//! server before the client may send commands.

use super::control::{AUTH, ControlPhase, FtpCommand, FtpControl, OwnCommand, PBSZ, PROT};
use super::reply::ReplyPart;
use crate::starttls::machine::{ExchangeBuffers, StarttlsError, StarttlsStep, shown};
use crate::starttls::side::StarttlsSide;

/// Maximum size of a server's greeting.
pub const GREETING_BYTES_MAX: usize = 16 * 1024;

impl FtpControl {
    /// Starts TLS with the server: greeting, AUTH, handshake, PBSZ and PROT. Returns `None` when
    /// the program may send commands.
    pub(super) fn prepare(
        &mut self,
        buffers: &mut ExchangeBuffers,
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
                        // 1xx: the service is delayed.
                        Some(100..=199) => {
                            greeting.clear();
                            continue;
                        }
                        Some(_) => std::mem::take(greeting),
                    };
                    self.take_greeting(buffers, part, greeting)?;
                }
                ControlPhase::Own(own, greeting) => {
                    let own = *own;
                    let code = part.complete();
                    let Some(code) = code else { continue };
                    let greeting = std::mem::take(greeting);
                    if !own.good.contains(&code) {
                        return Err(self.reject_server(buffers, own, &line));
                    }
                    if *own == AUTH {
                        self.phase = ControlPhase::Handshake(greeting);
                        return self.begin_handshake().map(Some);
                    }
                    if *own == PBSZ {
                        self.send_own_command(buffers, &PROT, greeting);
                        continue;
                    }
                    buffers.end_mut(StarttlsSide::Program).send(greeting);
                    self.phase = ControlPhase::Open;
                    return Ok(None);
                }
                _ => return Ok(None),
            }
        }
        Ok(Some(StarttlsStep::Wait))
    }

    /// Handles the server's greeting. If the server is not ready, the program gets the greeting.
    fn take_greeting(
        &mut self,
        buffers: &mut ExchangeBuffers,
        part: ReplyPart,
        greeting: Vec<u8>,
    ) -> Result<(), StarttlsError> {
        if part.complete() != Some(220) {
            let refusal = StarttlsError::NotOffered(shown(&greeting));
            buffers.end_mut(StarttlsSide::Program).send(greeting);
            return Err(refusal);
        }
        // With implicit TLS, the greeting of the server arrives under TLS.
        let next = if buffers.is_secure { &PBSZ } else { &AUTH };
        self.send_own_command(buffers, next, greeting);
        Ok(())
    }

    /// Sends the server a command that does not come from the program.
    pub(super) fn send_own_command(
        &mut self,
        buffers: &mut ExchangeBuffers,
        own: &'static OwnCommand,
        greeting: Vec<u8>,
    ) {
        buffers.end_mut(StarttlsSide::Peer).send_line(own.text.as_bytes());
        self.phase = ControlPhase::Own(own, greeting);
    }

    fn begin_handshake(&mut self) -> Result<StarttlsStep, StarttlsError> {
        // A server must wait for the client's first message. More data here is an attempt to inject
        // commands.
        match self.replies.is_empty() {
            true => Ok(StarttlsStep::Handshake),
            false => Err(StarttlsError::ExtraData(StarttlsSide::Peer)),
        }
    }

    fn reject_server(
        &mut self,
        buffers: &mut ExchangeBuffers,
        own: &OwnCommand,
        reply: &[u8],
    ) -> StarttlsError {
        let text = match *own == AUTH {
            true => "421 The server does not offer TLS, which the policy requires.",
            false => {
                "421 The server refused protected data connections, which the policy requires."
            }
        };
        self.reply(buffers, text);
        StarttlsError::NotOffered(format!(
            "the server replied to {command} with `{reply}`",
            command = own.text,
            reply = shown(reply)
        ))
    }

    /// Rejects commands that could change the protection that tacit has negotiated with the server.
    /// Returns whether the command was rejected.
    pub(super) fn take_as_client(
        &mut self,
        buffers: &mut ExchangeBuffers,
        command: &FtpCommand<'_>,
    ) -> bool {
        let is_own = matches!(
            command.verb.as_str(),
            "AUTH" | "ADAT" | "PBSZ" | "PROT" | "CCC" | "MIC" | "CONF" | "ENC" | "REIN"
        );
        if is_own {
            self.reply(buffers, "502 Not implemented: tacit has already started TLS.");
        }
        is_own
    }
}
