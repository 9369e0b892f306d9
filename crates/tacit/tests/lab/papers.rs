//! Tests `tacit workload paper`, which prints tables of measurements. Each cell of a table must
//! have a number, or a valid reason why it is empty. Some tables compare tacit with other programs.
//! The tests measure only the programs that are installed.

use std::process::Output;

use serde_json::{Value, json};

use crate::fits::assert_fits;
use crate::harness::{Lab, TACIT, text_of};

/// Measures a paper briefly; returns its tables.
fn tables(lab: &Lab, words: &str) -> Vec<Value> {
    let output = measure(lab, words);
    assert!(output.status.success(), "{words}: {}", text_of(&output));
    written_tables(lab)
}

fn measure(lab: &Lab, words: &str) -> Output {
    let words = format!("workload paper {words} --quick --json tables.json");
    let limit = ["--kill-after=5", "170", TACIT];
    lab.command("timeout").args(limit).args(words.split(' ')).output().unwrap()
}

fn written_tables(lab: &Lab) -> Vec<Value> {
    let text = std::fs::read_to_string(lab.path("tables.json")).unwrap();
    assert_fits("workload-paper", &text);
    let report: Value = serde_json::from_str(&text).unwrap();
    report["papers"][0]["tables"].as_array().unwrap().clone()
}

/// All cells of the rows of a table.
fn cells(table: &Value) -> impl Iterator<Item = &Value> {
    table["rows"].as_array().unwrap().iter().flat_map(|row| row.as_array().unwrap())
}

fn measured(table: &Value) -> Vec<f64> {
    cells(table).filter_map(|cell| cell["measured"].as_f64()).collect()
}

/// The states of empty cells.
fn empty(table: &Value) -> Vec<&str> {
    cells(table).filter_map(|cell| cell["empty"].as_str()).collect()
}

#[test]
fn ztpf_has_both_libraries_and_the_reports_of_the_lock() {
    let lab = Lab::new();
    let report = |rate: f64| {
        json!({ "lock": "global", "figures": {
            "transactions_per_s": rate, "transactions_per_cpu_s": rate / 2.0, "spin_percent": 10.0,
        } })
    };
    lab.write("before.json", report(1000.0).to_string());
    lab.write("after.json", report(1300.0).to_string());
    let words = "ztpf --locks before.json,after.json --html page.html --markdown page.md";
    let tables = tables(&lab, words);
    assert_eq!(empty(&tables[0]), [""; 0]);
    let found = measured(&tables[0]);
    assert!(found.len() == 10 && found.iter().all(|value| *value > 0.0), "{found:?}");
    let gain = tables[1]["rows"][2][5]["measured"].as_f64().unwrap();
    assert!((gain - 30.0).abs() < 1e-6, "{gain}");
    let page = std::fs::read_to_string(lab.path("page.html")).unwrap();
    assert!(page.contains("<svg") && page.contains("35,674"), "{page}");
    let page = std::fs::read_to_string(lab.path("page.md")).unwrap();
    assert!(page.contains("| 32767 | 94.1 | 1,400 | 97.5 |"), "{page}");
}

#[test]
fn zvm_has_all_steps_with_and_without_client_certificates() {
    let tables = tables(&Lab::new(), "zvm");
    assert_eq!(empty(&tables[0]), [""; 0]);
    // Four columns and two differences in each of five steps.
    assert_eq!(measured(&tables[0]).len(), 30);
}

#[test]
fn mq_leaves_only_the_queue_manager_empty() {
    let tables = tables(&Lab::new(), "mq");
    assert_eq!(empty(&tables[0]), [""; 0]);
    assert_eq!(measured(&tables[0]).len(), 12);
    assert_eq!(empty(&tables[1]), ["absent"; 15]);
    assert_eq!(measured(&tables[1]).len(), 10);
}

#[test]
fn lfp_measures_every_path_whose_program_is_installed() {
    let lab = Lab::new();
    let output = measure(&lab, "lfp");
    let tables = written_tables(&lab);
    let gaps: Vec<_> =
        tables.iter().flat_map(cells).filter(|cell| cell["empty"].is_string()).collect();
    // pasta of 2023 loses a transfer now and then: the rest of a segment of which its socket took
    // only the first part. Its cells then have this reason. Each path of tacit must be measured.
    let is_of_pasta = |cell: &Value| {
        let reason = cell["reason"].as_str().unwrap();
        let known = ["the transfer over pasta is incomplete", "pasta printed no line within"];
        cell["empty"] == "failed" && known.iter().any(|start| reason.starts_with(start))
    };
    let failed = gaps.iter().any(|cell| cell["empty"] == "failed");
    assert!(gaps.iter().all(|cell| cell["empty"] == "skipped" || is_of_pasta(cell)), "{gaps:?}");
    assert_eq!(output.status.success(), !failed, "{}", text_of(&output));
    let found = measured(&tables[0]);
    assert!(found.len() >= 20 && found.iter().all(|value| *value > 0.0), "{found:?}");
}

#[test]
fn ipsec_measures_drawn_loads_and_forecasts_an_engine() {
    let tables = tables(&Lab::new(), "ipsec --seed 3 --network-share 10,20");
    assert!(measured(&tables[0]).iter().all(|value| *value > 0.0), "{}", tables[0]);
    // An engine needs a second CPU.
    assert!(tables.iter().all(|table| empty(table).iter().all(|state| *state == "skipped")));
    for row in &tables[3]["rows"].as_array().unwrap()[1..] {
        let [all, eligible] = [1, 2].map(|at: usize| row[at]["measured"].as_f64().unwrap());
        assert!(eligible > 0.0 && eligible <= all, "{row}");
        let [on_engine, spilled] = [5, 6].map(|at: usize| row[at]["measured"].as_f64().unwrap());
        assert!((on_engine + spilled - eligible).abs() < 0.01, "{row}");
    }
    assert_eq!(tables[2]["rows"][0][1], json!({ "name": "10" }));
}

#[test]
fn ipsec_compares_forecasts_with_later_measurements() {
    let tables = tables(&Lab::new(), "ipsec --seeds 5-5");
    let rows = tables[0]["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 3, "{}", tables[0]);
    let mut within = 0;
    for row in rows {
        let [forecast, measured, difference] =
            [2, 3, 4].map(|at: usize| row[at]["measured"].as_f64());
        let Some(measured) = measured else {
            // An engine needs a second CPU.
            assert_eq!(row[3]["empty"], "skipped", "{row}");
            continue;
        };
        let wanted = (forecast.unwrap() - measured) / measured * 100.0;
        assert!(measured > 0.0 && (difference.unwrap() - wanted).abs() < 0.01, "{row}");
        let is_within = wanted.abs() <= 10.0;
        assert_eq!(row[5]["name"], if is_within { "yes" } else { "no" }, "{row}");
        within += u32::from(is_within);
    }
    let counted = |row: usize, at: usize| tables[1]["rows"][row][at]["measured"].as_f64();
    assert_eq!([counted(0, 1), counted(1, 1)], [Some(1.0), Some(3.0)]);
    assert_eq!(counted(1, 2), Some(f64::from(within)));
    assert_eq!(counted(0, 2), Some(if within == 3 { 1.0 } else { 0.0 }));
    for row in tables[2]["rows"].as_array().unwrap() {
        let [without, with, factor] = [1, 2, 3].map(|at: usize| row[at]["measured"].as_f64());
        let Some(with) = with else {
            assert_eq!(row[2]["empty"], "skipped", "{row}");
            continue;
        };
        assert!((factor.unwrap() - with / without.unwrap()).abs() < 0.01, "{row}");
    }
}

#[test]
fn wrong_options_are_refused() {
    let lab = Lab::new();
    for words in [
        "paper",
        "paper mvs",
        "paper ipsec --network-share 8,101",
        "paper all --rounds 0",
        "paper ipsec --seeds 20-1",
    ] {
        let words = format!("workload {words}");
        let output = lab.run(TACIT, &words.split(' ').collect::<Vec<_>>());
        assert_eq!(output.status.code(), Some(64), "{words}: {}", text_of(&output));
    }
}
