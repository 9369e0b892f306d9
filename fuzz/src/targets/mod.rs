//! Defines the fuzz targets: one function for each parser of untrusted bytes.
//!
//! A target accepts any bytes and must not panic. A target asserts what must be true for any input.

mod canary;
mod import;
mod packet;
mod policy;
mod record;
mod starttls;
mod wire;

/// Finds a target by its name.
///
/// xtask/src/fuzz/target.rs has the same names, with a description of each.
pub(crate) fn find(name: &str) -> Option<fn(&[u8])> {
    Some(match name {
        "attls" => import::attls,
        "canary" => canary::canary,
        "certificate" => tacit_tls::fuzz::certificate,
        "control" => tacit::fuzz::control,
        "crl" => tacit_tls::fuzz::crl,
        "dns" => wire::dns,
        "dns-files" => wire::dns_files,
        "dns-stream" => wire::dns_stream,
        "enrolment" => tacit::fuzz::enrolment,
        "esp" => tacit_ipsec::fuzz::esp,
        "explain" => tacit::fuzz::explain,
        "filters" => import::filters,
        "handover" => tacit::fuzz::handover,
        "handshake" => tacit_tls::fuzz::handshake,
        "helper" => tacit::fuzz::helper,
        "icmp" => wire::icmp,
        "ike" => tacit_ipsec::ike::fuzz::exchange,
        "ike-codec" => tacit_ipsec::ike::fuzz::codec,
        "import-map" => import::map,
        "link" => tacit::fuzz::link,
        "metrics" => tacit::fuzz::metrics,
        "netlink" => tacit_sys::netlink::fuzz::replies,
        "oci-state" => tacit::fuzz::oci_state,
        "packet-text" => packet::packet_text,
        "pcap" => packet::pcap,
        "policy" => policy::policy,
        "proxy-protocol" => wire::proxy_protocol,
        "query" => wire::query,
        "record" => record::record,
        "session" => tacit_tls::fuzz::session,
        "signer" => tacit_tls::fuzz::signer,
        "starttls-ftp" => starttls::ftp,
        "starttls-postgres" => starttls::postgres,
        "starttls-smtp" => starttls::smtp,
        "starttls-telnet" => starttls::telnet,
        "stunnel" => import::stunnel,
        "syn" => wire::syn,
        "without-udp" => tacit_ipsec::fuzz::without_udp,
        _ => return None,
    })
}
