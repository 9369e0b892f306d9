//! Tests that tacit accepts and sends headers of PROXY protocol v2. Rules, logs and servers must
//! get the address of the real client.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::mpsc::{Receiver, sync_channel};

use serde_json::json;

use crate::certificates::{self, Ca};
use crate::harness::{Lab, connect, echo, free_port, serve};
use crate::peers::{TlsClient, TlsServer, dial, exchange, is_reset, write_pair};

/// 192.0.2.7:4711 came to 198.51.100.1:443, as the format's own description writes it.
pub const HEADER: [u8; 28] = *b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x00\x0c\
    \xc0\x00\x02\x07\xc6\x33\x64\x01\x12\x67\x01\xbb";
pub const CLIENT: &str = "192.0.2.7:4711";

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A server that hands out everything it got from a connection, once that has ended.
fn recorder() -> (std::net::SocketAddr, Receiver<Vec<u8>>) {
    let (sender, received) = sync_channel(16);
    let address = serve(move |mut stream| {
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        let _ = sender.send(bytes);
    });
    (address, received)
}

fn slowly(stream: &mut TcpStream, bytes: &[u8]) {
    stream.set_nodelay(true).unwrap();
    for byte in bytes {
        stream.write_all(&[*byte]).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

#[test]
fn a_header_is_read_in_any_pieces_shown_and_sent_on() {
    let lab = Lab::new();
    let port = free_port();
    let app = recorder();
    let agent = lab.agent(&format!(
        "[[rule]]\nname = \"r\"\nlisten = \"127.0.0.1:{port}\"\nconnect = \"{}\"\n\
         accept-proxy = true\nsend-proxy = true\npermit = true\n",
        app.0
    ));
    for at_once in [true, false] {
        let mut client = connect(("127.0.0.1", port));
        if at_once {
            client.write_all(&[&HEADER[..], b"payload"].concat()).unwrap();
        } else {
            slowly(&mut client, &HEADER);
            slowly(&mut client, b"payload");
        }
        crate::harness::wait_for("the client's address", || {
            agent.show("connections")[0]["client"] == CLIENT
        });
        let text = agent.ok(&["show", "connections"]);
        assert!(text.contains(CLIENT), "{text}");
        client.shutdown(Shutdown::Write).unwrap();
        let got = app.1.recv().unwrap();
        assert_eq!(got, [&HEADER[..], b"payload"].concat());
        drop(client);
        crate::harness::wait_for("the end", || agent.show("connections") == json!([]));
    }
}

#[test]
fn a_header_before_tls_is_read_with_and_without_the_hello() {
    let lab = Lab::new();
    let port = free_port();
    let agent = lab.agent(&format!(
        "[[rule]]\nname = \"r\"\nlisten = \"127.0.0.1:{port}\"\nconnect = \"{}\"\n\
         accept-proxy = true\n\
         tls = {{ role = \"server\", identity = \"localhost\", client-cert = \"none\" }}\n",
        echo()
    ));
    for piece in [None, Some(1), Some(28), Some(29)] {
        let mut options = json!({ "prefix": hex(&HEADER), "ca": "ca.pem" });
        if let Some(piece) = piece {
            options["piece"] = json!(piece);
        }
        let client = TlsClient::open(&lab, port, &options);
        assert_eq!(client.result["reply"], "ping", "{piece:?}: {}", client.result);
        let shown = agent.show("connections");
        let one = shown.as_array().unwrap().last().unwrap();
        assert_eq!(one["client"], CLIENT, "{shown}");
        assert_eq!(one["remote"], format!("127.0.0.1:{}", client.port()), "{shown}");
    }
    let remote = format!("\"remote\":\"{CLIENT}\"");
    crate::harness::wait_for("the audit line", || agent.audit().contains(&remote));
}

#[test]
fn a_client_rule_sends_the_header_before_its_handshake() {
    let lab = Lab::new();
    let port = free_port();
    let mut options = certificates::with("localhost");
    options["prefix"] = json!(HEADER.len());
    let mut server = TlsServer::start(&lab, &options);
    let _agent = lab.agent(&format!(
        "[[rule]]\nname = \"r\"\nlisten = \"127.0.0.1:{port}\"\nconnect = \"127.0.0.1:{}\"\n\
         accept-proxy = true\nsend-proxy = true\n\
         tls = {{ role = \"client\", trust = \"ca\" }}\n",
        server.port
    ));
    let mut client = connect(("127.0.0.1", port));
    client.write_all(&[&HEADER[..], b"first "].concat()).unwrap();
    assert_eq!(exchange(Box::new(client), b"second").unwrap(), b"first second");
    let seen = server.next();
    assert_eq!(seen["got"], "first second");
    let prefix = seen["prefix"].as_str().unwrap();
    assert!(prefix.starts_with(&hex(&HEADER[..20])), "{prefix}");
}

/// A server that hands out the header of each connection, then sends back what it gets.
fn announced() -> (std::net::SocketAddr, Receiver<Vec<u8>>) {
    let (sender, received) = sync_channel(16);
    let address = serve(move |mut stream| {
        let mut header = vec![0; 16];
        stream.read_exact(&mut header).unwrap();
        header.resize(16 + usize::from(u16::from_be_bytes([header[14], header[15]])), 0);
        stream.read_exact(&mut header[16..]).unwrap();
        sender.send(header).unwrap();
        let mut reader = stream.try_clone().unwrap();
        let _ = std::io::copy(&mut reader, &mut stream);
    });
    (address, received)
}

/// Types and values, read by the format's own words.
fn tlvs(mut bytes: &[u8]) -> Vec<(u8, Vec<u8>)> {
    let mut found = Vec::new();
    while let [kind, high, low, rest @ ..] = bytes {
        let (value, after) = rest.split_at(usize::from(u16::from_be_bytes([*high, *low])));
        found.push((*kind, value.to_vec()));
        bytes = after;
    }
    assert!(bytes.is_empty());
    found
}

#[test]
fn verified_facts_of_a_client_are_forwarded_and_waived_ones_are_not() {
    let lab = Lab::new();
    let port = free_port();
    let app = announced();
    let stranger = Ca::new("another CA").leaf_of("stranger");
    write_pair(&lab, "stranger", &stranger.cert_pem, &stranger.key_pem);
    let _agent = lab.agent(&format!(
        "[[rule]]\nname = \"r\"\nlisten = \"127.0.0.1:{port}\"\nconnect = \"{}\"\n\
         send-proxy = \"tls\"\n\
         tls = {{ role = \"server\", identity = \"localhost\", client-cert = \"preferred\", \
         trust = \"ca\", alpn = [\"h2\"] }}\n",
        app.0
    ));
    for (who, name, flags, verify) in
        [(Some("alice"), Some("alice"), 7, 0), (Some("stranger"), None, 1, 1), (None, None, 1, 1)]
    {
        let mut options = json!({ "ca": "ca.pem", "name": "localhost", "alpn": ["h2"] });
        if let Some(who) = who {
            options["cert"] = json!(format!("{who}.pem"));
            options["key"] = json!(format!("{who}.key"));
        }
        let client = TlsClient::open(&lab, port, &options);
        assert_eq!(client.result["reply"], "ping", "{}", client.result);
        let header = app.1.recv().unwrap();
        let from = u16::try_from(client.port()).unwrap().to_be_bytes();
        assert_eq!((&header[16..20], &header[24..26]), (&[127, 0, 0, 1][..], &from[..]));
        let outer = tlvs(&header[28..]);
        assert_eq!(outer[0], (0x01, b"h2".to_vec()));
        assert_eq!(outer[1], (0x02, b"localhost".to_vec()));
        let (kind, ssl) = &outer[2];
        assert_eq!((*kind, ssl[0], &ssl[1..5]), (0x20, flags, &[0, 0, 0, verify][..]), "{who:?}");
        let mut wanted = vec![(0x21, b"TLSv1.3".to_vec())];
        wanted.extend(name.map(|name: &str| (0x22, name.into())));
        wanted.push((0x23, b"TLS_AES_128_GCM_SHA256".to_vec()));
        assert_eq!(tlvs(&ssl[5..]), wanted, "{who:?}");
    }
}

#[test]
fn haproxy_reads_the_header_and_the_name_that_the_client_asked_for() {
    let lab = Lab::new();
    let port = free_port();
    let inner = free_port();
    lab.write(
        "haproxy.cfg",
        format!(
            "defaults\n mode http\n timeout client 20s\n timeout connect 20s\n \
             timeout server 20s\nfrontend inner\n bind 127.0.0.1:{inner} accept-proxy\n \
             http-request return status 200 content-type text/plain \
             lf-string \"%[src] %[fc_pp_authority]\"\n"
        ),
    );
    let program = ["/usr/sbin/haproxy", "/usr/local/sbin/haproxy"]
        .into_iter()
        .find(|path| std::path::Path::new(path).exists())
        .expect("no haproxy: see scripts/install-deps.sh");
    let server = lab.command(program).args(["-db", "-f", "haproxy.cfg"]).spawn().unwrap();
    let _ended = Ended(server);
    let _agent = lab.agent(&format!(
        "[[rule]]\nname = \"r\"\nlisten = \"127.0.0.1:{port}\"\n\
         connect = \"127.0.0.1:{inner}\"\nsend-proxy = \"tls\"\n\
         tls = {{ role = \"server\", identity = \"localhost\", client-cert = \"preferred\", \
         trust = \"ca\" }}\n"
    ));
    let url = format!("https://localhost:{port}/");
    let client = ["--cert", "alice.pem", "--key", "alice.key"];
    let mut said = String::new();
    crate::harness::wait_for("haproxy", || {
        let arguments = [&["-sS", "-4", "--cacert", "ca.pem", url.as_str()][..], &client];
        let output = lab.run("curl", &arguments.concat());
        said = String::from_utf8_lossy(&output.stdout).into_owned();
        output.status.success()
    });
    assert_eq!(said, "127.0.0.1 localhost");
}

/// A program of the test's own, ended with it.
struct Ended(std::process::Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_header_accepted_at_a_unix_socket_is_sent_on_whole() {
    let lab = Lab::new();
    let listen = format!("unix:{}", lab.path("p.sock").display());
    let app = recorder();
    let _agent = lab.agent(&format!(
        "[[rule]]\nname = \"r\"\nlisten = \"{listen}\"\nconnect = \"{}\"\n\
         accept-proxy = true\nsend-proxy = true\npermit = true\n",
        app.0
    ));
    let mut client = dial(&listen);
    client.write_all(&HEADER).unwrap();
    let _ = exchange(client, b"payload");
    let got = app.1.recv().unwrap();
    assert_eq!(&got[..28], &HEADER, "not our own end of it, which is no Internet address");
    assert_eq!(&got[28..], b"payload");
}

#[test]
fn unix_and_ipv6_clients_have_their_addresses_in_the_header() {
    let lab = Lab::new();
    let unix = format!("unix:{}", lab.path("u.sock").display());
    let app = recorder();
    let port = free_port();
    let _agent = lab.agent(&format!(
        "[[rule]]\nname = \"r\"\nlisten = [\"{unix}\", \"[::1]:{port}\"]\nconnect = \"{}\"\n\
         send-proxy = true\npermit = true\n",
        app.0
    ));
    for (address, family, bytes) in [(unix, 0x31, 216), (format!("[::1]:{port}"), 0x21, 36)] {
        let _ = exchange(dial(&address), b"payload");
        let got = app.1.recv().unwrap();
        assert_eq!((got[12], got[13], got[15]), (0x21, family, bytes), "{address}: {got:?}");
        assert_eq!(&got[16 + usize::from(bytes)..], b"payload");
    }
}

#[test]
fn a_missing_or_broken_header_is_refused_and_nothing_is_forwarded() {
    let lab = Lab::new();
    let clear = free_port();
    let tls = free_port();
    let app = recorder();
    let agent = lab.agent(&format!(
        r#"
        [[rule]]
        name = "clear"
        listen = "127.0.0.1:{clear}"
        connect = "{app}"
        accept-proxy = true
        permit = true
        [[rule]]
        name = "tls"
        listen = "127.0.0.1:{tls}"
        connect = "{app}"
        accept-proxy = true
        tls = {{ role = "server", identity = "localhost", client-cert = "none" }}
        "#,
        app = app.0
    ));
    let mut unknown_family = HEADER;
    unknown_family[13] = 0x77;
    for (bytes, words) in [
        (&b"GET / HTTP/1.1\r\n\r\n"[..], "no PROXY protocol header"),
        (b"PROXY TCP4 192.0.2.7 198.51.100.1 4711 443\r\n", "version 1 header"),
        (&unknown_family, "the unknown value 0x77 for the address family"),
    ] {
        for port in [clear, tls] {
            let mut client = connect(("127.0.0.1", port));
            client.write_all(bytes).unwrap();
            let mut rest = Vec::new();
            let _ = client.read_to_end(&mut rest);
            assert_eq!(rest, b"", "{words}");
        }
        let said = || agent.log().lines().filter(|line| line.contains(words)).count();
        crate::harness::wait_for(words, || said() == 2);
    }
    let mut cut = connect(("127.0.0.1", clear));
    cut.write_all(&HEADER[..20]).unwrap();
    cut.shutdown(Shutdown::Write).unwrap();
    assert!(is_reset(&mut cut));
    agent.wait_for_log("closed the connection before its PROXY header was complete");
    let mut stalled = connect(("127.0.0.1", clear));
    stalled.write_all(&HEADER[..20]).unwrap();
    assert!(is_reset(&mut stalled));
    agent.wait_for_log("did not send a PROXY header in time");
    assert!(app.1.try_recv().is_err(), "the server received nothing");
}

#[test]
fn rules_are_chosen_by_the_client_that_the_header_names() {
    let lab = Lab::new();
    let port = free_port();
    let app = echo();
    let rule = |name: &str, remote: &str, action: &str| {
        format!(
            "[[rule]]\nname = \"{name}\"\nlisten = \"127.0.0.1:{port}\"\naccept-proxy = true\n\
             remote = \"{remote}\"\n{action}\n"
        )
    };
    let permit = format!("connect = \"{app}\"\npermit = true");
    let agent = lab.agent(
        &(rule("banned", "192.0.2.7", "deny = true")
            + &rule("clients", "192.0.2.0/24", &permit)
            + &rule("proxy-itself", "127.0.0.1", &permit)),
    );
    let mut other = HEADER;
    other[19] = 8;
    let local = *b"\r\n\r\n\0\r\nQUIT\n\x20\x00\x00\x00";
    for (header, hits) in [(&HEADER[..], [1, 0, 0]), (&other, [1, 1, 0]), (&local, [1, 1, 1])] {
        let mut client = connect(("127.0.0.1", port));
        client.write_all(header).unwrap();
        assert_eq!(crate::peers::ping(&mut client), header != HEADER);
        let rules = agent.show("rules");
        let seen: Vec<_> = rules["rules"].as_array().unwrap().iter().map(|r| &r["hits"]).collect();
        assert_eq!(seen, hits);
    }
    let denied = |line: &str| line.contains("\"denied\"") && line.contains(CLIENT);
    crate::harness::wait_for("the audit line", || agent.audit().lines().any(denied));
}
