//! Writes the policies of the three agents of `bench host`. Two agents run on the measured host:
//! one captures traffic, and one has a forwarding rule. The third agent runs on the second machine.

use super::addresses::{FAR_AGENT, FORWARD, SERVER};
use crate::certs::SERVER_NAME;

/// Both ends of a TLS connection use these settings.
const TLS: &str = "min-version = \"1.3\", groups = [\"x25519\"], resumption = false";

fn head(host: &str) -> String {
    format!("version = 1\n{host}[trust.bench]\nca = \"ca.pem\"\n")
}

/// A policy of a host with rules that match no traffic of the benchmark: a third each protects,
/// permits and denies.
pub(super) fn rules(count: u32) -> String {
    let rule = |number: u32| {
        let action = match number % 3 {
            0 => format!("tls = {{ trust = \"bench\", server-name = \"{SERVER_NAME}\" }}"),
            1 => "permit = true".to_owned(),
            _ => "deny = true".to_owned(),
        };
        format!(
            "[[rule]]\nname = \"rule-{number}\"\ndirection = \"outbound\"\n\
             remote = \"10.{}.{}.0/24\"\nremote-ports = {}\n{action}\n",
            number / 250 + 1,
            number % 250,
            1000 + number
        )
    };
    let rules: String = (0..count).map(rule).collect();
    format!("{}{rules}", head("[host]\nunmatched = \"permit\"\n"))
}

/// The same with a rule for clients of the host, at a port that none uses.
pub(super) fn rules_and_inbound(count: u32) -> String {
    format!(
        "{}[identity.web]\ncert = \"server.pem\"\nkey = \"server.key\"\n[[rule]]\nname = \"web\"\n\
         direction = \"inbound\"\nlocal-ports = 9443\n\
         tls = {{ identity = \"web\", client-cert = \"none\" }}\n",
        rules(count)
    )
}

/// A policy of a host with filter rules for TCP and UDP of other hosts. The last rule permits all
/// others, so that it decides about each packet of the benchmark.
pub(super) fn filters(count: u32) -> String {
    let rule = |number: u32| {
        let action = if number.is_multiple_of(2) { "permit" } else { "deny" };
        format!(
            "[[rule]]\nname = \"rule-{number}\"\nfilter = \"{action}\"\n\
             protocol = [\"tcp\", \"udp\"]\nremote = \"10.{}.{}.1\"\nremote-ports = {}\n",
            number / 250 + 1,
            number % 250,
            1000 + number
        )
    };
    let rules: String = (0..count).map(rule).collect();
    let rest = "[[rule]]\nname = \"rest\"\nfilter = \"permit\"\n";
    format!("version = 1\n[host]\nunmatched = \"permit\"\n{rules}{rest}")
}

/// A policy of a host that protects the traffic to the far agent.
pub(super) fn captured() -> String {
    format!(
        "{}[[rule]]\nname = \"far\"\ndirection = \"outbound\"\nremote = \"{}\"\n\
         remote-ports = {}\n\
         tls = {{ trust = \"bench\", server-name = \"{SERVER_NAME}\", {TLS} }}\n",
        head("[host]\nunmatched = \"permit\"\n"),
        FAR_AGENT.ip(),
        FAR_AGENT.port()
    )
}

/// A policy that forwards to the far agent.
pub(super) fn forwarding() -> String {
    format!(
        "{}[[rule]]\nname = \"far\"\nlisten = \"{FORWARD}\"\nconnect = \"{FAR_AGENT}\"\n\
         tls = {{ role = \"client\", trust = \"bench\", server-name = \"{SERVER_NAME}\", \
         {TLS} }}\n",
        head("")
    )
}

/// The policy of the far agent.
pub(super) fn far() -> String {
    format!(
        "{}[identity.server]\ncert = \"server.pem\"\nkey = \"server.key\"\n[[rule]]\n\
         name = \"far\"\nlisten = \"{FAR_AGENT}\"\nconnect = \"{SERVER}\"\nclear = true\n\
         tls = {{ role = \"server\", identity = \"server\", client-cert = \"none\", {TLS} }}\n",
        head("")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tacit_takes_all_policies() {
        for text in [rules(10), rules_and_inbound(10), filters(10), captured(), forwarding(), far()]
        {
            let parsed = tacit_core::policy::parse(&text);
            assert!(parsed.policy.is_some(), "{parsed:?}\n{text}");
        }
    }
}
