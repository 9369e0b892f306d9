//! Queries systemd for its version, and for the systemd units in the policy.

use std::fmt;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use tacit_sys::netlink::nft::host::UNIT_LEVEL_MAX;

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
                "this host has systemd {version}, but policy rules with `unit` need systemd \
                 {SYSTEMD_MIN} or later (`NFTSet=`)"
            ),
            Self::UnknownVersion => f.write_str(
                "tacit cannot find the version of systemd in the output of `systemctl --version`",
            ),
        }
    }
}

/// Checks that systemd can write control groups of units into nftables rules.
pub(super) fn supported() -> Result<(), SystemdLack> {
    if !Path::new(BOOTED).is_dir() {
        return Err(SystemdLack::Absent);
    }
    let text = systemctl(&["--version"]).ok_or(SystemdLack::UnknownVersion)?;
    let version = version(&text).ok_or(SystemdLack::UnknownVersion)?;
    if version < SYSTEMD_MIN { Err(SystemdLack::Old(version)) } else { Ok(()) }
}

/// Like [`supported`], which is asked only once: the helper looks each second, and a host does not
/// go back to an older systemd while it runs.
pub(super) fn is_supported() -> bool {
    static IS_SUPPORTED: OnceLock<bool> = OnceLock::new();
    *IS_SUPPORTED.get_or_init(|| supported().is_ok())
}

/// Why a rule for a unit does not match the flows of the unit as it should.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UnitFault {
    /// systemd does not describe it.
    Unknown(String),
    /// It is another name of the second one, which is the name of the control group.
    Alias(String, String),
    /// systemd has not loaded it, but has it in this state.
    State(String, String),
    /// It is at this level of the control groups, which is too deep.
    Deep(String, usize),
}

impl UnitFault {
    /// What to do.
    #[must_use]
    pub fn fix(&self) -> String {
        match self {
            Self::Alias(_, id) => format!("write unit = \"{id}\""),
            Self::Unknown(unit) | Self::State(unit, _) => {
                format!(
                    "run `systemctl status {unit}`; then correct the name in the policy, or repair \
                     the unit"
                )
            }
            Self::Deep(..) => {
                "in the unit, set a `Slice=` with fewer hyphens, because each hyphen adds a level \
                 to the hierarchy. Or select the programs in the policy by `user` or `cgroup` \
                 instead of `unit`"
                    .to_owned()
            }
        }
    }
}

impl fmt::Display for UnitFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(unit) => {
                write!(f, "the output of `systemctl show {unit}` does not describe `{unit}`")
            }
            Self::Alias(unit, id) => {
                write!(
                    f,
                    "`{unit}` is an alias of `{id}`, and the control group of the unit has the \
                     name `{id}`"
                )
            }
            Self::State(unit, state) => {
                write!(f, "systemd has not loaded `{unit}` (LoadState={state})")
            }
            Self::Deep(unit, level) => write!(
                f,
                "the control group of `{unit}` is at level {level} of the hierarchy; the nftables \
                 rules match only units at levels 1 to {UNIT_LEVEL_MAX}"
            ),
        }
    }
}

/// What `systemctl show` prints for a unit; empty if it fails.
#[derive(Debug)]
pub(super) struct ShownUnit(String);

impl ShownUnit {
    pub(super) fn of(unit: &str) -> Self {
        Self(systemctl(&["show", SHOWN, "--", unit]).unwrap_or_default())
    }

    /// Whether systemd has loaded a drop-in, and its unit is as in the files.
    pub(super) fn has_loaded(&self, drop_in: &Path) -> bool {
        let paths = self.value("DropInPaths").unwrap_or_default();
        let real = |path: &Path| fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let drop_in = real(drop_in);
        let is_loaded = paths.split(' ').any(|path| real(Path::new(&unquoted(path))) == drop_in);
        is_loaded && self.value("NeedDaemonReload") == Some("no")
    }

    /// The kill mode, if processes of the unit may remain when it stops.
    pub(super) fn leaving_kill_mode(&self) -> Option<&str> {
        self.value("KillMode").filter(|mode| ["process", "none"].contains(mode))
    }

    /// A value in lines such as `Id=nginx.service`.
    fn value(&self, key: &str) -> Option<&str> {
        self.0.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='))
    }
}

/// An element of a list of strings as `systemctl show` prints it: in quotes if it has a backslash,
/// as `dev\x2dsda.service` has one.
fn unquoted(element: &str) -> String {
    element.trim_matches('"').replace(r"\\", r"\")
}

/// Checks that rules can name a unit by this name.
pub(super) fn check_unit(unit: &str, shown: &ShownUnit) -> Result<(), UnitFault> {
    let value = |key| shown.value(key);
    let name = unit.to_owned();
    let (Some(id), Some(state)) = (value("Id"), value("LoadState")) else {
        return Err(UnitFault::Unknown(name));
    };
    if id != unit {
        return Err(UnitFault::Alias(name, id.to_owned()));
    }
    if state != "loaded" {
        return Err(UnitFault::State(name, state.to_owned()));
    }
    let level = 1 + value("Slice").map_or(0, levels);
    if u32::try_from(level).is_ok_and(|level| level <= UNIT_LEVEL_MAX) {
        Ok(())
    } else {
        Err(UnitFault::Deep(name, level))
    }
}

/// How many slices a path to a slice has: `a-b.slice` is below `a.slice`.
fn levels(slice: &str) -> usize {
    if slice == "-.slice" || slice.is_empty() { 0 } else { 1 + slice.matches('-').count() }
}

/// What `systemctl` prints, or `None` if it fails.
fn systemctl(arguments: &[&str]) -> Option<String> {
    let output = Command::new("systemctl").args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Reads the version from a text such as `systemd 257 (257.9-1)`.
fn version(text: &str) -> Option<u32> {
    let word = text.strip_prefix("systemd ")?.split_ascii_whitespace().next()?;
    let digits = word.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(word.len());
    word.get(..digits)?.parse().ok()
}

/// The first version of systemd with `NFTSet=`.
const SYSTEMD_MIN: u32 = 255;
/// It is there if systemd has started the host.
const BOOTED: &str = "/run/systemd/system";
/// The properties of a unit that are read.
const SHOWN: &str = "--property=Id,LoadState,Slice,DropInPaths,NeedDaemonReload,KillMode";

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

    fn shown(id: &str, state: &str, slice: &str) -> ShownUnit {
        ShownUnit(format!("Slice={slice}\nId={id}\nLoadState={state}\n"))
    }

    #[test]
    fn a_unit_is_named_by_its_id_and_loaded() {
        let name = || "mysql.service".to_owned();
        let check = |id, state| check_unit("mysql.service", &shown(id, state, "system.slice"));
        assert_eq!(check("mysql.service", "loaded"), Ok(()));
        let alias = UnitFault::Alias(name(), "mariadb.service".to_owned());
        assert!(alias.fix().contains("\"mariadb.service\""));
        assert_eq!(check("mariadb.service", "loaded"), Err(alias));
        for state in ["not-found", "masked", "bad-setting"] {
            let fault = UnitFault::State(name(), state.to_owned());
            assert_eq!(check("mysql.service", state), Err(fault));
        }
        for text in ["", "Id=mysql.service\n", "LoadState=loaded\n"] {
            let shown = ShownUnit(text.to_owned());
            assert_eq!(check_unit("mysql.service", &shown), Err(UnitFault::Unknown(name())));
        }
    }

    #[test]
    fn a_unit_is_not_deeper_than_the_kernel_looks() {
        let check = |slice| check_unit("a.service", &shown("a.service", "loaded", slice));
        assert_eq!(check("-.slice"), Ok(()));
        assert_eq!(check("a-b-c-d-e-f-g.slice"), Ok(()));
        assert_eq!(check("a-b-c-d-e-f-g-h.slice"), Err(UnitFault::Deep("a.service".to_owned(), 9)));
    }

    #[test]
    fn kill_modes_that_leave_processes_are_found() {
        for (mode, leaves) in
            [("control-group", false), ("mixed", false), ("process", true), ("none", true)]
        {
            let shown = ShownUnit(format!("Id=a.service\nKillMode={mode}\n"));
            assert_eq!(shown.leaving_kill_mode(), leaves.then_some(mode));
        }
    }

    #[test]
    fn a_drop_in_is_loaded_once_systemd_has_read_it_again() {
        let file = Path::new("/etc/systemd/system/a.service.d/50-tacit.conf");
        let has_loaded = |paths: &str, reload: &str| {
            ShownUnit(format!("DropInPaths={paths}\nNeedDaemonReload={reload}\n")).has_loaded(file)
        };
        let own = file.to_str().unwrap();
        assert!(has_loaded(own, "no"));
        assert!(has_loaded(&format!("/run/a.conf {own}"), "no"));
        assert!(!has_loaded(own, "yes"));
        let escaped = ShownUnit(
            r#"DropInPaths="/run/a\\x2db.service.d/50-tacit.conf"
NeedDaemonReload=no
"#
            .to_owned(),
        );
        assert!(escaped.has_loaded(Path::new(r"/run/a\x2db.service.d/50-tacit.conf")));
        assert!(!has_loaded("", "no"));
        assert!(!has_loaded("/run/systemd/system/a.service.d/50-tacit.conf", "no"));
        assert!(!ShownUnit(String::new()).has_loaded(file));
    }
}
