//! Finds the process that already listens on an address, for the error message of an agent that
//! cannot listen there.
//!
//! The kernel reports the listening socket and its user. To find the process, the agent searches
//! the descriptors in `/proc` for this socket. Root may read the descriptors of all processes;
//! other users may read only those of their own processes.

use std::fmt;
use std::net::SocketAddr;

use tacit_core::flow::Address;
use tacit_sys::netlink::{Netlink, Subsystem, diag};
use tacit_sys::{IpVersion, owner};

use crate::address;

/// The process that listens on an address, as far as it can be found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ListeningProcess {
    /// A process.
    Process {
        pid: u32,
        /// The name of the program; for a tacit its command line, which has policy and control
        /// socket.
        program: String,
        user: String,
    },
    /// An unknown process of this user.
    User(String),
    /// An unknown process of an unknown user.
    Unknown,
}

impl ListeningProcess {
    /// The process that listens on this address, or on an unspecified address with the same port.
    pub(super) fn of(address: &Address) -> Self {
        let Address::Inet(wanted) = address else { return Self::Unknown };
        let Some(socket) = listening_socket(*wanted) else { return Self::Unknown };
        let user = address::user_name(socket.uid);
        // All processes that are visible here are descendants of process 1.
        match owner::holder(1, socket.inode) {
            Some(pid) => Self::Process { pid, program: program(pid), user },
            None => Self::User(user),
        }
    }
}

fn listening_socket(wanted: SocketAddr) -> Option<diag::DiagSocket> {
    let mut diagnosis = Netlink::open(Subsystem::SocketDiagnosis).ok()?;
    let mut listening = Vec::new();
    for version in IpVersion::ALL {
        listening.extend(diag::listeners(&mut diagnosis, version).unwrap_or_default());
    }
    listening.into_iter().find(|socket| excludes(socket.local, wanted))
}

/// Whether no socket can listen on `wanted` while another one listens on `taken`.
fn excludes(taken: SocketAddr, wanted: SocketAddr) -> bool {
    let taken_ip = taken.ip().to_canonical();
    let wanted_ip = wanted.ip().to_canonical();
    let overlaps = taken_ip == wanted_ip || taken_ip.is_unspecified() || wanted_ip.is_unspecified();
    taken.port() == wanted.port() && overlaps
}

fn program(pid: u32) -> String {
    let read = |name: &str| std::fs::read_to_string(format!("/proc/{pid}/{name}"));
    let name = read("comm").unwrap_or_default().trim_end().to_owned();
    if !name.starts_with("tacit") {
        return name;
    }
    let line = read("cmdline").unwrap_or_default();
    let words: Vec<_> = line.split('\0').filter(|word| !word.is_empty()).collect();
    if words.is_empty() { name } else { words.join(" ") }
}

impl fmt::Display for ListeningProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // Its parent would start another agent after the end of this one.
            Self::Process { pid, program, user } if program.starts_with("tacit") => write!(
                f,
                "process {pid} ({program}) of user {user} listens on the address\n    fix: if the \
                 process belongs to another `tacit run` with the same policy, end that `tacit \
                 run`; otherwise end the process with `kill {pid}`, or use another address"
            ),
            Self::Process { pid, program, user } => write!(
                f,
                "process {pid} ({program}) of user {user} listens on the address\n    fix: end the \
                 process with `kill {pid}`, or use another address"
            ),
            Self::User(user) => write!(
                f,
                "a process of user {user} listens on the address\n    fix: if another `tacit run` \
                 with the same policy is running, end that `tacit run`; otherwise use another \
                 address, or find the process with `ss -ltnp` as root and end this process"
            ),
            Self::Unknown => f.write_str(
                "another process listens on the address\n    fix: if another `tacit run` with the \
                 same policy is running, end that `tacit run`; otherwise use another address, or \
                 find the process with `ss -ltnp` as root and end this process",
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn the_process_that_listens_is_named() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let taken = listener.local_addr().unwrap();
        let any = SocketAddr::new("0.0.0.0".parse().unwrap(), taken.port());
        for wanted in [taken, any] {
            let holder = ListeningProcess::of(&Address::Inet(wanted));
            let ListeningProcess::Process { pid, user, .. } = &holder else { panic!("{holder:?}") };
            assert_eq!(*pid, std::process::id());
            assert_eq!(*user, address::user_name(tacit_sys::process::effective_user()));
            assert!(holder.to_string().contains(&format!("kill {pid}")), "{holder}");
        }
    }

    #[test]
    fn another_run_with_the_same_policy_is_mentioned_unless_another_program_listens() {
        let of = |program: &str| ListeningProcess::Process {
            pid: 7,
            program: program.to_owned(),
            user: "alice".to_owned(),
        };
        let mentions = |holder: ListeningProcess| holder.to_string().contains("`tacit run` with");
        assert!(mentions(of("tacit agent --policy p.toml")));
        assert!(mentions(ListeningProcess::User("alice".to_owned())));
        assert!(mentions(ListeningProcess::Unknown));
        assert!(!mentions(of("nginx")));
    }

    #[test]
    fn an_address_conflicts_with_itself_and_with_the_unspecified_address() {
        let excludes =
            |taken: &str, wanted: &str| excludes(taken.parse().unwrap(), wanted.parse().unwrap());
        assert!(excludes("127.0.0.1:80", "127.0.0.1:80"));
        assert!(excludes("0.0.0.0:80", "127.0.0.1:80"));
        assert!(excludes("127.0.0.1:80", "[::]:80"));
        assert!(excludes("[::ffff:127.0.0.1]:80", "127.0.0.1:80"));
        assert!(!excludes("127.0.0.1:80", "127.0.0.2:80"));
        assert!(!excludes("127.0.0.1:80", "127.0.0.1:81"));
    }
}
