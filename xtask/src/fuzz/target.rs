//! What can be fuzzed.

/// A target, as `fuzz/src/targets` has it.
pub(crate) struct Target {
    /// As typed after `cargo xtask fuzz`; so are its files below `fuzz/` called.
    pub(crate) name: &'static str,
    /// What its inputs are.
    pub(crate) input: &'static str,
    /// The longest input that is tried: what is longer costs time and reaches nothing more.
    pub(crate) bytes_max: usize,
}

impl Target {
    /// The target of a name.
    pub(crate) fn find(name: &str) -> Result<&'static Self, String> {
        TARGETS.iter().find(|target| target.name == name).ok_or_else(|| {
            let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
            format!("there is no fuzz target `{name}`; there are {}", names.join(", "))
        })
    }

    /// Those that are named, or all.
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

/// All of them, by name.
pub(crate) const TARGETS: [Target; 29] = [
    target("attls", 4096, "policy of AT-TLS, beside a map file"),
    target("certificate", 4096, "certificate, or list of revoked ones, in DER"),
    target("control", 1024, "request at the control socket"),
    target("crl", 4096, "file of lists of revoked certificates, in PEM or DER"),
    target("dns", 1024, "DNS message, as a query and as an answer"),
    target("dns-files", 1024, "/etc/hosts and /etc/resolv.conf"),
    target("dns-stream", 1024, "DNS messages over TCP"),
    target("enrolment", 2048, "frames between launcher and agent"),
    target("explain", 1024, "arguments of `tacit explain`, one a line"),
    target("filters", 4096, "IP filter rules, beside a policy of AT-TLS"),
    target("handover", 4096, "answer of an agent to its successor"),
    target("handshake", 4096, "what a peer sends in a handshake"),
    target("helper", 2048, "frames between agent and helper"),
    target("icmp", 512, "ICMP message and the datagram that it answers"),
    target("import-map", 4096, "map file of an import"),
    target("metrics", 1024, "head of an HTTP request for metrics"),
    target("netlink", 1024, "answers of the kernel over netlink"),
    target("policy", 4096, "policy file"),
    target("proxy-protocol", 1024, "PROXY protocol header, version 2"),
    target("query", 256, "question at the query socket"),
    target("record", 4096, "TLS records under a key that takes every tag"),
    target("session", 1024, "what an authenticated peer sends after the handshake"),
    target("signer", 1024, "what an agent and its signer say to each other"),
    target("starttls-ftp", 1024, "both ends of FTP before TLS"),
    target("starttls-postgres", 1024, "both ends of PostgreSQL before TLS"),
    target("starttls-smtp", 1024, "both ends of SMTP before TLS"),
    target("starttls-telnet", 1024, "both ends of telnet before TLS"),
    target("stunnel", 4096, "configuration of stunnel"),
    target("syn", 256, "copy of a packet that opens a connection"),
];
