//! Tests HTTP through tacit, with curl as the client, and Python's http.server and nginx as
//! servers.

use std::net::TcpStream;

use crate::harness::{Lab, free_port, text_of, wait_for};
use crate::programs::{Peer, client_rule, pattern, server_rule};

/// nginx in the lab's directory, once in clear and once asking for certificates.
fn nginx(lab: &Lab, clear: u16, tls: u16) -> Peer {
    let at = lab.directory.display();
    lab.write(
        "nginx.conf",
        format!(
            r"
            daemon off; master_process off; pid {at}/nginx.pid; error_log {at}/nginx.err;
            events {{ }}
            http {{
                access_log off; root {at};
                client_body_temp_path {at}/t1; proxy_temp_path {at}/t2;
                fastcgi_temp_path {at}/t3; uwsgi_temp_path {at}/t4; scgi_temp_path {at}/t5;
                server {{ listen 127.0.0.1:{clear}; }}
                server {{
                    listen 127.0.0.1:{tls} ssl;
                    ssl_certificate {at}/localhost.pem; ssl_certificate_key {at}/localhost.key;
                    ssl_client_certificate {at}/ca.pem; ssl_verify_client on;
                    ssl_protocols TLSv1.2 TLSv1.3;
                    location = /who {{ return 200 $ssl_protocol,$ssl_client_s_dn; }}
                }}
            }}"
        ),
    );
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    let mut command = lab.command("nginx");
    let peer = Peer::start(command.env("PATH", path).args(["-p", ".", "-c"]).arg("nginx.conf"));
    wait_for("nginx", || TcpStream::connect(("127.0.0.1", clear)).is_ok());
    peer
}

/// The body that curl gets, or the reason why it does not.
fn curl(lab: &Lab, words: &str) -> Result<Vec<u8>, String> {
    let output = lab.run("curl", &words.split_whitespace().collect::<Vec<_>>());
    if output.status.success() { Ok(output.stdout) } else { Err(text_of(&output)) }
}

const CURL: &str = "--silent --show-error --max-time 20 --cacert ca.pem";

#[test]
fn curl_reaches_plain_web_servers() {
    let lab = Lab::new();
    let body = pattern(10_000_000);
    lab.write("body", &body);
    let [app, clear, tls, to_python, to_nginx] = [(); 5].map(|()| free_port());
    let _nginx = nginx(&lab, clear, tls);
    let words = ["-m", "http.server", &app.to_string(), "--bind", "127.0.0.1"];
    let _python = Peer::start(lab.command("python3").args(words));
    wait_for("http.server", || TcpStream::connect(("127.0.0.1", app)).is_ok());
    let agent = lab.agent(
        &(server_rule("python", to_python, &format!("127.0.0.1:{app}"), "")
            + &server_rule("nginx", to_nginx, &format!("127.0.0.1:{clear}"), "")),
    );
    for port in [to_python, to_nginx] {
        for version in ["--tlsv1.2 --tls-max 1.2", "--tlsv1.3"] {
            let words = format!("{CURL} {version} https://localhost:{port}/body");
            let proven = format!("{words} --cert alice.pem --key alice.key");
            assert!(curl(&lab, &proven).unwrap() == body, "{proven}");
            let reason = curl(&lab, &words).unwrap_err();
            assert!(reason.contains("certificate required"), "{reason}");
        }
    }
    // Two requests, one connection.
    let url = format!("https://localhost:{to_nginx}/body");
    let words = format!(
        "{CURL} --cert alice.pem --key alice.key -o one -o two -w %{{num_connects}} {url} {url}"
    );
    assert_eq!(curl(&lab, &words).unwrap(), b"10");
    assert_eq!(agent.show("rules")["rules"][0]["failures"], 2);
}

#[test]
fn plain_curl_reaches_nginx_that_requires_client_certificates() {
    let lab = Lab::new();
    let body = pattern(10_000_000);
    lab.write("body", &body);
    let [clear, tls, new, old] = [(); 4].map(|()| free_port());
    let _nginx = nginx(&lab, clear, tls);
    let tls12 = r#", suites = ["TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"]"#;
    let agent =
        lab.agent(&(client_rule("new", new, tls, "") + &client_rule("old", old, tls, tls12)));
    for (port, who) in [(new, "TLSv1.3,CN=alice"), (old, "TLSv1.2,CN=alice")] {
        let url = format!("http://localhost:{port}");
        assert_eq!(curl(&lab, &format!("{CURL} {url}/who")).unwrap(), who.as_bytes());
        assert!(curl(&lab, &format!("{CURL} {url}/body")).unwrap() == body);
        // Four requests over one connection, which is kept alive between them.
        let words = format!("{CURL} -w ,%{{num_connects}} {url}/who {url}/who {url}/who");
        let expected = format!("{who},1{who},0{who},0");
        assert_eq!(String::from_utf8(curl(&lab, &words).unwrap()).unwrap(), expected);
    }
    assert_eq!(agent.show("rules")["rules"][0]["failures"], 0);
}

#[test]
fn a_web_server_without_tls_behind_a_client_rule_is_named() {
    let lab = Lab::new();
    let [python, clear, tls] = [(); 3].map(|()| free_port());
    let _nginx = nginx(&lab, clear, tls);
    let mut server = lab.command("python3");
    server.args(["-m", "http.server", "--bind", "127.0.0.1", &python.to_string()]);
    let _python = Peer::start(&mut server);
    wait_for("Python's server", || TcpStream::connect(("127.0.0.1", python)).is_ok());
    for to in [python, clear] {
        let port = free_port();
        let agent = lab.agent(&client_rule("out", port, to, ""));
        let got = curl(&lab, &format!("{CURL} http://127.0.0.1:{port}/"));
        assert!(got.is_err(), "{got:?}");
        agent.wait_for_log("kind=plain-http");
        let log = agent.log();
        let reason = "the server sent plain HTTP, not TLS, on this port: connect to the port on \
                      which the server accepts TLS";
        assert!(log.contains(reason), "{log}");
    }
}
