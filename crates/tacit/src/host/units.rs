//! Passes the control groups of systemd units to the kernel, for policy rules that select programs
//! by systemd unit.
//!
//! `tacit agent --host --drop-ins` writes a configuration file (drop-in) for each unit in a rule.
//! The drop-in makes systemd add the control group of the unit to an nftables set, before the unit
//! starts. The helper adds the control groups of units that already run.
//!
//! If systemd has not loaded the drop-in of a unit, the kernel cannot recognise the unit. So if the
//! destination of a flow matches a rule for this unit, the kernel redirects the flow to the agent.
//! The agent then finds the unit of the flow.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use tacit_core::message_id::MessageId;
use tacit_core::policy::{Diagnostic, HostPlan, HostUnits, Policy, Rule};
use tacit_sys::host::HostCapture;
use tacit_sys::netlink::nft::host::{CgroupId, UNIT_LEVEL_MAX, UNITS, UNITS_TABLE};

use super::systemd::{self, ShownUnit, SystemdLack, UnitFault};
use crate::cgroups;
use crate::exit::warn;
use crate::run::kernel_terms::element;

/// Whether systemd writes the control groups of all units into the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DropIns {
    /// It does, or there are no units.
    Complete,
    /// systemd is too old, or a unit has no drop-in or is deeper than the kernel looks.
    Missing,
}

/// What the host has of the units of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FoundUnits {
    /// Whether systemd reports all of them.
    pub(super) drop_ins: DropIns,
    /// The control groups of those that run.
    pub(super) groups: Vec<u64>,
}

impl FoundUnits {
    /// Looks for the units of a plan and for their drop-ins.
    pub(super) fn of(plan: &HostPlan) -> Self {
        let Some(units) = &plan.units else {
            return Self { drop_ins: DropIns::Complete, groups: Vec::new() };
        };
        let has_drop_in = |unit: &String| drop_in_of(unit, Path::new("/")).is_some();
        let are_there = systemd::is_supported() && units.names.iter().all(has_drop_in);
        let found = cgroups::units(&units.names);
        let is_found = |group: &CgroupId| group.level <= UNIT_LEVEL_MAX;
        let is_complete = are_there && found.iter().all(is_found);
        let drop_ins = if is_complete { DropIns::Complete } else { DropIns::Missing };
        Self { drop_ins, groups: found.iter().map(|group| group.id).collect() }
    }
}

impl DropIns {
    /// Reports what a missing one means.
    pub(super) fn report(self) {
        if self == Self::Missing {
            warn(
                MessageId("unit-not-matched"),
                "the nftables rules cannot match a systemd unit of a policy rule: systemd is too \
                 old, the unit has no drop-in, or the control group of the unit is nested too \
                 deeply. So the agent receives all flows to the destinations of this policy rule, \
                 from every program\n    \
                 fix: run `tacit check`, which names the unit and prints what to do",
            );
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
    found: &FoundUnits,
) -> io::Result<()> {
    let all = match found.drop_ins {
        DropIns::Complete => units.destinations.as_slice(),
        DropIns::Missing => &[],
    };
    let destinations: Vec<_> = all.iter().map(element).collect();
    let install = |capture: &mut HostCapture, destinations: &[_]| {
        capture.install_units(units.mark, destinations).map_err(io::Error::other)
    };
    if capture.units().map_err(io::Error::other)?.is_some() {
        capture.add_units(&found.groups).map_err(io::Error::other)?;
    } else {
        // A table with destinations and without the units that run would exempt these units from
        // their rules. Without destinations nothing is exempt. systemd adds what starts now.
        install(capture, &[])?;
        let running: Vec<_> = cgroups::units(&units.names).iter().map(|group| group.id).collect();
        capture.add_units(&running).map_err(io::Error::other)?;
    }
    install(capture, &destinations)
}

/// Adds units that the kernel does not know, such as those that systemd started before their
/// drop-in was there. Returns whether another program had removed the table or its rules.
///
/// # Errors
/// The kernel's.
pub(super) fn follow(
    capture: &mut HostCapture,
    units: &HostUnits,
    found: &FoundUnits,
) -> io::Result<bool> {
    let known = capture.units().map_err(io::Error::other)?;
    let has_rules = capture.has_unit_rules().map_err(io::Error::other)?;
    let Some(known) = known.filter(|_| has_rules) else {
        install(capture, units, found)?;
        return Ok(true);
    };
    let unknown = found.groups.iter().copied().filter(|group| !known.contains(group));
    capture.add_units(&unknown.collect::<Vec<_>>()).map_err(io::Error::other)?;
    Ok(false)
}

/// Rejects a plan that names a unit by an alias. The control group has another name, so no flow of
/// the unit would match the rule.
///
/// # Errors
/// The first alias. The text is for an operator.
pub(super) fn refuse_aliases(plan: &HostPlan) -> io::Result<()> {
    let names = plan.units.iter().flat_map(|units| &units.names);
    let mut aliases = names.filter_map(|unit| alias_of(unit, Path::new("/")));
    let Some(fault) = aliases.next() else { return Ok(()) };
    Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{fault}\n    fix: {}", fault.fix())))
}

/// The fault of an alias: systemd reads its file through a symbolic link to a unit with another
/// name.
fn alias_of(unit: &str, root: &Path) -> Option<UnitFault> {
    let files = DIRECTORIES.map(|path| root.join(path).join(unit));
    let first = files.into_iter().find(|file| fs::symlink_metadata(file).is_ok())?;
    let target = fs::canonicalize(first).ok()?;
    let target = target.file_name()?.to_str()?;
    // A link from an instance leads to the template: `a@1.service` to `a@.service`.
    let instance = unit.split_once('@').map(|(_, instance)| instance);
    let id = match (target.split_once("@."), instance) {
        (Some((template, _)), Some(instance)) => format!("{template}@{instance}"),
        _ => target.to_owned(),
    };
    let is_unit = id.ends_with(".service");
    (is_unit && id != unit).then(|| UnitFault::Alias(unit.to_owned(), id))
}

/// Why drop-ins were not written.
#[derive(Debug)]
pub enum DropInError {
    /// This host does not support them.
    Systemd(SystemdLack),
    /// A rule cannot name this unit.
    Unit(UnitFault),
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
            Self::Unit(fault) => {
                write!(f, "no drop-in was written: {fault}\n    fix: {}", fault.fix())
            }
            Self::Write(path, error) => write!(f, "cannot write {}: {error}", path.display()),
        }
    }
}

impl std::error::Error for DropInError {}

/// Writes a drop-in for each unit that rules of the host name, and returns the files.
///
/// # Errors
/// This host does not support them, a rule cannot name a unit, or a file cannot be written.
pub fn write_drop_ins(policy: &Policy, directory: &Path) -> Result<Vec<PathBuf>, DropInError> {
    systemd::supported().map_err(DropInError::Systemd)?;
    let mut units: Vec<&String> =
        policy.rules.iter().flat_map(|rule| &rule.selectors.unit).collect();
    units.sort();
    units.dedup();
    let check = |unit: &&String| systemd::check_unit(unit, &ShownUnit::of(unit));
    units.iter().try_for_each(check).map_err(DropInError::Unit)?;
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
    if let Err(lack) = systemd::supported() {
        let fix = || "select programs by `user`, `slice` or `cgroup` instead".to_owned();
        return with_units().map(|rule| not_set(rule, &lack.to_string(), fix())).collect();
    }
    let rules: Vec<_> = with_units().map(|rule| (rule, units_of(rule))).collect();
    let errors = rules.iter().filter_map(|(rule, units)| {
        let (problem, fix) = units.iter().find_map(|(unit, shown)| unit_problem(unit, shown))?;
        Some(not_set(rule, &problem, fix))
    });
    let warnings = rules.iter().flat_map(|(rule, units)| warnings_of(rule, units));
    errors.chain(warnings).collect()
}

/// The units of a rule, as systemd shows them.
fn units_of(rule: &Rule) -> Vec<(&str, ShownUnit)> {
    rule.selectors.unit.iter().map(|unit| (unit.as_str(), ShownUnit::of(unit))).collect()
}

fn not_set(rule: &Rule, problem: &str, fix: String) -> Diagnostic {
    let message = format!("rule `{}` selects programs by `unit`, but {problem}", rule.name);
    Diagnostic::error(MessageId("unit-not-set"), rule.position, message).with_fix(fix)
}

/// A warning for each unit of a rule that may leave processes without the unit.
fn warnings_of(rule: &Rule, units: &[(&str, ShownUnit)]) -> Vec<Diagnostic> {
    let of_unit = |(unit, shown): &(&str, ShownUnit)| {
        let mode = shown.leaving_kill_mode()?;
        let message = format!(
            "rule `{}` selects programs by `unit`, but `{unit}` has KillMode={mode}: processes of \
             the unit may remain after the unit stops. For up to a second after the stop, the rule \
             does not match these processes",
            rule.name
        );
        let fix = "set `KillMode=control-group` or `KillMode=mixed` in the unit";
        let id = MessageId("unit-leaves-processes");
        Some(Diagnostic::warning(id, rule.position, message).with_fix(fix))
    };
    units.iter().filter_map(of_unit).collect()
}

/// Why a rule does not match the first packets of a unit, and what to do.
fn unit_problem(unit: &str, shown: &ShownUnit) -> Option<(String, String)> {
    if let Err(fault) = systemd::check_unit(unit, shown) {
        return Some((fault.to_string(), fault.fix()));
    }
    let Some(file) = drop_in_of(unit, Path::new("/")) else {
        let problem = format!(
            "`{unit}` has no drop-in, so systemd does not add the control group of this unit to \
             the nftables rules"
        );
        let fix = format!(
            "run `tacit agent --host --drop-ins {DIRECTORY} --policy FILE`, then \
             `systemctl daemon-reload`"
        );
        return Some((problem, fix));
    };
    if shown.has_loaded(&file) {
        return None;
    }
    let problem = format!("{file} has changed since systemd loaded it", file = file.display());
    Some((problem, "run `systemctl daemon-reload`".to_owned()))
}

/// The drop-in of a unit that systemd reads, if it is as tacit writes it. Of files with one name,
/// systemd reads the first one; a link to `/dev/null` there hides the others.
fn drop_in_of(unit: &str, root: &Path) -> Option<PathBuf> {
    let files = DIRECTORIES.map(|path| root.join(path).join(format!("{unit}.d")).join(FILE));
    // A file that cannot be looked at decides, too: it may be there.
    let is_there = |file: &PathBuf| match fs::symlink_metadata(file) {
        Ok(_) => true,
        Err(error) => {
            !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
        }
    };
    let first = files.into_iter().find(is_there)?;
    fs::read_to_string(&first).is_ok_and(|text| text == drop_in()).then_some(first)
}

fn drop_in() -> String {
    format!(
        "# Written by `tacit agent --host --drop-ins`: the control group of this unit becomes \
         known\n# to the nftables rules before the first process of the unit starts.\n\
         [Service]\nNFTSet=cgroup:inet:{UNITS_TABLE}:{UNITS}\n"
    )
}

/// Where an operator has drop-ins.
const DIRECTORY: &str = "/etc/systemd/system";
/// Where systemd looks for units and drop-ins below the root, the first one first.
const DIRECTORIES: [&str; 12] = [
    "etc/systemd/system.control",
    "run/systemd/system.control",
    "run/systemd/transient",
    "run/systemd/generator.early",
    "etc/systemd/system",
    "etc/systemd/system.attached",
    "run/systemd/system",
    "run/systemd/system.attached",
    "run/systemd/generator",
    "usr/local/lib/systemd/system",
    "usr/lib/systemd/system",
    "run/systemd/generator.late",
];
const FILE: &str = "50-tacit.conf";

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_link_to_a_unit_with_another_name_is_an_alias() {
        let root = std::env::temp_dir().join(format!("tacit-aliases-{}", std::process::id()));
        let [own, vendor] =
            ["etc/systemd/system", "usr/lib/systemd/system"].map(|directory| root.join(directory));
        fs::create_dir_all(&own).unwrap();
        fs::create_dir_all(&vendor).unwrap();
        for unit in ["mariadb.service", "web@.service", "local.conf"] {
            fs::write(vendor.join(unit), "").unwrap();
        }
        for (link, target) in [
            ("mysql.service", "../../../usr/lib/systemd/system/mariadb.service"),
            ("mariadb.service", "../../../usr/lib/systemd/system/mariadb.service"),
            ("web@1.service", "../../../usr/lib/systemd/system/web@.service"),
            ("site@1.service", "../../../usr/lib/systemd/system/web@.service"),
            ("masked.service", "/dev/null"),
        ] {
            symlink(target, own.join(link)).unwrap();
        }
        for (unit, id) in [
            ("mysql.service", Some("mariadb.service")),
            ("mariadb.service", None),
            ("web@1.service", None),
            ("site@1.service", Some("web@1.service")),
            ("masked.service", None),
            ("absent.service", None),
        ] {
            let fault = id.map(|id| UnitFault::Alias(unit.to_owned(), id.to_owned()));
            assert_eq!(alias_of(unit, &root), fault, "{unit}");
        }
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn the_first_file_in_the_order_of_systemd_decides_about_a_drop_in() {
        let root = std::env::temp_dir().join(format!("tacit-drop-ins-{}", std::process::id()));
        let file = |directory: &str| {
            let own = root.join(directory).join("a.service.d");
            fs::create_dir_all(&own).unwrap();
            own.join(FILE)
        };
        let found = || drop_in_of("a.service", &root);
        assert_eq!(found(), None);
        let last = file("usr/lib/systemd/system");
        fs::write(&last, drop_in()).unwrap();
        assert_eq!(found(), Some(last));
        let middle = file("run/systemd/system");
        fs::write(&middle, "[Service]\n").unwrap();
        assert_eq!(found(), None, "changed content");
        fs::write(&middle, drop_in()).unwrap();
        assert_eq!(found(), Some(middle));
        let first = file("etc/systemd/system");
        symlink("/dev/null", &first).unwrap();
        assert_eq!(found(), None, "masked");
        fs::remove_file(&first).unwrap();
        symlink("nowhere", &first).unwrap();
        assert_eq!(found(), None, "a link without a file");
        fs::remove_dir_all(&root).unwrap();
    }
}
