//! Tests `tacit run` without a policy file. With `--tls`, every connection uses TLS. Without
//! `--tls`, the command prints an error that says how to start a program.

use crate::harness::{Lab, TACIT, text_of};
use crate::run::{expect, in_network};

/// `tls` is `tacit run --tls` with these options more.
const TLS: &str = r#"
tls() { options=$1; shift; as_user timeout 30 ./tacit run --tls --ca ca.pem $options \
    --log stderr --resolver 127.0.0.1:5353 -- "$@"; }
# A reset comes after curl has connected, or before it looks whether it has.
fetch() { options=$1; shift; tls "$options" curl -sS --max-time 20 "$@"; status=$?
    case $status in 7 | 56) echo status reset ;; *) echo status $status ;; esac; }
"#;

fn tls(script: &str, wanted: &str) {
    expect(&format!("{TLS}{script}"), wanted);
}

#[test]
fn every_connection_is_tls_without_a_policy() {
    tls("tls '' curl -sS --max-time 20 http://server.example:8080/", "TLS_AES_128_GCM_SHA256");
    // The server has no certificate for its address.
    tls("fetch '' http://10.9.8.7:8080/", "status reset");
    tls(
        "openssl s_server -accept 10.9.8.7:8081 -cert localhost.pem -key localhost.key \
         -www -quiet >/dev/null 2>&1 & other=$!\n\
         until (exec 3<>/dev/tcp/10.9.8.7/8081) 2>/dev/null; do sleep 0.02; done\n\
         fetch '' http://server.example:8081/; kill $other",
        "status reset",
    );
}

#[test]
fn without_a_policy_a_server_that_speaks_no_tls_gets_no_byte_of_the_program() {
    let script = "python3 -c 'if True:
        import socket
        server = socket.create_server((\"10.9.8.7\", 8082))
        open(\"listens\", \"w\").close()
        client, _ = server.accept()
        got = client.recv(10000)
        open(\"got\", \"wb\").write(got)
        client.sendall(b\"HTTP/1.0 200 OK\\r\\n\\r\\nclear\")' & server=$!
        until [ -e listens ]; do sleep 0.02; done; rm listens
        fetch '' http://server.example:8082/secret
        wait $server; grep -c secret got";
    for output in in_network(&format!("{TLS}{script}")) {
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!(said, "status reset\n0\n", "{}", text_of(&output));
    }
}

#[test]
fn without_a_policy_a_server_on_the_loopback_of_the_host_is_reached_by_tls() {
    tls(
        "openssl s_server -accept 127.0.0.1:8443 -cert localhost.pem -key localhost.key \
         -www -quiet >/dev/null 2>&1 & other=$!\n\
         until (exec 3<>/dev/tcp/127.0.0.1/8443) 2>/dev/null; do sleep 0.02; done\n\
         tls '' curl -sS --max-time 20 http://localhost:8443/; kill $other",
        "TLS_AES_128_GCM_SHA256",
    );
    // What the program serves itself stays with it.
    tls(
        "tls '' /usr/bin/python3 -c 'if True:
        import socket
        server = socket.create_server((\"127.0.0.1\", 8444))
        client = socket.create_connection((\"127.0.0.1\", 8444))
        served, _ = server.accept()
        client.sendall(b\"own\")
        print(served.recv(10), \"in clear\")'",
        "b'own' in clear",
    );
}

#[test]
fn without_a_policy_datagrams_are_rejected() {
    let script = "tls '' /usr/bin/python3 -c 'if True:
        import socket
        to = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        to.settimeout(5)
        to.connect((\"10.9.8.7\", 9999))
        try: to.send(b\"x\"); to.recv(1)
        except ConnectionRefusedError: print(\"rejected\")'";
    tls(script, "rejected");
}

#[test]
fn without_a_policy_the_program_has_the_certificate_of_the_command_line() {
    let server = "cp alice.key scratch/; chown $(as_user id -u) scratch/alice.key
         openssl s_server -accept 10.9.8.7:8083 -cert server.example.pem -key server.example.key \
             -CAfile ca.pem -Verify 1 -www -quiet >/dev/null 2>&1 & other=$!
         until (exec 3<>/dev/tcp/10.9.8.7/8083) 2>/dev/null; do sleep 0.02; done\n";
    let fetch = "http://server.example:8083/; kill $other";
    tls(&format!("{server}fetch '' {fetch}"), "status reset");
    tls(
        &format!("{server}fetch '--cert alice.pem --key scratch/alice.key' {fetch}"),
        "Subject: CN=alice",
    );
}

#[test]
fn the_policy_that_options_stand_for_is_printed_and_valid_anywhere() {
    let lab = Lab::new();
    let options = ["run", "--tls", "--ca", "ca.pem", "--print-policy"];
    let client = ["--cert", "alice.pem", "--key", "alice.key"];
    std::fs::create_dir(lab.path("elsewhere")).unwrap();
    for text in [lab.tacit(&options), lab.tacit(&[&options[..], &client].concat())] {
        let file = lab.write("elsewhere/printed.toml", &text);
        let checked = lab.command(TACIT).arg("check").arg(file).current_dir("/").output().unwrap();
        let said = text_of(&checked);
        assert!(checked.status.success(), "{text}\n{said}");
        assert!(said.contains("policy OK, 2 rules"), "{text}\n{said}");
    }
    let output = lab.run(TACIT, &["run", "--tls", "--ca", "nowhere.pem", "--print-policy"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text_of(&output).contains("--ca nowhere.pem: No such file"), "{}", text_of(&output));
}

#[test]
fn a_run_without_a_policy_says_how_to_start() {
    let lab = Lab::new();
    for words in [&["run"][..], &["run", "--", "true"], &["run", "--name", "x", "--", "true"]] {
        let output = lab.command(TACIT).args(words).env_remove("TACIT_POLICY").output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(64), "{words:?}: {said}");
        let lines: Vec<_> = said.lines().collect();
        assert_eq!(lines.len(), 5, "{said}");
        let ways = ["run --tls --ca ", "run --policy ", "--print-policy"];
        assert!(ways.iter().zip(&lines[2..]).all(|(way, line)| line.contains(way)), "{said}");
    }
    let output = lab.run(TACIT, &["run", "--tls", "--ca", "ca.pem"]);
    assert_eq!(output.status.code(), Some(64));
    assert!(text_of(&output).contains("no program to run"), "{}", text_of(&output));
}

#[test]
fn a_policy_with_forwarding_rules_alone_is_warned_about_in_a_run() {
    let warning = "tacit: warning[run-policy]: no rule of the policy has `direction`";
    let forward = "printf 'version = 1\\n[[rule]]\\nname = \"r\"\\nlisten = \"unix:@x\"\\n\
                   deny = true\\n' >run.toml; run true";
    expect(forward, warning);
    for output in in_network("run true") {
        assert!(output.stderr.is_empty(), "a policy about runs: {}", text_of(&output));
    }
}
