//! Builds the PROXY protocol header, which contains the client's address. The agent sends the
//! header to the target before all other bytes.

use tacit_core::policy::{SendProxy, TlsVersion};
use tacit_core::proxy_protocol::{self, ClientVerification, ProxyError, ProxyHeader, ProxyTls};

use crate::session::{ConnectionRecord, TlsFacts};
use tacit_tls::verify::MappedIdentity;

/// The header, as it is sent.
///
/// # Errors
/// The addresses cannot be in a header.
pub(super) fn header(wanted: SendProxy, record: &ConnectionRecord) -> Result<Vec<u8>, ProxyError> {
    let header = ProxyHeader::Proxy {
        source: record.client().clone(),
        destination: record.proxied().map_or(&record.local, |it| &it.target).clone(),
    };
    let mut bytes = Vec::new();
    match (wanted, record.tls.get()) {
        (SendProxy::Tls, Some(tls)) => {
            proxy_protocol::encode_with_tls(&header, &client_tls(&tls), &mut bytes)?;
        }
        _ => proxy_protocol::encode(&header, &mut bytes)?,
    }
    Ok(bytes)
}

fn client_tls(tls: &TlsFacts) -> ProxyTls {
    let TlsFacts { agreed, check, named, peer, .. } = tls;
    let version = match agreed.version {
        TlsVersion::V1_2 => "TLSv1.2",
        TlsVersion::V1_3 => "TLSv1.3",
    };
    let peer = peer.as_deref().filter(|_| check.is_trusted());
    let certificate = peer.map(|peer| ClientVerification {
        // A client without a name by the policy is sent to the target without one too.
        common_name: match named {
            MappedIdentity::Certificate | MappedIdentity::Mapped(_) => peer.common_name.clone(),
            MappedIdentity::None | MappedIdentity::Warned { .. } => None,
        },
        is_of_connection: !agreed.resumed,
    });
    ProxyTls {
        version: version.to_owned(),
        cipher: agreed.suite.to_owned(),
        alpn: agreed.alpn.clone(),
        authority: agreed.server_name.clone(),
        certificate,
    }
}
