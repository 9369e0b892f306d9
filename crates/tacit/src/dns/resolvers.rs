//! Whom to ask, and asking.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tacit_core::dns::{self, Configuration, Nameserver};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};

use super::host_file::HostFile;
use super::{PORT, Transport};

/// How long one resolver may take before the next is asked: programs try again after five.
const RESOLVER_WAIT: Duration = Duration::from_secs(3);
/// A datagram at most: EDNS allows no more in practice.
const DATAGRAM_BYTES_MAX: usize = 8192;

/// The host's resolvers, as its file says now, or those that an operator gave.
#[derive(Debug)]
pub struct Resolvers {
    given: Vec<SocketAddr>,
    of_host: Mutex<HostResolvers>,
}

/// The resolvers of the host.
#[derive(Debug)]
struct HostResolvers {
    file: HostFile,
    /// What it said when it was read last.
    configuration: Configuration,
}

impl Resolvers {
    /// The resolvers that were given, or else those of the host.
    #[must_use]
    pub fn new(given: &[SocketAddr]) -> Self {
        let of_host = HostResolvers {
            file: HostFile::new("/etc/resolv.conf"),
            configuration: Configuration::read(""),
        };
        Self { given: given.to_vec(), of_host: Mutex::new(of_host) }
    }

    /// Where to ask, in order.
    #[must_use]
    pub fn addresses(&self) -> Vec<SocketAddr> {
        if !self.given.is_empty() {
            return self.given.clone();
        }
        self.configured(|configuration| {
            configuration.nameservers.iter().filter_map(socket_address).collect()
        })
    }

    /// The domains that programs try behind short names.
    #[must_use]
    pub fn search(&self) -> Vec<String> {
        self.configured(|configuration| configuration.search.clone())
    }

    /// Looks at the file first: it costs a system call, and a question that goes nowhere much more.
    fn configured<T>(&self, take: impl FnOnce(&Configuration) -> T) -> T {
        let mut of_host = self.of_host.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(text) = of_host.file.news() {
            of_host.configuration = Configuration::read(&text);
        }
        take(&of_host.configuration)
    }
}

/// `None` for an interface that is not there.
fn socket_address(server: &Nameserver) -> Option<SocketAddr> {
    match (server.address, &server.interface) {
        (IpAddr::V6(address), Some(interface)) => {
            let number = interface.parse().ok().or_else(|| interface_number(interface))?;
            Some(SocketAddrV6::new(address, PORT, 0, number).into())
        }
        (address, _) => Some(SocketAddr::new(address, PORT)),
    }
}

fn interface_number(name: &str) -> Option<u32> {
    let path = format!("/sys/class/net/{name}/ifindex");
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Asks one resolver; by stream if that is how the program asked and a datagram was too short.
///
/// # Errors
/// The kernel's, or there is no answer in time.
pub(super) async fn ask(
    resolver: SocketAddr,
    query: &[u8],
    transport: Transport,
) -> io::Result<Vec<u8>> {
    let response = in_time(ask_by_datagram(resolver, query)).await?;
    if transport == Transport::Stream && dns::is_truncated(&response) {
        return in_time(ask_by_stream(resolver, query)).await;
    }
    Ok(response)
}

async fn in_time<T>(asked: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    let late = |_| io::Error::new(io::ErrorKind::TimedOut, "no answer in time");
    tokio::time::timeout(RESOLVER_WAIT, asked).await.map_err(late)?
}

/// From a port of its own; what answers another question is passed over.
async fn ask_by_datagram(resolver: SocketAddr, query: &[u8]) -> io::Result<Vec<u8>> {
    let any: SocketAddr = match resolver {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any).await?;
    socket.connect(resolver).await?;
    socket.send(query).await?;
    let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
    loop {
        let count = socket.recv(&mut buffer).await?;
        if dns::is_answer_to(&buffer[..count], query) {
            buffer.truncate(count);
            return Ok(buffer);
        }
    }
}

async fn ask_by_stream(resolver: SocketAddr, query: &[u8]) -> io::Result<Vec<u8>> {
    let invalid = |text: &str| io::Error::new(io::ErrorKind::InvalidData, text.to_owned());
    let mut stream = TcpStream::connect(resolver).await?;
    let framed = dns::framed(query).ok_or_else(|| invalid("a query that is too long"))?;
    stream.write_all(&framed).await?;
    let length = stream.read_u16().await?;
    let mut response = vec![0; usize::from(length)];
    stream.read_exact(&mut response).await?;
    if dns::is_answer_to(&response, query) {
        Ok(response)
    } else {
        Err(invalid("the resolver answered another question"))
    }
}
