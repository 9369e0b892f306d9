//! Tests PostgreSQL between a client and a server, of which only one uses TLS. In some tests, the
//! clients require TLS, and the server has no TLS. In other tests, the server requires TLS, and the
//! clients have no TLS.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Output, Stdio};

use crate::harness::{Lab, connect, free_port, signal_process, text_of, wait_for};
use crate::peers_postgres::Postgres;
use crate::starttls::rule;

const WHO: &str = "select 'ssl=' || ssl from pg_stat_ssl where pid = pg_backend_pid()";

/// Asks a database over TCP; `options` are those of a connection string, the later of two alike
/// counts.
fn psql(lab: &Lab, port: u16, options: &str, sql: &str) -> Output {
    let to = format!("host=127.0.0.1 port={port} user=tester dbname=postgres {options}");
    lab.run("psql", &[&to, "--no-psqlrc", "--tuples-only", "--no-align", "--command", sql])
}

fn answer(output: &Output) -> String {
    assert!(output.status.success(), "{}", text_of(output));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

#[test]
fn a_server_in_clear_serves_clients_that_insist_on_tls() {
    let lab = Lab::new();
    let database = Postgres::start();
    let required = free_port();
    let optional = free_port();
    let target = format!("127.0.0.1:{}", database.port);
    let mode = "{ protocol = \"postgres\", mode = \"optional\" }";
    let agent = lab.agent(
        &(rule("required", "server", required, &target, "\"postgres\"")
            + &rule("optional", "server", optional, &target, mode)),
    );
    let verified = "hostaddr=127.0.0.1 host=localhost sslmode=verify-full sslrootcert=ca.pem";
    for port in [required, optional] {
        for options in [verified, "sslmode=require", "sslmode=prefer", ""] {
            let said = psql(&lab, port, options, "select 6 * 7");
            assert_eq!(answer(&said), "42", "{options}");
        }
    }
    let rows = psql(
        &lab,
        required,
        verified,
        "select repeat(n::text, 200) from generate_series(1, 9000) n",
    );
    let expected: Vec<_> = (1..=9000).map(|n: u32| n.to_string().repeat(200)).collect();
    assert!(answer(&rows) == expected.join("\n"), "rows differ");
    let said = psql(&lab, required, "sslmode=disable", "select 1");
    assert!(!said.status.success() && text_of(&said).contains("only TLS connections"), "{said:?}");
    agent.wait_for_log("the client continues in clear");
    let said = psql(&lab, optional, "sslmode=disable gssencmode=disable", WHO);
    assert_eq!(answer(&said), "ssl=false");
}

/// A PostgreSQL that takes only TLS.
fn secure_database(lab: &Lab) -> Postgres {
    let settings = ["ssl=on", "ssl_cert_file=server.pem", "ssl_key_file=server.key"];
    Postgres::start_with(&settings, |data: &Path| {
        std::fs::copy(lab.path("localhost.pem"), data.join("server.pem")).unwrap();
        std::fs::copy(lab.path("localhost.key"), data.join("server.key")).unwrap();
        std::fs::write(data.join("pg_hba.conf"), "hostssl all all 127.0.0.1/32 trust\n").unwrap();
    })
}

#[test]
fn a_client_in_clear_reaches_a_server_that_takes_only_tls() {
    let lab = Lab::new();
    let secure = secure_database(&lab);
    let clear = Postgres::start();
    let near = free_port();
    let refused = free_port();
    let stranger = free_port();
    let to = |database: &Postgres| format!("localhost:{}", database.port);
    let agent = lab.agent(
        &(rule("near", "client", near, &to(&secure), "\"postgres\"")
            + &rule("refused", "client", refused, &to(&clear), "\"postgres\"")
            + &rule("stranger", "client", stranger, &to(&secure), "\"postgres\"")
                .replace("trust = \"ca\"", "trust = \"ca\", server-name = \"other.example\"")),
    );
    // Without tacit it refuses clients in clear.
    let said = psql(&lab, secure.port, "sslmode=disable", "select 1");
    assert!(!said.status.success(), "{said:?}");
    for options in ["", "sslmode=disable", "sslmode=prefer", "gssencmode=prefer"] {
        assert_eq!(answer(&psql(&lab, near, options, WHO)), "ssl=true", "{options}");
    }
    // A client that insists gets no TLS from tacit, which has it for itself.
    let said = psql(&lab, near, "sslmode=require", "select 1");
    assert!(text_of(&said).contains("does not support SSL"), "{said:?}");
    let said = psql(&lab, refused, "sslmode=disable", "select 1");
    assert!(text_of(&said).contains("tacit: the server does not offer TLS"), "{said:?}");
    let said = psql(&lab, stranger, "sslmode=disable", "select 1");
    assert!(text_of(&said).contains("tacit: the TLS handshake with the server failed"), "{said:?}");
    agent.wait_for_log("kind=starttls ");
}

/// A psql whose query takes until somebody cancels it; `direct` leads past tacit, to see it run.
fn sleeping(lab: &Lab, port: u16, options: &str, direct: u16) -> Child {
    let to = format!("host=127.0.0.1 port={port} user=tester dbname=postgres {options}");
    let child = lab
        .command("psql")
        .args([&to, "--no-psqlrc", "--command", "select pg_sleep(600)"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_for("the query", || answer(&psql(lab, direct, "", SLEEPERS)) == "1");
    child
}

const SLEEPERS: &str =
    "select count(*) from pg_stat_activity where query like '%pg_sleep(600)' and state = 'active'";

/// What a psql says once its query has been cancelled by Ctrl-C.
fn interrupted(child: Child) -> String {
    signal_process(child.id(), "INT");
    text_of(&child.wait_with_output().unwrap())
}

const CANCELLED: &str = "canceling statement due to user request";

#[test]
fn a_cancel_request_in_clear_passes_where_the_rule_says_so_and_is_refused_elsewhere() {
    let lab = Lab::new();
    let database = Postgres::start();
    let refuse = free_port();
    let clear = free_port();
    let target = format!("127.0.0.1:{}", database.port);
    let passes = "{ protocol = \"postgres\", cancel = \"clear\" }";
    let agent = lab.agent(
        &(rule("refuse", "server", refuse, &target, "\"postgres\"")
            + &rule("clear", "server", clear, &target, passes)),
    );
    // psql 15 sends it in clear although its connection has TLS, psql 17 under TLS.
    let text = interrupted(sleeping(&lab, clear, "sslmode=require", database.port));
    assert!(text.contains(CANCELLED), "{text}");
    assert_eq!(by_hand(&lab, clear, "clear", &[]), "None 57014");
    agent.wait_for_log("starttls=cancel");
    wait_for("its audit line", || agent.audit().contains("\"starttls\":\"cancel\""));
    // All of them but the one of Python, which ends without `close_notify`.
    wait_for("orderly closes", || agent.log().matches("end=closed").count() == 3);

    let child = sleeping(&lab, refuse, "sslmode=require", database.port);
    let mut request = connect(("127.0.0.1", refuse));
    request.write_all(b"\0\0\0\x10\x04\xd2\x16\x2e\0\0\0\x01\0\0\0\x02").unwrap();
    assert_eq!(request.read(&mut [0]).unwrap_or(0), 0);
    agent.wait_for_log(" warn cancel-refused ");
    assert!(agent.log().contains("cancel = \\\"clear\\\""), "{}", agent.log());
    let shown = agent.show("refused");
    let refused = &shown["refused"][0];
    assert_eq!(
        (&refused["why"], &refused["rule"]),
        (&"cancel-in-clear".into(), &"refuse".into()),
        "{shown}"
    );
    let total = serde_json::json!({ "why": "cancel-in-clear", "count": 1 });
    assert!(shown["totals"].as_array().unwrap().contains(&total), "{shown}");
    wait_for("its audit line", || agent.audit().contains("cancel-refused"));
    // The query was not cancelled.
    assert_eq!(answer(&psql(&lab, database.port, "", SLEEPERS)), "1");
    let end = "select pg_cancel_backend(pid) from pg_stat_activity where query like '%(600)'";
    assert!(psql(&lab, database.port, "", end).status.success());
    assert!(text_of(&child.wait_with_output().unwrap()).contains(CANCELLED));
}

#[test]
fn a_cancel_request_of_a_client_in_clear_goes_under_tls() {
    let lab = Lab::new();
    let secure = secure_database(&lab);
    let near = free_port();
    let target = format!("localhost:{}", secure.port);
    let agent = lab.agent(&rule("near", "client", near, &target, "\"postgres\""));
    let child = sleeping(&lab, near, "sslmode=disable", secure.port);
    let text = interrupted(child);
    assert!(text.contains(CANCELLED), "{text}");
    // Both connections had TLS, and both ended as they should.
    wait_for("both connections to end", || agent.log().matches("end=closed").count() == 2);
    let log = agent.log();
    assert_eq!(log.matches(" opened ").count(), 2, "{log}");
    assert_eq!(log.matches("suite=").count(), 2, "{log}");
}

/// What the client of `postgres.py` prints.
fn by_hand(lab: &Lab, port: u16, how: &str, alpn: &[&str]) -> String {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/peers/postgres.py");
    let port = port.to_string();
    let arguments = [&[script, &port, "ca.pem", how], alpn].concat();
    let output = lab.run("python3", &arguments);
    assert!(output.stderr.is_empty(), "{}", text_of(&output));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[test]
fn a_client_begins_with_tls_itself_if_it_agrees_on_the_application_protocol() {
    let lab = Lab::new();
    let database = Postgres::start();
    let port = free_port();
    let target = format!("127.0.0.1:{}", database.port);
    let agent = lab.agent(&rule("far", "server", port, &target, "\"postgres\""));
    let client = |how, alpn: &[&str]| by_hand(&lab, port, how, alpn);
    // Each of them cancels its query on a second connection with TLS.
    assert_eq!(client("direct", &["postgresql"]), "postgresql 57014");
    assert_eq!(client("direct", &["h2", "postgresql"]), "postgresql 57014");
    assert_eq!(client("asked", &["postgresql"]), "postgresql 57014");
    assert_eq!(client("asked", &[]), "None 57014");
    // As PostgreSQL 17: clients of another protocol are not served, however they came here.
    for (how, alpn) in [("direct", &[][..]), ("direct", &["smtp"]), ("asked", &["smtp"])] {
        let said = client(how, alpn);
        assert!(said.contains("alert no application protocol"), "{how} {alpn:?}: {said}");
    }
    agent.wait_for_log("kind=no-common-alpn");
}
