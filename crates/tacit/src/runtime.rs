//! Creates runtimes of the library tokio, and explains a lack of open files.
//!
//! tokio panics if the first runtime of a process cannot open its descriptors. So this module first
//! checks that the process may open them.

use std::io;
use std::os::unix::net::UnixStream;

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use tokio::runtime::Builder;

/// Half of the descriptors that the first runtime of a process opens: the epoll instance, a copy of
/// it, an eventfd, a pair of sockets for signals, and a copy of one of them.
const DESCRIPTOR_PAIRS: usize = 3;

/// A builder for a runtime on the calling thread.
///
/// # Errors
/// The process may not open enough files. The error contains the reason and the fix.
pub(crate) fn builder() -> io::Result<Builder> {
    let opened: io::Result<Vec<_>> = (0..DESCRIPTOR_PAIRS).map(|_| UnixStream::pair()).collect();
    opened.map_err(|error| io::Error::new(error.kind(), explain_error(&error)))?;
    Ok(Builder::new_current_thread())
}

/// The text of an error of a system call. If the process has reached its limit of open files, the
/// text also has the limit and the fix.
pub(crate) fn explain_error(error: &io::Error) -> String {
    let Some(fix) = limit_fix(error) else { return error.to_string() };
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    format!("{error}: the limit of this process is {limit}\n    fix: {fix}")
}

/// The fix if a system call failed because the process has reached its limit of open files.
pub(crate) fn limit_fix(error: &io::Error) -> Option<&'static str> {
    (Errno::from_io_error(error) == Some(Errno::MFILE))
        .then_some("raise the limit of open files (`ulimit -n`; LimitNOFILE= in a unit of systemd)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_lack_of_descriptors_is_explained() {
        let text = explain_error(&Errno::MFILE.into());
        assert!(text.starts_with("Too many open files"), "{text}");
        assert!(text.contains("\n    fix: raise the limit of open files"), "{text}");
        assert!(!explain_error(&Errno::NFILE.into()).contains("fix: "));
        assert_eq!(explain_error(&io::Error::other("reason")), "reason");
    }
}
