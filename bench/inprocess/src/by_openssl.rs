//! Implements the benchmark's TLS client and TLS server with OpenSSL. The client and the server use
//! the OpenSSL library of the Linux distribution, with default settings.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;

use openssl::error::ErrorStack;
use openssl::ssl::{
    Ssl, SslContext, SslContextBuilder, SslFiletype, SslMethod, SslOptions, SslSessionCacheMode,
    SslStream, SslVerifyMode, SslVersion,
};

use crate::tls_settings::{SERVER_NAME, TlsSettings, Version};
use crate::wire::{Answer, Dial, Wire, tcp};

/// A TLS connection; dropping it sends close_notify.
struct TlsConnection(SslStream<TcpStream>);

impl Wire for TlsConnection {}

impl Read for TlsConnection {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer)
    }
}

impl Write for TlsConnection {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

impl Drop for TlsConnection {
    fn drop(&mut self) {
        // Ignores the error: the peer may have closed already.
        let _ = self.0.shutdown();
    }
}

/// Opens connections as a client.
pub(crate) fn dial(settings: &TlsSettings, dir: &Path) -> Result<Arc<Dial>, ErrorStack> {
    let mut builder = context(settings, dir, "client")?;
    builder.set_verify(SslVerifyMode::PEER);
    let context = builder.build();
    Ok(Arc::new(move |address| {
        let stream = tcp(address)?;
        let ssl = new(&context, |ssl| {
            ssl.param_mut().set_host(SERVER_NAME)?;
            ssl.set_hostname(SERVER_NAME)
        })?;
        Ok(Box::new(TlsConnection(ssl.connect(stream).map_err(io::Error::other)?)))
    }))
}

/// Accepts connections as a server.
pub(crate) fn answer(settings: &TlsSettings, dir: &Path) -> Result<Arc<Answer>, ErrorStack> {
    let mut builder = context(settings, dir, "server")?;
    builder.set_verify(SslVerifyMode::PEER | SslVerifyMode::FAIL_IF_NO_PEER_CERT);
    let context = builder.build();
    Ok(Arc::new(move |stream| {
        let ssl = new(&context, |_| Ok(()))?;
        Ok(Box::new(TlsConnection(ssl.accept(stream).map_err(io::Error::other)?)))
    }))
}

fn new(
    context: &SslContext,
    prepare: impl FnOnce(&mut Ssl) -> Result<(), ErrorStack>,
) -> io::Result<Ssl> {
    let mut ssl = Ssl::new(context)?;
    prepare(&mut ssl)?;
    Ok(ssl)
}

fn context(
    settings: &TlsSettings,
    dir: &Path,
    name: &str,
) -> Result<SslContextBuilder, ErrorStack> {
    let mut context = SslContext::builder(SslMethod::tls())?;
    match settings.version {
        Version::Tls12 => {
            context.set_min_proto_version(Some(SslVersion::TLS1_2))?;
            context.set_max_proto_version(Some(SslVersion::TLS1_2))?;
            context.set_cipher_list("ECDHE-ECDSA-AES128-GCM-SHA256")?;
            // In TLS 1.2 this list also restricts the curves of certificates.
            context.set_groups_list("X25519:P-256")?;
        }
        Version::Tls13 => {
            context.set_min_proto_version(Some(SslVersion::TLS1_3))?;
            context.set_max_proto_version(Some(SslVersion::TLS1_3))?;
            context.set_ciphersuites(&settings.suite)?;
            context.set_groups_list("X25519")?;
        }
    }
    context.set_ca_file(dir.join("ca.pem"))?;
    context.set_certificate_chain_file(dir.join(format!("{name}.pem")))?;
    context.set_private_key_file(dir.join(format!("{name}.key")), SslFiletype::PEM)?;
    context.set_options(SslOptions::NO_TICKET);
    context.set_num_tickets(0)?;
    context.set_session_cache_mode(SslSessionCacheMode::OFF);
    Ok(context)
}
