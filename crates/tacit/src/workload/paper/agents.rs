//! Starts a server and two agents, for the measurements of `tacit workload paper`. The agents
//! protect the connections with TLS.
//!
//! ```text
//!   client ── clear ──> near agent == TLS ==> far agent ── clear ──> server
//!                       127.0.0.1:71xx        127.0.0.1:72xx         127.0.0.1:7000
//! ```

use super::cell::Gap;
use super::stage::{Stage, StagedProcess};

/// The address of the server.
pub(super) const CLEAR: &str = "127.0.0.1:7000";

/// How connections of a route are protected.
#[derive(Clone, Copy, Debug)]
pub(super) struct Route {
    pub(super) name: &'static str,
    /// The number of the route, which determines its ports.
    pub(super) number: u16,
    pub(super) protection: Protection,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Protection {
    /// Both agents relay in clear.
    Permit,
    /// TLS with this version, suite, and `client-cert` of the far agent.
    Tls { version: &'static str, suite: &'static str, client_cert: &'static str },
}

/// The usual protection: TLS 1.3 with certificates of both sides.
pub(super) const TLS_1_3: Protection =
    Protection::Tls { version: "1.3", suite: "TLS_AES_128_GCM_SHA256", client_cert: "required" };

/// The two agents and their server.
#[derive(Debug)]
pub(super) struct AgentPair {
    pub(super) near: StagedProcess,
    pub(super) far: StagedProcess,
    pub(super) server: StagedProcess,
}

/// The commands in front of each process, such as `taskset`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sides<'a> {
    /// For the client and its agent.
    pub(super) near: &'a [&'a str],
    /// For the server and its agent.
    pub(super) far: &'a [&'a str],
}

/// The processes may run on every CPU.
pub(super) const ANYWHERE: Sides<'static> = Sides { near: &[], far: &[] };

impl Route {
    /// The address at which the near agent accepts clients.
    pub(super) fn entry(&self) -> String {
        format!("127.0.0.1:{}", 7100 + self.number)
    }

    fn between(&self) -> String {
        format!("127.0.0.1:{}", 7200 + self.number)
    }

    fn near_rule(&self) -> String {
        let action = match self.protection {
            Protection::Permit => "permit = true".to_owned(),
            Protection::Tls { version, suite, .. } => {
                format!(
                    "tls = {{ role = \"client\", trust = \"ca\", identity = \"alice\", \
                     server-name = \"localhost\", resumption = false, min-version = \"{version}\", \
                     suites = [\"{suite}\"] }}"
                )
            }
        };
        self.rule(&self.entry(), &self.between(), &action)
    }

    fn far_rule(&self) -> String {
        let action = match self.protection {
            Protection::Permit => "permit = true".to_owned(),
            Protection::Tls { version, suite, client_cert } => {
                let trust = match client_cert {
                    "none" => "",
                    _ => "trust = \"ca\", ",
                };
                format!(
                    "tls = {{ role = \"server\", identity = \"localhost\", {trust}client-cert = \
                     \"{client_cert}\", resumption = false, min-version = \"{version}\", \
                     suites = [\"{suite}\"] }}"
                )
            }
        };
        self.rule(&self.between(), CLEAR, &action)
    }

    fn rule(&self, listen: &str, connect: &str, action: &str) -> String {
        let name = self.name;
        format!(
            "[[rule]]\nname = \"{name}\"\nlisten = \"{listen}\"\nconnect = \"{connect}\"\n\
             {action}\n"
        )
    }
}

/// The policy of the near agent.
pub(super) fn near_policy(routes: &[Route], settings: &str) -> String {
    policy("alice", settings, routes.iter().map(Route::near_rule).collect())
}

/// The policy of the far agent.
pub(super) fn far_policy(routes: &[Route], settings: &str) -> String {
    policy("localhost", settings, routes.iter().map(Route::far_rule).collect())
}

fn policy(identity: &str, settings: &str, rules: String) -> String {
    format!(
        "version = 1\n[agent]\n{settings}\n[identity.{identity}]\ncert = \
         \"pki/{identity}.pem\"\nkey = \"pki/{identity}.key\"\n[trust.ca]\nca = \
         \"pki/ca.pem\"\n{rules}"
    )
}

/// Makes the certificates of both sides in `pki`.
pub(super) fn certificates(stage: &Stage) -> Result<(), Gap> {
    if stage.directory().join("pki/ca.pem").exists() {
        return Ok(());
    }
    let tacit = stage.tacit();
    stage.shell(&format!(
        "{tacit} ca init --dir pki\n\
         {tacit} ca issue --dir pki localhost --san 127.0.0.1\n\
         {tacit} ca issue --dir pki alice --client\n"
    ))?;
    Ok(())
}

/// Starts the server and both agents, and waits until all accept connections.
pub(super) fn start(
    stage: &Stage,
    routes: &[Route],
    settings: &str,
    sides: Sides<'_>,
) -> Result<AgentPair, Gap> {
    certificates(stage)?;
    stage.write("near.toml", &near_policy(routes, settings))?;
    stage.write("far.toml", &far_policy(routes, settings))?;
    let agent = |name, prefix: &[&str]| {
        let [policy, control] = [format!("{name}.toml"), format!("{name}.sock")];
        let words = [stage.tacit(), "agent", "--policy", &policy, "--control", &control];
        stage.start(name, &[prefix, &words].concat())
    };
    let mut server = stage.server(sides.far, CLEAR)?;
    let mut far = agent("far", sides.far)?;
    let mut near = agent("near", sides.near)?;
    stage.wait_for_listener(CLEAR, &mut server)?;
    for route in routes {
        stage.wait_for_listener(&route.between(), &mut far)?;
        stage.wait_for_listener(&route.entry(), &mut near)?;
    }
    Ok(AgentPair { near, far, server })
}

impl AgentPair {
    /// `--cpu-of` for both agents and the server.
    pub(super) fn cpu_of(&self) -> Vec<String> {
        let all = [&self.near, &self.far, &self.server].map(StagedProcess::cpu_of);
        all.into_iter().flat_map(|process| ["--cpu-of".to_owned(), process]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_policies_are_valid_for_every_protection() {
        let protections = [
            Protection::Permit,
            TLS_1_3,
            Protection::Tls {
                version: "1.2",
                suite: "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
                client_cert: "none",
            },
            Protection::Tls {
                version: "1.3",
                suite: "TLS_CHACHA20_POLY1305_SHA256",
                client_cert: "preferred",
            },
        ];
        let names = ["permit", "mutual", "old", "preferred"];
        let routes: Vec<_> = (1..)
            .zip(names.into_iter().zip(protections))
            .map(|(number, (name, protection))| Route { name, number, protection })
            .collect();
        for text in
            [near_policy(&routes, "workers = 1"), far_policy(&routes, "chain-cache = false")]
        {
            let parsed = tacit_core::policy::parse(&text);
            assert!(parsed.policy.is_some(), "{parsed:?}\n{text}");
        }
    }
}
