//! Asking a running agent.

use std::fmt;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use super::{Answer, Display, Request};
use crate::ledger::costs::Costs;

/// Why there is no answer.
#[derive(Debug)]
pub enum ClientError {
    /// Nobody listens at the control socket.
    NoAgent(PathBuf, io::Error),
    /// The agent refused.
    Refused(String),
    /// The agent did not answer in its own language.
    Broken(io::Error),
}

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoAgent(path, error) => write!(
                f,
                "no agent answers at {}: {error}\n    \
                 fix: start one with `tacit agent`, or name its socket with --control",
                path.display()
            ),
            Self::Refused(reason) => f.write_str(reason),
            Self::Broken(error) => write!(f, "the agent's answer cannot be read: {error}"),
        }
    }
}

impl std::error::Error for ClientError {}

/// The ledger: of `interval` from now on, or since the agent started.
///
/// # Errors
/// See [`ClientError`].
pub fn costs(control: &Path, interval: Option<Duration>) -> Result<Costs, ClientError> {
    let read = || {
        let value = ask(control, &Request::Show { what: Display::Costs })?;
        serde_json::from_value::<Costs>(value).map_err(|error| broken(&error))
    };
    let Some(interval) = interval else { return read() };
    let before = read()?;
    std::thread::sleep(interval);
    Ok(read()?.since(&before))
}

/// Sends one request and waits for its answer.
///
/// # Errors
/// See [`ClientError`].
pub fn ask(control: &Path, request: &Request) -> Result<Value, ClientError> {
    let stream = UnixStream::connect(control)
        .map_err(|error| ClientError::NoAgent(control.to_owned(), error))?;
    ask_on(&stream, request)
}

/// The same on a connection that is open already.
///
/// # Errors
/// See [`ClientError`].
pub fn ask_on(mut stream: &UnixStream, request: &Request) -> Result<Value, ClientError> {
    let mut line = serde_json::to_vec(request).map_err(|error| broken(&error))?;
    line.push(b'\n');
    stream.write_all(&line).map_err(ClientError::Broken)?;
    let mut answer = String::new();
    BufReader::with_capacity(1, stream).read_line(&mut answer).map_err(ClientError::Broken)?;
    match serde_json::from_str(&answer).map_err(|error| broken(&error))? {
        Answer::Ok(value) => Ok(value),
        Answer::Error(reason) => Err(ClientError::Refused(reason)),
    }
}

fn broken(error: &serde_json::Error) -> ClientError {
    ClientError::Broken(io::Error::new(io::ErrorKind::InvalidData, error.to_string()))
}
