//! Writes a first policy from observed connections.

use std::collections::BTreeSet;
use std::fmt;
use std::iter;
use std::time::Duration;

use super::traffic::{FlowOwner, LearntPlace, LearntTraffic, PlaceKey};
use crate::printable::printable;

/// The longest line of a comment, in characters.
const COMMENT_WIDTH: usize = 100;
/// The longest name of a rule without a number; with one, it has at most 64 characters.
const NAME_CHARACTERS_MAX: usize = 58;

/// Writes a policy for `tacit agent --host` that permits what was observed in this time. The rules
/// with the most connections come first.
#[must_use]
pub fn policy_text(traffic: &LearntTraffic, observed: Duration) -> String {
    let mut places: Vec<_> = traffic.places().collect();
    places.sort_by_key(|(_, place)| std::cmp::Reverse(place.connections));
    let mut text = head(&places, traffic.left_out(), observed);
    let mut names = BTreeSet::new();
    for (key, place) in places {
        text.push('\n');
        comment(&mut text, &owners_words(place));
        comment(&mut text, &format!("{}, {}.", counted(place), tls_words(key, place)));
        if let Some(words) = addresses_words(key, place) {
            comment(&mut text, &words);
        }
        text.push_str(&Rule { key, name: unique_name(key, &mut names) }.to_string());
    }
    text
}

fn head(places: &[(&PlaceKey, &LearntPlace)], left_out: u64, observed: Duration) -> String {
    let connections: u64 = places.iter().map(|(_, place)| place.connections).sum();
    let rules = places.len();
    let mut text = String::new();
    comment(
        &mut text,
        &format!(
            "A first policy for this host. `tacit learn` has written it after {} s, in which it \
             observed {connections} connections; each of the {rules} rules permits some of them.",
            observed.as_secs()
        ),
    );
    if left_out > 0 {
        comment(&mut text, &format!("{left_out} more connections exceeded a limit: no rule."));
    }
    text.push_str("#\n");
    comment(
        &mut text,
        "This policy protects nothing yet. To protect the connections of a rule, replace \
         `permit = true`, for example by `tls = { trust = \"system\" }` if the server speaks TLS \
         at this port, and delete rules for connections that you do not want. Then set \
         `unmatched = \"deny\"`, and check the result with `tacit check`.",
    );
    text.push_str("version = 1\n\n[host]\nunmatched = \"permit\"\n");
    text
}

/// Appends a comment, in lines of [`COMMENT_WIDTH`] characters.
fn comment(text: &mut String, words: &str) {
    let words = printable(words);
    let mut width = 0;
    for word in words.split(' ') {
        let length = word.chars().count() + 1;
        if width == 0 || width + length > COMMENT_WIDTH {
            text.push_str(if width == 0 { "#" } else { "\n#" });
            width = 1;
        }
        text.push(' ');
        text.push_str(word);
        width += length;
    }
    text.push('\n');
}

fn owners_words(place: &LearntPlace) -> String {
    if place.owners.is_empty() {
        return "Program unknown.".to_owned();
    }
    let mut owners: Vec<_> = place.owners.iter().collect();
    owners.sort_by_key(|(_, connections)| std::cmp::Reverse(**connections));
    let more = if place.has_more_owners { " and others" } else { "" };
    let all: Vec<_> = owners.into_iter().map(|(owner, _)| owner_words(owner)).collect();
    format!("{}{more}.", all.join(", "))
}

fn owner_words(owner: &FlowOwner) -> String {
    let user = owner.user.as_ref().map(|user| format!("user {user}"));
    let known = [owner.program.clone(), user, owner.unit.clone()];
    let known: Vec<_> = known.into_iter().flatten().collect();
    match known.split_first() {
        None => "a program".to_owned(),
        Some((first, [])) => first.clone(),
        Some((first, rest)) => format!("{first} ({})", rest.join(", ")),
    }
}

fn counted(place: &LearntPlace) -> String {
    match place.connections {
        1 => "1 connection".to_owned(),
        connections => format!("{connections} connections"),
    }
}

/// Whether the servers began TLS. The other side of an inbound connection is the client, and the
/// program of this host is the server.
fn tls_words(key: &PlaceKey, place: &LearntPlace) -> String {
    let server = match key {
        PlaceKey::Outbound { .. } => "the server",
        PlaceKey::Inbound { .. } => "the program",
    };
    match place.tls {
        0 => "no TLS was seen".to_owned(),
        all if all == place.connections => format!("with TLS of {server}"),
        some => format!("{some} of them with TLS of {server}"),
    }
}

fn addresses_words(key: &PlaceKey, place: &LearntPlace) -> Option<String> {
    let addresses: Vec<_> = place.addresses.iter().map(ToString::to_string).collect();
    let more = if place.has_more_addresses { " and others" } else { "" };
    let all = format!("{}{more}", addresses.join(", "));
    match key {
        PlaceKey::Outbound { host, .. } if *host == all => None,
        PlaceKey::Outbound { .. } => Some(format!("Addresses: {all}.")),
        PlaceKey::Inbound { .. } => Some(format!("Clients: {all}.")),
    }
}

/// The rule for a destination or a port.
struct Rule<'k> {
    key: &'k PlaceKey,
    name: String,
}

impl fmt::Display for Rule<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, name } = self;
        let (protocol, direction) = match key {
            PlaceKey::Outbound { protocol, .. } => (protocol, "outbound"),
            PlaceKey::Inbound { protocol, .. } => (protocol, "inbound"),
        };
        writeln!(f, "[[rule]]\nname = \"{name}\"\ndirection = \"{direction}\"")?;
        if *protocol != "tcp" {
            writeln!(f, "protocol = \"{protocol}\"")?;
        }
        match key {
            PlaceKey::Outbound { host, port, .. } => {
                writeln!(f, "remote = \"{host}\"\nremote-ports = {port}")?;
            }
            PlaceKey::Inbound { port, .. } => writeln!(f, "local-ports = {port}")?,
        }
        writeln!(f, "permit = true")
    }
}

/// The name of a rule. A long name is cut off, and gets a number if another rule has it.
fn unique_name(key: &PlaceKey, names: &mut BTreeSet<String>) -> String {
    let whole = match key {
        PlaceKey::Outbound { protocol, host, port } => {
            format!("{protocol}-{port}-{}", host.replace(':', "-"))
        }
        PlaceKey::Inbound { protocol, port } => format!("inbound-{protocol}-{port}"),
    };
    let short: String = whole.chars().take(NAME_CHARACTERS_MAX).collect();
    let numbered = (2..).map(|number: u32| format!("{short}-{number}"));
    let mut all = iter::once(short.clone()).chain(numbered);
    // The numbers do not end.
    let name = all.find(|name| !names.contains(name)).unwrap_or_default();
    names.insert(name.clone());
    name
}

#[cfg(test)]
mod tests {
    use super::super::traffic::LearntFlow;
    use super::*;
    use crate::flow::{Direction, Protocol};
    use crate::policy;
    use proptest::prelude::*;
    use std::time::Instant;

    fn observe(traffic: &mut LearntTraffic, direction: Direction, ends: [&str; 2]) {
        let [local, remote] = ends.map(|end| end.parse().unwrap());
        let owner = FlowOwner {
            unit: Some("app.service".to_owned()),
            user: Some("app".to_owned()),
            program: Some("/usr/bin/app\n[[rule]]".to_owned()),
        };
        let owner = Some(owner);
        let protocol = if ends[1].ends_with(":123") { Protocol::Udp } else { Protocol::Tcp };
        traffic.count(LearntFlow { direction, protocol, local, remote, owner }, Instant::now());
    }

    #[test]
    fn a_policy_permits_what_was_observed() {
        let mut traffic = LearntTraffic::default();
        traffic.take_names("db.example", &["10.7.0.3".parse().unwrap()]);
        let outbound = Direction::Outbound;
        observe(&mut traffic, outbound, ["10.0.0.1:40000", "10.7.0.3:5432"]);
        observe(&mut traffic, outbound, ["10.0.0.1:40001", "10.7.0.3:5432"]);
        observe(&mut traffic, outbound, ["[fd00::1]:40001", "[fd00::7]:443"]);
        observe(&mut traffic, outbound, ["10.0.0.1:40001", "10.7.0.9:123"]);
        observe(&mut traffic, Direction::Inbound, ["10.0.0.1:22", "10.9.0.1:5000"]);
        let [server, client] = ["10.7.0.3:5432", "10.0.0.1:40001"].map(|end| end.parse().unwrap());
        traffic.note_tls(server, client);
        let text = policy_text(&traffic, Duration::from_secs(60));
        let rules = text.split_once("[host]").unwrap().1;
        let wanted = r#"
unmatched = "permit"

# /usr/bin/app\n[[rule]] (user app, app.service).
# 2 connections, 1 of them with TLS of the server.
# Addresses: 10.7.0.3.
[[rule]]
name = "tcp-5432-db.example"
direction = "outbound"
remote = "db.example"
remote-ports = 5432
permit = true
"#;
        assert!(rules.starts_with(wanted), "{text}");
        let parsed = policy::parse(&text);
        let parsed = parsed.policy.unwrap_or_else(|| panic!("{:?}\n{text}", parsed.diagnostics));
        let names: Vec<_> = parsed.rules.iter().map(|rule| rule.name.as_str()).collect();
        let others = ["udp-123-10.7.0.9", "tcp-443-fd00--7", "inbound-tcp-22"];
        assert_eq!(names[0], "tcp-5432-db.example");
        assert!(names.len() == 4 && others.iter().all(|name| names.contains(name)), "{names:?}");
    }

    proptest! {
        #[test]
        fn a_policy_is_valid_whatever_names_are_looked_up(
            names in proptest::collection::vec("[a-zA-Z0-9._-]{0,90}|.{0,20}|(a[.-]){30,60}b", 1..9)
        ) {
            let mut traffic = LearntTraffic::default();
            for (at, name) in (0_u8..).zip(&names) {
                let address = [10, 7, 0, at];
                traffic.take_names(name, &[address.into()]);
                let remote = format!("10.7.0.{at}:443");
                observe(&mut traffic, Direction::Outbound, ["10.0.0.1:4000", &remote]);
            }
            let text = policy_text(&traffic, Duration::from_secs(60));
            let parsed = policy::parse(&text);
            prop_assert!(parsed.policy.is_some(), "{:?}\n{}", parsed.diagnostics, text);
        }
    }
}
