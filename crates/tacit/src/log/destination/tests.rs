use super::*;

/// A directory of the test's own, which is removed with it.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        let name = format!("tacit-log-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_destination_is_a_word_or_a_path() {
    for word in
        ["stderr", "journal", "syslog", "none", "state", "/var/log/tacit.log", "./journal", "fd:3"]
    {
        let destination: LogDestination = word.parse().unwrap();
        assert_eq!(destination.to_string(), word);
    }
    assert!("fd:x".parse::<LogDestination>().is_err());
    assert!("fd:-1".parse::<LogDestination>().is_err());
    let error = "jornal".parse::<LogDestination>().unwrap_err();
    assert!(error.contains("journal") && error.contains("./jornal"), "{error}");
}

#[test]
fn the_log_of_runs_is_in_the_users_own_directory() {
    let log = |state: Option<&str>, home: Option<&str>| {
        run_log(|name| match name {
            "XDG_STATE_HOME" => state.map(PathBuf::from),
            _ => home.map(PathBuf::from),
        })
    };
    assert_eq!(log(Some("/s"), Some("/h")), Some("/s/tacit/run.log".into()));
    assert_eq!(log(None, Some("/h")), Some("/h/.local/state/tacit/run.log".into()));
    assert_eq!(log(Some("here"), Some("")), None, "relative paths are ignored");
}

#[test]
fn the_log_of_runs_is_bounded_however_many_write_it() {
    use std::os::unix::fs::PermissionsExt;
    let directory = Directory::new("bounded");
    let path = directory.0.join("state/tacit/run.log");
    let mut runs = [RunLog::new(path.clone()), RunLog::new(path.clone())];
    let line = format!("{}\n", "x".repeat(9_999));
    for number in 0..400 {
        runs[number % 2].write(&line).unwrap();
    }
    let predecessor = directory.0.join("state/tacit/run.log.1");
    for file in [&path, &predecessor] {
        let metadata = std::fs::metadata(file).unwrap();
        assert!(metadata.len() <= RUN_LOG_BYTES_MAX, "{}", metadata.len());
        assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
    }
    assert_eq!(std::fs::read_dir(directory.0.join("state/tacit")).unwrap().count(), 2);
}

#[test]
fn the_log_of_runs_follows_no_link() {
    let directory = Directory::new("link");
    let path = directory.0.join("run.log");
    std::os::unix::fs::symlink(directory.0.join("elsewhere"), &path).unwrap();
    assert!(RunLog::new(path).write("line\n").is_err());
    assert!(!directory.0.join("elsewhere").exists());
}

#[test]
fn journal_and_syslog_get_one_message_a_line() {
    let directory = Directory::new("daemons");
    let path = directory.0.join("socket");
    let daemon = UnixDatagram::bind(&path).unwrap();
    let receive = || {
        let mut bytes = [0; 1024];
        let count = daemon.recv(&mut bytes).unwrap();
        String::from_utf8(bytes[..count].to_vec()).unwrap()
    };
    let socket = || connect(path.to_str().unwrap()).unwrap();
    Sink::Journal(socket()).write(Severity::Warning, "warn failed\n").unwrap();
    assert_eq!(receive(), "PRIORITY=4\nSYSLOG_IDENTIFIER=tacit\nMESSAGE=warn failed\n");
    Sink::Syslog(socket()).write(Severity::Error, "error x\n").unwrap();
    assert_eq!(receive(), format!("<27>tacit[{}]: error x", std::process::id()));
    let gone = connect(directory.0.join("gone").to_str().unwrap()).unwrap_err().to_string();
    assert!(gone.contains("--log"), "{gone}");
}

#[test]
fn a_fifo_needs_a_reader() {
    let directory = Directory::new("fifo");
    let path = directory.0.join("log");
    rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RWXU).unwrap();
    let error = append_to(&path).unwrap_err().to_string();
    assert!(error.contains("no program reads this FIFO"), "{error}");
    let flags = OFlags::RDONLY | OFlags::NONBLOCK;
    let reader = rustix::fs::open(&path, flags, rustix::fs::Mode::empty()).unwrap();
    append_to(&path).unwrap().write_all(b"line\n").unwrap();
    let mut read = String::new();
    io::Read::read_to_string(&mut File::from(reader), &mut read).unwrap();
    assert_eq!(read, "line\n");
}
