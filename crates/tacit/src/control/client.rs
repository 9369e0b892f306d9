//! Sends one request to a running agent over its control socket, and reads the answer.

use std::fmt;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tacit_core::message_id::MessageId;

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::private_agents::{self, PrivateAgent};
use super::{Answer, Display, Request, directory};
use crate::exit::with_fix;
use crate::ledger::costs::Costs;

/// Why a request got no answer.
#[derive(Debug)]
pub enum ClientError {
    /// No process listens at the control socket.
    NoAgent(PathBuf, io::Error),
    /// No process listens at the default control socket. But these private agents are running. Each
    /// of them serves one run.
    OnlyPrivate(PathBuf, Vec<PrivateAgent>),
    /// The agent refused the request, for this reason.
    Refused(String),
    /// The connection failed, or the agent sent an invalid answer.
    Broken(io::Error),
    /// The agent did not answer within this time.
    Silent(Duration),
    /// A successor replaced the agent between two requests.
    Restarted,
}

impl ClientError {
    /// The identifier of the message.
    #[must_use]
    pub fn id(&self) -> MessageId {
        match self {
            Self::NoAgent(_, error) if error.kind() == io::ErrorKind::PermissionDenied => {
                MessageId("agent-not-permitted")
            }
            Self::NoAgent(..) => MessageId("no-agent"),
            Self::OnlyPrivate(..) => MessageId("only-agents-of-runs"),
            Self::Refused(_) => MessageId("refused-by-agent"),
            Self::Broken(_) => MessageId("answer-unusable"),
            Self::Silent(_) => MessageId("agent-silent"),
            Self::Restarted => MessageId("agent-restarted"),
        }
    }
}

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoAgent(path, error) if error.kind() == io::ErrorKind::PermissionDenied => {
                write!(
                    f,
                    "cannot connect to the agent at {}: {error}\n    \
                     fix: run this command as the agent's user or as root; no other user may \
                     control the agent",
                    path.display()
                )
            }
            Self::NoAgent(path, error) => write!(
                f,
                "no agent answers at {}: {error}\n    fix: start an agent with `tacit agent` or \
                 `tacit run`, or set --control to the control socket of a running agent",
                path.display()
            ),
            Self::OnlyPrivate(path, private) => {
                let (private_agents, fix) = match private.len() {
                    1 => ("the private agent of a run", "set --control to its control socket"),
                    _ => (
                        "the private agents of several runs",
                        "set --control to the control socket of one of these agents",
                    ),
                };
                write!(
                    f,
                    "no agent answers at {}; tacit found {private_agents}\n    \
                     fix: {fix}:",
                    path.display()
                )?;
                private.iter().try_for_each(|agent| write!(f, "\n        {agent}"))
            }
            Self::Refused(reason) => {
                f.write_str(&with_fix(reason, "read the log of the agent, and try again"))
            }
            Self::Broken(error) => write!(f, "cannot read the agent's answer: {error}"),
            Self::Silent(patience) => {
                write!(
                    f,
                    "the agent did not answer within {patience:?}: its process may be stopped or \
                     overloaded; check the process, and try again"
                )
            }
            Self::Restarted => f.write_str(
                "the agent was restarted during the interval, and the counters of the new agent \
                 began at 0: run the command again",
            ),
        }
    }
}

impl std::error::Error for ClientError {}

/// Reads the ledger. Without `interval`, returns the totals since the agent started. With
/// `interval`, reads the ledger twice, at the start and at the end of the interval, and returns the
/// difference.
///
/// # Errors
/// See [`ClientError`].
pub fn costs(control: &Path, interval: Option<Duration>) -> Result<Costs, ClientError> {
    let read = || ask_typed::<Costs>(control, &Request::Show { what: Display::Costs });
    let Some(interval) = interval else { return read() };
    let before = read()?;
    std::thread::sleep(interval);
    let after = read()?;
    // The figures of two agents cannot be subtracted.
    if after.since != before.since {
        return Err(ClientError::Restarted);
    }
    Ok(after.since(&before))
}

/// Sends one request, and converts the answer to the type `T`.
///
/// # Errors
/// See [`ClientError`].
pub fn ask_typed<T: DeserializeOwned>(control: &Path, request: &Request) -> Result<T, ClientError> {
    typed(ask(control, request)?)
}

/// Converts an answer to the type `T`.
///
/// # Errors
/// The answer does not have this type.
pub fn typed<T: DeserializeOwned>(answer: Value) -> Result<T, ClientError> {
    serde_json::from_value(answer).map_err(|error| broken(&error))
}

/// Size of the read buffer of a connection that is used for one answer only.
const READ_BYTES: usize = 64 * 1024;

/// Sends one request and waits for its answer.
///
/// # Errors
/// See [`ClientError`].
pub fn ask(control: &Path, request: &Request) -> Result<Value, ClientError> {
    let stream = connect(control)?;
    ask_by(&stream, request, READ_BYTES)
}

/// Like [`ask`], but fails if the agent sends nothing for the time `patience`.
///
/// # Errors
/// See [`ClientError`].
pub fn ask_within(
    control: &Path,
    request: &Request,
    patience: Duration,
) -> Result<Value, ClientError> {
    let stream = connect(control)?;
    stream.set_read_timeout(Some(patience)).map_err(ClientError::Broken)?;
    stream.set_write_timeout(Some(patience)).map_err(ClientError::Broken)?;
    ask_by(&stream, request, READ_BYTES).map_err(|error| match error {
        ClientError::Broken(error) if error.kind() == io::ErrorKind::WouldBlock => {
            ClientError::Silent(patience)
        }
        other => other,
    })
}

/// Like [`ask`], but on an open connection. Does not read bytes after the answer.
///
/// # Errors
/// See [`ClientError`].
pub fn ask_on(stream: &UnixStream, request: &Request) -> Result<Value, ClientError> {
    ask_by(stream, request, 1)
}

/// Like [`ask_on`], for the last answer on a connection. Reads larger pieces, because the caller
/// needs no bytes after the answer.
///
/// # Errors
/// The same as [`ask_on`].
pub fn ask_long_on(stream: &UnixStream, request: &Request) -> Result<Value, ClientError> {
    ask_by(stream, request, READ_BYTES)
}

/// Connects to a control socket.
///
/// # Errors
/// No agent listens there, or this user may not connect.
pub fn connect(control: &Path) -> Result<UnixStream, ClientError> {
    directory::check(control)
        .and_then(|()| UnixStream::connect(control))
        .map_err(|error| no_agent(control, error))
}

fn no_agent(control: &Path, error: io::Error) -> ClientError {
    let is_default = control == super::default_path();
    let is_absent =
        matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused);
    let private = if is_default && is_absent {
        private_agents::answering_with_commands()
    } else {
        Vec::new()
    };
    if private.is_empty() {
        return ClientError::NoAgent(control.to_owned(), error);
    }
    ClientError::OnlyPrivate(control.to_owned(), private)
}

fn ask_by(
    mut stream: &UnixStream,
    request: &Request,
    read_bytes: usize,
) -> Result<Value, ClientError> {
    let mut line = serde_json::to_vec(request).map_err(|error| broken(&error))?;
    line.push(b'\n');
    stream.write_all(&line).map_err(ClientError::Broken)?;
    read_by(stream, read_bytes)
}

/// Reads one more answer. Does not read bytes after the answer.
///
/// # Errors
/// See [`ClientError`].
pub fn read_answer(stream: &UnixStream) -> Result<Value, ClientError> {
    read_by(stream, 1)
}

fn read_by(stream: &UnixStream, read_bytes: usize) -> Result<Value, ClientError> {
    let mut answer = String::new();
    BufReader::with_capacity(read_bytes, stream)
        .read_line(&mut answer)
        .map_err(ClientError::Broken)?;
    match serde_json::from_str(&answer).map_err(|error| broken(&error))? {
        Answer::Ok(value) => Ok(value),
        Answer::Error(reason) => Err(ClientError::Refused(reason)),
    }
}

fn broken(error: &serde_json::Error) -> ClientError {
    ClientError::Broken(io::Error::new(io::ErrorKind::InvalidData, error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;
    use std::time::SystemTime;

    fn listen(name: &str) -> (PathBuf, UnixListener) {
        let name = format!("tacit-client-{name}-{}.sock", std::process::id());
        let path = std::env::temp_dir().join(name);
        let listener = UnixListener::bind(&path).unwrap();
        (path, listener)
    }

    #[test]
    fn a_request_to_a_silent_agent_times_out() {
        let (path, _listener) = listen("silent");
        let request = Request::Show { what: Display::Costs };
        let patience = Duration::from_millis(10);
        let silent = ask_within(&path, &request, patience).unwrap_err();
        assert!(matches!(silent, ClientError::Silent(_)), "{silent}");
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn an_interval_in_which_the_agent_was_restarted_has_no_costs() {
        let (path, listener) = listen("restarted");
        let started = [0, 1, 1, 1].map(|s| SystemTime::UNIX_EPOCH + Duration::from_secs(s));
        let agents = std::thread::spawn(move || {
            for started in started {
                let (mut stream, _) = listener.accept().unwrap();
                let mut request = String::new();
                BufReader::new(&stream).read_line(&mut request).unwrap();
                let costs = Costs::read(started, |_| None, Vec::new());
                let answer = Answer::Ok(serde_json::to_value(costs).unwrap());
                stream.write_all(&serde_json::to_vec(&answer).unwrap()).unwrap();
            }
        });
        let measure = || costs(&path, Some(Duration::from_millis(1)));
        assert!(matches!(measure(), Err(ClientError::Restarted)));
        assert!(measure().unwrap().interval_s > 0.0);
        agents.join().unwrap();
        std::fs::remove_file(&path).unwrap();
    }
}
