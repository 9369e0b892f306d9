//! Runs the STARTTLS exchange of one connection: the messages in clear before TLS begins. This
//! module selects the state machine of the protocol, such as SMTP, and does no I/O.

use std::net::SocketAddr;

use super::data::{ControlAddresses, UploadFlag};
use super::ftp::FtpControl;
use super::machine::{
    EndBuffers, ExchangeBuffers, INPUT_BYTES_MAX, OUTPUT_BYTES_MAX, ProtocolMachine, StarttlsError,
    StarttlsStep,
};
use super::side::{StarttlsRole, StarttlsSide};
use super::{postgres, smtp, telnet};
use crate::policy::{Starttls, StarttlsProtocol};

/// The STARTTLS exchange of one connection, without I/O. See the [module](super).
#[derive(Debug)]
pub struct StarttlsExchange {
    buffers: ExchangeBuffers,
    machine: Box<dyn ProtocolMachine>,
    /// The last step other than `Wait`; repeated until the driver reports its result.
    pending_step: Option<StarttlsStep>,
}

impl StarttlsExchange {
    /// Creates the exchange that a rule requires.
    #[must_use]
    pub fn new(starttls: &Starttls, role: StarttlsRole) -> Self {
        let mode = starttls.mode;
        let machine: Box<dyn ProtocolMachine> = match (&starttls.protocol, role) {
            (StarttlsProtocol::Ftp(ftp), role) if ftp.implicit => {
                Box::new(FtpControl::implicit(role, mode))
            }
            (StarttlsProtocol::Ftp(_), role) => Box::new(FtpControl::explicit(role, mode)),
            (StarttlsProtocol::Postgres(postgres), StarttlsRole::Server) => {
                Box::new(postgres::PostgresServer::new(mode, postgres.cancel))
            }
            (StarttlsProtocol::Postgres(_), StarttlsRole::Client) => {
                Box::new(postgres::PostgresClient::new())
            }
            (StarttlsProtocol::Smtp, StarttlsRole::Server) => Box::new(smtp::SmtpServer::new(mode)),
            (StarttlsProtocol::Smtp, StarttlsRole::Client) => Box::new(smtp::SmtpClient::default()),
            (StarttlsProtocol::Telnet, StarttlsRole::Server) => {
                Box::new(telnet::TelnetServer::new(mode))
            }
            (StarttlsProtocol::Telnet, StarttlsRole::Client) => {
                Box::new(telnet::TelnetClient::default())
            }
        };
        Self { buffers: ExchangeBuffers::default(), machine, pending_step: None }
    }

    /// Whether the exchange needs the program before TLS. If not, the program in the server role is
    /// dialled after the handshake.
    #[must_use]
    pub fn needs_program(&self) -> bool {
        self.machine.needs_program()
    }

    /// Whether the program must be dialled again under TLS, so that it has no state from the
    /// exchange in clear. Bytes that the first connection still sends are dropped.
    #[must_use]
    pub fn needs_new_program_connection(&self) -> bool {
        self.machine.needs_new_program_connection()
    }

    /// Whether the driver may read from this end now. The driver must then pass everything that one
    /// read returns.
    #[must_use]
    pub fn has_room(&self, from: StarttlsSide) -> bool {
        let is_full = |side| self.buffers.end(side).output.len() >= OUTPUT_BYTES_MAX;
        // While everything is forwarded, each end must be read even if it does not read itself,
        // because it may wait for tacit.
        let is_stuck = match &self.pending_step {
            None => is_full(from) || is_full(from.other()),
            Some(StarttlsStep::Relay) => is_full(from.other()),
            Some(_) => true,
        };
        !is_stuck && self.buffers.end(from).input.len() < INPUT_BYTES_MAX
    }

    /// Handles bytes received from one end.
    pub fn handle_input(&mut self, from: StarttlsSide, bytes: &[u8]) {
        let is_past_clear = self.buffers.is_past_clear();
        let end = self.buffers.end_mut(from);
        end.input.extend_from_slice(bytes);
        if !is_past_clear {
            end.clear_bytes = end.clear_bytes.saturating_add(bytes.len());
        }
    }

    /// Handles the end of the stream from one end.
    pub fn handle_eof(&mut self, from: StarttlsSide) {
        self.buffers.end_mut(from).ended = true;
    }

    /// Returns what to do next. A step other than [`StarttlsStep::Wait`] is returned again until
    /// the driver reports its result.
    pub fn next_step(&mut self) -> StarttlsStep {
        if self.pending_step.is_none() {
            self.buffers.is_stalled = false;
            let step = match self.advance() {
                StarttlsStep::Wait if !self.buffers.is_stalled => {
                    self.buffers.check_waiting(&*self.machine)
                }
                step => step,
            };
            if step == StarttlsStep::Wait {
                return step;
            }
            self.pending_step = Some(step);
        }
        if self.pending_step == Some(StarttlsStep::Relay) {
            self.buffers.forward_all();
        }
        self.pending_step.clone().unwrap_or(StarttlsStep::Wait)
    }

    fn advance(&mut self) -> StarttlsStep {
        if self.buffers.is_secure && !self.machine.continues_under_tls() {
            return StarttlsStep::Relay;
        }
        self.machine.next_step(&mut self.buffers).unwrap_or_else(StarttlsStep::Reject)
    }

    /// Whether the exchange waits only because too much output is pending. It continues when the
    /// output is taken.
    #[must_use]
    pub fn is_stalled(&self) -> bool {
        self.buffers.is_stalled
    }

    /// Whether everything from one end has been forwarded, in a relay or in a persistent exchange.
    #[must_use]
    pub fn is_drained(&self, from: StarttlsSide) -> bool {
        let one = self.buffers.end(from);
        let other = self.buffers.end(from.other());
        let is_last = self.pending_step == Some(StarttlsStep::Relay)
            || self.is_persistent()
                && self.buffers.is_past_clear()
                && !self.machine.has_pending_line(from);
        is_last && one.ended && one.input.is_empty() && other.output.is_empty()
    }

    /// Takes the output for one end.
    #[must_use]
    pub fn take_output(&mut self, to: StarttlsSide) -> Vec<u8> {
        std::mem::take(&mut self.buffers.end_mut(to).output)
    }

    /// Takes the bytes of the peer that begin the handshake. Call this after
    /// [`StarttlsStep::Handshake`].
    #[must_use]
    pub fn take_input(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.buffers.peer.input)
    }

    /// Returns the ALPN protocol that the handshake must negotiate; call this after
    /// [`StarttlsStep::Handshake`]. `None`: the exchange already proves that the peer uses the
    /// protocol.
    #[must_use]
    pub fn required_alpn(&self) -> Option<&'static str> {
        self.machine.required_alpn()
    }

    /// Reports that the peer's socket has TLS.
    pub fn handshake_succeeded(&mut self) {
        self.pending_step = None;
        self.buffers.is_secure = true;
        if self.machine.needs_new_program_connection() {
            self.buffers.program = EndBuffers::default();
        }
        self.machine.handshake_succeeded(&mut self.buffers);
    }

    /// Whether the exchange continues under TLS until the end of the connection.
    #[must_use]
    pub fn is_persistent(&self) -> bool {
        self.machine.is_persistent()
    }

    /// Continues after [`StarttlsStep::ContinueInClear`].
    pub fn continue_in_clear(&mut self) {
        self.pending_step = None;
        self.buffers.stays_in_clear = true;
    }

    /// Whether the protocol has announced the end of the connection. A close without close_notify
    /// is then not a truncation.
    #[must_use]
    pub fn has_closed_orderly(&self) -> bool {
        self.machine.has_closed_orderly()
    }

    /// Returns the direction of the requested transfers.
    #[must_use]
    pub fn upload_flag(&self) -> UploadFlag {
        self.machine.upload_flag()
    }

    /// Sets the addresses of both ends, once they are known.
    pub fn set_addresses(&mut self, ends: ControlAddresses) {
        self.machine.set_addresses(ends);
    }

    /// Answers [`StarttlsStep::Listen`] with the address of the data listener, as seen by the
    /// connecting end; `None` if there is no listener.
    pub fn set_data_listener(&mut self, at: Option<SocketAddr>) {
        self.pending_step = None;
        self.machine.set_data_listener(&mut self.buffers, at);
    }

    /// Reports that the handshake with the peer failed. There may be output for the program.
    pub fn handshake_failed(&mut self) {
        // The program has already received its message, or has closed.
        let is_told = matches!(
            &self.pending_step,
            Some(StarttlsStep::Reject(
                StarttlsError::NotOffered(_) | StarttlsError::Closed(StarttlsSide::Program)
            ))
        );
        if !is_told {
            self.machine.handshake_failed(&mut self.buffers);
        }
    }
}
