//! Tests, in separate threads, that a confined thread cannot undo its limits.

use std::fs;
use std::path::PathBuf;

use super::*;

/// Runs `work` on a thread of its own.
fn aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    std::thread::spawn(work).join().unwrap()
}

/// A directory of a test, which is removed when it is dropped.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        let path =
            std::env::temp_dir().join(format!("tacit-sandbox-{name}-{}", std::process::id()));
        fs::create_dir_all(path.join("in")).unwrap();
        fs::write(path.join("in/file"), "in").unwrap();
        fs::write(path.join("file"), "out").unwrap();
        Self(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_worker_reads_what_it_has_and_opens_nothing() {
    aside(|| {
        rustix::thread::set_no_new_privs(true).unwrap();
        let open = fs::File::open("/proc/self/stat").unwrap();
        filter_worker(WorkerSockets::Internet).unwrap();
        let mut bytes = [0; 64];
        assert!(rustix::io::pread(&open, &mut bytes, 0).unwrap() > 0);
        let refused = |error: io::Error| error.raw_os_error();
        assert_eq!(fs::read("/etc/hostname").map_err(refused), Err(Some(libc::EPERM)));
        assert!(std::process::Command::new("/bin/true").spawn().is_err());
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    });
}

#[test]
fn files_outside_are_out_of_reach() {
    if !has_file_confinement() {
        eprintln!("skipped: this kernel has no Landlock");
        return;
    }
    let directory = Directory::new("files");
    let path = directory.0.clone();
    aside(move || {
        rustix::thread::set_no_new_privs(true).unwrap();
        let reach = Reach { read: vec![path.join("in")], ..Reach::default() };
        assert_ne!(reach.rules().unwrap().confine_thread().unwrap(), FilesConfined::No);
        assert_eq!(fs::read_to_string(path.join("in/file")).unwrap(), "in");
        let refused = |error: io::Error| error.raw_os_error();
        let outside = fs::read_to_string(path.join("file")).map_err(refused);
        assert_eq!(outside, Err(Some(libc::EACCES)));
        assert_eq!(fs::write(path.join("in/new"), "").map_err(refused), Err(Some(libc::EACCES)));
        fs::rename(path.join("in/file"), path.join("file")).unwrap_err();
    });
    // A file that replaces another file below the directory can still be opened.
    let path = directory.0.clone();
    aside(move || {
        rustix::thread::set_no_new_privs(true).unwrap();
        let reach = Reach { write: vec![path.join("in")], ..Reach::default() };
        reach.rules().unwrap().confine_thread().unwrap();
        fs::write(path.join("in/new"), "new").unwrap();
        fs::rename(path.join("in/new"), path.join("in/file")).unwrap();
        assert_eq!(fs::read_to_string(path.join("in/file")).unwrap(), "new");
    });
}

#[test]
fn capabilities_that_are_not_kept_are_gone() {
    aside(|| {
        keep_capabilities(CapabilitySet::NET_BIND_SERVICE).unwrap();
        assert!((capabilities().unwrap() - CapabilitySet::NET_BIND_SERVICE).is_empty());
        keep_capabilities(CapabilitySet::all()).unwrap();
        assert!((capabilities().unwrap() - CapabilitySet::NET_BIND_SERVICE).is_empty());
    });
}
