//! Tests the metrics of an agent over TCP, on a UNIX socket, and in `tacit show metrics`.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;

use serde_json::json;

use crate::harness::{Agent, Lab, TACIT, connect, echo, exchange, free_port, text_of, wait_for};
use crate::peers::{TlsClient, ping};

/// An agent with a TLS server before an echo, and metrics at an address.
fn agent(lab: &Lab, metrics: &str) -> (Agent, u16) {
    let tls = free_port();
    let agent = lab.agent(&format!(
        r#"
        [agent]
        metrics = "{metrics}"
        [[rule]]
        name = "in"
        listen = "127.0.0.1:{tls}"
        connect = "{}"
        tls = {{ role = "server", identity = "localhost", client-cert = "none" }}
        [[rule]]
        name = "never"
        listen = "127.0.0.1:{}"
        deny = true
        "#,
        echo(),
        free_port(),
    ));
    (agent, tls)
}

/// An answer.
struct Answered {
    /// Status line and headers.
    head: String,
    body: String,
}

fn ask(mut stream: impl Read + Write, request: &str) -> Answered {
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{answer:?}"));
    let length = format!("Content-Length: {}", body.len());
    assert!(head.contains(&length), "{head}");
    Answered { head: head.to_owned(), body: body.to_owned() }
}

fn scrape(stream: impl Read + Write) -> Metrics {
    let Answered { head, body } = ask(stream, "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(head.contains("Content-Type: text/plain; version=0.0.4"), "{head}");
    Metrics::parse(&body)
}

/// A page, by series.
struct Metrics(BTreeMap<String, f64>);

impl Metrics {
    /// Reads a page as strictly as its format is meant: each family once, with help, type and
    /// samples in one piece; each series once; counters by their names.
    fn parse(page: &str) -> Self {
        let mut series = BTreeMap::new();
        let mut families = BTreeSet::new();
        let mut family = String::new();
        let mut lines = page.lines();
        while let Some(line) = lines.next() {
            if let Some(help) = line.strip_prefix("# HELP ") {
                family = help.split(' ').next().unwrap().to_owned();
                assert!(help.len() > family.len() + 10, "no help: {line}");
                assert!(families.insert(family.clone()), "twice: {line}");
                let kind = lines.next().and_then(|line| line.strip_prefix("# TYPE ")).unwrap();
                let wanted = match family.as_str() {
                    name if name.ends_with("_total") => "counter",
                    name if name.ends_with("_duration_seconds") => "histogram",
                    _ => "gauge",
                };
                assert_eq!(kind, format!("{family} {wanted}"));
                continue;
            }
            let (name, value) = line.rsplit_once(' ').unwrap();
            let value: f64 = value.parse().unwrap();
            assert!(value.is_finite() && value >= 0.0, "{line}");
            let labels = name.strip_prefix(&family).unwrap_or_else(|| panic!("astray: {line}"));
            let labels = ["_bucket", "_sum", "_count"]
                .iter()
                .find_map(|suffix| labels.strip_prefix(suffix))
                .unwrap_or(labels);
            let quoted = labels.starts_with('{') && labels.ends_with("\"}");
            assert!(labels.is_empty() || quoted, "{line}");
            assert!(series.insert(name.to_owned(), value).is_none(), "twice: {line}");
        }
        Self(series)
    }

    fn of(&self, series: &str) -> f64 {
        *self.0.get(series).unwrap_or_else(|| panic!("no {series} in {:#?}", self.0))
    }
}

#[test]
fn metrics_have_the_traffic_and_cpu_time_of_rules() {
    let lab = Lab::new();
    let port = free_port();
    let (agent, tls) = agent(&lab, &format!("127.0.0.1:{port}"));
    let before = scrape(connect(("127.0.0.1", port)));
    assert_eq!(before.of("tacit_connections_opened_total{rule=\"in\"}"), 0.0);
    let client = TlsClient::open(&lab, tls, &json!({}));
    assert_eq!(client.result["reply"], "ping");
    wait_for("the connection in the ledger", || {
        let seen = scrape(connect(("127.0.0.1", port)));
        seen.of("tacit_received_bytes_total{rule=\"in\"}") == 4.0
    });
    let after = scrape(connect(("127.0.0.1", port)));
    for (series, value) in [
        ("tacit_connections_opened_total{rule=\"in\"}", 1.0),
        ("tacit_connections_active{rule=\"in\",version=\"1.3\"}", 1.0),
        ("tacit_connections_failed_total{rule=\"in\"}", 0.0),
        ("tacit_rule_hits_total{rule=\"in\"}", 1.0),
        ("tacit_handshakes_total{rule=\"in\",result=\"full\"}", 1.0),
        ("tacit_handshakes_total{rule=\"in\",result=\"resumed\"}", 0.0),
        ("tacit_sent_bytes_total{rule=\"in\"}", 4.0),
        ("tacit_rule_info{rule=\"never\",action=\"deny\"}", 1.0),
        ("tacit_handshake_duration_seconds_count{rule=\"in\"}", 1.0),
        ("tacit_handshake_duration_seconds_bucket{rule=\"in\",le=\"+Inf\"}", 1.0),
        ("tacit_connect_duration_seconds_count{rule=\"in\"}", 1.0),
        ("tacit_policy_revision", 1.0),
        ("tacit_handshakes_active", 0.0),
    ] {
        assert_eq!(after.of(series), value, "{series}");
    }
    let handshake =
        "tacit_cpu_seconds_total{rule=\"in\",component=\"handshake\",place=\"general\"}";
    let eligible =
        "tacit_cpu_seconds_total{rule=\"in\",component=\"handshake\",place=\"eligible\"}";
    assert!(after.of(handshake) + after.of(eligible) > 0.0);
    assert!(after.of("process_cpu_seconds_total") > before.of("process_cpu_seconds_total"));
    assert!(after.of("tacit_cert_not_after_seconds{kind=\"identity\",name=\"localhost\"}") > 1e9);
    let shown = Metrics::parse(&agent.ok(&["show", "metrics"]));
    let names = |metrics: &Metrics| metrics.0.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&shown), names(&after));
}

#[test]
fn a_rule_that_is_added_again_has_one_series_from_zero() {
    let lab = Lab::new();
    let port = free_port();
    let listen = free_port();
    let head = format!("[agent]\nmetrics = \"127.0.0.1:{port}\"\n");
    let rule = format!(
        "[[rule]]\nname = \"plain\"\nlisten = \"127.0.0.1:{listen}\"\n\
         connect = \"{}\"\npermit = true\n",
        echo()
    );
    let agent = lab.agent(&format!("{head}{rule}"));
    let mut old = connect(("127.0.0.1", listen));
    assert!(ping(&mut old));
    for policy in [head.clone(), format!("{head}{rule}")] {
        agent.write_policy(&policy);
        agent.ok(&["reload"]);
    }
    // Its page would be refused whole if a series stood in it twice.
    let seen = scrape(connect(("127.0.0.1", port)));
    let opened = |rule: &str| format!("tacit_connections_opened_total{{rule=\"{rule}\"}}");
    assert_eq!(seen.of(&opened("plain")), 0.0);
    assert_eq!(seen.of(&opened("(removed rules)")), 1.0);
    assert!(ping(&mut old), "the open connection continues");
    assert!(ping(&mut connect(("127.0.0.1", listen))));
    wait_for("the new one", || scrape(connect(("127.0.0.1", port))).of(&opened("plain")) == 1.0);
}

#[test]
fn invalid_requests_get_their_http_status() {
    let lab = Lab::new();
    let port = free_port();
    let (_agent, _) = agent(&lab, &format!("127.0.0.1:{port}"));
    let long = format!("GET /metrics HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(20_000));
    for (request, status) in [
        ("GET / HTTP/1.1\r\n\r\n", "404"),
        ("POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", "405"),
        ("rubbish\r\n\r\n", "400"),
        (&long, "431"),
    ] {
        let Answered { head, .. } = ask(connect(("127.0.0.1", port)), request);
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{request:.40}: {head}");
    }
}

#[test]
fn silent_clients_do_not_block_scrapes() {
    let lab = Lab::new();
    let port = free_port();
    let (_agent, _) = agent(&lab, &format!("127.0.0.1:{port}"));
    for _ in 0..3 {
        let _silent: Vec<_> = (0..200).map(|_| connect(("127.0.0.1", port))).collect();
        let begin = std::time::Instant::now();
        scrape(connect(("127.0.0.1", port)));
        assert!(begin.elapsed() < std::time::Duration::from_secs(5));
    }
}

#[test]
fn metrics_at_a_unix_socket_end_with_the_agent() {
    let lab = Lab::new();
    let path = lab.path("metrics.sock");
    let (agent, _) = agent(&lab, &format!("unix:{}", path.display()));
    scrape(UnixStream::connect(&path).unwrap());
    use std::os::unix::fs::PermissionsExt;
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    drop(agent);
    assert!(!path.exists());
}

#[test]
fn a_successor_serves_metrics_at_the_same_address() {
    let lab = Lab::new();
    let port = free_port();
    let (agent, tls) = agent(&lab, &format!("127.0.0.1:{port}"));
    let _client = TlsClient::open(&lab, tls, &json!({}));
    let opened = |metrics: &Metrics| metrics.of("tacit_connections_opened_total{rule=\"in\"}");
    wait_for("the connection", || opened(&scrape(connect(("127.0.0.1", port)))) == 1.0);
    agent.ok(&["restart"]);
    // The successor counts from 0; no client is refused meanwhile.
    wait_for("the successor", || opened(&scrape(connect(("127.0.0.1", port)))) == 0.0);
}

#[test]
fn a_metrics_address_in_use_is_reported_at_the_start() {
    let lab = Lab::new();
    let taken = echo();
    let policy = format!("[agent]\nmetrics = \"{taken}\"\n");
    let agent = lab.try_agent(&policy, &[]);
    wait_for("its end", || agent.is_dead());
    assert!(agent.log().contains(&format!("cannot listen on {taken}")), "{}", agent.log());
    let said = exchange(TcpStream::connect(taken).unwrap(), b"the series continues");
    assert_eq!(said, b"the series continues");
    let off_host = lab.write("p.toml", "version = 1\n[agent]\nmetrics = \"0.0.0.0:9464\"\n");
    let output = lab.run(TACIT, &["check", off_host.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(78), "{}", text_of(&output));
    assert!(text_of(&output).contains("metrics-clear = true"), "{}", text_of(&output));
}

#[test]
fn failures_are_counted_by_the_kind_in_the_log() {
    let lab = Lab::new();
    let port = free_port();
    let (agent, tls) = agent(&lab, &format!("127.0.0.1:{port}"));
    connect(("127.0.0.1", tls)).write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    wait_for("the failure in the log", || agent.log().contains("plain-http"));
    let seen = scrape(connect(("127.0.0.1", port)));
    assert_eq!(seen.of("tacit_failures_total{rule=\"in\",kind=\"plain-http\"}"), 1.0);
    assert_eq!(seen.of("tacit_connections_failed_total{rule=\"in\"}"), 1.0);
}

#[test]
fn health_and_readiness_probes_report_the_state_of_the_agent() {
    let lab = Lab::new();
    let port = free_port();
    let (agent, tls) = agent(&lab, &format!("127.0.0.1:{port}"));
    let probe = |path: &str| {
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        ask(connect(("127.0.0.1", port)), &request)
    };
    for path in ["/healthz", "/readyz"] {
        let Answered { head, body } = probe(path);
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{path}: {head}");
        assert_eq!(body, "ok\n");
    }
    // One open connection keeps the draining agent alive.
    let _client = TlsClient::open(&lab, tls, &json!({}));
    agent.ok(&["drain"]);
    assert!(probe("/healthz").head.starts_with("HTTP/1.1 200 OK\r\n"));
    let Answered { head, body } = probe("/readyz");
    assert!(head.starts_with("HTTP/1.1 503 "), "{head}");
    assert!(body.contains("is draining"), "{body}");
}

/// Names of metrics of this program in a text, without the suffixes of a histogram's samples.
fn metric_names(text: &str) -> BTreeSet<&str> {
    text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
        .filter(|word| word.starts_with("tacit_"))
        .map(|word| word.trim_end_matches("_bucket"))
        .collect()
}

#[test]
fn the_dashboard_and_the_alert_rules_use_metrics_that_exist() {
    let lab = Lab::new();
    let (agent, _) = agent(&lab, &format!("127.0.0.1:{}", free_port()));
    let page = agent.ok(&["show", "metrics"]);
    for file in ["grafana/tacit.json", "prometheus/tacit-alerts.yml"] {
        let path = format!("{}/../../etc/{file}", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read_to_string(&path).unwrap();
        let names = metric_names(&text);
        assert!(names.len() > 5, "{names:?}");
        for name in names {
            assert!(page.contains(&format!("# TYPE {name} ")), "{file} uses {name}");
        }
    }
}

/// Runs promtool on the alert rules in this directory; returns whether they passed, and the output.
fn promtool(lab: &Lab, arguments: &[&str]) -> (bool, String) {
    let output = lab.run("promtool", arguments);
    (output.status.success(), text_of(&output))
}

fn has_promtool() -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_there =
        std::env::split_paths(&path).any(|directory| directory.join("promtool").exists());
    if !is_there {
        println!("skipped: promtool is missing; scripts/install-deps.sh installs it");
    }
    is_there
}

/// The queries of a dashboard of Grafana.
fn queries(dashboard: &serde_json::Value, found: &mut Vec<String>) {
    match dashboard {
        serde_json::Value::Object(keys) => {
            found.extend(keys.get("expr").and_then(|query| query.as_str()).map(str::to_owned));
            keys.values().for_each(|below| queries(below, found));
        }
        serde_json::Value::Array(entries) => {
            entries.iter().for_each(|below| queries(below, found));
        }
        _ => {}
    }
}

#[test]
fn promtool_accepts_the_queries_of_the_dashboard() {
    if !has_promtool() {
        return;
    }
    let lab = Lab::new();
    let path = format!("{}/../../etc/grafana/tacit.json", env!("CARGO_MANIFEST_DIR"));
    let dashboard = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let mut found = Vec::new();
    queries(&dashboard, &mut found);
    assert!(found.len() >= 10, "{found:?}");
    let mut rules = "groups:\n  - name: dashboard\n    rules:\n".to_owned();
    for (number, query) in found.iter().enumerate() {
        // Grafana replaces the variable by a duration.
        let query = json!(query.replace("$__rate_interval", "5m"));
        rules += &format!("      - record: query:{number}\n        expr: {query}\n");
    }
    lab.write("rules.yml", &rules);
    let (accepted, said) = promtool(&lab, &["check", "rules", "rules.yml"]);
    assert!(accepted && said.contains(&format!("{} rules found", found.len())), "{said}");
    lab.write("rules.yml", rules.replacen("sum by", "sum by by", 1));
    let (accepted, said) = promtool(&lab, &["check", "rules", "rules.yml"]);
    assert!(!accepted, "{said}");
}

#[test]
fn promtool_accepts_the_alert_rules_and_their_tests() {
    if !has_promtool() {
        return;
    }
    let lab = Lab::new();
    let directory = format!("{}/../../etc/prometheus", env!("CARGO_MANIFEST_DIR"));
    let read = |file: &str| std::fs::read_to_string(format!("{directory}/{file}")).unwrap();
    let rules = read("tacit-alerts.yml");
    let tests = read("tacit-alerts-test.yml");
    lab.write("tacit-alerts.yml", &rules);
    lab.write("tests.yml", &tests);
    let (accepted, said) = promtool(&lab, &["check", "rules", "tacit-alerts.yml"]);
    assert!(accepted, "{said}");
    let (passed, said) = promtool(&lab, &["test", "rules", "tests.yml"]);
    assert!(passed, "{said}");
    // Every alert is tested: each one that cannot fire fails the tests.
    let alerts: Vec<_> = rules.lines().filter(|line| line.contains("- alert: ")).collect();
    assert!(alerts.len() >= 12, "{alerts:?}");
    for alert in alerts {
        let without = rules.replacen(alert, &format!("{alert}Renamed"), 1);
        lab.write("tacit-alerts.yml", &without);
        let (passed, said) = promtool(&lab, &["test", "rules", "tests.yml"]);
        assert!(!passed, "{alert}: {said}");
    }
}
