//! Decides whether a client uses TLS: by the client's address, or by the first byte that the client
//! sends. Only rules that accept both TLS and clear text (`accept = "both"`) need this decision.
//!
//! While the agent waits for the first byte, the connection counts as a handshake. So the limits of
//! handshakes apply, and the agent closes the connection after `handshake-timeout`.

use std::time::Instant;

use tacit_core::policy::ClientProtocol;

use crate::clock;
use crate::live::TLS_SOURCES_MAX;
use crate::log::Event;
use crate::net::Position;
use crate::session::{ConnectionRecord, Failure, account};

use super::Establishing;
use super::plan::TlsPlan;

/// Closes a connection in clear that was being dialled when the clear connections of its rule were
/// closed.
pub(super) fn close_if_clear_has_ended(record: &ConnectionRecord) {
    let Some(access) = &record.rule.clear_access else { return };
    if record.is_accepted_in_clear() && access.has_ended_after_opening() {
        record.close();
    }
}

impl Establishing<'_> {
    /// Returns the protocol of the client: by its address, or else by its first byte. `early`
    /// receives the bytes that were read for this.
    pub(super) async fn detect(
        &mut self,
        tls: &TlsPlan<'_>,
        deadline: Instant,
    ) -> Result<ClientProtocol, Failure> {
        let record = self.connection.record();
        let rule = &record.rule;
        let (Some(access), Some(clients)) = (&rule.clear_access, tls.settings.clear_clients())
        else {
            return Ok(ClientProtocol::Tls);
        };
        let mut protocol = access.protocol_of(clients, record.client(), clock::now_unix_s());
        if protocol == ClientProtocol::Detect {
            if self.early.is_empty() {
                let io = self.handshake_io(tls, &tls.settings, deadline)?;
                self.early = io.first_bytes(&self.lane.shared.limiter).await?;
            }
            // After a wait of up to `handshake-timeout`, the rule may no longer accept clear
            // clients.
            protocol = access.protocol_of(clients, record.client(), clock::now_unix_s());
        }
        if protocol == ClientProtocol::Detect {
            // A client that has closed its connection gets the error of a handshake.
            protocol = self
                .early
                .first()
                .map_or(ClientProtocol::Tls, |byte| ClientProtocol::of_first_byte(*byte));
        }
        if protocol == ClientProtocol::Clear {
            account::accepted_in_clear(&self.lane.shared.log, self.connection);
        }
        Ok(protocol)
    }

    /// Records that the client uses TLS, if the rule keeps such a record.
    pub(super) fn note_tls(&self, tls: &TlsPlan<'_>) {
        let record = self.connection.record();
        let Some(access) = &record.rule.clear_access else { return };
        if tls.on == Position::Downstream && access.note_tls(record.client()) {
            let event = Event::new("clear-table-full")
                .field("rule", &record.rule.name())
                .value("sources", TLS_SOURCES_MAX)
                .field(
                    "reason",
                    "the table of clients that use TLS is full, so the agent now requires TLS from \
                     all clients of the rule",
                );
            self.lane.shared.log.warn(event);
        }
    }
}
