//! What is fuzzed: one entry a parser of input that others send.
//!
//! A target takes any bytes and returns an outcome: the same number for inputs that went the same
//! way, so far as it can tell cheaply. Beside not panicking, it asserts what must always hold.

use std::hash::{DefaultHasher, Hash, Hasher};

use tacit_core::proxy_protocol::{self, ProxyError};

/// One parser.
pub(crate) struct Target {
    /// As typed after `cargo xtask fuzz`, and the folder under `fuzz/seeds`.
    pub(crate) name: &'static str,
    /// Runs it on one input.
    pub(crate) run: fn(&[u8]) -> u64,
    /// Inputs to start from, beside the files.
    pub(crate) seeds: fn() -> Vec<Vec<u8>>,
    /// Pieces that mean something to it.
    pub(crate) words: &'static [&'static [u8]],
}

/// All of them; `smoke` runs each.
pub(crate) const TARGETS: &[Target] = &[Target {
    name: "proxy-protocol",
    run: proxy_protocol,
    seeds: proxy_protocol_seeds,
    words: &[b"\r\n\r\n\0\r\nQUIT\n", b"PROXY ", b"\x21\x11\0\x0c", b"\x21\x31\0\xd8", b"\x04\0\0"],
}];

/// Not one of them: it has a fault, which must be found.
pub(crate) const CANARY: Target = Target {
    name: "canary",
    run: canary,
    seeds: || vec![b"a quite ordinary input, longer than it needs to be".to_vec()],
    words: &[b"?!"],
};

fn proxy_protocol(input: &[u8]) -> u64 {
    let parsed = proxy_protocol::parse(input);
    if let Ok(Some((header, consumed))) = &parsed {
        assert!(*consumed <= input.len().min(proxy_protocol::HEADER_BYTES_MAX));
        let mut again = Vec::new();
        assert_eq!(proxy_protocol::encode(header, &mut again), Ok(()), "what came can be sent on");
        assert_eq!(proxy_protocol::parse(&again), Ok(Some((header.clone(), again.len()))));
    }
    match parsed {
        Ok(None) => outcome(&"more"),
        Ok(Some((header, consumed))) => outcome(&(std::mem::discriminant(&header), consumed)),
        // How far it got; the numbers in other errors are only what the input said.
        Err(ProxyError::NotProxy { offset, .. }) => outcome(&offset),
        Err(error) => outcome(&std::mem::discriminant(&error)),
    }
}

fn proxy_protocol_seeds() -> Vec<Vec<u8>> {
    let addresses = [
        ("192.0.2.1:1", "192.0.2.2:443"),
        ("[2001:db8::1]:1", "[2001:db8::2]:443"),
        ("unix:/run/client.sock", "unix:@server"),
    ];
    let header = |(source, destination): (&str, &str)| {
        let (source, destination) = (source.parse().ok()?, destination.parse().ok()?);
        let mut bytes = Vec::new();
        let header = proxy_protocol::Header::Proxy { source, destination };
        proxy_protocol::encode(&header, &mut bytes).ok().map(|()| bytes)
    };
    addresses.into_iter().filter_map(header).collect()
}

/// Believes a length without looking, after a word that must stand first and a byte to be guessed:
/// it takes words, mutations and the growth of the corpus to get there.
fn canary(input: &[u8]) -> u64 {
    match input {
        [b'?', b'!', length, rest @ ..] => {
            let length = usize::from(*length);
            assert!(length < 200 || length < rest.len() || rest.is_empty(), "the canary sings");
            2
        }
        [b'?', ..] => 1,
        _ => 0,
    }
}

fn outcome(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}
