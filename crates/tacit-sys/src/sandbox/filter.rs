//! Builds the system call filters (seccomp) of the agent's threads.
//!
//! This table shows what each filter allows. LEFT_OUT, SERVING, OF_WORKER and OF_SIGNER are lists
//! of system calls (module `calls`).
//!
//! ```text
//! every thread     all calls except LEFT_OUT; UNIX, IPv4, IPv6 and netlink sockets, and VSOCK
//!                  sockets if a link needs them; no new namespaces; signals to its own process
//!                  only
//! data worker      only the calls in SERVING and OF_WORKER; IPv4 and IPv6 sockets, and UNIX
//!                  sockets if a rule needs them; no executable memory; no descriptors for which
//!                  the kernel sends signals (F_SETOWN)
//! link server      like every thread; in addition, no new programs and processes
//! signer           only the calls in SERVING and OF_SIGNER; opens files only for reading; starts
//!                  threads, but no process
//! ```
//!
//! A data worker is a thread that serves connections. The signer is the process that holds private
//! keys. A link server opens sockets for programs that have no network.
//!
//! A refused call returns an error, and the thread continues. The error is `EPERM`, or the error
//! that a kernel without this call returns.
//!
//! Limit: there are filters for x86-64, aarch64 and s390x only.

use libc::{SYS_clone, SYS_clone3, c_int, c_long, sock_filter};

use super::calls::{LEFT_OUT, OF_SIGNER, OF_WORKER, SERVING};
use crate::seccomp::{
    LOAD, OFFSET_ARCH, OFFSET_NUMBER, error, jump, jump_if_any, length, offset_of_argument, pass,
    statement,
};

/// Builds the filter of every thread in the process with this number.
pub(super) fn of_every_thread(pid: u32, sockets: ProcessSockets) -> Option<Vec<sock_filter>> {
    let mut families = vec![libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];
    if sockets == ProcessSockets::WithVsock {
        families.push(libc::AF_VSOCK);
    }
    let mut calls: Vec<_> = LEFT_OUT
        .iter()
        .map(|number| Call::new(*number, FilterAction::Refuse(libc::EPERM)))
        .collect();
    calls.extend([
        Call::new(libc::SYS_socket, FilterAction::one_of(0, &families, libc::EAFNOSUPPORT)),
        Call::new(libc::SYS_socketpair, FilterAction::one_of(0, &families, libc::EAFNOSUPPORT)),
        Call::new(SYS_clone, FilterAction::without(FLAGS_OF_CLONE, CLONE_NEW)),
        // The flags of this call are in memory, which a filter cannot read. After this error, the C
        // library uses `clone`.
        Call::new(SYS_clone3, FilterAction::Refuse(libc::ENOSYS)),
        signals_to(pid),
    ]);
    assemble(&calls, pass())
}

/// Builds the filter of a thread that executes no program and creates no process.
pub(super) fn without_programs() -> Option<Vec<sock_filter>> {
    let calls = [
        Call::new(libc::SYS_execve, FilterAction::Refuse(libc::EPERM)),
        Call::new(libc::SYS_execveat, FilterAction::Refuse(libc::EPERM)),
        #[cfg(target_arch = "x86_64")]
        Call::new(libc::SYS_fork, FilterAction::Refuse(libc::EPERM)),
        #[cfg(target_arch = "x86_64")]
        Call::new(libc::SYS_vfork, FilterAction::Refuse(libc::EPERM)),
        Call::new(SYS_clone, FilterAction::with(FLAGS_OF_CLONE, libc::CLONE_THREAD)),
        // After this error, the C library uses `clone`.
        Call::new(SYS_clone3, FilterAction::Refuse(libc::ENOSYS)),
    ];
    assemble(&calls, pass())
}

/// Builds the filter of the signer with this number.
pub(super) fn of_signer(pid: u32) -> Option<Vec<sock_filter>> {
    let mut calls = conditions(pid);
    calls.extend([
        Call::new(libc::SYS_openat, FilterAction::without(2, CHANGES_A_FILE)),
        #[cfg(target_arch = "x86_64")]
        Call::new(libc::SYS_open, FilterAction::without(1, CHANGES_A_FILE)),
        Call::new(SYS_clone, FilterAction::with(FLAGS_OF_CLONE, libc::CLONE_THREAD)),
    ]);
    calls.extend(pass_all(&[SERVING, OF_SIGNER]));
    assemble(&calls, error(libc::EPERM))
}

/// Builds the filter of data workers and engines in the process with this number.
pub(super) fn of_worker(pid: u32, sockets: WorkerSockets) -> Option<Vec<sock_filter>> {
    let families: &[c_int] = match sockets {
        WorkerSockets::Internet => &[libc::AF_INET, libc::AF_INET6],
        WorkerSockets::InternetAndUnix => &[libc::AF_INET, libc::AF_INET6, libc::AF_UNIX],
    };
    let mut calls = conditions(pid);
    calls.extend([
        Call::new(libc::SYS_socket, FilterAction::one_of(0, families, libc::EAFNOSUPPORT)),
        // The two ends of a pair are connected only to each other.
        Call::new(
            libc::SYS_socketpair,
            FilterAction::one_of(0, &[libc::AF_UNIX], libc::EAFNOSUPPORT),
        ),
        Call::new(libc::SYS_ioctl, FilterAction::one_of(1, SOCKET_QUESTIONS, libc::EPERM)),
    ]);
    calls.extend(pass_all(&[SERVING, OF_WORKER]));
    assemble(&calls, error(libc::EPERM))
}

/// The conditions that workers and signers have in common. Conditions come first in the filter: the
/// kernel remembers which calls always pass, and runs the filter only for the other calls.
fn conditions(pid: u32) -> Vec<Call> {
    vec![
        Call::new(libc::SYS_mmap, FilterAction::without(2, libc::PROT_EXEC)),
        Call::new(libc::SYS_mprotect, FilterAction::without(2, libc::PROT_EXEC)),
        Call::new(libc::SYS_prctl, FilterAction::one_of(0, THREAD_SETTINGS, libc::EPERM)),
        Call::new(libc::SYS_fcntl, FilterAction::one_of(1, DESCRIPTOR_FLAGS, libc::EPERM)),
        // After this error, the C library uses the older call.
        Call::new(SYS_clone3, FilterAction::Refuse(libc::ENOSYS)),
        signals_to(pid),
    ]
}

fn pass_all(lists: &[&[c_long]]) -> impl Iterator<Item = Call> {
    lists.iter().copied().flatten().map(|number| Call::new(*number, FilterAction::Pass))
}

fn signals_to(pid: u32) -> Call {
    Call::new(libc::SYS_tgkill, FilterAction::one_of(0, &[pid.cast_signed()], libc::EPERM))
}

/// The flags of an open call that may change a file.
const CHANGES_A_FILE: c_int = libc::O_WRONLY
    | libc::O_RDWR
    | libc::O_CREAT
    | libc::O_TRUNC
    | libc::O_APPEND
    | (libc::O_TMPFILE & !libc::O_DIRECTORY);

/// The `fcntl` commands that are allowed. They do not include the command that sends the signals of
/// a descriptor to another process.
const DESCRIPTOR_FLAGS: &[c_int] = &[
    libc::F_GETFD,
    libc::F_SETFD,
    libc::F_GETFL,
    libc::F_SETFL,
    libc::F_DUPFD_CLOEXEC,
    libc::F_GETPIPE_SZ,
    libc::F_SETPIPE_SZ,
];

/// The `prctl` operations that are allowed: to name the thread and its memory, and to give up
/// gaining rights.
const THREAD_SETTINGS: &[c_int] =
    &[libc::PR_SET_NAME, libc::PR_GET_NAME, libc::PR_SET_VMA, libc::PR_SET_NO_NEW_PRIVS];

/// The `ioctl` commands that are allowed: how many bytes wait in a socket, and whether its calls
/// block.
#[allow(
    clippy::cast_possible_truncation,
    reason = "the kernel reads only 32 bits of an ioctl command"
)]
#[allow(clippy::cast_possible_wrap, reason = "the cast to c_int keeps all 32 bits")]
const SOCKET_QUESTIONS: &[c_int] =
    &[libc::FIONREAD as c_int, libc::TIOCOUTQ as c_int, SIOCOUTQNSD, libc::FIONBIO as c_int];

/// Returns the number of bytes in a socket that have not been sent yet.
const SIOCOUTQNSD: c_int = 0x894b;

/// `CLONE_NEW*`: the flags that create namespaces.
const CLONE_NEW: c_int = libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET;

/// The index of the argument of `clone` that contains its flags.
const FLAGS_OF_CLONE: u32 = if cfg!(target_arch = "s390x") { 1 } else { 0 };

/// What the filter does with a call.
#[derive(Clone, Debug)]
enum FilterAction {
    Pass,
    Refuse(c_int),
    /// Allows the call if the argument has one of these values.
    OneOf {
        argument: u32,
        values: Vec<u32>,
        refused: c_int,
    },
    /// Allows the call if the argument has none of these bits.
    Without {
        argument: u32,
        bits: u32,
    },
    /// Allows the call if the argument has one of these bits.
    With {
        argument: u32,
        bits: u32,
    },
}

impl FilterAction {
    fn one_of(argument: u32, values: &[c_int], refused: c_int) -> Self {
        let values = values.iter().map(|value| value.cast_unsigned()).collect();
        Self::OneOf { argument, values, refused }
    }

    fn without(argument: u32, bits: c_int) -> Self {
        Self::Without { argument, bits: bits.cast_unsigned() }
    }

    fn with(argument: u32, bits: c_int) -> Self {
        Self::With { argument, bits: bits.cast_unsigned() }
    }

    fn instructions(&self) -> Vec<sock_filter> {
        match self {
            Self::Pass => vec![pass()],
            Self::Refuse(errno) => vec![error(*errno)],
            Self::OneOf { argument, values, refused } => {
                let mut block = vec![statement(LOAD, offset_of_argument(*argument))];
                for (index, value) in values.iter().enumerate() {
                    // Jumps over the remaining comparisons and the refusal, to the instruction that
                    // allows the call.
                    let to_pass = u8::try_from(values.len() - index).unwrap_or(0);
                    block.push(jump(*value, to_pass, 0));
                }
                block.extend([error(*refused), pass()]);
                block
            }
            Self::Without { argument, bits } => vec![
                statement(LOAD, offset_of_argument(*argument)),
                jump_if_any(*bits, 0, 1),
                error(libc::EPERM),
                pass(),
            ],
            Self::With { argument, bits } => vec![
                statement(LOAD, offset_of_argument(*argument)),
                jump_if_any(*bits, 1, 0),
                error(libc::EPERM),
                pass(),
            ],
        }
    }
}

/// A system call, by its number, and what the filter does with it.
#[derive(Clone, Debug)]
struct Call {
    number: u32,
    answer: FilterAction,
}

impl Call {
    fn new(number: c_long, answer: FilterAction) -> Self {
        // System call numbers are small and positive. Any other number matches no call.
        Self { number: u32::try_from(number).unwrap_or(u32::MAX), answer }
    }
}

/// Builds the filter program. It ends in `otherwise` for a call that is not listed, and in `ENOSYS`
/// for a call of another ABI.
fn assemble(calls: &[Call], otherwise: sock_filter) -> Option<Vec<sock_filter>> {
    let mut program =
        vec![statement(LOAD, OFFSET_ARCH), jump(AUDIT_ARCH?, 1, 0), error(libc::ENOSYS)];
    program.push(statement(LOAD, OFFSET_NUMBER));
    if cfg!(target_arch = "x86_64") {
        program.extend([jump_if_any(X32, 0, 1), error(libc::ENOSYS)]);
    }
    for Call { number, answer } in calls {
        let block = answer.instructions();
        program.push(jump(*number, 0, length(&block)));
        program.extend(block);
    }
    program.push(otherwise);
    Some(program)
}

/// A variant of the x86-64 ABI that the agent does not use.
const X32: u32 = 0x4000_0000;

/// `AUDIT_ARCH_*` of the machine's own ABI.
const AUDIT_ARCH: Option<u32> = if cfg!(target_arch = "x86_64") {
    Some(0xc000_003e)
} else if cfg!(target_arch = "aarch64") {
    Some(0xc000_00b7)
} else if cfg!(target_arch = "s390x") {
    Some(0x8000_0016)
} else {
    None
};

/// The kinds of sockets that the threads of a process create.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessSockets {
    /// UNIX, IPv4, IPv6 and netlink.
    WithoutVsock,
    /// Also vsock, because a link connects to one.
    WithVsock,
}

/// The kinds of sockets that data workers create.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkerSockets {
    /// IPv4 and IPv6.
    Internet,
    /// UNIX sockets too, because a rule connects to one.
    InternetAndUnix,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seccomp::verdict;

    const PASSES: u32 = libc::SECCOMP_RET_ALLOW;
    const PID: u32 = 4711;

    fn refused(errno: c_int) -> u32 {
        libc::SECCOMP_RET_ERRNO | errno.cast_unsigned()
    }

    fn answer(program: &[sock_filter], number: c_long, arguments: [c_int; 3]) -> u32 {
        let [first, second, third] = arguments.map(c_int::cast_unsigned);
        let number = u32::try_from(number).unwrap();
        verdict(program, AUDIT_ARCH.unwrap(), number, [first, second, third, 0, 0, 0])
    }

    fn every_thread(sockets: ProcessSockets) -> Vec<sock_filter> {
        of_every_thread(PID, sockets).unwrap()
    }

    #[test]
    fn a_thread_of_a_link_server_starts_threads_and_nothing_else() {
        let program = without_programs().unwrap();
        for number in [libc::SYS_execve, libc::SYS_execveat] {
            assert_eq!(answer(&program, number, [0; 3]), refused(libc::EPERM), "{number}");
        }
        #[cfg(target_arch = "x86_64")]
        for number in [libc::SYS_fork, libc::SYS_vfork] {
            assert_eq!(answer(&program, number, [0; 3]), refused(libc::EPERM), "{number}");
        }
        let clone = |flags| answer(&program, SYS_clone, [flags, flags, 0]);
        assert_eq!(clone(libc::CLONE_VM | libc::CLONE_THREAD), PASSES);
        assert_eq!(clone(libc::SIGCHLD), refused(libc::EPERM));
        assert_eq!(answer(&program, SYS_clone3, [0; 3]), refused(libc::ENOSYS));
        assert_eq!(answer(&program, libc::SYS_openat, [0; 3]), PASSES);
    }

    #[test]
    fn a_worker_opens_nothing_and_starts_nothing() {
        let program = of_worker(PID, WorkerSockets::Internet).unwrap();
        let refused_calls = [
            libc::SYS_openat,
            libc::SYS_openat2,
            libc::SYS_execve,
            libc::SYS_execveat,
            SYS_clone,
            libc::SYS_ptrace,
            libc::SYS_process_vm_readv,
            libc::SYS_pidfd_getfd,
            libc::SYS_kill,
            libc::SYS_unlinkat,
            libc::SYS_setns,
            libc::SYS_io_uring_setup,
            libc::SYS_bpf,
        ];
        for number in refused_calls {
            assert_eq!(answer(&program, number, [0; 3]), refused(libc::EPERM), "{number}");
        }
        for number in [libc::SYS_read, libc::SYS_recvmsg, libc::SYS_futex, libc::SYS_connect] {
            assert_eq!(answer(&program, number, [0; 3]), PASSES, "{number}");
        }
        assert_eq!(answer(&program, SYS_clone3, [0; 3]), refused(libc::ENOSYS));
    }

    #[test]
    fn a_workers_sockets_memory_and_signals_are_its_own() {
        let program = of_worker(PID, WorkerSockets::Internet).unwrap();
        let with_unix = of_worker(PID, WorkerSockets::InternetAndUnix).unwrap();
        for family in 0..48 {
            let is_internet = [libc::AF_INET, libc::AF_INET6].contains(&family);
            let wanted = |passes| if passes { PASSES } else { refused(libc::EAFNOSUPPORT) };
            let socket = |program| answer(program, libc::SYS_socket, [family, 1, 0]);
            assert_eq!(socket(&program), wanted(is_internet), "{family}");
            let or_unix = is_internet || family == libc::AF_UNIX;
            assert_eq!(socket(&with_unix), wanted(or_unix), "{family}");
        }
        let fcntl = |command| answer(&program, libc::SYS_fcntl, [3, command, 0]);
        assert_eq!(fcntl(libc::F_GETFL), PASSES);
        // This command sets the process to which the kernel sends a signal when data arrives.
        assert_eq!(fcntl(libc::F_SETOWN), refused(libc::EPERM));
        for call in [libc::SYS_mmap, libc::SYS_mprotect] {
            let executed = libc::PROT_READ | libc::PROT_EXEC;
            assert_eq!(answer(&program, call, [0, 4096, executed]), refused(libc::EPERM));
            assert_eq!(answer(&program, call, [0, 4096, libc::PROT_READ]), PASSES);
        }
        let to = |pid: u32| answer(&program, libc::SYS_tgkill, [pid.cast_signed(), 1, 6]);
        assert_eq!((to(PID), to(PID + 1)), (PASSES, refused(libc::EPERM)));
        let ioctl = |command| answer(&program, libc::SYS_ioctl, [3, command, 0]);
        assert_eq!(ioctl(SOCKET_QUESTIONS[0]), PASSES);
        // TIOCSTI inserts characters into the input of a terminal.
        assert_eq!(ioctl(0x5412), refused(libc::EPERM));
    }

    #[test]
    fn every_thread_goes_without_what_no_agent_needs() {
        for program in [every_thread(ProcessSockets::WithoutVsock), of_signer(PID).unwrap()] {
            for number in LEFT_OUT {
                assert_eq!(answer(&program, *number, [0; 3]), refused(libc::EPERM), "{number}");
            }
            let clone = |flags| answer(&program, SYS_clone, [flags, flags, 0]);
            assert_eq!(clone(libc::CLONE_VM | libc::CLONE_THREAD), PASSES);
            assert_eq!(clone(libc::CLONE_NEWUSER), refused(libc::EPERM));
            assert_eq!(answer(&program, libc::SYS_openat, [0; 3]), PASSES);
        }
        let packet = [libc::AF_PACKET, 3, 0];
        let every = every_thread(ProcessSockets::WithoutVsock);
        assert_eq!(answer(&every, libc::SYS_socket, packet), refused(libc::EAFNOSUPPORT));
        let vsock = [libc::AF_VSOCK, 1, 0];
        assert_eq!(answer(&every, libc::SYS_socket, vsock), refused(libc::EAFNOSUPPORT));
        let with_vsock = every_thread(ProcessSockets::WithVsock);
        assert_eq!(answer(&with_vsock, libc::SYS_socket, vsock), PASSES);
        assert_eq!(answer(&every, libc::SYS_execve, [0; 3]), PASSES, "it starts signers");
        let to = |pid: u32| answer(&every, libc::SYS_tgkill, [pid.cast_signed(), 1, 6]);
        assert_eq!((to(PID), to(PID + 1)), (PASSES, refused(libc::EPERM)));
    }

    #[test]
    fn a_signer_reads_files_and_changes_none() {
        let signer = of_signer(PID).unwrap();
        let open = |flags| answer(&signer, libc::SYS_openat, [0, 0, flags]);
        assert_eq!(open(libc::O_RDONLY | libc::O_CLOEXEC | libc::O_DIRECTORY), PASSES);
        for flags in [libc::O_WRONLY, libc::O_RDWR, libc::O_CREAT, libc::O_TRUNC, libc::O_TMPFILE] {
            assert_eq!(open(flags), refused(libc::EPERM), "{flags:o}");
            #[cfg(target_arch = "x86_64")]
            assert_eq!(answer(&signer, libc::SYS_open, [0, flags, 0]), refused(libc::EPERM));
        }
        let others = [
            libc::SYS_openat2,
            libc::SYS_unlinkat,
            libc::SYS_renameat2,
            libc::SYS_fchmodat,
            libc::SYS_truncate,
            libc::SYS_mkdirat,
            libc::SYS_socket,
            libc::SYS_connect,
            libc::SYS_execve,
            libc::SYS_kill,
            libc::SYS_pidfd_send_signal,
        ];
        for number in others {
            assert_eq!(answer(&signer, number, [0; 3]), refused(libc::EPERM), "{number}");
        }
        #[cfg(target_arch = "x86_64")]
        for number in [libc::SYS_creat, libc::SYS_unlink, libc::SYS_chmod] {
            assert_eq!(answer(&signer, number, [0; 3]), refused(libc::EPERM), "{number}");
        }
        let clone = |flags| answer(&signer, SYS_clone, [flags, flags, 0]);
        assert_eq!(clone(libc::CLONE_VM | libc::CLONE_THREAD), PASSES);
        assert_eq!(clone(libc::SIGCHLD), refused(libc::EPERM));
        let mapped = |protection| answer(&signer, libc::SYS_mprotect, [0, 4096, protection]);
        assert_eq!(mapped(libc::PROT_READ), PASSES);
        assert_eq!(mapped(libc::PROT_READ | libc::PROT_EXEC), refused(libc::EPERM));
    }

    #[test]
    fn another_abi_has_no_calls() {
        for program in [
            of_worker(PID, WorkerSockets::Internet).unwrap(),
            every_thread(ProcessSockets::WithVsock),
        ] {
            assert_eq!(verdict(&program, 0x4000_0003, 3, [0; 6]), refused(libc::ENOSYS));
        }
        #[cfg(target_arch = "x86_64")]
        {
            let program = of_worker(PID, WorkerSockets::Internet).unwrap();
            let arch = AUDIT_ARCH.unwrap();
            assert_eq!(verdict(&program, arch, X32, [0; 6]), refused(libc::ENOSYS));
        }
    }
}
