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

/// Requests and replies of one size.
struct Traffic {
    name: &'static str,
    /// Messages a second each way.
    rate: u32,
    /// Options of the workload.
    sizes: [&'static str; 4],
}

const TRAFFIC: [Traffic; 2] = [
    Traffic { name: "2k", rate: 4000, sizes: ["--request", "2KiB", "--reply", "2KiB"] },
    Traffic { name: "64k", rate: 600, sizes: ["--request", "64KiB", "--reply", "64KiB"] },
];

/// An agent's policy: the suite of both rules, or none for a permit.
const AES: Option<&str> = Some("TLS_AES_128_GCM_SHA256");
const CHACHA: Option<&str> = Some("TLS_CHACHA20_POLY1305_SHA256");
const CLEAR: Option<&str> = None;

/// How an agent is loaded.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Setting {
    suite: Option<&'static str>,
    /// So many times the rate of the traffic.
    times: u32,
}

/// What is measured.
const SETTINGS: [Setting; 4] = [
    Setting { suite: AES, times: 1 },
    Setting { suite: CHACHA, times: 1 },
    Setting { suite: CLEAR, times: 1 },
    Setting { suite: AES, times: 2 },
];

/// What `tacit project` is asked about one setting, and the setting that answers it.
struct Question {
    name: &'static str,
    about: Setting,
    words: &'static [&'static str],
    answer: Setting,
}

const QUESTIONS: [Question; 4] = [
    Question {
        name: "suite aes -> chacha20",
        about: Setting { suite: AES, times: 1 },
        words: &["--suite", "chacha20"],
        answer: Setting { suite: CHACHA, times: 1 },
    },
    Question {
        name: "rules tls -> permit",
        about: Setting { suite: AES, times: 1 },
        words: &["--rule", "front=permit", "--rule", "back=permit"],
        answer: Setting { suite: CLEAR, times: 1 },
    },
    Question {
        name: "rules permit -> tls",
        about: Setting { suite: CLEAR, times: 1 },
        words: &["--rule", "front=tls", "--rule", "back=tls"],
        answer: Setting { suite: AES, times: 1 },
    },
    Question {
        name: "twice the traffic",
        about: Setting { suite: AES, times: 1 },
        words: &["--scale", "2"],
        answer: Setting { suite: AES, times: 2 },
    },
];

/// CPU time of a message by one question, in microseconds, a value for each round.
#[derive(Default)]
struct Answers {
    foretold: Vec<f64>,
    real: Vec<f64>,
}

/// Runs the verb.
pub(crate) fn run(words: &[&str]) -> Outcome {
    let mut rounds = 5_u32;
    let mut program = None;
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
    // A directory that cannot be removed does no harm.
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
        for traffic in TRAFFIC {
            let mut us: BTreeMap<&str, Answers> = BTreeMap::new();
            for _ in 0..rounds {
                let mut measured: BTreeMap<Setting, Measured> = BTreeMap::new();
                for setting in SETTINGS {
                    measured.insert(setting, self.measure(setting, &traffic)?);
                }
                for question in QUESTIONS {
                    let about = &measured[&question.about];
                    let answer = &measured[&question.answer];
                    let messages = about.messages * f64::from(question.answer.times);
                    let answers = us.entry(question.name).or_default();
                    answers.foretold.push(us_each(about.foretold[question.name], messages));
                    answers.real.push(us_each(answer.percent, answer.messages));
                }
            }
            for (name, answers) in us {
                let foretold = median(&answers.foretold);
                let real = median(&answers.real);
                let off = (foretold / real - 1.0) * 100.0;
                let beyond = if off.abs() > GOAL_PERCENT { "  beyond the aim" } else { "" };
                println!(
                    "{:8} {name:24} {foretold:9.2} {real:9.2} {off:+6.1}%{beyond}",
                    traffic.name
                );
            }
        }
        Ok(())
    }

    /// Loads an agent and reads what an interval cost it.
    fn measure(&self, setting: Setting, traffic: &Traffic) -> Result<Measured, String> {
        self.write("policy.toml", &policy(setting.suite))?;
        let far = format!("127.0.0.1:{}", PORT + 2);
        let near = format!("127.0.0.1:{PORT}");
        let _server = self.start(&["workload", "request-reply", "server", "--listen", &far])?;
        let _agent =
            self.start(&["agent", "--policy", "policy.toml", "--control", "a.sock", "--quiet"])?;
        thread::sleep(WARM_UP / 2);
        let rate = (traffic.rate * setting.times).to_string();
        let load =
            ["workload", "request-reply", "client", "--connect", &near, "--connections", "4"];
        let load = [&load[..], &traffic.sizes, &["--rate", &rate, "--seconds", "60s"]].concat();
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
        for question in QUESTIONS {
            if question.about.suite == setting.suite {
                foretold.insert(question.name, self.project(question.words)?);
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

/// The parts of a policy that depend on the suite.
struct Parts {
    tables: &'static str,
    front: String,
    back: String,
}

impl Parts {
    fn of(suite: Option<&str>) -> Self {
        let Some(suite) = suite else {
            let permit = "permit = true".to_owned();
            return Self { tables: "", front: permit.clone(), back: permit };
        };
        Self {
            tables: "[identity.me]\ncert = \"localhost.pem\"\nkey = \"localhost.key\"\n\
                     [trust.ca]\nca = \"ca.pem\"\n",
            front: format!("tls = {{ role = \"client\", trust = \"ca\", suites = [\"{suite}\"] }}"),
            back: format!(
                "tls = {{ role = \"server\", identity = \"me\", client-cert = \"none\", \
                 suites = [\"{suite}\"] }}"
            ),
        }
    }
}

fn policy(suite: Option<&str>) -> String {
    let Parts { tables, front, back } = Parts::of(suite);
    let near = PORT;
    let middle = PORT + 1;
    let far = PORT + 2;
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
