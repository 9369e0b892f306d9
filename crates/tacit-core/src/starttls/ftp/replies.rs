//! Forwards the replies of an FTP server to the client. Changes two things in the replies: the
//! addresses of data connections, and the list of features.

use super::address;
use super::control::{CommandKind, DataState, FtpControl, PendingCommand};
use super::reply::ReplyPart;
use crate::starttls::data::DataRequest;
use crate::starttls::machine::ExchangeBuffers;
use crate::starttls::side::StarttlsRole;

/// Features that tacit announces itself or does not forward.
const HIDDEN: [&[u8]; 10] =
    [b"AUTH", b"PBSZ", b"PROT", b"CCC", b"ADAT", b"CPSV", b"SPSV", b"SSCN", b"LPRT", b"LPSV"];
/// The features that tacit announces in the server role (RFC 4217 section 6).
const ANNOUNCED: [&[u8]; 3] = [b" AUTH TLS", b" PBSZ", b" PROT"];

impl FtpControl {
    /// Forwards a line of the server, possibly with changes.
    pub(super) fn take_reply(&mut self, buffers: &mut ExchangeBuffers, line: &[u8]) {
        let part = self.reply.take(line);
        let question = self.pending.map(|requested| requested.what);
        match (part, question) {
            (
                ReplyPart::Whole(227..=229)
                | ReplyPart::First(227..=229)
                | ReplyPart::Middle(227..=229)
                | ReplyPart::Last(227..=229),
                _,
            ) => self.take_address(buffers, part, line),
            (_, Some(CommandKind::Features)) => self.take_feature(buffers, part, line),
            _ => buffers.end_mut(self.client()).send_line(line),
        }
        if let Some(code) = part.complete() {
            // RFC 959 section 4.2.1: both codes announce that the control connection closes.
            self.is_over = matches!(code, 221 | 421);
            self.count_reply(code);
        }
    }

    /// Handles a complete reply, which may end the pending command.
    fn count_reply(&mut self, code: u16) {
        let Some(requested) = &mut self.pending else { return };
        let answers = match code {
            100..=199 => {
                requested.in_transfer = true;
                return;
            }
            // A late greeting, or the second reply to an ABOR.
            220 | 225 | 226 => requested.what == CommandKind::Other,
            // No further reply follows.
            _ => true,
        };
        if answers {
            requested.replies -= 1;
            if requested.replies == 0 {
                self.pending = None;
            }
        }
    }

    /// Handles the address at which the server listens. Only the port is used, with the known
    /// address of the server. Other addresses are useless behind NAT and unsafe (RFC 2577 section
    /// 3).
    fn take_address(&mut self, buffers: &mut ExchangeBuffers, part: ReplyPart, line: &[u8]) {
        let Some(code) = part.complete() else { return };
        let Some(PendingCommand { what: question @ CommandKind::Passive(form), .. }) = self.pending
        else {
            return self.reply(buffers, "425 The server sent an address that was not requested.");
        };
        let port = match code {
            227 => address::passive(line).map(|address| address.port()),
            229 => address::extended_passive(line),
            _ => None,
        };
        match (port, self.ends.of(self.server())) {
            (Some(port), Some(ip)) => {
                let connects = self.client();
                let secure = self.is_secure();
                let request = DataRequest { connects, dial: (ip, port).into(), secure };
                self.data = DataState::Requested { request, question, form };
            }
            _ => self.reply(buffers, "425 The server sent an address that cannot be parsed."),
        }
    }

    /// RFC 2389 section 3.2: the reply has one feature on each line between the first and the last.
    fn take_feature(&mut self, buffers: &mut ExchangeBuffers, part: ReplyPart, line: &[u8]) {
        let announces = self.role == StarttlsRole::Server;
        let client = buffers.end_mut(self.client());
        match part {
            // The server does not support FEAT, or has no features.
            ReplyPart::Whole(code) if announces && (code == 211 || code >= 400) => {
                client.send_line(b"211-Features:");
                ANNOUNCED.iter().for_each(|feature| client.send_line(feature));
                client.send_line(b"211 End");
            }
            ReplyPart::Middle(211) if is_hidden(line) => {}
            ReplyPart::Last(211) if announces => {
                ANNOUNCED.iter().for_each(|feature| client.send_line(feature));
                client.send_line(line);
            }
            _ => client.send_line(line),
        }
    }
}

/// Whether a line names a feature that tacit does not forward. Some servers write the code before
/// each feature.
fn is_hidden(line: &[u8]) -> bool {
    let feature = line.strip_prefix(b"211-").unwrap_or(line).trim_ascii();
    let end = feature.iter().position(|byte| !byte.is_ascii_alphanumeric());
    let name = feature.get(..end.unwrap_or(feature.len())).unwrap_or_default();
    HIDDEN.iter().any(|hidden| hidden.eq_ignore_ascii_case(name))
}
