//! Tests filter rules for the packets inside tunnels.

use std::sync::Arc;

use tacit::packet::{FilterCounter, TunnelFilters};
use tacit_ipsec::esp::DropReason;

use super::in_namespace;
use super::peer::{Lab, drops, program, syn, udp};

const RULES: &str = r#"
[[rule]]
name = "resolver"
filter = "permit"
tunnel = "branch"
protocol = "udp"
remote = "10.2.0.1"
remote-ports = 53
[[rule]]
name = "rest"
filter = "deny"
tunnel = "branch"
"#;

/// Installs the rules for the tunnels with `branch`. Returns their counters.
fn install(filters: &mut TunnelFilters, rules: &str) -> Vec<Arc<FilterCounter>> {
    let text = format!(
        "version = 1\n{rules}[ike.branch]\npeer = \"192.0.2.1\"\npsk-file = \"psk\"\n\
         local-id = \"c.example\"\ninner = \"10.1.0.1\"\n"
    );
    let policy = tacit_core::policy::parse(&text).policy.unwrap();
    let counters: Vec<_> =
        policy.filters.iter().map(|filter| FilterCounter::new(&filter.name)).collect();
    filters.follow(&policy, &counters);
    counters
}

#[test]
fn denied_packets_are_counted_by_rule_and_by_reason_in_both_directions() {
    if !in_namespace("filters::denied_packets_are_counted_by_rule_and_by_reason_in_both_directions")
    {
        return;
    }
    let lab = Lab::open();
    let mut filters = TunnelFilters::default();
    let counters = install(&mut filters, RULES);
    let filter = filters.of("branch");
    let tunnel = tacit::packet::Tunnel { filter, ..lab.tunnel(1) };
    let mut sas = lab.establish(tunnel, 1);
    let program = program();
    lab.ask(&program, &mut sas);
    let answer = sas.seal(&udp("10.2.0.1:53", "10.1.0.1:4000", b"answer"));
    lab.send(&answer);
    let mut buffer = [0; 16];
    assert_eq!(program.recv(&mut buffer).unwrap(), 6);
    // The flows of the tunnel permit these, and the rule `rest` denies them.
    program.send_to(b"question", "10.2.0.2:53").unwrap();
    lab.wait_for_drops(DropReason::Filter, 1);
    let opening = sas.seal(&syn([10, 2, 0, 1], (4000, 8080), [10, 1, 0, 1]));
    lab.send(&opening);
    lab.wait_for_drops(DropReason::Filter, 2);
    let counted = || counters.iter().map(|one| one.packets()).collect::<Vec<_>>();
    assert_eq!(counted(), [2, 2]);
    let statistics = lab.worker.statistics();
    assert_eq!(statistics.tunnels[0].drops, [(DropReason::Filter, 2)]);
    // No flow permits this: the rules are not asked.
    program.send_to(b"question", "10.2.0.1:54").unwrap();
    lab.wait_for_drops(DropReason::Flow, 1);
    assert_eq!(counted(), [2, 2]);
    // The tunnel stays when other rules are installed.
    install(&mut filters, "");
    program.send_to(b"another", "10.2.0.2:53").unwrap();
    assert_eq!(&lab.receive(&mut sas)[28..], b"another");
    assert_eq!(drops(&lab.worker.statistics(), DropReason::Filter), 2);
}
