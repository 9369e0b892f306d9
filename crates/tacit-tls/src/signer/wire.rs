//! Encodes the messages between the agent and its signer, a process that holds the private keys. On
//! the control channel, the messages are in JSON. On all other channels, they are in binary form.
//!
//! ```text
//!           request of the agent              what the signer does, and its answer
//! control   Load {paths, generation}    ──>   loads a key; Loaded {chain, schemes}, or an error
//!           Forget {name}               ──>   removes a key; no answer
//!           Confine {paths}             ──>   enters its sandbox; Done, or an error
//!           Channel, with two pipes     ──>   starts a thread for the requests on these pipes
//! others    key name, CPU number,
//!           signature scheme, message   ──>   signs; the signature or an error, and the CPU time
//! ```
//!
//! The CPU number is the CPU of the agent's thread that waits for the answer. The CPU time is the
//! time that the signer's thread has used and not yet reported.

use std::path::PathBuf;

use rustls::SignatureScheme;
use serde::{Deserialize, Serialize};

use super::{KeyName, PairError, PublicPair};

/// The largest message, a little less than a socket can hold by default.
pub const MESSAGE_BYTES_MAX: usize = 192 << 10;
/// The largest chain that fits into a message when its DER is written as numbers.
pub const CHAIN_BYTES_MAX: usize = 40 << 10;

/// A request of the agent on the control channel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SignerRequest {
    /// Load the key of these files, and store it under its name in this generation.
    Load {
        /// The generation.
        generation: u64,
        /// The file of the chain.
        cert: PathBuf,
        /// The file of the key.
        key: PathBuf,
    },
    /// Remove a key.
    Forget {
        /// The name of the key.
        name: KeyName,
    },
    /// Sign the requests that arrive over the first pipe which is sent with this message, and write
    /// the answers to the second.
    Channel,
    /// Confine the signer to these files, and to all files below these directories.
    Confine {
        /// The files and directories.
        read: Vec<PathBuf>,
    },
}

/// The answer of the signer to [`SignerRequest::Load`]: it has the key, or the error.
pub type Loaded = Result<PublicPair, PairError>;

/// The answer of the signer to [`SignerRequest::Confine`]: done, or the error.
pub type Confined = Result<(), String>;

/// A request for a signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SignRequest<'m> {
    /// The key to sign with.
    pub name: KeyName,
    /// The CPU of the thread that waits for the answer.
    pub cpu: u16,
    /// The signature scheme.
    pub scheme: SignatureScheme,
    /// The complete message.
    pub message: &'m [u8],
}

const SIGNED: u8 = 0;
const REFUSED: u8 = 1;

impl<'m> SignRequest<'m> {
    /// Parses a request; `None` if the datagram is too short.
    #[must_use]
    pub fn parse(datagram: &'m [u8]) -> Option<Self> {
        let (spki_sha256, rest) = datagram.split_first_chunk()?;
        let (generation, rest) = rest.split_first_chunk()?;
        let (cpu, rest) = rest.split_first_chunk()?;
        let (scheme, message) = rest.split_first_chunk()?;
        Some(Self {
            name: KeyName {
                spki_sha256: *spki_sha256,
                generation: u64::from_be_bytes(*generation),
            },
            cpu: u16::from_be_bytes(*cpu),
            scheme: SignatureScheme::from(u16::from_be_bytes(*scheme)),
            message,
        })
    }

    /// Encodes the request into a buffer, and removes what was there.
    pub fn encode(&self, buffer: &mut Vec<u8>) {
        let KeyName { spki_sha256, generation } = &self.name;
        buffer.clear();
        buffer.extend_from_slice(spki_sha256);
        buffer.extend_from_slice(&generation.to_be_bytes());
        buffer.extend_from_slice(&self.cpu.to_be_bytes());
        buffer.extend_from_slice(&u16::from(self.scheme).to_be_bytes());
        buffer.extend_from_slice(self.message);
    }
}

/// The result of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignResponse {
    /// The signature, or the error.
    pub signed: Result<Vec<u8>, String>,
    /// The CPU time that the thread of the signer has used and not reported yet, in nanoseconds.
    pub usage_ns: u64,
}

/// Encodes an answer into a buffer, and removes what was there.
pub fn encode_sign_response(signed: &Result<Vec<u8>, &str>, usage_ns: u64, buffer: &mut Vec<u8>) {
    let (kind, content) = match signed {
        Ok(signature) => (SIGNED, signature.as_slice()),
        Err(reason) => (REFUSED, reason.as_bytes()),
    };
    buffer.clear();
    buffer.extend_from_slice(&usage_ns.to_be_bytes());
    buffer.push(kind);
    buffer.extend_from_slice(content);
}

/// Parses an answer. An invalid answer counts as a refusal.
#[must_use]
pub fn parse_sign_response(datagram: &[u8]) -> SignResponse {
    let no_meaning = || Err("the signer sent an invalid answer".to_owned());
    let Some((usage, result)) = datagram.split_first_chunk() else {
        return SignResponse { signed: no_meaning(), usage_ns: 0 };
    };
    let signed = match result {
        [SIGNED, signature @ ..] => Ok(signature.to_vec()),
        [REFUSED, reason @ ..] => Err(String::from_utf8_lossy(reason).into_owned()),
        _ => no_meaning(),
    };
    SignResponse { signed, usage_ns: u64::from_be_bytes(*usage) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn requests_come_back_as_they_were_sent(
            spki_sha256: [u8; 32],
            generation: u64,
            cpu: u16,
            scheme: u16,
            message in prop::collection::vec(any::<u8>(), 0..300),
        ) {
            let scheme = SignatureScheme::from(scheme);
            let name = KeyName { spki_sha256, generation };
            let request = SignRequest { name, cpu, scheme, message: &message };
            let mut bytes = vec![7; 9];
            request.encode(&mut bytes);
            prop_assert_eq!(SignRequest::parse(&bytes), Some(request));
        }

        #[test]
        fn any_datagram_is_read_without_harm(
            datagram in prop::collection::vec(any::<u8>(), 0..64),
        ) {
            let _ = SignRequest::parse(&datagram);
            let _ = parse_sign_response(&datagram);
            let _ = serde_json::from_slice::<SignerRequest>(&datagram);
            let _ = serde_json::from_slice::<Loaded>(&datagram);
        }
    }

    #[test]
    fn answers_say_which_they_are() {
        let sent = |signed: Result<Vec<u8>, &str>| {
            let mut bytes = vec![7; 9];
            encode_sign_response(&signed, 7, &mut bytes);
            parse_sign_response(&bytes)
        };
        assert_eq!(sent(Ok(vec![1, 2])), SignResponse { signed: Ok(vec![1, 2]), usage_ns: 7 });
        assert_eq!(sent(Err("no")), SignResponse { signed: Err("no".to_owned()), usage_ns: 7 });
        for datagram in [&[][..], &[0; 8], &[2; 9]] {
            assert!(parse_sign_response(datagram).signed.is_err());
        }
    }
}
