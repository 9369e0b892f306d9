//! Tests which files `make install` and `make package` install. Also tests how `make test` installs
//! the packages that its tests need. No server of these packages may start during the installation.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::harness::{Lab, TACIT};

/// The directory of the workspace.
fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn script(name: &str) -> Command {
    // A shell cannot catch a signal that its caller ignores; callers of background jobs ignore INT.
    let mut command = Command::new("env");
    command.arg("--default-signal=INT,TERM").arg(workspace().join("scripts").join(name));
    // What the caller of the tests has set is not meant for these scripts.
    for name in ["PREFIX", "DESTDIR", "BINARY", "VERSION", "OUT", "CARGO_TARGET_DIR"] {
        command.env_remove(name);
    }
    command.current_dir(workspace());
    command
}

fn succeed(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", text(&output));
    text(&output)
}

fn text(output: &Output) -> String {
    [&output.stdout[..], &output.stderr].map(String::from_utf8_lossy).concat()
}

fn executable(lab: &Lab, name: &str, content: &str) -> PathBuf {
    let path = lab.path(name);
    // Another process writes it: a process that another test starts meanwhile would inherit our
    // descriptor for a moment, and a file that is open for writing cannot be executed.
    let write = "cat >\"$0\" && chmod 755 \"$0\"";
    let written =
        lab.run_with_input("sh", &["-c", write, path.to_str().unwrap()], content.as_bytes());
    assert!(written.status.success(), "{written:?}");
    path
}

/// A small program that stands for the one that is installed.
fn program(lab: &Lab) -> PathBuf {
    executable(lab, "tacit", &format!("#!/bin/sh\nexec {TACIT} \"$@\"\n"))
}

/// The files below a directory, as paths from there.
fn files(directory: &Path) -> Vec<String> {
    let found = Command::new("find").args([".", "-type", "f"]).current_dir(directory).output();
    let mut found: Vec<String> = String::from_utf8(found.unwrap().stdout)
        .unwrap()
        .lines()
        .map(|line| line.trim_start_matches('.').to_owned())
        .collect();
    found.sort();
    found
}

#[test]
fn make_install_follows_its_prefix_and_uninstall_leaves_no_file() {
    let lab = Lab::new();
    let stage = lab.path("stage");
    let install = |verb: &str| {
        let mut make = Command::new("make");
        make.args(["--silent", verb, "PREFIX=/opt/tacit", "STRIP=no-such-program"])
            .arg(format!("DESTDIR={}", stage.display()))
            .arg(format!("BINARY={}", program(&lab).display()))
            .current_dir(workspace());
        succeed(&mut make);
    };

    install("install");
    let installed = files(&stage);
    for file in [
        "bin/tacit",
        "lib/systemd/system/tacit-guest-link@.service",
        "lib/systemd/system/tacit-host-guard.service",
        "lib/systemd/system/tacit-host.service",
        "lib/systemd/system/tacit-link@.service",
        "lib/systemd/system/tacit.service",
        "lib/systemd/system/tacit.socket",
        "lib/sysusers.d/tacit.conf",
        "share/bash-completion/completions/tacit",
        "share/doc/tacit/docs/install.md",
        "share/doc/tacit/examples/policy.toml",
        "share/fish/vendor_completions.d/tacit.fish",
        "share/man/man1/tacit-run.1",
        "share/man/man1/tacit.1",
        "share/man/man5/tacit.toml.5",
        "share/man/man7/tacit-messages.7",
        "share/tacit/apparmor/tacit",
        "share/zsh/site-functions/_tacit",
    ] {
        assert!(installed.contains(&format!("/opt/tacit/{file}")), "{file}: {installed:?}");
    }
    assert!(installed.iter().all(|file| file.starts_with("/opt/tacit/")), "{installed:?}");

    let read = |file: &str| std::fs::read_to_string(stage.join("opt/tacit").join(file)).unwrap();
    let unit = read("lib/systemd/system/tacit.service");
    assert!(unit.contains("\nExecStart=/opt/tacit/bin/tacit agent "), "{unit}");
    assert!(unit.contains("\nExecReload=/opt/tacit/bin/tacit reload "), "{unit}");
    assert!(read("share/tacit/apparmor/tacit").contains("profile tacit /opt/tacit/bin/tacit "));
    assert!(read("share/bash-completion/completions/tacit").contains("complete -F"));

    install("uninstall");
    assert_eq!(files(&stage), Vec::<String>::new());
    assert!(!stage.join("opt/tacit/share/doc/tacit").exists());
}

#[test]
fn the_guard_depends_on_no_mount() {
    let unit = workspace().join("etc/tacit-host-guard.service");
    let unit = std::fs::read_to_string(unit).unwrap();
    let settings = || unit.lines().filter_map(|line| line.split_once('='));
    assert!(settings().any(|(key, value)| key == "After" && value.contains("local-fs.target")));
    // Each of these makes systemd order the unit after mounts, and most of them require the mounts.
    let with_mounts = [
        "BindPaths",
        "BindReadOnlyPaths",
        "CacheDirectory",
        "ConfigurationDirectory",
        "LogsDirectory",
        "PrivateTmp",
        "RequiresMountsFor",
        "RootDirectory",
        "RootImage",
        "StateDirectory",
        "WantsMountsFor",
        "WorkingDirectory",
    ];
    let needed = ["BindsTo", "PartOf", "Requires", "Requisite", "StopPropagatedFrom"];
    for (key, value) in settings() {
        assert!(!with_mounts.contains(&key), "{key}={value}");
        assert!(!needed.contains(&key), "{key}={value}");
        assert!(!value.contains(".mount") && !value.contains("remote-fs"), "{key}={value}");
    }
}

#[test]
fn packages_of_one_program_are_the_same_byte_for_byte_and_name_their_version() {
    let lab = Lab::new();
    let make = |out: &str| {
        succeed(
            script("package.sh")
                .env("BINARY", program(&lab))
                .env("STRIP", "no-such-program")
                .env("VERSION", "7.8.9")
                .env("SOURCE_DATE_EPOCH", "1700000000")
                .env("OUT", lab.path(out)),
        )
    };
    let printed = make("first");
    make("second");
    let names = files(&lab.path("first"));
    assert!(names.iter().any(|name| name.ends_with("-linux.tar.gz")), "{names:?}");
    assert!(names.iter().any(|name| name.starts_with("/tacit_7.8.9_")), "{names:?}");
    for name in &names {
        let read = |out: &str| std::fs::read(format!("{}{name}", lab.path(out).display())).unwrap();
        assert!(read("first") == read("second"), "{name} differs");
        // The size of each is printed.
        assert!(printed.contains(&format!("{} bytes  ", read("first").len())), "{printed}");
    }
}

/// A host below `INSTALL_ROOT`, with an apt-get that does as told.
fn host(lab: &Lab, apt_get: &str) -> (PathBuf, Command) {
    let root = lab.path("host");
    std::fs::create_dir_all(root.join("usr/sbin")).unwrap();
    std::fs::create_dir_all(root.join("etc")).unwrap();
    std::fs::create_dir_all(lab.path("bin")).unwrap();
    executable(
        lab,
        "bin/apt-get",
        &format!("#!/bin/sh\n[ \"$1\" = install ] || exit 0\n{apt_get}"),
    );
    // No package is new: nothing of the machine below is disabled.
    executable(lab, "bin/dpkg-query", "#!/bin/sh\nexit 0\n");
    // It reads its input: its writer must not get SIGPIPE.
    executable(lab, "bin/debconf-set-selections", "#!/bin/sh\nexec cat >/dev/null\n");
    let path = std::env::var("PATH").unwrap();
    let mut command = script("install-packages.sh");
    command
        .env("INSTALL_ROOT", &root)
        .env("PATH", format!("{}:{path}", lab.path("bin").display()))
        .args(["make test", "nginx", "wget", "postfix", "prometheus"]);
    (root, command)
}

#[test]
fn packages_for_tests_are_named_and_start_no_server() {
    let lab = Lab::new();
    let policy = "$INSTALL_ROOT/usr/sbin/policy-rc.d";
    let apt_get =
        format!("{policy} nginx start; echo \"start: $?\" >{}\n", lab.path("seen").display());
    let (root, mut install) = host(&lab, &apt_get);
    let printed = succeed(&mut install);
    assert!(printed.contains("    nginx wget postfix prometheus\n"), "{printed}");
    let servers = printed.split_once("These servers will be installed").unwrap().1;
    assert!(servers.contains("    nginx postfix prometheus\n"), "{printed}");
    assert_eq!(std::fs::read_to_string(lab.path("seen")).unwrap(), "start: 101\n");
    assert_eq!(files(&root), Vec::<String>::new());
}

#[test]
fn packages_for_tests_leave_the_host_as_it_was_on_failure_and_interrupt() {
    let mine = "#!/bin/sh\nexit 104\n";
    for (ends, code) in
        [("exit 100\n", 100), ("kill -TERM $PPID\n", 143), ("kill -INT $PPID\n", 130)]
    {
        let lab = Lab::new();
        let apt_get = format!("echo telnet >>$INSTALL_ROOT/etc/inetd.conf\n{ends}");
        let (root, mut install) = host(&lab, &apt_get);
        executable(&lab, "host/usr/sbin/policy-rc.d", mine);
        lab.write("host/etc/inetd.conf", "discard\n");
        let output = install.output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{ends}: {}", text(&output));
        assert_eq!(files(&root), ["/etc/inetd.conf", "/usr/sbin/policy-rc.d"], "{ends}");
        let read = |file: &str| std::fs::read_to_string(root.join(file)).unwrap();
        assert_eq!(read("usr/sbin/policy-rc.d"), mine);
        assert_eq!(read("etc/inetd.conf"), "discard\n");
    }
}

#[test]
fn an_interrupted_call_is_repaired_by_the_next_one() {
    let lab = Lab::new();
    let mine = "#!/bin/sh\nexit 104\n";
    let (_, mut killed) = host(&lab, "kill -KILL $PPID\n");
    executable(&lab, "host/usr/sbin/policy-rc.d", mine);
    killed.output().unwrap();
    let (root, mut install) = host(&lab, "");
    assert_eq!(files(&root).len(), 2, "nothing is left to repair");
    succeed(&mut install);
    assert_eq!(files(&root), ["/usr/sbin/policy-rc.d"]);
    assert_eq!(std::fs::read_to_string(root.join("usr/sbin/policy-rc.d")).unwrap(), mine);
}

#[test]
fn an_old_cargo_is_reported_with_the_way_to_a_newer_one() {
    let lab = Lab::new();
    let manifest = std::fs::read_to_string(workspace().join("Cargo.toml")).unwrap();
    let needed = manifest.lines().find_map(|line| line.strip_prefix("rust-version = "));
    let needed = needed.unwrap().trim_matches('"');
    std::fs::create_dir(lab.path("bin")).unwrap();
    let bin = lab.path("bin");
    let path = format!("{}:/usr/bin:/bin", bin.to_str().unwrap());
    for (version, is_enough) in
        [("0.66.0", false), ("1.63.0", false), (needed, true), ("1.1000.0", true)]
    {
        executable(&lab, "bin/cargo", &format!("#!/bin/sh\necho 'cargo {version} (0 2022)'\n"));
        let output = script("rust-version.sh").env("PATH", &path).output().unwrap();
        let printed = text(&output);
        assert_eq!(output.status.code(), Some(i32::from(!is_enough)), "{version}: {printed}");
        if is_enough {
            assert_eq!(printed, "", "{version}");
            continue;
        }
        let found = format!("this cargo is version {version}; tacit needs Rust {needed} or later");
        assert!(printed.contains(&found), "{printed}");
        assert!(printed.contains(&format!("rustup toolchain install {needed}")), "{printed}");
    }
}
