//! Implements the benchmark's TLS client and TLS server with rustls and aws-lc-rs. Uses the default
//! settings of both libraries.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::version::{TLS12, TLS13};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection, StreamOwned,
    SupportedProtocolVersion,
};

use crate::tls_settings::{SERVER_NAME, Sessions, TlsSettings, Version};
use crate::wire::{Answer, Dial, Wire, tcp};

type Failure = Box<dyn std::error::Error>;

/// A TLS connection; dropping it sends close_notify.
struct ClientTls(StreamOwned<ClientConnection, TcpStream>);
struct ServerTls(StreamOwned<ServerConnection, TcpStream>);

macro_rules! wire {
    ($end:ty) => {
        impl Wire for $end {}

        impl Read for $end {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                self.0.read(buffer)
            }
        }

        impl Write for $end {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0.write(bytes)
            }

            fn flush(&mut self) -> io::Result<()> {
                self.0.flush()
            }
        }

        impl Drop for $end {
            fn drop(&mut self) {
                self.0.conn.send_close_notify();
                // Ignores the error: the peer may have closed already.
                let _ = self.0.conn.write_tls(&mut self.0.sock);
            }
        }
    };
}

wire!(ClientTls);
wire!(ServerTls);

/// Opens connections as a client.
pub(crate) fn dial(settings: &TlsSettings, dir: &Path) -> Result<Arc<Dial>, Failure> {
    let Identity { certificates, key } = identity(dir, "client")?;
    let mut config = ClientConfig::builder_with_provider(provider(settings))
        .with_protocol_versions(&[version(settings)])?
        .with_root_certificates(trust(dir)?)
        .with_client_auth_cert(certificates, key)?;
    if settings.sessions == Sessions::Full {
        config.resumption = Resumption::disabled();
    }
    let config = Arc::new(config);
    let name = ServerName::try_from(SERVER_NAME)?;
    Ok(Arc::new(move |address| {
        let stream = tcp(address)?;
        let connection = ClientConnection::new(config.clone(), name.clone());
        Ok(Box::new(ClientTls(StreamOwned::new(connection.map_err(io::Error::other)?, stream))))
    }))
}

/// Accepts connections as a server.
pub(crate) fn answer(settings: &TlsSettings, dir: &Path) -> Result<Arc<Answer>, Failure> {
    let Identity { certificates, key } = identity(dir, "server")?;
    let verifier =
        WebPkiClientVerifier::builder_with_provider(trust(dir)?.into(), provider(settings))
            .build()?;
    let mut config = ServerConfig::builder_with_provider(provider(settings))
        .with_protocol_versions(&[version(settings)])?
        .with_client_cert_verifier(verifier)
        .with_single_cert(certificates, key)?;
    if settings.sessions == Sessions::Resumed {
        config.ticketer = aws_lc_rs::Ticketer::new()?;
    } else {
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
    }
    let config = Arc::new(config);
    Ok(Arc::new(move |stream| {
        let connection = ServerConnection::new(config.clone()).map_err(io::Error::other)?;
        Ok(Box::new(ServerTls(StreamOwned::new(connection, stream))))
    }))
}

/// The crypto provider with one cipher suite and one group.
fn provider(settings: &TlsSettings) -> Arc<CryptoProvider> {
    let mut provider = aws_lc_rs::default_provider();
    let name = |suite: rustls::CipherSuite| format!("{suite:?}").replace("TLS13_", "TLS_");
    provider.cipher_suites.retain(|suite| name(suite.suite()) == settings.suite);
    provider.kx_groups = vec![aws_lc_rs::kx_group::X25519];
    Arc::new(provider)
}

fn version(settings: &TlsSettings) -> &'static SupportedProtocolVersion {
    match settings.version {
        Version::Tls12 => &TLS12,
        Version::Tls13 => &TLS13,
    }
}

fn trust(dir: &Path) -> Result<RootCertStore, Failure> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(dir.join("ca.pem"))? {
        roots.add(certificate?)?;
    }
    Ok(roots)
}

/// A certificate chain with its key.
struct Identity {
    certificates: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

fn identity(dir: &Path, name: &str) -> Result<Identity, Failure> {
    let file = dir.join(format!("{name}.pem"));
    let certificates = CertificateDer::pem_file_iter(file)?.collect::<Result<Vec<_>, _>>()?;
    let key = PrivateKeyDer::from_pem_file(dir.join(format!("{name}.key")))?;
    Ok(Identity { certificates, key })
}
