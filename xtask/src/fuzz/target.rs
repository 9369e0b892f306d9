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
            format!("there is no fuzz target `{name}`; there are {}", names.join(", "))
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
pub(crate) const TARGETS: [Target; 29] = [
    target("attls", 4096, "policy of AT-TLS, with a fixed map file"),
    target("certificate", 4096, "certificate or CRL in DER"),
    target("control", 1024, "request at the control socket"),
    target("crl", 4096, "file with CRLs in PEM or DER"),
    target("dns", 1024, "DNS message, parsed as query and as response"),
    target("dns-files", 1024, "/etc/hosts and /etc/resolv.conf"),
    target("dns-stream", 1024, "DNS messages over TCP"),
    target("enrolment", 2048, "frames between launcher and agent"),
    target("explain", 1024, "arguments of `tacit explain`, one per line"),
    target("filters", 4096, "IP filter rules, with a fixed policy of AT-TLS"),
    target("handover", 4096, "reply of an agent to its successor"),
    target("handshake", 4096, "bytes of a peer during a handshake"),
    target("helper", 2048, "frames between agent and helper"),
    target("icmp", 512, "ICMP error and the datagram that caused it"),
    target("import-map", 4096, "map file of an import"),
    target("metrics", 1024, "HTTP request for metrics"),
    target("netlink", 1024, "netlink messages of the kernel"),
    target("policy", 4096, "policy file"),
    target("proxy-protocol", 1024, "PROXY protocol header, version 2"),
    target("query", 256, "request at the query socket"),
    target("record", 4096, "TLS records with a key that accepts every tag"),
    target("session", 1024, "bytes of an authenticated peer after the handshake"),
    target("signer", 1024, "messages between an agent and its signer"),
    target("starttls-ftp", 1024, "FTP before TLS, client and server"),
    target("starttls-postgres", 1024, "PostgreSQL before TLS, client and server"),
    target("starttls-smtp", 1024, "SMTP before TLS, client and server"),
    target("starttls-telnet", 1024, "telnet before TLS, client and server"),
    target("stunnel", 4096, "configuration of stunnel"),
    target("syn", 256, "copy of a SYN packet"),
];
