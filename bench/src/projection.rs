//! `cargo xtask bench projection`: whether what `tacit project` foretells is what is then measured.
//!
//! ```text
//!   tacit workload ──> agent: front (TLS client) ==> back (TLS server) ──> workload server
//!   an interval of costs ──> tacit project ──┐
//!   another agent, as the question says ─────┴──> CPU time of a message, foretold and measured
//! ```
//!
//! The same constant rate of messages each time, so that answers can be held against a later run;
//! settings alternate, and the median of all rounds counts. It reports and passes no judgement: a
//! busy machine charges the same work differently from second to second. Not here: engines.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use serde_json::Value;
use tacit_core::statistics::median;
use tacit_sys::process::{Signal, signal};

use crate::workspace::root;

type Outcome = Result<(), String>;

const USAGE: &str = "usage: cargo xtask bench projection [--rounds N] [--program FILE]
  --rounds N      samples of each setting; 5 if not given
  --program FILE  the tacit to measure; built for release if not given";

/// How far an answer may be from a later run, in per cent.
const GOAL_PERCENT: f64 = 10.0;
/// What an interval is, and what comes before it.
const INTERVAL: Duration = Duration::from_secs(3);
const WARM_UP: Duration = Duration::from_secs(1);
const PORT: u16 = 17_541;

/// Traffic: its name, messages a second each way, and options of the workload.
const TRAFFIC: [(&str, u32, [&str; 4]); 2] = [
    ("2k", 4000, ["--request", "2KiB", "--reply", "2KiB"]),
    ("64k", 600, ["--request", "64KiB", "--reply", "64KiB"]),
];

/// An agent's policy: the suite of both rules, or none for a permit.
const AES: Option<&str> = Some("TLS_AES_128_GCM_SHA256");
const CHACHA: Option<&str> = Some("TLS_CHACHA20_POLY1305_SHA256");
const CLEAR: Option<&str> = None;

/// A question: its name, what is measured, what is asked, and what answers it (with its rate).
type Question = (&'static str, Option<&'static str>, &'static [&'static str], Answer);
type Answer = (Option<&'static str>, u32);

const QUESTIONS: [Question; 4] = [
    ("suite aes -> chacha20", AES, &["--suite", "chacha20"], (CHACHA, 1)),
    ("rules tls -> permit", AES, &["--rule", "front=permit", "--rule", "back=permit"], (CLEAR, 1)),
    ("rules permit -> tls", CLEAR, &["--rule", "front=tls", "--rule", "back=tls"], (AES, 1)),
    ("twice the traffic", AES, &["--scale", "2"], (AES, 2)),
];

/// Runs the verb.
pub(crate) fn run(words: &[&str]) -> Outcome {
    let (mut rounds, mut program) = (5_u32, None);
    for pair in words.chunks(2) {
        match pair {
            ["--rounds", count] => rounds = count.parse().map_err(|_| USAGE.to_owned())?,
            ["--program", file] => program = Some(PathBuf::from(file)),
            _ => return Err(USAGE.to_owned()),
        }
    }
    let program = match program {
        Some(file) => std::path::absolute(&file).map_err(|error| error.to_string())?,
        None => built()?,
    };
    let dir = std::env::temp_dir().join(format!("tacit-projection-{}", std::process::id()));
    std::fs::create_dir_all(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    let bench = Bench { program, dir };
    let reported = bench.prepare().and_then(|()| bench.report(rounds));
    // Nobody needs what is left of it.
    let _ = std::fs::remove_dir_all(&bench.dir);
    reported
}

fn built() -> Result<PathBuf, String> {
    let root = root();
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let words = ["build", "--locked", "--release", "--package", "tacit", "--message-format=json"];
    let mut build = Command::new(cargo);
    build.args(words).current_dir(root).stderr(Stdio::inherit());
    let output = build.output().map_err(|error| format!("cargo build: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let messages = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut files =
        messages.filter_map(|message| message["executable"].as_str().map(PathBuf::from));
    files.next_back().ok_or_else(|| "cargo build: no program was made".to_owned())
}

/// What one interval said.
struct Measured {
    /// Messages each way.
    messages: f64,
    /// CPU time of the agent by the projection that asks for nothing, in per cent.
    percent: f64,
    /// The same by each question about this setting.
    foretold: BTreeMap<&'static str, f64>,
}

struct Bench {
    program: PathBuf,
    dir: PathBuf,
}

/// A process of this check; it ends with its place on the stack.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself. An agent's parent must be told: killed, it leaves the
        // agent behind.
        let _ = signal(self.0.id(), Signal::TERM);
        let _ = self.0.wait();
    }
}

impl Bench {
    fn prepare(&self) -> Outcome {
        self.tacit(&["ca", "init"])?;
        self.tacit(&["ca", "issue", "localhost", "--san", "127.0.0.1"]).map(|_| ())
    }

    fn report(&self, rounds: u32) -> Outcome {
        println!("us of CPU for a message each way; medians of {rounds}, aim {GOAL_PERCENT} %");
        println!(
            "{:8} {:24} {:>9} {:>9} {:>7}",
            "TRAFFIC", "QUESTION", "FORETOLD", "MEASURED", "OFF"
        );
        for (traffic, rate, sizes) in TRAFFIC {
            let mut us: BTreeMap<&str, [Vec<f64>; 2]> = BTreeMap::new();
            for _ in 0..rounds {
                let mut measured: BTreeMap<(Option<&str>, u32), Measured> = BTreeMap::new();
                for setting in [(AES, 1), (CHACHA, 1), (CLEAR, 1), (AES, 2)] {
                    measured.insert(setting, self.measure(setting.0, rate * setting.1, sizes)?);
                }
                for (name, asked, _, answer) in QUESTIONS {
                    let (asked, answer) = (&measured[&(asked, 1)], (&measured[&answer], answer.1));
                    let [foretold, real] = us.entry(name).or_default();
                    let messages = asked.messages * f64::from(answer.1);
                    foretold.push(us_each(asked.foretold[name], messages));
                    real.push(us_each(answer.0.percent, answer.0.messages));
                }
            }
            for (name, values) in us {
                let [foretold, real] = values.map(|values| median(&values));
                let off = (foretold / real - 1.0) * 100.0;
                let beyond = if off.abs() > GOAL_PERCENT { "  beyond the aim" } else { "" };
                println!("{traffic:8} {name:24} {foretold:9.2} {real:9.2} {off:+6.1}%{beyond}");
            }
        }
        Ok(())
    }

    /// Loads an agent with that suite and reads what an interval cost it.
    fn measure(
        &self,
        suite: Option<&'static str>,
        rate: u32,
        sizes: [&str; 4],
    ) -> Result<Measured, String> {
        self.write("policy.toml", &policy(suite))?;
        let far = format!("127.0.0.1:{}", PORT + 2);
        let near = format!("127.0.0.1:{PORT}");
        let _server = self.start(&["workload", "request-reply", "server", "--listen", &far])?;
        let _agent =
            self.start(&["agent", "--policy", "policy.toml", "--control", "a.sock", "--quiet"])?;
        thread::sleep(WARM_UP / 2);
        let rate = rate.to_string();
        let load =
            ["workload", "request-reply", "client", "--connect", &near, "--connections", "4"];
        let load = [&load[..], &sizes, &["--rate", &rate, "--seconds", "60s"]].concat();
        let _client = self.start(&load)?;
        thread::sleep(WARM_UP);
        let costs = ["show", "costs", "--json", "--control", "a.sock"];
        let earlier = self.tacit(&costs)?;
        thread::sleep(INTERVAL);
        let later = self.tacit(&costs)?;
        self.write("earlier.json", &earlier)?;
        self.write("later.json", &later)?;
        let messages = messages(&later)? - messages(&earlier)?;
        let mut foretold = BTreeMap::new();
        for (name, asked, words, _) in QUESTIONS {
            if asked == suite {
                foretold.insert(name, self.project(words)?);
            }
        }
        let percent = self.project(&[])?;
        let seconds = INTERVAL.as_secs_f64();
        Ok(Measured { messages: messages / seconds, percent, foretold })
    }

    /// The agent's CPU time as it would be, in per cent of one CPU.
    fn project(&self, question: &[&str]) -> Result<f64, String> {
        let files = ["project", "--json", "--costs", "earlier.json", "--costs", "later.json"];
        let answer = json(&self.tacit(&[&files[..], question].concat())?)?;
        let total = &answer["after"]["total"];
        let places = ["general", "engine", "eligible"].map(|place| total[place].as_f64());
        let sum: Option<f64> = places.into_iter().sum();
        sum.ok_or_else(|| format!("tacit project: no total in {answer}"))
    }

    fn tacit(&self, words: &[&str]) -> Result<String, String> {
        let output = self.command(words).output().map_err(|error| format!("tacit: {error}"))?;
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            false => Err(format!("tacit {words:?}: {}", String::from_utf8_lossy(&output.stderr))),
        }
    }

    fn start(&self, words: &[&str]) -> Result<Running, String> {
        let mut command = self.command(words);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().map(Running).map_err(|error| format!("tacit {words:?}: {error}"))
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(words).current_dir(&self.dir);
        command
    }

    fn write(&self, name: &str, text: &str) -> Outcome {
        let path: &Path = &self.dir.join(name);
        std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
    }
}

/// CPU time of one message each way, in microseconds, of per cent and messages a second.
fn us_each(percent: f64, messages: f64) -> f64 {
    percent * 1e4 / messages.max(1.0)
}

fn policy(suite: Option<&str>) -> String {
    let (tables, front, back) = match suite {
        None => (String::new(), "permit = true".to_owned(), "permit = true".to_owned()),
        Some(suite) => (
            "[identity.me]\ncert = \"localhost.pem\"\nkey = \"localhost.key\"\n\
             [trust.ca]\nca = \"ca.pem\"\n"
                .to_owned(),
            format!("tls = {{ role = \"client\", trust = \"ca\", suites = [\"{suite}\"] }}"),
            format!(
                "tls = {{ role = \"server\", identity = \"me\", client-cert = \"none\", \
                 suites = [\"{suite}\"] }}"
            ),
        ),
    };
    let [near, middle, far] = [PORT, PORT + 1, PORT + 2];
    format!(
        "version = 1\n[agent]\nworkers = 1\n{tables}\
         [[rule]]\nname = \"front\"\nlisten = \"127.0.0.1:{near}\"\n\
         connect = \"localhost:{middle}\"\n{front}\n\
         [[rule]]\nname = \"back\"\nlisten = \"127.0.0.1:{middle}\"\n\
         connect = \"127.0.0.1:{far}\"\n{back}\n"
    )
}

/// Messages that `front` has passed on so far.
fn messages(costs: &str) -> Result<f64, String> {
    let costs = json(costs)?;
    let mut rules = costs["rules"].as_array().into_iter().flatten();
    let front = rules.find(|rule| rule["rule"] == "front");
    let sent = front.and_then(|rule| rule["messages-sent"].as_f64());
    sent.ok_or_else(|| format!("no messages of rule front in {costs}"))
}

fn json(text: &str) -> Result<Value, String> {
    serde_json::from_str(text).map_err(|error| format!("{error} in {text}"))
}
