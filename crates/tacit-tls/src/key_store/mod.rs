//! Holds the private keys of the agent in a separate process, the signer. This module reads the
//! keys from files, and uses the keys only to sign messages of TLS and IKE handshakes.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};

use rustls::sign::SigningKey;

use crate::credentials::{ChainAndKey, PairFault, read_pair};
use crate::signer::wire::{CHAIN_BYTES_MAX, SignRequest};
use crate::signer::{KeyName, PairError, PairFile, PublicPair, SCHEMES, Signable};

/// The largest number of keys: the identities of two generations of a large policy.
pub const KEYS_MAX: usize = 65_536;

/// Private keys by name. Several threads can sign at the same time.
#[derive(Debug, Default)]
pub struct KeyStore {
    keys: RwLock<HashMap<KeyName, Arc<dyn SigningKey>>>,
}

impl KeyStore {
    /// Reads a pair, and stores the key under its name in this generation.
    ///
    /// # Errors
    /// A fault of one of the files, or the store is full.
    pub fn load(&self, generation: u64, cert: &Path, key: &Path) -> Result<PublicPair, PairError> {
        let refused = |PairFault { at, fault }| {
            let path = if at == PairFile::Cert { cert } else { key };
            PairError { at, fault: fault.text(path) }
        };
        let at = |at, message: &str| Err(PairError { at, fault: message.into() });
        let ChainAndKey { chain, key, cert, key_file } = read_pair(cert, key).map_err(refused)?;
        let Some(public_key) = key.public_key() else {
            return at(PairFile::Key, "tacit cannot compute the public key from the private key");
        };
        if chain.iter().map(|one| one.len()).sum::<usize>() > CHAIN_BYTES_MAX {
            return at(
                PairFile::Cert,
                "the chain in the file is longer than a handshake allows: remove the certificates \
                 that peers do not need, such as the root certificate",
            );
        }
        let pair = PublicPair {
            chain: chain.iter().map(|one| one.to_vec()).collect(),
            public_key: public_key.to_vec(),
            schemes: SCHEMES
                .into_iter()
                .filter(|scheme| key.choose_scheme(&[*scheme]).is_some())
                .map(u16::from)
                .collect(),
            cert,
            key: key_file,
        };
        let mut keys = self.keys.write().unwrap_or_else(PoisonError::into_inner);
        if keys.len() >= KEYS_MAX {
            return at(
                PairFile::Key,
                "the signer (the process with the private keys) already holds the maximum number \
                 of keys",
            );
        }
        keys.insert(pair.name(generation), key);
        Ok(pair)
    }

    /// Removes a key.
    pub fn forget(&self, name: KeyName) {
        self.keys.write().unwrap_or_else(PoisonError::into_inner).remove(&name);
    }

    /// Signs the message of a handshake that proves possession of a key.
    ///
    /// # Errors
    /// The key is not in the store, the key does not support the scheme, or the message is not such
    /// a proof.
    pub fn sign(&self, request: &SignRequest<'_>) -> Result<Vec<u8>, &'static str> {
        if Signable::of(request.message).is_none() {
            return Err("the signer signs only messages that are part of a TLS or IKE handshake");
        }
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        let key =
            keys.get(&request.name).map(Arc::clone).ok_or("the signer does not have this key")?;
        drop(keys);
        let signer = key
            .choose_scheme(&[request.scheme])
            .ok_or("the private key does not support this signature scheme")?;
        signer.sign(request.message).map_err(|_| "the cryptographic library failed to sign")
    }
}

#[cfg(test)]
mod tests;
