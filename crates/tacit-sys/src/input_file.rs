//! Opens files to read without waiting for another process.
//!
//! Opening a FIFO waits until a program opens it to write, and opening a device may wait too. So
//! [`open_regular`] opens only regular files. [`open_input`] also opens standard input
//! (`/dev/stdin`) and pipes without a name, which shells use for `<(...)`. It is for commands: if a
//! command waits for such a pipe, its user can end it.
//!
//! Limit: if another process has a lease on the file (`F_SETLEASE`), for example a file server, the
//! functions wait until the kernel ends the lease, at most for `LEASE_WAIT_MAX`.

use std::fs::{File, FileType};
use std::io;
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{FsWord, Mode, OFlags};
use rustix::io::Errno;

/// The kernel ends leases after 45 seconds (`/proc/sys/fs/lease-break-time`), unless the
/// administrator has changed this time.
const LEASE_WAIT_MAX: Duration = Duration::from_secs(60);
/// The time between two attempts to open a file on which another process has a lease.
const LEASE_LOOK_INTERVAL: Duration = Duration::from_millis(10);
/// The file system of pipes without a name.
const PIPEFS_MAGIC: FsWord = 0x5049_5045;

/// Opens a regular file to read.
///
/// # Errors
/// The file cannot be opened, or is not a regular file: the error names what it is.
pub fn open_regular(path: &Path) -> io::Result<File> {
    let file = open_after_lease(path)?;
    match special_kind(file.metadata()?.file_type()) {
        None => Ok(file),
        Some(kind) => Err(not_regular(kind)),
    }
}

/// Opens a regular file, standard input, or a pipe without a name to read. Reading from the pipe
/// waits for its writers.
///
/// # Errors
/// As [`open_regular`].
pub fn open_input(path: &Path) -> io::Result<File> {
    let file = open_after_lease(path)?;
    let Some(kind) = special_kind(file.metadata()?.file_type()) else { return Ok(file) };
    if !is_unnamed_pipe(&file)? && !is_standard_input(&file)? {
        return Err(not_regular(kind));
    }
    rustix::fs::fcntl_setfl(&file, OFlags::empty())?;
    Ok(file)
}

/// Opens a file of any kind to read, and does not wait. Reading from it does not wait either.
///
/// # Errors
/// The error of `open`; `WouldBlock` if another process has a lease on the file.
pub fn open_at_once(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    Ok(rustix::fs::open(path, flags, Mode::empty())?.into())
}

fn open_after_lease(path: &Path) -> io::Result<File> {
    let until = Instant::now() + LEASE_WAIT_MAX;
    loop {
        match open_at_once(path) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && Instant::now() < until => {
                std::thread::sleep(LEASE_LOOK_INTERVAL);
            }
            Err(error) if Errno::from_io_error(&error) == Some(Errno::NXIO) => {
                // `open` fails with this error if the file is a socket.
                let kind = path.metadata().ok().and_then(|data| special_kind(data.file_type()));
                return Err(kind.map_or(error, not_regular));
            }
            opened => return opened,
        }
    }
}

/// What a file is that is not a regular file.
fn special_kind(file: FileType) -> Option<&'static str> {
    let kinds = [
        (file.is_fifo(), "a FIFO"),
        (file.is_dir(), "a directory"),
        (file.is_socket(), "a socket"),
        (file.is_char_device(), "a character device"),
        (file.is_block_device(), "a block device"),
    ];
    kinds.into_iter().find_map(|(is_kind, kind)| is_kind.then_some(kind))
}

fn not_regular(kind: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("it is {kind}, not a regular file"))
}

fn is_unnamed_pipe(file: &File) -> io::Result<bool> {
    Ok(rustix::fs::fstatfs(file)?.f_type == PIPEFS_MAGIC)
}

fn is_standard_input(file: &File) -> io::Result<bool> {
    let opened = rustix::fs::fstat(file)?;
    // Standard input may be closed.
    let input = rustix::fs::fstat(io::stdin());
    Ok(input.is_ok_and(|input| (input.st_dev, input.st_ino) == (opened.st_dev, opened.st_ino)))
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::fd::AsRawFd as _;
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn only_regular_files_are_opened_and_a_fifo_is_not_waited_for() {
        let base = std::env::temp_dir().join(format!("tacit-input-{}", std::process::id()));
        std::fs::create_dir(&base).unwrap();
        let fifo = base.join("fifo");
        rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, Mode::RWXU).unwrap();
        let socket = base.join("socket");
        let _listener = UnixListener::bind(&socket).unwrap();
        let regular = base.join("regular");
        std::fs::write(&regular, "text").unwrap();
        for open in [open_regular, open_input] {
            let reason = |path: &Path| open(path).unwrap_err().to_string();
            assert_eq!(reason(&fifo), "it is a FIFO, not a regular file");
            assert_eq!(reason(&base), "it is a directory, not a regular file");
            assert_eq!(reason(&socket), "it is a socket, not a regular file");
            let device = Path::new("/dev/zero");
            assert_eq!(reason(device), "it is a character device, not a regular file");
            assert_eq!(open(&base.join("none")).unwrap_err().kind(), io::ErrorKind::NotFound);
            let mut text = String::new();
            open(&regular).unwrap().read_to_string(&mut text).unwrap();
            assert_eq!(text, "text");
        }
        std::fs::remove_dir_all(base).unwrap();
    }

    #[test]
    fn a_pipe_without_a_name_is_an_input_that_is_read_to_its_end() {
        let (reader, mut writer) = io::pipe().unwrap();
        let path = format!("/proc/self/fd/{}", reader.as_raw_fd());
        let refused = open_regular(Path::new(&path)).unwrap_err().to_string();
        assert_eq!(refused, "it is a FIFO, not a regular file");
        let mut file = open_input(Path::new(&path)).unwrap();
        let reading = std::thread::spawn(move || {
            let mut text = String::new();
            file.read_to_string(&mut text).map(|_| text)
        });
        writer.write_all(b"text").unwrap();
        drop(writer);
        assert_eq!(reading.join().unwrap().unwrap(), "text");
    }
}
