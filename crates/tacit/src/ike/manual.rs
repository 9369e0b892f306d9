//! Installs the manual SAs (IPsec security associations) of runs. The policy defines these SAs in
//! tables `[sa.NAME]`. The keys of the SAs are in files.
//!
//! IKE does not manage these SAs. So nothing is negotiated, and tacit never creates new keys. The
//! SAs exist as long as the run exists and the policy contains them. If only the policy rules
//! change, the SAs and their sequence numbers stay. If an address, an SPI or a key changes, new SAs
//! replace the old ones.
//!
//! Only one run at a time uses the SAs of an `[sa.NAME]` table. The first reason: the SPI of a
//! received packet must identify one run. The second reason: the table contains the addresses of
//! one run. When this run ends, the next run that needs the SAs uses them.
//!
//! Without extended sequence numbers, an SA sends at most 2^32 - 1 packets. After that, packets are
//! dropped until an operator changes the keys in the files.

use std::collections::BTreeMap;

use tacit_core::policy::TunnelPacket;
use tacit_core::refusal::RunLabel;
use tacit_ipsec::esp::DataLifetime;
use tacit_ipsec::{ChildSa, EspSpi};

use super::PORT;
use super::connection::Pair;
use super::kernel::local;
use super::manual_sa::{
    ManualStatus, ManualTunnel, SaEnd, WantedSas, child, packets, replay_check,
};
use super::status::ChildStatus;
use super::thread::{IkeThread, News};
use super::words::{protocol_words, selector_words};
use crate::log::{AuditOutcome, Event, EventCause, Log};
use crate::packet::{PeerAddress, Tunnel, TunnelPackets};

impl IkeThread {
    /// Installs the SAs that runs need, and removes the others.
    pub(super) fn follow_manual(&mut self) {
        let mut wanted = self.wanted_sas();
        let (kept, ended): (Vec<_>, Vec<_>) = std::mem::take(&mut self.manual)
            .into_iter()
            .partition(|one| wanted.get(&one.pair).is_some_and(|sas| sas.has_same_keys(one)));
        for one in ended {
            // If the worker has ended, no packet is sent. With its device, an SA ends by itself.
            let _ = self.context.worker.remove(one.spi);
            report_removed(&self.context.log, &one);
            self.news = News::Now;
        }
        for mut one in kept {
            if let Some(sas) = wanted.remove(&one.pair) {
                self.permit(&mut one, sas.packets);
            }
            self.manual.push(one);
        }
        for (pair, sas) in wanted {
            self.install_manual(pair, sas);
        }
    }

    /// The SAs that runs need, for each peer those of the oldest run.
    fn wanted_sas(&self) -> BTreeMap<Pair, WantedSas> {
        let mut wanted = BTreeMap::<Pair, WantedSas>::new();
        let mut users = BTreeMap::<&str, &str>::new();
        for (id, run) in &self.runs {
            for name in run.routes.peers() {
                let Some((name, settings)) = self.policy.policy.sas.get_key_value(name) else {
                    continue;
                };
                if let Some(user) = users.get(name.as_str()) {
                    report_in_use(&self.context.log, &run.name, name, user);
                    continue;
                }
                users.insert(name, &run.name);
                let Some(keys) = self.policy.manual_keys.get(name) else {
                    let error = "the agent could not read the keys of this [sa.NAME]: correct the \
                                 key files, and run `tacit reload`";
                    report_not_installed(&self.context.log, &run.name, name, error);
                    continue;
                };
                let sas = WantedSas {
                    run_name: run.name.clone(),
                    tun: run.tun,
                    settings: settings.clone(),
                    keys: keys.clone(),
                    packets: packets(&run.routes, name, settings, &self.accounts),
                };
                wanted.insert(Pair { run: *id, ike: name.clone() }, sas);
            }
        }
        wanted
    }

    /// The rules permit other packets now.
    fn permit(&mut self, one: &mut ManualTunnel, packets: TunnelPackets) {
        one.status.local.clone_from(&packets.local);
        one.status.remote.clone_from(&packets.remote);
        // If the worker has ended, no packet is sent.
        let _ = self.context.worker.permit(one.spi, packets);
        self.news = News::Now;
    }

    fn install_manual(&mut self, pair: Pair, sas: WantedSas) {
        let WantedSas { run_name, tun, settings, keys, packets } = sas;
        let log = &self.context.log;
        let child = match child(&settings, &keys, &packets) {
            Ok(child) => child,
            Err(error) => return report_not_installed(log, &run_name, &pair.ike, &error),
        };
        let spi = child.inbound.spi;
        let lifetime = DataLifetime::UNLIMITED;
        let tunnel = Tunnel {
            tun,
            child: child.clone(),
            peer: settings.peer,
            peer_address: PeerAddress::Fixed,
            lifetime,
            flows: packets.flows,
            accounts: packets.accounts,
            filter: self.filters.of(&pair.ike),
        };
        let worker = &self.context.worker;
        if let Err(error) = worker.install(tunnel).and_then(|()| worker.activate(spi)) {
            return report_not_installed(log, &run_name, &pair.ike, &error.to_string());
        }
        let status = ChildStatus::new(&child, 0, lifetime);
        let local = local(&self.context.locals, settings.peer);
        let one =
            ManualTunnel { pair, run_name, tun, settings, keys, spi, status, local, logged: None };
        report_installed(log, &one, &child);
        self.manual.push(one);
        self.news = News::Now;
    }

    /// Logs once that few sequence numbers of an SA are left, and once that none is.
    pub(super) fn note_manual_end(&mut self, spi: EspSpi) {
        self.note_manual_sent(spi, self.context.worker.sent_packets(spi));
    }

    /// The same for an SA that has sent this number of packets.
    pub(super) fn note_manual_sent(&mut self, spi: EspSpi, sent: u64) {
        let Some(one) = self.manual.iter_mut().find(|one| one.spi == spi) else { return };
        let end = SaEnd::after(sent);
        if one.logged < Some(end) {
            one.logged = Some(end);
            report_end(&self.context.log, one, end);
        }
    }

    /// A program has sent a packet for which there are no SAs.
    pub(super) fn report_manual_drop(&self, pair: &Pair, packet: &TunnelPacket) {
        let log = &self.context.log;
        if !log.has_audit() {
            return;
        }
        let Some(run) = self.runs.get(&pair.run) else { return };
        let event = about(Event::new("tunnel-packet-dropped"), pair, &run.name)
            .field("protocol", packet.protocol.word())
            .field("local", &packet.local)
            .field("remote", &packet.remote);
        log.audit(AuditOutcome::Failed, event);
    }

    /// What makes the tunnel of a refused packet possible.
    pub(super) fn manual_next(&self, pair: &Pair) -> String {
        let sa = &pair.ike;
        match self.manual.iter().find(|one| one.pair.ike == *sa) {
            Some(one) if one.pair != *pair => format!(
                "the run `{}` already uses the SAs of [sa.{sa}]: write a separate [sa.NAME] for \
                 each run",
                one.run_name
            ),
            Some(one) if one.logged == Some(SaEnd::Reached) => format!(
                "the SA of [sa.{sa}] has no sequence number left: write new keys to the key files \
                 on both sides, and run `tacit reload`"
            ),
            Some(_) => format!("`tacit show sa` shows the SAs of [sa.{sa}]"),
            None => format!("the SAs of [sa.{sa}] are not installed; read the reason in the log"),
        }
    }

    /// The SAs for displays.
    pub(super) fn manual_statuses(&self) -> Vec<ManualStatus> {
        let status = |one: &ManualTunnel| ManualStatus {
            run: one.pair.run,
            run_name: one.run_name.clone(),
            sa: one.pair.ike.clone(),
            peer: one.settings.peer_words(),
            local: match one.settings.protection.raw_local() {
                Some(local) => local.to_string(),
                None => one.local.to_string(),
            },
            encapsulation: one.settings.protection.encapsulation(),
            replay: replay_check(&one.settings),
            mode: one.settings.mode,
            child: one.status.clone(),
        };
        self.manual.iter().map(status).collect()
    }
}

fn report_installed(log: &Log, one: &ManualTunnel, child: &ChildSa) {
    let words = |list: &[_]| list.iter().map(selector_words).collect::<Vec<_>>();
    let event = about(Event::new("sa-installed"), &one.pair, &one.run_name)
        .field("peer", &one.settings.peer_words())
        .field("protocol", one.settings.protection.protocol())
        .field("encapsulation", one.settings.protection.encapsulation())
        .field("proposal", &protocol_words(child.protocol))
        .field("spi-in", &format_args!("{:08x}", child.inbound.spi.number()))
        .field("spi-out", &format_args!("{:08x}", child.outbound.spi.number()))
        .names("local", &words(&child.local))
        .names("remote", &words(&child.remote));
    log.info(event.clone());
    log.audit(AuditOutcome::Allowed, event);
    let is_in_udp = one.settings.protection.raw_local().is_none();
    if is_in_udp && one.local.port() != PORT {
        let next = "end the program that uses UDP port 4500, and restart the agent; or \
                    configure the peer to send to the port in `local`";
        let event = about(Event::new("sa-port-not-available"), &one.pair, &one.run_name);
        log.warn(event.field("local", &one.local).field("next", next));
    }
}

fn report_removed(log: &Log, one: &ManualTunnel) {
    let event = about(Event::new("sa-removed"), &one.pair, &one.run_name);
    let event = event.field("peer", &one.settings.peer_words());
    log.info(event.clone());
    log.audit(AuditOutcome::Allowed, event);
}

fn report_in_use(log: &Log, run: &str, sa: &str, user: &str) {
    let next = "only one run can use the SAs: write a separate [sa.NAME] for the rules of each run";
    let event = Event::new("sa-in-use").field("run", run).field("sa", sa).field("used-by", user);
    log.warn(event.field("next", next).limited(format!("sa-in-use {run} {sa}")));
}

fn report_not_installed(log: &Log, run: &str, sa: &str, error: &str) {
    let event = Event::new("sa-not-installed").field("run", run).field("sa", sa);
    log.error(event.field("error", error).limited(format!("sa-not-installed {run} {sa}")));
}

fn report_end(log: &Log, one: &ManualTunnel, end: SaEnd) {
    let next = "write new keys to the key files on both sides, and run `tacit reload`";
    match end {
        SaEnd::Near => {
            let event = about(Event::new("sa-ending"), &one.pair, &one.run_name);
            log.warn(event.field("next", next));
        }
        SaEnd::Reached => {
            let event = about(Event::new("sa-ended"), &one.pair, &one.run_name);
            let event = event.field("next", next);
            log.error(event.clone());
            log.audit(AuditOutcome::Failed, event);
        }
    }
}

fn about(event: Event, pair: &Pair, run: &str) -> Event {
    let label = RunLabel { id: pair.run, name: run.to_owned() };
    event.field("run", run).field("sa", &pair.ike).caused_by(EventCause::Run(label))
}
