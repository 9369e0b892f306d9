//! The process inside a run's namespace: it makes the namespace, then sockets on request.
//!
//! It holds rights over the namespace that nobody else has, knows no policy, and ends with the
//! launcher.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use serde::{Deserialize, Serialize};
use tacit_sys::descriptor;
use tacit_sys::namespace::{self, Sockets};
use tacit_sys::netlink::route::Families;
use tacit_sys::transparent::{self, Kind, Wanted};

use super::enrol;

/// What the helper tells the launcher once it has set up, or why it could not.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Ready {
    /// Whether there is a user namespace to join.
    pub has_own_user: bool,
    /// Whether the kernel has IPv6.
    pub ipv6: bool,
    /// Why there is no namespace.
    pub error: Option<String>,
}

/// Requests to the helper are one byte: which socket.
pub const WANT_UDP4: u8 = b'4';
/// The same for IPv6.
pub const WANT_UDP6: u8 = b'6';

/// Runs the helper to its end; standard input is the line to the launcher.
///
/// # Errors
/// The launcher is gone, or a socket cannot be sent.
pub fn run(parent: u32, v4: bool, v6: bool) -> io::Result<()> {
    let launcher = UnixStream::from(rustix::io::fcntl_dupfd_cloexec(io::stdin(), 3)?);
    let made = namespace::create(parent, Families { v4, v6 })
        .and_then(|namespace| Ok((namespace, namespace::sockets()?)));
    let (namespace, sockets) = match made {
        Ok(made) => made,
        Err(error) => {
            let error = Some(error.to_string());
            let ready = Ready { has_own_user: false, ipv6: false, error };
            return enrol::send(&launcher, &ready, &[]);
        }
    };
    let (requests, agent_end) = UnixStream::pair()?;
    let ready =
        Ready { has_own_user: namespace.has_own_user, ipv6: sockets.tcp6.is_some(), error: None };
    hand_over(&launcher, &ready, sockets, &agent_end)?;
    drop(agent_end);
    (&launcher).write_all(b".")?;
    serve(requests)
}

fn hand_over(
    launcher: &UnixStream,
    ready: &Ready,
    sockets: Sockets,
    agent_end: &UnixStream,
) -> io::Result<()> {
    let Sockets { tcp4, tcp6, udp4, udp6, netfilter, network, user, .. } = sockets;
    let netfilter = netfilter.into_descriptor();
    let all = [Some(&network), Some(&user), Some(&tcp4), tcp6.as_ref(), Some(&udp4), udp6.as_ref()];
    let mut all: Vec<_> = all.into_iter().flatten().map(AsFd::as_fd).collect();
    all.extend([netfilter.as_fd(), agent_end.as_fd()]);
    enrol::send(launcher, ready, &all)
}

/// Makes sockets until nobody asks any more.
fn serve(mut requests: UnixStream) -> io::Result<()> {
    let mut request = [0];
    while requests.read(&mut request)? > 0 {
        let ipv6 = request == [WANT_UDP6];
        let wanted = Wanted { kind: Kind::Udp, ipv6, transparent: true, marked: true };
        match transparent::make(wanted) {
            Ok(socket) => {
                descriptor::send(&requests, b"+", &[socket.as_fd()])?;
            }
            Err(_) => requests.write_all(b"-")?,
        }
    }
    Ok(())
}
