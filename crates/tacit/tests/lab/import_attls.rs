//! Tests the steps that the manual describes for the migration from AT-TLS. The tests use the order
//! in which a new user follows these steps.

use serde_json::Value;

use crate::harness::{Lab, TACIT, text_of};

const PAGE: &str = include_str!("../../../../docs/migrating-from-attls.md");

/// The blocks of the page that begin with a word, in order.
fn blocks(begin: &str) -> Vec<&'static str> {
    let fenced = PAGE.split("```").skip(1).step_by(2);
    let bodies = fenced.filter_map(|block| block.split_once('\n').map(|(_, body)| body));
    bodies.filter(|body| body.starts_with(begin)).collect()
}

/// The page's policy and map file, with certificates as it says to make them.
fn lab() -> Lab {
    let lab = Lab::new();
    lab.write("pagent.policy", blocks("TTLSRule")[0]);
    lab.write("map.toml", blocks("[job]")[0]);
    lab.write("ipsec.policy", blocks("IpFilterPolicy")[0]);
    lab.tacit(&["ca", "issue", "payroll"]);
    std::fs::copy(lab.path("ca.pem"), lab.path("corp-ca.pem")).unwrap();
    lab
}

/// Every line that the page shows below a command, but for its dots, is among those printed.
fn assert_shown(shown: &str, printed: &str) {
    for line in shown.lines().filter(|line| !line.starts_with('$') && *line != "...") {
        assert!(printed.lines().any(|one| one == line), "{line}\n{printed}");
    }
}

#[test]
fn the_page_on_migrating_can_be_followed() {
    let lab = lab();
    for shown in blocks("$ tacit import") {
        for command in shown.split("$ ").skip(1) {
            let line = command.lines().next().unwrap();
            let words: Vec<&str> = line.split(' ').skip(1).collect();
            let output = lab.run(TACIT, &words);
            let fails = !words.contains(&"map.toml") && words[0] == "import";
            assert_eq!(output.status.code(), Some(if fails { 78 } else { 0 }), "{line}");
            assert_shown(command.split_once('\n').unwrap().1, &text_of(&output));
        }
    }
}

#[test]
fn an_import_of_attls_is_all_or_nothing_and_reports_findings() {
    let lab = lab();
    lab.write("policy.toml", "as before");
    let output = lab.run(TACIT, &["import", "attls", "pagent.policy", "-o", "policy.toml"]);
    assert_eq!(output.status.code(), Some(78));
    assert_eq!(std::fs::read_to_string(lab.path("policy.toml")).unwrap(), "as before");

    let words = ["import", "attls", "pagent.policy", "--map", "map.toml"];
    let policy = String::from_utf8(lab.run(TACIT, &words).stdout).unwrap();
    assert!(policy.contains("[[rule]]\nname = \"PAYROLL\""), "{policy}");
    let output = lab.run(TACIT, &[&words[..], &["--json"]].concat());
    let value: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&value["ok"], &value["policy"]), (&Value::Bool(true), &Value::String(policy)));
    let changed = value["findings"].as_array().unwrap().iter().find(|one| one["line"] == 22);
    assert_eq!(changed.unwrap()["severity"], "changed", "{value:#}");

    let closed = lab.run(TACIT, &[&words[..], &["--fail-closed"]].concat());
    assert!(!String::from_utf8(closed.stdout).unwrap().contains("permit"));
    let old = lab.run(TACIT, &[&words[..], &["--keep-no-name-check"]].concat());
    assert!(String::from_utf8(old.stdout).unwrap().contains("verify = \"chain\""));
    let missing = lab.run(TACIT, &["import", "attls", "none.policy"]);
    assert_eq!(missing.status.code(), Some(78));
    assert!(
        text_of(&missing).contains("none.policy:1: error[cannot-import]:"),
        "{}",
        text_of(&missing)
    );
    assert_eq!(lab.run(TACIT, &["import", "attls"]).status.code(), Some(64));
}

#[test]
fn links_out_of_the_root_are_not_followed() {
    use std::os::unix::fs::symlink;

    let lab = lab();
    std::fs::create_dir_all(lab.path("root/etc")).unwrap();
    lab.write("root/main", "TcpImage T /etc/image\n");
    lab.write("root/etc/image", "TTLSConfig /etc/policy\n");
    std::fs::copy(lab.path("pagent.policy"), lab.path("root/etc/inside")).unwrap();
    let import = || {
        let words = ["import", "attls", "root/main", "--root", "root", "--map", "map.toml"];
        lab.run(TACIT, &words)
    };
    symlink("inside", lab.path("root/etc/policy")).unwrap();
    assert!(import().status.success(), "{}", text_of(&import()));
    std::fs::remove_file(lab.path("root/etc/policy")).unwrap();
    symlink(lab.path("pagent.policy"), lab.path("root/etc/policy")).unwrap();
    let refused = import();
    assert!(!refused.status.success());
    let text = text_of(&refused);
    assert!(
        text.contains("a symbolic link leads to a file outside of the directory of --root"),
        "{text}"
    );
}
