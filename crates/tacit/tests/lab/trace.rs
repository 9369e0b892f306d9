//! Tests `tacit trace`. Wireshark's tools must be able to read the captures and key logs that this
//! command writes. A key log must contain the keys that the peer, curl, writes to its own key log.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Output, Stdio};
use std::sync::{Arc, Mutex};

use tacit_core::pcapng::{self, CaptureHeader, Side, StreamEnd, SyntheticStream};

use crate::harness::{
    Agent, Lab, TACIT, connect, echo, free_port, serve, signal_process, text_of, wait_for,
    wait_for_or,
};
use crate::peers::ping;
use crate::programs::{echo_exactly, only_connection, pattern};
use crate::public::Public;

/// A `tacit trace` in progress.
struct Tracing {
    child: Child,
}

impl Tracing {
    /// Starts it, and waits until the agent traces.
    fn start(lab: &Lab, agent: &Agent, arguments: &str) -> Self {
        let errors = lab.path(&format!("trace-{}.err", free_port()));
        let child = lab
            .command(TACIT)
            .arg("trace")
            .args(arguments.split_whitespace())
            .arg("--control")
            .arg(&agent.control)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(std::fs::File::create(&errors).unwrap())
            .spawn()
            .unwrap();
        let said = || std::fs::read_to_string(&errors).unwrap();
        wait_for_or("the trace", || said().contains("tracing "), said);
        Self { child }
    }

    /// Ends it, and returns what it reports.
    fn end(self) -> String {
        signal_process(self.child.id(), "INT");
        self.ended()
    }

    /// Waits for an end that comes by itself.
    fn ended(self) -> String {
        let output = self.child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", text_of(&output));
        String::from_utf8(output.stdout).unwrap()
    }
}

/// A trace that the agent refuses.
fn refused(lab: &Lab, agent: &Agent, arguments: &str) -> String {
    let words: Vec<_> = ["trace"].into_iter().chain(arguments.split_whitespace()).collect();
    let control = agent.control.to_str().unwrap();
    let output = lab.run(TACIT, &[&words[..], &["--control", control]].concat());
    assert_eq!(output.status.code(), Some(1), "{}", text_of(&output));
    String::from_utf8(output.stderr).unwrap()
}

/// Lines that tshark prints of a capture, checksums verified.
fn tshark(lab: &Lab, capture: &str, words: &str) -> Vec<String> {
    let checked = "-o ip.check_checksum:TRUE -o tcp.check_checksum:TRUE";
    let words: Vec<_> = checked.split(' ').chain(words.split_whitespace()).collect();
    let output: Output = lab.run("tshark", &[&["-r", capture][..], &words].concat());
    assert!(output.status.success(), "{}", text_of(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(str::to_owned).collect()
}

/// What client and server sent in a stream of a capture.
fn followed(lab: &Lab, capture: &str, stream: usize) -> [Vec<u8>; 2] {
    let mut sent = [Vec::new(), Vec::new()];
    for line in tshark(lab, capture, &format!("-q -z follow,tcp,raw,{stream}")) {
        let index = usize::from(line.starts_with('\t'));
        let hex = line.trim().as_bytes();
        if !hex.is_empty() && hex.iter().all(u8::is_ascii_hexdigit) {
            let byte =
                |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
            sent[index].extend(hex.chunks(2).map(byte));
        }
    }
    sent
}

/// Asserts that tshark finds no fault in the TCP of a capture.
fn assert_sound(lab: &Lab, capture: &str) {
    let faults =
        "tcp.analysis.flags or tcp.checksum.status==0 or ip.checksum.status==0 or _ws.malformed";
    let words = ["-Y", faults];
    let output = lab.run(
        "tshark",
        &[
            &["-r", capture, "-o", "ip.check_checksum:TRUE", "-o", "tcp.check_checksum:TRUE"],
            &words[..],
        ]
        .concat(),
    );
    assert_eq!(String::from_utf8_lossy(&output.stdout), "", "{}", text_of(&output));
}

/// A plain web server whose answer to every path is the same.
fn web() -> std::net::SocketAddr {
    serve(|mut stream| {
        let mut seen = Vec::new();
        let mut byte = [0];
        while !seen.ends_with(b"\r\n\r\n") {
            if !matches!(stream.read(&mut byte), Ok(1)) {
                return;
            }
            seen.push(byte[0]);
        }
        let answer = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\nConnection: close\r\n\r\nanswer";
        stream.write_all(answer.as_bytes()).unwrap();
    })
}

fn tls_rule(name: &str, listen: u16, connect: impl std::fmt::Display) -> String {
    format!(
        "[[rule]]\nname = \"{name}\"\nlisten = \"127.0.0.1:{listen}\"\nconnect = \"{connect}\"\n\
         tls = {{ role = \"server\", identity = \"localhost\", client-cert = \"none\" }}\n"
    )
}

fn clear_rule(name: &str, listen: u16, connect: impl std::fmt::Display) -> String {
    format!(
        "[[rule]]\nname = \"{name}\"\nlisten = \"127.0.0.1:{listen}\"\nconnect = \"{connect}\"\n\
         permit = true\n"
    )
}

fn curl(lab: &Lab, words: &str) {
    let words = format!("--silent --show-error --max-time 20 --cacert ca.pem {words}");
    let output = lab
        .command("curl")
        .env("SSLKEYLOGFILE", lab.path("curl.keys"))
        .args(words.split_whitespace())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text_of(&output));
}

#[test]
fn tshark_reads_what_passes_through_the_connections_of_a_rule() {
    let lab = Lab::new();
    let [port, other] = [free_port(), free_port()];
    let agent = lab.agent(&(tls_rule("web", port, web()) + &tls_rule("other", other, web())));
    let tracing = Tracing::start(&lab, &agent, "web --pcap web.pcapng --for 1h");
    for (version, path) in [("--tls-max 1.2", "/old"), ("--tlsv1.3", "/new")] {
        curl(&lab, &format!("{version} https://localhost:{port}{path} -o /dev/null"));
    }
    curl(&lab, &format!("https://localhost:{other}/other -o /dev/null"));
    crate::fits::assert_fits("show-traces", &agent.ok(&["show", "traces", "--json"]));
    let shown = agent.show("traces")["traces"][0].clone();
    assert_eq!((&shown["of"], &shown["pcap"]), (&"rule web".into(), &"web.pcapng".into()));
    assert_eq!(shown["connections"], 2, "{shown}");
    let limits = agent.show("limits");
    let row = limits.as_array().unwrap().iter().find(|row| row["name"] == "traces").unwrap();
    assert_eq!((&row["max"], &row["used"]), (&4.into(), &1.into()));
    let report = tracing.end();
    assert!(report.contains("`tacit trace` ended the trace; 2 connections, "), "{report}");
    assert!(!report.contains("missing"), "{report}");

    assert_sound(&lab, "web.pcapng");
    let uris = tshark(&lab, "web.pcapng", "-Y http.request -T fields -e http.request.uri");
    assert_eq!(uris, ["/old", "/new"]);
    let answers = tshark(&lab, "web.pcapng", "-Y http.response -T fields -e http.file_data");
    assert_eq!(answers.len(), 2);
    let comments = tshark(&lab, "web.pcapng", "-Y frame.comment -T fields -e frame.comment");
    for (number, (comment, version)) in comments.iter().zip(["TLS 1.2 ", "TLS 1.3 "]).enumerate() {
        let begin = format!("connection {}, rule web, {version}", number + 1);
        assert!(comment.starts_with(&begin), "{comment}");
    }
    assert_eq!(comments.len(), 2);
    let ends = tshark(&lab, "web.pcapng", "-Y tcp.flags.fin==1");
    assert_eq!(ends.len(), 4, "{ends:?}");
    let mode = std::fs::metadata(lab.path("web.pcapng")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(agent.show("traces")["traces"].as_array().unwrap().len(), 0);
    let has_both = |text: String| text.contains("trace-started") && text.contains("trace-ended");
    wait_for_or("the log", || has_both(agent.log()), || agent.log());
    wait_for_or("the audit log", || has_both(agent.audit()), || agent.audit());
}

#[test]
fn an_open_connection_is_traced_from_the_present_byte() {
    let lab = Lab::new();
    let [clear, tls] = [free_port(), free_port()];
    let near = format!(
        "[[rule]]\nname = \"near\"\nlisten = \"127.0.0.1:{clear}\"\nconnect = \"localhost:{tls}\"\n\
         tls = {{ role = \"client\", trust = \"ca\" }}\n"
    );
    let agent = lab.agent(&(near + &tls_rule("far", tls, echo())));
    let mut stream = connect(("127.0.0.1", clear));
    echo_exactly(&stream, b"before the trace");
    let id = |rule| only_connection(&agent, rule)["id"].clone();
    let bytes = pattern(1 << 20);
    let traces = ["near", "far"]
        .map(|rule| Tracing::start(&lab, &agent, &format!("{} --pcap {rule}.pcapng", id(rule))));
    echo_exactly(&stream, &bytes);
    // A cut: nothing of the stream ends in order.
    tacit_sys::socket::set_on_close(stream.as_fd(), tacit_sys::socket::OnClose::Reset).unwrap();
    assert!(ping(&mut stream));
    drop(stream);
    wait_for("the end", || agent.show("connections").as_array().unwrap().is_empty());
    for (rule, tracing) in ["near", "far"].into_iter().zip(traces) {
        let report = tracing.end();
        assert!(report.contains("; 1 connection, "), "{report}");
        let capture = format!("{rule}.pcapng");
        assert_sound(&lab, &capture);
        let sent = [&bytes[..], b"p"].concat();
        assert!(followed(&lab, &capture, 0) == [sent.clone(), sent], "{rule}");
        assert_eq!(tshark(&lab, &capture, "-Y tcp.flags.reset==1").len(), 1);
        let comments = tshark(&lab, &capture, "-Y frame.comment -T fields -e frame.comment");
        assert!(
            comments[0].ends_with("begins after the client sent 16 bytes and received 16 bytes"),
            "{comments:?}"
        );
    }
}

#[test]
fn connections_in_clear_unix_sockets_and_starttls_are_traced() {
    let lab = Lab::new();
    let [clear, near, far] = [(); 3].map(|()| free_port());
    let [inside, outside] =
        ["in.sock", "out.sock"].map(|name| format!("unix:{}", lab.path(name).display()));
    let unix = format!(
        "[[rule]]\nname = \"unix\"\nlisten = \"{inside}\"\nconnect = \"{outside}\"\npermit = true\n"
    );
    let starttls =
        crate::starttls::rule("near", "client", near, &format!("localhost:{far}"), "\"postgres\"")
            + &crate::starttls::rule("far", "server", far, &echo().to_string(), "\"postgres\"");
    let agent = lab.agent(&(clear_rule("clear", clear, echo()) + &unix + &starttls));
    crate::peers::echo_at(&outside);
    let names = ["clear", "unix", "near", "far"];
    let traces =
        names.map(|name| Tracing::start(&lab, &agent, &format!("{name} --pcap {name}.pcapng")));
    let fifth = refused(&lab, &agent, "clear --pcap fifth.pcapng");
    assert!(fifth.contains("4 traces are in progress"), "{fifth}");
    let bytes = pattern(300_000);
    echo_exactly(&connect(("127.0.0.1", clear)), &bytes);
    let mut stream = crate::peers::dial(&inside);
    for piece in bytes.chunks(1000) {
        stream.write_all(piece).unwrap();
        stream.read_exact(&mut vec![0; piece.len()]).unwrap();
    }
    stream.end();
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    drop(stream);
    let mut stream = connect(("127.0.0.1", near));
    // A request for TLS, which the agent refuses to a program in clear, and a start-up message.
    stream.write_all(&[0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f]).unwrap();
    stream.read_exact(&mut [0]).unwrap();
    let startup = b"\0\0\0\x10\0\x03\0\0user\0a\0\0";
    echo_exactly(&stream, startup);
    echo_exactly(&stream, &bytes);
    drop(stream);
    wait_for("the ends", || agent.show("connections").as_array().unwrap().is_empty());
    for (name, tracing) in names.into_iter().zip(traces) {
        let report = tracing.end();
        assert!(report.contains("; 1 connection, "), "{name}: {report}");
        let capture = format!("{name}.pcapng");
        assert_sound(&lab, &capture);
        let sent = match name {
            "near" | "far" => [&startup[..], &bytes].concat(),
            _ => bytes.clone(),
        };
        assert!(followed(&lab, &capture, 0) == [sent.clone(), sent], "{name}");
    }
}

/// The lines of a key log.
fn key_lines(path: &Path) -> BTreeSet<String> {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
}

#[test]
fn the_key_log_has_the_keys_of_the_peer_also_of_resumed_sessions() {
    let lab = Lab::new();
    let port = free_port();
    let agent = lab.agent(&tls_rule("web", port, web()));
    // Before the trace: a handshake whose keys stay where they are.
    curl(&lab, &format!("https://localhost:{port}/early -o /dev/null"));
    std::fs::remove_file(lab.path("curl.keys")).unwrap();
    let tracing = Tracing::start(&lab, &agent, "web --keylog web.keys");
    for version in ["--tls-max 1.2", "--tlsv1.3"] {
        // The server closes each connection: the second one resumes the session of the first.
        let url = format!("https://localhost:{port}/again");
        curl(&lab, &format!("{version} {url} {url} -o /dev/null -o /dev/null"));
    }
    let report = tracing.end();
    assert!(!report.contains("packet"), "{report}");
    let ours = key_lines(&lab.path("web.keys"));
    let theirs = key_lines(&lab.path("curl.keys"));
    assert!(theirs.len() >= 2 + 2 * 5, "{}", theirs.len());
    assert!(ours.is_superset(&theirs), "{:?}", theirs.difference(&ours).map(|line| line.len()));
    let costs = agent.show("costs");
    assert!(costs.to_string().contains("resumed"), "{costs}");
    // A secret is in no other place.
    for secret in ours.iter().map(|line| line.rsplit(' ').next().unwrap()) {
        assert!(!agent.log().contains(secret) && !agent.audit().contains(secret));
    }
    let mode = std::fs::metadata(lab.path("web.keys")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

/// What a proxy saw pass by.
type Recorded = Arc<Mutex<Vec<(Side, Vec<u8>)>>>;

/// A TCP proxy for one connection that records the bytes of both sides.
fn recorder(to: u16) -> (u16, Recorded) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let recorded = Recorded::default();
    let pass = |from: Side, mut reader: TcpStream, mut writer: TcpStream, recorded: Recorded| {
        std::thread::spawn(move || {
            let mut chunk = [0; 16 * 1024];
            while let Ok(count @ 1..) = reader.read(&mut chunk) {
                recorded.lock().unwrap().push((from, chunk[..count].to_vec()));
                if writer.write_all(&chunk[..count]).is_err() {
                    break;
                }
            }
            let _ = writer.shutdown(std::net::Shutdown::Write);
        })
    };
    let record = Arc::clone(&recorded);
    std::thread::spawn(move || {
        let (client, _) = listener.accept().unwrap();
        let server = connect(("127.0.0.1", to));
        pass(
            Side::Client,
            client.try_clone().unwrap(),
            server.try_clone().unwrap(),
            record.clone(),
        );
        pass(Side::Server, server, client, record);
    });
    (port, recorded)
}

#[test]
fn tshark_decrypts_a_capture_with_the_key_log() {
    let lab = Lab::new();
    let port = free_port();
    let agent = lab.agent(&tls_rule("web", port, web()));
    for version in ["--tls-max 1.2", "--tlsv1.3"] {
        let keys = format!("{}.keys", version.len());
        let tracing = Tracing::start(&lab, &agent, &format!("web --keylog {keys}"));
        let (proxy, recorded) = recorder(port);
        curl(&lab, &format!("{version} https://localhost:{proxy}/in-secret -o /dev/null"));
        tracing.end();

        let [client, server] = ["192.0.2.1:40000", "192.0.2.2:443"].map(|at| at.parse().unwrap());
        let mut stream = SyntheticStream::new(client, server, [0, 0], 1);
        let mut out = Vec::new();
        let header = CaptureHeader { application: "test", interface: "test", comment: "" };
        pcapng::begin(&mut out, header);
        stream.open().iter().for_each(|packet| pcapng::packet(&mut out, 0, packet, None));
        let mut sent = [0, 0];
        for (time, (from, bytes)) in recorded.lock().unwrap().iter().enumerate() {
            let position = &mut sent[usize::from(*from == Side::Server)];
            for packet in stream.data(*from, *position, bytes) {
                pcapng::packet(&mut out, time as u64, &packet, None);
            }
            *position += bytes.len() as u64;
        }
        let end = stream.end(StreamEnd::Orderly, sent);
        end.iter().for_each(|packet| pcapng::packet(&mut out, u64::from(u32::MAX), packet, None));
        lab.write("encrypted.pcapng", &out);

        let wanted = "-Y http.request -T fields -e http.request.uri";
        assert_eq!(tshark(&lab, "encrypted.pcapng", wanted), [""; 0], "without keys");
        let with_keys = format!("-o tls.keylog_file:{} {wanted}", lab.path(&keys).display());
        assert_eq!(tshark(&lab, "encrypted.pcapng", &with_keys), ["/in-secret"], "{version}");
    }
}

#[test]
fn a_trace_needs_an_existing_target_new_files_and_a_policy_that_allows_it() {
    let lab = Lab::new();
    let port = free_port();
    let rules = tls_rule("web", port, echo());
    let agent = lab.agent(&rules);
    let unknown = refused(&lab, &agent, "wbe --pcap a.pcapng");
    assert!(unknown.contains("no rule `wbe`\n    fix: did you mean `web`?"), "{unknown}");
    let unknown = refused(&lab, &agent, "4711 --pcap a.pcapng");
    assert!(unknown.contains("no open connection has the id 4711"), "{unknown}");
    assert!(!lab.path("a.pcapng").exists(), "a refused trace leaves no file");
    lab.write("old.pcapng", "old");
    let exists = refused(&lab, &agent, "web --keylog new.keys --pcap old.pcapng");
    assert!(exists.contains("the file old.pcapng already exists\n    fix: "), "{exists}");
    let exists = refused(&lab, &agent, "web --pcap new.pcapng --keylog old.pcapng");
    assert!(exists.contains("the file old.pcapng already exists"), "{exists}");
    assert!(!lab.path("new.pcapng").exists(), "nor does one that lacks its second file");
    assert_eq!(std::fs::read(lab.path("old.pcapng")).unwrap(), b"old");
    let tracing = Tracing::start(&lab, &agent, "web --pcap old.pcapng --overwrite");
    agent.write_policy(&format!("[agent]\ntrace = false\n{rules}"));
    agent.ok(&["reload"]);
    let report = tracing.ended();
    assert!(report.contains("the agent installed a policy with `trace = false`"), "{report}");
    let disabled = refused(&lab, &agent, "web --pcap a.pcapng");
    assert!(disabled.contains("`trace = false` in [agent]"), "{disabled}");
    agent.wait_for_log("trace-refused");
    wait_for("the audit log", || agent.audit().contains("trace-refused"));
}

#[test]
fn only_the_owner_of_the_policy_and_root_may_trace() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let lab = Lab::new();
    let port = free_port();
    lab.write("p.toml", format!("version = 1\n{}", clear_rule("r", port, echo())));
    let public = Public::of(&lab);
    let ordinary = |words: &str| {
        let mut command = lab.command("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "./tacit"]);
        command.args(words.split(' ')).current_dir(&public.directory);
        command
    };
    let control = public.directory.join("scratch/agent.sock");
    let mut agent = ordinary("agent --policy p.toml --control scratch/agent.sock --no-supervisor")
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    wait_for("the control socket", || control.exists());
    let traced = ordinary("trace r --pcap scratch/a.pcapng --control scratch/agent.sock").output();
    let said = text_of(&traced.unwrap());
    let wanted = "user nobody is not permitted to trace connections under the policy";
    assert!(said.contains(wanted), "{said}");
    assert!(said.contains("fix: run the command as root"), "{said}");
    let words = ["trace", "r", "--pcap", "b.pcapng", "--for", "10ms", "--control"];
    let traced = lab.command(TACIT).args(words).arg(&control).output().unwrap();
    assert!(traced.status.success(), "{}", text_of(&traced));
    agent.kill().unwrap();
    agent.wait().unwrap();
}

#[test]
fn a_trace_ends_at_its_limits_with_its_command_and_at_a_restart() {
    let lab = Lab::new();
    let port = free_port();
    let agent = lab.agent(&clear_rule("r", port, echo()));
    let report = Tracing::start(&lab, &agent, "r --pcap time.pcapng --for 10ms").ended();
    assert!(report.contains("the trace reached the end of its duration"), "{report}");
    assert_sound(&lab, "time.pcapng");

    let tracing = Tracing::start(&lab, &agent, "r --pcap size.pcapng --max-bytes 16KiB");
    let stream = connect(("127.0.0.1", port));
    for _ in 0..100 {
        echo_exactly(&stream, &pattern(512));
    }
    let report = tracing.ended();
    assert!(
        report.contains("the trace reached --max-bytes") && report.contains("missing"),
        "{report}"
    );
    let length = std::fs::metadata(lab.path("size.pcapng")).unwrap().len();
    assert!((15 << 10..=16 << 10).contains(&length), "{length}");
    let [sent, _] = followed(&lab, "size.pcapng", 0);
    assert!(sent.len() > 4096 && sent.starts_with(&pattern(512)), "{}", sent.len());

    let mut tracing = Tracing::start(&lab, &agent, "r --pcap killed.pcapng");
    tracing.child.kill().unwrap();
    tracing.child.wait().unwrap();
    agent.wait_for_log("end=requested");
    assert_sound(&lab, "killed.pcapng");

    let tracing = Tracing::start(&lab, &agent, "r --pcap restart.pcapng");
    echo_exactly(&stream, b"before the successor");
    agent.ok(&["restart"]);
    let report = tracing.ended();
    assert!(report.contains("a restart replaced the agent"), "{report}");
    assert_eq!(followed(&lab, "restart.pcapng", 0)[0], b"before the successor");

    let tracing = Tracing::start(&lab, &agent, "r --pcap ended.pcapng");
    drop(agent);
    let report = tracing.ended();
    assert!(report.contains("the agent has ended"), "{report}");
    assert_sound(&lab, "ended.pcapng");
}

/// Received and dropped packets, as the last block of a capture counts them.
fn statistics(capture: &[u8]) -> [u64; 2] {
    let u32_at = |at: usize| u32::from_le_bytes(capture[at..at + 4].try_into().unwrap());
    let u16_at = |at: usize| u16::from_le_bytes(capture[at..at + 2].try_into().unwrap());
    let start = capture.len() - usize::try_from(u32_at(capture.len() - 4)).unwrap();
    assert_eq!(u32_at(start), 5, "interface statistics come last");
    let mut counts = [0, 0];
    let mut at = start + 20;
    while u16_at(at) != 0 {
        if let code @ (4 | 5) = u16_at(at) {
            let value = u64::from_le_bytes(capture[at + 4..at + 12].try_into().unwrap());
            counts[usize::from(code - 4)] = value;
        }
        at += 4 + usize::from(u16_at(at + 2)).next_multiple_of(4);
    }
    counts
}

#[test]
fn a_file_that_takes_nothing_blocks_no_connection_and_drops_are_counted() {
    let lab = Lab::new();
    let port = free_port();
    let agent = lab.agent(&clear_rule("r", port, echo()));
    let mut tracing = Tracing::start(&lab, &agent, "r --pcap - --max-bytes 1GiB");
    // No process reads the pipe: the queue fills, and the bytes pass all the same.
    echo_exactly(&connect(("127.0.0.1", port)), &pattern(24 << 20));
    let shown = agent.show("traces")["traces"][0].clone();
    assert!(shown["dropped"].as_u64().unwrap() > 0, "{shown}");
    let mut pipe = tracing.child.stdout.take().unwrap();
    let reader = std::thread::spawn(move || {
        let mut capture = Vec::new();
        pipe.read_to_end(&mut capture).unwrap();
        capture
    });
    signal_process(tracing.child.id(), "INT");
    tracing.child.wait().unwrap();
    let capture = reader.join().unwrap();
    let [received, dropped] = statistics(&capture);
    assert!(dropped > 0 && received > dropped, "{received} {dropped}");
    agent.wait_for_log(&format!("dropped={dropped} "));
}

#[test]
fn a_trace_ends_at_its_time_although_its_pipe_takes_nothing() {
    let lab = Lab::new();
    let port = free_port();
    let agent = lab.agent(&clear_rule("r", port, echo()));
    let mut tracing = Tracing::start(&lab, &agent, "r --pcap - --max-bytes 1GiB --for 1s");
    // More than a pipe holds.
    echo_exactly(&connect(("127.0.0.1", port)), &pattern(1 << 20));
    // The pipe stays open, and no process reads it.
    let status = tracing.child.wait().unwrap();
    assert_eq!(status.code(), Some(1));
    agent.wait_for_log("end=time");
    assert_eq!(agent.show("traces")["traces"].as_array().unwrap().len(), 0);
}

#[test]
fn a_policy_that_disables_traces_applies_to_one_whose_files_are_being_opened() {
    let lab = Lab::new();
    let port = free_port();
    let rules = clear_rule("r", port, echo());
    let agent = lab.agent(&rules);
    let stream = UnixStream::connect(&agent.control).unwrap();
    let mut answers = BufReader::new(&stream).lines();
    let request = serde_json::json!({
        "verb": "trace", "of": { "rule": "r" }, "pcap": "a.pcapng", "duration-ms": 60_000,
        "bytes-max": 1_000_000,
    });
    writeln!(&stream, "{request}").unwrap();
    let first = answers.next().unwrap().unwrap();
    assert!(first.contains("\"descriptors\":1"), "{first}");
    agent.write_policy(&format!("[agent]\ntrace = false\n{rules}"));
    agent.ok(&["reload"]);
    let file = std::fs::File::create(lab.path("a.pcapng")).unwrap();
    tacit_sys::descriptor::send(&stream, b"\n", &[file.as_fd()]).unwrap();
    let second = answers.next().unwrap().unwrap();
    assert!(second.contains("the policy disables traces"), "{second}");
    assert!(!agent.log().contains("trace-started"), "{}", agent.log());
}
