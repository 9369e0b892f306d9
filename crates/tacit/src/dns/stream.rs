//! Answers DNS queries over TCP, on captured connections to port 53.
//!
//! Queries on one connection are answered one after the other. Limits: [`IDLE_MAX`] between two
//! queries, [`QUERIES_PER_CONNECTION_MAX`] on one connection, and the agent's limit of connections.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tacit_core::dns::{Framed, MESSAGE_BYTES_MAX, framed, next_message};

use super::{Forwarder, ResolverClient};
use crate::net::Accepted;
use crate::net::stream_socket::{Outgoing, StreamSocket};

/// How long a program may take for its next query, and for reading an answer.
pub const IDLE_MAX: Duration = Duration::from_secs(10);
/// The maximum number of queries on one connection; then the program must open another.
pub const QUERIES_PER_CONNECTION_MAX: usize = 1000;
/// The size of a read.
const CHUNK_BYTES: usize = 2048;

/// Answers queries until the program has no more.
pub async fn serve(forwarder: Arc<Forwarder>, accepted: Accepted<StreamSocket>) {
    let resolver = ResolverClient::new(forwarder, None);
    answer_all(&resolver, &accepted).await;
    resolver.end();
}

async fn answer_all(resolver: &Rc<ResolverClient>, accepted: &Accepted<StreamSocket>) {
    let socket = &accepted.socket;
    let (Some(ip), Some(port)) = (accepted.remote.ip(), accepted.remote.port()) else { return };
    let requested = SocketAddr::new(ip, port);
    let mut held = Vec::new();
    for _ in 0..QUERIES_PER_CONNECTION_MAX {
        let Some(query) = next_query(socket, &mut held).await else { break };
        let response = resolver.answer_stream(&query, requested).await;
        let Some(response) = response.as_deref().and_then(framed) else { break };
        let mut outgoing = Outgoing::new(response);
        if !matches!(tokio::time::timeout(IDLE_MAX, outgoing.flush(socket)).await, Ok(Ok(()))) {
            return;
        }
    }
    socket.end_in_order();
}

/// The next query; `None` if the program has closed, is silent, or sends an invalid message.
async fn next_query(socket: &StreamSocket, held: &mut Vec<u8>) -> Option<Vec<u8>> {
    let mut chunk = [0; CHUNK_BYTES];
    loop {
        if let Some(Framed { message: query, consumed }) = next_message(held).ok()? {
            let query = query.to_vec();
            held.drain(..consumed);
            return Some(query);
        }
        debug_assert!(
            held.len() < 2 + MESSAGE_BYTES_MAX,
            "the buffer already contains a whole message"
        );
        let read = tokio::time::timeout(IDLE_MAX, socket.read(&mut chunk)).await;
        match read {
            Ok(Ok(count)) if count > 0 => held.extend_from_slice(&chunk[..count]),
            _ => return None,
        }
    }
}
