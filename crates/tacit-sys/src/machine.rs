//! Provides the system calls that an init process (process 1) needs: mounts the kernel's file
//! systems, loads kernel modules, reaps orphaned processes, and turns the machine off.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::ExitStatus;

use rustix::process::{Signal, WaitOptions};
use rustix::system::RebootCommand;

/// A file system that needs no device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelFileSystem {
    /// The processes.
    Proc,
    /// The devices and their drivers.
    Sys,
    /// The files of devices.
    Devices,
    /// Files in memory.
    Memory,
}

impl KernelFileSystem {
    fn name(self) -> &'static std::ffi::CStr {
        match self {
            Self::Proc => c"proc",
            Self::Sys => c"sysfs",
            Self::Devices => c"devtmpfs",
            Self::Memory => c"tmpfs",
        }
    }

    fn flags(self) -> libc::c_ulong {
        match self {
            Self::Proc | Self::Sys => libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC,
            Self::Devices => libc::MS_NOSUID,
            Self::Memory => libc::MS_NOSUID | libc::MS_NODEV,
        }
    }
}

/// Mounts a file system.
///
/// # Errors
/// The error of `mount`; `EBUSY` if this file system is already mounted there.
pub fn mount(kind: KernelFileSystem, at: &Path) -> io::Result<()> {
    let name = kind.name().as_ptr();
    let at = CString::new(at.as_os_str().as_bytes())?;
    // SAFETY: the texts end with a zero byte and live until the call returns; there is no data.
    match unsafe { libc::mount(name, at.as_ptr(), name, kind.flags(), std::ptr::null()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Loads a module of the kernel. A module that is already loaded is no error.
///
/// # Errors
/// The error of `finit_module`.
pub fn load_module(file: &File) -> io::Result<()> {
    match rustix::system::finit_module(file.as_fd(), c"", 0) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Whether to wait until a child ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// Wait.
    UntilOneEnds,
    /// Do not wait.
    None,
}

/// Removes a child that has ended, and returns its process ID and status. To the first process, the
/// kernel gives the children of processes that have ended.
///
/// # Errors
/// The error of `waitpid`; `ECHILD` if there is no child.
pub fn next_ended(patience: Patience) -> io::Result<Option<(u32, ExitStatus)>> {
    let options = match patience {
        Patience::UntilOneEnds => WaitOptions::empty(),
        Patience::None => WaitOptions::NOHANG,
    };
    let ended = rustix::process::wait(options)?;
    Ok(ended.map(|(pid, status)| {
        let pid = pid.as_raw_nonzero().get().unsigned_abs();
        (pid, ExitStatus::from_raw(status.as_raw()))
    }))
}

/// Sends a signal to all other processes. Only the first process of a machine may call this.
///
/// # Errors
/// `InvalidInput` if this is another process; the error of `kill`.
pub fn signal_all(signal: Signal) -> io::Result<()> {
    if std::process::id() != 1 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: takes no pointers. The kernel does not send the signal to the first process.
    match unsafe { libc::kill(-1, signal.as_raw()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// How a machine ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MachineEnd {
    /// It is turned off.
    PowerOff,
    /// It starts again.
    Restart,
}

/// Writes all files to their devices, and ends the machine. Only the first process of a machine may
/// call this.
///
/// # Errors
/// `InvalidInput` if this is another process; `EPERM` in a container.
pub fn end(how: MachineEnd) -> io::Result<()> {
    if std::process::id() != 1 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    rustix::fs::sync();
    let command = match how {
        MachineEnd::PowerOff => RebootCommand::PowerOff,
        MachineEnd::Restart => RebootCommand::Restart,
    };
    Ok(rustix::system::reboot(command)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_process_ends_a_machine_or_signals_all_processes() {
        let refused = |done: io::Result<()>| done.unwrap_err().kind();
        assert_eq!(refused(end(MachineEnd::PowerOff)), io::ErrorKind::InvalidInput);
        assert_eq!(refused(end(MachineEnd::Restart)), io::ErrorKind::InvalidInput);
        assert_eq!(refused(signal_all(Signal::TERM)), io::ErrorKind::InvalidInput);
    }
}
