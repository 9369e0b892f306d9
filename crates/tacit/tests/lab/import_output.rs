//! Tests the output file of `tacit import`. If the import replaces a file, the new file has the
//! mode and owner of the old file. The import never overwrites a file that it reads.

use std::fs::{Permissions, metadata, read_to_string, symlink_metadata};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, chown, symlink};
use std::process::Output;

use crate::harness::{Lab, TACIT, text_of};

const STUNNEL: &str = "[front]\naccept = 127.0.0.1:993\nconnect = 127.0.0.1:143\ncert = /c.pem\n";
/// A user and a group that no test runs as.
const NOBODY: u32 = 65_534;

/// A directory with a configuration that can be imported.
fn lab() -> Lab {
    let lab = Lab::new();
    lab.write("stunnel.conf", STUNNEL);
    lab
}

fn import(lab: &Lab, output: &str) -> Output {
    lab.run(TACIT, &["import", "stunnel", "stunnel.conf", "-o", output])
}

fn assert_imported(output: &Output) {
    assert_eq!(output.status.code(), Some(0), "{}", text_of(output));
}

fn is_root(lab: &Lab) -> bool {
    metadata(lab.path("stunnel.conf")).unwrap().uid() == 0
}

#[test]
fn an_import_writes_through_a_symbolic_link() {
    let lab = lab();
    lab.write("real.toml", "as before");
    symlink("real.toml", lab.path("link.toml")).unwrap();
    symlink("new.toml", lab.path("dangling.toml")).unwrap();
    for (link, target) in [("link.toml", "real.toml"), ("dangling.toml", "new.toml")] {
        assert_imported(&import(&lab, link));
        assert!(symlink_metadata(lab.path(link)).unwrap().is_symlink(), "{link}");
        assert!(read_to_string(lab.path(target)).unwrap().contains("[[rule]]"), "{target}");
    }
}

#[test]
fn an_import_writes_into_a_fifo() {
    let lab = lab();
    assert!(lab.run("mkfifo", &["pipe"]).status.success());
    let pipe = lab.path("pipe");
    let reader = std::thread::spawn(move || read_to_string(pipe).unwrap());
    assert_imported(&import(&lab, "pipe"));
    assert!(metadata(lab.path("pipe")).unwrap().file_type().is_fifo());
    assert!(reader.join().unwrap().contains("[[rule]]"));
}

#[test]
fn an_import_writes_into_a_device() {
    let lab = lab();
    // Who is not root cannot replace the host's own.
    let null = if is_root(&lab) {
        if !lab.run("mknod", &["null", "c", "1", "3"]).status.success() {
            println!("skipped: this root may not make a device");
            return;
        }
        lab.path("null")
    } else {
        "/dev/null".into()
    };
    assert_imported(&import(&lab, null.to_str().unwrap()));
    assert!(metadata(null).unwrap().file_type().is_char_device());
}

#[test]
fn an_import_adds_to_the_file_behind_a_descriptor() {
    let lab = lab();
    lab.write("all.toml", "# as before\n");
    let script = format!("{TACIT} import stunnel stunnel.conf -o /dev/stdout >> all.toml");
    assert_imported(&lab.run("sh", &["-c", &script]));
    let text = read_to_string(lab.path("all.toml")).unwrap();
    assert!(text.starts_with("# as before\n") && text.contains("[[rule]]"), "{text}");
    assert!(!text.contains("1 rule,"), "the summary is no part of the policy: {text}");
}

#[test]
fn an_import_keeps_mode_and_owner_of_the_file_it_replaces() {
    let lab = lab();
    let policy = lab.write("policy.toml", "as before");
    std::fs::set_permissions(&policy, Permissions::from_mode(0o640)).unwrap();
    if is_root(&lab) {
        chown(&policy, Some(NOBODY), Some(NOBODY)).unwrap();
    } else {
        println!("skipped: the owner, which only root can change");
    }
    let old = metadata(&policy).unwrap();
    assert_imported(&import(&lab, "policy.toml"));
    let new = metadata(&policy).unwrap();
    assert!(read_to_string(&policy).unwrap().contains("[[rule]]"));
    assert_eq!((new.mode(), new.uid(), new.gid()), (old.mode(), old.uid(), old.gid()));
    let names = std::fs::read_dir(lab.path(".")).unwrap().map(|entry| entry.unwrap().file_name());
    let beside = |name: &std::ffi::OsString| name.to_string_lossy().starts_with("policy.toml.");
    assert_eq!(names.filter(beside).count(), 0);
}

#[test]
fn an_import_refuses_to_overwrite_what_it_reads() {
    let lab = lab();
    symlink("stunnel.conf", lab.path("link.conf")).unwrap();
    std::fs::hard_link(lab.path("stunnel.conf"), lab.path("hard.conf")).unwrap();
    for output in ["stunnel.conf", "link.conf", "hard.conf"] {
        assert_refused(&lab, &["stunnel", "stunnel.conf"], output);
    }
    lab.write("main", "TTLSConfig tls\n");
    lab.write(
        "tls",
        "TTLSRule a\n{\nRemotePortRange 25\nDirection Outbound\nTTLSGroupActionRef off\n}\n\
         TTLSGroupAction off\n{\nTTLSEnabled Off\n}\n",
    );
    lab.write("ipsec", "IpFilterPolicy\n{\n}\n");
    lab.write("map.toml", "[user]\n\"WEBSRV\" = \"web\"\n");
    let words = ["attls", "main", "--ipsec", "ipsec", "--map", "map.toml"];
    for output in ["main", "tls", "ipsec", "map.toml"] {
        assert_refused(&lab, &words, output);
    }
    let output = lab.run(TACIT, &[&["import"], &words[..], &["-o", "policy.toml"]].concat());
    assert_imported(&output);
}

fn assert_refused(lab: &Lab, words: &[&str], file: &str) {
    let before = read_to_string(lab.path(file)).unwrap();
    let output = lab.run(TACIT, &[&["import"], words, &["-o", file]].concat());
    assert_eq!(output.status.code(), Some(1), "{file}: {}", text_of(&output));
    let message =
        format!("cannot write {file}: the file is an input of this command and is not overwritten");
    assert!(text_of(&output).contains(&message), "{}", text_of(&output));
    assert_eq!(read_to_string(lab.path(file)).unwrap(), before);
}
