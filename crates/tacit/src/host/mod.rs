//! Captures the traffic of this host. So one policy applies to all programs of the host, without
//! `tacit run`.
//!
//! ```text
//! tacit agent --host            starts the helper, and serves the programs of the host
//! tacit agent --host --guard    installs the nftables rules of the policy, and ends; if this
//!                               policy has an error, uses the stored policy (`stored.rs`) instead
//! tacit agent --host --remove   removes the nftables rules and routing rules
//! tacit agent --host --drop-ins DIRECTORY    writes a drop-in for each systemd unit in a rule
//! ```
//!
//! While no agent runs, the nftables rules remain. They refuse the flows that an agent would
//! receive.

mod counted;
mod facts;
mod filters;
mod helper;
mod joined;
mod learnt;
mod once;
mod owners;
mod senders;
mod stored;
mod systemd;
mod units;
mod watched;

use std::fmt;
use std::io;

use tacit_core::message_id::MessageId;
use tacit_core::policy::{
    HostMode, HostPlan, HostSection, HostVerdict, NamedAddress, NamedPorts, Unmatched,
};
use tacit_sys::netlink::IpProtocol;
use tacit_sys::netlink::nft::Element;
use tacit_sys::netlink::nft::host::{
    self as table, CountedElement, HostElement, HostMarks, HostTable, Lifetime, NamedFlows,
    SenderCheck, TableSection,
};

use self::filters::FilterContents;
use crate::run::kernel_terms::element;

pub use facts::facts;
pub use helper::{HostHelper, start};
pub use joined::serve_joined;
pub use once::{GuardFallback, counted, guard, guard_without_policy, probe, remove};
pub(crate) use owners::{Owners, ProgramSearch, default_agent_mark};
pub use stored::{StoreError, store_policy};
pub use systemd::{SystemdLack, UnitFault};
pub use units::{DropInError, check_units, write_drop_ins};

/// Why this host cannot be captured.
#[derive(Debug)]
pub enum HostError {
    /// The policy has no `[host]`.
    NoSettings,
    /// The process may not mark packets.
    NoRights(io::Error),
    /// Another process owns the nftables rules.
    InUse,
    /// The helper cannot be started, or returns an error.
    Helper(io::Error),
}

impl HostError {
    /// The identifier of the message.
    #[must_use]
    pub fn id(&self) -> MessageId {
        match self {
            Self::NoSettings => MessageId("no-host-settings"),
            Self::NoRights(_) => MessageId("cannot-mark-packets"),
            Self::InUse => MessageId("host-in-use"),
            Self::Helper(_) => MessageId("host-not-captured"),
        }
    }
}

impl fmt::Display for HostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSettings => f.write_str(
                "--host needs [host] in the policy\n    \
                 fix: add [host] with unmatched = \"permit\" or \"deny\"",
            ),
            Self::NoRights(error) => write!(
                f,
                "the agent cannot mark packets: {error}\n    \
                 fix: start the agent with CAP_NET_ADMIN and CAP_NET_RAW, as tacit-host.service \
                 does"
            ),
            Self::InUse => f.write_str(
                "another agent already captures this host\n    fix: end that agent first, with \
                 `systemctl stop tacit-host` or `tacit drain`; if no other agent runs, end the \
                 program that uses port 15001, 15002 or 15003",
            ),
            Self::Helper(error) => write!(
                f,
                "the host cannot be captured: {error}\n    \
                 fix: give the process CAP_NET_ADMIN and CAP_NET_RAW; if it has them, run \
                 `tacit doctor` to see what this kernel lacks"
            ),
        }
    }
}

impl std::error::Error for HostError {}

/// A plan in the data types of the kernel.
struct TableContents<'p> {
    sections: Vec<SectionContents>,
    inbound: Vec<Element>,
    others: table::PacketVerdict,
    names: Option<NamedContents>,
    forwarded: Vec<String>,
    lifetime: Lifetime,
    filters: Option<FilterContents<'p>>,
}

/// What rules by name need.
struct NamedContents {
    ports: Vec<table::PartPorts>,
    addresses: Vec<table::PartAddress>,
}

impl NamedContents {
    fn of(ports: &[NamedPorts], addresses: &[NamedAddress]) -> Self {
        let ports = ports.iter().map(|one| {
            let NamedPorts { udp, first_port, last_port, part } = *one;
            let protocol = if udp { IpProtocol::Udp } else { IpProtocol::Tcp };
            table::PartPorts { protocol, first_port, last_port, part }
        });
        let addresses = addresses.iter().map(learnt::named_address).collect();
        Self { ports: ports.collect(), addresses }
    }

    fn flows(&self) -> NamedFlows<'_> {
        NamedFlows { ports: &self.ports, addresses: &self.addresses }
    }
}

/// A section in the data types of the kernel.
struct SectionContents {
    senders: Vec<SenderCheck>,
    outbound: Vec<HostElement>,
    counted: Vec<CountedElement>,
}

impl SectionContents {
    fn of(section: &HostSection, senders: Vec<SenderCheck>) -> Self {
        let outbound = section.outbound.iter().map(|one| HostElement {
            to: element(&one.to),
            verdict: match one.verdict {
                HostVerdict::Capture => table::PacketVerdict::Capture,
                HostVerdict::Pass => table::PacketVerdict::Pass,
                HostVerdict::Refuse => table::PacketVerdict::Refuse,
                HostVerdict::Prohibit => table::PacketVerdict::Prohibit,
            },
        });
        let counted = section.counted.iter();
        let counted = counted.map(|one| CountedElement { to: element(&one.to), number: one.rule });
        Self { senders, outbound: outbound.collect(), counted: counted.collect() }
    }
}

impl<'p> TableContents<'p> {
    /// `senders` are those of each section, `addresses` those with names, if the plan has ports for
    /// them.
    fn of(plan: &'p HostPlan, senders: &[Vec<SenderCheck>], addresses: &[NamedAddress]) -> Self {
        let sections = plan.sections.iter().zip(senders);
        let sections =
            sections.map(|(section, senders)| SectionContents::of(section, senders.clone()));
        let others = match plan.unmatched {
            Unmatched::Permit => table::PacketVerdict::Pass,
            Unmatched::Deny => table::PacketVerdict::Refuse,
        };
        Self {
            sections: sections.collect(),
            inbound: plan.inbound.iter().map(element).collect(),
            others,
            names: plan.names.as_ref().map(|ports| NamedContents::of(ports, addresses)),
            forwarded: plan.forwarded.clone(),
            lifetime: match plan.mode {
                HostMode::Enforce => Lifetime::Unlimited,
                HostMode::Audit => Lifetime::OfInstaller,
            },
            filters: plan.filters.as_ref().map(FilterContents::of),
        }
    }

    fn sections(&self) -> Vec<TableSection<'_>> {
        let sections = self.sections.iter();
        sections
            .map(|SectionContents { senders, outbound, counted }| TableSection {
                senders,
                outbound,
                counted,
            })
            .collect()
    }

    fn table<'a>(
        &'a self,
        sections: &'a [TableSection<'a>],
        marks: HostMarks,
        user: Option<u32>,
    ) -> HostTable<'a> {
        HostTable {
            marks,
            user,
            others: self.others,
            sections,
            inbound: &self.inbound,
            forwarded: &self.forwarded,
            lifetime: self.lifetime,
            names: self.names.as_ref().map(NamedContents::flows),
            filters: self.filters.as_ref().map(FilterContents::filters),
        }
    }
}

/// The two mark bits of the policy. The parser has checked that there are two.
fn marks_of(mark: u32) -> io::Result<HostMarks> {
    HostMarks::new(mark).ok_or_else(|| io::ErrorKind::InvalidData.into())
}
