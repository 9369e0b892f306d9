//! Tests the sandbox of an agent: what the agent can no longer do. Also tests new policies that
//! need more than the sandbox allows: the agent must reject them.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::certificates::{Ca, LeafKind};
use crate::harness::{Agent, Lab, echo, free_port, wait_for};
use crate::peers::{TlsClient, write_pair};

fn rule(port: u16, identity: &str) -> String {
    format!(
        "[[rule]]\nname = \"in\"\nlisten = \"127.0.0.1:{port}\"\nconnect = \"{}\"\n\
         tls = {{ role = \"server\", identity = \"{identity}\", client-cert = \"none\" }}\n",
        echo()
    )
}

fn is_served(lab: &Lab, port: u16) -> bool {
    TlsClient::open(lab, port, &serde_json::json!({})).result["reply"] == "ping"
}

/// The value of a line of `/proc/PID/task/TID/status`, for each thread of a process by its name.
fn threads(pid: u32, field: &str) -> BTreeMap<String, String> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let of_thread = tasks.map(|task| {
        let task = task.unwrap().path();
        let name = fs::read_to_string(task.join("comm")).unwrap().trim().to_owned();
        let status = fs::read_to_string(task.join("status")).unwrap();
        let line = status.lines().find(|line| line.starts_with(field)).unwrap();
        (name, line[field.len()..].trim_matches([':', '\t', ' ']).to_owned())
    });
    of_thread.collect()
}

fn serving(agent: &Agent) -> u32 {
    *agent.serving_pids().last().unwrap()
}

fn limit(agent: &Agent, name: &str) -> String {
    let all = agent.show("limits");
    let row = all.as_array().unwrap().iter().find(|row| row["name"] == name);
    row.unwrap_or_else(|| panic!("{name}: {all}"))["max"].as_str().unwrap().to_owned()
}

#[test]
fn every_thread_is_in_the_sandbox_and_workers_have_fewer_rights() {
    let lab = Lab::new();
    let port = free_port();
    let agent = lab.agent(&rule(port, "localhost"));
    assert!(is_served(&lab, port));
    let pid = serving(&agent);
    let filters = threads(pid, "Seccomp_filters");
    for (name, count) in &filters {
        let wanted = if name.starts_with("data") { "2" } else { "1" };
        assert_eq!(count, wanted, "{name}: {filters:?}");
    }
    assert!(filters.contains_key("data-0") && filters.contains_key("log"), "{filters:?}");
    // As root it keeps what its policy takes; an ordinary user's has nothing.
    const TAKEN: u64 = 1 << 10 | 1 << 12 | 1 << 1 | 1 << 2;
    for (name, rights) in threads(pid, "CapEff") {
        let rights = u64::from_str_radix(&rights, 16).unwrap();
        assert_eq!(rights & !TAKEN, 0, "{name}: {rights:x}");
    }
    let at = lab.path("policy");
    let directory = at.parent().unwrap();
    assert!(limit(&agent, "sandbox-files").contains(directory.to_str().unwrap()));
    assert!(limit(&agent, "sandbox-calls").contains("cannot open"));
    assert!(!limit(&agent, "sandbox-capabilities").contains("sys_admin"));
}

#[test]
fn without_a_sandbox_no_rights_are_dropped() {
    let lab = Lab::new();
    let port = free_port();
    let agent = lab.agent(&format!("[agent]\nsandbox = false\n{}", rule(port, "localhost")));
    assert!(is_served(&lab, port));
    let filters = threads(serving(&agent), "Seccomp_filters");
    assert!(filters.values().all(|count| count == "0"), "{filters:?}");
    assert!(limit(&agent, "sandbox").contains("sandbox = false"));
}

#[test]
fn a_reload_that_names_another_directory_is_refused_and_a_restart_takes_it() {
    let lab = Lab::new();
    let elsewhere = Lab::new();
    let port = free_port();
    let agent = lab.agent(&rule(port, "localhost"));
    let leaf = Ca::new("corp CA").leaf(LeafKind::Valid);
    write_pair(&elsewhere, "other", &leaf.cert_pem, &leaf.key_pem);
    let directory = elsewhere.path("");
    let there = directory.display();
    agent.write_policy(&format!(
        "[identity.other]\ncert = \"{there}/other.pem\"\nkey = \"{there}/other.key\"\n{}",
        rule(port, "other")
    ));
    let refused = agent.verb(&["reload"]);
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success(), "{text}");
    assert!(text.contains("other.pem: its sandbox allows only the directories"), "{text}");
    assert!(text.contains(":2:1: error") && text.contains("fix: run `tacit restart`"), "{text}");
    assert!(is_served(&lab, port), "the old policy stays");
    agent.ok(&["restart"]);
    wait_for("the other identity", || agent.show("identities").to_string().contains("other.pem"));
    assert!(is_served(&lab, port));
}

#[test]
fn a_reload_that_needs_unix_sockets_is_refused_in_the_sandbox() {
    let lab = Lab::new();
    let port = free_port();
    let agent = lab.agent(&rule(port, "localhost"));
    let other = free_port();
    agent.write_policy(&format!(
        "{}[[rule]]\nname = \"files\"\nlisten = \"127.0.0.1:{other}\"\n\
         connect = \"unix:@tacit-lab-none\"\npermit = true\n",
        rule(port, "localhost")
    ));
    let refused = agent.verb(&["reload"]);
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success(), "{text}");
    assert!(
        text.contains("error[needs-restart]: this agent cannot connect to UNIX sockets"),
        "{text}"
    );
    assert!(text.contains("fix: run `tacit restart`"), "{text}");
    assert!(is_served(&lab, port), "the old policy stays");
    agent.ok(&["restart"]);
    wait_for("the rule", || agent.show("rules").to_string().contains("files"));
}

#[test]
fn renewed_files_are_read_by_every_way_of_replacing_them() {
    let lab = Lab::new();
    let port = free_port();
    let corp = Ca::new("corp CA");
    let name = |number: usize| format!("leaf-{number}.example");
    let write = |directory: &str, number: usize| {
        let leaf = corp.leaf_of(&name(number));
        fs::create_dir_all(lab.path(directory)).unwrap();
        fs::write(lab.path(&format!("{directory}/tls.crt")), &leaf.cert_pem).unwrap();
        let key = lab.path(&format!("{directory}/tls.key"));
        fs::write(&key, &leaf.key_pem).unwrap();
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    };
    let link = |to: &str, at: &str| {
        let new = lab.path(&format!("{at}.new"));
        std::os::unix::fs::symlink(to, &new).unwrap();
        fs::rename(&new, lab.path(at)).unwrap();
    };
    // As Kubernetes mounts a secret: the files are links through a directory that is exchanged.
    write("mount/..1", 1);
    link("..1", "mount/..data");
    link("..data/tls.crt", "mount/tls.crt");
    link("..data/tls.key", "mount/tls.key");
    let identity = "[identity.web]\ncert = \"mount/tls.crt\"\nkey = \"mount/tls.key\"\n";
    let agent = lab.agent(&format!("{identity}{}", rule(port, "web")));
    let serves = |number: usize| {
        let is_there = || agent.show("identities").to_string().contains(&name(number));
        wait_for(&format!("certificate {number}"), is_there);
        assert!(is_served(&lab, port));
    };
    serves(1);
    write("mount/..2", 2);
    link("..2", "mount/..data");
    serves(2);
    // As most programs write: another file under the same name.
    write("mount/..3", 3);
    for file in ["tls.crt", "tls.key"] {
        fs::rename(lab.path(&format!("mount/..3/{file}")), lab.path(&format!("mount/{file}")))
            .unwrap();
    }
    serves(3);
    assert!(!agent.log().contains(" error "), "{}", agent.log());
}
