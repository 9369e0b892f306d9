//! Opens TUN devices: network interfaces whose packets a process reads and writes.
//!
//! ```text
//! helper, inside a namespace: Tun::open("tacit0") ── descriptor ──> agent: Tun::from_descriptor
//! program ── packet ──> tacit0 ── read ──> agent ── write ──> tacit0 ── packet ──> program
//! ```
//!
//! A `virtio_net_hdr` precedes each packet. This header can describe a large TCP packet of up to 64
//! KiB, and a packet whose checksum the receiver must compute.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};

/// A TUN device, or more exactly its only queue. The device disappears with the last descriptor.
#[derive(Debug)]
pub struct Tun {
    descriptor: OwnedFd,
}

impl Tun {
    /// Creates a device in the network namespace of the calling thread, with offloads for large TCP
    /// packets and checksums. The interface is down and has no address.
    ///
    /// # Errors
    /// `/dev/net/tun` cannot be opened, the caller has no `CAP_NET_ADMIN` in the namespace, or the
    /// name is too long or in use.
    pub fn open(name: &str) -> io::Result<Self> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let descriptor = rustix::fs::open(DEVICE, flags, Mode::empty())?;
        let mut request = InterfaceRequest::default();
        // The last byte stays zero. With an empty name the kernel would choose one.
        if name.is_empty() || name.len() >= NAME_BYTES {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        request.name[..name.len()].copy_from_slice(name.as_bytes());
        request.flags = FLAGS;
        // SAFETY: TUNSETIFF reads and writes one ifreq, which is live and has its size.
        let result =
            unsafe { libc::ioctl(descriptor.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        let offloads = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN;
        let offloads = libc::c_ulong::from(offloads);
        // SAFETY: TUNSETOFFLOAD takes a number.
        let result = unsafe { libc::ioctl(descriptor.as_raw_fd(), libc::TUNSETOFFLOAD, offloads) };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { descriptor })
    }

    /// Takes a descriptor that another process has opened with [`Self::open`].
    ///
    /// # Errors
    /// The descriptor is not such a device (`InvalidInput`), or its interface was removed.
    pub fn from_descriptor(descriptor: OwnedFd) -> io::Result<Self> {
        let mut request = InterfaceRequest::default();
        // SAFETY: TUNGETIFF writes one ifreq, which is live and has its size. Other kinds of files
        // refuse the number of the call.
        let result =
            unsafe { libc::ioctl(descriptor.as_raw_fd(), libc::TUNGETIFF, &raw mut request) };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        if request.flags & FLAGS != FLAGS {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        rustix::io::ioctl_fionbio(&descriptor, true)?;
        Ok(Self { descriptor })
    }

    /// Returns another descriptor of the same queue: the two share its packets.
    ///
    /// # Errors
    /// The limit of open files is reached.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { descriptor: self.descriptor.try_clone()? })
    }

    /// The name of the interface, which the kernel completes if it has a `%d`.
    ///
    /// # Errors
    /// The interface was removed.
    pub fn name(&self) -> io::Result<String> {
        let mut request = InterfaceRequest::default();
        // SAFETY: TUNGETIFF writes one ifreq, which is live and has its size.
        let result =
            unsafe { libc::ioctl(self.descriptor.as_raw_fd(), libc::TUNGETIFF, &raw mut request) };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        let name = request.name.split(|byte| *byte == 0).next().unwrap_or_default();
        Ok(String::from_utf8_lossy(name).into_owned())
    }

    /// Reads one packet, and the header that precedes it. Returns the length of the packet.
    ///
    /// # Errors
    /// `WouldBlock` if there is none; another error if the interface is down or was removed.
    pub fn read(&self, header: &mut [u8], packet: &mut [u8]) -> io::Result<usize> {
        let header_bytes = header.len();
        let mut parts = [IoSliceMut::new(header), IoSliceMut::new(packet)];
        let bytes = rustix::io::readv(&self.descriptor, &mut parts)?;
        bytes.checked_sub(header_bytes).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    /// Writes one packet; the parts together are its header and the packet.
    ///
    /// # Errors
    /// The kernel refuses the packet or its header, or the interface is down or was removed.
    pub fn write(&self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        rustix::io::writev(&self.descriptor, parts)?;
        Ok(())
    }
}

impl AsFd for Tun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl From<Tun> for OwnedFd {
    fn from(tun: Tun) -> Self {
        tun.descriptor
    }
}

/// `struct ifreq`, whose union contains only flags here.
#[repr(C)]
#[derive(Default)]
struct InterfaceRequest {
    name: [u8; NAME_BYTES],
    flags: libc::c_short,
    rest: [u8; 22],
}

const DEVICE: &str = "/dev/net/tun";
/// `IFNAMSIZ`.
const NAME_BYTES: usize = 16;
/// IP packets without a header of their own, but with a `virtio_net_hdr`.
#[expect(
    clippy::cast_possible_truncation,
    reason = "the kernel stores the flags of an interface in 16 bits"
)]
const FLAGS: libc::c_short =
    (libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as libc::c_short;
