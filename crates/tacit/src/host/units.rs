//! Follows the units of systemd that rules name.
//!
//! A drop-in makes systemd write the control group of a unit into a set of the kernel before the
//! unit's first process starts. The helper adds the units that run already. If a unit has no
//! drop-in, the kernel sends the flows of all programs to the destinations of rules with units to
//! the agent, which finds the unit itself.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use tacit_core::message_id::MessageId;
use tacit_core::policy::{Diagnostic, HostPlan, HostUnits, Policy};
use tacit_sys::host::HostCapture;
use tacit_sys::netlink::nft::host::{UNITS, UNITS_TABLE};

use crate::cgroups;
use crate::exit::complain;
use crate::run::kernel_terms::element;

/// Whether systemd writes the control groups of all units into the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DropIns {
    /// It does, or there are no units.
    Complete,
    /// A unit has no drop-in.
    Missing,
}

impl DropIns {
    /// Looks for the drop-ins of a plan.
    pub(super) fn of(plan: &HostPlan) -> Self {
        let mut units = plan.units.iter().flat_map(|units| &units.names);
        if units.all(|unit| has_drop_in(unit)) { Self::Complete } else { Self::Missing }
    }

    /// Reports what a missing one means.
    pub(super) fn report(self) {
        if self == Self::Missing {
            complain(format_args!(
                "tacit: units that rules name have no drop-in, so flows of all programs to the \
                 destinations of these rules go to the agent; `tacit check` shows what to do"
            ));
        }
    }
}

/// Installs what the kernel needs for units, and adds those that run.
///
/// # Errors
/// The kernel's.
pub(super) fn install(
    capture: &mut HostCapture,
    units: &HostUnits,
    drop_ins: DropIns,
) -> io::Result<()> {
    let all = match drop_ins {
        DropIns::Complete => units.destinations.as_slice(),
        DropIns::Missing => &[],
    };
    let destinations: Vec<_> = all.iter().map(element).collect();
    let install = |capture: &mut HostCapture, destinations: &[_]| {
        capture.install_units(units.mark, destinations).map_err(io::Error::other)
    };
    if capture.units().map_err(io::Error::other)?.is_none() {
        // A table with destinations and without the units that run would exempt these units from
        // their rules. Without destinations nothing is exempt.
        install(capture, &[])?;
    }
    capture.add_units(&cgroups::units(&units.names)).map_err(io::Error::other)?;
    install(capture, &destinations)
}

/// Adds units that the kernel does not know, such as those that systemd started before their
/// drop-in was there. Returns whether another program had removed the table.
///
/// # Errors
/// The kernel's.
pub(super) fn follow(
    capture: &mut HostCapture,
    units: &HostUnits,
    drop_ins: DropIns,
) -> io::Result<bool> {
    let Some(known) = capture.units().map_err(io::Error::other)? else {
        install(capture, units, drop_ins)?;
        return Ok(true);
    };
    let mut found = cgroups::units(&units.names);
    found.retain(|group| !known.contains(group));
    capture.add_units(&found).map_err(io::Error::other)?;
    Ok(false)
}

/// Why drop-ins were not written.
#[derive(Debug)]
pub enum DropInError {
    /// This host does not support them.
    Systemd(SystemdLack),
    /// A file or directory cannot be written.
    Write(PathBuf, io::Error),
}

impl DropInError {
    /// The identifier of the message.
    #[must_use]
    pub fn id(&self) -> MessageId {
        MessageId("drop-ins-not-written")
    }
}

impl fmt::Display for DropInError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Systemd(lack) => write!(f, "no drop-in was written: {lack}"),
            Self::Write(path, error) => write!(f, "cannot write {}: {error}", path.display()),
        }
    }
}

impl std::error::Error for DropInError {}

/// What rules with `unit` need and this host lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SystemdLack {
    /// systemd did not start this host.
    Absent,
    /// Its version has no `NFTSet=`.
    Old(u32),
    /// Its version is not known.
    UnknownVersion,
}

impl fmt::Display for SystemdLack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent => f.write_str("systemd does not manage this host"),
            Self::Old(version) => write!(
                f,
                "systemd {version} does not write control groups into packet rules (NFTSet=, from \
                 systemd {SYSTEMD_MIN} on)"
            ),
            Self::UnknownVersion => f.write_str("`systemctl --version` does not tell its version"),
        }
    }
}

/// Writes a drop-in for each unit that rules of the host name, and returns the files.
///
/// # Errors
/// This host does not support them, or a file cannot be written.
pub fn write_drop_ins(policy: &Policy, directory: &Path) -> Result<Vec<PathBuf>, DropInError> {
    supported().map_err(DropInError::Systemd)?;
    let mut units: Vec<&String> =
        policy.rules.iter().flat_map(|rule| &rule.selectors.unit).collect();
    units.sort();
    units.dedup();
    let write = |unit: &String| {
        let own = directory.join(format!("{unit}.d"));
        let file = own.join(FILE);
        let written = fs::create_dir_all(&own).and_then(|()| fs::write(&file, drop_in()));
        written.map_err(|error| DropInError::Write(file.clone(), error))?;
        Ok(file)
    };
    units.into_iter().map(write).collect()
}

/// The reasons for which a rule with units does not work on this host as it should.
#[must_use]
pub fn check_units(policy: &Policy) -> Vec<Diagnostic> {
    let with_units = || policy.rules.iter().filter(|rule| !rule.selectors.unit.is_empty());
    if policy.host.is_none() || with_units().next().is_none() {
        return Vec::new();
    }
    let lack = supported().err();
    let found = with_units().filter_map(|rule| {
        let missing = rule.selectors.unit.iter().find(|unit| !has_drop_in(unit));
        let (problem, fix) = match (&lack, missing) {
            (Some(lack), _) => {
                (lack.to_string(), "select by `user`, `slice` or `cgroup`".to_owned())
            }
            (None, Some(unit)) => (
                format!("there is no drop-in by which systemd reports `{unit}` to the kernel"),
                format!(
                    "run `tacit agent --host --drop-ins {DIRECTORY} --policy FILE`, then \
                     `systemctl daemon-reload`"
                ),
            ),
            (None, None) => return None,
        };
        let message = format!("rule `{}` has `unit`, and {problem}", rule.name);
        Some(Diagnostic::error(MessageId("unit-not-set"), rule.position, message).with_fix(fix))
    });
    found.collect()
}

fn supported() -> Result<(), SystemdLack> {
    if !Path::new(BOOTED).is_dir() {
        return Err(SystemdLack::Absent);
    }
    let output = Command::new("systemctl").arg("--version").output();
    let text = output.map_err(|_| SystemdLack::UnknownVersion)?.stdout;
    let version = version(&String::from_utf8_lossy(&text)).ok_or(SystemdLack::UnknownVersion)?;
    if version < SYSTEMD_MIN { Err(SystemdLack::Old(version)) } else { Ok(()) }
}

/// Reads the version from a text such as `systemd 257 (257.9-1)`.
fn version(text: &str) -> Option<u32> {
    let word = text.strip_prefix("systemd ")?.split_ascii_whitespace().next()?;
    let digits = word.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(word.len());
    word.get(..digits)?.parse().ok()
}

fn has_drop_in(unit: &str) -> bool {
    let is_there = |directory: &str| {
        let file = Path::new(directory).join(format!("{unit}.d")).join(FILE);
        fs::read_to_string(file).is_ok_and(|text| text == drop_in())
    };
    DIRECTORIES.iter().any(|directory| is_there(directory))
}

fn drop_in() -> String {
    format!(
        "# Written by `tacit agent --host --drop-ins`: the control group of this unit becomes \
         known\n# to the packet rules before the first process of the unit starts.\n\
         [Service]\nNFTSet=cgroup:inet:{UNITS_TABLE}:{UNITS}\n"
    )
}

/// The first version of systemd with `NFTSet=`.
const SYSTEMD_MIN: u32 = 255;
/// It is there if systemd has started the host.
const BOOTED: &str = "/run/systemd/system";
/// Where an operator has drop-ins.
const DIRECTORY: &str = "/etc/systemd/system";
/// Where systemd looks for drop-ins, the first one first.
const DIRECTORIES: [&str; 3] = [DIRECTORY, BOOTED, "/usr/lib/systemd/system"];
const FILE: &str = "50-tacit.conf";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_systemd_are_read() {
        assert_eq!(version("systemd 257 (257.9-1~deb13u1)\n+PAM"), Some(257));
        assert_eq!(version("systemd 256~rc1 (256)"), Some(256));
        for unknown in ["", "systemd ", "systemd x", "257", "systemctl 257"] {
            assert_eq!(version(unknown), None, "{unknown}");
        }
    }
}
