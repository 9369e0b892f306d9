//! Implements the program that the tests run inside a namespace. The program reads commands, one on
//! each line. It executes each command, and answers each command with one line.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, FromRawFd};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(20);

/// The number of bytes that `pour` sends.
pub(crate) const POURED_BYTES: usize = 16 << 20;

pub(crate) fn run(orders: &str) {
    // Opened sockets stay open until the launcher has read the answers and closes our input.
    let mut kept: Vec<Box<dyn Send>> = Vec::new();
    let mut to_launcher = std::io::stdout();
    for order in orders.lines() {
        let (verb, what) = order.split_once(' ').unwrap_or((order, ""));
        let answer = match verb {
            "tcp" => connect(what, &mut kept),
            "pour" => pour(what),
            "udp" => ask(what, &mut kept),
            "send" => send(what, &mut kept).map(|_| "sent".to_owned()),
            "listen" => TcpListener::bind(what).map(|listener| {
                kept.push(Box::new(listener));
                "listening".to_owned()
            }),
            "ping" => ping(what),
            "echo" => echo(what),
            "nest" => Ok(super::scenarios::nest(what)),
            "serve" => serve(what),
            "answer" => answer_one(what),
            "socket" => socket(what.parse().unwrap()),
            "uring" => uring(),
            "read" => std::fs::read_to_string(what),
            "list" => Ok(std::fs::read_dir(what).unwrap().count().to_string()),
            "status" => Ok(status(what)),
            "take-mounts" => take_mounts(),
            other => panic!("no such order: {other}"),
        };
        let line = answer.unwrap_or_else(|error| {
            error.raw_os_error().map_or_else(|| error.to_string(), |errno| format!("errno {errno}"))
        });
        writeln!(to_launcher, "{}", line.trim_end()).unwrap();
        to_launcher.flush().unwrap();
    }
    let _ = std::io::stdin().read(&mut [0]);
}

/// Creates a mount namespace of its own, as programs with a sandbox do.
fn take_mounts() -> std::io::Result<String> {
    // SAFETY: takes no pointers; this process has one thread.
    match unsafe { libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS) } {
        0 => Ok("taken".to_owned()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// Returns one line of `/proc/self/status`, or the soft limit of descriptors.
fn status(what: &str) -> String {
    if what == "descriptors" {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        return format!("{:?}", limit.current);
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(what)?.strip_prefix(':'));
    line.unwrap().trim().replace('\t', " ")
}

fn connect(to: &str, kept: &mut Vec<Box<dyn Send>>) -> std::io::Result<String> {
    let stream = TcpStream::connect(to)?;
    let own = stream.local_addr()?;
    kept.push(Box::new(stream));
    Ok(format!("from {own}"))
}

/// Sends many bytes in large writes. Returns the average packet size in the namespace, and the
/// congestion control.
fn pour(to: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(to)?;
    let version = if to.starts_with('[') { "6" } else { "4" };
    let [packets_before, bytes_before] = received(version);
    let piece = vec![0; POURED_BYTES / 64];
    for _ in 0..64 {
        stream.write_all(&piece)?;
    }
    let [packets, bytes] = received(version);
    let mean = (bytes - bytes_before) / (packets - packets_before).max(1);
    Ok(format!("{mean} bytes by {}", tacit_sys::socket::congestion_control(stream.as_fd())?))
}

/// Returns the number of packets and bytes that IP of this version has received in the namespace.
fn received(version: &str) -> [usize; 2] {
    let of = |file: &str, group: &str, name: &str| -> usize {
        let text = std::fs::read_to_string(file).unwrap();
        let lines: Vec<_> = text.lines().filter_map(|line| line.strip_prefix(group)).collect();
        // IPv4 has a line of names and a line of values; IPv6 has a name and its value in each
        // line.
        let found = match lines[..] {
            [names, values] => {
                let at = names.split_whitespace().position(|one| one == name);
                at.and_then(|at| values.split_whitespace().nth(at))
            }
            _ => lines.iter().find_map(|line| line.strip_prefix(name)).map(str::trim),
        };
        found.unwrap().parse().unwrap()
    };
    match version {
        "6" => ["InReceives", "InOctets"].map(|name| of("/proc/net/snmp6", "Ip6", name)),
        _ => [
            of("/proc/net/snmp", "Ip:", "InReceives"),
            of("/proc/net/netstat", "IpExt:", "InOctets"),
        ],
    }
}

/// Sends one datagram from a connected socket, as resolvers do.
fn send(to: &str, kept: &mut Vec<Box<dyn Send>>) -> std::io::Result<UdpSocket> {
    let to: SocketAddr = to.parse().unwrap();
    let socket = UdpSocket::bind(if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" })?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.connect(to)?;
    socket.send(b"question")?;
    kept.push(Box::new(socket.try_clone()?));
    Ok(socket)
}

/// Sends one datagram and receives the answer.
fn ask(to: &str, kept: &mut Vec<Box<dyn Send>>) -> std::io::Result<String> {
    let socket = send(to, kept)?;
    let mut answer = [0; 64];
    let length = socket.recv(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer[..length]).into_owned())
}

/// Sends an echo request, and waits for the answer.
fn ping(to: &str) -> std::io::Result<String> {
    let to: std::net::IpAddr = to.parse().unwrap();
    let (family, protocol) = match to {
        std::net::IpAddr::V4(_) => (libc::AF_INET, libc::IPPROTO_ICMP),
        std::net::IpAddr::V6(_) => (libc::AF_INET6, libc::IPPROTO_ICMPV6),
    };
    // SAFETY: takes no pointers.
    let made = unsafe { libc::socket(family, libc::SOCK_DGRAM, protocol) };
    if made < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: the descriptor is open, and nothing else owns it.
    let socket = UdpSocket::from(unsafe { std::os::fd::OwnedFd::from_raw_fd(made) });
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.connect((to, 0))?;
    let kind = if to.is_ipv4() { 8 } else { 128 };
    socket.send(&[kind, 0, 0, 0, 0, 0, 0, 1])?;
    let mut answer = [0; 8];
    socket.recv(&mut answer)?;
    Ok(format!("answer of type {}", answer[0]))
}

/// Receives one datagram, and sends it back.
fn echo(at: &str) -> std::io::Result<String> {
    let socket = UdpSocket::bind(at)?;
    println!("waiting");
    socket.set_read_timeout(Some(PATIENCE))?;
    let mut buffer = [0; 64];
    let (length, from) = socket.recv_from(&mut buffer)?;
    socket.send_to(&buffer[..length], from)?;
    Ok(format!("peer {from}"))
}

/// Accepts one connection and returns the address of the client.
fn serve(at: &str) -> std::io::Result<String> {
    let (_stream, peer) = TcpListener::bind(at)?.accept()?;
    Ok(format!("peer {peer}"))
}

/// Runs a DNS server of the program's own, which answers a query of the same program.
fn answer_one(at: &str) -> std::io::Result<String> {
    let server = UdpSocket::bind(at)?;
    let loopback = if at.starts_with('[') { "[::1]:0" } else { "127.0.0.1:0" };
    let client = UdpSocket::bind(loopback)?;
    client.set_read_timeout(Some(PATIENCE))?;
    server.set_read_timeout(Some(PATIENCE))?;
    client.send_to(b"mine", at)?;
    let mut question = [0; 64];
    let (length, from) = server.recv_from(&mut question)?;
    assert_eq!(from, client.local_addr()?);
    Ok(String::from_utf8_lossy(&question[..length]).into_owned())
}

fn socket(family: libc::c_int) -> std::io::Result<String> {
    // SAFETY: takes no pointers; the descriptor, if any, lives until this process ends.
    let made = unsafe { libc::socket(family, libc::SOCK_STREAM, 0) };
    if made < 0 { Err(std::io::Error::last_os_error()) } else { Ok("made".into()) }
}

fn uring() -> std::io::Result<String> {
    // SAFETY: a null pointer for the parameters: the kernel answers EFAULT if it gets that far.
    let made = unsafe { libc::syscall(425, 1, std::ptr::null_mut::<u8>()) };
    if made < 0 { Err(std::io::Error::last_os_error()) } else { Ok("made".into()) }
}
