//! `tacit link status`: prints the state and the configuration of links as text, JSON or metrics.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::enabled;
use super::query::{self, name_of};
use crate::control::metrics::exposition::{Kind, Page};
use crate::run::link::protocol::{LinkStatus, LinkedRun};

/// The state of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum LinkCondition {
    /// Runs use it.
    InUse,
    /// It is served, and no run uses it.
    Idle,
    /// No server answers.
    Stopped,
}

impl LinkCondition {
    fn word(self) -> &'static str {
        match self {
            Self::InUse => "in use",
            Self::Idle => "idle",
            Self::Stopped => "stopped",
        }
    }
}

/// A link of this host.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) struct LinkReport {
    name: String,
    condition: LinkCondition,
    path: PathBuf,
    /// What its server reports; `None` if it is stopped.
    server: Option<LinkStatus>,
}

/// The links of this host.
#[derive(Debug, Serialize)]
pub(super) struct LinkReports {
    links: Vec<LinkReport>,
}

impl LinkReports {
    /// The link of a command line; without one, all links that are served or start at boot.
    pub(super) fn read(link: Option<&Path>) -> Self {
        let paths = match link {
            Some(link) => vec![super::path_of(link)],
            None => {
                let mut all = query::paths();
                all.extend(enabled::names().iter().map(|name| super::path_of(Path::new(name))));
                all.sort();
                all.dedup();
                all
            }
        };
        Self { links: paths.into_iter().map(LinkReport::read).collect() }
    }

    /// Whether one of the links is stopped.
    pub(super) fn has_stopped(&self) -> bool {
        self.links.iter().any(|link| link.condition == LinkCondition::Stopped)
    }

    pub(super) fn text(&self) -> String {
        let texts: Vec<_> = self.links.iter().map(LinkReport::text).collect();
        texts.join("\n")
    }

    /// The metrics in the text format of Prometheus.
    pub(super) fn metrics(&self) -> String {
        let mut page = Page::default();
        let served = || self.links.iter().filter_map(|link| link.server.as_ref());
        let mut family =
            page.family("tacit_link_up", Kind::Gauge, "Whether the server of the link answers");
        for link in &self.links {
            let is_up = link.condition != LinkCondition::Stopped;
            family.sample(&[("link", &link.name)], f64::from(u8::from(is_up)));
        }
        let outlived = |link: &LinkStatus| {
            let runs = link.runs.iter().filter(|run| run.ended.is_some());
            runs.map(|run| run.sockets).sum::<usize>()
        };
        let gauges: [(&'static str, &str, Value<usize>); 6] = [
            ("tacit_link_runs", "Runs that use the link", |link| link.runs.len()),
            ("tacit_link_sockets", "Open sockets", |link| link.sockets),
            ("tacit_link_sockets_max", "Maximum number of open sockets", |link| link.sockets_max),
            ("tacit_link_sockets_outlived", "Open sockets of runs that have ended", outlived),
            ("tacit_link_requests", "Socket requests in progress", |link| link.requests),
            ("tacit_link_traced", "Whether requests are logged", |link| link.trace.into()),
        ];
        for (name, help, value) in gauges {
            let mut family = page.family(name, Kind::Gauge, help);
            served().for_each(|link| {
                family.sample(&[("link", &link.name)], value(link) as f64);
            });
        }
        let counters: [(&'static str, &str, Value<u64>); 3] = [
            ("tacit_link_opened_total", "Number of sockets given to runs", |link| link.opened),
            ("tacit_link_failed_total", "Socket requests that the kernel refused", |link| {
                link.failed
            }),
            ("tacit_link_refused_total", "Socket requests that the link server refused", |link| {
                link.refused
            }),
        ];
        for (name, help, value) in counters {
            let mut family = page.family(name, Kind::Counter, help);
            served().for_each(|link| {
                family.sample(&[("link", &link.name)], value(link) as f64);
            });
        }
        page.finish()
    }
}

impl LinkReport {
    fn read(path: PathBuf) -> Self {
        let server = query::status(&path).ok();
        let condition = match &server {
            None => LinkCondition::Stopped,
            Some(status) if status.runs.is_empty() => LinkCondition::Idle,
            Some(_) => LinkCondition::InUse,
        };
        let name = server.as_ref().map_or_else(|| name_of(&path), |status| status.name.clone());
        Self { name, condition, path, server }
    }

    fn text(&self) -> String {
        let mut text = String::new();
        let mut line = |name: &str, value: &dyn std::fmt::Display| {
            let _ = writeln!(text, "{name:9} {value}");
        };
        line("link", &self.name);
        line("status", &self.condition.word());
        line("path", &self.path.display());
        if let Some(status) = &self.server {
            let users: std::collections::BTreeSet<_> =
                status.runs.iter().map(|run: &LinkedRun| run.user.as_str()).collect();
            let users: Vec<_> = users.into_iter().collect();
            line("host", &status.host);
            let addresses: Vec<_> = status.addresses.iter().map(ToString::to_string).collect();
            line(
                "addresses",
                &if addresses.is_empty() { "-".to_owned() } else { addresses.join(" ") },
            );
            line("users", &if users.is_empty() { "-".to_owned() } else { users.join(" ") });
            line("runs", &format!("{} of {}", status.runs.len(), status.runs_max));
            line("sockets", &format!("{} of {}", status.sockets, status.sockets_max));
            line("share", &if status.share { "yes" } else { "no" });
            line("requests", &format!("{} of {}", status.requests, status.requests_max));
            line("opened", &status.opened);
            line("failed", &status.failed);
            line("refused", &status.refused);
            line("trace", &if status.trace { "on" } else { "off" });
            line("pid", &status.pid);
            line("since", &status.since);
            line("policy", &status.policy.display());
        }
        text
    }
}

/// Reads one value of a link's state.
type Value<T> = fn(&LinkStatus) -> T;
