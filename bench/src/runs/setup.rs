//! Defines the policies and the network addresses for `bench runs`, which starts programs under
//! `tacit run`.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use crate::certs::SERVER_NAME;

/// The address of the load server; not on loopback, which each run has for itself.
pub(super) const SERVER: Ipv4Addr = Ipv4Addr::new(10, 9, 8, 7);
/// The address at which the far agent accepts TLS.
pub(super) const FAR: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 9, 8, 8)), 8443);

/// The agent relays the bytes of the connections, and programs get no sockets of its network.
const RELAYED: &str = "permit = true\npath = \"relay\"";

/// Number of rules in the larger policy.
pub(super) const RULES: u32 = 1000;

/// A policy with this many different rules.
pub(super) fn many_rules(count: u32) -> String {
    let rule = |number: u32| {
        let network = number / 250 + 1;
        let host = number % 250;
        format!(
            "[[rule]]\nname = \"rule-{number}\"\ndirection = \"outbound\"\n\
             remote = \"10.{network}.{host}.0/24\"\nremote-ports = {}\npermit = true\n",
            1000 + number
        )
    };
    format!("version = 1\n{}", (0..count).map(rule).collect::<String>())
}

/// A policy file of a run or of the far agent.
pub(super) struct PolicyFile {
    pub(super) name: &'static str,
    pub(super) text: String,
}

/// The policies of the run and of the far agent.
pub(super) fn policies(server: SocketAddr, congestion: &str) -> [PolicyFile; 3] {
    let head = format!(
        "version = 1\n[agent]\nworkers = 1\ncongestion-control = \"{congestion}\"\n\
         [trust.bench]\nca = \"ca.pem\"\n"
    );
    let outbound = |address: SocketAddr, action: &str| {
        format!(
            "{head}[[rule]]\nname = \"bench\"\ndirection = \"outbound\"\nremote = \"{}\"\n\
             remote-ports = {}\n{action}\n",
            address.ip(),
            address.port()
        )
    };
    let alike = "min-version = \"1.3\"\ngroups = [\"x25519\"]\nresumption = false";
    let client = format!("[rule.tls]\ntrust = \"bench\"\nserver-name = \"{SERVER_NAME}\"\n{alike}");
    let far = format!(
        "{head}[identity.server]\ncert = \"server.pem\"\nkey = \"server.key\"\n\
         [[rule]]\nname = \"far\"\nlisten = \"{FAR}\"\nconnect = \"{server}\"\nclear = true\n\
         [rule.tls]\nrole = \"server\"\nidentity = \"server\"\nclient-cert = \"none\"\n{alike}\n"
    );
    [
        PolicyFile { name: "relay.toml", text: outbound(server, RELAYED) },
        PolicyFile { name: "tls.toml", text: outbound(FAR, &client) },
        PolicyFile { name: "far.toml", text: far },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tacit_takes_all_policies() {
        let server = SocketAddr::from((SERVER, 9000));
        let many = |name, rules| PolicyFile { name, text: many_rules(rules) };
        let all = policies(server, "cubic").into_iter();
        for PolicyFile { name, text } in all.chain([many("one", 1), many("many", RULES)]) {
            let parsed = tacit_core::policy::parse(&text);
            assert!(parsed.policy.is_some(), "{name}: {parsed:?}\n{text}");
        }
    }
}
