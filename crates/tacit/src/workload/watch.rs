//! Observes a running workload: its progress, and the TCP state of one connection.
//!
//! A thread takes ten samples a second, or fewer if sampling takes long. Each thread that generates
//! load has its own counter, so that no thread waits for another.

use std::io::{IsTerminal, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tacit_core::page::{Chart, Series, SeriesMark};
use tacit_core::statistics::Point;

use super::agent_sockets;
use super::ledgers::Agent;
use super::samples::Samples;
use super::socket::Stream;
use super::tcp::{self, Trace};

const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

/// The progress of the workers; each writes its own cell.
#[derive(Clone, Debug)]
pub(super) struct Done(Arc<[AtomicU64]>);

impl Done {
    pub(super) fn new(workers: usize) -> Self {
        Self((0..workers).map(|_| AtomicU64::new(0)).collect())
    }

    /// Adds to the count of one worker.
    pub(super) fn count(&self, worker: usize, more: u64) {
        if let Some(cell) = self.0.get(worker) {
            // Each cell has one writer, so a plain add suffices.
            cell.store(cell.load(Ordering::Relaxed) + more, Ordering::Relaxed);
        }
    }

    /// The sum of all workers.
    pub(super) fn total(&self) -> u64 {
        self.0.iter().map(|cell| cell.load(Ordering::Relaxed)).sum()
    }
}

/// The unit of the progress line.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unit {
    /// `exchanges`, `MB`, `connections`.
    pub(super) plural: &'static str,
    /// The number of counted items that make one unit.
    pub(super) of: f64,
}

/// The connections whose TCP state is sampled.
#[derive(Debug, Default)]
pub(super) struct WatchedConnections {
    /// The client's connection, if the client sends.
    pub(super) own: Option<Stream>,
    /// The agents whose connections are sampled.
    pub(super) agents: Vec<Agent>,
}

/// Where a progress line is written every second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProgressLines {
    /// No progress lines.
    Never,
    /// To standard error if that is a terminal.
    OnTerminal,
    /// To standard error.
    Always,
}

impl ProgressLines {
    /// Whether lines are printed: not if standard error is no terminal, unless they always are.
    pub(super) fn are_printed(self) -> bool {
        match self {
            Self::Never => false,
            Self::OnTerminal => std::io::stderr().is_terminal(),
            Self::Always => true,
        }
    }
}

/// The progress at one instant.
#[derive(Clone, Copy, Debug)]
struct Progress {
    at_s: f64,
    done: u64,
}

/// The running observer.
#[derive(Debug)]
pub(super) struct Watch {
    ended: Arc<AtomicBool>,
    progress_sampler: Option<JoinHandle<ProgressSamples>>,
    agent_samplers: Vec<JoinHandle<Trace>>,
    unit: Unit,
}

impl Watch {
    /// Starts to sample `done` and the connections. If a thread cannot be started, its charts are
    /// missing from the report.
    pub(super) fn start(
        unit: Unit,
        done: &Done,
        watched: WatchedConnections,
        lines: ProgressLines,
    ) -> Self {
        let ended = Arc::new(AtomicBool::new(false));
        let start = Instant::now();
        let thread = || std::thread::Builder::new().name("watch".to_owned());
        let follow = |agent: Agent| {
            let ended = Arc::clone(&ended);
            thread().spawn(move || agent_sockets::follow(&agent, start, &ended)).ok()
        };
        let agent_samplers = watched.agents.into_iter().filter_map(follow).collect();
        let lines = if lines.are_printed() { lines } else { ProgressLines::Never };
        let done = done.clone();
        let progress_sampler =
            ProgressSampler { ended: Arc::clone(&ended), unit, done, own: watched.own, lines };
        Self {
            ended,
            progress_sampler: thread().spawn(move || progress_sampler.run(start)).ok(),
            agent_samplers,
            unit,
        }
    }

    /// Stops the threads, and returns the charts; `far` has the samples of the server.
    pub(super) fn finish(mut self, far: impl Into<Option<Trace>>) -> Vec<Chart> {
        self.stop();
        let samples_taken =
            self.progress_sampler.take().and_then(|progress_sampler| progress_sampler.join().ok());
        let mut traces = Vec::new();
        let mut progress = Vec::new();
        if let Some(samples_taken) = samples_taken {
            progress = samples_taken.progress;
            traces.push(samples_taken.own);
        }
        traces.extend(self.agent_samplers.drain(..).filter_map(|sampler| sampler.join().ok()));
        traces.extend(far.into());
        traces.retain(|trace| !trace.samples.is_empty());
        let mut charts = vec![rate(&progress, self.unit)];
        charts.extend(tcp::charts(&traces));
        charts.retain(|chart| !chart.is_empty());
        charts
    }

    /// Signals the threads to end.
    fn stop(&self) {
        self.ended.store(true, Ordering::Relaxed);
        let threads = self.progress_sampler.iter().map(JoinHandle::thread);
        threads
            .chain(self.agent_samplers.iter().map(JoinHandle::thread))
            .for_each(std::thread::Thread::unpark);
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop();
        // A dropped observer discards its samples.
        let _ = self.progress_sampler.take().map(JoinHandle::join);
        self.agent_samplers.drain(..).for_each(|sampler| drop(sampler.join()));
    }
}

/// The samples of the progress and of the client's connection.
#[derive(Debug)]
struct ProgressSamples {
    progress: Vec<Progress>,
    own: Trace,
}

struct ProgressSampler {
    ended: Arc<AtomicBool>,
    unit: Unit,
    done: Done,
    own: Option<Stream>,
    lines: ProgressLines,
}

impl ProgressSampler {
    fn run(self, start: Instant) -> ProgressSamples {
        let mut progress = Samples::starting(start);
        let mut samples = Samples::starting(start);
        let mut line = start + PROGRESS_INTERVAL;
        let mut before = 0;
        while !self.ended.load(Ordering::Relaxed) {
            std::thread::park_timeout(progress.wait());
            if !progress.wait().is_zero() {
                continue;
            }
            let done = self.done.total();
            progress.keep(Progress { at_s: start.elapsed().as_secs_f64(), done });
            let own = self.own.as_ref();
            if let Some(sample) = own.and_then(|own| tcp::Sample::of(own.as_fd(), start)) {
                samples.keep(sample);
            }
            if self.lines != ProgressLines::Never && Instant::now() >= line {
                line += PROGRESS_INTERVAL;
                print_line(&self.line(start.elapsed(), done, before));
                before = done;
            }
        }
        let own = Trace { of: "client".to_owned(), samples: samples.into_kept() };
        ProgressSamples { progress: progress.into_kept(), own }
    }

    fn line(&self, elapsed: Duration, total: u64, before: u64) -> String {
        let Unit { plural, of } = self.unit;
        let all = total as f64 / of;
        let last = (total - before) as f64 / of;
        let seconds = elapsed.as_secs();
        format!("{seconds:4} s  {all:12.0} {plural}  {last:10.0} in the last second")
    }
}

/// Writes a line to standard error; if that fails, the measurement continues.
fn print_line(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}

fn rate(samples: &[Progress], unit: Unit) -> Chart {
    let points = samples.windows(2).filter_map(|pair| {
        let [before, now] = pair else { return None };
        let seconds = now.at_s - before.at_s;
        let done = now.done.saturating_sub(before.done) as f64 / unit.of;
        (seconds > 0.0).then(|| Point { x: now.at_s, y: done / seconds })
    });
    Chart {
        title: format!("{} per second", unit.plural),
        x: "seconds".to_owned(),
        y: format!("{}/s", unit.plural),
        series: vec![Series::new(unit.plural, SeriesMark::Line, points.collect())],
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use super::*;

    const MB: Unit = Unit { plural: "MB", of: 1e6 };

    #[test]
    fn rates_are_between_samples() {
        let sample =
            |second: u32| Progress { at_s: f64::from(second), done: u64::from(second) * 5_000_000 };
        let samples: Vec<_> = (0..5).map(sample).collect();
        let points = rate(&samples, MB).series.remove(0).points;
        assert_eq!(points, [1.0, 2.0, 3.0, 4.0].map(|x| Point { x, y: 5.0 }));
    }

    #[test]
    fn workers_count_apart_and_are_added_up() {
        let done = Done::new(2);
        done.count(0, 3);
        done.count(1, 4);
        done.count(1, 1);
        done.count(2, 100);
        assert_eq!(done.total(), 8);
    }

    #[test]
    fn a_progress_line_has_the_total_and_the_last_second() {
        let done = Done::new(1);
        let lines = ProgressLines::Always;
        let progress_sampler =
            ProgressSampler { ended: Arc::default(), unit: MB, done, own: None, lines };
        let line = progress_sampler.line(Duration::from_secs(3), 30_000_000, 20_000_000);
        assert_eq!(line, "   3 s            30 MB          10 in the last second");
    }

    #[test]
    fn a_connection_is_sampled_while_it_runs() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let done = Done::new(1);
        let watched =
            WatchedConnections { own: Some(Stream::Tcp(stream)), ..WatchedConnections::default() };
        let watch = Watch::start(MB, &done, watched, ProgressLines::Never);
        std::thread::sleep(Duration::from_millis(450));
        let samples = vec![tcp::Sample::default(); 3];
        let charts = watch.finish(Trace { of: "server".to_owned(), samples });
        assert_eq!(charts.len(), 6, "rate, window, round trip, deviation, two queues: {charts:?}");
        assert_eq!(charts[1].series.len(), 2, "both ends: {charts:?}");
    }
}
