//! Creates, connects, accepts, measures and closes stream sockets.
//!
//! All sockets are non-blocking and close-on-exec. Socket options are set on the listener, from
//! which accepted sockets inherit them, or before `connect`. They are not set later: if the
//! congestion control is changed after accept, the socket keeps the pacing of the old algorithm.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketAddrAny, SocketFlags, SocketType, sockopt,
};

use crate::mark;
use crate::option::{OptionName, option};

pub use rustix::net::SocketAddrAny as SocketAddress;
pub use rustix::net::SocketAddrUnix as UnixAddress;
pub use rustix::net::UCred as PeerCredentials;

/// Connections the kernel queues for us before it drops; `net.core.somaxconn` caps it.
pub const LISTEN_BACKLOG: i32 = 4096;

/// Idle time before the kernel probes whether the peer still exists.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(120);

/// What a stream socket is given before it listens or connects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StreamOptions {
    /// TCP congestion control by name; `None` leaves the system's.
    pub congestion_control: Option<String>,
    /// Whether the kernel resets the connection when this process ends without closing it in
    /// order. A peer in clear text has no other way to tell an end from a cut.
    pub reset_on_exit: bool,
}

/// What agents use on loopback where nothing is configured: every kernel has it, and every user may
/// choose it. A model of the path, such as bbr, costs twice the CPU time there.
const LOOPBACK_CONGESTION_CONTROL: &str = "reno";

impl StreamOptions {
    /// These options for a socket of an agent that listens at `address` or connects to it: on
    /// loopback it does not have the congestion control of the system.
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

/// What listeners hand on to the sockets they accept, and dialled ones have from the start.
fn set_tcp_options(socket: BorrowedFd<'_>, options: &StreamOptions) -> io::Result<()> {
    sockopt::set_tcp_nodelay(socket, true)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, KEEPALIVE_IDLE)?;
    // An urgent byte stays in its place in the stream; a plain read would leave it out.
    sockopt::set_socket_oobinline(socket, true)?;
    if let Some(name) = &options.congestion_control {
        sockopt::set_tcp_congestion(socket, name)?;
    }
    Ok(())
}

/// Opens a listening socket.
///
/// # Errors
/// Whatever `socket`, `bind` or `listen` answer; an unknown congestion control is `NotFound`.
pub fn listen(address: &SocketAddrAny, options: &StreamOptions) -> io::Result<OwnedFd> {
    let socket = reserve(address, options)?;
    resume_listening(socket.as_fd())?;
    Ok(socket)
}

/// Binds an address without listening there: no other socket can bind it, and the kernel refuses
/// connections to it until [`resume_listening`].
///
/// # Errors
/// As [`listen`].
pub fn reserve(address: &SocketAddrAny, options: &StreamOptions) -> io::Result<OwnedFd> {
    let family = address.address_family();
    let socket = new_stream(family, options)?;
    if family != AddressFamily::UNIX {
        sockopt::set_socket_reuseaddr(&socket, true)?;
    }
    if family == AddressFamily::INET6 {
        // `[::]` means IPv6: IPv4 has its own rule, and two listens must not collide.
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    rustix::net::bind(&socket, address)?;
    Ok(socket)
}

/// Listens at the address that the socket has.
///
/// # Errors
/// The error of `listen`.
pub fn resume_listening(socket: BorrowedFd<'_>) -> io::Result<()> {
    Ok(rustix::net::listen(socket, LISTEN_BACKLOG)?)
}

/// Stops listening and keeps the address. Who waits to be accepted is reset.
///
/// # Errors
/// The error of `shutdown`.
pub fn suspend_listening(socket: BorrowedFd<'_>) -> io::Result<()> {
    Ok(rustix::net::shutdown(socket, Shutdown::Read)?)
}

/// Opens a listening UNIX socket whose file never has a wider mode than `mode`, not even for a
/// moment; `prepare` runs when the file exists and no client can connect yet.
///
/// # Errors
/// Whatever `socket`, `bind`, `prepare` or `listen` answer.
pub fn listen_unix(
    address: &SocketAddrAny,
    mode: u32,
    prepare: impl FnOnce() -> io::Result<()>,
) -> io::Result<OwnedFd> {
    let socket = new_stream(AddressFamily::UNIX, &StreamOptions::default())?;
    // The file takes its mode from the socket, less the umask.
    rustix::fs::fchmod(&socket, rustix::fs::Mode::from_raw_mode(mode))?;
    rustix::net::bind(&socket, address)?;
    prepare()?;
    rustix::net::listen(&socket, LISTEN_BACKLOG)?;
    Ok(socket)
}

/// Gives a socket made elsewhere its options; those of a listener are inherited by what it accepts.
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

/// A socket that connects.
#[derive(Debug)]
pub struct DialledSocket {
    /// The socket.
    pub socket: OwnedFd,
    /// It is connected already; if not, it will be or fail when it turns writable ([`take_error`]
    /// tells which).
    pub is_connected: bool,
}

/// Begins to connect.
///
/// # Errors
/// The error of `socket` or `connect`.
pub fn dial(address: &SocketAddrAny, options: &StreamOptions) -> io::Result<DialledSocket> {
    let socket = new_stream(address.address_family(), options)?;
    match rustix::net::connect(&socket, address) {
        Ok(()) => Ok(DialledSocket { socket, is_connected: true }),
        Err(Errno::INPROGRESS) => Ok(DialledSocket { socket, is_connected: false }),
        Err(errno) => Err(errno.into()),
    }
}

/// A connection taken from a listener.
#[derive(Debug)]
pub struct AcceptedSocket {
    /// Its socket.
    pub socket: OwnedFd,
    /// Who connected, where that has an address.
    pub peer: Option<SocketAddrAny>,
}

/// Takes one connection from a listener.
///
/// # Errors
/// `WouldBlock` if there is none; whatever else `accept4` answers.
pub fn accept(listener: BorrowedFd<'_>) -> io::Result<AcceptedSocket> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (socket, peer) = rustix::net::acceptfrom_with(listener, flags)?;
    Ok(AcceptedSocket { socket, peer })
}

/// Whether a socket that was dialled is connected by now.
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

/// The error a socket holds, if any; reading it clears it.
///
/// # Errors
/// The error it held, or whatever `getsockopt` answers.
pub fn take_error(socket: BorrowedFd<'_>) -> io::Result<()> {
    Ok(sockopt::socket_error(socket)??)
}

/// The socket's own address.
///
/// # Errors
/// The error of `getsockname`.
pub fn local_address(socket: BorrowedFd<'_>) -> io::Result<SocketAddrAny> {
    Ok(rustix::net::getsockname(socket)?)
}

/// The address of the other end; `None` where it has none.
///
/// # Errors
/// The error of `getpeername`.
pub fn peer_address(socket: BorrowedFd<'_>) -> io::Result<Option<SocketAddrAny>> {
    Ok(rustix::net::getpeername(socket)?)
}

/// Who is at the other end of a UNIX socket, as the kernel vouches for it.
///
/// # Errors
/// The error of `getsockopt`.
pub fn peer_credentials(socket: BorrowedFd<'_>) -> io::Result<PeerCredentials> {
    Ok(sockopt::socket_peercred(socket)?)
}

/// Whether the other side of a UNIX stream has closed it.
#[must_use]
pub fn is_hung_up(socket: BorrowedFd<'_>) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut polled = [PollFd::new(&socket, PollFlags::RDHUP)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut polled, Some(&now)).is_ok()
        && polled[0].revents().intersects(PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR)
}

/// Whether an error of [`accept`] is this process's or this host's want of descriptors or memory;
/// all others are about the one connection.
#[must_use]
pub fn is_shortage(error: &io::Error) -> bool {
    let shortages = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
    Errno::from_io_error(error).is_some_and(|errno| shortages.contains(&errno))
}

/// Reads into several buffers with one call.
///
/// # Errors
/// `WouldBlock` if there is nothing; whatever else `readv` answers.
pub fn read_vectored(
    socket: BorrowedFd<'_>,
    buffers: &mut [io::IoSliceMut<'_>],
) -> io::Result<usize> {
    Ok(rustix::io::readv(socket, buffers)?)
}

/// Reads into one buffer.
///
/// # Errors
/// `WouldBlock` if there is nothing; whatever else `recv` answers.
pub fn read(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<usize> {
    Ok(rustix::net::recv(socket, buffer, RecvFlags::empty())?.0)
}

/// Reads onto the end of a buffer, as much as it has room for.
///
/// # Errors
/// `WouldBlock` if there is nothing; whatever else `recv` answers.
pub fn read_onto(socket: BorrowedFd<'_>, buffer: &mut Vec<u8>) -> io::Result<usize> {
    let room = rustix::buffer::spare_capacity(buffer);
    Ok(rustix::net::recv(socket, room, RecvFlags::empty())?.0)
}

/// Looks at what could be read, and leaves it there.
///
/// # Errors
/// `WouldBlock` if there is nothing; whatever else `recv` answers.
pub fn peek(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<usize> {
    Ok(rustix::net::recv(socket, buffer, RecvFlags::PEEK)?.0)
}

/// Writes from several buffers with one call; a closed peer is an error, never a signal.
///
/// # Errors
/// `WouldBlock` if the socket is full; whatever else `sendmsg` answers.
pub fn write_vectored(socket: BorrowedFd<'_>, buffers: &[io::IoSlice<'_>]) -> io::Result<usize> {
    let mut control = rustix::net::SendAncillaryBuffer::default();
    Ok(rustix::net::sendmsg(socket, buffers, &mut control, SendFlags::NOSIGNAL)?)
}

/// Writes from one buffer; a closed peer is an error, never a signal.
///
/// # Errors
/// `WouldBlock` if the socket is full; whatever else `send` answers.
pub fn write(socket: BorrowedFd<'_>, buffer: &[u8]) -> io::Result<usize> {
    Ok(rustix::net::send(socket, buffer, SendFlags::NOSIGNAL)?)
}

/// Writes what the end follows at once: the bytes wait in the kernel, not longer than 0.2 s, for
/// [`shutdown_write`] or the close, and leave in one segment with the end. As `write` otherwise.
///
/// # Errors
/// `WouldBlock` if the socket is full; whatever else `send` answers.
pub fn write_last(socket: BorrowedFd<'_>, buffer: &[u8]) -> io::Result<usize> {
    Ok(rustix::net::send(socket, buffer, SendFlags::NOSIGNAL | SendFlags::MORE)?)
}

/// Ends our direction; the peer reads an end of file after what is queued.
///
/// # Errors
/// The error of `shutdown`.
pub fn shutdown_write(socket: BorrowedFd<'_>) -> io::Result<()> {
    Ok(rustix::net::shutdown(socket, Shutdown::Write)?)
}

/// What closing a socket does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnClose {
    /// Sends a reset and drops what is queued.
    Reset,
    /// Sends what is queued, and then the end of the stream.
    Finish,
}

/// Returns the CPU on which the kernel received for the socket last: of a local peer, the one where
/// the peer was when it sent.
///
/// # Errors
/// The kernel's. `NotFound`: nothing was received yet.
pub fn incoming_cpu(socket: BorrowedFd<'_>) -> io::Result<usize> {
    let name = OptionName { level: libc::SOL_SOCKET, name: libc::SO_INCOMING_CPU };
    usize::try_from(option(socket, name)?).map_err(|_| io::ErrorKind::NotFound.into())
}

/// Chooses what closing the socket (or the death of the process) does. Has no effect on UNIX
/// sockets.
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

/// Whether the kernel knows the congestion control, and this process may use it.
#[must_use]
pub fn has_congestion_control(name: &str) -> bool {
    let options =
        StreamOptions { congestion_control: Some(name.to_owned()), ..StreamOptions::default() };
    new_stream(AddressFamily::INET, &options).is_ok()
}

/// The congestion control of a TCP socket.
///
/// # Errors
/// Whatever `getsockopt` answers; a UNIX socket has none.
pub fn congestion_control(socket: BorrowedFd<'_>) -> io::Result<String> {
    Ok(sockopt::tcp_congestion(socket)?)
}

/// Bytes written to the socket that the peer's kernel has not acknowledged and still might
/// (`SIOCOUTQ`).
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
    // The count of a connection that was reset never changes again.
    if bytes > 0 && tcp_info(socket).is_ok_and(|info| info.state == TCP_CLOSE) {
        return Ok(0);
    }
    Ok(usize::try_from(bytes).unwrap_or(0))
}

/// What a connection's state is once it is over.
const TCP_CLOSE: u8 = 7;

/// What the kernel knows of one TCP connection (`TCP_INFO`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpInfo {
    /// Number of the state it is in.
    pub state: u8,
    /// Smoothed round-trip time in microseconds.
    pub rtt_us: u32,
    /// Its mean deviation in microseconds.
    pub rtt_deviation_us: u32,
    /// The smallest round-trip time in microseconds.
    pub rtt_min_us: u32,
    /// Timeout of retransmission in microseconds.
    pub rto_us: u32,
    /// Congestion window in segments.
    pub congestion_window_segments: u32,
    /// Slow start threshold in segments; `None`: there was no loss.
    pub slow_start_threshold_segments: Option<u32>,
    /// Maximum segment size in bytes.
    pub segment_bytes_max: u32,
    /// The kernel's estimate of the largest segment that the peer sends.
    pub received_segment_bytes_max: u32,
    /// Path MTU in bytes.
    pub path_mtu_bytes: u32,
    /// The window that the peer advertises (Linux 5.4); 0: not known.
    pub send_window_bytes: u32,
    /// The window that is advertised to the peer (Linux 6.2); 0: not known.
    pub receive_window_bytes: u32,
    /// Segments sent.
    pub segments_out: u32,
    /// Segments received.
    pub segments_in: u32,
    /// Bytes written that have not been sent yet.
    pub unsent_bytes: u32,
    /// Segments sent again, in total.
    pub retransmits: u32,
    /// Segments that are taken for lost.
    pub lost_segments: u32,
    /// How long ago data was sent last.
    pub last_sent_ms: u32,
    /// How long ago data was received last.
    pub last_received_ms: u32,
    /// How long ago bytes were sent or received last.
    pub silent_ms: u32,
}

impl TcpInfo {
    /// The name of the state, as `ss` prints it.
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

/// `struct tcp_info` as the newest kernel fills it; `libc::tcp_info` has the first half only.
const TCP_INFO_BYTES: usize = 256;

/// Reads `TCP_INFO`.
///
/// # Errors
/// Whatever `getsockopt` answers; a UNIX socket has none.
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
    // What an older kernel does not write stays 0. Offsets are those of <linux/tcp.h>.
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
/// Whatever `getsockopt` answers.
pub fn buffer_bytes(socket: BorrowedFd<'_>) -> io::Result<BufferBytes> {
    let send = sockopt::socket_send_buffer_size(socket)?;
    let receive = sockopt::socket_recv_buffer_size(socket)?;
    Ok(BufferBytes { send, receive })
}

/// Bytes received that are not read (`FIONREAD`).
///
/// # Errors
/// Whatever `ioctl` answers.
pub fn unread_bytes(socket: BorrowedFd<'_>) -> io::Result<usize> {
    let bytes = rustix::io::ioctl_fionread(socket)?;
    Ok(usize::try_from(bytes).unwrap_or(usize::MAX))
}

/// `SIOCOUTQNSD`, which the oldest kernels have too.
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
