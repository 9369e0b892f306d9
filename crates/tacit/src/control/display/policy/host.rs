//! Lists the settings of `[host]` for `tacit show policy`.

use tacit_core::policy::{HostMode, HostSettings};

use super::{PolicyTable, Settings};

pub(super) fn table(host: &HostSettings) -> PolicyTable {
    let HostSettings { unmatched, mark, unit_mark, mode, forwarded, classes, position: _ } = host;
    let mut settings = Settings::default();
    settings.add("unmatched", unmatched.word(), false);
    settings.add("mark", format!("{mark:#x}"), *mark == HostSettings::MARK_DEFAULT);
    let default = HostSettings::UNIT_MARK_DEFAULTS[0];
    settings.add("unit-mark", format!("{unit_mark:#x}"), *unit_mark == default);
    settings.add("mode", mode.word(), *mode == HostMode::default());
    settings.add("forwarded", forwarded.clone(), forwarded.is_empty());
    let of_interface = classes.iter().map(|(name, class)| format!("{name} = {class}"));
    settings.add("classes", of_interface.collect::<Vec<_>>(), classes.is_empty());
    settings.table("[host]", None)
}
