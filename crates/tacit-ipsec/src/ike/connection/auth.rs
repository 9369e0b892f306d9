//! Runs the exchange `IKE_AUTH`, in which both peers authenticate each other (RFC 7296 sections 1.2
//! and 2.15). In this exchange, the peers also create the first child SA (the keys of the tunnel).

use std::sync::Arc;
use std::time::Instant;

use super::address;
use super::child::{ChildAnswer, ChildRequest};
use super::payloads::{certificate_request, notifications};
use super::sa::{IkeRole, IkeSa, Opened, SaState};
use super::task::Task;
use super::{IkeConnection, IkeEvent};
use crate::ike::auth::SignedOctets;
use crate::ike::codec::{
    AuthMethod, AuthPayload, CertPayload, DeletePayload, ExchangeType, IdPayload, IkePayload,
    NotifyPayload, notify,
};
use crate::ike::config::{IkeConfig, InitialContact, LocalAuth, RemoteAuth};
use crate::ike::crypto::Nonces;
use crate::ike::failure::{FailureSide, IkeFailure};
use crate::ike::identity::IkeIdentity;
use crate::ike::proposal::{ChildExchange, offer_esp};
use crate::ike::signature::{self, CERTIFICATES_MAX, SignedByPeer};

/// What AUTH signs.
#[derive(Clone, Debug)]
pub(super) struct AuthContext {
    pub(super) init_request: Vec<u8>,
    pub(super) init_response: Vec<u8>,
    pub(super) nonces: Nonces,
    /// The data of `SIGNATURE_HASH_ALGORITHMS` of the peer.
    pub(super) hashes_of_peer: Vec<u8>,
    /// When the keys of the IKE SA were agreed on.
    pub(super) began: Instant,
}

/// An answer to the first request, of which AUTH has not shown whose it is.
#[derive(Debug)]
pub(super) struct Attempt {
    pub(super) sa: IkeSa,
    pub(super) auth: AuthContext,
    pub(super) is_behind_nat: bool,
    pub(super) is_peer_behind_nat: bool,
}

impl AuthContext {
    /// What the initiator or the responder of an IKE SA signs.
    fn octets(&self, sa: &IkeSa, signer: IkeRole, id: &IdPayload) -> SignedOctets {
        let (message, nonce, key) = if signer == IkeRole::Initiator {
            (&self.init_request, &self.nonces.responder, &sa.keys.initiator_auth)
        } else {
            (&self.init_response, &self.nonces.initiator, &sa.keys.responder_auth)
        };
        SignedOctets::new(sa.keys.prf, message, nonce, key, id)
    }
}

impl IkeConnection {
    /// Sends the request of the initiator.
    pub(super) fn send_auth(&mut self, now: Instant) -> Result<(), IkeFailure> {
        let id = self.config.local.to_payload();
        let auth = self.own_auth(&id)?;
        let child_spi = self.new_child_spi()?;
        let child = &self.config.child;
        let offer = offer_esp(&child.proposals, ChildExchange::Auth, child_spi);
        let mut payloads = vec![IkePayload::IdInitiator(id)];
        payloads.extend(self.certificates());
        payloads.extend(certificate_request(std::iter::once(&self.config)));
        payloads.push(IkePayload::IdResponder(self.config.remote.to_payload()));
        payloads.push(auth);
        if self.config.initial_contact == InitialContact::Assert {
            payloads.push(IkePayload::Notify(NotifyPayload::new(notify::INITIAL_CONTACT, [])));
        }
        payloads.extend(address::request(&self.config.inner));
        payloads.push(IkePayload::SecurityAssociation(offer));
        payloads.extend(self.selector_payloads());
        let spi = self.current;
        self.request(now, spi, ExchangeType::Auth, &payloads, Task::Auth { child_spi });
        Ok(())
    }

    /// The AUTH payload of this side.
    pub(super) fn own_auth(&self, id: &IdPayload) -> Result<IkePayload, IkeFailure> {
        let (Some(context), Some(sa)) = (&self.auth, self.sa(self.current)) else {
            return Err(IkeFailure::protocol(
                "the peer sent an IKE_AUTH message that the current state does not allow",
            ));
        };
        let octets = context.octets(sa, sa.role(), id);
        let payload = match &self.config.local_auth {
            LocalAuth::SharedKey(key) => AuthPayload {
                method: AuthMethod::SharedKey,
                data: octets.with_shared_key(sa.keys.prf, key).as_bytes().to_vec(),
            },
            LocalAuth::Signature(signer) => {
                let scheme = signature::choose(&signer.schemes(), &context.hashes_of_peer);
                let scheme = scheme.ok_or_else(no_common_hash)?;
                let signature = signer.sign(scheme, octets.as_bytes())?;
                let data = signature::encode(scheme, &signature);
                AuthPayload { method: AuthMethod::DigitalSignature, data }
            }
        };
        Ok(IkePayload::Auth(payload))
    }

    /// The certificates of this side, the one of its key first (RFC 7296 section 3.6).
    fn certificates(&self) -> Vec<IkePayload> {
        let LocalAuth::Signature(signer) = &self.config.local_auth else { return Vec::new() };
        let certificates = signer.certificates().into_iter().take(CERTIFICATES_MAX);
        certificates.map(|data| IkePayload::Cert(CertPayload::x509(data))).collect()
    }

    /// Checks identity and AUTH of the peer with this configuration.
    fn verify_peer(&self, peer: &IkeConfig, payloads: &[IkePayload]) -> Result<(), IkeFailure> {
        let (Some(context), Some(sa)) = (&self.auth, self.sa(self.current)) else {
            return Err(IkeFailure::protocol(
                "the peer sent an IKE_AUTH message that the current state does not allow",
            ));
        };
        let id = payloads.iter().find_map(|payload| match payload {
            IkePayload::IdInitiator(id) if !sa.is_initiator => Some(id),
            IkePayload::IdResponder(id) if sa.is_initiator => Some(id),
            _ => None,
        });
        let auth = payloads.iter().find_map(|payload| match payload {
            IkePayload::Auth(auth) => Some(auth),
            _ => None,
        });
        let (id, auth) = match (id, auth) {
            (Some(id), Some(auth)) => (id, auth),
            // RFC 7296 section 2.16.
            (Some(_), None) if !sa.is_initiator => return Err(eap_wanted()),
            _ => {
                return Err(IkeFailure::protocol(
                    "the peer's identity payload or AUTH payload is missing",
                ));
            }
        };
        let identity = IkeIdentity::from_payload(id);
        if identity.as_ref() != Some(&peer.remote) {
            return Err(wrong_identity(identity.as_ref(), &peer.remote));
        }
        let octets = context.octets(sa, sa.role().other(), id);
        match (&peer.remote_auth, auth.method) {
            (RemoteAuth::SharedKey(key), AuthMethod::SharedKey) => {
                let expected = octets.with_shared_key(sa.keys.prf, key);
                aws_lc_rs::constant_time::verify_slices_are_equal(expected.as_bytes(), &auth.data)
                    .map_err(|_| wrong_key(&peer.remote))
            }
            (RemoteAuth::Signature(verifier), AuthMethod::DigitalSignature) => {
                let (scheme, signature) =
                    signature::decode(&auth.data).ok_or_else(unknown_scheme)?;
                verifier.verify(&SignedByPeer {
                    certificates: &certificates_of(payloads),
                    identity: &peer.remote,
                    scheme,
                    message: octets.as_bytes(),
                    signature,
                })
            }
            (RemoteAuth::SharedKey(_), method) => Err(wrong_method(method, "a shared key")),
            (RemoteAuth::Signature(_), method) => Err(wrong_method(method, "a signature")),
        }
    }

    pub(super) fn handle_auth_response(
        &mut self,
        now: Instant,
        spi: u64,
        child_spi: u32,
        opened: &Opened,
    ) {
        let has_auth = opened.payloads.iter().any(|one| matches!(one, IkePayload::Auth(_)));
        let error = notifications(&opened.payloads).find(|one| one.is_error());
        if let Some(error) = error.filter(|_| !has_auth) {
            let failure = IkeFailure::refused(error.kind, "authentication");
            self.refuse_attempt(now, failure);
            return;
        }
        if let Err(failure) = self.verify_peer(&self.config, &opened.payloads) {
            self.reject_responder(now, spi, failure);
            return;
        }
        let nonces = self.auth.take().map(|context| context.nonces);
        self.opening = None;
        self.other_attempts.clear();
        self.establish(now, spi);
        let Some(nonces) = nonces else { return };
        let request = ChildRequest { spi: child_spi, nonces, secret: None };
        if let Some(addresses) = address::assigned(&self.config.inner, &opened.payloads) {
            self.event(IkeEvent::AddressesAssigned(addresses));
        }
        let outcome = ChildAnswer::read(&opened.payloads)
            .and_then(|answer| self.finish_child(now, spi, &request, &answer, ChildExchange::Auth));
        match outcome {
            Ok(()) => self.ensure_active(),
            Err(failure) => self.event(IkeEvent::ExchangeFailed(failure)),
        }
    }

    /// Ends an IKE SA whose responder has not proved who it is (RFC 7296 section 2.21.2). The
    /// notification is sent once, and not repeated.
    fn reject_responder(&mut self, now: Instant, spi: u64, failure: IkeFailure) {
        let payloads = [
            IkePayload::Notify(NotifyPayload::new(notify::AUTHENTICATION_FAILED, [])),
            IkePayload::Delete(DeletePayload::IkeSa),
        ];
        self.request(now, spi, ExchangeType::Informational, &payloads, Task::DeleteIke);
        self.refuse_attempt(now, failure);
    }

    /// Handles the request of the initiator.
    pub(super) fn handle_auth_request(&mut self, now: Instant, spi: u64, opened: &Opened) {
        self.choose_peer(&opened.payloads);
        let id = self.config.local.to_payload();
        let wanted = wanted_identity(&opened.payloads);
        let own = &self.config.local;
        let is_addressed = wanted.as_ref().is_none_or(|wanted| wanted.as_ref() == Some(own));
        let verified = self.verify_peer(&self.config, &opened.payloads);
        let checked = verified.and_then(|()| match is_addressed {
            true => self.own_auth(&id),
            false => Err(not_this_side(wanted.flatten().as_ref(), own)),
        });
        let auth = match checked {
            Ok(auth) => auth,
            Err(failure) => {
                let kind = notify::AUTHENTICATION_FAILED;
                self.respond_notify(now, spi, ExchangeType::Auth, kind);
                self.retire(now, spi);
                self.end(IkeEvent::Failed(failure));
                return;
            }
        };
        let nonces = self.auth.take().map(|context| context.nonces);
        self.establish(now, spi);
        // RFC 7296 section 2.4.
        if notifications(&opened.payloads).any(|one| one.kind == notify::INITIAL_CONTACT) {
            self.event(IkeEvent::InitialContact);
        }
        let Some(nonces) = nonces else { return };
        let mut payloads = vec![IkePayload::IdResponder(id)];
        payloads.extend(self.certificates());
        payloads.push(auth);
        match self.accept_child(now, spi, &opened.payloads, nonces, ChildExchange::Auth) {
            Ok(accepted) => {
                payloads.extend(address::answer(&self.config.inner, &opened.payloads));
                payloads.extend(accepted.payloads);
            }
            Err(refusal) => {
                payloads.push(IkePayload::Notify(refusal.notify));
                self.event(IkeEvent::ExchangeFailed(refusal.failure));
            }
        }
        self.respond(now, spi, ExchangeType::Auth, &payloads);
        self.ensure_active();
    }

    /// Finds out which of the peers the initiator is: one with its identity and the algorithms of
    /// the IKE SA. Among several, its authentication decides, and then the addresses that it wants
    /// to reach. If there is none, the configuration remains, and refuses the initiator.
    fn choose_peer(&mut self, payloads: &[IkePayload]) {
        let others = std::mem::take(&mut self.others);
        let proposal = self.sa(self.current).map(|sa| sa.proposal);
        let (Some(proposal), false) = (proposal, others.is_empty()) else { return };
        let claimed = payloads.iter().find_map(|payload| match payload {
            IkePayload::IdInitiator(id) => IkeIdentity::from_payload(id),
            _ => None,
        });
        let own = wanted_identity(payloads);
        let fits = |peer: &&Arc<IkeConfig>| {
            claimed.as_ref() == Some(&peer.remote)
                && own.as_ref().is_none_or(|own| own.as_ref() == Some(&peer.local))
                && peer.proposals.contains(&proposal)
        };
        let fitting: Vec<&Arc<IkeConfig>> =
            std::iter::once(&self.config).chain(&others).filter(fits).collect();
        let is_proved = |peer: &&Arc<IkeConfig>| self.verify_peer(peer, payloads).is_ok();
        let proved: Vec<&Arc<IkeConfig>> = match fitting.len() {
            0 | 1 => Vec::new(),
            _ => fitting.iter().copied().filter(is_proved).collect(),
        };
        let wanted = payloads.iter().find_map(|payload| match payload {
            IkePayload::TsResponder(wanted) => Some(wanted.selectors.as_slice()),
            _ => None,
        });
        let wanted = wanted.unwrap_or_default();
        let reaches = |peer: &&&Arc<IkeConfig>| {
            let local = &peer.child.local;
            local.iter().any(|one| wanted.iter().any(|other| one.intersection(other).is_some()))
        };
        let mut by_preference = proved.iter().filter(reaches).chain(&proved).chain(&fitting);
        if let Some(peer) = by_preference.next().map(|peer| Arc::clone(peer)) {
            self.config = peer;
        }
    }

    fn establish(&mut self, now: Instant, spi: u64) {
        let rekey_at = self.rekey_at(now);
        let expires_at = now + self.config.lifetime;
        let Some(sa) = self.sa_mut(spi) else { return };
        sa.state = SaState::Established;
        sa.rekey_at = rekey_at;
        sa.expires_at = expires_at;
        let proposal = sa.proposal;
        let peer = self.config.remote.clone();
        self.event(IkeEvent::Established { peer, proposal });
    }
}

/// The identity that the initiator expects of this side; an inner `None` is one of an unknown type.
fn wanted_identity(payloads: &[IkePayload]) -> Option<Option<IkeIdentity>> {
    payloads.iter().find_map(|payload| match payload {
        IkePayload::IdResponder(id) => Some(IkeIdentity::from_payload(id)),
        _ => None,
    })
}

/// The certificates of the peer, the one of its key first.
fn certificates_of(payloads: &[IkePayload]) -> Vec<&[u8]> {
    let certificates = payloads.iter().filter_map(|payload| match payload {
        IkePayload::Cert(cert) => cert.as_x509(),
        _ => None,
    });
    certificates.take(CERTIFICATES_MAX).collect()
}

fn wrong_identity(claimed: Option<&IkeIdentity>, expected: &IkeIdentity) -> IkeFailure {
    let claimed = claimed.map_or_else(
        || "an identity whose type tacit does not know".to_owned(),
        ToString::to_string,
    );
    let message = format!(
        "the peer's identity is {claimed}, but the policy expects {expected}: correct the remote \
         identity in the policy, or the identity in the peer's configuration"
    );
    IkeFailure::new("wrong-identity", FailureSide::Both, message)
}

fn not_this_side(wanted: Option<&IkeIdentity>, own: &IkeIdentity) -> IkeFailure {
    let wanted = wanted.map_or_else(
        || "an identity whose type tacit does not know".to_owned(),
        ToString::to_string,
    );
    let message = format!(
        "tacit has the identity {own}, but the peer expects {wanted}: correct the local identity \
         in the policy, or the remote identity on the peer"
    );
    IkeFailure::new("wrong-identity", FailureSide::Both, message)
}

fn no_common_hash() -> IkeFailure {
    let message = "the peer supports no signature algorithm that tacit's private key can use: on \
                   the peer, enable RFC 7427 signatures with the hash algorithm of this key; or \
                   give tacit a private key with an algorithm that the peer supports";
    IkeFailure::new("no-common-signature", FailureSide::Both, message)
}

fn unknown_scheme() -> IkeFailure {
    let message = "the peer signs with an algorithm that tacit refuses. On the peer, use Ed25519, \
                   RSA-PSS, ECDSA P-256 or ECDSA P-384, and do not use SHA-1 or PKCS #1 v1.5";
    IkeFailure::new("refused-signature", FailureSide::Peer, message)
}

fn eap_wanted() -> IkeFailure {
    let message = "the peer wants to authenticate with EAP, which tacit does not support: \
                   configure a shared key or a certificate on the peer";
    IkeFailure::new("wrong-auth-method", FailureSide::Peer, message)
}

fn wrong_method(method: AuthMethod, wanted: &str) -> IkeFailure {
    let message = format!(
        "the peer authenticates with {method:?}, but the policy requires {wanted}: configure the \
         same kind of authentication on both sides"
    );
    IkeFailure::new("wrong-auth-method", FailureSide::Both, message)
}

fn wrong_key(peer: &IkeIdentity) -> IkeFailure {
    let message = format!(
        "the shared key of the peer {peer} differs from the shared key in the policy: configure \
         the same key on both sides"
    );
    IkeFailure::new("wrong-shared-key", FailureSide::Both, message)
}
