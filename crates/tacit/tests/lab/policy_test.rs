//! Tests `tacit test`, which compares the decisions of a policy with expected ones.

use serde_json::Value;

use crate::harness::{Lab, TACIT, text_of};

const POLICY: &str = "version = 1\n\
    [[rule]]\nname = \"db\"\ndirection = \"outbound\"\nremote = \"*.corp.example\"\n\
    remote-ports = 5432\ntls = { trust = \"system\" }\n";
const FLOWS: &str = "policy = \"../p.toml\"\n\
    [[flow]]\nname = \"psql\"\nremote = \"db.corp.example:5432\"\nexpect = \"db\"\n\
    action = \"tls\"\n\
    [[flow]]\nremote = \"192.0.2.1:80\"\nexpect = \"denied\"\n";

fn test(lab: &Lab, flows: &str, more: &[&str]) -> (Option<i32>, String) {
    lab.write("tests/flows.toml", flows);
    let output = lab.run(TACIT, &[&["test", "tests/flows.toml"], more].concat());
    let said = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(said).unwrap())
}

fn lab() -> Lab {
    let lab = Lab::new();
    std::fs::create_dir(lab.path("tests")).unwrap();
    lab.write("p.toml", POLICY);
    lab
}

#[test]
fn expected_decisions_exit_with_0_and_others_with_1() {
    let lab = lab();
    let (code, said) = test(&lab, FLOWS, &[]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("2 flows: 2 as expected, 0 different"), "{said}");
    let wrong = FLOWS.replace("db.corp.example", "db.corp.test");
    let (code, said) = test(&lab, &wrong, &[]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("tests/flows.toml:2: psql: expected db: tls; found no rule"), "{said}");
    assert!(said.contains("line 2: rule `db` does not match: remote "), "{said}");
    let (code, said) = test(&lab, &wrong, &["--json"]);
    let value: Value = serde_json::from_str(&said).unwrap();
    assert_eq!((code, &value["version"], &value["unexpected"]), (Some(1), &1.into(), &1.into()));
    assert_eq!(value["flows"][0]["found"]["action"], "deny", "{said}");
    assert_eq!(value["flows"][1]["as-expected"], true, "{said}");
}

#[test]
fn a_file_with_errors_exits_with_78_and_their_positions() {
    let lab = lab();
    for (flows, more, wanted) in [
        (
            FLOWS.replace("\"db\"", "\"bd\""),
            &[][..],
            "flows.toml:5:10: error[unknown-name]: the policy has no",
        ),
        (
            FLOWS.replace("expect", "expct"),
            &[],
            "flows.toml:5:1: error[unknown-key]: unknown key `expct`",
        ),
        (
            FLOWS.replace("policy =", "# "),
            &[],
            "tacit: error[no-policy]: tests/flows.toml has no `policy`",
        ),
        (
            FLOWS.to_owned(),
            &["--policy", "absent.toml"],
            "absent.toml:1:1: error[unreadable-policy]",
        ),
        (FLOWS.to_owned(), &["--policy", "tests/flows.toml"], "flows.toml:1:1: error["),
    ] {
        let (code, said) = test(&lab, &flows, more);
        assert_eq!(code, Some(78), "{said}");
        assert!(said.contains(wanted), "{wanted}: {said}");
    }
    let output = lab.run(TACIT, &["test", "absent.toml"]);
    assert_eq!(output.status.code(), Some(78));
    let said = text_of(&output);
    assert!(
        said.contains("tacit: error[test-file-unreadable]: cannot read absent.toml: "),
        "{said}"
    );
    assert!(said.contains("    fix: give the path of a file with flows"), "{said}");
    let without_policy = FLOWS.replace("policy =", "# ");
    let (code, said) = test(&lab, &without_policy, &["--policy", "p.toml"]);
    assert_eq!(code, Some(0), "{said}");
}

#[test]
fn the_example_in_etc_is_as_expected() {
    let lab = Lab::new();
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../../etc/flows.toml");
    let output = lab.run(TACIT, &["test", example]);
    assert_eq!(output.status.code(), Some(0), "{}", text_of(&output));
}
