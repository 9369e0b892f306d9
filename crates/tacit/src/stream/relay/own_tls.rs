//! Handles a program that uses TLS itself, although its rule has the key `tls`. The key `on-tls` of
//! the rule decides whether the connection is refused, or the program's own TLS is relayed.
//!
//! ```text
//!   refuse   alert access_denied ──> program        close_notify ──> upstream
//!   pass     program's bytes ──> a new connection   close_notify ──> upstream
//! ```
//!
//! tacit has already established a TLS connection to the server. The relay ends this connection in
//! both cases. With `pass`, the relay then opens a new connection, to which tacit adds no TLS.
//!
//! The relay checks the program's first bytes when they arrive. If the server has already sent
//! data, the program's connection is always refused.

use std::pin::Pin;
use std::time::Duration;

use tacit_core::policy::OwnTls;
use tacit_core::record::AlertDescription;
use tacit_sys::socket::StreamOptions;

use crate::net::Security;
use crate::net::stream_socket::{Outgoing, StreamSocket};
use crate::session::{Connection, ConnectionEnd, account};
use crate::stream::dial;
use crate::stream::establish::drain_after_alert;
use crate::stream::lane::StreamLane;
use crate::stream::relay_kind::{ClearRelay, OwnTlsRelay};

use super::clear;

/// The time limit for the connection without the rule's TLS.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the upstream end may take to read the end of TLS.
const CLOSE_WAIT_MAX: Duration = Duration::from_secs(1);
/// A record with a fatal alert that every version of TLS accepts before keys are agreed.
const ALERT: [u8; 7] = [21, 3, 3, 0, 2, 2, AlertDescription::ACCESS_DENIED.0];

/// Ends the TLS of the rule, and then follows the rule's setting. Boxed, so that other connections
/// need no memory for this future.
pub(super) fn run<'a>(
    lane: &'a StreamLane,
    relay: Box<OwnTlsRelay>,
    connection: &'a Connection,
) -> Pin<Box<dyn Future<Output = ConnectionEnd> + 'a>> {
    Box::pin(end_and_continue(lane, relay, connection))
}

async fn end_and_continue(
    lane: &StreamLane,
    relay: Box<OwnTlsRelay>,
    connection: &Connection,
) -> ConnectionEnd {
    let OwnTlsRelay { program, upstream, mut session, mut waiting, first } = *relay;
    let record = connection.record();
    // A key at its limit cannot seal the alert.
    let _ = session.seal_close(&mut waiting);
    // The other end may have closed. The connection ends in any case.
    let _ = tokio::time::timeout(CLOSE_WAIT_MAX, Outgoing::new(waiting).flush(&upstream)).await;
    drop((upstream, session));
    let passes = record.rule.own_tls() == Some(OwnTls::Pass) && record.received_bytes() == 0;
    let shared = &lane.shared;
    if !passes {
        account::own_tls_refused(&shared.log, &shared.refusals, connection);
        refuse(program).await;
        return ConnectionEnd::OwnTls(first.into());
    }
    account::own_tls_passed(&shared.log, connection);
    record.tls.clear();
    let options = StreamOptions {
        congestion_control: shared.congestion_control.clone(),
        reset_on_exit: true,
    };
    let log = &shared.log;
    let upstream = match dial::dial(record, log, &options, CONNECT_TIMEOUT, Security::Clear).await {
        Ok(upstream) => upstream.socket,
        Err(unreached) => {
            program.reset();
            return ConnectionEnd::NotPassed(unreached.reason.into());
        }
    };
    let relay = ClearRelay { downstream: program, upstream, initial: first };
    clear::run_here(&lane.scratch, Box::new(relay), connection).await
}

/// Sends the refusal in the program's own protocol, and gives the program time to read it.
async fn refuse(program: StreamSocket) {
    if Outgoing::new(ALERT.to_vec()).flush(&program).await.is_ok() {
        program.end_in_order();
        drain_after_alert(program).await;
    }
}
