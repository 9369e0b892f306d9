//! Compares a running stunnel with an agent. `tacit import stunnel` converts the configuration of
//! stunnel to the policy of the agent. Each client must get the same answers from stunnel and from
//! the agent.

use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::Value;

use crate::certificates::{Ca, LeafKind};
use crate::harness::{Agent, Lab, TACIT, free_port, serve, text_of};
use crate::peers::write_pair;
use crate::programs::Peer;

/// Where a configuration's services listen.
struct Ports {
    front: u16,
    out: u16,
    wrong: u16,
}

fn configuration(lab: &Lab, ports: &Ports, app: u16) -> String {
    let Ports { front, out, wrong } = ports;
    let socket = lab.path("out.sock").display().to_string();
    let client = format!(
        "client = yes\nconnect = localhost:{front}\ncert = alice.pem\nkey = alice.key\n\
         CAfile = ca.pem\nverifyChain = yes\n"
    );
    format!(
        "foreground = yes\npid =\nsyslog = no\ndebug = info\nsslVersionMin = TLSv1.2\n\
         [front]\naccept = 127.0.0.1:{front}\nconnect = 127.0.0.1:{app}\ncert = localhost.pem\n\
         key = localhost.key\nCAfile = ca.pem\nverifyChain = yes\n\
         ciphers = ECDHE-ECDSA-AES256-GCM-SHA384:ECDHE-RSA-AES256-GCM-SHA384\n\
         ciphersuites = TLS_AES_256_GCM_SHA384\n\
         [out]\naccept = 127.0.0.1:{out}\n{client}checkHost = localhost\n\
         [unix out]\naccept = {socket}\n{client}checkHost = localhost\n\
         [wrong]\naccept = 127.0.0.1:{wrong}\n{client}sni = elsewhere.example\n\
         checkHost = elsewhere.example\n"
    )
}

/// A web server that knows one page.
fn app() -> u16 {
    let page = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\nConnection: close\r\n\r\nhello\n";
    let answer = move |mut stream: TcpStream| {
        let mut request = Vec::new();
        let mut byte = [0];
        while !request.ends_with(b"\r\n\r\n") && stream.read_exact(&mut byte).is_ok() {
            request.push(byte[0]);
        }
        if request.ends_with(b"\r\n\r\n") {
            let _ = stream.write_all(page);
        }
    };
    serve(answer).port()
}

/// What clients are told, one line each.
fn answers(lab: &Lab, ports: &Ports) -> Vec<String> {
    let Ports { front, out, wrong } = ports;
    let alice = "--cert alice.pem --key alice.key";
    let curls = [
        format!("--cacert ca.pem {alice} https://localhost:{front}/"),
        format!("--cacert ca.pem {alice} --tls-max 1.2 https://localhost:{front}/"),
        format!("--cacert ca.pem https://localhost:{front}/"),
        format!("--cacert ca.pem {alice} --tls-max 1.1 https://localhost:{front}/"),
        format!("http://127.0.0.1:{out}/"),
        "--unix-socket out.sock http://localhost/".to_owned(),
        format!("http://127.0.0.1:{wrong}/"),
    ];
    let curl = |words: &String| {
        let words: Vec<&str> = ["-sS", "-m", "10"].into_iter().chain(words.split(' ')).collect();
        let output = lab.run("curl", &words);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        format!("{} {said:?}", if output.status.success() { "200" } else { "none" })
    };
    let mut answers: Vec<String> = curls.iter().map(curl).collect();
    for words in [
        "-tls1_3 -ciphersuites TLS_AES_128_GCM_SHA256",
        "-tls1_2 -cipher ECDHE-ECDSA-AES128-GCM-SHA256",
        "-tls1_2",
        "-tls1_3",
    ] {
        let command = format!(
            "s_client -connect 127.0.0.1:{front} -CAfile ca.pem -cert alice.pem -key alice.key \
             {words}"
        );
        let arguments: Vec<&str> = command.split(' ').collect();
        let output = lab.run("openssl", &arguments);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let cipher = said.lines().find(|line| line.contains("Cipher is")).unwrap_or("none");
        answers.push(cipher.to_owned());
    }
    answers
}

/// A program that says its name to each client that says something.
fn named(name: &'static str) -> u16 {
    let answer = move |mut stream: TcpStream| {
        if stream.read(&mut [0; 64]).is_ok_and(|read| read > 0) {
            let _ = stream.write_all(name.as_bytes());
        }
    };
    serve(answer).port()
}

/// Which program six clients of a TLS server reach, one after the other.
fn reached(lab: &Lab, port: u16) -> String {
    let address = format!("127.0.0.1:{port}");
    let arguments =
        ["s_client", "-quiet", "-connect", &address, "-CAfile", "ca.pem", "-verify_quiet"];
    let one = |_| lab.run_with_input("openssl", &arguments, b"hello\n").stdout;
    (0..6).map(|number| String::from_utf8(one(number)).unwrap()).collect()
}

#[test]
fn clients_reach_the_same_targets_as_with_stunnel() {
    let lab = Lab::new();
    let [prio, turns, nobody] = [(); 3].map(|()| free_port());
    let [a, b] = [named("a"), named("b")];
    let server = "cert = localhost.pem\nkey = localhost.key\n";
    lab.write(
        "stunnel.conf",
        format!(
            "foreground = yes\npid =\nsyslog = no\ndebug = info\n\
             [prio]\naccept = 127.0.0.1:{prio}\nconnect = 127.0.0.1:{nobody}\n\
             connect = 127.0.0.1:{b}\nconnect = 127.0.0.1:{a}\n{server}\
             [turns]\naccept = 127.0.0.1:{turns}\nconnect = 127.0.0.1:{a}\n\
             connect = 127.0.0.1:{b}\nfailover = rr\n{server}"
        ),
    );
    let mut stunnel = Peer::start(lab.command("stunnel").arg("stunnel.conf"));
    stunnel.wait_for("Accepting new connections");
    let by_stunnel = [prio, turns].map(|port| reached(&lab, port));
    drop(stunnel);
    assert_eq!(by_stunnel[0], "bbbbbb");
    // stunnel draws the first of the round.
    assert!(["ababab", "bababa"].contains(&&*by_stunnel[1]), "{by_stunnel:?}");
    let policy = lab.tacit(&["import", "stunnel", "stunnel.conf"]);
    let agent = start(&lab, &policy);
    let by_agent = [prio, turns].map(|port| reached(&lab, port));
    assert_eq!(by_agent, ["bbbbbb", "ababab"], "{}", agent.log());
}

/// The same text below what every lab's policy begins with.
fn start(lab: &Lab, policy: &str) -> Agent {
    let agent = lab.try_agent(policy.strip_prefix("version = 1\n").unwrap(), &[]);
    agent.wait_until_serving();
    agent
}

#[test]
fn clients_get_the_same_answers_as_from_stunnel() {
    let lab = Lab::new();
    let ports = Ports { front: free_port(), out: free_port(), wrong: free_port() };
    lab.write("stunnel.conf", configuration(&lab, &ports, app()));
    let mut stunnel = Peer::start(lab.command("stunnel").arg("stunnel.conf"));
    stunnel.wait_for("Accepting new connections");
    let by_stunnel = answers(&lab, &ports);
    drop(stunnel);
    let _ = std::fs::remove_file(lab.path("out.sock"));

    let policy = lab.tacit(&["import", "stunnel", "stunnel.conf"]);
    let agent = start(&lab, &policy);
    assert_eq!(answers(&lab, &ports), by_stunnel, "{policy}\n{}", agent.log());
    let page = "200 \"hello\\n\"";
    let none = "none \"\"";
    let cipher = "Cipher is TLS_AES_256_GCM_SHA384";
    let wanted = [page, page, none, none, page, page, none];
    assert_eq!(by_stunnel[..7], wanted);
    assert!(by_stunnel[10].contains(cipher), "{by_stunnel:?}");
}

#[test]
fn an_import_is_all_or_nothing() {
    let lab = Lab::new();
    let good = "[s]\naccept = 127.0.0.1:1\nconnect = 127.0.0.1:2\ncert = /c.pem\nkey = /c.key\n";
    lab.write("good.conf", good);
    lab.write("bad.conf", format!("{good}exec = /bin/cat\nTIMEOUTidle = 9\n"));
    let output = lab.run(TACIT, &["import", "stunnel", "good.conf", "-o", "policy.toml"]);
    assert!(output.status.success(), "{}", text_of(&output));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(
        said,
        "policy.toml: 1 rule; messages with severity `changed`: 0, with severity `info`: 0\n\
         next step: tacit check policy.toml\n"
    );
    let written = std::fs::read_to_string(lab.path("policy.toml")).unwrap();

    let arguments = ["import", "stunnel", "good.conf", "bad.conf", "-o", "policy.toml"];
    let output = lab.run(TACIT, &arguments);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(78), 0));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.starts_with("bad.conf:6: error[cannot-import]: `exec = /bin/cat`"), "{said}");
    assert!(said.contains("bad.conf:7: changed[imported-changed]: `TIMEOUTidle`"), "{said}");
    assert!(
        said.ends_with(
            "tacit: error[nothing-imported]: the import found 1 error, and wrote no policy\n"
        ),
        "{said}"
    );
    assert_eq!(std::fs::read_to_string(lab.path("policy.toml")).unwrap(), written);

    let output = lab.run(TACIT, &["import", "stunnel", "--json", "bad.conf"]);
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&json["ok"], &json["policy"]), (&Value::Bool(false), &Value::Null));
    let first = &json["findings"][0];
    assert_eq!((&first["severity"], &first["line"]), (&"error".into(), &6.into()));
    assert_eq!(output.status.code(), Some(78));
}

#[test]
fn a_global_certificate_for_servers_alone_is_not_shown_by_clients() {
    let lab = Lab::new();
    let ca = Ca::new("CA");
    lab.write("corp.pem", ca.pem());
    for (name, kind) in [("server", LeafKind::ServerOnly), ("both", LeafKind::Valid)] {
        let leaf = ca.leaf(kind);
        write_pair(&lab, name, &leaf.cert_pem, &leaf.key_pem);
    }
    for (name, shows, words) in [
        (
            "server",
            false,
            "1: changed[imported-changed]: service `out` no longer sends this certificate",
        ),
        ("both", true, "1: info[import-note]: service `out` sends this certificate"),
    ] {
        let configuration = format!(
            "cert = {name}.pem\nkey = {name}.key\nCAfile = corp.pem\n[in]\n\
             accept = 127.0.0.1:1\nconnect = 127.0.0.1:2\n[out]\nclient = yes\n\
             accept = 127.0.0.1:3\nconnect = localhost:4\nverifyChain = yes\n\
             checkHost = localhost\n"
        );
        lab.write("s.conf", configuration);
        let output = lab.run(TACIT, &["import", "stunnel", "s.conf", "-o", "policy.toml"]);
        assert!(output.status.success(), "{}", text_of(&output));
        assert!(text_of(&output).contains(words), "{}", text_of(&output));
        let policy = std::fs::read_to_string(lab.path("policy.toml")).unwrap();
        let identities = policy.matches(&format!("identity = \"{name}\"")).count();
        assert_eq!(identities, 1 + usize::from(shows), "{policy}");
        let check = lab.run(TACIT, &["check", "policy.toml"]);
        assert!(check.status.success(), "{}", text_of(&check));
    }
}

/// What stands in the fenced blocks of that language.
pub fn blocks<'p>(page: &'p str, language: &str) -> Vec<&'p str> {
    let fence = format!("```{language}\n");
    let blocks = page.split(&fence).skip(1);
    blocks.map(|rest| rest.split("```").next().unwrap()).collect()
}

#[test]
fn the_page_on_migrating_says_what_an_import_says() {
    let page = include_str!("../../../../docs/migrating-from-stunnel.md");
    let lab = Lab::new();
    let pem = ["localhost.pem", "localhost.key"].map(|name| std::fs::read(lab.path(name)).unwrap());
    lab.write("front.pem", pem.concat());
    assert!(lab.run("chmod", &["600", "front.pem"]).status.success());
    lab.write("stunnel.conf", blocks(page, "ini")[0]);
    let shown = blocks(page, "console")[1];
    let mut said = String::new();
    for line in shown.lines().filter_map(|line| line.strip_prefix("$ tacit ")) {
        let output = lab.run(TACIT, &line.split(' ').collect::<Vec<_>>());
        assert!(output.status.success(), "{}", text_of(&output));
        said.push_str(&format!("$ tacit {line}\n"));
        said.push_str(&String::from_utf8(output.stderr).unwrap());
        said.push_str(&String::from_utf8(output.stdout).unwrap());
    }
    assert_eq!(said, shown);
}

/// Whether clients without, with an unknown and with a good certificate are let in.
fn let_in(lab: &Lab, port: u16) -> [bool; 3] {
    ["", "--cert own.pem --key own.key", "--cert alice.pem --key alice.key"].map(|who| {
        let words = format!("-sS -m 10 --cacert ca.pem https://localhost:{port}/ {who}");
        let output = lab.run("curl", &words.split_whitespace().collect::<Vec<_>>());
        output.status.success()
    })
}

#[test]
fn clients_are_accepted_as_by_stunnel_except_for_raised_levels() {
    let lab = Lab::new();
    let own = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout own.key \
               -subj /CN=own -days 2 -out own.pem";
    assert!(lab.run("openssl", &own.split_whitespace().collect::<Vec<_>>()).status.success());
    let app = app();
    for (options, by_stunnel, by_import) in [
        ("verify = 0", [true; 3], [true; 3]),
        ("verify = 1", [true, false, true], [true, false, true]),
        ("verifyChain = yes\nrequireCert = no", [true, false, true], [true, false, true]),
        ("requireCert = no\nverifyChain = yes", [false, false, true], [false, false, true]),
        // Any certificate was good enough: it must be valid now.
        ("requireCert = yes", [false, true, true], [false, false, true]),
        ("verifyChain = yes\ncheckHost = alice", [false, false, true], [false, false, true]),
        ("verifyChain = yes\ncheckHost = bob", [false; 3], [false; 3]),
    ] {
        let port = free_port();
        lab.write(
            "stunnel.conf",
            format!(
                "foreground = yes\npid =\nsyslog = no\ndebug = info\n[s]\ncert = localhost.pem\n\
                 key = localhost.key\nCAfile = ca.pem\naccept = 127.0.0.1:{port}\n\
                 connect = 127.0.0.1:{app}\n{options}\n"
            ),
        );
        let mut stunnel = Peer::start(lab.command("stunnel").arg("stunnel.conf"));
        stunnel.wait_for("Accepting new connections");
        assert_eq!(let_in(&lab, port), by_stunnel, "{options}\n{}", stunnel.said());
        drop(stunnel);
        let agent = start(&lab, &lab.tacit(&["import", "stunnel", "stunnel.conf"]));
        assert_eq!(let_in(&lab, port), by_import, "{options}\n{}", agent.log());
    }
}
