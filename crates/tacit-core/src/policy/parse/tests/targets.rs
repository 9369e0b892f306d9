//! Tests the parsing of the targets of forwarding rules. A target is an address to which the agent
//! connects.

use super::*;

#[test]
fn targets_keep_host_and_port() {
    let rule = only_rule(&client("DB.example.:5433", "trust = \"corp\""));
    let connect = rule.forward().unwrap().connect.clone().unwrap();
    assert_eq!(connect.targets, [Target::Name { host: "db.example".to_owned(), port: 5433 }]);
}

/// A client rule with this list in `connect`, and with additional keys.
fn client_of(list: &str, more: &str, tls: &str) -> String {
    client("IT:1", tls).replace("connect = \"IT:1\"", &format!("connect = {list}\n{more}"))
}

#[test]
fn a_rule_has_several_targets_in_an_order() {
    let connect = |list: &str, more: &str| {
        only_rule(&client_of(list, more, "trust = \"corp\""))
            .forward()
            .unwrap()
            .connect
            .clone()
            .unwrap()
    };
    let shown = |connect: &Connect| -> Vec<String> {
        connect.targets.iter().map(ToString::to_string).collect()
    };
    let both = "[\"db1.example:1\", \"[::1]:2\"]";
    assert_eq!(shown(&connect(both, "")), ["db1.example:1", "[::1]:2"]);
    assert_eq!(connect(both, "").order, TargetOrder::First);
    assert_eq!(connect(both, "order = \"first\"").order, TargetOrder::First);
    assert_eq!(connect(both, "order = \"round-robin\"").order, TargetOrder::RoundRobin);
    assert_eq!(shown(&connect("[\"db1.example:1\"]", "")), ["db1.example:1"]);
    let permit =
        client_of(both, "", "").replace("tls = { role = \"client\"\n,  }", "permit = true");
    let by_name = "permits connections by name, so an attacker who forges DNS answers can choose \
                   the destination";
    assert!(warnings(&permit)[2].starts_with(&format!("10:12: rule `r` {by_name}")));
    let most: Vec<_> = (1..=TARGETS_MAX).map(|port| format!("\"[::1]:{port}\"")).collect();
    let most = connect(&format!("[{}]", most.join(", ")), "");
    assert_eq!(most.targets.len(), TARGETS_MAX);
}

#[test]
fn the_name_of_the_target_that_is_dialled_is_checked() {
    let name = |list: &str, tls: &str| match &only_rule(&client_of(list, "", tls)).action {
        Action::Tls(Tls::Client(tls)) => match &tls.verify {
            Verify::Full { server_name, .. }
            | Verify::Chain { server_name, .. }
            | Verify::None { server_name } => server_name.clone(),
        },
        other => panic!("{other:?}"),
    };
    let trust = "trust = \"corp\"";
    let own = format!("{trust}, server-name = \"db.example\"");
    for (list, tls, wanted) in [
        ("[\"a.example:1\", \"b.example:1\"]", trust, None),
        ("[\"a.example:1\", \"b.example:1\"]", &own, Some("db.example")),
        ("[\"a.example:1\", \"A.example.:2\"]", trust, Some("a.example")),
        ("[\"192.0.2.1:1\", \"192.0.2.2:1\"]", trust, None),
        ("[\"192.0.2.1:1\", \"192.0.2.1:2\"]", trust, Some("192.0.2.1")),
        ("[\"unix:/run/a\", \"a.example:2\"]", &own, Some("db.example")),
        ("[\"unix:/run/a\", \"a.example:2\"]", "verify = \"none\"", None),
    ] {
        assert_eq!(name(list, tls).as_deref(), wanted, "{list} {tls}");
    }
}
