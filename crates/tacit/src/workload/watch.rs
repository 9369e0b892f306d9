//! What is looked at while a workload runs: how far it is, and what the kernel says of the first
//! connection.
//!
//! A thread of its own looks ten times a second, less often the longer it takes: the number of
//! samples is bounded, and every other one is dropped when there are too many. Workers count in
//! cells of their own, so that nobody waits for anybody.

use std::io::{IsTerminal, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tacit_sys::socket::{self, TcpInfo};

use super::report::{Chart, Mark, Series};

/// Samples kept.
const SAMPLES_MAX: usize = 600;
const SAMPLE_INTERVAL: Duration = Duration::from_millis(100);
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

/// What the workers have done so far; each writes its own cell.
#[derive(Clone, Debug)]
pub(super) struct Done(Arc<[AtomicU64]>);

impl Done {
    pub(super) fn new(workers: usize) -> Self {
        Self((0..workers).map(|_| AtomicU64::new(0)).collect())
    }

    /// Counts for one worker.
    pub(super) fn count(&self, worker: usize, more: u64) {
        if let Some(cell) = self.0.get(worker) {
            // One writer: no need for a locked add.
            cell.store(cell.load(Ordering::Relaxed) + more, Ordering::Relaxed);
        }
    }

    /// Of all workers.
    pub(super) fn total(&self) -> u64 {
        self.0.iter().map(|cell| cell.load(Ordering::Relaxed)).sum()
    }
}

/// What is counted, in the words of the progress line.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unit {
    /// `exchanges`, `MB`, `connections`.
    pub(super) plural: &'static str,
    /// How many of what is counted make one.
    pub(super) of: f64,
}

/// What was seen at one instant.
#[derive(Clone, Copy, Debug)]
struct Sample {
    at_s: f64,
    done: u64,
    tcp: Option<Tcp>,
}

#[derive(Clone, Copy, Debug)]
struct Tcp {
    info: TcpInfo,
    queued_bytes: usize,
}

/// A watch that runs.
#[derive(Debug)]
pub(super) struct Watch {
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<Vec<Sample>>>,
    unit: Unit,
}

impl Watch {
    /// Starts to look at `done`, and at `stream` if there is one. A thread that cannot be had
    /// leaves progress and charts out.
    pub(super) fn start(
        unit: Unit,
        done: &Done,
        stream: Option<TcpStream>,
        progress: bool,
    ) -> Self {
        let ended = Arc::new(AtomicBool::new(false));
        let progress = progress || std::io::stderr().is_terminal();
        let look = Look { ended: Arc::clone(&ended), unit, done: done.clone(), stream, progress };
        let thread = std::thread::Builder::new().name("watch".to_owned());
        Self { ended, thread: thread.spawn(move || look.run()).ok(), unit }
    }

    /// Ends it, and draws what was seen.
    pub(super) fn finish(mut self) -> Vec<Chart> {
        let samples = self.end();
        let mut charts = vec![rate(&samples, self.unit)];
        charts.extend(tcp(&samples));
        charts.retain(|chart| !chart.is_empty());
        charts
    }

    fn end(&mut self) -> Vec<Sample> {
        self.ended.store(true, Ordering::Relaxed);
        let thread = self.thread.take();
        thread
            .and_then(|thread| {
                thread.thread().unpark();
                thread.join().ok()
            })
            .unwrap_or_default()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.end();
    }
}

struct Look {
    ended: Arc<AtomicBool>,
    unit: Unit,
    done: Done,
    stream: Option<TcpStream>,
    progress: bool,
}

impl Look {
    fn run(self) -> Vec<Sample> {
        let start = Instant::now();
        let (mut samples, mut interval) = (Vec::new(), SAMPLE_INTERVAL);
        let (mut next, mut line) = (start + interval, start + PROGRESS_INTERVAL);
        let mut before = 0;
        while !self.ended.load(Ordering::Relaxed) {
            std::thread::park_timeout(next.saturating_duration_since(Instant::now()));
            if Instant::now() < next {
                continue;
            }
            next += interval;
            samples.push(self.sample(start));
            if samples.len() == SAMPLES_MAX {
                thin(&mut samples);
                interval *= 2;
            }
            if self.progress && Instant::now() >= line {
                line += PROGRESS_INTERVAL;
                let total = self.done.total();
                say(&self.line(start.elapsed(), total, before));
                before = total;
            }
        }
        samples
    }

    fn sample(&self, start: Instant) -> Sample {
        let tcp = self.stream.as_ref().and_then(|stream| {
            let info = socket::tcp_info(stream.as_fd()).ok()?;
            let queued_bytes = socket::unacknowledged_bytes(stream.as_fd()).ok()?;
            Some(Tcp { info, queued_bytes })
        });
        Sample { at_s: start.elapsed().as_secs_f64(), done: self.done.total(), tcp }
    }

    fn line(&self, elapsed: Duration, total: u64, before: u64) -> String {
        let Unit { plural, of } = self.unit;
        let [all, last] = [total, total - before].map(|count| count as f64 / of);
        format!("{:4} s  {all:12.0} {plural}  {last:10.0} in the last second", elapsed.as_secs())
    }
}

/// Writes a line to standard error; one that nobody reads is no reason to stop.
fn say(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}

/// Drops every other sample.
fn thin(samples: &mut Vec<Sample>) {
    let mut keep = false;
    samples.retain(|_| {
        keep = !keep;
        keep
    });
}

fn rate(samples: &[Sample], unit: Unit) -> Chart {
    let pairs = samples.windows(2).filter_map(|pair| {
        let [before, now] = pair else { return None };
        let seconds = now.at_s - before.at_s;
        let done = now.done.saturating_sub(before.done) as f64 / unit.of;
        (seconds > 0.0).then(|| (now.at_s, done / seconds))
    });
    Chart {
        title: format!("{} per second", unit.plural),
        x: "seconds".to_owned(),
        y: format!("{}/s", unit.plural),
        series: vec![Series::new(unit.plural, Mark::Line, pairs.collect())],
    }
}

/// What the AT-TLS measurements plot of a connection.
fn tcp(samples: &[Sample]) -> [Chart; 3] {
    let of = |value: &dyn Fn(&Tcp) -> f64| -> Vec<(f64, f64)> {
        samples.iter().filter_map(|one| Some((one.at_s, value(one.tcp.as_ref()?)))).collect()
    };
    let chart = |title: &str, y: &str, series| Chart {
        title: title.to_owned(),
        x: "seconds".to_owned(),
        y: y.to_owned(),
        series,
    };
    let window = |tcp: &Tcp| {
        let TcpInfo { congestion_window_segments, segment_bytes_max, .. } = tcp.info;
        f64::from(congestion_window_segments) * f64::from(segment_bytes_max) / 1000.0
    };
    let kilo = |bytes: f64| bytes / 1000.0;
    [
        chart(
            "congestion window of the client's first connection",
            "KB",
            vec![Series::new("congestion window", Mark::Line, of(&window))],
        ),
        chart(
            "smoothed round trip of the client's first connection",
            "us",
            vec![
                Series::new("round trip", Mark::Line, of(&|tcp| f64::from(tcp.info.rtt_us))),
                Series::new(
                    "its deviation",
                    Mark::Line,
                    of(&|tcp| f64::from(tcp.info.rtt_deviation_us)),
                ),
            ],
        ),
        chart(
            "send data queued on the client's first connection",
            "KB",
            vec![
                Series::new(
                    "not acknowledged",
                    Mark::Line,
                    of(&|tcp| kilo(tcp.queued_bytes as f64)),
                ),
                Series::new(
                    "not sent yet",
                    Mark::Line,
                    of(&|tcp| kilo(f64::from(tcp.info.unsent_bytes))),
                ),
            ],
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: Unit = Unit { plural: "MB", of: 1e6 };

    #[test]
    fn rates_are_between_samples_and_samples_are_bounded() {
        let sample = |second: u32| Sample {
            at_s: f64::from(second),
            done: u64::from(second) * 5_000_000,
            tcp: None,
        };
        let mut samples: Vec<_> = (0..5).map(sample).collect();
        let points = rate(&samples, MB).series.remove(0).points;
        assert_eq!(points, [(1.0, 5.0), (2.0, 5.0), (3.0, 5.0), (4.0, 5.0)]);
        thin(&mut samples);
        assert_eq!(samples.iter().map(|one| one.at_s).collect::<Vec<_>>(), [0.0, 2.0, 4.0]);
        assert!(tcp(&samples).iter().all(Chart::is_empty));
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
    fn a_progress_line_tells_all_and_the_last_second() {
        let look = Look {
            ended: Arc::default(),
            unit: MB,
            done: Done::new(1),
            stream: None,
            progress: true,
        };
        let line = look.line(Duration::from_secs(3), 30_000_000, 20_000_000);
        assert_eq!(line, "   3 s            30 MB          10 in the last second");
    }

    #[test]
    fn a_connection_is_looked_at_while_it_runs() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let done = Done::new(1);
        let watch = Watch::start(MB, &done, Some(stream), false);
        std::thread::sleep(SAMPLE_INTERVAL * 4);
        let charts = watch.finish();
        assert_eq!(charts.len(), 4, "rate, window, round trip, queue: {charts:?}");
    }
}
