//! Checks that an FTP data connection comes from the client of its control connection. The client
//! must resume the TLS session of the control connection, or present the client certificate of the
//! control connection.

use std::sync::Arc;

use tacit_core::policy::DataResumption;

use crate::session::{ConnectionRecord, Failure, TlsFacts};
use crate::stream::data::ftp_of;
use tacit_tls::PeerCheck;

/// Checks that the client of a data connection is the one of its control connection.
///
/// # Errors
/// It may be another client.
pub(super) fn check(parent: &ConnectionRecord, record: &ConnectionRecord) -> Result<(), Failure> {
    let shown = record.tls.get();
    let is_valid = |facts: &&Arc<TlsFacts>| facts.check == PeerCheck::Valid;
    let peer = shown.as_ref().filter(is_valid).and_then(|facts| facts.peer.as_deref());
    let control = parent.tls.get();
    let control_peer = control.as_ref().filter(is_valid).and_then(|facts| facts.peer.as_deref());
    let same = match (control_peer, peer) {
        (Some(control), Some(peer)) => control.sha256 == peer.sha256,
        _ => false,
    };
    let resumed = shown.as_ref().is_some_and(|facts| facts.agreed.resumed);
    // Tickets of a control connection are valid only for its own data connections.
    let off = ftp_of(parent).is_some_and(|ftp| ftp.data_resumption == DataResumption::Off)
        && control_peer.is_none();
    if same || resumed || off {
        return Ok(());
    }
    Err(Failure::Data(
        "the data connection may come from another client: it neither resumed the TLS session \
         nor presented the client certificate of the control connection. \
         Enable session resumption in the client, or set data-resumption = \"off\" in the rule",
    ))
}
