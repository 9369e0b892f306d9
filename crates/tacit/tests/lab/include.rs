//! Tests policies that include other files.

use std::fs;

use serde_json::Value;

use crate::harness::{Lab, connect, echo, exchange, free_port, text_of};

fn rule(name: &str, port: u16) -> String {
    format!(
        "[[rule]]\nname = \"{name}\"\nlisten = \"127.0.0.1:{port}\"\nconnect = \"{}\"\n\
         permit = true\n",
        echo()
    )
}

fn names(shown: &Value) -> Vec<String> {
    let rules = shown["rules"].as_array().unwrap();
    rules.iter().map(|rule| rule["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn files_are_included_in_the_order_of_their_names() {
    let lab = Lab::new();
    fs::create_dir(lab.path("conf.d")).unwrap();
    let ports = [free_port(), free_port(), free_port()];
    lab.write("conf.d/20-b.toml", rule("b", ports[1]));
    lab.write("conf.d/10-a.toml", format!("# The first.\n{}", rule("a", ports[0])));
    lab.write("conf.d/.hidden.toml", "no TOML");
    lab.write("conf.d/README", "no TOML");
    let include = "include = \"conf.d/*.toml\"\n";
    let agent = lab.agent(&format!("{include}{}", rule("own", ports[2])));
    assert_eq!(names(&agent.show("rules")), ["own", "a", "b"]);
    for port in ports {
        assert_eq!(exchange(connect(("127.0.0.1", port)), b"x"), b"x");
    }
    let policy = agent.policy.to_str().unwrap();
    let said = lab.tacit(&["check", policy]);
    assert!(said.starts_with("policy OK, 3 rules\nincludes "), "{said}");
    let files: Vec<_> = said.lines().filter_map(|line| line.strip_prefix("includes ")).collect();
    assert!(files[0].ends_with("conf.d/10-a.toml") && files[1].ends_with("20-b.toml"), "{said}");
    let said = agent.ok(&["show", "policy", "a"]);
    assert!(said.contains("line 2 of ") && said.contains("10-a.toml"), "{said}");
    let flow = ["--remote", "192.0.2.1:1", "--listen", &format!("127.0.0.1:{}", ports[1])];
    let said = lab.tacit(&[&["explain", "--policy", policy][..], &flow].concat());
    assert!(said.contains("20-b.toml: rule `b` matches: permit"), "{said}");

    let port = free_port();
    lab.write("conf.d/30-c.toml", rule("c", port));
    agent.ok(&["reload"]);
    assert_eq!(exchange(connect(("127.0.0.1", port)), b"x"), b"x");
    fs::remove_file(lab.path("conf.d/10-a.toml")).unwrap();
    agent.ok(&["reload"]);
    assert_eq!(names(&agent.show("rules")), ["own", "b", "c"]);
}

#[test]
fn errors_are_reported_in_the_included_file() {
    let lab = Lab::new();
    fs::create_dir(lab.path("conf.d")).unwrap();
    lab.write("p.toml", format!("version = 1\ninclude = \"conf.d/*.toml\"\n{}", rule("own", 1)));
    for (text, place, words) in [
        (rule("own", 2), ":2:8: error[name-taken]", "line 4 of the policy that includes this"),
        ("[[rule]]\nname = \"a\"\n".to_owned(), ":1:1: error[missing-key]", "no `direction`"),
        ("[agent]\n".to_owned(), ":1:2: error[misplaced-key]", "`agent`"),
        ("version = 1\n".to_owned(), ":1:1: error[misplaced-key]", "`version`"),
        ("x".to_owned(), ":1:2: error[not-toml]", "TOML"),
    ] {
        lab.write("conf.d/x.toml", &text);
        let output = lab.run(crate::harness::TACIT, &["check", "p.toml"]);
        let said = text_of(&output);
        assert_eq!(output.status.code(), Some(78), "{said}");
        assert!(said.contains(&format!("conf.d/x.toml{place}")), "{text}\n{said}");
        assert!(said.contains(words), "{text}\n{said}");
    }
    fs::remove_file(lab.path("conf.d/x.toml")).unwrap();
    let said = text_of(&lab.run(crate::harness::TACIT, &["check", "p.toml"]));
    assert!(said.contains("policy OK, 1 rule\n"), "{said}");
    let warned =
        "p.toml:2:11: warning[nothing-included]: no file matches the pattern `conf.d/*.toml`";
    assert!(said.contains(warned), "{said}");
    lab.write("p.toml", format!("version = 1\ninclude = \"none.toml\"\n{}", rule("own", 1)));
    let said = text_of(&lab.run(crate::harness::TACIT, &["check", "p.toml"]));
    assert!(
        said.contains("p.toml:2:11: error[unreadable-policy]: cannot include none.toml"),
        "{said}"
    );
    lab.write("p.toml", format!("version = 1\ninclude = \"none/*.toml\"\n{}", rule("own", 1)));
    let said = text_of(&lab.run(crate::harness::TACIT, &["check", "p.toml"]));
    assert!(said.contains("policy OK, 1 rule\n"), "{said}");
    let warned =
        "p.toml:2:11: warning[nothing-included]: no file matches the pattern `none/*.toml`";
    assert!(said.contains(warned), "{said}");
    lab.write("p.toml", format!("version = 1\ninclude = \"p.toml/*.toml\"\n{}", rule("own", 1)));
    let said = text_of(&lab.run(crate::harness::TACIT, &["check", "p.toml"]));
    let refused = "p.toml:2:11: error[unreadable-policy]: cannot include p.toml: Not a directory";
    assert!(said.contains(refused), "{said}");
}

#[test]
fn a_reload_that_includes_another_directory_is_refused_and_a_restart_takes_it() {
    let lab = Lab::new();
    let elsewhere = Lab::new();
    let port = free_port();
    let other = free_port();
    let agent = lab.agent(&rule("own", port));
    elsewhere.write("a.toml", rule("a", other));
    let there = elsewhere.path("").display().to_string();
    let there = there.trim_end_matches('/');
    agent.write_policy(&format!("include = \"{there}/*.toml\"\n{}", rule("own", port)));
    let refused = agent.verb(&["reload"]);
    let said = text_of(&refused);
    assert!(!refused.status.success(), "{said}");
    assert!(said.contains(":2:11: error[needs-restart]") && said.contains(there), "{said}");
    assert!(said.contains("fix: run `tacit restart`"), "{said}");
    agent.ok(&["restart"]);
    crate::harness::wait_for("the included rule", || names(&agent.show("rules")) == ["own", "a"]);
}
