//! The three programs that are compared, each with agents of its own.

use std::path::{Path, PathBuf};

use super::options::Options;
use crate::certs;
use crate::load::LoadServer;
use crate::network::Network;
use crate::peers::{self, Peer, Running, Setting};
use crate::place::Place;
use crate::terms::Terms;

/// The policy of runs that are only started.
pub(super) const RUN_POLICY: &str = "start.toml";

const START_RULE: &str = "version = 1\n[agent]\n[[rule]]\nname = \"all\"\n\
                          direction = \"outbound\"\nremote = \"10.0.0.0/8\"\npermit = true\n";

/// Which of the three.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Old,
    New,
    /// OLD once more.
    Again,
}

impl Role {
    pub(super) const ALL: [Self; 3] = [Self::Old, Self::New, Self::Again];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Old => "old",
            Self::New => "new",
            Self::Again => "old-again",
        }
    }
}

/// One of the three, with what runs all the time.
#[derive(Debug)]
pub(super) struct Subject<'a> {
    pub(super) role: Role,
    pub(super) full: Running,
    pub(super) resumed: Running,
    /// Two runs, where they are allowed.
    pub(super) runs: Option<Running>,
    pub(super) setting: Setting<'a>,
    /// That of agents which are started for one sample.
    pub(super) setting_once: Setting<'a>,
}

/// The program of a role.
fn program(role: Role, options: &Options) -> &Path {
    match role {
        Role::New => &options.new,
        Role::Old | Role::Again => &options.old,
    }
}

/// The key of `[agent]` that is false for a role.
fn left_out(role: Role, options: &Options) -> Option<&str> {
    match role {
        Role::New => None,
        Role::Old | Role::Again => options.old_without.as_deref(),
    }
}

/// Makes the place of its runs, where there may be any.
pub(super) fn place(
    role: Role,
    options: &Options,
    network: &Network,
) -> Result<Option<Place>, String> {
    if !network.is_own() {
        return Ok(None);
    }
    let place = Place::make(role.name(), program(role, options), &options.new)?;
    let policy = left_out(role, options)
        .map_or_else(|| START_RULE.to_owned(), |key| peers::without(START_RULE, key));
    place.write(RUN_POLICY, &policy)?;
    Ok(Some(place))
}

impl<'a> Subject<'a> {
    /// Starts its agents.
    pub(super) fn start(
        role: Role,
        options: &Options,
        network: &Network,
        place: Option<&'a Place>,
        dir: &Path,
        server: &LoadServer,
    ) -> Result<Self, String> {
        let make_setting = |part: &str| {
            let dir = dir.join(format!("{}-{part}", role.name()));
            std::fs::create_dir(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
            certs::make(&dir)?;
            Ok::<_, String>(Setting {
                application: server.address,
                dir,
                target: PathBuf::new(),
                tacit: program(role, options).to_owned(),
                load: options.new.clone(),
                congestion: network.congestion.clone(),
                place,
                room: None,
                without: left_out(role, options).map(str::to_owned),
            })
        };
        let setting = make_setting("agents")?;
        let setting_once = make_setting("once")?;
        let fixed = known("tacit-fixed")?;
        let full = peers::start(fixed, Terms::Usual, &setting)?;
        let resumed = peers::start(fixed, Terms::Resumed, &setting)?;
        let runs = match place {
            Some(_) => Some(peers::start(known("tacit-run")?, Terms::Usual, &setting)?),
            None => None,
        };
        Ok(Self { role, full, resumed, runs, setting, setting_once })
    }

    /// Starts a pair of agents that have carried nothing.
    pub(super) fn start_once(&self) -> Result<Running, String> {
        let dir = &self.setting_once.dir;
        let failed = |error: std::io::Error| format!("{}: {error}", dir.display());
        for entry in std::fs::read_dir(dir).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            // The agents before it were killed.
            if path.extension().is_some_and(|extension| extension == "sock") {
                std::fs::remove_file(&path).map_err(failed)?;
            }
        }
        peers::start(known("tacit-fixed")?, Terms::Usual, &self.setting_once)
    }
}

fn known(name: &str) -> Result<&'static Peer, String> {
    peers::peer(name).ok_or_else(|| format!("no peer {name}"))
}
