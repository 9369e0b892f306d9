//! Replaces the socket of a program that waits in `connect`. If the agent permits the connection,
//! the program gets a socket of the agent's network namespace (a *handed* socket).
//!
//! The program may call `connect` again on a handed socket. If the agent relays the new connection,
//! the program gets a new socket of its own network namespace.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};

use tacit_sys::handed::{self, ConnectState, References, SocketOptions};
use tacit_sys::socket;
use tacit_sys::spawn::{NotifyListener, NotifyReply};

use super::examine::{Origin, SocketProperties, doubt_about, reply_of};
use super::waiting::Waiting;
use super::{ConnectCall, ConnectHandler, PendingConnect, errno, reason_of};
use crate::run::protocol::{ConnectProgress, FromConnects, RelayReason};

/// Why a socket was not replaced.
enum NotSwapped {
    /// The connection is relayed.
    Relayed(RelayReason),
    /// The call gets this reply.
    Failed(io::Error),
}

/// A socket of the agent that a program has.
struct Placed {
    state: ConnectState,
    /// Whether the program's socket was registered in an epoll instance.
    has_registrations: bool,
}

impl ConnectHandler {
    /// Connects the agent's socket, and gives it to the program.
    pub(super) fn swap(
        &mut self,
        listener: &mut NotifyListener,
        pending: PendingConnect,
        number: u64,
        to: SocketAddr,
        given: OwnedFd,
    ) -> io::Result<()> {
        let PendingConnect { connect, properties, .. } = pending;
        if !listener.is_waiting(&connect.call) {
            self.agent.send_or_queue(FromConnects::Ended { number, error: None });
            return Ok(());
        }
        let placed = match self.place(listener, &connect, &properties, &given, to) {
            Ok(placed) => placed,
            Err(NotSwapped::Failed(error)) => {
                drop(given);
                let replied = connect.reply(listener, reply_of(&error));
                let error = error.raw_os_error();
                self.agent.send_or_queue(FromConnects::Ended { number, error });
                return replied;
            }
            Err(NotSwapped::Relayed(reason)) => {
                // With a duplicate here, the destination would not see the end.
                drop(given);
                return self.relay_with_reason(listener, connect, Some(number), to, reason);
            }
        };
        let Placed { state, has_registrations } = placed;
        let progress = match state {
            ConnectState::Connected => ConnectProgress::Established,
            _ => ConnectProgress::Connecting,
        };
        let local = socket::local_address(given.as_fd()).ok();
        let local = local.and_then(|local| SocketAddr::try_from(local).ok());
        let started = local.map(|local| FromConnects::Started { number, local, progress });
        if connect.socket.flags.is_nonblocking {
            drop(given);
            connect.reply(listener, NotifyReply::Error(errno::EINPROGRESS))?;
            if let Some(started) = started {
                self.agent.send_or_queue(started);
            }
            return Ok(());
        }
        connect.caller.end_search();
        let ConnectCall { call, caller, socket } = connect;
        // Items that were moved to the new socket cannot be moved back.
        let old = (!has_registrations).then_some(socket);
        let waiting = Waiting { call, caller, given, old, number: Some(number) };
        let ended = self.waiting.add(listener, waiting, state)?;
        if let Some(started) = started {
            self.agent.send_or_queue(started);
        }
        self.report_end(Some(number), ended);
        Ok(())
    }

    /// Connects the agent's socket, and puts it in place of the program's. After an error, the
    /// program has its own socket.
    fn place(
        &mut self,
        listener: &NotifyListener,
        connect: &ConnectCall,
        properties: &SocketProperties,
        given: &OwnedFd,
        to: SocketAddr,
    ) -> Result<Placed, NotSwapped> {
        let ConnectCall { call, caller, socket: own } = connect;
        let state = self.connect(connect, properties, given, to)?;
        // Another thread may have closed the descriptor meanwhile.
        if !own.is_in_place(caller) {
            return Err(NotSwapped::Failed(io::Error::from_raw_os_error(errno::EBADF)));
        }
        let file = given.as_fd();
        let flags = properties.descriptor_flags;
        self.has_handed = true;
        listener.replace_descriptor(call, own.number, file, flags).map_err(NotSwapped::Failed)?;
        let back = |reason| {
            // Another thread may have closed the number and opened another file under it.
            if caller.is_same_file(file, own.number).unwrap_or(false) {
                // If this fails, the caller has ended.
                let _ = listener.replace_descriptor(call, own.number, own.file.as_fd(), flags);
            }
            reason
        };
        if !properties.needs_search {
            return Ok(Placed { state, has_registrations: false });
        }
        // Only now: another thread may have duplicated or registered the old socket until it was
        // replaced.
        let found = caller.references(own.file.as_fd(), own.number);
        if let Some(reason) = doubt_about(&found) {
            return Err(back(NotSwapped::Relayed(reason)));
        }
        let registrations = found.ok().flatten().and_then(|found| found.registrations);
        let registrations = registrations.unwrap_or_default();
        let moved = handed::move_registrations(own.file.as_fd(), file, own.number, &registrations);
        moved.map_err(|error| back(NotSwapped::Failed(error)))?;
        Ok(Placed { state, has_registrations: !registrations.is_empty() })
    }

    /// Gives the agent's socket the options of the program's, and begins to connect it.
    fn connect(
        &mut self,
        connect: &ConnectCall,
        properties: &SocketProperties,
        given: &OwnedFd,
        to: SocketAddr,
    ) -> Result<ConnectState, NotSwapped> {
        let own = &connect.socket;
        let relayed = |error: io::Error| NotSwapped::Relayed(reason_of(&error));
        let file = given.as_fd();
        if !self.agent.is_in(handed::namespace_cookie(file).map_err(relayed)?) {
            return Err(NotSwapped::Relayed(RelayReason::Kernel));
        }
        let template = &mut self.fresh.outside[own.version.index()];
        if template.is_none() {
            *template = Some(SocketOptions::read(file, own.version));
        }
        if let Some(fresh) = self.fresh.of(own.origin, own.version).map_err(relayed)? {
            let transferred = properties.options.transfer(fresh, file);
            transferred.map_err(|_| NotSwapped::Relayed(RelayReason::Option))?;
        }
        match handed::connect(file, own.version, to) {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(errno::EINPROGRESS) => {}
            Err(error) => return Err(NotSwapped::Failed(error)),
        }
        let state = handed::state(file).map_err(NotSwapped::Failed)?;
        if own.flags.is_nonblocking {
            return Ok(state);
        }
        if state == ConnectState::Unconnected {
            // The destination has refused already: the program keeps its socket.
            handed::connection_result(file).map_err(NotSwapped::Failed)?;
        }
        handed::set_blocking(file).map_err(NotSwapped::Failed)?;
        Ok(state)
    }

    /// Puts a fresh socket of the run in place of a handed one.
    ///
    /// # Errors
    /// The socket cannot be made or put in place.
    pub(super) fn give_back(
        &mut self,
        listener: &NotifyListener,
        connect: &ConnectCall,
    ) -> io::Result<()> {
        let ConnectCall { call, caller, socket: handed } = connect;
        let fresh = handed::new_tcp(handed.version)?;
        let own = handed.file.as_fd();
        if let Ok(Some(template)) = self.fresh.of(Origin::Handed, handed.version) {
            // An option that cannot be set is left out: the program needs some socket.
            let _ = SocketOptions::read(own, handed.version).transfer(template, fresh.as_fd());
        }
        if !handed.flags.is_nonblocking {
            handed::set_blocking(fresh.as_fd())?;
        }
        let flags = caller.descriptor_flags(handed.number)?;
        if !handed.is_in_place(caller) {
            return Err(io::Error::from_raw_os_error(errno::EBADF));
        }
        listener.replace_descriptor(call, handed.number, fresh.as_fd(), flags)?;
        if let Ok(Some(References { registrations: Some(registrations), .. })) =
            caller.references(own, handed.number)
        {
            // After an error, the program would get no events of this socket.
            handed::move_registrations(own, fresh.as_fd(), handed.number, &registrations)?;
        }
        Ok(())
    }
}
