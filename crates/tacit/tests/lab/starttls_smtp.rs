//! Tests SMTP with STARTTLS. Postfix is the server, and swaks and OpenSSL are the clients. Postfix
//! runs without TLS in some tests, and with mandatory TLS in others.

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::harness::{Lab, free_port, signal_process, text_of, wait_for_or};
use crate::peers_postgres::is_root;
use crate::starttls::rule;

/// A Postfix of its own, which delivers to files. Its master must be root.
struct Postfix {
    master: Child,
    directory: std::path::PathBuf,
    /// Where it offers no TLS.
    clear: u16,
    /// Where it wants STARTTLS.
    secure: u16,
}

impl Postfix {
    /// `None`: not root, which is said.
    fn start(lab: &Lab) -> Option<Self> {
        if !is_root() {
            println!("skipped: Postfix, which only root can start");
            return None;
        }
        // Not in the lab: its users cannot reach that.
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("tacit-postfix-{}-{number}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&directory);
        for name in ["conf", "queue", "data", "mail"] {
            std::fs::create_dir_all(directory.join(name)).unwrap();
        }
        std::fs::copy(lab.path("localhost.pem"), directory.join("conf/cert.pem")).unwrap();
        std::fs::copy(lab.path("localhost.key"), directory.join("conf/cert.key")).unwrap();
        let chown = |owner: &str, name: &str| {
            let path = directory.join(name);
            assert!(Command::new("chown").arg(owner).arg(path).status().unwrap().success());
        };
        chown("postfix", "data");
        chown("65534", "mail");
        let clear = free_port();
        let secure = free_port();
        let at = directory.display();
        let write = |name: &str, text: String| std::fs::write(directory.join(name), text).unwrap();
        write("conf/main.cf", MAIN.replace("@", &at.to_string()));
        let services = format!(
            "127.0.0.1:{clear} inet n - n - - smtpd\n127.0.0.1:{secure} inet n - n - - smtpd -o \
             smtpd_tls_security_level=encrypt\n{SERVICES}"
        );
        write("conf/master.cf", services);
        let master = postfix(&directory.join("conf"))
            .arg("start-fg")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("postfix: {error}; see scripts/install-deps.sh"));
        let postfix = Self { master, directory, clear, secure };
        let ready = || std::net::TcpStream::connect(("127.0.0.1", secure)).is_ok();
        wait_for_or("Postfix", ready, || postfix.log());
        Some(postfix)
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.directory.join("log")).unwrap_or_default()
    }

    /// Waits for a mail that holds the words.
    fn wait_for_mail(&self, words: &str) {
        let inbox = self.directory.join("mail/inbox");
        let has = || std::fs::read_to_string(&inbox).is_ok_and(|mail| mail.contains(words));
        wait_for_or(words, has, || self.log());
    }
}

impl Drop for Postfix {
    fn drop(&mut self) {
        let _ = postfix(&self.directory.join("conf")).arg("stop").output();
        signal_process(self.master.id(), "TERM");
        let _ = self.master.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

fn postfix(configuration: &Path) -> Command {
    let mut command = Command::new("/usr/sbin/postfix");
    command.arg("-c").arg(configuration);
    command
}

const MAIN: &str = "compatibility_level = 3.6
queue_directory = @/queue
data_directory = @/data
maillog_file = @/log
maillog_file_prefixes = @
myhostname = localhost
inet_interfaces = 127.0.0.1
inet_protocols = ipv4
mydestination =
alias_maps =
alias_database =
virtual_mailbox_domains = localhost
virtual_mailbox_base = @/mail
virtual_mailbox_maps = static:inbox
virtual_uid_maps = static:65534
virtual_gid_maps = static:65534
smtpd_tls_chain_files = @/conf/cert.key, @/conf/cert.pem
";

const SERVICES: &str = "cleanup unix n - n - 0 cleanup
qmgr unix n - n 300 1 qmgr
rewrite unix - - n - - trivial-rewrite
bounce unix - - n - 0 bounce
defer unix - - n - 0 bounce
proxymap unix - - n - - proxymap
anvil unix - - n - 1 anvil
tlsmgr unix - - n 1000? 1 tlsmgr
virtual unix - n n - - virtual
postlog unix-dgram n - n - 1 postlogd
";

/// Sends a mail with that subject.
fn swaks(lab: &Lab, port: u16, subject: &str, more: &[&str]) -> Output {
    let server = format!("127.0.0.1:{port}");
    let header = format!("Subject: {subject}");
    let envelope = ["--server", &server, "--from", "a@localhost", "--to", "b@localhost"];
    let arguments = [&envelope[..], &["--header", &header, "--ehlo", "me"], more].concat();
    lab.run("swaks", &arguments)
}

const VERIFIED: [&str; 5] =
    ["--tls", "--tls-verify", "--tls-ca-path", "ca.pem", "--tls-sni=localhost"];

#[test]
fn postfix_in_clear_serves_clients_that_insist_on_tls() {
    let lab = Lab::new();
    let Some(postfix) = Postfix::start(&lab) else { return };
    let required = free_port();
    let optional = free_port();
    let target = format!("127.0.0.1:{}", postfix.clear);
    let mode = "{ protocol = \"smtp\", mode = \"optional\" }";
    let agent = lab.agent(
        &(rule("required", "server", required, &target, "\"smtp\"")
            + &rule("optional", "server", optional, &target, mode)),
    );
    for (port, subject) in [(required, "one"), (optional, "two")] {
        let said = swaks(&lab, port, subject, &VERIFIED[..4]);
        assert!(said.status.success(), "{}", text_of(&said));
        let (in_clear, under_tls) = text_of(&said).split_once("TLS started").map_or_else(
            || panic!("no TLS: {}", text_of(&said)),
            |(clear, tls)| (clear.to_owned(), tls.to_owned()),
        );
        assert_eq!(in_clear.matches("STARTTLS").count(), 2, "offered and asked for: {in_clear}");
        assert!(!under_tls.contains("STARTTLS"), "{under_tls}");
        postfix.wait_for_mail(&format!("Subject: {subject}"));
    }
    let said = swaks(&lab, required, "never", &[]);
    assert!(text_of(&said).contains("530 5.7.0"), "{}", text_of(&said));
    let said = swaks(&lab, optional, "three", &[]);
    assert!(said.status.success(), "{}", text_of(&said));
    postfix.wait_for_mail("Subject: three");
    let connect = format!("127.0.0.1:{required}");
    let said = lab.run_with_input(
        "openssl",
        &[
            "s_client",
            "-starttls",
            "smtp",
            "-connect",
            &connect,
            "-CAfile",
            "ca.pem",
            "-quiet",
            "-verify_return_error",
            "-verify_hostname",
            "localhost",
            "-ign_eof",
        ],
        b"EHLO me\r\nQUIT\r\n",
    );
    let text = text_of(&said);
    assert!(text.contains("250 CHUNKING") && text.contains("221 2.0.0"), "{text}");
    agent.wait_for_log("TLS_AES_");
}

#[test]
fn clients_in_clear_reach_postfix_that_takes_mail_under_tls_alone() {
    let lab = Lab::new();
    let Some(postfix) = Postfix::start(&lab) else { return };
    let near = free_port();
    let refused = free_port();
    let to = |port: u16| format!("localhost:{port}");
    let agent = lab.agent(
        &(rule("near", "client", near, &to(postfix.secure), "\"smtp\"")
            + &rule("refused", "client", refused, &to(postfix.clear), "\"smtp\"")),
    );
    let said = swaks(&lab, postfix.secure, "never", &[]);
    assert!(text_of(&said).contains("530 5.7.0"), "without tacit: {}", text_of(&said));
    for (subject, protocol) in [("one", "ESMTP"), ("two", "SMTP")] {
        let said = swaks(&lab, near, subject, &["--protocol", protocol]);
        assert!(said.status.success(), "{}", text_of(&said));
        assert!(!text_of(&said).contains("STARTTLS"), "{}", text_of(&said));
        postfix.wait_for_mail(&format!("Subject: {subject}"));
    }
    let said = swaks(&lab, refused, "never", &[]);
    let text = text_of(&said);
    assert!(text.contains("421 4.7.0 tacit: the server does not offer TLS"), "{text}");
    assert!(!postfix.log().contains("never"), "{}", postfix.log());
    agent.wait_for_log("the server's reply to EHLO has no STARTTLS");
}
