//! Builds the seccomp filter for a program under `tacit run`. The filter allows only sockets whose
//! traffic stays in the program's network namespace.
//!
//! ```text
//! socket, socketpair    UNIX, INET, INET6, NETLINK: allowed; other families: EAFNOSUPPORT
//! socketcall (32-bit)   `socket` and `socketpair`: EAFNOSUPPORT for every address family
//! io_uring_*            ENOSYS, also for inherited rings, because a ring can create sockets
//!                       without a system call
//! bind, connect,        allowed, or another process decides ([`ConnectCalls`])
//! listen, send with
//! MSG_FASTOPEN,
//! some setsockopt
//! all other calls       allowed
//! ```
//!
//! For a refused call, the program gets the error in this table. Either the kernel returns the
//! error itself, or the kernel notifies another process ([`super::notify`]). That process returns
//! the error, and reports the refused call.
//!
//! The filter knows the call numbers of all ABIs of the kernel, and refuses calls of an unknown
//! ABI.
//!
//! Some calls of `setsockopt` may change the destination or the route of a socket's packets.
//! [`route_options`] selects these calls.
//!
//! Limit: the filter cannot read the arguments of `socketcall`, because the arguments are in
//! memory. So a 32-bit program must create sockets by the separate call `socket`; `socketcall`
//! returns an error. If another process decides about `connect`, the kernel also notifies this
//! process about each `socketcall` that connects, listens, binds, sends or sets an option.

use libc::sock_filter;

use super::route_options;
use crate::seccomp::{
    AND, LOAD, OFFSET_ARCH, OFFSET_NUMBER, RETURN, error, jump, jump_if_any, length,
    offset_of_argument, pass, statement,
};

/// What answers a refused call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RefusalSource {
    /// The kernel.
    Kernel,
    /// A process that listens to the notifications of the filter.
    Listener,
}

/// How the filter handles the calls that open or accept a connection, give a socket an address, or
/// may change the destination or the route of its packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectCalls {
    /// It allows them.
    Allowed,
    /// The listener of the filter decides about each.
    Notified,
}

/// A call about which the listener of a filter was notified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotifiedCall {
    /// A call that the filter refuses.
    Refused(RefusedCall),
    /// `connect`, with the descriptor, and the address of the socket address with its length.
    Connect {
        /// The number of the descriptor.
        descriptor: i32,
        /// Where the socket address is in the memory of the program.
        address: u64,
        /// Its length, in bytes.
        length: i32,
    },
    /// `listen`, with the number of the descriptor.
    Listen(i32),
    /// `bind`, with the number of the descriptor.
    Bind(i32),
    /// A send with `MSG_FASTOPEN`, which connects, with the number of the descriptor.
    FastOpen(i32),
    /// `setsockopt` of an option that may change where the socket sends, with the number of the
    /// descriptor.
    SetRoute(i32),
    /// One of these calls in its 32-bit form, with its arguments in memory.
    Socketcall(Socketcall),
}

/// A call by `socketcall`, whose arguments are in the memory of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Socketcall {
    number: u32,
    /// Where the arguments are.
    pub arguments: u64,
    /// The length of one argument, in bytes.
    word_bytes: usize,
}

impl Socketcall {
    /// The length of the arguments of each of these calls, in bytes.
    #[must_use]
    pub fn arguments_bytes(&self) -> usize {
        let words = match self.number {
            SYS_LISTEN => 2,
            SYS_BIND | SYS_CONNECT | SYS_SENDMSG => 3,
            SYS_SENDMMSG => 4,
            SYS_SETSOCKOPT => 5,
            _ => 6,
        };
        words * self.word_bytes
    }

    /// Determines the call from its arguments; `None` if they are cut off, or if it is a send that
    /// does not connect, or sets an option that changes no route.
    #[must_use]
    #[allow(
        clippy::cast_possible_truncation,
        reason = "the kernel reads only 32 bits of descriptors, lengths, flags and options"
    )]
    pub fn identify(&self, arguments: &[u8]) -> Option<NotifiedCall> {
        let word = |index: usize| {
            let at = index * self.word_bytes;
            let bytes = arguments.get(at..at + self.word_bytes)?;
            match *bytes {
                [a, b, c, d] => Some(u64::from(u32::from_ne_bytes([a, b, c, d]))),
                _ => Some(u64::from_ne_bytes(bytes.try_into().ok()?)),
            }
        };
        let descriptor = word(0)? as i32;
        let fast_open = |flags: usize| {
            let connects = word(flags)? as libc::c_int & libc::MSG_FASTOPEN != 0;
            connects.then_some(NotifiedCall::FastOpen(descriptor))
        };
        match self.number {
            SYS_BIND => Some(NotifiedCall::Bind(descriptor)),
            SYS_CONNECT => {
                let length = word(2)? as i32;
                Some(NotifiedCall::Connect { descriptor, address: word(1)?, length })
            }
            SYS_LISTEN => Some(NotifiedCall::Listen(descriptor)),
            SYS_SENDTO | SYS_SENDMMSG => fast_open(3),
            SYS_SENDMSG => fast_open(2),
            SYS_SETSOCKOPT => route_options::is_notified(word(1)? as i32, word(2)? as i32)
                .then_some(NotifiedCall::SetRoute(descriptor)),
            _ => None,
        }
    }
}

impl NotifiedCall {
    /// Determines the kind of a system call from its ABI, its number and its arguments.
    #[allow(
        clippy::cast_possible_truncation,
        reason = "the kernel reads only 32 bits of descriptors, lengths, flags and options"
    )]
    pub(super) fn identify(audit_arch: u32, number: u32, arguments: &[u64; 6]) -> Self {
        let refused = || RefusedCall::identify(audit_arch, number, arguments[0] as u32);
        let Some(abi) = abi(audit_arch) else { return Self::Refused(refused()) };
        let number = number & !abi.variant_bits;
        let descriptor = arguments[0] as i32;
        if number == abi.connect {
            let length = arguments[2] as i32;
            Self::Connect { descriptor, address: arguments[1], length }
        } else if number == abi.listen {
            Self::Listen(descriptor)
        } else if number == abi.bind {
            Self::Bind(descriptor)
        } else if abi.socketcall == Some(number)
            && NOTIFIED_SOCKETCALLS.contains(&(arguments[0] as u32))
        {
            let is_64_bit = audit_arch & AUDIT_ARCH_64BIT != 0;
            let word_bytes = if is_64_bit { 8 } else { 4 };
            let number = arguments[0] as u32;
            Self::Socketcall(Socketcall { number, arguments: arguments[1], word_bytes })
        } else if abi.sends.iter().any(|send| send.number == number) {
            Self::FastOpen(descriptor)
        } else if abi.setsockopts.contains(&number) {
            Self::SetRoute(descriptor)
        } else {
            Self::Refused(refused())
        }
    }
}

fn abi(audit_arch: u32) -> Option<&'static Abi> {
    ABIS.iter().find(|abi| abi.audit_arch.is_none_or(|arch| arch == audit_arch))
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
        let Some(abi) = abi(audit_arch) else { return Self::Unknown };
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
pub(super) fn program(answers: RefusalSource, connects: ConnectCalls) -> Vec<sock_filter> {
    let mut program = Vec::new();
    for abi in ABIS {
        let body = body(abi, answers, connects);
        match abi.audit_arch {
            Some(arch) => {
                program.push(statement(LOAD, OFFSET_ARCH));
                program.push(jump(arch, 0, length(&body)));
            }
            None => debug_assert_eq!(
                ABIS.len(),
                1,
                "a filter for several ABIs needs the `audit_arch` of each ABI"
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
    bind: u32,
    connect: u32,
    listen: u32,
    /// Variants of the ABI have different numbers.
    setsockopts: &'static [u32],
    sends: &'static [SendCall],
}

/// A call that sends, and connects if its flags contain `MSG_FASTOPEN`.
#[derive(Clone, Copy, Debug)]
struct SendCall {
    number: u32,
    /// The index of the argument with the flags.
    flags: u32,
}

const fn send(number: u32, flags: u32) -> SendCall {
    SendCall { number, flags }
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
        bind: 49,
        connect: 42,
        listen: 50,
        // The second is that of x32.
        setsockopts: &[54, 541],
        // sendto, sendmsg and sendmmsg; the last two are those of x32.
        sends: &[send(44, 3), send(46, 2), send(307, 3), send(518, 2), send(538, 3)],
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
    bind: 361,
    connect: 362,
    listen: 363,
    setsockopts: &[366],
    sends: &[send(369, 3), send(370, 2), send(345, 3)],
};

#[cfg(target_arch = "aarch64")]
const ABIS: &[Abi] = &[
    Abi {
        audit_arch: Some(0xc000_00b7),
        variant_bits: 0,
        socket: 198,
        socketpair: 199,
        socketcall: None,
        bind: 200,
        connect: 203,
        listen: 201,
        setsockopts: &[208],
        sends: &[send(206, 3), send(211, 2), send(269, 3)],
    },
    // 32-bit ARM.
    Abi {
        audit_arch: Some(0x4000_0028),
        variant_bits: 0,
        socket: 281,
        socketpair: 288,
        socketcall: Some(102),
        bind: 282,
        connect: 283,
        listen: 284,
        setsockopts: &[294],
        sends: &[send(290, 3), send(296, 2), send(374, 3)],
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
    bind: libc::SYS_bind as u32,
    connect: libc::SYS_connect as u32,
    listen: libc::SYS_listen as u32,
    setsockopts: &[libc::SYS_setsockopt as u32],
    sends: &[
        send(libc::SYS_sendto as u32, 3),
        send(libc::SYS_sendmsg as u32, 2),
        send(libc::SYS_sendmmsg as u32, 3),
    ],
}];

/// `io_uring_setup`, `io_uring_enter` and `io_uring_register`: their numbers are the same in every
/// ABI.
const IO_URING: [u32; 3] = [425, 426, 427];

const FAMILIES: [libc::c_int; 4] = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];

/// `SYS_SOCKET` and `SYS_SOCKETPAIR` of `socketcall`.
const SOCKETCALLS: [u32; 2] = [1, 8];
/// The calls of `socketcall` that connect, listen, bind, may connect or may set a route, from
/// `<linux/net.h>`.
const SYS_BIND: u32 = 2;
const SYS_CONNECT: u32 = 3;
const SYS_LISTEN: u32 = 4;
const SYS_SENDTO: u32 = 11;
const SYS_SETSOCKOPT: u32 = 14;
const SYS_SENDMSG: u32 = 16;
const SYS_SENDMMSG: u32 = 20;
const NOTIFIED_SOCKETCALLS: [u32; 7] =
    [SYS_BIND, SYS_CONNECT, SYS_LISTEN, SYS_SENDTO, SYS_SETSOCKOPT, SYS_SENDMSG, SYS_SENDMMSG];

/// `__AUDIT_ARCH_64BIT` of `<linux/audit.h>`.
const AUDIT_ARCH_64BIT: u32 = 0x8000_0000;

/// Builds the part of the filter for a call of this ABI. Every path ends in a result.
fn body(abi: &Abi, answers: RefusalSource, connects: ConnectCalls) -> Vec<sock_filter> {
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
    let mut calls = vec![
        statement(LOAD, offset_of_argument(0)),
        jump(SOCKETCALLS[0], 1, 0),
        jump(SOCKETCALLS[1], 0, 1),
        answer(libc::EAFNOSUPPORT),
    ];
    if connects == ConnectCalls::Notified {
        for call in NOTIFIED_SOCKETCALLS {
            let notify = statement(RETURN, libc::SECCOMP_RET_USER_NOTIF);
            calls.extend([jump(call, 0, 1), notify]);
        }
    }
    calls.push(pass());
    let [setup, enter, register] = IO_URING;
    body.extend([jump(setup, 2, 0), jump(enter, 1, 0), jump(register, 0, 1), answer(libc::ENOSYS)]);
    if connects == ConnectCalls::Notified {
        body.extend(notified(abi));
    }
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

/// The part that notifies the listener about calls that connect, listen, bind or set a route. The
/// number is loaded before, and after the part if none of them matches.
fn notified(abi: &Abi) -> Vec<sock_filter> {
    let notify = || statement(RETURN, libc::SECCOMP_RET_USER_NOTIF);
    let mut part =
        vec![jump(abi.connect, 2, 0), jump(abi.listen, 1, 0), jump(abi.bind, 0, 1), notify()];
    for send in abi.sends {
        part.extend([
            jump(send.number, 0, 4),
            statement(LOAD, offset_of_argument(send.flags)),
            jump_if_any(libc::MSG_FASTOPEN.cast_unsigned(), 0, 1),
            notify(),
            pass(),
        ]);
    }
    let options = route_options::part();
    for (index, number) in abi.setsockopts.iter().enumerate() {
        // Each jumps over the remaining comparisons; the last one also over the part, if the call
        // is another one.
        let others = abi.setsockopts.len() - 1 - index;
        let otherwise = if others == 0 { length(&options) } else { 0 };
        part.push(jump(*number, u8::try_from(others).unwrap_or(0), otherwise));
    }
    part.extend(options);
    part
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
        let program = program(answers, ConnectCalls::Allowed);
        seccomp::verdict(&program, arch, number, [argument, 0, 0, 0, 0, 0])
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
        assert_eq!(verdict(NATIVE, 102, 1), PASS, "system call 102 is getuid in the native ABI");
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
        assert_eq!(
            verdict(0xdead_beef, 0, 0),
            refused(libc::ENOSYS),
            "the filter must refuse calls of an unknown ABI"
        );
    }

    #[test]
    fn a_listener_is_asked_about_every_refusal_of_a_known_abi() {
        let requested = |arch, number, argument| {
            let verdict = run(RefusalSource::Listener, arch, number, argument);
            assert_eq!(verdict, libc::SECCOMP_RET_USER_NOTIF, "{arch:x} {number} {argument}");
            RefusedCall::identify(arch, number, argument)
        };
        for (arch, socket, socketpair, io_uring) in
            [(NATIVE, 41, 53, 425), (NATIVE, X32 | 41, X32 | 53, X32 | 425), (I386, 359, 360, 425)]
        {
            assert_eq!(requested(arch, socket, 40), RefusedCall::Socket(40));
            assert_eq!(requested(arch, socketpair, 17), RefusedCall::Socket(17));
            for call in io_uring..io_uring + 3 {
                assert_eq!(requested(arch, call, 1), RefusedCall::IoUring);
            }
        }
        assert_eq!(requested(I386, 102, 1), RefusedCall::Socketcall);
        assert_eq!(RefusedCall::identify(0xdead_beef, 41, 40), RefusedCall::Unknown);
    }

    #[test]
    fn a_listener_decides_about_every_call_that_connects_or_listens() {
        const FAST: u32 = 0x2000_0000;
        let program = program(RefusalSource::Listener, ConnectCalls::Notified);
        let verdict = |arch, number, arguments| seccomp::verdict(&program, arch, number, arguments);
        let requested = libc::SECCOMP_RET_USER_NOTIF;
        let plain = [40, 0, 0, 0, 0, 0];
        for (arch, [connect, listen, bind], sends) in [
            (NATIVE, [42, 50, 49], [(44, 3), (46, 2), (307, 3)]),
            (
                NATIVE,
                [X32 | 42, X32 | 50, X32 | 49],
                [(X32 | 44, 3), (X32 | 518, 2), (X32 | 538, 3)],
            ),
            (I386, [362, 363, 361], [(369, 3), (370, 2), (345, 3)]),
        ] {
            for number in [connect, listen, bind] {
                assert_eq!(verdict(arch, number, plain), requested, "{arch:x} {number}");
            }
            let arguments = [7, 8, 9, 0, 0, 0];
            let connects = NotifiedCall::Connect { descriptor: 7, address: 8, length: 9 };
            assert_eq!(NotifiedCall::identify(arch, connect, &arguments), connects);
            let listens = NotifiedCall::Listen(7);
            assert_eq!(NotifiedCall::identify(arch, listen, &arguments), listens);
            let binds = NotifiedCall::Bind(7);
            assert_eq!(NotifiedCall::identify(arch, bind, &arguments), binds);
            for (number, flags) in sends {
                let mut arguments = [0; 6];
                assert_eq!(verdict(arch, number, arguments), PASS, "{arch:x} {number}");
                arguments[flags] = FAST | 0x4000;
                assert_eq!(verdict(arch, number, arguments), requested, "{arch:x} {number}");
                let call = NotifiedCall::identify(arch, number, &arguments.map(u64::from));
                assert_eq!(call, NotifiedCall::FastOpen(0));
            }
        }
        for call in 1..=20 {
            let wanted = match call {
                1..=4 | 8 | 11 | 14 | 16 | 20 => requested,
                _ => PASS,
            };
            assert_eq!(verdict(I386, 102, [call, 0, 0, 0, 0, 0]), wanted, "socketcall {call}");
        }
        for number in [41, 53] {
            assert_eq!(verdict(NATIVE, number, plain), requested);
            assert_eq!(verdict(NATIVE, number, [2, 0, 0, 0, 0, 0]), PASS);
        }
        for number in [0, 1, 3, 43, 45, 47, 55, 288] {
            assert_eq!(verdict(NATIVE, number, [FAST; 6]), PASS, "{number}");
        }
        assert_eq!(verdict(0xdead_beef, 42, plain), refused(libc::ENOSYS));
    }

    #[test]
    fn a_listener_decides_about_every_option_that_sets_a_route() {
        let program = program(RefusalSource::Listener, ConnectCalls::Notified);
        for (arch, number) in [(NATIVE, 54), (NATIVE, X32 | 54), (NATIVE, X32 | 541), (I386, 366)] {
            for (level, name, wanted) in [
                (libc::IPPROTO_IP, libc::IP_OPTIONS, libc::SECCOMP_RET_USER_NOTIF),
                (libc::IPPROTO_IPV6, libc::IPV6_RTHDR, libc::SECCOMP_RET_USER_NOTIF),
                (libc::SOL_SOCKET, libc::SO_BINDTODEVICE, libc::SECCOMP_RET_USER_NOTIF),
                (libc::SOL_SOCKET, libc::SO_KEEPALIVE, PASS),
                (libc::IPPROTO_IP, libc::IP_TOS, PASS),
                (libc::IPPROTO_UDP, libc::UDP_SEGMENT, PASS),
            ] {
                let arguments = [7, level.cast_unsigned(), name.cast_unsigned(), 0, 0, 0];
                let verdict = seccomp::verdict(&program, arch, number, arguments);
                assert_eq!(verdict, wanted, "{arch:x} {number} {level} {name}");
                let call = NotifiedCall::identify(arch, number, &arguments.map(u64::from));
                assert_eq!(call, NotifiedCall::SetRoute(7));
            }
        }
        let allowed = super::program(RefusalSource::Listener, ConnectCalls::Allowed);
        assert_eq!(seccomp::verdict(&allowed, NATIVE, 54, [7, 0, 4, 0, 0, 0]), PASS);
    }

    #[test]
    fn the_arguments_of_a_32_bit_call_are_read_from_memory() {
        let call = |number: u32, words: &[u32]| {
            let arguments = [number.into(), 0x1000, 0, 0, 0, 0];
            let NotifiedCall::Socketcall(call) = NotifiedCall::identify(I386, 102, &arguments)
            else {
                return Some(NotifiedCall::identify(I386, 102, &arguments));
            };
            assert_eq!(call.arguments, 0x1000);
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
            if bytes.len() < call.arguments_bytes() {
                assert_eq!(
                    call.identify(&bytes),
                    None,
                    "`identify` accepts `socketcall` {number} with truncated arguments"
                );
            }
            call.identify(&bytes)
        };
        let connects = NotifiedCall::Connect { descriptor: 7, address: 8, length: 9 };
        assert_eq!(call(SYS_CONNECT, &[7, 8, 9]), Some(connects));
        assert_eq!(call(SYS_CONNECT, &[7, 8]), None);
        assert_eq!(call(SYS_BIND, &[7, 8, 9]), Some(NotifiedCall::Bind(7)));
        assert_eq!(call(SYS_LISTEN, &[7, 128]), Some(NotifiedCall::Listen(7)));
        let flags = libc::MSG_FASTOPEN.cast_unsigned();
        assert_eq!(call(SYS_SENDTO, &[7, 8, 9, flags, 0, 0]), Some(NotifiedCall::FastOpen(7)));
        assert_eq!(call(SYS_SENDTO, &[7, 8, 9, 0x4000, 0, 0]), None);
        assert_eq!(call(SYS_SENDMSG, &[7, 8, flags]), Some(NotifiedCall::FastOpen(7)));
        assert_eq!(call(SYS_SENDMMSG, &[7, 8, 9, flags]), Some(NotifiedCall::FastOpen(7)));
        let sets = Some(NotifiedCall::SetRoute(7));
        assert_eq!(call(SYS_SETSOCKOPT, &[7, 0, 4, 8, 8]), sets);
        assert_eq!(call(SYS_SETSOCKOPT, &[7, 41, 57, 8, 8]), sets);
        assert_eq!(call(SYS_SETSOCKOPT, &[7, 0, 1, 8, 4]), None);
        assert_eq!(call(SYS_SETSOCKOPT, &[7, 0]), None);
        let refused = NotifiedCall::Refused(RefusedCall::Socketcall);
        assert_eq!(call(1, &[2, 1, 0]), Some(refused));
    }
}
