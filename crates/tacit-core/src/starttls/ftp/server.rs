//! Implements TLS for FTP servers that do not support TLS. Clients start TLS with the commands
//! AUTH, PBSZ and PROT (RFC 4217), and tacit answers these commands.

use super::control::{ControlPhase, FtpCommand, FtpControl};
use crate::starttls::machine::ExchangeBuffers;

/// The commands that are permitted before TLS. A server answers them without a login.
const HARMLESS: [&str; 5] = ["FEAT", "HELP", "NOOP", "QUIT", "SYST"];

impl FtpControl {
    /// Replies to commands that tacit handles itself. Returns whether it replied.
    pub(super) fn take_as_server(
        &mut self,
        buffers: &mut ExchangeBuffers,
        command: &FtpCommand<'_>,
    ) -> bool {
        let may_begin = matches!(self.phase, ControlPhase::Clear);
        let is_clear = !self.has_tls;
        let needs_protection = self.required && !self.protection.is_private;
        // The address was negotiated together with an earlier protection.
        let is_stale = self.protection.agreed.is_some_and(|was| was != self.protection.is_private);
        let answer = match command.verb.as_str() {
            "AUTH" if may_begin => return self.take_auth(buffers, command),
            "AUTH" if is_clear => "503 Send AUTH TLS before logging in.",
            "AUTH" => "503 TLS is already active.",
            "PBSZ" | "PROT" | "CCC" | "ADAT" if is_clear => "503 Send AUTH TLS first.",
            "PBSZ" => self.take_size(command),
            "PROT" => self.take_protection(command),
            "CCC" => "534 The control connection must stay under TLS.",
            "ADAT" => "503 ADAT is not used with TLS.",
            "MIC" | "CONF" | "ENC" => "502 Not implemented: use TLS to protect the connection.",
            // REIN would end TLS (RFC 4217 section 11).
            "REIN" => "502 REIN is not implemented; open a new connection instead.",
            verb if may_begin && !HARMLESS.contains(&verb) => {
                if !self.required {
                    self.phase = ControlPhase::ContinuingInClear;
                    return false;
                }
                "530 TLS is required here: send AUTH TLS first."
            }
            "RETR" | "STOR" | "STOU" | "APPE" | "LIST" | "NLST" | "MLSD" if is_stale => {
                "425 The protection of data connections has changed: send PASV or PORT again."
            }
            "PASV" | "EPSV" | "PORT" | "EPRT" if needs_protection => {
                "521 Data connections must be protected: send PROT P first."
            }
            _ => return false,
        };
        self.reply(buffers, answer);
        true
    }

    fn take_auth(&mut self, buffers: &mut ExchangeBuffers, command: &FtpCommand<'_>) -> bool {
        let mechanism = command.argument.to_ascii_uppercase();
        match mechanism.as_slice() {
            b"TLS" | b"TLS-C" => {}
            // An old name, which also protects the data connections.
            b"SSL" | b"TLS-P" => self.protection.is_private = true,
            _ => {
                self.reply(buffers, "504 Use AUTH TLS.");
                return true;
            }
        }
        self.reply(buffers, "234 TLS may begin.");
        // Input that follows in clear must not be treated as received under TLS.
        self.commands.clear();
        self.phase = ControlPhase::Handshake(Vec::new());
        true
    }

    /// RFC 4217 section 8: the buffer size has no meaning with TLS.
    fn take_size(&mut self, command: &FtpCommand<'_>) -> &'static str {
        if command.argument.is_empty() || !command.argument.iter().all(u8::is_ascii_digit) {
            return "501 Send PBSZ 0.";
        }
        self.protection.has_size = true;
        "200 PBSZ=0"
    }

    fn take_protection(&mut self, command: &FtpCommand<'_>) -> &'static str {
        let level = command.argument.to_ascii_uppercase();
        match level.as_slice() {
            _ if !self.protection.has_size => "503 Send PBSZ 0 first.",
            b"P" => {
                self.protection.is_private = true;
                "200 Data connections are protected."
            }
            b"C" if self.required => "534 Data connections must stay protected: send PROT P.",
            b"C" => {
                self.protection.is_private = false;
                "200 Data connections are in clear."
            }
            b"S" | b"E" => "536 TLS supports PROT P and PROT C only.",
            _ => "504 Use PROT P.",
        }
    }
}
