//! Defines [`DrivenRun`]: the data that the IKE thread stores about a run with a TUN device.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use tacit_core::policy::TunnelRoutes;

use super::RunNames;
use crate::packet::{TunId, TunLease};

/// A run with a TUN device.
pub(super) struct DrivenRun {
    pub(super) name: String,
    pub(super) tun: TunId,
    /// The addresses of the host, which the run has too.
    pub(super) own: Vec<IpAddr>,
    pub(super) routes: Arc<TunnelRoutes>,
    /// Packets that were refused because there was no tunnel, by the name of the peer.
    pub(super) refused: BTreeMap<String, u64>,
    pub(super) names: Box<dyn RunNames>,
    /// How many names there were when they were compared with assigned addresses.
    pub(super) names_compared: u64,
    _lease: TunLease,
}

impl DrivenRun {
    pub(super) fn new(
        name: String,
        tun: TunId,
        own: Vec<IpAddr>,
        names: Box<dyn RunNames>,
        lease: TunLease,
    ) -> Self {
        let routes = Arc::default();
        let refused = BTreeMap::new();
        Self { name, tun, own, routes, refused, names, names_compared: 0, _lease: lease }
    }
}
