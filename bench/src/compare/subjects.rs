//! Starts the agents that `bench compare` measures. Each compared version of tacit has its own
//! agents.

use std::path::{Path, PathBuf};

use super::options::Options;
use crate::certs;
use crate::load::LoadServer;
use crate::network::Network;
use crate::peers::{self, Peer, Running, Setting};
use crate::run_directory::RunDirectory;
use crate::tls_settings::TlsSettings;

/// The policy of runs whose start is measured.
pub(super) const RUN_POLICY: &str = "start.toml";

const START_RULE: &str = "version = 1\n[agent]\n[[rule]]\nname = \"all\"\n\
                          direction = \"outbound\"\nremote = \"10.0.0.0/8\"\npermit = true\n";

/// The compared programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Old,
    New,
    /// OLD, a second time.
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

/// A compared program with its running agents.
#[derive(Debug)]
pub(super) struct Subject<'a> {
    pub(super) role: Role,
    pub(super) full: Running,
    pub(super) resumed: Running,
    /// Two runs, if the host allows them.
    pub(super) runs: Option<Running>,
    pub(super) setting: Setting<'a>,
    /// The setting of agents that are started for a single sample.
    pub(super) setting_once: Setting<'a>,
}

/// The program file of a role.
fn program(role: Role, options: &Options) -> &Path {
    match role {
        Role::New => &options.new,
        Role::Old | Role::Again => &options.old,
    }
}

/// The key of `[agent]` to set to false for a role.
fn left_out(role: Role, options: &Options) -> Option<&str> {
    match role {
        Role::New => None,
        Role::Old | Role::Again => options.old_without.as_deref(),
    }
}

/// Creates the directory for runs, if the host allows runs.
pub(super) fn directory(
    role: Role,
    options: &Options,
    network: &Network,
) -> Result<Option<RunDirectory>, String> {
    if !network.is_own() {
        return Ok(None);
    }
    let directory = RunDirectory::make(role.name(), program(role, options), &options.new)?;
    let policy = left_out(role, options)
        .map_or_else(|| START_RULE.to_owned(), |key| peers::without(START_RULE, key));
    directory.write(RUN_POLICY, &policy)?;
    Ok(Some(directory))
}

impl<'a> Subject<'a> {
    /// Starts the agents.
    pub(super) fn start(
        role: Role,
        options: &Options,
        network: &Network,
        directory: Option<&'a RunDirectory>,
        dir: &Path,
        server: &LoadServer,
    ) -> Result<Self, String> {
        let make_setting = |part: &str| {
            let dir = dir.join(format!("{}-{part}", role.name()));
            std::fs::create_dir(&dir)
                .map_err(|error| format!("cannot create {}: {error}", dir.display()))?;
            certs::make(&dir)?;
            Ok::<_, String>(Setting {
                application: server.address,
                dir,
                target: PathBuf::new(),
                tacit: program(role, options).to_owned(),
                load: options.new.clone(),
                congestion: network.congestion.clone(),
                directory,
                peer_network: None,
                without: left_out(role, options).map(str::to_owned),
            })
        };
        let setting = make_setting("agents")?;
        let setting_once = make_setting("once")?;
        let fixed = known("tacit-fixed")?;
        let full = peers::start(fixed, TlsSettings::Usual, &setting)?;
        let resumed = peers::start(fixed, TlsSettings::Resumed, &setting)?;
        let runs = match directory {
            Some(_) => Some(peers::start(known("tacit-run")?, TlsSettings::Usual, &setting)?),
            None => None,
        };
        Ok(Self { role, full, resumed, runs, setting, setting_once })
    }

    /// Starts a pair of agents that have not relayed anything.
    pub(super) fn start_once(&self) -> Result<Running, String> {
        let dir = &self.setting_once.dir;
        let failed = |error: std::io::Error| format!("cannot read {}: {error}", dir.display());
        for entry in std::fs::read_dir(dir).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            // Sockets of earlier agents, which were killed.
            if path.extension().is_some_and(|extension| extension == "sock") {
                std::fs::remove_file(&path).map_err(failed)?;
            }
        }
        peers::start(known("tacit-fixed")?, TlsSettings::Usual, &self.setting_once)
    }
}

fn known(name: &str) -> Result<&'static Peer, String> {
    peers::peer(name).ok_or_else(|| format!("unknown peer {name}"))
}
