//! PostgreSQL: servers that know no TLS serve clients that insist on it, and clients that are told
//! of none reach servers that take nothing else.

use std::process::Output;

use crate::harness::{Lab, free_port, text_of};
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
    assert!(!said.status.success() && text_of(&said).contains("with TLS only"), "{said:?}");
    agent.wait_for_log("the client goes on in clear");
    let said = psql(&lab, optional, "sslmode=disable gssencmode=disable", WHO);
    assert_eq!(answer(&said), "ssl=false");
}

#[test]
fn a_client_in_clear_reaches_a_server_that_takes_only_tls() {
    let lab = Lab::new();
    let settings = ["ssl=on", "ssl_cert_file=server.pem", "ssl_key_file=server.key"];
    let secure = Postgres::start_with(&settings, |data| {
        std::fs::copy(lab.path("localhost.pem"), data.join("server.pem")).unwrap();
        std::fs::copy(lab.path("localhost.key"), data.join("server.key")).unwrap();
        std::fs::write(data.join("pg_hba.conf"), "hostssl all all 127.0.0.1/32 trust\n").unwrap();
    });
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
    // Without tacit it takes nobody in clear.
    let said = psql(&lab, secure.port, "sslmode=disable", "select 1");
    assert!(!said.status.success(), "{said:?}");
    for options in ["", "sslmode=disable", "sslmode=prefer", "gssencmode=prefer"] {
        assert_eq!(answer(&psql(&lab, near, options, WHO)), "ssl=true", "{options}");
    }
    // A client that insists gets no TLS from tacit, which has it for itself.
    let said = psql(&lab, near, "sslmode=require", "select 1");
    assert!(text_of(&said).contains("does not support SSL"), "{said:?}");
    let said = psql(&lab, refused, "sslmode=disable", "select 1");
    assert!(text_of(&said).contains("tacit: the server offers no TLS"), "{said:?}");
    let said = psql(&lab, stranger, "sslmode=disable", "select 1");
    assert!(text_of(&said).contains("tacit: the TLS handshake with the server failed"), "{said:?}");
    agent.wait_for_log("kind=starttls ");
}
