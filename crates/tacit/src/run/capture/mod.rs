//! Maintains the captured addresses of one run (a program under `tacit run`). If the program
//! connects to one of these addresses, the kernel redirects the connection to the agent. The
//! addresses change when the policy changes, and when the program looks up a name.

mod elements;
mod families;
mod names;

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use arc_swap::{ArcSwap, ArcSwapOption};
use tacit_core::dns::{HostsEntry, KnownName, Learning, NotLearnt, ResolvedAddress};
use tacit_core::policy::{
    CAPTURE_RANGES_MAX, CaptureRange, Extension, HostPlan, HostSettings, JoinedRun, LearntName,
    NameRules, Policy, Unmatched, can_match_name, captured, extend, host_plan, is_disputed,
    joined_plan, unmatched_of_joined,
};
use tacit_sys::netlink::route::Families;
use tacit_sys::process;
use tokio::sync::Mutex;

use crate::clock;
use crate::live::Live;
use crate::log::{Event, Log};
use crate::run::Run;
use crate::run::channel::is_refusal;
use crate::run::host::HostAddresses;
use crate::run::named::NamedCapture;
use crate::run::protocol::SocketSet;
use crate::run::tunnels::{RunTunnels, WantedTunnels};
use elements::elements;
use families::families;

/// How long new names are only added to the ranges. After that time, the ranges are computed from
/// all rules and names again, which removes the addresses of expired names.
const CUT_INTERVAL: Duration = Duration::from_secs(60);

/// The captured addresses of one run.
#[derive(Debug)]
pub struct Capture {
    /// The run.
    pub run: Arc<Run>,
    live: Arc<ArcSwap<Live>>,
    mirror: Mutex<Mirror>,
    /// The rules by name that the kernel's table of a host is for; `None`: there are none.
    name_rules: ArcSwapOption<NameRules>,
    /// Whether the kernel counts flows that it decides itself.
    counts: AtomicBool,
    /// The host's `/etc/hosts`.
    hosts: ArcSwap<Vec<HostsEntry>>,
    /// The DNS resolvers at the start of the run.
    resolvers: Vec<IpAddr>,
    /// The packets that are led into tunnels and not captured.
    pub tunnels: RunTunnels,
    log: Log,
}

/// The state of the address sets in the kernel, as far as it is known.
#[derive(Debug, Default)]
struct Mirror {
    /// The captured ranges, of which the sets contain those that [`elements`] selects; `None` if
    /// they are not known.
    ranges: Option<BTreeSet<CaptureRange>>,
    /// The number of looked-up names whose addresses are in the sets.
    news: u64,
    /// When the ranges were last computed from all rules and names.
    cut: Option<Instant>,
    /// The IP versions that are enabled in the namespace.
    families: Families,
    /// The addresses of the host that were copied into the namespace.
    host: Option<Arc<HostAddresses>>,
    /// What the kernel does with the flows of a host or of a joined namespace; `None` if this is
    /// another run or if the plan is not known.
    plan: Option<HostPlan>,
    /// Which addresses with names it captures; `None`: the plan has no rules by name.
    named: Option<NamedCapture>,
    /// The rules that the names of the host are grouped by: those of the installed policy.
    grouped_by: NameRules,
}

/// A plan, and how its nftables rules recognise the agent's packets.
struct Planned {
    plan: HostPlan,
    mark: u32,
    passing_user: Option<u32>,
}

impl Capture {
    /// The initial state, in which the sets are not known.
    #[must_use]
    pub fn new(
        run: Arc<Run>,
        live: Arc<ArcSwap<Live>>,
        resolvers: &[SocketAddr],
        tunnels: RunTunnels,
        log: Log,
    ) -> Self {
        Self {
            run,
            live,
            mirror: Mutex::default(),
            name_rules: ArcSwapOption::empty(),
            counts: AtomicBool::new(false),
            hosts: ArcSwap::default(),
            resolvers: resolvers.iter().map(SocketAddr::ip).collect(),
            tunnels,
            log,
        }
    }

    /// Stores the names of the host's `/etc/hosts` that some rule can match.
    pub fn take_hosts(&self, hosts: &[HostsEntry]) {
        let live = self.live.load();
        let now = clock::now_unix_s();
        if self.run.has_plan() {
            let rules = self.rules_by_name(&live.policy, now).unwrap_or_default();
            let known = hosts.iter().filter(|host| !rules.rules_of(&host.name).is_empty());
            self.run.set_lasting(known.cloned());
            // Another policy may have other rules.
            self.hosts.store(Arc::new(hosts.to_vec()));
            return;
        }
        let known = hosts.iter().filter(|host| can_match_name(&live.policy, &host.name, now));
        self.run.set_lasting(known.cloned());
    }

    /// Stores an address from a DNS answer, and returns the address that the program must get.
    ///
    /// # Errors
    /// See [`NotLearnt`].
    pub fn learn(&self, name: &str, answer: ResolvedAddress) -> Result<IpAddr, NotLearnt> {
        let ResolvedAddress { address, ttl } = answer;
        let policy = &self.live.load().policy;
        let is_disputed = is_disputed(policy, name, address, clock::now_unix_s());
        let aliases = policy.agent.aliases;
        self.run.learn(Learning { name, address, ttl, is_disputed, aliases })
    }

    /// Whether a rule other than a deny can match connections to that address.
    #[must_use]
    pub fn includes(&self, address: IpAddr) -> bool {
        self.wanted().iter().any(|one| {
            one.first.is_ipv6() == address.is_ipv6() && (one.first..=one.last).contains(&address)
        })
    }

    fn wanted(&self) -> Vec<CaptureRange> {
        let named = self.run.named();
        let mut wanted = self.captured(named.iter().map(learnt_name));
        for address in self.run.expects() {
            let one = CaptureRange {
                udp: false,
                first: address.ip(),
                last: address.ip(),
                first_port: address.port(),
                last_port: address.port(),
            };
            // Ranges in a set of the kernel must not overlap.
            if !wanted.iter().any(|other| covers(other, &one)) {
                wanted.push(one);
            }
        }
        wanted
    }

    /// Updates the address sets in the kernel, and the IP versions of the namespace, for the
    /// current policy and names.
    ///
    /// # Errors
    /// The kernel refuses the sets, or there is no helper.
    pub async fn follow(&self) -> io::Result<()> {
        // The lock is held until the update is complete, so that the next caller sees the result.
        let mut mirror = self.mirror.lock().await;
        if self.run.has_plan() {
            let policy = Arc::clone(&self.live.load().policy);
            self.install(&policy, &mut mirror).await?;
            self.group_names(&policy, &mut mirror);
            return Ok(());
        }
        self.bring_up(&mut mirror).await
    }

    /// Changes the kernel's table of a host for a policy that will be installed next.
    ///
    /// # Errors
    /// The kernel refuses, or there is no helper; the table is then as it was.
    pub async fn lead(&self, policy: &Policy) -> io::Result<()> {
        self.install(policy, &mut *self.mirror.lock().await).await
    }

    /// Installs the table of a host again: a new helper does not know it.
    ///
    /// # Errors
    /// The kernel refuses, or there is no helper.
    pub async fn install_again(&self) -> io::Result<()> {
        self.mirror.lock().await.plan = None;
        self.follow().await
    }

    /// The rules by name for programs of the host or of a joined namespace; `None` if there are
    /// none and port 53 is an ordinary port.
    fn rules_by_name(&self, policy: &Policy, unix_s: i64) -> Option<NameRules> {
        let Some(joined) = self.joined() else { return NameRules::of(policy, unix_s) };
        let answers_always = unmatched_of_joined(policy) == Unmatched::Deny;
        NameRules::of_joined(policy, joined, unix_s)
            .or_else(|| answers_always.then(NameRules::default))
    }

    fn joined(&self) -> Option<JoinedRun<'_>> {
        let Run { name, user, .. } = &*self.run;
        self.run.is_joined().then_some(JoinedRun { name, user })
    }

    fn plan(&self, policy: &Policy, unix_s: i64) -> io::Result<Planned> {
        if let Some(joined) = self.joined() {
            let plan = joined_plan(policy, joined, unix_s);
            // The agent is outside, and a program may have the same user number.
            return Ok(Planned { plan, mark: HostSettings::MARK_DEFAULT, passing_user: None });
        }
        let host = policy.host.as_ref().ok_or(io::ErrorKind::InvalidInput)?;
        let plan = host_plan(policy, host.unmatched, unix_s);
        Ok(Planned { plan, mark: host.mark, passing_user: passing_user() })
    }

    async fn install(&self, policy: &Policy, mirror: &mut Mirror) -> io::Result<()> {
        let unix_s = clock::now_unix_s();
        let Planned { plan, mark, passing_user } = self.plan(policy, unix_s)?;
        let now = Instant::now();
        let rules = self.rules_by_name(policy, unix_s);
        let of_rules = |rules| NamedCapture::of(rules, &self.run.learnt(), &self.hosts.load(), now);
        let named = rules.clone().map(of_rules);
        let is_same = match (&mirror.named, &named) {
            (Some(before), Some(wanted)) => before.is_same(wanted),
            (before, wanted) => before.is_none() && wanted.is_none(),
        };
        if mirror.plan.as_ref() == Some(&plan) && is_same {
            return Ok(());
        }
        // Flows that cannot be counted are no reason to keep the rules.
        let _ = self.count_flows().await;
        let before = mirror.plan.take();
        let addresses = named.as_ref().map(|named| named.addresses(now)).unwrap_or_default();
        let helper = &self.run.helper;
        let installed = helper.install_plan(mark, plan.clone(), addresses, passing_user).await;
        match installed {
            Ok(counts) => self.counts.store(counts, Ordering::Relaxed),
            Err(error) => {
                // After another failure it is not known what is installed.
                mirror.plan = before.filter(|_| is_refusal(&error));
                return Err(error);
            }
        }
        mirror.plan = Some(plan);
        mirror.named = named;
        self.name_rules.store(rules.map(Arc::new));
        Ok(())
    }

    /// Adds the flows that the kernel has decided itself to the counters of their rules.
    ///
    /// # Errors
    /// The kernel does not report them, or there is no helper.
    pub async fn count_flows(&self) -> io::Result<()> {
        if !self.counts.load(Ordering::Relaxed) {
            return Ok(());
        }
        let counts = self.run.helper.counts().await?;
        let live = self.live.load();
        let flows: HashMap<_, _> = counts.iter().map(|one| (&*one.rule, one.flows)).collect();
        for rule in &live.rules {
            if let Some(flows) = flows.get(rule.name()) {
                rule.counters.count_kernel_hits(*flows);
            }
        }
        for counter in &live.filters {
            if let Some(packets) = flows.get(counter.name.as_str()) {
                counter.count(*packets);
            }
        }
        Ok(())
    }

    /// Like [`follow`](Self::follow), after a name was looked up. Does nothing if its addresses are
    /// captured already.
    ///
    /// # Errors
    /// The same as [`Self::follow`].
    pub async fn follow_news(&self) -> io::Result<()> {
        let mut mirror = self.mirror.lock().await;
        if mirror.ranges.is_some() && mirror.news == self.run.news() {
            return Ok(());
        }
        if self.extend(&mut mirror).await {
            return Ok(());
        }
        self.bring_up(&mut mirror).await
    }

    /// Adds the addresses of new names to the captured ranges; returns whether that was sufficient.
    /// Computing all ranges again takes more time the more names a run has.
    async fn extend(&self, mirror: &mut Mirror) -> bool {
        let is_old = mirror.cut.is_none_or(|cut| cut.elapsed() > CUT_INTERVAL);
        let news = self.run.news();
        let (Some(ranges), false) = (&mirror.ranges, is_old) else { return false };
        let Some(fresh) = self.run.take_fresh() else { return false };
        let families = mirror.families;
        let brings_family = |address: IpAddr| {
            let is_given = if address.is_ipv4() { families.v4 } else { families.v6 };
            !is_given && self.run.outside.has_route(address)
        };
        if fresh.iter().any(|known| brings_family(known.address)) {
            return false;
        }
        let mut ranges = ranges.clone();
        let mut extension = Extension::default();
        for known in &fresh {
            let wanted = self.captured([learnt_name(known)]);
            extend(&mut ranges, &wanted, known.used(), &mut extension);
        }
        let Extension { gone, new } = extension;
        if ranges.len() >= CAPTURE_RANGES_MAX {
            return false;
        }
        let host = mirror.host.as_deref();
        let [gone, new] = [gone, new].map(|some| elements(some, host));
        // If this future is dropped, the state of the kernel's sets is not known.
        mirror.ranges = None;
        let is_same = gone.is_empty() && new.is_empty();
        if !is_same && self.run.helper.change(gone, new).await.is_err() {
            return false;
        }
        mirror.ranges = Some(ranges);
        mirror.news = news;
        true
    }

    /// The ranges of these names, and of rules with addresses.
    fn captured<'n>(&self, named: impl IntoIterator<Item = LearntName<'n>>) -> Vec<CaptureRange> {
        let own: Vec<IpAddr> = self.run.host.addresses().all().collect();
        captured(&self.live.load().policy, named, &own, clock::now_unix_s())
    }

    async fn bring_up(&self, mirror: &mut Mirror) -> io::Result<()> {
        let news = self.run.news();
        // All names are read below.
        drop(self.run.take_fresh());
        let wanted: BTreeSet<CaptureRange> = self.wanted().into_iter().collect();
        if wanted.len() >= CAPTURE_RANGES_MAX {
            let reason = "the rules and DNS names of the policy need more address ranges than the \
                          kernel can capture. The run refuses connections to the addresses that \
                          are not captured: in `remote`, use networks instead of many names or \
                          addresses";
            self.log.warn(
                Event::new("capture-full").field("run", &self.run.name).field("next", reason),
            );
        }
        let helper = &self.run.helper;
        let tunnels = self.tunnels.wanted(&self.run, &self.live.load().policy);
        let families = tunnels.as_ref().map(WantedTunnels::families).unwrap_or_default();
        let host_before = mirror.host.clone();
        self.give_network(&wanted, families, mirror).await?;
        // The packets of tunnels take no other route after a failure, so everything else follows.
        let routed = match tunnels {
            Ok(tunnels) => self.tunnels.follow(&self.run, tunnels).await,
            Err(error) => Err(error),
        };
        let in_sets = elements(wanted.iter().copied(), mirror.host.as_deref());
        let changed = match mirror.ranges.take() {
            None => false,
            Some(before) => {
                let before: BTreeSet<_> =
                    elements(before, host_before.as_deref()).into_iter().collect();
                let now: BTreeSet<_> = in_sets.iter().copied().collect();
                let gone: Vec<_> = before.difference(&now).copied().collect();
                let new: Vec<_> = now.difference(&before).copied().collect();
                // If a helper died during a change, the kernel may have it already, and refuses it.
                (gone.is_empty() && new.is_empty()) || helper.change(gone, new).await.is_ok()
            }
        };
        if !changed {
            helper.replace_captured(in_sets).await?;
        }
        mirror.ranges = Some(wanted);
        mirror.news = news;
        mirror.cut = Some(Instant::now());
        routed
    }

    /// The number of captured ranges; `None` while it changes.
    pub fn count(&self) -> Option<usize> {
        let mirror = self.mirror.try_lock().ok()?;
        match &mirror.plan {
            Some(plan) => {
                let named = mirror.named.as_ref().map_or(0, NamedCapture::count);
                Some(plan.captured() + named)
            }
            None => mirror.ranges.as_ref().map(BTreeSet::len),
        }
    }

    /// Adds the IP versions of captured aliases for whose real addresses the host has a route.
    fn families_of_aliases(
        &self,
        wanted: &BTreeSet<CaptureRange>,
        mut found: Families,
    ) -> Families {
        if found.v4 && found.v6 {
            return found;
        }
        for KnownName { address, alias, .. } in self.run.named() {
            let Some(alias) = alias else { continue };
            let one = if address.is_ipv4() { &mut found.v4 } else { &mut found.v6 };
            let is_captured = |one: &CaptureRange| {
                one.first.is_ipv4() == alias.is_ipv4() && (one.first..=one.last).contains(&alias)
            };
            *one = *one || (wanted.iter().any(is_captured) && self.run.outside.has_route(address));
        }
        found
    }

    /// Enables an IP version in the namespace if the host has a route to an address of that version
    /// that the policy allows, or a tunnel leads to one; looked-up names are included. Otherwise
    /// the version stays disabled, so that programs do not try it first. It is never disabled
    /// again. Also copies the addresses of the host.
    async fn give_network(
        &self,
        wanted: &BTreeSet<CaptureRange>,
        of_tunnels: Families,
        mirror: &mut Mirror,
    ) -> io::Result<()> {
        let policy = &self.live.load().policy;
        let outside = &self.run.outside;
        let found = families(policy, wanted, mirror.families, &self.resolvers, outside);
        let mut found = self.families_of_aliases(wanted, found);
        found.v4 |= of_tunnels.v4;
        found.v6 |= of_tunnels.v6;
        let helper = &self.run.helper;
        match self.run.sockets {
            SocketSet::Connected if found != mirror.families => helper.families(found).await?,
            SocketSet::Connected | SocketSet::Host | SocketSet::Joined => {}
            SocketSet::Held => {
                let host = self.run.host.addresses();
                if found != mirror.families || mirror.host.as_ref() != Some(&host) {
                    helper.network(found, &host).await?;
                    mirror.host = Some(host);
                }
            }
        }
        mirror.families = found;
        Ok(())
    }
}

fn learnt_name(known: &KnownName) -> LearntName<'_> {
    LearntName { name: &known.name, address: known.address, alias: known.alias }
}

/// The user of the agent, unless that is root: its packets pass even without a mark.
#[must_use]
pub fn passing_user() -> Option<u32> {
    Some(process::effective_user()).filter(|user| *user != 0)
}

/// Whether a range contains another.
fn covers(outer: &CaptureRange, inner: &CaptureRange) -> bool {
    outer.udp == inner.udp
        && outer.first.is_ipv4() == inner.first.is_ipv4()
        && outer.first <= inner.first
        && inner.last <= outer.last
        && outer.first_port <= inner.first_port
        && inner.last_port <= outer.last_port
}
