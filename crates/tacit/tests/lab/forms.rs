//! Tests forwarding rules with every kind of address and every action, and with the keys that
//! select clients.

use std::net::SocketAddr;

use crate::harness::{Lab, connect, echo, free_port, serve, wait_for};
use crate::peers::{connect_from, dial, echo_at, exchange, is_reset, ping};

/// The addresses of one kind each, fresh.
fn addresses(lab: &Lab, purpose: &str) -> [String; 4] {
    let path = lab.path(&format!("{purpose}.sock"));
    let unique = lab.directory.file_name().unwrap().display();
    [
        format!("127.0.0.1:{}", free_port()),
        format!("[::1]:{}", free_port()),
        format!("unix:{}", path.display()),
        format!("unix:@tacit-{unique}-{purpose}"),
    ]
}

fn rule(name: &str, listen: &str, connect: &str, action: &str) -> String {
    format!(
        "[[rule]]\nname = \"{name}\"\nlisten = \"{listen}\"\nconnect = \"{connect}\"\n{action}\n"
    )
}

#[test]
fn every_pair_of_address_kinds_relays_in_both_roles_and_in_clear() {
    let lab = Lab::new();
    let apps = addresses(&lab, "app");
    apps.iter().for_each(|address| echo_at(address));
    let mut rules = String::new();
    let mut entries = Vec::new();
    for from in 0..4 {
        for to in 0..4 {
            let fresh = |purpose: &str| addresses(&lab, &format!("{purpose}-{from}-{to}"));
            // Of all client rules together each pair is one, and so it is of all server rules.
            let clear = &fresh("c")[from];
            let tls = &fresh("t")[to];
            let plain = &fresh("p")[from];
            let client = r#"tls = { role = "client", trust = "ca", server-name = "localhost" }"#;
            let server =
                r#"tls = { role = "server", identity = "localhost", client-cert = "none" }"#;
            let app = &apps[(from + to) % 4];
            rules += &rule(&format!("c{from}{to}"), clear, tls, client);
            rules += &rule(&format!("s{from}{to}"), tls, app, server);
            rules += &rule(&format!("p{from}{to}"), plain, &apps[to], "permit = true");
            entries.extend([clear.clone(), plain.clone()]);
        }
    }
    let agent = lab.agent(&rules);
    let sent: Vec<u8> = (0..20_000_u32).flat_map(u32::to_le_bytes).collect();
    for entry in entries {
        assert!(exchange(dial(&entry), &sent).unwrap() == sent, "{entry}");
    }
    let rules = agent.show("rules");
    for rule in rules["rules"].as_array().unwrap() {
        assert_eq!((&rule["hits"], &rule["failures"]), (&1.into(), &0.into()), "{rule}");
    }
}

#[test]
fn a_rule_listens_at_several_addresses_and_connects_to_a_name() {
    let lab = Lab::new();
    let listens = addresses(&lab, "several");
    let app = echo().port();
    let agent = lab.agent(&format!(
        "[[rule]]\nname = \"r\"\nlisten = {listens:?}\nconnect = \"localhost:{app}\"\n\
         permit = true\n"
    ));
    for listen in &listens {
        assert!(ping(&mut *dial(listen)), "{listen}");
    }
    assert_eq!(agent.show("rules")["rules"][0]["hits"], 4);
}

#[test]
fn a_target_that_cannot_be_reached_is_named_and_resets() {
    let lab = Lab::new();
    let port = free_port();
    let closed = free_port();
    let agent = lab.agent(&rule(
        "r",
        &format!("127.0.0.1:{port}"),
        &format!("127.0.0.1:{closed}"),
        "permit = true",
    ));
    assert!(is_reset(&mut connect(("127.0.0.1", port))));
    agent.wait_for_log(&format!("cannot connect to 127.0.0.1:{closed}: Connection refused"));
    assert_eq!(agent.show("rules")["rules"][0]["failures"], 1);
}

#[test]
fn deny_and_no_match_reset_at_every_kind_of_address() {
    let lab = Lab::new();
    let denied = free_port();
    let unmatched = free_port();
    let tls = free_port();
    let app = echo();
    let agent = lab.agent(&format!(
        r#"
        [[rule]]
        name = "never"
        listen = "127.0.0.1:{denied}"
        deny = true
        log = true
        [[rule]]
        name = "elsewhere"
        listen = "127.0.0.1:{unmatched}"
        connect = "{app}"
        remote = "10.9.8.0/24"
        permit = true
        [[rule]]
        name = "elsewhere-tls"
        listen = "127.0.0.1:{tls}"
        connect = "{app}"
        remote = "10.9.8.0/24"
        tls = {{ role = "server", identity = "localhost", client-cert = "none" }}
        "#
    ));
    for port in [denied, unmatched, tls] {
        assert!(is_reset(&mut connect(("127.0.0.1", port))), "port {port}");
    }
    agent.wait_for_log(" info denied rule=never ");
    agent.wait_for_log("rule=\"no rule matches\"");
    let rules = agent.show("rules");
    let hits: Vec<_> = rules["rules"].as_array().unwrap().iter().map(|r| &r["hits"]).collect();
    assert_eq!(hits, [1, 0, 0]);
    wait_for("the audit log", || agent.audit().lines().count() == 3);
    assert!(agent.audit().lines().all(|line| line.contains(r#""outcome":"denied""#)));
}

/// A server that says who it is and ends.
fn says(what: &'static str) -> SocketAddr {
    serve(move |mut stream| {
        let _ = std::io::Write::write_all(&mut stream, what.as_bytes());
    })
}

#[test]
fn rules_that_share_an_address_are_selected_by_client() {
    let lab = Lab::new();
    let port = free_port();
    let second = says("second");
    let third = says("third");
    let _agent = lab.agent(&format!(
        r#"
        [[rule]]
        name = "second"
        listen = "0.0.0.0:{port}"
        connect = "{second}"
        remote = "127.0.0.2"
        permit = true
        [[rule]]
        name = "third"
        listen = "0.0.0.0:{port}"
        connect = "{third}"
        remote = ["127.0.0.3-127.0.0.4"]
        permit = true
        "#
    ));
    let to = SocketAddr::from(([127, 0, 0, 1], port));
    let hear = |source| {
        let mut text = String::new();
        std::io::Read::read_to_string(&mut connect_from(source, to), &mut text).map(|_| text)
    };
    assert_eq!(hear("127.0.0.2").unwrap(), "second");
    assert_eq!(hear("127.0.0.3").unwrap(), "third");
    assert_eq!(hear("127.0.0.4").unwrap(), "third");
    assert!(hear("127.0.0.5").is_err());
}

#[test]
fn clients_of_unix_sockets_are_selected_by_user_and_program() {
    let lab = Lab::new();
    let [_, _, _, by_user] = addresses(&lab, "user");
    let [_, _, _, by_number] = addresses(&lab, "number");
    let [_, _, _, by_program] = addresses(&lab, "program");
    let ours = says("ours");
    let others = says("others");
    let me = rustix::process::geteuid().as_raw();
    let name = String::from_utf8(lab.run("id", &["-un"]).stdout).unwrap();
    let us = std::env::current_exe().unwrap();
    let mut rules = String::new();
    for (at, key, value) in [
        (&by_user, "user", name.trim()),
        (&by_number, "user", &me.to_string()),
        (&by_program, "program", us.to_str().unwrap()),
    ] {
        rules += &format!(
            "[[rule]]\nname = \"ours-{}\"\nlisten = \"{at}\"\nconnect = \"{ours}\"\n\
             {key} = \"{value}\"\npermit = true\n",
            at.len()
        );
        rules += &rule(&format!("others-{}", at.len()), at, &others.to_string(), "permit = true");
    }
    let _agent = lab.agent(&rules);
    for at in [&by_user, &by_number, &by_program] {
        let mut text = String::new();
        std::io::Read::read_to_string(&mut *dial(at), &mut text).unwrap();
        assert_eq!(text, "ours", "{at}");
    }
    const CLIENT: &str = "import socket, sys; s = socket.socket(socket.AF_UNIX); \
                          s.connect('\\0' + sys.argv[1]); print(s.recv(99).decode())";
    let ask = |at: &str, prefix: &[&str]| {
        let name = at.strip_prefix("unix:@").unwrap();
        let words = [prefix, &["python3", "-c", CLIENT, name]].concat();
        let output = lab.run(words[0], &words[1..]);
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    assert_eq!(ask(&by_program, &[]), "others", "same user, another program");
    assert_eq!(ask(&by_user, &[]), "ours", "same user, another program");
    if me == 0 {
        let other_user = ["setpriv", "--reuid=65534", "--clear-groups", "/usr/bin/env"];
        assert_eq!(ask(&by_user, &other_user), "others");
        assert_eq!(ask(&by_number, &other_user), "others");
    } else {
        println!("skipped: another user's connections, which only root can make");
    }
}
