//! `tacit show`: queries an agent and prints the answer as tables or JSON.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde::de::DeserializeOwned;
use serde_json::json;
use tacit_core::message_id::MessageId;
use tacit_core::policy::parse_duration;

use crate::control::client::{self, ClientError};
use crate::control::display::VERSION;
use crate::control::display::audit::AuditDisplay;
use crate::control::display::connections::{ConnectionDisplay, ConnectionsDisplay};
use crate::control::display::coverage::CoverageDisplay;
use crate::control::display::engines::EnginesDisplay;
use crate::control::display::filters::FiltersDisplay;
use crate::control::display::identities::IdentitiesDisplay;
use crate::control::display::limits::LimitsDisplay;
use crate::control::display::metrics::MetricsDisplay;
use crate::control::display::policy::PolicyDisplay;
use crate::control::display::refused::RefusedDisplay;
use crate::control::display::rules::RulesDisplay;
use crate::control::display::runs::RunsDisplay;
use crate::control::display::stats::StatsDisplay;
use crate::control::display::traces::TracesDisplay;
use crate::control::display::tunnels::{IkeDisplay, SaDisplay};
use crate::control::display::unix::UnixDisplay;
use crate::control::render::costs::By;
use crate::control::render::width::TextWidth;
use crate::control::render::{self, Table, connections};
use crate::control::{self, Display, Request, private_agents};
use crate::cpus;
use crate::exit::{EXIT_FAILURE, EXIT_OK, EXIT_USAGE, fail, pretty, print};
use crate::ledger::costs::Costs;

use self::filter::{ConnectionFilter, RemoteFilter, StateFilter};

mod filter;

/// The options of `tacit show`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tacit show connections --rule web --state open
  tacit show connections 17
  tacit show connections 17 --interval 100ms --csv > connection.csv
  tacit show refused
  tacit show ike
  tacit show sa --wide
  tacit show stats --interval 60s --json >> records
  tacit show policy web
  tacit show rules --json | jq '.rules[] | select(.hits + .\"kernel-hits\" == 0).name'
  tacit show costs --by component --interval 10s")]
pub struct ShowArgs {
    /// What to show
    #[arg(value_enum)]
    what: Display,
    /// For `tacit show connections`: print all details of the connection with this id. For `tacit
    /// show policy`: print only the rule with this name
    #[arg(value_name = "ID|RULE")]
    of: Option<String>,
    /// Print as JSON, with all details; docs/schema/ has the schemas
    #[arg(long)]
    json: bool,
    /// Print all columns and do not shorten values, even if lines are wider than the terminal. For
    /// `tacit show ike` and `tacit show sa`: print all values, one on each line
    #[arg(long)]
    wide: bool,
    /// For `tacit show connections`: print only the connections of this rule
    #[arg(long, value_name = "NAME")]
    rule: Option<String>,
    /// For `tacit show connections`: print only the connections from or to this address, network,
    /// or address with port
    #[arg(long, value_name = "ADDRESS")]
    remote: Option<RemoteFilter>,
    /// For `tacit show connections`: print only the connections of the run with this name
    #[arg(long, value_name = "NAME")]
    run: Option<String>,
    /// For `tacit show connections`: print only the connections in this state
    #[arg(long, value_enum)]
    state: Option<StateFilter>,
    /// For `tacit show connections ID`: print one line of CSV or, with --interval, a line after
    /// each interval until the connection ends
    #[arg(long, conflicts_with = "json")]
    csv: bool,
    /// For `tacit show costs`: print one row for each rule, component, program or connection
    #[arg(long, value_enum, value_name = "WHAT")]
    by: Option<By>,
    /// For `tacit show costs` and `tacit show cpus`: measure for this duration. By default, costs
    /// are measured since the start of the agent, and CPUs for 1s. For `tacit show stats` and for
    /// --csv: print again after each interval. A number without a unit is in seconds
    #[arg(long, value_name = "DURATION", value_parser = wait)]
    interval: Option<Duration>,
    /// The control socket of the agent [default: the socket of the shared agent; if that agent does
    /// not run, the socket of the only run]
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,
}

/// Runs the command.
#[must_use]
pub fn run(args: &ShowArgs) -> ExitCode {
    if let Err(reason) = check(args) {
        return fail(MessageId("usage"), reason, EXIT_USAGE);
    }
    let shown = match (args.what, &args.of) {
        (Display::Connections, Some(id)) => return show_one(args, id),
        (Display::Connections, None) => show_connections(args),
        (Display::Policy, _) => show_policy(args),
        (Display::Costs, _) => show_costs(args),
        (Display::Cpus, _) => return show_cpus(args),
        (Display::Stats, _) if args.interval.is_some() => return show_intervals(args),
        (Display::Stats, _) => args.show::<StatsDisplay>(),
        (Display::Rules, _) => args.show::<RulesDisplay>(),
        (Display::Filters, _) => args.show::<FiltersDisplay>(),
        (Display::Runs, _) => args.show::<RunsDisplay>(),
        (Display::Engines, _) => args.show::<EnginesDisplay>(),
        (Display::Metrics, _) => args.show::<MetricsDisplay>(),
        (Display::Identities, _) => args.show::<IdentitiesDisplay>(),
        (Display::Limits, _) => args.show::<LimitsDisplay>(),
        (Display::Refused, _) => show_refused(args),
        (Display::Audit, _) => args.show::<AuditDisplay>(),
        (Display::Coverage, _) => args.show::<CoverageDisplay>(),
        (Display::Traces, _) => args.show::<TracesDisplay>(),
        (Display::Ike, _) => args.show::<IkeDisplay>(),
        (Display::Sa, _) => args.show::<SaDisplay>(),
        (Display::Unix, _) => args.show::<UnixDisplay>(),
    };
    match shown {
        Ok(shown) => print(shown, EXIT_OK),
        Err(error) => fail(error.id(), error, EXIT_FAILURE),
    }
}

/// Checks that the selected display supports the given options.
fn check(args: &ShowArgs) -> Result<(), &'static str> {
    let is_connections = args.what == Display::Connections;
    let filter = args.filter();
    if args.of.is_some() && !is_connections && args.what != Display::Policy {
        return Err(
            "only `tacit show connections` accepts an id, and only `tacit show policy` accepts a \
             rule",
        );
    }
    if args.by.is_some() && args.what != Display::Costs {
        return Err("--by is only for `tacit show costs`");
    }
    if args.wide && is_connections && args.of.is_some() {
        return Err(
            "--wide cannot be used with the id of a connection, because `tacit show connections \
             ID` always prints all details",
        );
    }
    if filter.is_some() && (!is_connections || args.of.is_some()) {
        return Err("--rule, --remote, --run and --state are only for `tacit show connections` \
                    without an id");
    }
    if args.csv && (!is_connections || args.of.is_none()) {
        return Err("--csv is only for `tacit show connections ID`");
    }
    let is_measured = matches!(args.what, Display::Costs | Display::Cpus | Display::Stats);
    if args.interval.is_some() && !is_measured && !args.csv {
        return Err(
            "--interval is only for `tacit show costs`, for `tacit show cpus`, for `tacit \
                    show stats`, and for `tacit show connections ID --csv`",
        );
    }
    if args.by == Some(By::Connection) && args.interval.is_some() {
        return Err(
            "--interval cannot be used with `--by connection`, because tacit measures the CPU time \
             of a connection from its start",
        );
    }
    Ok(())
}

impl ShowArgs {
    fn ask<T: DeserializeOwned>(&self, request: &Request) -> Result<T, ClientError> {
        client::ask_typed(&self.path(), request)
    }

    /// Requests the selected display from the agent, and formats the answer.
    fn show<T: Table + DeserializeOwned>(&self) -> Result<String, ClientError> {
        let display: T = self.ask(&Request::Show { what: self.what })?;
        Ok(self.printed(&display))
    }

    /// Formats a display as text or, with `--json`, as JSON.
    fn printed(&self, display: &impl Table) -> String {
        if self.json {
            return pretty(&json!(display));
        }
        let wide = self.wide.then(|| display.wide()).flatten();
        wide.unwrap_or_else(|| display.text(self.width()))
    }

    /// The width of the output.
    fn width(&self) -> TextWidth {
        if self.wide { TextWidth::Whole } else { TextWidth::of_stdout() }
    }

    fn path(&self) -> PathBuf {
        private_agents::for_display(self.control.as_deref())
    }

    /// Returns the filter for connections; `None` if the command line has no filter option.
    fn filter(&self) -> Option<ConnectionFilter<'_>> {
        let Self { rule, remote, run, state, .. } = self;
        let filter = ConnectionFilter {
            rule: rule.as_deref(),
            remote: remote.as_ref(),
            run: run.as_deref(),
            state: *state,
        };
        filter.is_any().then_some(filter)
    }
}

fn show_refused(args: &ShowArgs) -> Result<String, ClientError> {
    let mut text = args.show::<RefusedDisplay>()?;
    if args.control.is_none() && !args.json && args.path() == control::default_path() {
        for run in private_agents::answering_with_commands() {
            text.push_str("(a run has an agent of its own: to show its refusals, add --control ");
            text.push_str(&format!("{run})\n"));
        }
    }
    Ok(text)
}

fn show_connections(args: &ShowArgs) -> Result<String, ClientError> {
    let request = Request::Show { what: Display::Connections };
    let mut shown: ConnectionsDisplay = args.ask(&request)?;
    if let Some(filter) = args.filter() {
        shown.connections.retain(|connection| filter.matches(connection));
    }
    Ok(args.printed(&shown))
}

/// Prints one connection, once or repeatedly.
fn show_one(args: &ShowArgs, id: &str) -> ExitCode {
    let Ok(id) = id.parse::<u64>() else {
        let reason = format!(
            "`{id}` is not an id of a connection\n    \
             fix: use an id that `tacit show connections` prints"
        );
        return fail(MessageId("usage"), reason, EXIT_USAGE);
    };
    let ask = || -> Result<ConnectionDisplay, ClientError> {
        let mut shown: ConnectionsDisplay = args.ask(&Request::ShowConnection { id })?;
        let unknown = || {
            ClientError::Refused(format!(
                "no open connection has the id {id}\n    \
                 fix: use an id that `tacit show connections` lists"
            ))
        };
        shown.connections.pop().ok_or_else(unknown)
    };
    let first = match ask() {
        Ok(first) => first,
        Err(error) => return fail(error.id(), error, EXIT_FAILURE),
    };
    if args.csv {
        return sample(first, args.interval, ask);
    }
    let json = || {
        let shown = ConnectionsDisplay { version: VERSION, connections: vec![first.clone()] };
        pretty(&json!(shown))
    };
    print(if args.json { json() } else { connections::detail(&first, args.width()) }, EXIT_OK)
}

/// Prints samples until the connection ends or the reader closes standard output.
fn sample(
    first: ConnectionDisplay,
    interval: Option<Duration>,
    ask: impl Fn() -> Result<ConnectionDisplay, ClientError>,
) -> ExitCode {
    let mut out = io::stdout();
    let mut write = |text: &str| out.write_all(text.as_bytes()).and_then(|()| out.flush());
    let mut written = write(&connections::csv_header());
    let mut shown = Ok(first);
    loop {
        match (written, &shown) {
            (Err(error), _) if error.kind() == io::ErrorKind::BrokenPipe => return EXIT_OK.into(),
            (Err(error), _) => {
                return fail(
                    MessageId("output-failed"),
                    format_args!("cannot write to standard output: {error}"),
                    EXIT_FAILURE,
                );
            }
            (Ok(()), Ok(shown)) => written = write(&connections::csv_row(shown)),
            // The agent does not have the connection any more: it has ended.
            (Ok(()), Err(ClientError::Refused(_))) => return EXIT_OK.into(),
            (Ok(()), Err(error)) => return fail(error.id(), error, EXIT_FAILURE),
        }
        let Some(interval) = interval else { return EXIT_OK.into() };
        std::thread::sleep(interval);
        shown = ask();
    }
}

fn show_policy(args: &ShowArgs) -> Result<String, ClientError> {
    let mut policy: PolicyDisplay = args.ask(&Request::Show { what: Display::Policy })?;
    if let Some(rule) = &args.of {
        policy.tables.clear();
        policy.rules.retain(|table| table.name.as_ref() == Some(rule));
        if policy.rules.is_empty() {
            let reason = format!(
                "the installed policy has no rule `{rule}`\n    \
                 fix: use the name of a rule that `tacit show rules` prints"
            );
            return Err(ClientError::Refused(reason));
        }
    }
    Ok(args.printed(&policy))
}

fn show_cpus(args: &ShowArgs) -> ExitCode {
    match cpus::show(&args.path(), args.interval) {
        Ok(shown) => print(args.printed(&shown), EXIT_OK),
        Err(error) => fail(error.id(), error, EXIT_FAILURE),
    }
}

/// Prints the counters of one interval after another, until the reader closes standard output or
/// the agent ends. With `--json`, prints the counters of each interval on one line.
fn show_intervals(args: &ShowArgs) -> ExitCode {
    let ask = || args.ask::<StatsDisplay>(&Request::Show { what: Display::Stats });
    let mut before = ask();
    let mut out = io::stdout();
    loop {
        let earlier = match before {
            Ok(earlier) => earlier,
            Err(error) => return fail(error.id(), error, EXIT_FAILURE),
        };
        std::thread::sleep(args.interval.unwrap_or_default());
        before = ask();
        let Ok(now) = &before else { continue };
        let interval = now.minus(&earlier);
        let text = match args.json {
            true => format!("{}\n", json!(interval)),
            false => interval.text(args.width()) + "\n",
        };
        match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return EXIT_OK.into(),
            Err(error) => {
                let reason = format_args!("cannot write to standard output: {error}");
                return fail(MessageId("output-failed"), reason, EXIT_FAILURE);
            }
        }
    }
}

fn show_costs(args: &ShowArgs) -> Result<String, ClientError> {
    let by = args.by.unwrap_or_default();
    if by == By::Connection {
        let shown: ConnectionsDisplay = args.ask(&Request::Show { what: Display::Connections })?;
        let json = || pretty(&json!(shown));
        return Ok(if args.json {
            json()
        } else {
            render::costs::connections(&shown.connections, args.width())
        });
    }
    let costs: Costs = client::costs(&args.path(), args.interval)?;
    Ok(if args.json {
        pretty(&json!(costs))
    } else {
        render::costs::render(&costs, by, args.width())
    })
}

fn wait(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().map(Duration::from_secs);
    let duration = seconds.or_else(|| parse_duration(text)).filter(|time| !time.is_zero());
    duration.ok_or_else(|| "expected a duration such as 100ms, 30s or 1h30m".to_owned())
}
