//! Sends the answers of a link server to a run (a program under `tacit run`) on the same kernel.
//! Then waits until the run closes its stream.

use std::io;
use std::os::fd::BorrowedFd;

use tacit_sys::descriptor;
use tokio::io::{AsyncWriteExt, Interest};
use tokio::net::UnixStream;

use crate::run::link::protocol::LinkAnswer;
use crate::run::protocol::encode;

/// Writes an answer, with a socket.
pub(super) async fn write(
    stream: &mut UnixStream,
    answer: &LinkAnswer,
    socket: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let sockets: Vec<_> = socket.into_iter().collect();
    write_with(stream, answer, &sockets).await
}

/// Writes an answer, with these sockets.
pub(super) async fn write_with(
    stream: &mut UnixStream,
    answer: &LinkAnswer,
    sockets: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let bytes = encode(answer)?;
    let send = || descriptor::send(&*stream, &bytes, sockets);
    let sent = stream.async_io(Interest::WRITABLE, send).await?;
    stream.write_all(bytes.get(sent..).unwrap_or_default()).await
}

/// Waits until the other side closes the stream, or sends more than its request.
pub(super) async fn ended(stream: &UnixStream) {
    loop {
        let ready = stream.readable().await;
        match stream.try_read(&mut [0]) {
            Err(error) if ready.is_ok() && error.kind() == io::ErrorKind::WouldBlock => {}
            _ => return,
        }
    }
}
