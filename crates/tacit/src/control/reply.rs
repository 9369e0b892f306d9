//! Defines the agent's reply to a request on the control socket, and sends the reply to the client.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tacit_sys::descriptor;
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::Answer;

/// How long a client may read nothing while an answer does not fit into its socket.
const ANSWER_WAIT_MAX: Duration = Duration::from_secs(10);

/// The agent's reply to one request.
#[derive(Debug)]
pub struct Reply {
    /// The answer.
    pub body: Body,
    /// Descriptors that are sent after the answer, one in each message, in the order of the answer.
    pub descriptors: Vec<OwnedFd>,
}

/// The answer of a reply.
#[derive(Debug)]
pub enum Body {
    /// An answer that is serialised when it is sent.
    Answer(Answer),
    /// A long answer that was serialised before.
    Written(Vec<u8>),
}

impl Reply {
    /// A success without descriptors.
    #[must_use]
    pub fn ok(value: Value) -> Self {
        Self { body: Body::Answer(Answer::Ok(value)), descriptors: Vec::new() }
    }

    /// A success whose long answer is serialised here, on the calling thread.
    #[must_use]
    pub fn written(value: &impl Serialize) -> Self {
        /// [`Answer::Ok`] of a type.
        #[derive(Serialize)]
        struct Written<'v, T> {
            ok: &'v T,
        }
        match serde_json::to_vec(&Written { ok: value }) {
            Ok(text) => Self { body: Body::Written(text), descriptors: Vec::new() },
            Err(error) => Self::error(error),
        }
    }

    /// Reads the answer as a type, within the agent.
    ///
    /// # Errors
    /// The reason of the agent, in words.
    pub fn typed<T: DeserializeOwned>(self) -> Result<T, String> {
        let answer = match self.body {
            Body::Answer(answer) => answer,
            Body::Written(text) => {
                serde_json::from_slice(&text).map_err(|error| error.to_string())?
            }
        };
        match answer {
            Answer::Ok(value) => serde_json::from_value(value).map_err(|error| error.to_string()),
            Answer::Error(reason) => Err(reason),
        }
    }

    /// A failure.
    #[must_use]
    pub fn error(reason: impl ToString) -> Self {
        Self { body: Body::Answer(Answer::Error(reason.to_string())), descriptors: Vec::new() }
    }
}

pub(super) async fn send(stream: &mut UnixStream, reply: Reply) -> io::Result<()> {
    let mut line = match reply.body {
        Body::Answer(answer) => serde_json::to_vec(&answer)?,
        Body::Written(line) => line,
    };
    line.push(b'\n');
    let mut rest = line.as_slice();
    while !rest.is_empty() {
        // The limit is for each write: a table of all connections is long.
        let written = timeout(ANSWER_WAIT_MAX, stream.write(rest)).await??;
        rest = rest.get(written..).unwrap_or_default();
    }
    for one in reply.descriptors {
        loop {
            stream.writable().await?;
            let sent = stream.try_io(tokio::io::Interest::WRITABLE, || {
                descriptor::send(&*stream, b"\n", &[one.as_fd()])
            });
            match sent {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                other => {
                    other?;
                    break;
                }
            };
        }
    }
    Ok(())
}
