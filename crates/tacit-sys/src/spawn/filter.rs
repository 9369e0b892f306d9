//! Builds the system call filter of a program in a run. The filter allows only the socket families
//! whose traffic a network namespace contains.
//!
//! ```text
//! socket, socketpair    UNIX, INET, INET6, NETLINK: allowed; other families: EAFNOSUPPORT
//! socketcall (32-bit)   its `socket` and `socketpair`: EAFNOSUPPORT, whatever the family
//! io_uring_*            ENOSYS: its operations create sockets without a system call; the program
//!                       may have a ring from outside
//! all other calls       allowed
//! ```
//!
//! The filter has two forms. With the first form, the kernel returns these errors itself. With the
//! second form, the kernel notifies another process ([`super::notify`]), which returns the same
//! errors and reports each call.
//!
//! A kernel may offer several ABIs with different system call numbers. The filter knows the numbers
//! of all of them. A call of an unknown ABI is refused.
//!
//! Limit: the arguments of `socketcall` are in memory that a filter cannot read. So 32-bit programs
//! that create sockets by `socketcall` get an error; 32-bit programs that use the newer calls work.

use libc::sock_filter;

use crate::seccomp::{
    AND, LOAD, OFFSET_ARCH, OFFSET_NUMBER, RETURN, error, jump, length, offset_of_argument, pass,
    statement,
};

/// What answers a refused call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RefusalSource {
    /// The kernel.
    Kernel,
    /// A process that listens to the notifications of the filter.
    Listener,
}

/// A refused call of a program, by the kind of object that it would create.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusedCall {
    /// A socket or a pair of sockets of this family.
    Socket(u32),
    /// A socket by the 32-bit call `socketcall`, of any family.
    Socketcall,
    /// An io_uring.
    IoUring,
    /// A call that the filter does not refuse. The kernel has reported another call.
    Unknown,
}

impl RefusedCall {
    /// Determines the kind of a system call from its ABI, its number and its first argument.
    pub(super) fn identify(audit_arch: u32, number: u32, first_argument: u32) -> Self {
        let is_it = |abi: &&Abi| abi.audit_arch.is_none_or(|arch| arch == audit_arch);
        let Some(abi) = ABIS.iter().find(is_it) else { return Self::Unknown };
        let number = number & !abi.variant_bits;
        if IO_URING.contains(&number) {
            Self::IoUring
        } else if abi.socketcall == Some(number) {
            Self::Socketcall
        } else if [abi.socket, abi.socketpair].contains(&number) {
            Self::Socket(first_argument)
        } else {
            Self::Unknown
        }
    }

    /// Returns the error that the program gets.
    #[must_use]
    pub fn errno(self) -> libc::c_int {
        match self {
            Self::Socket(_) | Self::Socketcall => libc::EAFNOSUPPORT,
            Self::IoUring | Self::Unknown => libc::ENOSYS,
        }
    }
}

/// Builds the filter program, in the kernel's format.
pub(super) fn program(answers: RefusalSource) -> Vec<sock_filter> {
    let mut program = Vec::new();
    for abi in ABIS {
        let body = body(abi, answers);
        match abi.audit_arch {
            Some(arch) => {
                program.push(statement(LOAD, OFFSET_ARCH));
                program.push(jump(arch, 0, length(&body)));
            }
            None => debug_assert_eq!(
                ABIS.len(),
                1,
                "the filter has several ABIs, and one of them has no architecture number"
            ),
        }
        program.extend(body);
    }
    // A listener could not interpret the call of an unknown ABI.
    program.push(error(libc::ENOSYS));
    program
}

/// The system call numbers of one ABI.
#[derive(Clone, Copy, Debug)]
struct Abi {
    /// `AUDIT_ARCH_*`; `None` stands for any ABI.
    audit_arch: Option<u32>,
    /// The bits of the system call number that only distinguish a variant of the ABI.
    variant_bits: u32,
    socket: u32,
    socketpair: u32,
    socketcall: Option<u32>,
}

#[cfg(target_arch = "x86_64")]
const ABIS: &[Abi] = &[
    // Includes the x32 variant, which has the same numbers with one more bit.
    Abi {
        audit_arch: Some(0xc000_003e),
        variant_bits: 0x4000_0000,
        socket: 41,
        socketpair: 53,
        socketcall: None,
    },
    I386,
];

#[cfg(target_arch = "x86_64")]
const I386: Abi = Abi {
    audit_arch: Some(0x4000_0003),
    variant_bits: 0,
    socket: 359,
    socketpair: 360,
    socketcall: Some(102),
};

#[cfg(target_arch = "aarch64")]
const ABIS: &[Abi] = &[
    Abi {
        audit_arch: Some(0xc000_00b7),
        variant_bits: 0,
        socket: 198,
        socketpair: 199,
        socketcall: None,
    },
    // 32-bit ARM.
    Abi {
        audit_arch: Some(0x4000_0028),
        variant_bits: 0,
        socket: 281,
        socketpair: 288,
        socketcall: Some(102),
    },
];

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "system call numbers are small and positive"
)]
const ABIS: &[Abi] = &[Abi {
    audit_arch: None,
    variant_bits: 0,
    socket: libc::SYS_socket as u32,
    socketpair: libc::SYS_socketpair as u32,
    #[cfg(any(target_arch = "s390x", target_arch = "powerpc64"))]
    socketcall: Some(libc::SYS_socketcall as u32),
    #[cfg(not(any(target_arch = "s390x", target_arch = "powerpc64")))]
    socketcall: None,
}];

/// `io_uring_setup`, `io_uring_enter` and `io_uring_register`: their numbers are the same in every
/// ABI.
const IO_URING: [u32; 3] = [425, 426, 427];

const FAMILIES: [libc::c_int; 4] = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];

/// `SYS_SOCKET` and `SYS_SOCKETPAIR` of `socketcall`.
const SOCKETCALLS: [u32; 2] = [1, 8];

/// Builds the part of the filter for a call of this ABI. Every path ends in a result.
fn body(abi: &Abi, answers: RefusalSource) -> Vec<sock_filter> {
    let answer = |errno| match answers {
        RefusalSource::Kernel => error(errno),
        RefusalSource::Listener => statement(RETURN, libc::SECCOMP_RET_USER_NOTIF),
    };
    let mut body = vec![statement(LOAD, OFFSET_NUMBER)];
    if abi.variant_bits != 0 {
        body.push(statement(AND, !abi.variant_bits));
    }
    let mut families = vec![statement(LOAD, offset_of_argument(0))];
    for (index, family) in FAMILIES.iter().enumerate() {
        // Jumps over the remaining comparisons and the refusal, to the instruction that allows the
        // call.
        let to_pass = FAMILIES.len() - index;
        families.push(jump(family.cast_unsigned(), u8::try_from(to_pass).unwrap_or(0), 0));
    }
    families.extend([answer(libc::EAFNOSUPPORT), pass()]);
    let calls = [
        statement(LOAD, offset_of_argument(0)),
        jump(SOCKETCALLS[0], 1, 0),
        jump(SOCKETCALLS[1], 0, 1),
        answer(libc::EAFNOSUPPORT),
        pass(),
    ];
    let [setup, enter, register] = IO_URING;
    body.extend([jump(setup, 2, 0), jump(enter, 1, 0), jump(register, 0, 1), answer(libc::ENOSYS)]);
    if let Some(socketcall) = abi.socketcall {
        body.push(jump(socketcall, 0, length(&calls)));
        body.extend(calls);
    }
    body.push(jump(abi.socket, 1, 0));
    body.push(jump(abi.socketpair, 0, length(&families)));
    body.extend(families);
    body.push(pass());
    body
}

#[cfg(test)]
#[cfg(target_arch = "x86_64")]
mod tests {
    use super::*;
    use crate::seccomp;

    const NATIVE: u32 = 0xc000_003e;
    const X32: u32 = 0x4000_0000;
    const I386: u32 = 0x4000_0003;
    const PASS: u32 = libc::SECCOMP_RET_ALLOW;

    /// Returns the result for a program, which must be the same from the kernel and from a
    /// listener.
    fn verdict(arch: u32, number: u32, argument: u32) -> u32 {
        let verdict = run(RefusalSource::Kernel, arch, number, argument);
        match run(RefusalSource::Listener, arch, number, argument) {
            libc::SECCOMP_RET_USER_NOTIF => {
                let call = RefusedCall::identify(arch, number, argument);
                assert_ne!(call, RefusedCall::Unknown, "{arch:x} {number}");
                assert_eq!(refused(call.errno()), verdict, "{arch:x} {number} {argument}");
            }
            other => assert_eq!(other, verdict, "{arch:x} {number} {argument}"),
        }
        verdict
    }

    fn run(answers: RefusalSource, arch: u32, number: u32, argument: u32) -> u32 {
        seccomp::verdict(&program(answers), arch, number, [argument, 0, 0, 0, 0, 0])
    }

    fn refused(errno: libc::c_int) -> u32 {
        libc::SECCOMP_RET_ERRNO | errno.cast_unsigned()
    }

    #[test]
    fn only_four_families_pass_in_every_abi() {
        for (arch, socket, socketpair) in
            [(NATIVE, 41, 53), (NATIVE, X32 | 41, X32 | 53), (I386, 359, 360)]
        {
            for call in [socket, socketpair] {
                for family in 0..64 {
                    let passes = [1, 2, 10, 16].contains(&family);
                    let wanted = if passes { PASS } else { refused(libc::EAFNOSUPPORT) };
                    assert_eq!(verdict(arch, call, family), wanted, "{arch:x} {call} {family}");
                }
            }
        }
    }

    #[test]
    fn the_32_bit_way_round_makes_no_sockets() {
        for call in 1..=20 {
            let wanted = if [1, 8].contains(&call) { refused(libc::EAFNOSUPPORT) } else { PASS };
            assert_eq!(verdict(I386, 102, call), wanted, "socketcall {call}");
        }
        assert_eq!(verdict(NATIVE, 102, 1), PASS, "number 102 is getuid in the native ABI");
    }

    #[test]
    fn io_uring_is_absent_and_all_else_passes() {
        for number in 425..=427 {
            for (arch, number) in [(NATIVE, number), (NATIVE, X32 | number), (I386, number)] {
                assert_eq!(verdict(arch, number, 1), refused(libc::ENOSYS));
            }
        }
        for number in (0..500).filter(|number| ![41, 53, 425, 426, 427].contains(number)) {
            assert_eq!(verdict(NATIVE, number, 40), PASS, "{number}");
        }
        for number in (0..500).filter(|number| ![102, 359, 360, 425, 426, 427].contains(number)) {
            assert_eq!(verdict(I386, number, 40), PASS, "{number}");
        }
        assert_eq!(verdict(0xdead_beef, 0, 0), refused(libc::ENOSYS), "an unknown ABI");
    }

    #[test]
    fn a_listener_is_asked_about_every_refusal_of_a_known_abi() {
        let asked = |arch, number, argument| {
            let verdict = run(RefusalSource::Listener, arch, number, argument);
            assert_eq!(verdict, libc::SECCOMP_RET_USER_NOTIF, "{arch:x} {number} {argument}");
            RefusedCall::identify(arch, number, argument)
        };
        for (arch, socket, socketpair, io_uring) in
            [(NATIVE, 41, 53, 425), (NATIVE, X32 | 41, X32 | 53, X32 | 425), (I386, 359, 360, 425)]
        {
            assert_eq!(asked(arch, socket, 40), RefusedCall::Socket(40));
            assert_eq!(asked(arch, socketpair, 17), RefusedCall::Socket(17));
            for call in io_uring..io_uring + 3 {
                assert_eq!(asked(arch, call, 1), RefusedCall::IoUring);
            }
        }
        assert_eq!(asked(I386, 102, 1), RefusedCall::Socketcall);
        assert_eq!(RefusedCall::identify(0xdead_beef, 41, 40), RefusedCall::Unknown);
    }
}
