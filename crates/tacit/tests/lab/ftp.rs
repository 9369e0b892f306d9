//! Tests FTP between a client and a server if only one of the two uses TLS. Either the clients use
//! TLS and the server vsftpd does not, or vsftpd requires TLS and the clients do not use TLS. A
//! vsftpd that requires TLS also requires resumed sessions (`require_ssl_reuse`, its default).

use std::process::{Child, Stdio};

use crate::harness::{Agent, Lab, free_port, signal_process, text_of, wait_for_or};

/// What goes up and comes down: more than buffers of any kind hold.
const LARGE_BYTES: usize = 3_000_000;

/// vsftpd for anonymous users, as the user that runs the tests.
struct Vsftpd {
    server: Child,
    port: u16,
}

impl Vsftpd {
    /// One that speaks clear FTP, with a file `file.txt` and a directory `up`.
    fn clear(lab: &Lab) -> Self {
        Self::start(lab, "")
    }

    /// One that wants TLS everywhere, and resumed sessions for data.
    fn tls(lab: &Lab) -> Self {
        let pem = ["localhost.pem", "localhost.key"].map(|name| lab.path(name));
        let text = pem.map(|path| std::fs::read_to_string(path).unwrap()).concat();
        let both = lab.write("both.pem", text);
        let more = format!(
            "ssl_enable=YES\nallow_anon_ssl=YES\nforce_anon_data_ssl=YES\n\
             force_anon_logins_ssl=YES\nrequire_ssl_reuse=YES\nssl_ciphers=HIGH\n\
             rsa_cert_file={}\n",
            both.display()
        );
        Self::start(lab, &more)
    }

    fn start(lab: &Lab, more: &str) -> Self {
        let root = lab.path("root");
        let empty = lab.path("empty");
        let port = free_port();
        std::fs::create_dir_all(root.join("up")).unwrap();
        std::fs::create_dir_all(&empty).unwrap();
        std::fs::write(root.join("file.txt"), "hello\n").unwrap();
        let configuration = format!(
            "listen=YES\nbackground=NO\nlisten_address=127.0.0.1\nlisten_port={port}\n\
             run_as_launching_user=YES\nseccomp_sandbox=NO\nanonymous_enable=YES\n\
             local_enable=NO\nno_anon_password=YES\nanon_root={}\nallow_writeable_chroot=YES\n\
             write_enable=YES\nanon_upload_enable=YES\nanon_other_write_enable=YES\n\
             anon_world_readable_only=NO\nsecure_chroot_dir={}\nxferlog_enable=NO\n{more}",
            root.display(),
            empty.display()
        );
        let file = lab.write("vsftpd.conf", configuration);
        let log = std::fs::File::create(lab.path("vsftpd.log")).unwrap();
        let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
        let server = lab
            .command("env")
            .arg(format!("PATH={path}"))
            .arg("vsftpd")
            .arg(file)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let log = || std::fs::read_to_string(lab.path("vsftpd.log")).unwrap();
        let listens = || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok();
        let what = "vsftpd; see scripts/install-deps.sh";
        wait_for_or(what, listens, log);
        Self { server, port }
    }
}

impl Drop for Vsftpd {
    fn drop(&mut self) {
        signal_process(self.server.id(), "TERM");
        let _ = self.server.wait();
    }
}

fn rule(name: &str, listen: &str, connect: u16, tls: &str) -> String {
    format!(
        "[[rule]]\nname = \"{name}\"\nlisten = \"{listen}\"\nconnect = \"127.0.0.1:{connect}\"\n\
         log = true\ntls = {{ {tls} }}\n"
    )
}

fn server_tls(starttls: &str) -> String {
    format!(
        "role = \"server\", identity = \"localhost\", client-cert = \"none\", \
         starttls = {starttls}"
    )
}

/// An agent in the server's role with one rule, and its port.
fn serving(lab: &Lab, server: &Vsftpd, starttls: &str) -> (Agent, u16) {
    let port = free_port();
    let listen = format!("127.0.0.1:{port}");
    (lab.agent(&rule("ftp", &listen, server.port, &server_tls(starttls))), port)
}

/// An agent in the client's role with one rule, and its port.
fn reaching(lab: &Lab, server: &Vsftpd) -> (Agent, u16) {
    let port = free_port();
    let tls = "role = \"client\", trust = \"ca\", server-name = \"localhost\", starttls = \"ftp\"";
    (lab.agent(&rule("ftp", &format!("127.0.0.1:{port}"), server.port, tls)), port)
}

fn ok(lab: &Lab, program: &str, arguments: &[&str]) -> String {
    let output = lab.run(program, arguments);
    assert!(output.status.success(), "{program} {arguments:?}: {}", text_of(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The scripted client under TLS.
fn ftps(lab: &Lab, port: u16, what: &str, more: &[&str]) -> String {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/peers/ftps.py");
    let port = port.to_string();
    let mut arguments = vec![script, &port, what];
    arguments.extend(more);
    ok(lab, "python3", &arguments)
}

/// Who opens data connections.
#[derive(Clone, Copy, Debug)]
enum DataMode {
    /// The server.
    Active,
    /// The client.
    Passive,
}

/// lftp brings a large file up, lists it, and brings it and a small one down.
fn lftp(lab: &Lab, url: &str, mode: DataMode, settings: &str) {
    let bytes: Vec<u8> = (0..=250).cycle().take(LARGE_BYTES).collect();
    lab.write("large", &bytes);
    let passive = match mode {
        DataMode::Active => "off",
        DataMode::Passive => "on",
    };
    let script = format!(
        "set cmd:fail-exit yes; set net:max-retries 1; set net:timeout 10; \
         set xfer:clobber yes; set ftp:passive-mode {passive}; {settings} open {url}; \
         cat file.txt; put -O up large; cls -1 up; get up/large -o back; rm up/large"
    );
    let said = ok(lab, "lftp", &["--norc", "-c", &script]);
    assert!(said.starts_with("hello\n") && said.contains("up/large"), "{said}");
    assert!(std::fs::read(lab.path("back")).unwrap() == bytes, "{url} passive {passive}");
}

/// What lftp must be told to use TLS for anonymous users too.
const LFTP_TLS: &str = "set ftp:ssl-allow-anonymous yes; set ftp:ssl-force yes; \
                        set ftp:ssl-protect-data yes; set ssl:ca-file ca.pem;";

#[test]
fn lftp_reaches_a_clear_server_through_tls_in_every_mode() {
    let lab = Lab::new();
    let server = Vsftpd::clear(&lab);
    for (starttls, scheme) in
        [("\"ftp\"", "ftp"), ("{ protocol = \"ftp\", implicit = true }", "ftps")]
    {
        let (agent, port) = serving(&lab, &server, starttls);
        for mode in [DataMode::Passive, DataMode::Active] {
            lftp(&lab, &format!("{scheme}://localhost:{port}"), mode, LFTP_TLS);
        }
        agent.wait_for_log("parent=1 ");
        let log = agent.log();
        assert!(!log.contains(" warn failed "), "{log}");
        assert!(log.contains("parent=1 "), "{log}");
    }
}

#[test]
fn curl_reaches_a_clear_server_through_tls() {
    let lab = Lab::new();
    let server = Vsftpd::clear(&lab);
    let (_explicit, explicit) = serving(&lab, &server, "\"ftp\"");
    let (_implicit, implicit) = serving(&lab, &server, "{ protocol = \"ftp\", implicit = true }");
    let large = lab.write("large", "x".repeat(LARGE_BYTES));
    for url in [format!("ftp://localhost:{explicit}"), format!("ftps://localhost:{implicit}")] {
        let tls = ["-sS", "--ssl-reqd", "--cacert", "ca.pem"];
        let curl = |more: &[&str]| ok(&lab, "curl", &[&tls[..], more].concat());
        let file = format!("{url}/file.txt");
        assert_eq!(curl(&[&file]), "hello\n");
        assert_eq!(curl(&["--disable-epsv", &file]), "hello\n");
        // It takes no tickets then, and resumes by the session's number.
        assert_eq!(curl(&["--tls-max", "1.2", &file]), "hello\n");
        curl(&["-T", large.to_str().unwrap(), &format!("{url}/up/")]);
        assert_eq!(curl(&[&format!("{url}/up/large")]).len(), LARGE_BYTES);
    }
}

#[test]
fn clear_clients_reach_a_server_that_requires_tls_and_resumption() {
    let lab = Lab::new();
    let server = Vsftpd::tls(&lab);
    let (agent, port) = reaching(&lab, &server);
    let url = format!("ftp://localhost:{port}");
    lftp(&lab, &url, DataMode::Passive, "");
    lftp(&lab, &url, DataMode::Active, "");
    let file = format!("{url}/file.txt");
    for more in [&[][..], &["--disable-epsv"], &["-P", "-"], &["-P", "-", "--disable-eprt"]] {
        let said = ok(&lab, "curl", &[&["-sS"][..], more, &[&file]].concat());
        assert_eq!(said, "hello\n", "{more:?}");
    }
    let script = format!(
        "import ftplib\n\
         for passive in (True, False):\n\
         \x20 client = ftplib.FTP()\n\
         \x20 client.connect('localhost', {port}, 20); client.login()\n\
         \x20 client.set_pasv(passive)\n\
         \x20 lines = []; client.retrlines('RETR file.txt', lines.append)\n\
         \x20 print(lines, client.nlst('up'), client.sendcmd('FEAT').count('AUTH'))\n\
         \x20 client.quit()\n"
    );
    assert_eq!(ok(&lab, "python3", &["-c", &script]), "['hello'] [] 0\n".repeat(2));
    agent.wait_for_log("parent=");
    agent.wait_for_log("check=valid");
    let log = agent.log();
    assert!(!log.contains(" warn failed "), "{log}");
    assert!(log.contains("parent=") && log.contains("check=valid"), "{log}");
    // vsftpd sends no close_notify on control connections.
    assert!(!log.contains("without close_notify"), "{log}");
}

#[test]
fn data_connections_must_come_from_the_client_of_the_control_connection() {
    let lab = Lab::new();
    let server = Vsftpd::clear(&lab);
    let (agent, port) = serving(&lab, &server, "\"ftp\"");
    assert_eq!(ftps(&lab, port, "resume", &[]), "b'hello\\n'\n");
    let refused = ftps(&lab, port, "full", &[]);
    assert!(!refused.contains("hello"), "{refused}");
    agent.wait_for_log("kind=data-connection");
    let refused = ftps(&lab, port, "another", &[]);
    assert!(!refused.contains("hello"), "a session of somebody else: {refused}");
    let off = "{ protocol = \"ftp\", data-resumption = \"off\" }";
    let (_agent, port) = serving(&lab, &server, off);
    assert_eq!(ftps(&lab, port, "full", &[]), "b'hello\\n'\n");
}

#[test]
fn data_connections_may_present_the_certificate_of_their_control_connection() {
    let lab = Lab::new();
    lab.tacit(&["ca", "issue", "bob", "--client"]);
    let server = Vsftpd::clear(&lab);
    let port = free_port();
    let tls = "role = \"server\", identity = \"localhost\", client-cert = \"required\", \
               trust = \"ca\", starttls = { protocol = \"ftp\", data-resumption = \"off\" }";
    let _agent = lab.agent(&rule("ftp", &format!("127.0.0.1:{port}"), server.port, tls));
    for what in ["resume", "full"] {
        assert_eq!(ftps(&lab, port, what, &["alice.pem"]), "b'hello\\n'\n", "{what}");
    }
    let refused = ftps(&lab, port, "changed", &["alice.pem"]);
    assert!(!refused.contains("hello"), "{refused}");
}

#[test]
fn an_upload_that_is_cut_off_does_not_look_complete() {
    let lab = Lab::new();
    let server = Vsftpd::clear(&lab);
    let (agent, port) = serving(&lab, &server, "\"ftp\"");
    let said = ftps(&lab, port, "cut", &[]);
    assert!(said.contains("426"), "{said}");
    agent.wait_for_log("without close_notify");
}

#[test]
fn no_command_is_accepted_in_clear_if_tls_is_required() {
    let lab = Lab::new();
    let server = Vsftpd::clear(&lab);
    let (_agent, port) = serving(&lab, &server, "\"ftp\"");
    let output = lab.run("curl", &["-sS", &format!("ftp://localhost:{port}/file.txt")]);
    assert!(!output.status.success() && text_of(&output).contains("530"), "{}", text_of(&output));
    let said = ftps(&lab, port, "clear", &[]);
    let codes: Vec<_> = said.lines().map(|line| line.split(' ').nth(1).unwrap()).collect();
    assert_eq!(codes, ["534", "534", "501", "503"], "{said}");
}

#[test]
fn optional_serves_clear_clients_with_their_data_connections() {
    let lab = Lab::new();
    let server = Vsftpd::clear(&lab);
    let (agent, port) = serving(&lab, &server, "{ protocol = \"ftp\", mode = \"optional\" }");
    let url = format!("ftp://localhost:{port}");
    lftp(&lab, &url, DataMode::Passive, "set ftp:ssl-allow no;");
    lftp(&lab, &url, DataMode::Active, "set ftp:ssl-allow no;");
    lftp(&lab, &url, DataMode::Passive, LFTP_TLS);
    let log = agent.log();
    assert!(!log.contains(" warn failed "), "{log}");
}

#[test]
fn a_server_without_tls_gets_no_password_and_the_client_an_error() {
    let lab = Lab::new();
    let server = Vsftpd::clear(&lab);
    let (agent, port) = reaching(&lab, &server);
    let output = lab.run("curl", &["-sSv", &format!("ftp://localhost:{port}/file.txt")]);
    assert!(!output.status.success() && text_of(&output).contains("421"), "{}", text_of(&output));
    agent.wait_for_log("kind=starttls");
}

#[test]
fn data_listeners_close_with_their_control_connection() {
    let lab = Lab::new();
    let server = Vsftpd::clear(&lab);
    let (_agent, port) = serving(&lab, &server, "\"ftp\"");
    let said = ftps(&lab, port, "listeners", &[]);
    assert_eq!(said.matches("ConnectionRefusedError").count(), 2, "{said}");
}

#[test]
fn clients_get_data_ports_and_data_address() {
    let lab = Lab::new();
    let server = Vsftpd::clear(&lab);
    let data = free_port();
    let starttls =
        format!("{{ protocol = \"ftp\", data-ports = {data}, data-address = \"127.0.0.2\" }}");
    let (_agent, port) = serving(&lab, &server, &starttls);
    let arguments = ["-sSv", "--ssl-reqd", "--cacert", "ca.pem", "--disable-epsv"];
    let url = format!("ftp://localhost:{port}/file.txt");
    let output = lab.run("curl", &[&arguments[..], &["--ftp-skip-pasv-ip", &url]].concat());
    let high = data >> 8;
    let low = data & 0xff;
    let told = format!("(127,0,0,2,{high},{low})");
    assert!(output.status.success() && text_of(&output).contains(&told), "{}", text_of(&output));
}

#[test]
fn ipv6_clients_reach_an_ipv4_server_in_both_modes() {
    let lab = Lab::new();
    let server = Vsftpd::clear(&lab);
    let port = free_port();
    let _agent =
        lab.agent(&rule("ftp", &format!("[::1]:{port}"), server.port, &server_tls("\"ftp\"")));
    let settings = format!("{LFTP_TLS} set ssl:check-hostname no; set dns:order inet6;");
    for mode in [DataMode::Passive, DataMode::Active] {
        lftp(&lab, &format!("ftp://[::1]:{port}"), mode, &settings);
    }
}

#[test]
fn engines_hand_control_connections_over() {
    let lab = Lab::new();
    let server = Vsftpd::tls(&lab);
    let port = free_port();
    let tls = "role = \"client\", trust = \"ca\", server-name = \"localhost\", starttls = \"ftp\"";
    let rule = rule("ftp", &format!("127.0.0.1:{port}"), server.port, tls);
    let _agent = lab.agent(&format!("[engine]\ncpus = \"0\"\n{rule}"));
    lftp(&lab, &format!("ftp://localhost:{port}"), DataMode::Passive, "");
}

#[test]
fn displays_show_which_control_connection_a_data_connection_belongs_to() {
    let lab = Lab::new();
    let server = Vsftpd::clear(&lab);
    let (agent, port) = serving(&lab, &server, "\"ftp\"");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/peers/ftps.py");
    let mut client = lab
        .command("python3")
        .args([script, &port.to_string(), "hold"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let shown = || agent.show("connections").as_array().unwrap().clone();
    wait_for_or("two connections", || shown().len() == 2, || agent.log());
    let shown = shown();
    assert_eq!((&shown[0]["parent"], &shown[1]["parent"]), (&().into(), &shown[0]["id"]));
    assert_eq!(shown[1]["rule"], "ftp");
    assert_eq!(shown[1]["tls"]["resumed"], true);
    drop(client.stdin.take());
    let output = client.wait_with_output().unwrap();
    assert!(text_of(&output).contains("hello"), "{}", text_of(&output));
    let rules = agent.show("rules");
    assert_eq!(rules["rules"][0]["hits"], 2, "{rules}");
}
