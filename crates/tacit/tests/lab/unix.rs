//! Tests forwarding rules that listen on UNIX sockets. The tests check the owner and mode of the
//! socket file, stale socket files, and the removal of socket files.

use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;

use crate::harness::{Agent, Lab, echo};
use crate::peers::{dial, ping};

fn rule(lab: &Lab, more: &str) -> String {
    let path = lab.path("app.sock");
    format!(
        "[[rule]]\nname = \"r\"\nlisten = \"unix:{}\"\nconnect = \"{}\"\n{more}\npermit = true\n",
        path.display(),
        echo()
    )
}

/// Waits for an agent that cannot start; returns its words.
fn refused(mut agent: Agent) -> String {
    assert_eq!(agent.child.wait().unwrap().code(), Some(1), "{}", agent.log());
    agent.log()
}

fn address(lab: &Lab) -> String {
    format!("unix:{}", lab.path("app.sock").display())
}

#[test]
fn a_live_owner_is_named_and_kept() {
    let lab = Lab::new();
    let listener = UnixListener::bind(lab.path("app.sock")).unwrap();
    for more in ["", "replace-stale = true"] {
        let log = refused(lab.try_agent(&rule(&lab, more), &[]));
        let owner = format!("process {} (", std::process::id());
        assert!(log.contains(&owner) && log.contains(" of user "), "{log}");
        listener.accept().unwrap();
    }
}

#[test]
fn a_stale_socket_is_replaced_only_if_the_rule_says_so() {
    let lab = Lab::new();
    drop(UnixListener::bind(lab.path("app.sock")).unwrap());
    let log = refused(lab.try_agent(&rule(&lab, ""), &[]));
    assert!(log.contains("no process listens on") && log.contains("replace-stale = true"), "{log}");
    assert!(lab.path("app.sock").exists());
    let _agent = lab.agent(&rule(&lab, "replace-stale = true"));
    assert!(ping(&mut *dial(&address(&lab))));
}

#[test]
fn what_is_not_a_socket_is_never_touched() {
    let lab = Lab::new();
    let path = lab.write("app.sock", "precious");
    let log = refused(lab.try_agent(&rule(&lab, "replace-stale = true"), &[]));
    assert!(log.contains("is not a socket"), "{log}");
    assert_eq!(std::fs::read(path).unwrap(), b"precious");
}

#[test]
fn mode_and_owner_are_exact_and_follow_a_reload() {
    let lab = Lab::new();
    let path = lab.path("app.sock");
    let mode = || std::fs::metadata(&path).unwrap().permissions().mode() & 0o7777;
    let agent = lab.agent(&rule(&lab, ""));
    assert_eq!(mode(), 0o600, "the default");
    let inode = std::fs::metadata(&path).unwrap().ino();
    for text in ["0666", "0000", "0751"] {
        agent.write_policy(&rule(&lab, &format!("unix-mode = \"{text}\"")));
        agent.ok(&["reload"]);
        assert_eq!(format!("{:04o}", mode()), text);
    }
    let owner = || {
        let file = std::fs::metadata(&path).unwrap();
        (file.uid(), file.gid())
    };
    if rustix::process::geteuid().is_root() {
        for (text, expected) in [("nobody", (65534, 0)), ("0:daemon", (0, 1)), (":2", (0, 2))] {
            agent.write_policy(&rule(&lab, &format!("unix-owner = \"{text}\"")));
            agent.ok(&["reload"]);
            assert_eq!(owner(), expected, "{text}");
        }
    } else {
        println!("skipped: giving a file away, which only root can do");
    }
    agent.write_policy(&rule(&lab, "unix-owner = \"no-such-user\"\nunix-mode = \"0666\""));
    let before = (mode(), owner());
    let output = agent.verb(&["reload"]);
    assert_eq!(output.status.code(), Some(1));
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(message.contains("this host has no user `no-such-user`"), "{message}");
    assert_eq!((mode(), owner()), before, "the reload changed nothing");
    assert_eq!(std::fs::metadata(&path).unwrap().ino(), inode, "the socket is unchanged");
    assert!(ping(&mut *dial(&address(&lab))));
}

#[test]
fn the_file_goes_with_the_rule_and_with_the_agent() {
    let lab = Lab::new();
    let path = lab.path("app.sock");
    let mut agent = lab.agent(&rule(&lab, ""));
    assert!(std::fs::symlink_metadata(&path).unwrap().file_type().is_socket());
    agent.write_policy("[[rule]]\nname = \"x\"\nlisten = \"unix:@tacit-x\"\ndeny = true\n");
    agent.ok(&["reload"]);
    assert!(!path.exists());
    agent.write_policy(&rule(&lab, ""));
    agent.ok(&["reload"]);
    assert!(path.exists());
    agent.signal("TERM");
    assert!(agent.child.wait().unwrap().success());
    assert!(!path.exists() && !agent.control.exists());
}

#[test]
fn a_file_that_replaced_the_socket_is_not_removed() {
    let lab = Lab::new();
    let path = lab.path("app.sock");
    let mut agent = lab.agent(&rule(&lab, ""));
    std::fs::remove_file(&path).unwrap();
    let _other = UnixListener::bind(&path).unwrap();
    agent.signal("TERM");
    assert!(agent.child.wait().unwrap().success());
    assert!(path.exists());
}

#[test]
fn two_agents_do_not_share_a_control_socket() {
    let lab = Lab::new();
    let first = lab.agent(&rule(&lab, ""));
    let control = first.control.display().to_string();
    let other = "[[rule]]\nname = \"r\"\nlisten = \"unix:@tacit-other\"\ndeny = true\n";
    let file = lab.write("other.toml", crate::harness::policy(other));
    let policy = file.display().to_string();
    let output =
        lab.run(crate::harness::TACIT, &["agent", "--policy", &policy, "--control", &control]);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let holder = format!("process {}, policy {}", first.serving_pids()[0], first.policy.display());
    assert!(said.contains(&holder), "{said}");
    assert_eq!(first.show("rules")["rules"][0]["name"], "r");
}
