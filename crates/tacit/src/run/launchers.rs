//! Accepts launchers (`tacit run`) that register their programs with this agent. The connection of
//! a launcher stays open until its program has ended.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use tacit_sys::socket;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, mpsc, oneshot};

use crate::log::{Event, Log};

use super::channel::{read_frame_of_run, write_frame};
use super::protocol::{
    Enrolment, Frame, FromLauncher, LAUNCHER_BYTES_MAX, RunTerms, SocketSet, ToLauncher,
};

/// The maximum number of queued events of runs.
pub const EVENTS_MAX: usize = 64;

/// How long a launcher may take from connecting to enrolling. It sets up its namespace meanwhile.
const ENROLMENT_WAIT_MAX: Duration = Duration::from_secs(10);

/// The maximum number of connected launchers, including those that will be refused because of the
/// limit of runs. Further launchers wait in the kernel's queue.
const LAUNCHERS_MAX: usize = RUNS_MAX + 64;

/// The maximum number of runs of an agent. Each run needs about ten descriptors.
pub const RUNS_MAX: usize = 1024;

/// Events of launchers, for the control thread.
///
/// `S` is what the agent serves for a run.
#[derive(Debug)]
pub enum RunEvent<S> {
    /// A launcher wants to enrol its run.
    Begin(Box<Application>),
    /// The services of a run are set up.
    Begun(Box<S>, LauncherReply),
    /// The run with this number has a new helper, with this channel.
    HelperChannel(u64, OwnedFd),
    /// The programs of the run with this number listen on other addresses than before.
    Listening(u64),
    /// The run with this number has ended.
    End(u64),
    /// A launcher ended or was refused before its run began.
    NoRun,
}

/// A launcher's application to enrol its run.
#[derive(Debug)]
pub struct Application {
    /// Its description of the run.
    pub enrolment: Enrolment,
    /// The sockets of the run.
    pub sockets: RunSockets,
    /// The launcher's user.
    pub uid: u32,
    /// The launcher.
    pub launcher: Launcher,
    /// The channel for the answer.
    pub back: LauncherReply,
}

/// The answer to an application, or why the run is refused.
pub type EnrolmentDecision = Result<Admission, String>;

/// The channel to the task that serves a launcher.
#[derive(Debug)]
pub struct LauncherReply(mpsc::Sender<EnrolmentAnswer>);

/// What a launcher gets to know about its enrolment.
#[derive(Debug)]
enum EnrolmentAnswer {
    /// What the agent waits for.
    Waiting(String),
    Decided(EnrolmentDecision),
}

/// The answers that wait: one of each kind.
const ANSWERS_MAX: usize = 2;

impl LauncherReply {
    /// Shows what the agent waits for. Has an effect once.
    pub fn note_waiting(&self, what: String) {
        // If the launcher has ended, the decision fails too.
        let _ = self.0.try_send(EnrolmentAnswer::Waiting(what));
    }

    /// Sends the decision. If the launcher has ended, so has its run.
    pub fn decide(self, decision: EnrolmentDecision) {
        let _ = self.0.try_send(EnrolmentAnswer::Decided(decision));
    }
}

/// A run that was admitted.
#[derive(Debug)]
pub struct Admission {
    /// Its number.
    pub id: u64,
    /// The conditions for its program.
    pub terms: RunTerms,
}

/// The launcher of a run.
#[derive(Debug)]
pub struct Launcher {
    /// A duplicate of its connection, for a successor.
    pub connection: OwnedFd,
    /// When this is dropped, this agent stops reading from the connection.
    pub reading: oneshot::Sender<()>,
}

/// The sockets of a run, which the launcher creates inside and the agent uses.
#[derive(Debug)]
pub struct RunSockets {
    /// The channel to the helper.
    pub helper: OwnedFd,
    /// The query socket; older launchers have none.
    pub query: Option<OwnedFd>,
    /// The source of copies of held SYNs; `None` for an older launcher, which does not hold SYNs.
    pub syn_log: Option<OwnedFd>,
    /// Listeners for captured TCP connections, one for each IP version.
    pub tcp: Vec<OwnedFd>,
    /// Receivers of captured datagrams, one for each IP version.
    pub udp: Vec<OwnedFd>,
    /// Raw sockets that send ICMP errors and RSTs, one for each IP version.
    pub raw: Vec<OwnedFd>,
    /// Sockets that keep SYNs held, one for each IP version.
    pub hold: Vec<OwnedFd>,
    /// Sockets that release SYNs, one for each IP version.
    pub release: Vec<OwnedFd>,
}

impl RunSockets {
    /// Builds the sockets of a host or of a joined namespace from descriptors, in the order of
    /// [`tacit_sys::host::HostSockets`], without the listeners for clients.
    ///
    /// # Errors
    /// The descriptors are not one of each kind.
    pub fn of_host(helper: OwnedFd, sockets: Vec<OwnedFd>) -> io::Result<Self> {
        let all = std::iter::once(helper).chain(sockets).collect();
        Self::from_order(all, SocketSet::Host)
    }

    /// Assigns the sockets in the order in which a launcher or a predecessor sends them.
    ///
    /// # Errors
    /// The number of sockets is wrong.
    pub fn from_order(sockets: Vec<OwnedFd>, set: SocketSet) -> io::Result<Self> {
        let count = sockets.len();
        let holds = match set {
            SocketSet::Connected => false,
            SocketSet::Held | SocketSet::Host => true,
            // A launcher sends none: the agent gets them from the helper.
            SocketSet::Joined => count > 1,
        };
        let of_family = if holds { 5 } else { 3 };
        let (has_query, counts): (_, &[usize]) = match set {
            // Older launchers have no query socket.
            SocketSet::Connected => ([5, 8].contains(&count), &[4, 5, 7, 8]),
            SocketSet::Held => (true, &[8, 13]),
            SocketSet::Host => (false, &[7, 12]),
            SocketSet::Joined => (false, &[1, 7, 12]),
        };
        if !counts.contains(&count) {
            let text = format!(
                "the agent received {count} sockets from the launcher (`tacit run`), but needs 8, \
                 or 13 with IPv6. The agent's limit of open files is probably too low: raise this \
                 limit"
            );
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        let mut all = sockets.into_iter();
        let helper = all.next().ok_or(io::ErrorKind::InvalidData)?;
        let query = has_query.then(|| all.next()).flatten();
        let syn_log = holds.then(|| all.next()).flatten();
        let mut made = Self {
            helper,
            query,
            syn_log,
            tcp: Vec::new(),
            udp: Vec::new(),
            raw: Vec::new(),
            hold: Vec::new(),
            release: Vec::new(),
        };
        for (at, socket) in all.enumerate() {
            match at % of_family {
                0 => made.tcp.push(socket),
                1 => made.udp.push(socket),
                2 => made.raw.push(socket),
                3 => made.hold.push(socket),
                _ => made.release.push(socket),
            }
        }
        Ok(made)
    }
}

/// The connection of a launcher whose run has begun.
#[derive(Debug)]
pub struct Followed {
    /// The connection.
    pub stream: UnixStream,
    /// Completes when this agent has handed the run over.
    pub until: oneshot::Receiver<()>,
    /// The run's number.
    pub id: u64,
}

/// Accepts launchers until its task is aborted.
pub async fn accept_launchers<S: 'static>(
    listener: UnixListener,
    events: mpsc::Sender<RunEvent<S>>,
    log: Log,
) {
    let places = Arc::new(Semaphore::new(LAUNCHERS_MAX));
    while let Ok(place) = Arc::clone(&places).acquire_owned().await {
        match listener.accept().await {
            Ok((stream, _)) => {
                let welcome = welcome(stream, events.clone(), log.clone());
                tokio::task::spawn_local(async move {
                    let _place = place;
                    welcome.await;
                });
            }
            Err(error) => {
                log.warn(Event::new("enrolment-failed").field("error", &error));
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// Serves one launcher, from its enrolment to its end.
pub async fn welcome<S>(stream: UnixStream, events: mpsc::Sender<RunEvent<S>>, log: Log) {
    match enrol(stream, &events).await {
        Ok(Some(followed)) => return follow(followed, events, log).await,
        Ok(None) => {}
        Err(error) => log.warn(Event::new("enrolment-failed").field("error", &error)),
    }
    // The control thread lives as long as the agent.
    let _ = events.send(RunEvent::NoRun).await;
}

async fn enrol<S>(
    mut stream: UnixStream,
    events: &mpsc::Sender<RunEvent<S>>,
) -> io::Result<Option<Followed>> {
    let uid = socket::peer_credentials(stream.as_fd())?.uid;
    let reading = read_frame_of_run(&mut stream, LAUNCHER_BYTES_MAX);
    let read = tokio::time::timeout(ENROLMENT_WAIT_MAX, reading).await;
    let frame = read.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?;
    let (enrolment, sockets) = match frame {
        Some(Frame { message: FromLauncher::Enrol(enrolment), descriptors }) => {
            (enrolment, descriptors)
        }
        Some(Frame { message: FromLauncher::HelperChannel, .. }) => {
            return Err(io::ErrorKind::InvalidData.into());
        }
        None => return Ok(None),
    };
    let sockets = RunSockets::from_order(sockets, enrolment.sockets);
    let (reading, until) = oneshot::channel();
    let begun = async {
        let connection = stream.as_fd().try_clone_to_owned().map_err(|error| error.to_string())?;
        let launcher = Launcher { connection, reading };
        let sockets = sockets.map_err(|error| error.to_string())?;
        let (back, answers) = mpsc::channel(ANSWERS_MAX);
        let back = LauncherReply(back);
        let application = Application { enrolment, sockets, uid, launcher, back };
        let begin = RunEvent::Begin(Box::new(application));
        let ending = || "the agent is ending and accepts no new runs".to_owned();
        events.send(begin).await.map_err(|_| ending())?;
        Ok::<_, String>((answers, ending()))
    };
    let decision = match begun.await {
        Ok((mut answers, ending)) => loop {
            match answers.recv().await {
                Some(EnrolmentAnswer::Waiting(what)) => {
                    // If the launcher has ended by now, so has its run.
                    let _ = write_frame(&mut stream, &ToLauncher::Waiting(what)).await;
                }
                Some(EnrolmentAnswer::Decided(decision)) => break decision,
                None => break Err(ending),
            }
        },
        Err(reason) => Err(reason),
    };
    match decision {
        Ok(Admission { id, terms }) => {
            // If the launcher has ended by now, `follow` finds that and ends its run.
            let _ = write_frame(&mut stream, &ToLauncher::Terms(terms)).await;
            Ok(Some(Followed { stream, until, id }))
        }
        Err(reason) => {
            write_frame(&mut stream, &ToLauncher::Refused(reason)).await?;
            Ok(None)
        }
    }
}

/// Reads messages of a run's launcher until it closes, or until this agent has handed the run over:
/// then a successor reads from the same socket.
pub async fn follow<S>(followed: Followed, events: mpsc::Sender<RunEvent<S>>, log: Log) {
    let Followed { mut stream, mut until, id } = followed;
    loop {
        let frame = tokio::select! {
            biased;
            // This cannot lose part of a frame, because a launcher writes frames in one call.
            _ = &mut until => return,
            frame = read_frame_of_run(&mut stream, LAUNCHER_BYTES_MAX) => frame,
        };
        let event = match frame {
            Ok(Some(Frame { message: FromLauncher::HelperChannel, mut descriptors })) => {
                descriptors.pop().map(|channel| RunEvent::HelperChannel(id, channel))
            }
            Ok(Some(Frame { message: FromLauncher::Enrol(_), .. })) => None,
            Ok(None) => Some(RunEvent::End(id)),
            Err(error) => {
                log.warn(Event::new("launcher-failed").field("error", &error));
                Some(RunEvent::End(id))
            }
        };
        let is_end = matches!(event, Some(RunEvent::End(_)));
        if let Some(event) = event {
            // The control thread lives as long as the agent.
            let _ = events.send(event).await;
        }
        if is_end {
            return;
        }
    }
}
