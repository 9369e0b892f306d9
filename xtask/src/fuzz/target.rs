//! Lists the fuzz targets.

/// A target in `fuzz/src/targets`.
pub(crate) struct Target {
    /// The name on the command line and of its files below `fuzz/`.
    pub(crate) name: &'static str,
    /// A description of its inputs.
    pub(crate) input: &'static str,
    /// The longest input to try. Longer inputs take more time and reach no further code.
    pub(crate) bytes_max: usize,
}

impl Target {
    /// Finds a target by its name.
    pub(crate) fn find(name: &str) -> Result<&'static Self, String> {
        TARGETS.iter().find(|target| target.name == name).ok_or_else(|| {
            let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
            format!("there is no fuzz target `{name}`; the targets are {}", names.join(", "))
        })
    }

    /// The targets with these names, or all targets.
    pub(crate) fn named(names: &[&str]) -> Result<Vec<&'static Self>, String> {
        match names {
            [] => Ok(TARGETS.iter().collect()),
            names => names.iter().map(|name| Self::find(name)).collect(),
        }
    }
}

const fn target(name: &'static str, bytes_max: usize, input: &'static str) -> Target {
    Target { name, input, bytes_max }
}

/// All targets, sorted by name.
pub(crate) const TARGETS: [Target; 37] = [
    target("attls", 4096, "AT-TLS policy, imported with a fixed map file"),
    target("certificate", 4096, "certificate or CRL in DER"),
    target("control", 1024, "request to the control socket of an agent"),
    target("crl", 4096, "PEM or DER file with CRLs"),
    target("dns", 1024, "DNS message, parsed as a query and as a response"),
    target("dns-files", 1024, "contents of /etc/hosts and /etc/resolv.conf"),
    target("dns-stream", 1024, "DNS messages over TCP"),
    target("enrolment", 2048, "messages between `tacit run` and an agent"),
    target("esp", 4096, "ESP packets and inner packets; see crates/tacit-ipsec/src/fuzz.rs"),
    target("explain", 1024, "arguments of `tacit explain`, one per line"),
    target("filters", 4096, "IP filter rules, imported with a fixed AT-TLS policy"),
    target("handover", 4096, "reply of an agent to the agent that replaces it"),
    target("handshake", 4096, "bytes that a peer sends during a TLS handshake"),
    target("helper", 2048, "messages between an agent and its helper process"),
    target("icmp", 512, "ICMP error and the datagram that caused it"),
    target("ike", 2048, "commands for two IKE connections; see ike/connection/fuzz.rs"),
    target("ike-codec", 2048, "IKE message"),
    target("import-map", 4096, "map file of an import"),
    target("link", 2048, "messages between a run and a link server"),
    target("metrics", 1024, "HTTP request to the metrics socket"),
    target("netlink", 1024, "netlink messages from the kernel"),
    target("oci-state", 1024, "state of a container, from an OCI runtime"),
    target("packet-text", 256, "description of a packet, for `tacit explain --packet`"),
    target("pcap", 2048, "capture file of libpcap, for `tacit explain --packet`"),
    target("policy", 4096, "policy file"),
    target("proxy-protocol", 1024, "PROXY protocol header, version 2"),
    target("query", 256, "request to the query socket of a run"),
    target("record", 4096, "TLS records, with a key that accepts every authentication tag"),
    target("session", 1024, "bytes that an authenticated peer sends after the handshake"),
    target("signer", 1024, "messages between an agent and its signer"),
    target("starttls-ftp", 1024, "FTP client and server before TLS"),
    target("starttls-postgres", 1024, "PostgreSQL client and server before TLS"),
    target("starttls-smtp", 1024, "SMTP client and server before TLS"),
    target("starttls-telnet", 1024, "telnet client and server before TLS"),
    target("stunnel", 4096, "configuration of stunnel"),
    target("syn", 256, "SYN or other packet that the kernel copied"),
    target("without-udp", 2048, "IP packets with AH or ESP; see crates/tacit-ipsec/src/fuzz.rs"),
];
