//! Tests psql and a PostgreSQL server through tacit. Both have ordinary configurations.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::harness::{Lab, free_port, signal_process, text_of, wait_for_or};
use crate::programs::{client_rule, server_rule};

/// A PostgreSQL cluster of its own, below the system's directory for temporary files: the server
/// refuses to run as root, and its user may not be able to reach the lab.
pub struct Postgres {
    server: Child,
    pub directory: PathBuf,
    pub port: u16,
}

impl Postgres {
    pub fn start() -> Self {
        Self::start_with(&[], |_| {})
    }

    /// The same with settings; `prepare` may put files where the server runs, before it does.
    pub fn start_with(settings: &[&str], prepare: impl Fn(&Path)) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("tacit-postgres-{}-{number}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir(&directory).unwrap();
        if is_root() {
            run(Command::new("chown").arg("postgres").arg(&directory));
        }
        let data = directory.join("data");
        let port = free_port();
        let user = ["--auth=trust", "--username=tester", "--no-sync", "--no-locale"];
        run(command("initdb").args(user).arg("--pgdata").arg(&data));
        prepare(&data);
        if is_root() {
            run(Command::new("chown").args(["-R", "postgres"]).arg(&directory));
        }
        let log = std::fs::File::create(directory.join("log")).unwrap();
        let server = command("postgres")
            .arg("-D")
            .arg(&data)
            .args(["-p", &port.to_string(), "-h", "127.0.0.1", "-c", "fsync=off", "-k"])
            .arg(&directory)
            .args(settings.iter().flat_map(|setting| ["-c", setting]))
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let cluster = Self { server, directory, port };
        let log = || std::fs::read_to_string(cluster.directory.join("log")).unwrap();
        wait_for_or("PostgreSQL", || log().contains("ready to accept connections"), log);
        cluster
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // A fast shutdown.
        signal_process(self.server.id(), "INT");
        let _ = self.server.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// A program of the server's package, as a user that it accepts.
fn command(program: &str) -> Command {
    let path = installed(program);
    if !is_root() {
        return Command::new(path);
    }
    // `setpriv` becomes the program: a signal to its process reaches the right one.
    let mut command = Command::new("setpriv");
    command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups", "--"]).arg(path);
    command.current_dir("/");
    command
}

/// Where the distribution puts it: `PATH` has only the newest client.
fn installed(program: &str) -> PathBuf {
    let versions = std::fs::read_dir("/usr/lib/postgresql");
    let mut found: Vec<_> = versions
        .into_iter()
        .flatten()
        .map(|version| version.unwrap().path().join("bin").join(program))
        .filter(|path| path.exists())
        .collect();
    found.sort();
    let path = found.pop().unwrap_or_else(|| Path::new("/usr/bin").join(program));
    assert!(path.exists(), "no {program} from PostgreSQL; see scripts/install-deps.sh");
    path
}

pub fn is_root() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    status.lines().any(|line| line.starts_with("Uid:\t0\t"))
}

fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", text_of(&output));
}

fn psql(lab: &Lab, port: u16, sql: &str) -> String {
    let connection =
        format!("host=127.0.0.1 port={port} user=tester dbname=postgres sslmode=disable");
    let words = [&connection, "--no-psqlrc", "--tuples-only", "--no-align", "--command", sql];
    let output = lab.run("psql", &words);
    assert!(output.status.success(), "{}", text_of(&output));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[test]
fn psql_reaches_a_database_through_a_permit_and_through_tls() {
    let lab = Lab::new();
    let database = Postgres::start();
    let [tcp, unix, near, far] = [(); 4].map(|()| free_port());
    let target = format!("127.0.0.1:{}", database.port);
    let socket = database.directory.join(format!(".s.PGSQL.{}", database.port));
    let permit = |name, port, target: &str| {
        format!(
            "[[rule]]\nname = \"{name}\"\nlisten = \"127.0.0.1:{port}\"\n\
             connect = \"{target}\"\npermit = true\n"
        )
    };
    let agent = lab.agent(
        &(permit("tcp", tcp, &target)
            + &permit("unix", unix, &format!("unix:{}", socket.display()))
            + &client_rule("near", near, far, "")
            + &server_rule("far", far, &target, "")),
    );
    for (port, table) in [(tcp, "one"), (unix, "two"), (near, "three")] {
        psql(&lab, port, &format!("create table {table} (number int, text text)"));
        let fill = format!(
            "insert into {table} select n, repeat(n::text, 200) from generate_series(1, 5000) n"
        );
        assert_eq!(psql(&lab, port, &fill), "INSERT 0 5000");
        let rows = psql(&lab, port, &format!("select number, text from {table} order by number"));
        let expected: Vec<_> =
            (1..=5000).map(|n: u32| format!("{n}|{}", n.to_string().repeat(200))).collect();
        assert!(rows == expected.join("\n"), "rows differ through {table}");
    }
    let rules = agent.show("rules");
    for rule in rules["rules"].as_array().unwrap() {
        assert_eq!((&rule["hits"], &rule["failures"]), (&3.into(), &0.into()), "{rules}");
    }
}
