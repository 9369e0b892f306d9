//! Records the names that programs resolve, for `tacit agent --host`. Then adds the addresses of
//! these names to the addresses that the kernel captures.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tacit_core::dns::{HostAnswer, HostLearning, ResolvedAddress};
use tacit_core::policy::{HostName, NameRules, NamedAddress, Policy};

use super::{Capture, Mirror};
use crate::clock;
use crate::log::Event;
use crate::run::named::{LearnError, end_of};
use crate::run::protocol::NAMES_PER_REPLY_MAX;

/// How often the names of a host that are in use are renewed.
const RENEW_INTERVAL: Duration = Duration::from_secs(30 * 60);

impl Capture {
    /// Groups the names of the host by the rules of the installed policy.
    pub(super) fn group_names(&self, policy: &Policy, mirror: &mut Mirror) {
        let rules = self.rules_by_name(policy, clock::now_unix_s()).unwrap_or_default();
        if rules != mirror.grouped_by {
            if let Some(mut names) = self.run.host_names() {
                names.regroup(|name| rules.rules_of(name));
            }
            mirror.grouped_by = rules;
        }
    }

    /// Reads the names that an earlier agent has stored in the kernel.
    ///
    /// # Errors
    /// The kernel does not report them, or there is no helper.
    pub async fn take_kept_names(&self) -> io::Result<()> {
        if !self.run.has_plan() {
            return Ok(());
        }
        let mut mirror = self.mirror.lock().await;
        let kept = self.run.helper.names().await?;
        let used = longest(&self.run.helper.named_addresses().await?);
        let policy = Arc::clone(&self.live.load().policy);
        self.group_names(&policy, &mut mirror);
        let now = Instant::now();
        let Some(mut names) = self.run.host_names() else { return Ok(()) };
        for HostName { address, name, seconds } in &kept {
            let rules = mirror.grouped_by.rules_of(name);
            let seconds = used.get(address).map_or(*seconds, |used| *seconds.max(used));
            let until = now + Duration::from_secs(seconds);
            names.restore(HostAnswer { name, address: *address, rules: &rules, until });
        }
        Ok(())
    }

    /// Extends the time of the names whose addresses programs still use. Each packet to a captured
    /// address renews the timeout of the address in the kernel, but not that of its names.
    ///
    /// # Errors
    /// The kernel does not report the addresses or store the names, or there is no helper.
    async fn renew_names(&self) -> io::Result<()> {
        let mut mirror = self.mirror.lock().await;
        let Some(named) = mirror.named.as_mut() else { return Ok(()) };
        let kept = self.run.helper.named_addresses().await?;
        let now = Instant::now();
        named.add(&kept, now);
        let mut renewed = Vec::new();
        if let Some(mut names) = self.run.host_names() {
            for (address, seconds) in longest(&kept) {
                let until = now + Duration::from_secs(seconds);
                let prolonged = names.prolong(address, until).into_iter();
                renewed.extend(
                    prolonged.map(|(rules, name)| (rules, HostName { address, name, seconds })),
                );
            }
        }
        for some in renewed.chunks(NAMES_PER_REPLY_MAX) {
            let names = some.iter().map(|(_, name)| name.clone()).collect();
            self.run.helper.learn(Vec::new(), names).await?;
            let Some(mut names) = self.run.host_names() else { return Ok(()) };
            some.iter().for_each(|(rules, one)| names.set_stored(one.address, rules, &one.name));
        }
        Ok(())
    }

    /// Renews the names of a host until it is aborted.
    pub async fn renew_names_always(self: Arc<Self>) {
        while self.run.has_plan() {
            if let Err(error) = self.renew_names().await {
                let event = Event::new("names-not-renewed").field("error", &error);
                let next = "every 30 minutes, the agent tries again to keep the DNS names whose \
                            addresses programs use. Until an attempt succeeds, the agent may \
                            forget these names one day after their DNS answers have expired";
                self.log.warn(event.field("next", next));
            }
            tokio::time::sleep(RENEW_INTERVAL).await;
        }
    }

    /// The rules by name of a host; `None` if there are none, or if this is a run.
    #[must_use]
    pub fn name_rules(&self) -> Option<Arc<NameRules>> {
        self.name_rules.load_full()
    }

    /// Records addresses of a name of the host, and waits until the kernel captures them.
    ///
    /// # Errors
    /// See [`LearnError`]; the program must not get the answer.
    pub async fn learn_of_host(
        &self,
        name: &str,
        answers: &[ResolvedAddress],
    ) -> Result<(), LearnError> {
        // The lock is held until the kernel has the addresses, because another task may wait for
        // the same addresses.
        let mut mirror = self.mirror.lock().await;
        let Mirror { named, grouped_by, plan, .. } = &mut *mirror;
        let Some(named) = named.as_mut().filter(|_| plan.is_some()) else {
            return Err(LearnError::Kernel(io::ErrorKind::NotConnected.into()));
        };
        let now = Instant::now();
        let rules = grouped_by.rules_of(name);
        let mut names = Vec::new();
        let mut addresses = Vec::new();
        for ResolvedAddress { address, ttl } in answers {
            let address = address.to_canonical();
            let until = end_of(*ttl, now);
            let answer = HostAnswer { name, address, rules: &rules, until };
            if self.learn_name(answer, now)? == HostLearning::Store {
                let seconds = until.saturating_duration_since(now).as_secs();
                names.push(HostName { address, name: name.to_owned(), seconds });
            }
            addresses.extend(named.missing(name, address, until, now)?);
        }
        if names.is_empty() && addresses.is_empty() {
            return Ok(());
        }
        let learnt = self.run.helper.learn(addresses.clone(), names.clone());
        learnt.await.map_err(LearnError::Kernel)?;
        named.add(&addresses, now);
        if let Some(mut of_host) = self.run.host_names() {
            names.iter().for_each(|one| of_host.set_stored(one.address, &rules, &one.name));
        }
        Ok(())
    }

    fn learn_name(&self, answer: HostAnswer<'_>, now: Instant) -> Result<HostLearning, LearnError> {
        let Some(mut names) = self.run.host_names() else { return Ok(HostLearning::Known) };
        names.learn(answer, now).map_err(LearnError::NotLearnt)
    }
}

/// The longest time of each address, in seconds. Addresses without an end are not included.
fn longest(addresses: &[NamedAddress]) -> HashMap<IpAddr, u64> {
    let mut longest = HashMap::new();
    for one in addresses {
        let Some(seconds) = one.seconds else { continue };
        let most = longest.entry(one.address).or_insert(seconds);
        *most = seconds.max(*most);
    }
    longest
}
