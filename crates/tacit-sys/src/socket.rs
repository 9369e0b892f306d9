//! Creates, connects, reads, writes and closes stream sockets. Also returns facts about a socket,
//! such as its addresses and TCP statistics.
//!
//! All sockets are non-blocking and close-on-exec. This module sets TCP options before `connect`,
//! or on the listening socket. Accepted sockets inherit the options of the listening socket.
//!
//! tacit does not change the congestion control of an accepted socket. After such a change, the
//! kernel would keep the pacing of the old algorithm.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketAddrAny, SocketFlags, SocketType, sockopt,
};

use crate::mark;
use crate::option::{self, OptionName, option, set_option};

pub use rustix::net::SocketAddrAny as SocketAddress;
pub use rustix::net::SocketAddrUnix as UnixAddress;

/// The largest number of connections that wait to be accepted. The kernel caps it at
/// `net.core.somaxconn`.
pub const LISTEN_BACKLOG: i32 = 4096;

/// Binds an address without a port. The option is that of IPv4 also for sockets of IPv6.
const BIND_ADDRESS_ONLY: OptionName =
    OptionName { level: libc::IPPROTO_IP, name: libc::IP_BIND_ADDRESS_NO_PORT };

/// The idle time after which the kernel probes whether the peer still exists.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(120);

/// The options of a stream socket, which are set before it listens or connects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StreamOptions {
    /// The name of the TCP congestion control; `None` selects the system's default.
    pub congestion_control: Option<String>,
    /// Whether the kernel resets the connection if this process ends without closing it. Without a
    /// reset, a peer in clear text cannot distinguish a truncated stream from a complete one.
    pub reset_on_exit: bool,
}

/// The congestion control of agents on loopback, unless the policy sets another one. Every kernel
/// has it, and every user may select it. Congestion controls that model the path, such as bbr, need
/// twice the CPU time there.
const LOOPBACK_CONGESTION_CONTROL: &str = "reno";

impl StreamOptions {
    /// Returns these options for an agent's socket that listens at `address` or connects to it. On
    /// loopback, such a socket does not use the congestion control of the system.
    #[must_use]
    pub fn for_address(&self, address: &SocketAddrAny) -> Self {
        let mut options = self.clone();
        if options.congestion_control.is_none() && is_loopback(address) {
            options.congestion_control = Some(LOOPBACK_CONGESTION_CONTROL.to_owned());
        }
        options
    }
}

fn is_loopback(address: &SocketAddrAny) -> bool {
    let address = SocketAddr::try_from(address.clone());
    address.is_ok_and(|address| address.ip().to_canonical().is_loopback())
}

fn new_stream(family: AddressFamily, options: &StreamOptions) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    if family != AddressFamily::UNIX {
        mark::apply(socket.as_fd())?;
        set_tcp_options(socket.as_fd(), options)?;
        if options.reset_on_exit {
            set_on_close(socket.as_fd(), OnClose::Reset)?;
        }
    }
    Ok(socket)
}

/// Sets the options that dialled sockets need, and that accepted sockets inherit from their
/// listener.
fn set_tcp_options(socket: BorrowedFd<'_>, options: &StreamOptions) -> io::Result<()> {
    sockopt::set_tcp_nodelay(socket, true)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, KEEPALIVE_IDLE)?;
    // An urgent byte then stays at its position in the stream. Otherwise ordinary reads would omit
    // it.
    sockopt::set_socket_oobinline(socket, true)?;
    if let Some(name) = &options.congestion_control {
        sockopt::set_tcp_congestion(socket, name)?;
    }
    Ok(())
}

/// Opens a listening socket.
///
/// # Errors
/// The error of `socket`, `bind` or `listen`; `NotFound` for an unknown congestion control.
pub fn listen(address: &SocketAddrAny, options: &StreamOptions) -> io::Result<OwnedFd> {
    let socket = reserve(address, options)?;
    resume_listening(socket.as_fd())?;
    Ok(socket)
}

/// Binds an address without listening there. No other socket can bind the address, and the kernel
/// refuses connections to it until [`resume_listening`] is called.
///
/// # Errors
/// The same as [`listen`].
pub fn reserve(address: &SocketAddrAny, options: &StreamOptions) -> io::Result<OwnedFd> {
    let family = address.address_family();
    let socket = new_stream(family, options)?;
    if family != AddressFamily::UNIX {
        sockopt::set_socket_reuseaddr(&socket, true)?;
    }
    if family == AddressFamily::INET6 {
        // `[::]` then stands for IPv6 only. Rules for IPv4 have an address of their own, and the
        // two listeners must not collide.
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    rustix::net::bind(&socket, address)?;
    Ok(socket)
}

/// Listens at the address to which the socket is bound.
///
/// # Errors
/// The error of `listen`.
pub fn resume_listening(socket: BorrowedFd<'_>) -> io::Result<()> {
    Ok(rustix::net::listen(socket, LISTEN_BACKLOG)?)
}

/// Stops listening and keeps the address. Connections that wait to be accepted are reset.
///
/// # Errors
/// The error of `shutdown`.
pub fn suspend_listening(socket: BorrowedFd<'_>) -> io::Result<()> {
    Ok(rustix::net::shutdown(socket, Shutdown::Read)?)
}

/// Opens a listening UNIX socket. The mode of its file is never wider than `mode`, not even for a
/// moment. `prepare` is called when the file exists and no client can connect yet.
///
/// # Errors
/// The error of `socket`, `bind`, `prepare` or `listen`.
pub fn listen_unix(
    address: &SocketAddrAny,
    mode: u32,
    prepare: impl FnOnce() -> io::Result<()>,
) -> io::Result<OwnedFd> {
    let socket = new_stream(AddressFamily::UNIX, &StreamOptions::default())?;
    // The file inherits its mode from the socket, reduced by the umask.
    rustix::fs::fchmod(&socket, rustix::fs::Mode::from_raw_mode(mode))?;
    rustix::net::bind(&socket, address)?;
    prepare()?;
    rustix::net::listen(&socket, LISTEN_BACKLOG)?;
    Ok(socket)
}

/// Sets the options of a socket that other code has created. Sockets that a listener accepts
/// inherit its options.
///
/// # Errors
/// The error of `setsockopt` or `fcntl`.
pub fn adopt(socket: BorrowedFd<'_>, options: &StreamOptions) -> io::Result<()> {
    rustix::io::ioctl_fionbio(socket, true)?;
    rustix::io::fcntl_setfd(socket, rustix::io::FdFlags::CLOEXEC)?;
    if sockopt::socket_domain(socket)? != AddressFamily::UNIX {
        set_tcp_options(socket, options)?;
        let on_close = if options.reset_on_exit { OnClose::Reset } else { OnClose::Finish };
        set_on_close(socket, on_close)?;
    }
    Ok(())
}

/// A socket that is connecting or connected.
#[derive(Debug)]
pub struct DialledSocket {
    /// The socket.
    pub socket: OwnedFd,
    /// Whether the socket is connected already. Otherwise it becomes writable when the connection
    /// is established or has failed; [`take_error`] then returns the result.
    pub is_connected: bool,
}

/// Begins to connect.
///
/// # Errors
/// The error of `socket` or `connect`.
pub fn dial(address: &SocketAddrAny, options: &StreamOptions) -> io::Result<DialledSocket> {
    dial_from(None, address, options)
}

/// Begins to connect from a local address, if there is one.
///
/// # Errors
/// The error of `socket`, `bind` or `connect`.
pub fn dial_from(
    local: Option<IpAddr>,
    address: &SocketAddrAny,
    options: &StreamOptions,
) -> io::Result<DialledSocket> {
    let socket = new_stream(address.address_family(), options)?;
    if let Some(local) = local {
        bind_address(socket.as_fd(), local)?;
    }
    match rustix::net::connect(&socket, address) {
        Ok(()) => Ok(DialledSocket { socket, is_connected: true }),
        Err(Errno::INPROGRESS) => Ok(DialledSocket { socket, is_connected: false }),
        Err(errno) => Err(errno.into()),
    }
}

/// Binds an address without a port. The kernel chooses the port when it knows the destination, so
/// connections to other destinations can have the same port.
pub(crate) fn bind_address(socket: BorrowedFd<'_>, local: IpAddr) -> io::Result<()> {
    set_option(socket, BIND_ADDRESS_ONLY, 1)?;
    Ok(rustix::net::bind(socket, &SocketAddr::new(local, 0))?)
}

/// A connection that was accepted from a listener.
#[derive(Debug)]
pub struct AcceptedSocket {
    /// Its socket.
    pub socket: OwnedFd,
    /// The address of the peer, if it has one.
    pub peer: Option<SocketAddrAny>,
}

/// Accepts one connection from a listener.
///
/// # Errors
/// `WouldBlock` if there is no connection; otherwise the error of `accept4`.
pub fn accept(listener: BorrowedFd<'_>) -> io::Result<AcceptedSocket> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (socket, peer) = rustix::net::acceptfrom_with(listener, flags)?;
    Ok(AcceptedSocket { socket, peer })
}

/// Whether a dialled socket is connected now.
///
/// # Errors
/// The error of `getpeername`.
pub fn is_connected(socket: BorrowedFd<'_>) -> io::Result<bool> {
    match rustix::net::getpeername(socket) {
        Ok(_) => Ok(true),
        Err(Errno::NOTCONN) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// Returns the pending error of a socket, and clears it.
///
/// # Errors
/// The pending error of the socket, or the error of `getsockopt`.
pub fn take_error(socket: BorrowedFd<'_>) -> io::Result<()> {
    Ok(sockopt::socket_error(socket)??)
}

/// Returns the socket's own address.
///
/// # Errors
/// The error of `getsockname`.
pub fn local_address(socket: BorrowedFd<'_>) -> io::Result<SocketAddrAny> {
    Ok(rustix::net::getsockname(socket)?)
}

/// Returns the address of the peer; `None` if the peer has no address.
///
/// # Errors
/// The error of `getpeername`.
pub fn peer_address(socket: BorrowedFd<'_>) -> io::Result<Option<SocketAddrAny>> {
    Ok(rustix::net::getpeername(socket)?)
}

/// The process and the user at the other end of a UNIX socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerCredentials {
    /// The process; `None` if it is in a PID namespace whose processes this one does not see.
    pub pid: Option<u32>,
    /// The user; the overflow user (65534) if this user namespace does not have it.
    pub uid: u32,
}

impl PeerCredentials {
    /// The process; 0, which no process has, if this process does not see it.
    #[must_use]
    pub fn pid_or_zero(&self) -> i32 {
        self.pid.map_or(0, u32::cast_signed)
    }
}

/// Returns the process and the user at the other end of a UNIX socket, as recorded by the kernel.
///
/// # Errors
/// The error of `getsockopt`.
pub fn peer_credentials(socket: BorrowedFd<'_>) -> io::Result<PeerCredentials> {
    let libc::ucred { pid, uid, .. } = option::credentials(socket)?;
    Ok(PeerCredentials { pid: u32::try_from(pid).ok().filter(|pid| *pid != 0), uid })
}

/// Whether the peer of a UNIX stream socket has closed it.
#[must_use]
pub fn is_hung_up(socket: BorrowedFd<'_>) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut polled = [PollFd::new(&socket, PollFlags::RDHUP)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut polled, Some(&now)).is_ok()
        && polled[0].revents().intersects(PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR)
}

/// Waits until the socket has bytes to read or is closed, at most for `wait`.
///
/// # Errors
/// The error of `poll`. An interruption counts as a timeout.
pub fn is_readable_within(socket: BorrowedFd<'_>, wait: Duration) -> io::Result<bool> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut polled = [PollFd::new(&socket, PollFlags::IN)];
    let wait = Timespec::try_from(wait).map_err(|_| io::ErrorKind::InvalidInput)?;
    match poll(&mut polled, Some(&wait)) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Whether an error of [`accept`] means that this process or this host lacks descriptors or memory.
/// All other errors concern only the one connection.
#[must_use]
pub fn is_shortage(error: &io::Error) -> bool {
    let shortages = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
    Errno::from_io_error(error).is_some_and(|errno| shortages.contains(&errno))
}

/// Reads into several buffers with one call.
///
/// # Errors
/// `WouldBlock` if there is no data; otherwise the error of `readv`.
pub fn read_vectored(
    socket: BorrowedFd<'_>,
    buffers: &mut [io::IoSliceMut<'_>],
) -> io::Result<usize> {
    Ok(rustix::io::readv(socket, buffers)?)
}

/// Reads into one buffer.
///
/// # Errors
/// `WouldBlock` if there is no data; otherwise the error of `recv`.
pub fn read(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<usize> {
    Ok(rustix::net::recv(socket, buffer, RecvFlags::empty())?.0)
}

/// Reads and appends to a buffer, as much as fits into its free capacity.
///
/// # Errors
/// `WouldBlock` if there is no data; otherwise the error of `recv`.
pub fn read_onto(socket: BorrowedFd<'_>, buffer: &mut Vec<u8>) -> io::Result<usize> {
    let room = rustix::buffer::spare_capacity(buffer);
    Ok(rustix::net::recv(socket, room, RecvFlags::empty())?.0)
}

/// Copies the data that could be read, and leaves it in the socket.
///
/// # Errors
/// `WouldBlock` if there is no data; otherwise the error of `recv`.
pub fn peek(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<usize> {
    Ok(rustix::net::recv(socket, buffer, RecvFlags::PEEK)?.0)
}

/// Writes from several buffers with one call. If the peer has closed, the result is an error and
/// never a signal.
///
/// # Errors
/// `WouldBlock` if the socket is full; otherwise the error of `sendmsg`.
pub fn write_vectored(socket: BorrowedFd<'_>, buffers: &[io::IoSlice<'_>]) -> io::Result<usize> {
    let mut control = rustix::net::SendAncillaryBuffer::default();
    Ok(rustix::net::sendmsg(socket, buffers, &mut control, SendFlags::NOSIGNAL)?)
}

/// Writes from one buffer. If the peer has closed, the result is an error and never a signal.
///
/// # Errors
/// `WouldBlock` if the socket is full; otherwise the error of `send`.
pub fn write(socket: BorrowedFd<'_>, buffer: &[u8]) -> io::Result<usize> {
    Ok(rustix::net::send(socket, buffer, SendFlags::NOSIGNAL)?)
}

/// Writes the last bytes of a stream. The kernel keeps them for at most 0.2 s until
/// [`shutdown_write`] or the close, so that they leave in one segment with the end of the stream.
/// Otherwise the same as [`write()`].
///
/// # Errors
/// `WouldBlock` if the socket is full; otherwise the error of `send`.
pub fn write_last(socket: BorrowedFd<'_>, buffer: &[u8]) -> io::Result<usize> {
    Ok(rustix::net::send(socket, buffer, SendFlags::NOSIGNAL | SendFlags::MORE)?)
}

/// Ends the stream in our direction. The peer reads the queued data and then an end of file.
///
/// # Errors
/// The error of `shutdown`.
pub fn shutdown_write(socket: BorrowedFd<'_>) -> io::Result<()> {
    Ok(rustix::net::shutdown(socket, Shutdown::Write)?)
}

/// What the kernel does when a socket is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnClose {
    /// Sends a reset and drops queued data.
    Reset,
    /// Sends queued data and then the end of the stream.
    Finish,
}

/// Returns the CPU on which the kernel last received data for the socket. If the peer is local,
/// this is the CPU on which the peer sent the data.
///
/// # Errors
/// The error of the kernel; `NotFound` if nothing was received yet.
pub fn incoming_cpu(socket: BorrowedFd<'_>) -> io::Result<usize> {
    let name = OptionName { level: libc::SOL_SOCKET, name: libc::SO_INCOMING_CPU };
    usize::try_from(option(socket, name)?).map_err(|_| io::ErrorKind::NotFound.into())
}

/// Sets what happens when the socket is closed or its process dies. Has no effect on UNIX sockets.
///
/// # Errors
/// The error of `setsockopt`.
pub fn set_on_close(socket: BorrowedFd<'_>, on_close: OnClose) -> io::Result<()> {
    let linger = match on_close {
        OnClose::Reset => Some(Duration::ZERO),
        OnClose::Finish => None,
    };
    Ok(sockopt::set_socket_linger(socket, linger)?)
}

/// Whether the kernel has this congestion control, and this process may use it.
#[must_use]
pub fn has_congestion_control(name: &str) -> bool {
    let options =
        StreamOptions { congestion_control: Some(name.to_owned()), ..StreamOptions::default() };
    new_stream(AddressFamily::INET, &options).is_ok()
}

/// Returns the congestion control of a TCP socket.
///
/// # Errors
/// The error of `getsockopt`; a UNIX socket has no congestion control.
pub fn congestion_control(socket: BorrowedFd<'_>) -> io::Result<String> {
    Ok(sockopt::tcp_congestion(socket)?)
}

/// Sets the congestion control of a TCP socket.
///
/// # Errors
/// `NotFound` if the kernel does not have it; otherwise the error of `setsockopt`.
pub fn set_congestion_control(socket: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    Ok(sockopt::set_tcp_congestion(socket, name)?)
}

/// Returns the number of bytes that were written to the socket and that the peer's kernel may still
/// acknowledge (`SIOCOUTQ`).
///
/// # Errors
/// The error of `ioctl`.
pub fn unacknowledged_bytes(socket: BorrowedFd<'_>) -> io::Result<usize> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: TIOCOUTQ (= SIOCOUTQ) writes one int to the pointer, which is valid for that.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    // After a reset, the kernel's count never changes again.
    if bytes > 0 && tcp_info(socket).is_ok_and(|info| info.state == TCP_CLOSE) {
        return Ok(0);
    }
    Ok(usize::try_from(bytes).unwrap_or(0))
}

/// The state of a connection that has ended.
const TCP_CLOSE: u8 = 7;

/// The kernel's information about a TCP connection (`TCP_INFO`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpInfo {
    /// The number of its state.
    pub state: u8,
    /// Smoothed round-trip time in microseconds.
    pub rtt_us: u32,
    /// The mean deviation of the round-trip time, in microseconds.
    pub rtt_deviation_us: u32,
    /// The smallest round-trip time in microseconds.
    pub rtt_min_us: u32,
    /// The retransmission timeout, in microseconds.
    pub rto_us: u32,
    /// Congestion window in segments.
    pub congestion_window_segments: u32,
    /// The slow start threshold in segments; `None` if there was no loss.
    pub slow_start_threshold_segments: Option<u32>,
    /// Maximum segment size in bytes.
    pub segment_bytes_max: u32,
    /// The kernel's estimate of the largest segment of the peer, in bytes.
    pub received_segment_bytes_max: u32,
    /// Path MTU in bytes.
    pub path_mtu_bytes: u32,
    /// The window that the peer advertises, in bytes (Linux 5.4); 0: not known.
    pub send_window_bytes: u32,
    /// The window that this host advertises to the peer, in bytes (Linux 6.2); 0: not known.
    pub receive_window_bytes: u32,
    /// Segments sent.
    pub segments_out: u32,
    /// Segments received.
    pub segments_in: u32,
    /// The number of written bytes that have not been sent yet.
    pub unsent_bytes: u32,
    /// The total number of retransmitted segments.
    pub retransmits: u32,
    /// The number of segments that count as lost.
    pub lost_segments: u32,
    /// The time since data was last sent.
    pub last_sent_ms: u32,
    /// The time since data was last received.
    pub last_received_ms: u32,
    /// The time since data was last sent or received.
    pub silent_ms: u32,
}

impl TcpInfo {
    /// Returns the name of the state, as `ss` prints it.
    #[must_use]
    pub fn state_word(&self) -> &'static str {
        const WORDS: [&str; 13] = [
            "unknown",
            "established",
            "syn-sent",
            "syn-recv",
            "fin-wait-1",
            "fin-wait-2",
            "time-wait",
            "closed",
            "close-wait",
            "last-ack",
            "listening",
            "closing",
            "syn-recv",
        ];
        WORDS.get(usize::from(self.state)).copied().unwrap_or("unknown")
    }
}

/// The size of `struct tcp_info` on the newest kernel; `libc::tcp_info` has only its first half.
const TCP_INFO_BYTES: usize = 256;

/// Reads `TCP_INFO`.
///
/// # Errors
/// The error of `getsockopt`; a UNIX socket has no `TCP_INFO`.
pub fn tcp_info(socket: BorrowedFd<'_>) -> io::Result<TcpInfo> {
    let mut info = [0_u8; TCP_INFO_BYTES];
    let mut length = libc::socklen_t::try_from(info.len()).unwrap_or(0);
    // SAFETY: the kernel writes at most `length` bytes, the size of the array.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    // Fields that an older kernel does not write stay 0. The offsets are those of <linux/tcp.h>.
    let number = |offset: usize| {
        let bytes = info.get(offset..offset + size_of::<u32>());
        bytes.and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_ne_bytes)
    };
    let threshold = number(76);
    let last_sent_ms = number(44);
    let last_received_ms = number(52);
    Ok(TcpInfo {
        state: info[0],
        rto_us: number(8),
        segment_bytes_max: number(16),
        received_segment_bytes_max: number(20),
        lost_segments: number(32),
        last_sent_ms,
        last_received_ms,
        path_mtu_bytes: number(60),
        rtt_us: number(68),
        rtt_deviation_us: number(72),
        slow_start_threshold_segments: (threshold < SSTHRESH_INFINITE).then_some(threshold),
        congestion_window_segments: number(80),
        retransmits: number(100),
        segments_out: number(136),
        segments_in: number(140),
        rtt_min_us: number(148),
        send_window_bytes: number(228),
        receive_window_bytes: number(232),
        unsent_bytes: notsent_bytes(socket),
        silent_ms: last_sent_ms.min(last_received_ms),
    })
}

/// `TCP_INFINITE_SSTHRESH`: the kernel has set no threshold.
const SSTHRESH_INFINITE: u32 = 0x7fff_ffff;

/// The sizes of a socket's buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferBytes {
    /// `SO_SNDBUF`.
    pub send: usize,
    /// `SO_RCVBUF`.
    pub receive: usize,
}

/// Reads the sizes of a socket's buffers, as the kernel counts them.
///
/// # Errors
/// The error of `getsockopt`.
pub fn buffer_bytes(socket: BorrowedFd<'_>) -> io::Result<BufferBytes> {
    let send = sockopt::socket_send_buffer_size(socket)?;
    let receive = sockopt::socket_recv_buffer_size(socket)?;
    Ok(BufferBytes { send, receive })
}

/// Returns the number of received bytes that have not been read (`FIONREAD`).
///
/// # Errors
/// The error of `ioctl`.
pub fn unread_bytes(socket: BorrowedFd<'_>) -> io::Result<usize> {
    let bytes = rustix::io::ioctl_fionread(socket)?;
    Ok(usize::try_from(bytes).unwrap_or(usize::MAX))
}

/// `SIOCOUTQNSD`, which even the oldest kernels support.
fn notsent_bytes(socket: BorrowedFd<'_>) -> u32 {
    const SIOCOUTQNSD: libc::c_ulong = 0x894b;
    let mut bytes: libc::c_int = 0;
    // SAFETY: SIOCOUTQNSD writes one int to the pointer, which is valid for that.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCOUTQNSD as _, &raw mut bytes) };
    if result < 0 { 0 } else { u32::try_from(bytes).unwrap_or(0) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, SocketAddr};

    fn pair() -> (OwnedFd, OwnedFd) {
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into();
        let listener = listen(&any, &StreamOptions::default()).unwrap();
        let address = local_address(listener.as_fd()).unwrap();
        let client = dial(&address, &StreamOptions::default()).unwrap().socket;
        loop {
            match accept(listener.as_fd()) {
                Ok(accepted) => return (client, accepted.socket),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn read_blocking(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<usize> {
        rustix::io::ioctl_fionbio(socket, false)?;
        read(socket, buffer)
    }

    #[test]
    fn dialled_and_accepted_sockets_detect_peers_that_no_longer_exist() {
        let (dialled, accepted) = pair();
        for socket in [dialled, accepted] {
            assert!(sockopt::socket_keepalive(&socket).unwrap());
            assert_eq!(sockopt::tcp_keepidle(&socket).unwrap(), KEEPALIVE_IDLE);
        }
    }

    #[test]
    fn bytes_cross_and_an_orderly_end_reads_as_end_of_file() {
        let (client, server) = pair();
        write(client.as_fd(), b"hello").unwrap();
        drop(client);
        let mut buffer = [0; 16];
        assert_eq!(read_blocking(server.as_fd(), &mut buffer).unwrap(), 5);
        assert_eq!(read_blocking(server.as_fd(), &mut buffer).unwrap(), 0);
    }

    #[test]
    fn last_bytes_arrive_with_the_end_that_follows_them() {
        for closes in [false, true] {
            let (client, server) = pair();
            assert_eq!(write_last(client.as_fd(), b"bye").unwrap(), 3);
            match closes {
                true => drop(client),
                false => shutdown_write(client.as_fd()).unwrap(),
            }
            let mut buffer = [0; 16];
            assert_eq!(read_blocking(server.as_fd(), &mut buffer).unwrap(), 3);
            assert_eq!(read_blocking(server.as_fd(), &mut buffer).unwrap(), 0);
        }
    }

    #[test]
    fn reset_on_close_reads_as_a_reset() {
        let (client, server) = pair();
        set_on_close(client.as_fd(), OnClose::Reset).unwrap();
        drop(client);
        let error = read_blocking(server.as_fd(), &mut [0; 16]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    }

    #[test]
    fn accepted_sockets_inherit_the_reset_and_the_congestion_control() {
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into();
        let options =
            StreamOptions { congestion_control: Some("reno".into()), reset_on_exit: true };
        let listener = listen(&any, &options).unwrap();
        let address = local_address(listener.as_fd()).unwrap();
        let client = dial(&address, &StreamOptions::default()).unwrap().socket;
        rustix::io::ioctl_fionbio(&listener, false).unwrap();
        let server = accept(listener.as_fd()).unwrap().socket;
        assert_eq!(congestion_control(server.as_fd()).unwrap(), "reno");
        drop(server);
        let error = read_blocking(client.as_fd(), &mut [0; 16]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    }

    #[test]
    fn sockets_of_an_agent_on_loopback_have_not_the_systems_congestion_control() {
        let any: SocketAddrAny = SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into();
        let options = StreamOptions::default();
        let listener = listen(&any, &options.for_address(&any)).unwrap();
        let address = local_address(listener.as_fd()).unwrap();
        let client = dial(&address, &options.for_address(&address)).unwrap().socket;
        rustix::io::ioctl_fionbio(&listener, false).unwrap();
        let server = accept(listener.as_fd()).unwrap().socket;
        for socket in [&listener, &client, &server] {
            assert_eq!(congestion_control(socket.as_fd()).unwrap(), "reno");
        }
    }

    #[test]
    fn what_is_configured_and_other_addresses_are_left_alone() {
        let at = |address: &str| SocketAddrAny::from(address.parse::<SocketAddr>().unwrap());
        let options = StreamOptions::default();
        for elsewhere in ["192.0.2.1:1", "[2001:db8::1]:1", "0.0.0.0:1", "[::]:1"] {
            assert_eq!(options.for_address(&at(elsewhere)), options, "{elsewhere}");
        }
        for here in ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
            let chosen = options.for_address(&at(here)).congestion_control;
            assert_eq!(chosen.as_deref(), Some("reno"), "{here}");
        }
        let named = StreamOptions {
            congestion_control: Some("bbr".to_owned()),
            ..StreamOptions::default()
        };
        assert_eq!(named.for_address(&at("127.0.0.1:1")), named);
        let unix = SocketAddrAny::from(UnixAddress::new_abstract_name(b"x").unwrap());
        assert_eq!(options.for_address(&unix), options);
    }

    #[test]
    fn a_reset_leaves_nothing_to_wait_for() {
        let (client, server) = pair();
        while write(client.as_fd(), &[1; 65536]).is_ok() {}
        assert!(unacknowledged_bytes(client.as_fd()).unwrap() > 0);
        drop(server);
        while take_error(client.as_fd()).is_ok() {}
        assert_eq!(unacknowledged_bytes(client.as_fd()).unwrap(), 0);
    }

    #[test]
    fn tcp_info_knows_the_segment_size() {
        let (client, _server) = pair();
        let info = tcp_info(client.as_fd()).unwrap();
        assert!(info.segment_bytes_max > 500 && info.segments_out > 0, "{info:?}");
        assert_eq!((info.state_word(), info.slow_start_threshold_segments), ("established", None));
        assert!(buffer_bytes(client.as_fd()).unwrap().send > 1000);
        assert_eq!(unread_bytes(client.as_fd()).unwrap(), 0);
        assert_eq!(unacknowledged_bytes(client.as_fd()).unwrap(), 0);
    }
}
