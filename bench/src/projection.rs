//! `bench projection`: checks the CPU times that `tacit project` estimates. A *setting* is a cipher
//! suite (or no TLS) and a message rate. `tacit project` reads the measured CPU time of setting A,
//! and estimates that of setting B. The command compares this estimate with a measurement.
//!
//! ```text
//!   load client ──> agent: rule `front` ══ TLS ══> rule `back` ──> load server
//!
//!   input: measured CPU time of setting A ──> tacit project ──> estimate for B ──┐
//!   check: measured CPU time of setting B ───────────────────────────────────────┴─> compare
//! ```
//!
//! Each round measures every setting once. The command compares the medians of all rounds, and
//! prints their difference. A large difference is not a failure, because the same work needs more
//! or less CPU time on a busy machine. Engines (threads on reserved CPUs) are not measured.

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
  --rounds N      number of samples of each setting [default: 5]
  --program FILE  the tacit program to measure [default: a new release build]";

/// The largest acceptable error of an estimate, in percent.
const GOAL_PERCENT: f64 = 10.0;
/// Length of a measured interval, and of the load before it.
const INTERVAL: Duration = Duration::from_secs(3);
const WARM_UP: Duration = Duration::from_secs(1);
const PORT: u16 = 17_541;

/// Messages of one size at a constant rate.
struct Traffic {
    name: &'static str,
    /// Messages per second in each direction.
    rate: u32,
    /// Options of `tacit workload`.
    sizes: [&'static str; 4],
}

const TRAFFIC: [Traffic; 2] = [
    Traffic { name: "2k", rate: 4000, sizes: ["--request", "2KiB", "--reply", "2KiB"] },
    Traffic { name: "64k", rate: 600, sizes: ["--request", "64KiB", "--reply", "64KiB"] },
];

/// The cipher suite of both rules; `None` for rules without TLS.
const AES: Option<&str> = Some("TLS_AES_128_GCM_SHA256");
const CHACHA: Option<&str> = Some("TLS_CHACHA20_POLY1305_SHA256");
const CLEAR: Option<&str> = None;

/// The settings and the load of a measured agent.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Setting {
    suite: Option<&'static str>,
    /// The factor of the traffic's rate.
    times: u32,
}

/// The measured settings.
const SETTINGS: [Setting; 4] = [
    Setting { suite: AES, times: 1 },
    Setting { suite: CHACHA, times: 1 },
    Setting { suite: CLEAR, times: 1 },
    Setting { suite: AES, times: 2 },
];

/// A question for `tacit project`, and the measured settings that answer it.
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

/// Results of one question: CPU time per message in microseconds, one value for each round.
#[derive(Default)]
struct Answers {
    projected: Vec<f64>,
    real: Vec<f64>,
}

/// Runs the command.
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
    std::fs::create_dir_all(&dir)
        .map_err(|error| format!("cannot create {}: {error}", dir.display()))?;
    let bench = Bench { program, dir };
    let reported = bench.prepare().and_then(|()| bench.report(rounds));
    // Ignores the error: a leftover temporary directory is harmless.
    let _ = std::fs::remove_dir_all(&bench.dir);
    reported
}

fn built() -> Result<PathBuf, String> {
    let root = root();
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let words = ["build", "--locked", "--release", "--package", "tacit", "--message-format=json"];
    let mut build = Command::new(cargo);
    build.args(words).current_dir(root).stderr(Stdio::inherit());
    let output = build.output().map_err(|error| format!("cannot run cargo build: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let messages = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut files =
        messages.filter_map(|message| message["executable"].as_str().map(PathBuf::from));
    files.next_back().ok_or_else(|| "cargo build did not report the path of the program".to_owned())
}

/// The measurements of one interval.
struct Measured {
    /// Messages in each direction.
    messages: f64,
    /// CPU time of the agent in percent of one CPU, from a projection without changes.
    percent: f64,
    /// The same, projected for each question.
    projected: BTreeMap<&'static str, f64>,
}

struct Bench {
    program: PathBuf,
    dir: PathBuf,
}

/// A child process; dropping it ends the process.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already. SIGTERM to an agent's supervisor ends the agent as well;
        // SIGKILL would leave the agent running.
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
        println!("Median CPU time of one request and its reply, in microseconds ({rounds} rounds)");
        println!("goal: an error of at most {GOAL_PERCENT} %");
        println!(
            "{:8} {:24} {:>9} {:>9} {:>7}",
            "TRAFFIC", "QUESTION", "PROJECTED", "MEASURED", "ERROR"
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
                    answers.projected.push(us_each(about.projected[question.name], messages));
                    answers.real.push(us_each(answer.percent, answer.messages));
                }
            }
            for (name, answers) in us {
                let projected = median(&answers.projected);
                let real = median(&answers.real);
                let off = (projected / real - 1.0) * 100.0;
                let beyond = if off.abs() > GOAL_PERCENT { "  too large" } else { "" };
                println!(
                    "{:8} {name:24} {projected:9.2} {real:9.2} {off:+6.1}%{beyond}",
                    traffic.name
                );
            }
        }
        Ok(())
    }

    /// Loads an agent, and reads the costs of an interval.
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
        let mut projected = BTreeMap::new();
        for question in QUESTIONS {
            if question.about.suite == setting.suite {
                projected.insert(question.name, self.project(question.words)?);
            }
        }
        let percent = self.project(&[])?;
        let seconds = INTERVAL.as_secs_f64();
        Ok(Measured { messages: messages / seconds, percent, projected })
    }

    /// The projected CPU time of the agent, in percent of one CPU.
    fn project(&self, question: &[&str]) -> Result<f64, String> {
        let files = ["project", "--json", "--costs", "earlier.json", "--costs", "later.json"];
        let answer = json(&self.tacit(&[&files[..], question].concat())?)?;
        let total = &answer["after"]["total"];
        let places = ["general", "engine", "eligible"].map(|place| total[place].as_f64());
        let sum: Option<f64> = places.into_iter().sum();
        sum.ok_or_else(|| format!("`tacit project` did not print a total: {answer}"))
    }

    fn tacit(&self, words: &[&str]) -> Result<String, String> {
        let output =
            self.command(words).output().map_err(|error| format!("cannot run tacit: {error}"))?;
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            false => Err(format!("tacit {words:?}: {}", String::from_utf8_lossy(&output.stderr))),
        }
    }

    fn start(&self, words: &[&str]) -> Result<Running, String> {
        let mut command = self.command(words);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
            .spawn()
            .map(Running)
            .map_err(|error| format!("cannot start tacit {words:?}: {error}"))
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(words).current_dir(&self.dir);
        command
    }

    fn write(&self, name: &str, text: &str) -> Outcome {
        let path: &Path = &self.dir.join(name);
        std::fs::write(path, text)
            .map_err(|error| format!("cannot write {}: {error}", path.display()))
    }
}

/// CPU time per message in microseconds, from percent of one CPU and messages per second.
fn us_each(percent: f64, messages: f64) -> f64 {
    percent * 1e4 / messages.max(1.0)
}

/// The parts of the policy that depend on the cipher suite.
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

/// The number of messages that rule `front` has relayed.
fn messages(costs: &str) -> Result<f64, String> {
    let costs = json(costs)?;
    let mut rules = costs["rules"].as_array().into_iter().flatten();
    let front = rules.find(|rule| rule["rule"] == "front");
    let sent = front.and_then(|rule| rule["messages-sent"].as_f64());
    sent.ok_or_else(|| {
        format!("the measured costs lack the number of messages of rule `front`: {costs}")
    })
}

fn json(text: &str) -> Result<Value, String> {
    serde_json::from_str(text)
        .map_err(|error| format!("a tacit command printed invalid JSON: {error}: {text}"))
}
