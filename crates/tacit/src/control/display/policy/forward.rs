//! Lists the settings of a forwarding rule for `tacit show policy`.

use std::time::Duration;

use tacit_core::policy::{ForwardRule, SendProxy, TargetOrder};

use super::{SettingValue, Settings, duration, texts};

pub(super) fn forwarding(settings: &mut Settings, forward: &ForwardRule) {
    let ForwardRule {
        listen,
        connect,
        activate,
        accept_proxy,
        send_proxy,
        connect_timeout,
        unix,
        clear,
    } = forward;
    settings.add("listen", texts(listen), false);
    if let Some(connect) = connect {
        settings.add("connect", texts(&connect.targets), false);
        if connect.targets.len() > 1 {
            let is_default = connect.order == TargetOrder::default();
            settings.add("order", connect.order.word(), is_default);
        }
        let is_default = *connect_timeout == CONNECT_TIMEOUT_DEFAULT;
        settings.add("connect-timeout", duration(*connect_timeout), is_default);
        let send: SettingValue = match send_proxy {
            None => false.into(),
            Some(SendProxy::Addresses) => true.into(),
            Some(SendProxy::Tls) => "tls".into(),
        };
        settings.add("send-proxy", send, send_proxy.is_none());
    }
    if let Some(activation) = activate {
        settings.add("activate", activation.name.clone(), false);
    }
    settings.add("accept-proxy", *accept_proxy, !*accept_proxy);
    if listen.iter().any(|address| matches!(address, tacit_core::flow::Address::Path(_))) {
        settings.add("unix-mode", format!("{:04o}", unix.mode), unix.mode == UNIX_MODE_DEFAULT);
        settings.add("unix-owner", unix.owner.clone(), unix.owner.is_none());
        settings.add("replace-stale", unix.replace_stale, !unix.replace_stale);
    }
    settings.add("clear", *clear, !*clear);
}

/// The default of `connect-timeout`.
const CONNECT_TIMEOUT_DEFAULT: Duration = Duration::from_secs(10);
/// The default of `unix-mode`.
const UNIX_MODE_DEFAULT: u32 = 0o600;
