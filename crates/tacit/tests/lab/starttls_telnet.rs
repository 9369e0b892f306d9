//! Tests TLS for Telnet. The server is a telnetd that does not support TLS. The clients are `telnet
//! -z ssl` (TLS from the first byte), s3270 (START_TLS, option 46), and `telnet` without TLS.
//!
//! Debian has no telnet server with START_TLS. So the test of tacit as the client uses a second
//! tacit as the server. Tests in `tacit_core` use a simulated server.

use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};

use crate::harness::{Lab, free_port, text_of};
use crate::peers_postgres::is_root;
use crate::programs::Peer;
use crate::starttls::rule;

/// A telnetd for each connection, as inetd starts it, with a shell of its own; its port. `None`:
/// not root, which is said.
fn telnetd(lab: &Lab, options: &'static [&str]) -> Option<u16> {
    if !is_root() {
        println!("skipped: telnetd, which only root can start");
        return None;
    }
    let login = lab.write(
        "login",
        "#!/bin/sh\necho 'what is it?'\nread it\necho \"it is $it.\"\nread the end\n",
    );
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&login, executable).unwrap();
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let directory = lab.path(".");
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let [input, output] = [(); 2].map(|()| OwnedFd::from(stream.try_clone().unwrap()));
            let mut telnetd = Command::new("/usr/sbin/in.telnetd")
                .args(options)
                .arg("-L")
                .arg(&login)
                .current_dir(&directory)
                .stdin(Stdio::from(input))
                .stdout(Stdio::from(output))
                .stderr(Stdio::null())
                .spawn()
                .unwrap_or_else(|error| panic!("telnetd: {error}; see scripts/install-deps.sh"));
            drop(stream);
            telnetd.wait().unwrap();
        }
    });
    Some(port)
}

const CLEAR: &[&str] = &["-z", "nossl"];
/// TLS from the first byte.
const SECURE: &[&str] = &["-z", "ssl", "-z", "cert=rsa.pem", "-z", "key=rsa.key"];

/// A client at a terminal: without one it would say that its speed is 0, which hangs up.
fn telnet(lab: &Lab, options: &str, port: u16) -> Peer {
    let line = format!("telnet-ssl {options} 127.0.0.1 {port}");
    Peer::start(lab.command("script").args(["-qec", &line, "/dev/null"]))
}

#[test]
fn telnetd_serves_clients_with_tls() {
    let lab = Lab::new();
    let Some(port) = telnetd(&lab, CLEAR) else { return };
    let [direct, required, optional, near] = [(); 4].map(|()| free_port());
    let target = format!("127.0.0.1:{port}");
    let mode = "{ protocol = \"telnet\", mode = \"optional\" }";
    let agent = lab.agent(
        &(rule("direct", "server", direct, &target, "\"\"").replace(", starttls = \"\"", "")
            + &rule("required", "server", required, &target, "\"telnet\"")
            + &rule("optional", "server", optional, &target, mode)
            + &rule("near", "client", near, &format!("localhost:{required}"), "\"telnet\"")),
    );
    let verified = "-z ssl -z cacert=ca.pem -z verify=1";
    for (options, port) in [(verified, direct), ("-z nossl", optional), ("-z nossl", near)] {
        let mut client = telnet(&lab, options, port);
        client.wait_for("what is it?");
        client.say("snow\n");
        client.wait_for("it is snow.");
    }
    let mut client = telnet(&lab, "-z nossl", required);
    client.wait_for("accepts only TLS connections (START_TLS)");
    client.wait_for("closed by foreign host");
    assert!(!client.said().contains("what is it"), "{}", client.said());
    agent.wait_for_log("the client continues in clear");
}

#[test]
fn telnet_in_clear_reaches_a_telnetd_with_tls() {
    let lab = Lab::new();
    let Some(port) = telnetd(&lab, SECURE) else { return };
    // It takes RSA keys alone.
    let request = "req -x509 -newkey rsa:2048 -nodes -keyout rsa.key -out rsa.pem -days 99 -subj \
                   /CN=localhost -addext subjectAltName=DNS:localhost -addext \
                   basicConstraints=critical,CA:FALSE";
    let made = lab.command("openssl").args(request.split_whitespace()).output().unwrap();
    assert!(made.status.success(), "{}", text_of(&made));
    let near = free_port();
    let agent = lab.agent(&format!(
        "[trust.rsa]\nca = \"rsa.pem\"\n[[rule]]\nname = \"near\"\nlisten = \
         \"127.0.0.1:{near}\"\nconnect = \"localhost:{port}\"\n\
         tls = {{ role = \"client\", trust = \"rsa\" }}\n"
    ));
    let mut client = telnet(&lab, "-z nossl", near);
    client.wait_for("what is it?");
    let shown = agent.show("connections");
    assert_eq!(shown[0]["tls"]["check"]["result"], "valid", "{shown}");
    client.say("snow\n");
    client.wait_for("it is snow.");
}

#[test]
fn s3270_gets_tls_by_option_46() {
    let lab = Lab::new();
    let Some(port) = telnetd(&lab, CLEAR) else { return };
    let [required, optional, near] = [(); 3].map(|()| free_port());
    let target = format!("127.0.0.1:{port}");
    let mode = "{ protocol = \"telnet\", mode = \"optional\" }";
    let agent = lab.agent(
        &(rule("required", "server", required, &target, "\"telnet\"")
            + &rule("optional", "server", optional, &target, mode)
            + &rule("near", "client", near, &format!("localhost:{required}"), "\"telnet\"")),
    );
    let secure = "data: secure host-verified";
    for (port, shown) in [(required, secure), (optional, secure), (near, "data: not secure")] {
        let script = format!(
            "Connect(\"localhost:{port}\")\nExpect(\"what is it?\",10)\nQuery(Tls)\n\
             String(\"snow\\n\")\nExpect(\"it is snow.\",10)\nAscii()\nQuit()\n"
        );
        let said = lab.run_with_input("s3270", &["-cafile", "ca.pem"], script.as_bytes());
        let text = text_of(&said);
        assert!(text.contains("it is snow."), "{text}\n{}", agent.log());
        assert!(text.contains(shown), "{text}");
    }
}
