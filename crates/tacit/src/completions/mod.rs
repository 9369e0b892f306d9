//! Writes completion scripts for shells.
//!
//! The library clap generates scripts that complete commands and options. This module adds
//! functions that complete the names of rules and runs, and the ids of connections. These functions
//! call the hidden command `tacit names`, which asks an agent for the names and ids. The command
//! connects to the control socket that the option `--control` specifies, or to the default control
//! socket. The command prints nothing if no agent answers at once.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Command, ValueEnum};
use clap_complete::Shell;
use serde_json::Value;

use crate::control::{self, Display, Request, client};
use crate::exit::{EXIT_OK, print};

/// How long a shell waits for an agent.
const PATIENCE: Duration = Duration::from_millis(300);
/// The largest number of names that are printed.
const NAMES_MAX: usize = 1000;

const BASH: &str = include_str!("bash.sh");
const ZSH: &str = include_str!("zsh.sh");
const FISH: &str = include_str!("fish.fish");

/// The options of the command `names`.
#[derive(Debug, Args)]
pub struct NamesArgs {
    /// The kind of names to print
    what: NameKind,
    /// The control socket of the agent
    #[arg(long, hide = true, value_name = "PATH")]
    control: Option<PathBuf>,
}

/// The kinds of names that a running agent can list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum NameKind {
    Rules,
    Connections,
    Runs,
}

/// Prints the names that an agent knows, one on each line; prints nothing if it does not answer.
#[must_use]
pub fn names(args: &NamesArgs) -> ExitCode {
    let control = args.control.clone().unwrap_or_else(control::default_path);
    let text: String = known(args.what, &control).map(|name| format!("{name}\n")).collect();
    print(text, EXIT_OK)
}

fn known(named: NameKind, control: &Path) -> impl Iterator<Item = String> {
    let (what, list, key) = match named {
        NameKind::Rules => (Display::Rules, "rules", "name"),
        NameKind::Connections => (Display::Connections, "connections", "id"),
        NameKind::Runs => (Display::Runs, "runs", "name"),
    };
    let answer = client::ask_within(control, &Request::Show { what }, PATIENCE).unwrap_or_default();
    let rows = answer[list].as_array().cloned().unwrap_or_default();
    let name = move |row: Value| match &row[key] {
        Value::String(name) => Some(name.clone()),
        Value::Number(id) => Some(id.to_string()),
        _ => None,
    };
    rows.into_iter().filter_map(name).take(NAMES_MAX)
}

/// The completion script of a command line. It offers no hidden commands and options.
#[must_use]
pub fn script(shell: Shell, command: &Command) -> String {
    let mut script = Vec::new();
    let mut visible = visible(command).version(env!("CARGO_PKG_VERSION")).propagate_version(true);
    clap_complete::generate(shell, &mut visible, command.get_name(), &mut script);
    with_names(shell, &String::from_utf8_lossy(&script))
}

/// A command without its hidden commands and options, because clap would offer them.
fn visible(command: &Command) -> Command {
    let arguments = command.get_arguments().filter(|one| !one.is_hide_set()).cloned();
    let below = command.get_subcommands().filter(|below| !below.is_hide_set()).map(visible);
    // clap requires names that are never freed. This process ends when it has printed the script.
    let name: &'static str = command.get_name().to_owned().leak();
    let visible = Command::new(name).args(arguments).subcommands(below);
    match command.get_about() {
        Some(about) => visible.about(about.clone()),
        None => visible,
    }
}

/// Adds the functions that query an agent to the script that clap generated.
fn with_names(shell: Shell, script: &str) -> String {
    match shell {
        Shell::Bash => format!("{script}\n{BASH}"),
        // zsh finds the function by its name, so the function that clap generates is renamed.
        Shell::Zsh => script.replacen("_tacit() {", &format!("{ZSH}\n_tacit_static() {{"), 1),
        Shell::Fish => format!("{script}\n{FISH}"),
        _ => script.to_owned(),
    }
}
