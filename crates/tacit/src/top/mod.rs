//! `tacit top`: displays the activity and the CPU time of a running agent. By default, `tacit top`
//! updates the display every second.
//!
//! ```text
//!   control socket ──> sample.rs ──> view.rs ──> draw.rs ──> screen.rs ──> terminal
//!
//!   sample.rs    gets costs and connections, computes differences
//!   view.rs      holds the order and the selection, which the user changes with the keyboard
//! ```
//!
//! `tacit top` must not slow down the agent. So if an agent has many connections, `tacit top`
//! queries the connections less often (see `sample.rs`). `tacit top` restores the terminal when it
//! ends, except after SIGKILL.
//!
//! Limits: `INTERVAL_MIN` and `INTERVAL_MAX` for the time between updates. For a history, use
//! metrics.

mod draw;
mod sample;
mod screen;
mod view;

use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use tacit_core::message_id::MessageId;
use tacit_core::policy::parse_duration;
use tokio::signal::unix::{SignalKind, signal};

use self::sample::Sampler;
use self::screen::{Screen, Size};
use self::view::View;
use crate::control::client::ClientError;
use crate::control::private_agents;
use crate::exit::{EXIT_FAILURE, EXIT_OK, fail, print};

/// The shortest interval between frames. Each frame reads the whole ledger.
const INTERVAL_MIN: Duration = Duration::from_millis(200);
/// The longest interval between frames.
const INTERVAL_MAX: Duration = Duration::from_secs(60);
/// The longest time until a key or a signal is handled.
const KEYS_TIME: Duration = Duration::from_millis(100);
/// The size of the frame that `tacit top --once` prints.
const ONCE_SIZE: Size = Size { columns: 80, lines: 24 };

/// Display the activity and the CPU time of a running agent, continuously
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tacit top
  tacit top --once --interval 5s

Keys:
  q           end the display
  s           sort the rules by the next column
  up, down    select a rule
  left, right show the previous or the next page of the rule's connections
  ?           show help")]
pub struct TopArgs {
    /// Time between frames; each frame shows the activity since the previous frame
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = interval)]
    interval: Duration,
    /// Print one frame as text and exit
    #[arg(long)]
    once: bool,
    /// The control socket of the agent [default: the socket of the shared agent; if that agent does
    /// not run, the socket of the only run]
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,
}

/// The reason why nothing can be displayed.
#[derive(Debug)]
enum TopError {
    /// The agent did not answer.
    Agent(ClientError),
    /// Standard output is not a terminal.
    NoTerminal,
    /// Writing to the terminal failed.
    Terminal(io::Error),
}

impl TopError {
    /// The identifier of the message.
    fn id(&self) -> MessageId {
        match self {
            Self::Agent(error) => error.id(),
            Self::NoTerminal => MessageId("no-terminal"),
            Self::Terminal(_) => MessageId("terminal-failed"),
        }
    }
}

impl std::fmt::Display for TopError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Agent(error) => write!(f, "{error}"),
            Self::NoTerminal => f.write_str(
                "standard input and output must be a terminal\n    \
                 fix: use `tacit top --once` to print one frame, or `tacit show costs`",
            ),
            Self::Terminal(error) => write!(f, "cannot use the terminal: {error}"),
        }
    }
}

impl std::error::Error for TopError {}

/// Runs the command.
#[must_use]
pub fn run(args: &TopArgs) -> ExitCode {
    let control = private_agents::for_display(args.control.as_deref());
    let sampler = Sampler::new(control);
    let done = if args.once {
        once(sampler, args.interval).map(|text| print(text, EXIT_OK))
    } else {
        live(sampler, args.interval).map(|()| EXIT_OK.into())
    };
    done.unwrap_or_else(|error| fail(error.id(), error, EXIT_FAILURE))
}

/// One frame as text.
fn once(mut sampler: Sampler, interval: Duration) -> Result<String, TopError> {
    sampler.sample().map_err(TopError::Agent)?;
    thread::sleep(interval);
    let sample = sampler.sample().map_err(TopError::Agent)?;
    let mut view = View::default();
    view.take(sample);
    let frame = draw::frame(&mut view, ONCE_SIZE);
    let lines = frame.iter().map(|line| format!("{}\n", line.text().trim_end()));
    let text: String = lines.collect();
    Ok(format!("{}\n", text.trim_end()))
}

/// Draws frames until the user quits.
fn live(mut sampler: Sampler, interval: Duration) -> Result<(), TopError> {
    if !(io::stdin().is_terminal() && io::stdout().is_terminal()) {
        return Err(TopError::NoTerminal);
    }
    // Queries the agent before it changes the terminal.
    let first = sampler.sample().map_err(TopError::Agent)?;
    let ended = Arc::new(AtomicBool::new(false));
    watch_signals(&ended).map_err(TopError::Terminal)?;
    let mut view = View::default();
    view.take(first);
    let mut screen = Screen::open().map_err(TopError::Terminal)?;
    let done = frames(&mut screen, &mut sampler, &mut view, interval, &ended);
    // Installs the handlers before the terminal is changed.
    drop(screen);
    done.map_err(TopError::Terminal)
}

fn frames(
    screen: &mut Screen,
    sampler: &mut Sampler,
    view: &mut View,
    interval: Duration,
    ended: &AtomicBool,
) -> io::Result<()> {
    let mut due = Instant::now() + interval;
    loop {
        screen.draw(|size| draw::frame(view, size))?;
        let wait = due.saturating_duration_since(Instant::now()).min(KEYS_TIME);
        if event::poll(wait)?
            && let Event::Key(key) = event::read()?
            && pressed(key, view) == Next::End
        {
            return Ok(());
        }
        if ended.load(Ordering::Relaxed) {
            return Ok(());
        }
        if Instant::now() >= due {
            due = Instant::now() + interval;
            match sampler.sample() {
                Ok(sample) => view.take(sample),
                // The agent may be restarting: the last frame stays, with the reason.
                Err(error) => view.set_lost(&error),
            }
        }
    }
}

/// What `tacit top` does after a key: draw the next frame, or end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Frame,
    End,
}

/// Handles a key.
fn pressed(key: KeyEvent, view: &mut View) -> Next {
    if key.kind == KeyEventKind::Release {
        return Next::Frame;
    }
    let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
    match key.code {
        KeyCode::Char('c' | 'd') if is_control => return Next::End,
        KeyCode::Char('q') => return Next::End,
        KeyCode::Char('s') => view.sort_by_next(),
        KeyCode::Char('?' | 'h') => view.toggle_help(),
        KeyCode::Esc => view.leave_help(),
        KeyCode::Up | KeyCode::Char('k') => view.select(-1),
        KeyCode::Down | KeyCode::Char('j') => view.select(1),
        KeyCode::Left | KeyCode::PageUp => view.turn_page(-1),
        KeyCode::Right | KeyCode::PageDown => view.turn_page(1),
        _ => {}
    }
    Next::Frame
}

/// Handles signals that terminate the process, so that the terminal is restored first.
fn watch_signals(ended: &Arc<AtomicBool>) -> io::Result<()> {
    let runtime = crate::runtime::builder()?.enable_all().build()?;
    let inside = runtime.enter();
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hangup = signal(SignalKind::hangup())?;
    drop(inside);
    let ended = Arc::clone(ended);
    let wait = async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            _ = hangup.recv() => {}
        }
        ended.store(true, Ordering::Relaxed);
    };
    thread::Builder::new().name("signals".to_owned()).spawn(move || runtime.block_on(wait))?;
    Ok(())
}

fn interval(text: &str) -> Result<Duration, String> {
    let duration = parse_duration(text).ok_or("expected a duration such as 1s or 500ms")?;
    if duration < INTERVAL_MIN || duration > INTERVAL_MAX {
        return Err(format!("expected a duration from {INTERVAL_MIN:?} to {INTERVAL_MAX:?}"));
    }
    Ok(duration)
}
