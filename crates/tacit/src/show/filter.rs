//! Selects the connections that `tacit show connections` prints.

use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use tacit_core::flow::Address;

use crate::control::display::connections::ConnectionDisplay;

/// The conditions of the filter; `None` matches every connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConnectionFilter<'a> {
    pub(super) rule: Option<&'a str>,
    pub(super) remote: Option<&'a RemoteFilter>,
    pub(super) run: Option<&'a str>,
    pub(super) state: Option<StateFilter>,
}

/// A state of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum StateFilter {
    /// Connecting, or in a handshake
    SettingUp,
    /// Waiting for the first message, which starts its program
    Waiting,
    /// Relaying bytes
    Open,
    /// Its rule has been changed or removed since it was opened
    Stale,
}

/// An address with or without a port, or a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RemoteFilter {
    /// Address and port.
    Whole(Address),
    /// All ports of the addresses that have the same first bits; the length is the second field.
    Network(IpAddr, u8),
}

impl ConnectionFilter<'_> {
    /// Whether there is a condition.
    pub(super) fn is_any(&self) -> bool {
        let Self { rule, remote, run, state } = self;
        rule.is_some() || remote.is_some() || run.is_some() || state.is_some()
    }

    /// Whether the connection satisfies all conditions.
    pub(super) fn matches(&self, connection: &ConnectionDisplay) -> bool {
        let run = connection.run.as_ref().map(|run| run.name.as_str());
        self.rule.is_none_or(|rule| connection.rule == rule)
            && self.run.is_none_or(|name| run == Some(name))
            && self.remote.is_none_or(|remote| {
                remote.matches(connection.origin())
                    || connection.connect.as_ref().is_some_and(|target| remote.matches(target))
            })
            && self.state.is_none_or(|state| match state {
                StateFilter::SettingUp => connection.state == "setting-up",
                StateFilter::Waiting => connection.state == "waiting",
                StateFilter::Open => connection.state == "open",
                StateFilter::Stale => connection.policy == "stale",
            })
    }
}

impl RemoteFilter {
    fn matches(&self, address: &Address) -> bool {
        match self {
            Self::Whole(whole) => whole == address,
            Self::Network(network, length) => address.ip().is_some_and(|ip| {
                let [(bits, width), (other, other_width)] = [ip, *network].map(bits);
                let rest = u32::from(width).saturating_sub((*length).into());
                width == other_width && bits.checked_shr(rest) == other.checked_shr(rest)
            }),
        }
    }
}

/// The bits of an address, and their number.
fn bits(ip: IpAddr) -> (u128, u8) {
    match ip {
        IpAddr::V4(ip) => (ip.to_bits().into(), 32),
        IpAddr::V6(ip) => (ip.to_bits(), 128),
    }
}

impl FromStr for RemoteFilter {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const FIX: &str =
            "expected an address such as 10.7.0.9, 10.7.0.9:5432, 10.7.0.0/16 or unix:/PATH";
        if let Ok(address) = text.parse::<SocketAddr>() {
            return Ok(Self::Whole(address.into()));
        }
        if text.starts_with("unix:") {
            return text.parse().map(Self::Whole).map_err(|_| FIX);
        }
        let (ip, length) = match text.split_once('/') {
            Some((ip, length)) => (ip, Some(length.parse().map_err(|_| FIX)?)),
            None => (text, None),
        };
        let ip: IpAddr = ip.parse().map_err(|_| FIX)?;
        let (_, width) = bits(ip);
        let length = length.unwrap_or(width);
        if length > width { Err(FIX) } else { Ok(Self::Network(ip, length)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::display::connections::example;

    #[test]
    fn filters_match_only_the_given_addresses() {
        let mut connection = example(1);
        connection.remote = "10.7.0.9:40000".parse().unwrap();
        connection.connect = Some("[2001:db8::1]:443".parse().unwrap());
        let matches = |remote: Option<&str>, rule: Option<&str>, state| {
            let remote: Option<RemoteFilter> = remote.map(|text| text.parse().unwrap());
            let filter = ConnectionFilter { rule, remote: remote.as_ref(), run: None, state };
            filter.matches(&connection)
        };
        for (remote, expected) in [
            ("10.7.0.9", true),
            ("10.7.0.9:40000", true),
            ("10.7.0.9:40001", false),
            ("10.7.0.0/16", true),
            ("0.0.0.0/0", true),
            ("10.8.0.0/16", false),
            ("2001:db8::/32", true),
            ("::/0", true),
            ("unix:/x", false),
        ] {
            assert_eq!(matches(Some(remote), None, None), expected, "{remote}");
        }
        assert!(matches(None, Some("web"), Some(StateFilter::Open)));
        assert!(!matches(None, Some("we"), None));
        assert!(!matches(None, None, Some(StateFilter::Stale)));
        let filter = ConnectionFilter { rule: None, remote: None, run: Some("r"), state: None };
        assert!(!filter.matches(&connection), "it belongs to no run");
        for wrong in ["10.7.0", "10.7.0.0/33", "name", "10.7.0.0/x", ""] {
            assert!(wrong.parse::<RemoteFilter>().is_err(), "{wrong}");
        }
    }
}
