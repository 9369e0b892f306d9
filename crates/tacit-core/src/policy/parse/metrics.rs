//! Parses the keys `metrics` and `metrics-clear` of the policy table `[agent]`. These keys define
//! where the agent serves its metrics.

use super::address;
use crate::flow::Address;
use crate::message_id::MessageId;
use crate::policy::text::TomlTable;

/// The values of both keys.
pub(super) struct MetricsKeys {
    /// The address; `None`: metrics are not served.
    pub(super) metrics: Option<Address>,
    /// Whether other hosts may reach the address.
    pub(super) metrics_clear: bool,
}

/// Reads both; `None` after an error.
///
/// Metrics show how much traffic each rule has, and with HTTP in clear every host on the path can
/// read them. So they are served to other hosts only if the policy permits it explicitly.
pub(super) fn read(table: &TomlTable<'_>) -> Option<MetricsKeys> {
    let clear = table.value("metrics-clear");
    let metrics_clear = table.boolean("metrics-clear", false);
    let Some(value) = table.value("metrics") else {
        table.refuse(
            &["metrics-clear"],
            "the agent serves no metrics",
            "remove `{key}`, or add `metrics`",
        );
        let none = MetricsKeys { metrics: None, metrics_clear: false };
        return (!table.holds("metrics-clear")).then_some(none);
    };
    let metrics = address::listen(&value)?;
    let metrics_clear = metrics_clear?;
    if !metrics.stays_on_host() && !metrics_clear {
        let message = format!("the agent would serve metrics to other hosts in clear at {metrics}");
        let fix = "use loopback or a UNIX socket; or, if you trust the network of this address, \
                   set metrics-clear = true";
        value.error_of(MessageId("clear-leaves-host"), message, fix);
        return None;
    }
    if let Some(clear) = clear.filter(|_| metrics.stays_on_host() && metrics_clear) {
        let position = table.report.position(clear.name_at.start);
        let message = "`metrics-clear = true` has no effect: tacit serves metrics only on this \
                       host";
        table.report.warning(MessageId("no-effect"), position, message, "remove `metrics-clear`");
    }
    Some(MetricsKeys { metrics: Some(metrics), metrics_clear })
}
