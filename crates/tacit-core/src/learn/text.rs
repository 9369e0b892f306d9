//! Writes a first policy from observed connections.

use std::collections::BTreeSet;
use std::fmt;
use std::iter;
use std::net::IpAddr;
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
        comment(&mut text, &counted(place));
        if let Some(words) = others_words(key, place) {
            comment(&mut text, &words);
        }
        let name = unique_name(key, &mut names);
        text.push_str(&Rule { key, place, name }.to_string());
    }
    text
}

fn head(places: &[(&PlaceKey, &LearntPlace)], left_out: u64, observed: Duration) -> String {
    let connections: u64 = places.iter().map(|(_, place)| place.connections).sum();
    let mut text = String::new();
    let rules = places.len();
    let seconds = observed.as_secs();
    comment(
        &mut text,
        &format!(
            "Written by `tacit learn` after {seconds} s: {connections} connections, {rules} rules. \
             The rules permit these connections, for all programs, and protect nothing yet."
        ),
    );
    if left_out > 0 {
        let more = "more connections have no rule, because there are too many destinations.";
        comment(&mut text, &format!("{left_out} {more}"));
    }
    text.push_str("#\n");
    for step in NEXT_STEPS {
        comment(&mut text, step);
    }
    text.push_str("version = 1\n\n[host]\nunmatched = \"permit\"\n");
    text
}

const NEXT_STEPS: [&str; 4] = [
    "1. Delete the rules for connections that you do not want.",
    "2. Connections that use TLS need no change. For others, replace `permit = true` by `tls`, if \
     the server speaks TLS at this port; for inbound rules, tacit is the server. tacit.toml(5) \
     describes `tls`.",
    "3. Set `unmatched = \"deny\"`. What has no rule is then refused, also what `tacit learn` does \
     not see: tacit(1) lists it.",
    "4. Check the policy on this host: `tacit check FILE`.",
];

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
    let mut owners: Vec<_> = place.owners.iter().collect();
    owners.sort_by_key(|(_, connections)| std::cmp::Reverse(**connections));
    let known: u64 = place.owners.values().sum();
    let mut all: Vec<_> = owners.into_iter().map(|(owner, _)| owner_words(owner)).collect();
    if known < place.connections {
        all.push("other or unknown programs".to_owned());
    }
    format!("Used by {}.", all.join(", "))
}

fn owner_words(owner: &FlowOwner) -> String {
    let user = owner.user.as_ref().map(|user| format!("user {}", quoted(user)));
    let [program, unit] = [&owner.program, &owner.unit].map(|name| name.as_deref().map(quoted));
    let known: Vec<_> = [program, user, unit].into_iter().flatten().collect();
    match known.split_first() {
        None => "an unknown program".to_owned(),
        Some((first, [])) => first.clone(),
        Some((first, rest)) => format!("{first} ({})", rest.join(", ")),
    }
}

/// A name in quotes, if it could be taken for other words of the comment.
fn quoted(name: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "/._-+@:".contains(c);
    if name.chars().all(is_plain) { name.to_owned() } else { format!("{name:?}") }
}

fn counted(place: &LearntPlace) -> String {
    let connections = place.connections;
    let plural = if connections == 1 { "" } else { "s" };
    match place.tls {
        0 => format!("{connections} connection{plural}, without TLS as far as seen."),
        tls => format!("{connections} connection{plural}, {tls} of them with TLS."),
    }
}

fn others_words(key: &PlaceKey, place: &LearntPlace) -> Option<String> {
    let more = place.has_more_addresses;
    match key {
        PlaceKey::Outbound { host, .. } if host.parse::<IpAddr>().is_ok() => None,
        PlaceKey::Outbound { host, .. } => Some(match more {
            true => format!("Name: {host}, with more addresses than the rule has."),
            false => format!("Name: {host}."),
        }),
        PlaceKey::Inbound { .. } => {
            let clients: Vec<_> = place.addresses.iter().map(ToString::to_string).collect();
            let others = if more { " and others" } else { "" };
            Some(format!("Clients: {}{others}.", clients.join(", ")))
        }
    }
}

/// The rule for a destination or a port.
struct Rule<'k> {
    key: &'k PlaceKey,
    place: &'k LearntPlace,
    name: String,
}

impl fmt::Display for Rule<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, place, name } = self;
        let (protocol, direction) = match key {
            PlaceKey::Outbound { protocol, .. } => (protocol, "outbound"),
            PlaceKey::Inbound { protocol, .. } => (protocol, "inbound"),
        };
        writeln!(f, "[[rule]]\nname = \"{name}\"\ndirection = \"{direction}\"")?;
        if *protocol != "tcp" {
            writeln!(f, "protocol = \"{protocol}\"")?;
        }
        match key {
            PlaceKey::Outbound { port, .. } => {
                let all: Vec<_> = place.addresses.iter().map(|one| format!("\"{one}\"")).collect();
                match all.as_slice() {
                    [one] => writeln!(f, "remote = {one}")?,
                    all => writeln!(f, "remote = [{}]", all.join(", "))?,
                }
                writeln!(f, "remote-ports = {port}")?;
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
    use crate::held::FlowEnds;
    use crate::policy;
    use proptest::prelude::*;
    use std::time::Instant;

    fn observe(traffic: &mut LearntTraffic, direction: Direction, ends: [&str; 2]) {
        let [local, remote] = ends.map(|end| end.parse().unwrap());
        let owner = FlowOwner {
            unit: Some("app.service".to_owned()),
            user: Some("app".to_owned()),
            program: Some("/usr/bin/a, b\n[[rule]]".to_owned()),
        };
        let owner = Some(owner);
        let protocol = if ends[1].ends_with(":123") { Protocol::Udp } else { Protocol::Tcp };
        traffic.count(LearntFlow { direction, protocol, local, remote, owner }, Instant::now());
    }

    #[test]
    fn a_policy_permits_what_was_observed() {
        let mut traffic = LearntTraffic::default();
        traffic.take_names("db.example", &[[10, 7, 0, 3].into(), [10, 7, 0, 4].into()]);
        let outbound = Direction::Outbound;
        observe(&mut traffic, outbound, ["10.0.0.1:40000", "10.7.0.3:5432"]);
        observe(&mut traffic, outbound, ["10.0.0.1:40001", "10.7.0.4:5432"]);
        observe(&mut traffic, outbound, ["[fd00::1]:40001", "[fd00::7]:443"]);
        observe(&mut traffic, outbound, ["10.0.0.1:40001", "10.7.0.9:123"]);
        observe(&mut traffic, Direction::Inbound, ["10.0.0.1:22", "10.9.0.1:5000"]);
        let ends = ["10.0.0.1:40001", "10.7.0.4:5432"].map(|end| end.parse().unwrap());
        traffic.note_tls(FlowEnds { program: ends[0], destination: ends[1] });
        let text = policy_text(&traffic, Duration::from_secs(60));
        let rules = text.split_once("[host]").unwrap().1;
        let wanted = r#"
unmatched = "permit"

# Used by "/usr/bin/a, b\n[[rule]]" (user app, app.service).
# 2 connections, 1 of them with TLS.
# Name: db.example.
[[rule]]
name = "tcp-5432-db.example"
direction = "outbound"
remote = ["10.7.0.3", "10.7.0.4"]
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
