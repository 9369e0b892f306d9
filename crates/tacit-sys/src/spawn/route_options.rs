//! Selects the calls of `setsockopt` that may change the destination or the route of a connected
//! socket's packets. The seccomp filter of a program notifies another process about these calls,
//! and the other process decides whether to permit a call.
//!
//! ```text
//! SOL_SOCKET, IPPROTO_TCP    some options
//! IPPROTO_IP, IPPROTO_IPV6   all options except harmless ones; unknown options are selected
//! all other levels           none
//! ```
//!
//! `IP_OPTIONS` and `IPV6_RTHDR` replace the destination address of packets. Other selected options
//! choose an interface or a routing table, allow any source address, or make the kernel send IGMP
//! or MLD.
//!
//! Limit: this module treats `IP_TOS` and `IPV6_TCLASS` as harmless, because many programs set
//! these two options on open connections. The two options never change the destination address.
//! They can change the route, if a routing rule selects packets by TOS.

use libc::{c_int, sock_filter};

use crate::seccomp::{LOAD, RETURN, jump, length, offset_of_argument, pass, statement};

/// A level of `setsockopt`, with a list of options at this level.
struct Level {
    number: c_int,
    names: &'static [c_int],
    meaning: Names,
}

/// Which options of a level the list contains.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Names {
    /// The selected options: another process decides about them.
    Notified,
    /// The harmless options. All other options of the level are selected.
    Harmless,
}

const LEVELS: [Level; 4] = [
    Level { number: libc::SOL_SOCKET, names: OF_SOCKETS, meaning: Names::Notified },
    Level { number: libc::IPPROTO_TCP, names: OF_TCP, meaning: Names::Notified },
    Level { number: libc::IPPROTO_IP, names: OF_IPV4, meaning: Names::Harmless },
    Level { number: libc::IPPROTO_IPV6, names: OF_IPV6, meaning: Names::Harmless },
];

// Option names from the kernel's headers. The crate `libc` lacks these names on some targets.
const SO_BINDTOIFINDEX: c_int = 62;
const IP_RECVERR_RFC4884: c_int = 26;
const IP_LOCAL_PORT_RANGE: c_int = 51;
const IPV6_RECVERR_RFC4884: c_int = 31;
const IPV6_USE_MIN_MTU: c_int = 63;

const OF_SOCKETS: &[c_int] =
    &[libc::SO_BINDTODEVICE, SO_BINDTOIFINDEX, libc::SO_MARK, libc::SO_DONTROUTE];

const OF_TCP: &[c_int] = &[libc::TCP_REPAIR];

const OF_IPV4: &[c_int] = &[
    libc::IP_TOS,
    libc::IP_TTL,
    libc::IP_MTU_DISCOVER,
    libc::IP_RECVERR,
    libc::IP_BIND_ADDRESS_NO_PORT,
    libc::IP_PKTINFO,
    libc::IP_RECVOPTS,
    libc::IP_RETOPTS,
    libc::IP_RECVTTL,
    libc::IP_RECVTOS,
    libc::IP_RECVORIGDSTADDR,
    libc::IP_RECVFRAGSIZE,
    IP_RECVERR_RFC4884,
    libc::IP_FREEBIND,
    libc::IP_PASSSEC,
    libc::IP_MINTTL,
    libc::IP_CHECKSUM,
    libc::IP_MULTICAST_TTL,
    libc::IP_MULTICAST_LOOP,
    libc::IP_MULTICAST_ALL,
    IP_LOCAL_PORT_RANGE,
];

const OF_IPV6: &[c_int] = &[
    libc::IPV6_V6ONLY,
    libc::IPV6_TCLASS,
    libc::IPV6_UNICAST_HOPS,
    libc::IPV6_MTU_DISCOVER,
    libc::IPV6_RECVERR,
    libc::IPV6_RECVPKTINFO,
    libc::IPV6_RECVHOPLIMIT,
    libc::IPV6_RECVTCLASS,
    libc::IPV6_RECVHOPOPTS,
    libc::IPV6_RECVRTHDR,
    libc::IPV6_RECVDSTOPTS,
    libc::IPV6_RECVPATHMTU,
    libc::IPV6_RECVORIGDSTADDR,
    libc::IPV6_RECVFRAGSIZE,
    IPV6_RECVERR_RFC4884,
    // With the names of RFC 2292, options of this level also only request messages.
    libc::IPV6_2292PKTINFO,
    libc::IPV6_2292HOPOPTS,
    libc::IPV6_2292DSTOPTS,
    libc::IPV6_2292RTHDR,
    libc::IPV6_2292HOPLIMIT,
    libc::IPV6_ADDRFORM,
    libc::IPV6_FLOWINFO,
    libc::IPV6_FLOWINFO_SEND,
    libc::IPV6_AUTOFLOWLABEL,
    libc::IPV6_ADDR_PREFERENCES,
    libc::IPV6_MINHOPCOUNT,
    libc::IPV6_MTU,
    libc::IPV6_DONTFRAG,
    IPV6_USE_MIN_MTU,
    libc::IPV6_FREEBIND,
    libc::IPV6_MULTICAST_HOPS,
    libc::IPV6_MULTICAST_LOOP,
    libc::IPV6_MULTICAST_ALL,
];

/// Returns whether the filter selects this option, so that another process decides about the call.
pub(super) fn is_notified(level: c_int, name: c_int) -> bool {
    let known = LEVELS.iter().find(|known| known.number == level);
    known.is_some_and(|known| known.names.contains(&name) == (known.meaning == Names::Notified))
}

/// Builds the part of the seccomp filter that checks a call of `setsockopt`. Every branch of this
/// part returns a result.
pub(super) fn part() -> Vec<sock_filter> {
    let notify = || statement(RETURN, libc::SECCOMP_RET_USER_NOTIF);
    let mut part = vec![statement(LOAD, offset_of_argument(1))];
    for level in LEVELS {
        let mut names = vec![statement(LOAD, offset_of_argument(2))];
        for (index, name) in level.names.iter().enumerate() {
            // Jumps over the remaining comparisons and the result of the other options.
            let to_result = level.names.len() - index;
            names.push(jump(name.cast_unsigned(), u8::try_from(to_result).unwrap_or(0), 0));
        }
        names.extend(match level.meaning {
            Names::Notified => [pass(), notify()],
            Names::Harmless => [notify(), pass()],
        });
        part.push(jump(level.number.cast_unsigned(), 0, length(&names)));
        part.extend(names);
    }
    part.push(pass());
    part
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seccomp;

    #[test]
    fn the_filter_and_the_listener_select_the_same_options() {
        let part = part();
        let mut notified = Vec::new();
        for level in [0_i32, 1, 2, 6, 17, 41, 58, 255, 270, 282, 284, -1] {
            for name in (-1..600).chain([1 << 30, c_int::MIN]) {
                let arguments = [7, level.cast_unsigned(), name.cast_unsigned(), 0, 0, 0];
                let verdict = seccomp::verdict(&part, 0, 0, arguments);
                let is_notified = is_notified(level, name);
                let wanted = match is_notified {
                    true => libc::SECCOMP_RET_USER_NOTIF,
                    false => libc::SECCOMP_RET_ALLOW,
                };
                assert_eq!(verdict, wanted, "{level} {name}");
                notified.extend(is_notified.then_some((level, name)));
            }
        }
        let has = |level, name| notified.contains(&(level, name));
        for name in [libc::IP_OPTIONS, libc::IP_TRANSPARENT, libc::IP_UNICAST_IF, 35, 42, 599] {
            assert!(has(libc::IPPROTO_IP, name), "{name}");
        }
        let of_ipv6 = [
            libc::IPV6_RTHDR,
            libc::IPV6_2292PKTOPTIONS,
            libc::IPV6_DSTOPTS,
            libc::IPV6_RTHDRDSTOPTS,
            libc::IPV6_HOPOPTS,
            libc::IPV6_PKTINFO,
            libc::IPV6_FLOWLABEL_MGR,
            libc::IPV6_UNICAST_IF,
            libc::IPV6_TRANSPARENT,
        ];
        assert!(of_ipv6.into_iter().all(|name| has(libc::IPPROTO_IPV6, name)));
        assert!(!has(libc::IPPROTO_IP, libc::IP_TOS) && !has(libc::IPPROTO_IPV6, 67));
        let of_others: Vec<_> =
            notified.iter().filter(|(level, _)| ![0, 41].contains(level)).copied().collect();
        assert_eq!(of_others, [(1, 5), (1, 25), (1, 36), (1, 62), (6, 19)]);
    }
}
