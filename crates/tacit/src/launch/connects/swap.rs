//! Replaces the socket of a program. The new socket belongs to the agent's network, or to the
//! program's own network namespace.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};

use tacit_sys::handed::{self, Caller, ConnectState, SocketOptions};
use tacit_sys::socket;
use tacit_sys::spawn::{Call, NotifyListener, NotifyReply};

use super::examine::{Origin, reply_of};
use super::waiting::Waiting;
use super::{ConnectHandler, ProgramSocket, errno, index, reason_of};
use crate::run::protocol::{ConnectProgress, FromConnects, RelayReason};

/// Why a socket was not replaced.
enum NotSwapped {
    /// The connection is relayed.
    Relayed(RelayReason),
    /// The call gets this reply.
    Failed(io::Error),
}

impl ConnectHandler {
    /// Gives the program the agent's socket, and connects it.
    pub(super) fn swap(
        &mut self,
        listener: &mut NotifyListener,
        (call, caller, own): (Call, Caller, ProgramSocket),
        number: u64,
        to: SocketAddr,
        given: OwnedFd,
    ) -> io::Result<()> {
        if !listener.is_waiting(&call) {
            self.send(&FromConnects::Ended { number, error: None });
            return Ok(());
        }
        let has_registrations = match self.put(listener, (&call, &caller, &own), &given, to) {
            Ok(has_registrations) => has_registrations,
            Err(not_swapped) => {
                let error = match &not_swapped {
                    NotSwapped::Relayed(_) => None,
                    NotSwapped::Failed(error) => error.raw_os_error(),
                };
                self.send(&FromConnects::Ended { number, error });
                return match not_swapped {
                    NotSwapped::Failed(error) => listener.reply(&call, reply_of(&error)),
                    NotSwapped::Relayed(reason) => {
                        self.send(&FromConnects::Relayed { remote: to, reason });
                        self.relay(listener, &call, &caller, &own)
                    }
                };
            }
        };
        let file = given.as_fd();
        let progress = match handed::state(file) {
            Ok(ConnectState::Connected) => ConnectProgress::Established,
            _ => ConnectProgress::Connecting,
        };
        let started = socket::local_address(file)
            .ok()
            .and_then(|local| SocketAddr::try_from(local).ok())
            .map(|local| FromConnects::Started { number, local, progress });
        if own.flags.is_nonblocking {
            listener.reply(&call, NotifyReply::Error(errno::EINPROGRESS))?;
            started.map(|started| self.send(&started));
            return Ok(());
        }
        started.map(|started| self.send(&started));
        // Items that were moved to the new socket cannot be moved back.
        let old = (!has_registrations).then_some(own);
        let waiting = Waiting { call, caller, given, old, number: Some(number) };
        let ended = self.waiting.add(listener, waiting)?;
        self.report_end(Some(number), ended);
        Ok(())
    }

    /// Puts the agent's socket in place of the program's, and begins to connect it. Returns whether
    /// the program's socket was registered in an epoll instance. After an error, the program has
    /// its own socket.
    fn put(
        &mut self,
        listener: &NotifyListener,
        (call, caller, own): (&Call, &Caller, &ProgramSocket),
        given: &OwnedFd,
        to: SocketAddr,
    ) -> Result<bool, NotSwapped> {
        let relayed = |error: io::Error| NotSwapped::Relayed(reason_of(&error));
        let file = given.as_fd();
        if Some(handed::namespace_cookie(file).map_err(relayed)?) != self.outside {
            return Err(NotSwapped::Relayed(RelayReason::Kernel));
        }
        let template = &mut self.fresh.outside[index(own.version)];
        if template.is_none() {
            *template = Some(SocketOptions::read(file, own.version));
        }
        let options = SocketOptions::read(own.file.as_fd(), own.version);
        if let Some(fresh) = self.fresh.of(own.origin, own.version).map_err(relayed)? {
            let transferred = options.transfer(fresh, file);
            transferred.map_err(|_| NotSwapped::Relayed(RelayReason::Option))?;
        }
        // Another thread may have closed the descriptor meanwhile.
        let closed = || NotSwapped::Failed(io::Error::from_raw_os_error(errno::EBADF));
        let flags = caller.descriptor_flags(own.number).map_err(|_| closed())?;
        if !own.is_in_place(caller) {
            return Err(closed());
        }
        self.has_handed = true;
        listener.replace_descriptor(call, own.number, file, flags).map_err(NotSwapped::Failed)?;
        // Only now: another thread may have registered the old socket until it was replaced.
        let found = caller.registrations(own.file.as_fd(), own.number);
        let back = |reason| {
            // Another thread may have closed the number and opened another file under it.
            if caller.is_same_file(file, own.number).unwrap_or(false) {
                // If this fails, the caller has ended.
                let _ = listener.replace_descriptor(call, own.number, own.file.as_fd(), flags);
            }
            reason
        };
        let is_movable = |all: &Vec<_>| all.is_empty() || handed::can_move(own.number);
        let Some(registrations) = found.ok().flatten().filter(is_movable) else {
            return Err(back(NotSwapped::Relayed(RelayReason::Epoll)));
        };
        match handed::connect(file, own.version, to) {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(errno::EINPROGRESS) => {}
            Err(error) => return Err(back(NotSwapped::Failed(error))),
        }
        if !own.flags.is_nonblocking {
            handed::set_blocking(file).map_err(|error| back(NotSwapped::Failed(error)))?;
        }
        let moved = handed::move_registrations(own.file.as_fd(), file, own.number, &registrations);
        moved.map_err(|error| back(NotSwapped::Failed(error)))?;
        Ok(!registrations.is_empty())
    }

    /// Puts a fresh socket of the run in place of a handed one.
    ///
    /// # Errors
    /// The socket cannot be made or put in place.
    pub(super) fn give_back(
        &mut self,
        listener: &NotifyListener,
        call: &Call,
        caller: &Caller,
        handed: &ProgramSocket,
    ) -> io::Result<()> {
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
        if let Ok(Some(registrations)) = caller.registrations(own, handed.number) {
            // After an error, the program would get no events of this socket.
            handed::move_registrations(own, fresh.as_fd(), handed.number, &registrations)?;
        }
        Ok(())
    }
}
