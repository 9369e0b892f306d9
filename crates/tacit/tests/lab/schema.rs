//! Tests that the JSON of displays conforms to the schemas in docs/schema/. Displays that need a
//! run are in the tests of runs.

use crate::certificates::Ca;
use crate::fits::assert_fits;
use crate::harness::{Lab, connect, echo, free_port, wait_for};
use crate::peers::{is_reset, ping};
use crate::programs::{client_rule, server_rule};

const LATER: i64 = 4_000_000_000;

/// The words that `tacit show` takes.
fn subjects(lab: &Lab) -> Vec<String> {
    let help = lab.tacit(&["show", "--help"]);
    let words = help.lines().filter_map(|line| line.trim().strip_prefix("- ")?.split_once(':'));
    let states = ["setting-up", "open", "stale", "rule", "component", "program", "connection"];
    let subjects: Vec<_> = words
        .map(|(word, _)| word.to_owned())
        .filter(|word| !states.contains(&word.as_str()))
        .collect();
    assert!(subjects.len() >= 10, "{help}");
    subjects
}

#[test]
fn every_display_conforms_to_its_schema() {
    let lab = Lab::new();
    let corp = Ca::new("corp CA");
    lab.write("corp.pem", corp.pem());
    lab.write("corp.crl", corp.crl(&[], LATER));
    let [clear, tls, elsewhere] = [(); 3].map(|()| free_port());
    let inward = server_rule("in", tls, &echo().to_string(), "");
    let more = format!(
        "[trust.corp]\nca = \"corp.pem\"\ncrl = \"corp.crl\"\nrevocation = \"hard\"\n\
         [[rule]]\nname = \"elsewhere\"\nlisten = \"127.0.0.1:{elsewhere}\"\n\
         connect = [\"127.0.0.1:1\", \"127.0.0.1:2\"]\nremote = \"10.9.8.0/24\"\npermit = true\n\
         [[rule]]\nname = \"absent\"\nlisten = \"unix:@absent-{elsewhere}\"\n\
         connect = \"127.0.0.1:1\"\npermit = true\n"
    );
    let agent = lab.agent(&(more + &inward + &client_rule("out", clear, tls, "")));
    let mut held = connect(("127.0.0.1", clear));
    assert!(ping(&mut held));
    assert!(is_reset(&mut connect(("127.0.0.1", elsewhere))));
    let is_refused = || !agent.show("refused")["refused"].as_array().unwrap().is_empty();
    wait_for("the refusal", is_refused);
    for what in subjects(&lab) {
        let shown = agent.ok(&["show", &what, "--json"]);
        assert_fits(&format!("show-{what}"), &shown);
    }
    lab.write(
        "p.toml",
        "version = 1\n[[rule]]\nname = \"a\"\ndirection = \"outbound\"\ndeny = true\n",
    );
    lab.write("f.toml", "policy = \"p.toml\"\n[[flow]]\nremote = \"10.0.0.1:1\"\nexpect = \"a\"\n");
    assert_fits("test", &lab.tacit(&["test", "f.toml", "--json"]));
}
