use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::signer::wire::SignRequest;
use crate::signer::{KeyProvider, RemoteKey, Scheme, SignerClient};
use crate::test_certificates::{Ca, Directory, LeafKind};

/// A message that is signed in TLS 1.3.
fn proof() -> Vec<u8> {
    [&[0x20; 64][..], b"TLS 1.3, server CertificateVerify\0", &[7; 32]].concat()
}

fn directory() -> Directory {
    let directory = Directory::new();
    let leaf = Ca::new("CA").leaf(LeafKind::Valid);
    directory.write("web.pem", &leaf.cert_pem, 0o600);
    directory.write("web.key", &leaf.key_pem, 0o600);
    directory
}

fn load(store: &KeyStore, directory: &Directory) -> Result<PublicPair, PairError> {
    let at = |name: &str| directory.path().join(name);
    store.load(1, &at("web.pem"), &at("web.key"))
}

#[test]
fn a_key_signs_proofs_of_handshakes_alone() {
    let store = KeyStore::default();
    let name = load(&store, &directory()).unwrap().name(1);
    let proof = proof();
    let scheme = Scheme::ECDSA_NISTP256_SHA256;
    let request = SignRequest { name, cpu: 0, scheme, message: &proof };
    assert!(store.sign(&request).is_ok());
    let refused = [
        SignRequest { message: b"a certificate", ..request },
        SignRequest { name: KeyName { generation: 2, ..name }, ..request },
        SignRequest { name: KeyName { spki_sha256: [0; 32], ..name }, ..request },
        SignRequest { scheme: Scheme::RSA_PSS_SHA256, ..request },
    ];
    for request in refused {
        assert!(store.sign(&request).is_err(), "{request:?}");
    }
    store.forget(name);
    assert_eq!(store.sign(&request), Err("the signer does not have this key"));
}

#[test]
fn a_refusal_names_the_file_and_the_next_step() {
    let directory = directory();
    directory.write("web.key", "none", 0o600);
    let refused = load(&KeyStore::default(), &directory).unwrap_err();
    assert_eq!(refused.at, PairFile::Key);
    assert!(refused.fault.message.contains("contains no private key"), "{refused:?}");
    let key = Ca::new("other").leaf(LeafKind::Valid).key_pem;
    directory.write("web.key", &key, 0o644);
    let refused = load(&KeyStore::default(), &directory).unwrap_err();
    assert!(refused.fault.to_string().contains("; run: chmod 600 "), "{refused:?}");
}

fn sha256(bytes: &[u8]) -> Vec<u8> {
    aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, bytes).as_ref().to_vec()
}

/// A signer in this process.
#[derive(Debug, Default)]
struct Here {
    store: KeyStore,
    generation: AtomicU64,
    forgotten: Mutex<Vec<KeyName>>,
}

impl SignerClient for Here {
    fn load(&self, generation: u64, cert: &Path, key: &Path) -> Result<PublicPair, PairError> {
        self.store.load(generation, cert, key)
    }

    fn next_generation(&self) -> u64 {
        self.generation.fetch_add(1, Ordering::Relaxed)
    }

    fn sign(&self, name: KeyName, scheme: Scheme, message: &[u8]) -> Result<Vec<u8>, String> {
        let request = SignRequest { name, cpu: 0, scheme, message };
        self.store.sign(&request).map_err(str::to_owned)
    }

    fn register(&self, _: &Arc<RemoteKey>) {}

    fn forget(&self, name: KeyName) {
        self.store.forget(name);
        self.forgotten.lock().unwrap().push(name);
    }
}

#[test]
fn an_identity_whose_key_is_elsewhere_is_as_good_and_forgotten_with_its_last_use() {
    let directory = directory();
    let identity = tacit_core::policy::Identity {
        cert: "web.pem".into(),
        key: "web.key".into(),
        position: tacit_core::policy::SourcePosition::default(),
        file_positions: tacit_core::policy::FilePositions::default(),
    };
    let here = Arc::new(Here::default());
    let signer_client: Arc<dyn SignerClient> = here.clone();
    let load = |keys: &KeyProvider| {
        crate::credentials::load_identity("web", &identity, directory.path(), keys)
    };
    let remote = load(&KeyProvider::remote(Arc::clone(&signer_client))).unwrap();
    let local = load(&KeyProvider::local()).unwrap();
    assert!(remote.same(&local) && remote.sources == local.sources);
    let keys = [&remote, &local].map(|identity| Arc::clone(&identity.certified_key.key));
    let [ours, its] = &keys;
    assert_eq!(ours.public_key(), its.public_key());
    assert_eq!(ours.algorithm(), its.algorithm());
    for scheme in SCHEMES {
        let chosen = |key: &Arc<dyn SigningKey>| key.choose_scheme(&[scheme]).is_some();
        assert_eq!(chosen(ours), chosen(its), "{scheme:?}");
    }
    let signer = ours.choose_scheme(&SCHEMES).unwrap();
    assert!(signer.sign(&proof()).is_ok() && signer.sign(b"anything").is_err());
    let public_key = ours.public_key().unwrap().to_vec();
    drop((remote, signer, keys));
    let forgotten = here.forgotten.lock().unwrap();
    let [name] = forgotten[..] else { panic!("{forgotten:?}") };
    assert_eq!((name.spki_sha256.to_vec(), name.generation), (sha256(&public_key), 0));
}
