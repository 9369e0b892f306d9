//! Tests the import of AT-TLS rules with job names, user IDs or patterns. The tests check which
//! programs and users an imported rule selects.

use std::fmt::Write as _;
use std::net::SocketAddr;

use proptest::prelude::*;
use proptest::sample::select;
use tacit_core::flow::{Address, Direction, Flow, Protocol};
use tacit_core::policy::{Action, Index, Policy, parse};

use super::*;

/// Names and patterns of the map, and of the rules: they nest, and stand beside each other.
const NAMES: [&str; 7] = ["*", "NIGHT*", "NIGHT1", "NIGHT1*", "NIGHT12", "DAY*", "DAY1"];

const ACTIONS: &str = "\
TTLSGroupAction on\n{\nTTLSEnabled On\n}\nTTLSGroupAction off\n{\nTTLSEnabled Off\n}
TTLSEnvironmentAction client\n{\nHandshakeRole Client\nTTLSKeyringParms\n{\nKeyring r\n}
TTLSEnvironmentAdvancedParms\n{\nTLSv1 Off\nTLSv1.1 Off\nTLSv1.2 On\n}\n}\n";

pub(super) const RING: &str = "[keyring.r]\nca = \"ca.pem\"\n";

/// A rule as it was made up.
#[derive(Clone, Debug)]
struct Made {
    job: Option<&'static str>,
    user: Option<&'static str>,
    is_on: bool,
}

/// The name of a job that runs the program which the map has for a name or pattern, and for no
/// narrower one.
fn sample(name: &str) -> String {
    name.replace('*', "XX")
}

/// What the original calls covered: trailing `*`, no case.
fn original_covers(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        Some((begin, _)) => name.starts_with(begin),
        None => pattern == name,
    }
}

fn program(name: &str) -> String {
    format!("/p/{}", sample(name))
}

fn user(name: &str) -> String {
    sample(name).to_lowercase()
}

fn map() -> String {
    let mut map = "[job]\n".to_owned();
    for name in NAMES {
        let _ = writeln!(map, "{name:?} = {{ program = {:?} }}", program(name));
    }
    map.push_str("[user]\n");
    for name in NAMES {
        let _ = writeln!(map, "{name:?} = {:?}", user(name));
    }
    map + RING
}

fn policy_of(rules: &[Made]) -> String {
    let mut text = ACTIONS.to_owned();
    for (rule, place) in rules.iter().zip(0..) {
        let _ = writeln!(text, "TTLSRule t{place}\n{{\nDirection Outbound\nRemotePortRange 443");
        for (word, name) in [("Jobname", rule.job), ("Userid", rule.user)] {
            if let Some(name) = name {
                let _ = writeln!(text, "{word} {name}");
            }
        }
        let group = if rule.is_on { "on" } else { "off" };
        let _ = writeln!(text, "TTLSGroupActionRef {group}\nTTLSEnvironmentActionRef client\n}}");
    }
    text
}

/// Whether TLS is done for what a program of a user opens to port 443.
fn is_tls(policy: &Policy, program: &str, user: &str) -> bool {
    let place = Index::new(&policy.rules).lookup(&flow(program, user)).rule.unwrap();
    matches!(policy.rules[place].action, Action::Tls(_))
}

/// What a program of a user opens to port 443.
pub(super) fn flow(program: &str, user: &str) -> Flow {
    Flow {
        direction: Direction::Outbound,
        protocol: Protocol::Tcp,
        local: Address::Inet(SocketAddr::from(([192, 0, 2, 1], 40_000))),
        remote: SocketAddr::from(([10, 0, 0, 5], 443)).into(),
        remote_names: Vec::new(),
        alias: None,
        is_shared: false,
        program: Some(program.into()),
        user: Some(user.to_owned()),
        group: None,
        cgroup: None,
        run: None,
        to_own_host: false,
        at_unix_s: 0,
        listen: None,
    }
}

fn made() -> impl Strategy<Value = Made> {
    let name = || proptest::option::of(select(NAMES.to_vec()));
    (name(), name(), any::<bool>()).prop_map(|(job, user, is_on)| Made { job, user, is_on })
}

proptest! {
    #[test]
    fn a_pattern_is_for_every_name_that_it_covers(
        rules in proptest::collection::vec(made(), 1..6)
    ) {
        let (policy, found) = imported(&policy_of(&rules), &map(), AttlsOptions::default());
        let policy = policy.unwrap_or_else(|| panic!("{found:#?}"));
        let parsed = parse(&policy).policy.unwrap();
        for job in NAMES {
            for owner in NAMES {
                let meets = |rule: &&Made| {
                    rule.job.is_none_or(|pattern| original_covers(pattern, &sample(job)))
                        && rule.user.is_none_or(|pattern| original_covers(pattern, &sample(owner)))
                };
                let wanted = rules.iter().find(meets).is_some_and(|rule| rule.is_on);
                let got = is_tls(&parsed, &program(job), &user(owner));
                prop_assert_eq!(got, wanted, "{} of {}\n{}", job, owner, policy);
            }
        }
    }
}

pub(super) fn rules(names: &[&'static str]) -> String {
    let made = |job: &&'static str| Made { job: Some(job), user: None, is_on: true };
    policy_of(&names.iter().map(made).collect::<Vec<_>>())
}

#[test]
fn jobs_of_different_users_become_rules_of_their_own() {
    let map = format!(
        "[job]\n\"N*\" = {{ program = \"/p/n\" }}\n\
         N1 = {{ program = \"/p/1\", user = \"a\" }}\n\
         N2 = {{ program = \"/p/2\", user = \"a\" }}\n\
         N3 = {{ user = \"b\" }}\n{RING}"
    );
    let (policy, found) = imported(&rules(&["N*"]), &map, AttlsOptions::default());
    let parsed = parse(&policy.unwrap_or_else(|| panic!("{found:#?}"))).policy.unwrap();
    for (program, user, wanted) in [
        ("/p/n", "c", true),
        ("/p/1", "a", true),
        ("/p/2", "a", true),
        ("/p/1", "c", false),
        ("/p/x", "b", true),
        ("/p/x", "a", false),
    ] {
        assert_eq!(is_tls(&parsed, program, user), wanted, "{program} {user}");
    }
    let any = map.replacen("N3 = { user = \"b\" }", "N3 = { any = true }", 1);
    let (policy, found) = imported(&rules(&["N*"]), &any, AttlsOptions::default());
    let parsed = parse(&policy.unwrap()).policy.unwrap();
    assert!(is_tls(&parsed, "/p/x", "a"));
    let wanted = "the map file sets `any` for the job name of the rule";
    assert!(found.iter().any(|one| one.contains(wanted)), "{found:#?}");
}

#[test]
fn jobs_of_one_program_are_distinguished_by_the_names_of_their_runs() {
    let map = format!(
        "[job]\nNIGHT1 = {{ program = \"/usr/bin/java\", run = \"night1\" }}\n\
         NIGHT2 = {{ run = [\"night2\", \"night2b\"] }}\n\
         DAY1 = {{ program = \"/p/day\" }}\n\"*\" = {{ run = \"rest\" }}\n{RING}"
    );
    let is_tls = |policy: &Policy, program: &str, run: &str| {
        let flow = Flow { run: Some(run.to_owned()), ..flow(program, "u") };
        let place = Index::new(&policy.rules).lookup(&flow).rule.unwrap();
        matches!(policy.rules[place].action, Action::Tls(_))
    };
    for (name, wanted) in [
        ("NIGHT1", [true, false, false, false, false]),
        ("NIGHT2", [false, true, true, false, false]),
        ("*", [true, true, true, true, true]),
    ] {
        let (policy, found) = imported(&rules(&[name]), &map, AttlsOptions::default());
        let policy = parse(&policy.unwrap_or_else(|| panic!("{found:#?}"))).policy.unwrap();
        let got = [
            ("/usr/bin/java", "night1"),
            ("/usr/bin/java", "night2"),
            ("/x", "night2b"),
            ("/usr/bin/java", "rest"),
            ("/p/day", "java"),
        ]
        .map(|(program, run)| is_tls(&policy, program, run));
        assert_eq!(got, wanted, "{name}");
        assert!(!is_tls(&policy, "/usr/bin/java", "other"), "{name}");
    }
    for key in ["unit", "cgroup"] {
        let map = format!("[job]\nNIGHT1 = {{ {key} = \"orders.service\" }}\n{RING}");
        let (policy, found) = imported(&rules(&["NIGHT1"]), &map, AttlsOptions::default());
        assert_eq!(policy, None);
        let wanted = "only on a captured host (`tacit agent --host`) (set run = \"NAME\"";
        assert!(found.iter().any(|one| one.contains(wanted)), "{found:#?}");
    }
}

#[test]
fn a_job_that_is_a_user_alone_is_reported_and_never_passed_in_clear() {
    let map = format!("[job]\nNIGHT1 = {{ user = \"ops\" }}\n{RING}");
    let protected = rules(&["NIGHT1"]);
    let (policy, found) = imported(&protected, &map, AttlsOptions::default());
    let policy = parse(&policy.unwrap()).policy.unwrap();
    assert!(is_tls(&policy, "/p/any", "ops") && !is_tls(&policy, "/p/any", "other"));
    let wanted = "changed: the map file sets a user but no program for the job name, so the rule \
                  applies to all programs of this user";
    assert!(found.iter().any(|one| one.contains(wanted)), "{found:#?}");
    let clear = protected.replace("TTLSGroupActionRef on", "TTLSGroupActionRef off");
    let (policy, found) = imported(&clear, &map, AttlsOptions::default());
    assert_eq!(policy, None);
    let wanted = "error: the map file sets a user but no program for the job name: the rule would \
                  apply to all programs of this user, and their data would be sent in clear";
    assert!(found.iter().any(|one| one.contains(wanted)), "{found:#?}");
    // By a pattern, too.
    let wide = clear.replace("NIGHT1", "NIGHT*");
    let lines = map.replace("[job]", "[job]\n\"NIGHT*\" = { program = \"/p/n\" }");
    assert_eq!(imported(&wide, &lines, AttlsOptions::default()).0, None);
    // With a program or a run, or if the map says so of the rule, it is as it was.
    for key in ["program = \"/p/n\", ", "run = \"night1\", "] {
        let map = map.replace("{ ", &format!("{{ {key}"));
        let (policy, found) = imported(&clear, &map, AttlsOptions::default());
        assert!(policy.is_some(), "{found:#?}");
        assert!(!found.iter().any(|one| one.contains("all programs of")), "{found:#?}");
    }
    let (policy, found) =
        imported(&clear, &format!("{map}[rule.t0]\nuser = \"ops\"\n"), AttlsOptions::default());
    assert!(policy.is_some(), "{found:#?}");
}

#[test]
fn a_star_within_a_name_stops_the_import() {
    let map = format!("[job]\n\"N*T\" = {{ program = \"/p/n\" }}\n{RING}");
    let (policy, found) = imported(&rules(&["N*T"]), &map, AttlsOptions::default());
    assert_eq!(policy, None);
    let wanted = "error: `N*T` is neither a name nor a pattern";
    assert!(found.iter().any(|one| one.contains(wanted)), "{found:#?}");
}

#[test]
fn a_map_entry_of_one_rule_is_not_hidden_by_a_wider_pattern() {
    let both = rules(&["NIGHT*", "NIGHT1"]);
    let names: Vec<_> = both
        .lines()
        .filter_map(|line| line.trim().strip_prefix("TTLSRule ").map(str::to_owned))
        .collect();
    let narrow = &names[1];
    let map = |what: &str| format!("[job]\n\"NIGHT*\" = {{ program = \"/p/n\" }}\n{what}{RING}");
    let (policy, found) = imported(
        &both,
        &map(&format!("[rule.{narrow}]\nprogram = \"/p/1\"\n")),
        AttlsOptions::default(),
    );
    assert_eq!(policy, None);
    let wide = &names[0];
    let wanted = format!(
        "in the map file, [rule.{narrow:?}] sets a program or user only for rule `{narrow}`. Rule \
         `{wide}` also matches Jobname `NIGHT1`, but does not get this program or user"
    );
    assert!(found.iter().any(|one| one.contains(&wanted)), "{found:#?}");
    let extended = map("NIGHT1 = { program = \"/p/1\" }\n");
    let (policy, found) = imported(&both, &extended, AttlsOptions::default());
    assert!(policy.is_some(), "{found:#?}");
}

#[test]
fn a_pattern_wants_a_line_of_its_own_beside_the_names_that_it_covers() {
    let map = format!("[job]\nNIGHT1 = {{ program = \"/p/1\" }}\n{RING}");
    let (policy, found) = imported(&rules(&["NIGHT*"]), &map, AttlsOptions::default());
    assert_eq!(policy, None);
    let wanted = "the map file has no program for the job name `NIGHT*`";
    assert!(found.iter().any(|one| one.contains(wanted)), "{found:#?}");
}

#[test]
fn lines_for_the_map_have_one_header_for_each_table() {
    let policy = rules(&["DAY1", "NIGHT1", "NIGHT2"]);
    let lines = |map: &str| {
        let (_, found) = imported(&policy, map, AttlsOptions::default());
        found.into_iter().filter(|one| one.contains("the job name")).collect::<Vec<_>>()
    };
    let found = lines(RING);
    let headers: Vec<_> = found.iter().map(|one| one.contains("|[job]|# or {")).collect();
    assert_eq!(headers, [true, false, false], "{found:#?}");
    assert!(found[1].contains("(add to m, below [job]:|\"NIGHT1\" = {"), "{found:#?}");
    let found = lines(&format!("[job]\nOTHER = {{ any = true }}\n{RING}"));
    assert!(found.iter().all(|one| one.contains("below [job]:|")), "{found:#?}");
}

#[test]
fn the_map_needs_no_job_for_what_is_accepted() {
    let policy = POLICY.replacen("Direction", "Jobname WEB\n  Direction", 1);
    let (text, found) = imported(&policy, MAP, AttlsOptions::default());
    assert!(text.is_some(), "{found:#?}");
    let wanted = "4 changed: tacit cannot see which program";
    assert!(found.iter().any(|one| one.starts_with(wanted)), "{found:#?}");
    // In clear it would be open to every program.
    let policy = policy.replacen("TTLSEnabled On", "TTLSEnabled Off", 1);
    let (text, _) = imported(&policy, MAP, AttlsOptions::default());
    assert_eq!(text, None);
}

/// Two client rules of two users with the same ring, whose name has no user ID.
fn rules_with_a_ring() -> String {
    let mut text = ACTIONS.to_owned();
    for (name, user, port) in [("a", "USERA", 443), ("b", "USERB", 444)] {
        let _ = writeln!(
            text,
            "TTLSRule {name}\n{{\nDirection Outbound\nRemotePortRange {port}\nUserid {user}\n\
             TTLSGroupActionRef on\nTTLSEnvironmentActionRef client\n}}"
        );
    }
    text
}

const USERS: &str = "[user]\nUSERA = \"anna\"\nUSERB = \"bert\"\n";

#[test]
fn a_ring_without_a_user_is_asked_for_by_user_where_rules_differ() {
    let (_, found) = imported_rules(&rules_with_a_ring(), USERS);
    for user in ["USERA", "USERB"] {
        let table = format!("[keyring.\"{user}/r\"]");
        let is_found = |one: &String| one.contains(" error: ") && one.contains(&table);
        assert!(found.iter().any(is_found), "{table}: {found:#?}");
        let message = format!(
            "the import reads `Keyring r` as `{user}/r`, because the key ring belongs to the user \
             ID of the rule"
        );
        assert!(found.iter().any(|one| one.contains(&message)), "{message}: {found:#?}");
    }
    let rings = "[keyring.\"USERA/r\"]\nca = \"a.pem\"\n[keyring.\"USERB/r\"]\nca = \"b.pem\"\n";
    let (rules, found) = imported_rules(&rules_with_a_ring(), &format!("{USERS}{rings}"));
    assert!(!found.iter().any(|one| one.contains("has its own key ring")), "{found:#?}");
    assert_ne!(rules.find("trust"), rules.rfind("trust"), "each has its own: {rules}");
}

#[test]
fn one_ring_for_several_users_is_reported_as_a_change() {
    let (_, found) = imported_rules(&rules_with_a_ring(), &format!("{USERS}{RING}"));
    for user in ["USERA", "USERB"] {
        let message = format!("[keyring.r] of the map file also applies to the user ID `{user}`");
        let is_found = |one: &String| one.contains(" changed: ") && one.contains(&message);
        assert!(found.iter().any(is_found), "{message}: {found:#?}");
    }
    // One user's ring is what it was.
    let one = rules_with_a_ring().replace("USERB", "USERA");
    let (_, found) = imported_rules(&one, &format!("{USERS}{RING}"));
    assert!(!found.iter().any(|one| one.contains("has its own key ring")), "{found:#?}");
}
