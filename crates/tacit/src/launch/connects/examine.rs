//! Examines the socket and the address of a program's `connect` call, without changing anything.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;

use rustix::io::FdFlags;
use tacit_sys::IpVersion;
use tacit_sys::handed::{self, Caller, Destination, References, SocketOptions};
use tacit_sys::socket;
use tacit_sys::spawn::{Call, NotifiedCall, NotifyReply};

use super::{ConnectHandler, ProgramSocket, Templates, errno};
use crate::run::protocol::RelayReason;

/// The longest address that the kernel accepts, `sockaddr_storage`.
const ADDRESS_BYTES_MAX: usize = 128;

/// The longest arguments of a call that has them in memory: six words of eight bytes.
const ARGUMENTS_BYTES_MAX: usize = 48;

/// The network to which a TCP socket of a program belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// The network namespace of the run.
    Inside,
    /// The network of the agent, or of an earlier one.
    Handed,
}

/// What was found under a descriptor number.
pub(super) enum Examined {
    /// A TCP socket of the run or of an agent.
    Tcp(ProgramSocket),
    /// Something else, for which the reply is this.
    Replied(NotifyReply),
}

/// What a socket in place of the program's must have too.
#[derive(Debug)]
pub(super) struct SocketProperties {
    pub(super) options: SocketOptions,
    pub(super) descriptor_flags: FdFlags,
    /// Whether the descriptors of the program may change before its socket is replaced, or an epoll
    /// instance has the socket.
    pub(super) needs_search: bool,
}

impl ConnectHandler {
    /// Examines the socket under a number.
    pub(super) fn examine(&mut self, caller: &Caller, number: i32) -> Examined {
        let file = match caller.descriptor(number) {
            Ok(file) => file,
            Err(error) if error.raw_os_error() == Some(errno::EBADF) => {
                return Examined::Replied(NotifyReply::Error(errno::EBADF));
            }
            Err(_) => return Examined::Replied(self.unknown()),
        };
        let Some(version) = handed::tcp_version(file.as_fd()) else {
            return Examined::Replied(NotifyReply::Proceed);
        };
        let found = handed::namespace_cookie(file.as_fd())
            .and_then(|cookie| Ok((cookie, handed::status_flags(file.as_fd())?)));
        let Ok((cookie, flags)) = found else { return Examined::Replied(self.unknown()) };
        let origin = if Some(cookie) == self.inside() {
            Origin::Inside
        } else if self.agent.has_handed_of(cookie) {
            Origin::Handed
        } else {
            return Examined::Replied(NotifyReply::Proceed);
        };
        Examined::Tcp(ProgramSocket { number, file, version, origin, flags })
    }

    /// The reply to a call that cannot be examined. If a program has a socket of the agent, the
    /// call may be about that socket.
    pub(super) fn unknown(&self) -> NotifyReply {
        if self.has_handed { NotifyReply::Error(errno::EACCES) } else { NotifyReply::Proceed }
    }

    /// The number of the run's network namespace, in which the helper is.
    fn inside(&mut self) -> Option<u64> {
        if self.inside.is_none() {
            let socket = handed::new_tcp(IpVersion::V4).ok()?;
            self.inside = handed::namespace_cookie(socket.as_fd()).ok();
        }
        self.inside
    }
}

/// Why a socket cannot be replaced, if that can be seen at once.
pub(super) fn first_doubt(own: &ProgramSocket) -> Option<RelayReason> {
    let local = socket::local_address(own.file.as_fd()).ok();
    let local = local.and_then(|local| SocketAddr::try_from(local).ok());
    if local.is_none_or(|local| local.port() != 0 || !local.ip().is_unspecified()) {
        return Some(RelayReason::Bound);
    }
    own.flags.is_asynchronous.then_some(RelayReason::Async)
}

/// Why a socket cannot be replaced because of what refers to it.
pub(super) fn doubt_about(found: &io::Result<Option<References>>) -> Option<RelayReason> {
    match found {
        Err(_) => Some(RelayReason::Kernel),
        Ok(None) => Some(RelayReason::Descriptors),
        Ok(Some(References { is_duplicated: true, .. })) => Some(RelayReason::Dup),
        Ok(Some(References { registrations: None, .. })) => Some(RelayReason::Epoll),
        Ok(Some(References { registrations: Some(_), .. })) => None,
    }
}

impl Templates {
    /// Examines everything about a socket that may prevent its replacement.
    ///
    /// # Errors
    /// The reason why it cannot be replaced.
    pub(super) fn examine_closely(
        &mut self,
        caller: &Caller,
        own: &ProgramSocket,
    ) -> Result<SocketProperties, RelayReason> {
        let file = own.file.as_fd();
        let options = SocketOptions::read(file, own.version);
        let fresh = self.of(own.origin, own.version).map_err(|_| RelayReason::Kernel)?;
        if fresh.is_some_and(|fresh| !options.can_transfer(fresh)) {
            return Err(RelayReason::Option);
        }
        let found = caller.references(file, own.number);
        if let Some(reason) = doubt_about(&found) {
            return Err(reason);
        }
        let registrations = found.ok().flatten().and_then(|found| found.registrations);
        let needs_search = !registrations.is_some_and(|all| all.is_empty()) || !caller.is_alone();
        let descriptor_flags = caller.descriptor_flags(own.number);
        let descriptor_flags = descriptor_flags.map_err(|_| RelayReason::Kernel)?;
        Ok(SocketProperties { options, descriptor_flags, needs_search })
    }

    /// The options of a fresh socket; `None` if no socket of the agent is known.
    ///
    /// # Errors
    /// The error of `socket`.
    pub(super) fn of(
        &mut self,
        origin: Origin,
        version: IpVersion,
    ) -> io::Result<Option<&SocketOptions>> {
        let at = version.index();
        match origin {
            Origin::Handed => Ok(self.outside[at].as_ref()),
            Origin::Inside => {
                if self.inside[at].is_none() {
                    let socket = handed::new_tcp(version)?;
                    self.inside[at] = Some(SocketOptions::read(socket.as_fd(), version));
                }
                Ok(self.inside[at].as_ref())
            }
        }
    }
}

/// Reads the arguments of a call that has them in memory. The error is the kernel's reply.
pub(super) fn with_arguments(caller: &Caller, mut call: Call) -> Result<Call, NotifyReply> {
    let NotifiedCall::Socketcall(packed) = call.call else { return Ok(call) };
    let mut space = [0; ARGUMENTS_BYTES_MAX];
    let space = &mut space[..packed.arguments_bytes().min(ARGUMENTS_BYTES_MAX)];
    match caller.read_memory(packed.arguments, space) {
        Ok(read) if read == space.len() => {}
        _ => return Err(NotifyReply::Error(errno::EFAULT)),
    }
    // Otherwise it is a send that does not connect.
    call.call = packed.identify(space).ok_or(NotifyReply::Proceed)?;
    Ok(call)
}

/// Reads the address of a `connect` call. The error is the kernel's reply to an unreadable one.
pub(super) fn read_destination(
    caller: &Caller,
    address: u64,
    length: i32,
    version: IpVersion,
) -> Result<Destination, NotifyReply> {
    let length = usize::try_from(length).ok().filter(|length| *length <= ADDRESS_BYTES_MAX);
    let length = length.ok_or(NotifyReply::Error(errno::EINVAL))?;
    let mut bytes = [0; ADDRESS_BYTES_MAX];
    match caller.read_memory(address, &mut bytes[..length]) {
        Ok(read) if read == length => Ok(handed::destination(&bytes[..length], version)),
        _ => Err(NotifyReply::Error(errno::EFAULT)),
    }
}

/// Whether an address may be outside of the run: loopback is the run's own.
pub(super) fn is_elsewhere(remote: SocketAddr) -> bool {
    !remote.ip().is_loopback() && !remote.ip().is_unspecified()
}

/// The reply with the error of a system call.
pub(super) fn reply_of(error: &io::Error) -> NotifyReply {
    NotifyReply::Error(error.raw_os_error().unwrap_or(errno::EACCES))
}
