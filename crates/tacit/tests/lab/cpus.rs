//! Tests `tacit show cpus`, and the tables of `tacit doctor` with the same content.

use serde_json::{Value, json};

use crate::fits::assert_fits;
use crate::harness::{Lab, TACIT, echo, free_port, text_of};
use crate::lane::engine_table;

/// The numbers of a list such as `0-2,5`.
fn listed(path: &str) -> Vec<u64> {
    let text = std::fs::read_to_string(path).unwrap();
    let parts = text.trim().split(',').map(|part| part.split_once('-').unwrap_or((part, part)));
    parts.flat_map(|(a, b)| a.parse::<u64>().unwrap()..=b.parse().unwrap()).collect()
}

fn assert_measured(suites: &Value) {
    let suites = suites.as_array().unwrap();
    assert_eq!(suites.len(), 9, "every suite of the policy language");
    for suite in suites {
        for speed in ["seal-mb-per-s", "open-mb-per-s"] {
            assert!(suite[speed].as_f64().unwrap() > 1.0, "{suite}");
        }
    }
}

#[test]
fn every_cpu_has_its_users_its_load_and_the_machine_its_suites() {
    let lab = Lab::new();
    let engine = engine_table("spill = true");
    let rule = format!(
        "[[rule]]\nname = \"r\"\nlisten = \"127.0.0.1:{}\"\nconnect = \"{}\"\n\
         permit = true\n",
        free_port(),
        echo()
    );
    let agent = lab.agent(&(engine.clone().unwrap_or_default() + &rule));
    let printed = agent.ok(&["show", "cpus", "--json", "--interval", "300ms"]);
    let shown: Value = serde_json::from_str(&printed).unwrap();
    let cpus = shown["cpus"].as_array().unwrap();
    let numbers: Vec<_> = cpus.iter().map(|one| one["cpu"].as_u64().unwrap()).collect();
    assert_eq!(numbers, listed("/sys/devices/system/cpu/present"));
    for one in cpus {
        assert_eq!(one["online"], true, "{one}");
        let busy = one["utilisation-percent"].as_f64().unwrap();
        assert!((0.0..=100.0).contains(&busy), "{one}");
    }
    if std::path::Path::new("/proc/self/schedstat").exists() {
        assert!(cpus.iter().all(|one| one["delay-percent"].is_number()), "{shown}");
    }
    let engines = cpus.iter().filter(|one| one["engine"].is_string()).count();
    assert_eq!(engines, usize::from(engine.is_some()), "{shown}");
    assert_measured(&shown["suites"]);
    let table = agent.ok(&["show", "cpus", "--interval", "10ms"]);
    for heading in ["CPU  ONLINE", "INSTRUCTIONS", "CIPHER-SUITE"] {
        assert!(table.lines().any(|line| line.starts_with(heading)), "{heading}: {table}");
    }
    let output = lab.run(TACIT, &["doctor", "--json"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert_fits("doctor", &text);
    let doctor: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(doctor["instructions"], shown["instructions"], "{}", text_of(&output));
    assert_measured(&doctor["suites"]);
}

#[test]
fn instructions_are_those_that_the_kernel_names() {
    let lab = Lab::new();
    let output = lab.run(TACIT, &["doctor", "--json"]);
    let doctor: Value = serde_json::from_slice(&output.stdout).unwrap();
    let features = std::fs::read_to_string("/proc/cpuinfo").unwrap();
    for one in doctor["instructions"].as_array().unwrap() {
        let name = one["name"].as_str().unwrap();
        let has = features.split_ascii_whitespace().any(|word| word == name);
        assert_eq!(one["present"], json!(has), "{one}");
    }
}
