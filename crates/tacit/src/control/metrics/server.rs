//! Serves `GET /metrics`, `/healthz` and `/readyz` over HTTP/1.1, one request on each connection.
//!
//! `/healthz` returns the status 200 while the control thread answers. `/readyz` returns 200 until
//! the agent drains, and 503 after that.
//!
//! Limits: [`HEAD_BYTES_MAX`] for a request, [`CLIENTS_MAX`] open connections, [`SCRAPES_MAX`]
//! answers at the same time, [`SCRAPE_TIME_MAX`] for a connection. If [`CLIENTS_MAX`] connections
//! are open, a new connection replaces the oldest connection that has not sent a request yet.
//!
//! The server does not support TLS. For TLS, use a forwarding rule that connects to this server.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{Semaphore, mpsc};

use super::CONTENT_TYPE;
use crate::control::clients::{Clients, Waits};
use crate::control::display::metrics::MetricsDisplay;
use crate::control::running::RunningAgent;
use crate::control::server::{PendingRequest, ask};
use crate::control::{Display, Request};
use crate::log::{Event, Log};

/// The maximum size of the request line and headers. Scrapers and browsers send much less.
pub const HEAD_BYTES_MAX: usize = 8 * 1024;
/// The maximum number of connections.
pub const CLIENTS_MAX: usize = 64;
/// The maximum number of answers in progress; further requests wait.
pub const SCRAPES_MAX: usize = 4;
/// The maximum time from the first byte of a request to the last byte of its answer.
pub const SCRAPE_TIME_MAX: Duration = Duration::from_secs(10);

/// The socket that scrapers connect to.
#[derive(Debug)]
pub enum Listening {
    /// A TCP socket.
    Tcp(TcpListener),
    /// A UNIX socket with a path or an abstract name.
    Unix(UnixListener),
}

/// A stream of either kind.
trait Stream: AsyncRead + AsyncWrite + Unpin {}

impl<S: AsyncRead + AsyncWrite + Unpin> Stream for S {}

impl Listening {
    async fn accept(&self) -> io::Result<Box<dyn Stream>> {
        Ok(match self {
            Self::Tcp(listener) => Box::new(listener.accept().await?.0),
            Self::Unix(listener) => Box::new(listener.accept().await?.0),
        })
    }
}

/// Answers scrapers until the task ends.
pub async fn serve(listening: Listening, requests: mpsc::Sender<PendingRequest>, log: Log) {
    let permits = Rc::new(Semaphore::new(SCRAPES_MAX));
    let mut clients = Clients::new(CLIENTS_MAX);
    loop {
        match listening.accept().await {
            Ok(stream) => {
                if !clients.make_room() {
                    continue;
                }
                let waits = Waits::new(Cell::new(true));
                let answer = answer(stream, requests.clone(), Rc::clone(&permits), waits.clone());
                let task = tokio::task::spawn_local(async move {
                    // A scraper whose answer failed tries again after its interval.
                    let _ = tokio::time::timeout(SCRAPE_TIME_MAX, answer).await;
                });
                clients.add(waits, task.abort_handle());
                // Read requests that have arrived before another client replaces their senders.
                tokio::task::yield_now().await;
            }
            Err(error) => {
                log.warn(Event::new("metrics-failed").field("error", &error));
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn answer(
    mut stream: impl Stream,
    requests: mpsc::Sender<PendingRequest>,
    permits: Rc<Semaphore>,
    waits: Waits,
) -> io::Result<()> {
    let verdict = verdict(&mut stream).await?;
    waits.set(false);
    let permit = permits.acquire().await.map_err(io::Error::other)?;
    let Page { verdict, body } = match verdict {
        Verdict::Metrics => page(&requests).await,
        Verdict::Health | Verdict::Ready => state(&requests, verdict).await,
        refusal => Page { verdict: refusal, body: format!("{}\n", refusal.reason()) },
    };
    let allow = if verdict == Verdict::OtherMethod { "Allow: GET\r\n" } else { "" };
    let kind = if verdict == Verdict::Metrics { CONTENT_TYPE } else { "text/plain; charset=utf-8" };
    let head = format!(
        "HTTP/1.1 {}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n{allow}\
         X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n",
        verdict.status(),
        body.len(),
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    stream.shutdown().await?;
    drop(permit);
    waits.set(true);
    // Closing with unread bytes would send a reset, and the client could lose the answer.
    let mut rest = stream.take(HEAD_BYTES_MAX as u64);
    tokio::io::copy(&mut rest, &mut tokio::io::sink()).await.map(|_| ())
}

/// The answer to a request.
struct Page {
    verdict: Verdict,
    body: String,
}

async fn page(requests: &mpsc::Sender<PendingRequest>) -> Page {
    let request = Request::Show { what: Display::Metrics };
    let unavailable = |body| Page { verdict: Verdict::Unavailable, body };
    match ask(requests, request, None).await.typed::<MetricsDisplay>() {
        Ok(display) => Page { verdict: Verdict::Metrics, body: display.text },
        Err(reason) => unavailable(format!("{reason}\n")),
    }
}

/// Whether the agent answers, and for [`Verdict::Ready`] whether it accepts connections.
async fn state(requests: &mpsc::Sender<PendingRequest>, requested: Verdict) -> Page {
    let unavailable =
        |reason: &str| Page { verdict: Verdict::Unavailable, body: format!("{reason}\n") };
    match ask(requests, Request::Identify, None).await.typed::<RunningAgent>() {
        Ok(agent) if agent.draining && requested == Verdict::Ready => {
            unavailable("the agent is draining and accepts no new connections")
        }
        Ok(_) => Page { verdict: requested, body: "ok\n".to_owned() },
        Err(reason) => unavailable(&reason),
    }
}

/// How a request is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Metrics,
    Health,
    Ready,
    Malformed,
    OtherPath,
    OtherMethod,
    TooLong,
    Unavailable,
}

impl Verdict {
    fn status(self) -> &'static str {
        match self {
            Self::Metrics | Self::Health | Self::Ready => "200 OK",
            Self::Malformed => "400 Bad Request",
            Self::OtherPath => "404 Not Found",
            Self::OtherMethod => "405 Method Not Allowed",
            Self::TooLong => "431 Request Header Fields Too Large",
            Self::Unavailable => "503 Service Unavailable",
        }
    }

    fn reason(self) -> &'static str {
        match self {
            Self::Metrics | Self::Health | Self::Ready => "ok",
            Self::Malformed => "the request is not a valid HTTP/1 request",
            Self::OtherPath => "this path does not exist: use /metrics, /healthz or /readyz",
            Self::OtherMethod => "this method is not supported: use GET",
            Self::TooLong => "the request line and headers are too long: the limit is 8 KiB",
            Self::Unavailable => "the agent is ending",
        }
    }
}

/// Reads the request line and headers, and decides how the request is answered.
async fn verdict(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Verdict> {
    let mut head = Vec::with_capacity(1024);
    let mut limited = stream.take(HEAD_BYTES_MAX as u64);
    loop {
        if head.windows(4).any(|end| end == b"\r\n\r\n") {
            return Ok(judge(&head));
        }
        if head.len() == HEAD_BYTES_MAX {
            return Ok(Verdict::TooLong);
        }
        if limited.read_buf(&mut head).await? == 0 {
            return match head.len() {
                HEAD_BYTES_MAX => Ok(Verdict::TooLong),
                0 => Err(io::ErrorKind::UnexpectedEof.into()),
                _ => Ok(Verdict::Malformed),
            };
        }
    }
}

/// Entry point of the fuzzer: whether a request, given as bytes, gets the metrics.
#[cfg(feature = "fuzz")]
pub(crate) async fn is_answered(mut request: &[u8]) -> bool {
    matches!(verdict(&mut request).await, Ok(Verdict::Metrics | Verdict::Health | Verdict::Ready))
}

/// RFC 9112 section 3: method, target and version, one space apart.
fn judge(head: &[u8]) -> Verdict {
    let line = head.split(|&byte| byte == b'\r').next().unwrap_or_default();
    let mut words = std::str::from_utf8(line).unwrap_or_default().split(' ');
    let (Some(method), Some(target), Some(version), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Verdict::Malformed;
    };
    let is_token = |word: &str| !word.is_empty() && word.bytes().all(|b| b.is_ascii_alphabetic());
    if !is_token(method) || !matches!(version, "HTTP/1.1" | "HTTP/1.0") {
        return Verdict::Malformed;
    }
    let requested = match target.split('?').next() {
        Some("/metrics") => Verdict::Metrics,
        Some("/healthz") => Verdict::Health,
        Some("/readyz") => Verdict::Ready,
        _ => return Verdict::OtherPath,
    };
    if method == "GET" { requested } else { Verdict::OtherMethod }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_get_of_metrics_is_answered() {
        for (line, verdict) in [
            ("GET /metrics HTTP/1.1", Verdict::Metrics),
            ("GET /metrics?name[]=x HTTP/1.0", Verdict::Metrics),
            ("GET /healthz HTTP/1.1", Verdict::Health),
            ("GET /readyz HTTP/1.1", Verdict::Ready),
            ("POST /readyz HTTP/1.1", Verdict::OtherMethod),
            ("HEAD /metrics HTTP/1.1", Verdict::OtherMethod),
            ("POST /metrics HTTP/1.1", Verdict::OtherMethod),
            ("GET / HTTP/1.1", Verdict::OtherPath),
            ("GET /metrics/../secret HTTP/1.1", Verdict::OtherPath),
            ("GET /metrics HTTP/2", Verdict::Malformed),
            ("GET  /metrics HTTP/1.1", Verdict::Malformed),
            ("GET /metrics", Verdict::Malformed),
            ("", Verdict::Malformed),
            ("\u{16}\u{3}\u{1}", Verdict::Malformed),
        ] {
            assert_eq!(judge(format!("{line}\r\nHost: x\r\n\r\n").as_bytes()), verdict, "{line:?}");
        }
        assert_eq!(judge(b"\xff\xfe /metrics HTTP/1.1\r\n\r\n"), Verdict::Malformed);
    }

    fn read(parts: &[&[u8]]) -> io::Result<Verdict> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let (mut near, mut far) = tokio::io::duplex(HEAD_BYTES_MAX * 2);
            for part in parts {
                near.write_all(part).await.unwrap();
            }
            drop(near);
            verdict(&mut far).await
        })
    }

    #[test]
    fn a_request_is_read_to_its_end_or_to_the_limit() {
        let request = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";
        for at in 1..request.len() {
            let (front, rest) = request.split_at(at);
            assert_eq!(read(&[front, rest]).unwrap(), Verdict::Metrics);
            assert_eq!(read(&[front]).unwrap(), Verdict::Malformed, "cut at {at}");
        }
        assert!(read(&[]).is_err(), "a connection without a request");
        let long = vec![b'a'; HEAD_BYTES_MAX - request.len()];
        let (line, end) = request.split_at(request.len() - 4);
        assert_eq!(read(&[line, &long, end]).unwrap(), Verdict::Metrics, "maximum size");
        assert_eq!(read(&[line, &long, b"a", end]).unwrap(), Verdict::TooLong);
    }
}
