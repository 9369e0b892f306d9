//! Checks at intervals whether the rules that the helper has installed in the kernel still exist,
//! and installs them again if another program has removed them.

use std::io;
use std::time::{Duration, Instant};

use tacit_core::policy::HostPlan;
use tacit_sys::host::HostCapture;
use tacit_sys::netlink::nft::host::{HostMarks, SenderCheck};

use super::{TableContents, senders};
use crate::exit::complain;

/// The interval between two checks of the installed rules.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// The rules that capture a host.
pub(super) struct Installed {
    pub(super) marks: HostMarks,
    pub(super) plan: HostPlan,
    /// The senders of each section of the plan, as they were found.
    pub(super) senders: Vec<Vec<SenderCheck>>,
    pub(super) user: Option<u32>,
}

/// The part of the kernel that has the rules.
pub(super) trait HostRules {
    /// Installs packet rules and routing rules.
    fn install(&mut self, installed: &Installed) -> io::Result<()>;
    /// Whether the packet rules are there.
    fn has_table(&mut self) -> io::Result<bool>;
    /// Installs the missing routing rules; returns whether any were missing.
    fn restore_routes(&mut self) -> io::Result<bool>;
}

impl HostRules for HostCapture {
    fn install(&mut self, installed: &Installed) -> io::Result<()> {
        let contents = TableContents::of(&installed.plan, &installed.senders);
        let sections = contents.sections();
        let table = contents.table(&sections, installed.marks, installed.user);
        Self::install(self, &table).map_err(io::Error::other)
    }

    fn has_table(&mut self) -> io::Result<bool> {
        self.is_installed().map_err(io::Error::other)
    }

    fn restore_routes(&mut self) -> io::Result<bool> {
        Self::restore_routes(self).map_err(io::Error::other)
    }
}

/// The installed rules, and the time of their next check.
#[derive(Default)]
pub(super) struct Watched {
    installed: Option<(Installed, Instant)>,
    /// The last failure, which is reported once.
    failure: Option<String>,
}

impl Watched {
    /// Installs rules, and checks them from now on.
    ///
    /// # Errors
    /// The error of the kernel. The previous rules remain, and are checked as before.
    pub(super) fn install(
        &mut self,
        kernel: &mut impl HostRules,
        wanted: Installed,
        now: Instant,
    ) -> io::Result<()> {
        kernel.install(&wanted)?;
        self.installed = Some((wanted, now + LOOK_INTERVAL));
        Ok(())
    }

    /// Looks at what is installed, if it is time to, and restores what another program has removed.
    /// Returns the time until the next look; `None`: nothing is installed.
    pub(super) fn look(
        &mut self,
        kernel: Option<&mut impl HostRules>,
        now: Instant,
    ) -> Option<Duration> {
        let (installed, next_look) = self.installed.as_mut()?;
        if now < *next_look {
            return Some(*next_look - now);
        }
        *next_look = now + LOOK_INTERVAL;
        let restored = restore(kernel?, installed);
        self.report(restored);
        Some(LOOK_INTERVAL)
    }

    fn report(&mut self, restored: io::Result<Option<&'static str>>) {
        match restored {
            Ok(None) => self.failure = None,
            Ok(Some(what)) => {
                self.failure = None;
                complain(format_args!(
                    "tacit: another program removed {what} of the host; they are installed again"
                ));
            }
            Err(error) => {
                let failure = error.to_string();
                if self.failure.as_ref() != Some(&failure) {
                    complain(format_args!(
                        "tacit: another program removed the packet rules or the routing rules of \
                         the host, and they cannot be installed again, which is tried every \
                         second: {failure}"
                    ));
                }
                self.failure = Some(failure);
            }
        }
    }
}

/// Restores missing rules, and returns which were missing. Control groups that rules name may have
/// been created or replaced since.
fn restore(
    kernel: &mut impl HostRules,
    installed: &mut Installed,
) -> io::Result<Option<&'static str>> {
    if senders::may_change(&installed.plan) {
        let found = senders::resolve(&installed.plan)?;
        if found != installed.senders {
            let before = std::mem::replace(&mut installed.senders, found);
            kernel.install(installed).inspect_err(|_| installed.senders = before)?;
            return Ok(None);
        }
    }
    if !kernel.has_table()? {
        kernel.install(installed)?;
        return Ok(Some("the packet rules"));
    }
    Ok(kernel.restore_routes()?.then_some("the routing rules"))
}

#[cfg(test)]
mod tests {
    use tacit_core::policy::Unmatched;

    use super::*;

    /// A kernel without support for owners of tables.
    #[derive(Default)]
    struct Kernel {
        has_table: bool,
        has_routes: bool,
        /// It refuses so many installations.
        refusals: u32,
    }

    impl HostRules for Kernel {
        fn install(&mut self, _: &Installed) -> io::Result<()> {
            if let Some(left) = self.refusals.checked_sub(1) {
                self.refusals = left;
                return Err(io::ErrorKind::OutOfMemory.into());
            }
            (self.has_table, self.has_routes) = (true, true);
            Ok(())
        }

        fn has_table(&mut self) -> io::Result<bool> {
            Ok(self.has_table)
        }

        fn restore_routes(&mut self) -> io::Result<bool> {
            let were_absent = !self.has_routes;
            self.has_routes = true;
            Ok(were_absent)
        }
    }

    fn installed() -> Installed {
        let plan =
            HostPlan { sections: Vec::new(), unmatched: Unmatched::Permit, inbound: Vec::new() };
        Installed { marks: HostMarks::new(3).unwrap(), plan, senders: Vec::new(), user: None }
    }

    fn watched() -> (Watched, Kernel, Instant) {
        let mut watched = Watched::default();
        let mut kernel = Kernel::default();
        let now = Instant::now();
        assert_eq!(watched.look(Some(&mut kernel), now), None);
        watched.install(&mut kernel, installed(), now).unwrap();
        (watched, kernel, now)
    }

    #[test]
    fn frequent_requests_do_not_delay_the_look() {
        let (mut watched, mut kernel, begin) = watched();
        kernel.has_table = false;
        for tenth in 1..10 {
            let now = begin + LOOK_INTERVAL * tenth / 10;
            assert_eq!(
                watched.look(Some(&mut kernel), now),
                Some(LOOK_INTERVAL * (10 - tenth) / 10)
            );
            assert!(!kernel.has_table);
        }
        watched.look(Some(&mut kernel), begin + LOOK_INTERVAL);
        assert!(kernel.has_table);
    }

    #[test]
    fn a_failure_is_followed_by_another_attempt() {
        let (mut watched, mut kernel, mut now) = watched();
        kernel.has_table = false;
        kernel.refusals = 2;
        for _ in 0..2 {
            now += LOOK_INTERVAL;
            watched.look(Some(&mut kernel), now);
            assert!(!kernel.has_table);
        }
        now += LOOK_INTERVAL;
        watched.look(Some(&mut kernel), now);
        assert!(kernel.has_table);
    }

    #[test]
    fn a_refused_installation_leaves_the_one_before_watched() {
        let (mut watched, mut kernel, now) = watched();
        kernel.refusals = 1;
        assert!(watched.install(&mut kernel, installed(), now).is_err());
        (kernel.has_table, kernel.has_routes) = (false, false);
        watched.look(Some(&mut kernel), now + LOOK_INTERVAL);
        assert!(kernel.has_table);
        kernel.has_routes = false;
        watched.look(Some(&mut kernel), now + LOOK_INTERVAL * 2);
        assert!(kernel.has_routes);
    }
}
