//! Runs tacit's IKE connection in a process of its own (the driver). Moves datagrams between a UDP
//! socket and this connection.

use std::io::BufRead;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

use tacit_ipsec::ike::{
    ChildConfig, EspProposal, IkeConfig, IkeConnection, IkeEvent, IkeIdentity, IkePath,
    IkeProposal, IkeTransmit, InitialContact, InnerConfig, KeGroup, LocalAuth, Prf, RandomFailed,
    RandomSource, RemoteAuth,
};
use tacit_ipsec::{Cipher, EspSpi, IntegrityHash, SecretBytes, TrafficSelector};

use super::keys::{OwnKey, TrustedPeer};
use super::network::Network;
use super::ping::DataPath;

#[derive(Debug)]
struct SystemRandom;

impl RandomSource for SystemRandom {
    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), RandomFailed> {
        aws_lc_rs::rand::fill(bytes).map_err(|_| RandomFailed)
    }
}

/// Runs until the connection has ended.
pub(crate) fn run(role: &str) {
    let address = |name| {
        let address: IpAddr = std::env::var(name).unwrap().parse().unwrap();
        SocketAddr::from((address, 4500))
    };
    let path = IkePath { local: address("IKE_OWN"), remote: address("IKE_PEER") };
    let percent = std::env::var("IKE_LOSS").unwrap().parse().unwrap();
    let mut network = Network::bind(path.local, path.remote, percent);
    let config = Arc::new(config(&std::env::var("IKE_PROPOSAL").unwrap()));
    let commands = commands();
    println!("\nready");
    let mut active: Option<EspSpi> = None;
    let mut data = DataPath::default();
    let mut connection = (role == "initiator").then(|| {
        IkeConnection::initiate(Arc::clone(&config), path, Box::new(SystemRandom), Instant::now())
    });
    let mut buffer = vec![0; 65536];
    loop {
        if let Some(connection) = &mut connection {
            for command in commands.try_iter() {
                match command.as_str() {
                    "ping" => network.send(data.ping()),
                    "ping6" => network.send(data.ping6()),
                    "stream" => data.start_stream(),
                    "stop" => data.stop_stream(),
                    _ => obey(connection, &command, active),
                }
            }
            if connection.poll_timeout().is_some_and(|at| at <= Instant::now()) {
                connection.handle_timeout(Instant::now());
            }
            while let Some(transmit) = connection.poll_transmit() {
                network.send(datagram(transmit));
            }
            while let Some(event) = connection.poll_event() {
                match &event {
                    IkeEvent::ChildInstalled(child) => data.install(child),
                    IkeEvent::ChildActive(spi) => {
                        active = Some(*spi);
                        data.activate(*spi);
                    }
                    IkeEvent::ChildRemoved(spi) => data.remove(*spi),
                    _ => {}
                }
                print(&event);
            }
        }
        for packet in data.poll_stream(Instant::now()) {
            network.send(packet);
        }
        let Ok(length) = network.receive(&mut buffer) else { continue };
        // ESP has no non-ESP marker.
        let Some(message) = buffer[..length].strip_prefix(&[0; 4]) else {
            data.receive(&mut buffer[..length]);
            continue;
        };
        match &mut connection {
            Some(connection) => {
                connection.handle_datagram(Instant::now(), path.remote, message);
            }
            None => {
                let random = Box::new(SystemRandom);
                let config = Arc::clone(&config);
                match IkeConnection::accept(&[config], path, random, Instant::now(), message) {
                    Ok(accepted) => connection = Some(accepted),
                    Err(refusal) => println!("refused {}", refusal.failure),
                }
            }
        }
    }
}

fn commands() -> Receiver<String> {
    let (sender, receiver) = sync_channel(16);
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            sender.send(line.unwrap()).unwrap();
        }
        // The script has ended.
        std::process::abort();
    });
    receiver
}

fn obey(connection: &mut IkeConnection, command: &str, active: Option<EspSpi>) {
    let now = Instant::now();
    match command {
        "rekey" => connection.rekey(now),
        "rekey-child" => connection.rekey_child(now, active.unwrap()),
        "close" => connection.close(now),
        other => panic!("unknown command {other}"),
    }
}

fn datagram(transmit: IkeTransmit) -> Vec<u8> {
    match transmit {
        IkeTransmit::Message(bytes) => [&[0; 4], bytes.as_slice()].concat(),
        IkeTransmit::Keepalive => vec![0xff],
    }
}

fn print(event: &IkeEvent) {
    match event {
        IkeEvent::Established { peer, proposal } => println!("established {peer} {proposal:?}"),
        IkeEvent::AddressesAssigned(inner) => {
            println!("assigned {:?} {:?}", inner.addresses, inner.resolvers);
        }
        IkeEvent::InitialContact => println!("initial-contact"),
        IkeEvent::Rekeyed => println!("rekeyed"),
        IkeEvent::ChildInstalled(child) => println!(
            "installed {:08x} {:08x} {:?}",
            child.inbound.spi.number(),
            child.outbound.spi.number(),
            child.remote
        ),
        IkeEvent::ChildActive(spi) => println!("active {:08x}", spi.number()),
        IkeEvent::ChildRemoved(spi) => println!("removed {:08x}", spi.number()),
        IkeEvent::ExchangeFailed(failure) => println!("exchange {} {failure}", failure.kind),
        IkeEvent::Unanswered(request) => println!("unanswered {request:?}"),
        IkeEvent::PeerMoved(to) => println!("moved {to}"),
        IkeEvent::Failed(failure) => println!("failed {} {failure}", failure.kind),
        IkeEvent::Closed => println!("closed"),
    }
}

fn config(proposal: &str) -> IkeConfig {
    let (ike, esp, prf, group) = match proposal {
        "gcm" => (Cipher::Aes256Gcm, Cipher::Aes256Gcm, Prf::HmacSha384, KeGroup::P256),
        "chacha" => {
            let cipher = Cipher::ChaCha20Poly1305;
            (cipher, cipher, Prf::HmacSha256, KeGroup::X25519)
        }
        "modp" => (Cipher::Aes256Gcm, Cipher::Aes256Gcm, Prf::HmacSha256, KeGroup::Modp2048),
        _ => {
            let ike = Cipher::Aes256Cbc(IntegrityHash::Sha512);
            let esp = Cipher::Aes128Cbc(IntegrityHash::Sha256);
            (ike, esp, Prf::HmacSha512, KeGroup::P384)
        }
    };
    let key = SecretBytes::new(b"a shared key".to_vec());
    let has_certificates = std::path::Path::new("branch.der").exists();
    let (local_auth, remote_auth) = match has_certificates {
        true => (
            LocalAuth::Signature(Arc::new(OwnKey::read())),
            RemoteAuth::Signature(Arc::new(TrustedPeer)),
        ),
        false => (LocalAuth::SharedKey(key.clone()), RemoteAuth::SharedKey(key)),
    };
    let initial_contact = match std::env::var("IKE_CONTACT").unwrap().as_str() {
        "omit" => InitialContact::Omit,
        _ => InitialContact::Assert,
    };
    let liveness_s = std::env::var("IKE_LIVENESS").map_or(30, |text| text.parse().unwrap());
    let selector = |first: &str, last: &str| {
        TrafficSelector::of_addresses(first.parse().unwrap(), last.parse().unwrap()).unwrap()
    };
    // The peer narrows the end of this side to the addresses that it assigns.
    let every = || selector("0.0.0.0", "255.255.255.255");
    let every6 = || selector("::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff");
    let (inner, local) = match std::env::var("IKE_INNER").unwrap().as_str() {
        "request" => (InnerConfig::Request, vec![every(), every6()]),
        _ => (InnerConfig::Static, vec![selector("10.1.0.1", "10.1.0.1")]),
    };
    let has_dn = std::env::var("IKE_ID").unwrap().contains('=');
    let identity = |host: &str| match has_dn {
        true => {
            let attributes = [("2.5.4.10", "Corp"), ("2.5.4.3", host)];
            IkeIdentity::of_attributes(&attributes).unwrap()
        }
        false => IkeIdentity::Fqdn(host.to_owned()),
    };
    IkeConfig {
        local: identity("branch.example"),
        remote: identity("gw.example"),
        local_auth,
        remote_auth,
        proposals: vec![IkeProposal { cipher: ike, prf, group }],
        child: ChildConfig {
            proposals: vec![EspProposal { cipher: esp, pfs: Some(group) }],
            local,
            // The peer narrows it to 10.2.0.0/24 and fd02::/64.
            remote: vec![selector("10.2.0.0", "10.2.255.255"), every6()],
            lifetime: Duration::from_secs(3600),
        },
        inner,
        initial_contact,
        lifetime: Duration::from_secs(4 * 3600),
        liveness: Duration::from_secs(liveness_s),
    }
}
