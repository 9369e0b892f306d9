//! Defines the kinds of sockets that programs under `tacit run` must not create. Also defines the
//! socket options that these programs must not set. Each kind of socket or option has a name for
//! log lines and for `tacit show refused`.

use serde::{Deserialize, Serialize};

/// The number of address families that are counted separately; Linux has 46. Programs may pass any
/// number. All numbers from this one on count as one family, so that the table is limited.
const FAMILIES_MAX: u32 = 64;

/// The address families of Linux, by number.
const FAMILIES: [&str; 46] = [
    "AF_UNSPEC",
    "AF_UNIX",
    "AF_INET",
    "AF_AX25",
    "AF_IPX",
    "AF_APPLETALK",
    "AF_NETROM",
    "AF_BRIDGE",
    "AF_ATMPVC",
    "AF_X25",
    "AF_INET6",
    "AF_ROSE",
    "AF_DECnet",
    "AF_NETBEUI",
    "AF_SECURITY",
    "AF_KEY",
    "AF_NETLINK",
    "AF_PACKET",
    "AF_ASH",
    "AF_ECONET",
    "AF_ATMSVC",
    "AF_RDS",
    "AF_SNA",
    "AF_IRDA",
    "AF_PPPOX",
    "AF_WANPIPE",
    "AF_LLC",
    "AF_IB",
    "AF_MPLS",
    "AF_CAN",
    "AF_TIPC",
    "AF_BLUETOOTH",
    "AF_IUCV",
    "AF_RXRPC",
    "AF_ISDN",
    "AF_PHONET",
    "AF_IEEE802154",
    "AF_CAIF",
    "AF_ALG",
    "AF_NFC",
    "AF_VSOCK",
    "AF_KCM",
    "AF_QIPCRTR",
    "AF_SMC",
    "AF_XDP",
    "AF_MCTP",
];

/// A socket type or option that a program requested and runs do not support.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RefusedSocketKind {
    /// A socket of a family, by its number in `sys/socket.h`.
    Family(u32),
    /// A socket by the 32-bit `socketcall`, whatever its family.
    Socketcall,
    /// An io_uring.
    IoUring,
    /// An option of a handed socket that may change where it sends.
    RouteOption,
}

impl RefusedSocketKind {
    /// The type of an address family.
    #[must_use]
    pub fn of_family(number: u32) -> Self {
        Self::Family(number.min(FAMILIES_MAX))
    }

    /// Returns the name in displays and in the log.
    #[must_use]
    pub fn name(self) -> String {
        match self {
            Self::Family(FAMILIES_MAX..) => {
                format!("socket address family {FAMILIES_MAX} or higher")
            }
            Self::Family(number) => {
                let name = usize::try_from(number).ok().and_then(|at| FAMILIES.get(at));
                name.map_or_else(|| format!("family {number}"), |name| (*name).to_owned())
            }
            Self::Socketcall => "socketcall".to_owned(),
            Self::IoUring => "io_uring".to_owned(),
            Self::RouteOption => "setsockopt".to_owned(),
        }
    }

    /// Returns what would allow the socket.
    #[must_use]
    pub fn next(self) -> String {
        match self {
            Self::RouteOption => {
                "set path = \"relay\" in the rule: the program then has a socket in the network \
                 namespace of the run, and may set this option on the socket"
                    .to_owned()
            }
            Self::Family(_) | Self::Socketcall | Self::IoUring => {
                "no rule can allow this type of socket in a run".to_owned()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_of_sockets_are_shown_by_their_names_and_are_bounded() {
        let name = |number| RefusedSocketKind::of_family(number).name();
        assert_eq!(name(40), "AF_VSOCK");
        assert_eq!(name(17), "AF_PACKET");
        assert_eq!(name(38), "AF_ALG");
        assert_eq!(name(31), "AF_BLUETOOTH");
        assert_eq!(name(45), "AF_MCTP");
        assert_eq!(name(46), "family 46");
        assert_eq!(name(64), "socket address family 64 or higher");
        assert_eq!(RefusedSocketKind::of_family(u32::MAX), RefusedSocketKind::of_family(64));
        assert_eq!(RefusedSocketKind::IoUring.name(), "io_uring");
        assert_eq!(RefusedSocketKind::Socketcall.name(), "socketcall");
        assert_eq!(RefusedSocketKind::RouteOption.name(), "setsockopt");
    }
}
