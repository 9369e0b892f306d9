//! Tests which rules and credentials a reload keeps, and which ones it builds again. Also tests how
//! the work of a reload grows with the number of rules.

use std::cell::Cell;

use tacit_core::failure_kind::FailureKind;
use tacit_core::policy::parse;
use tacit_tls::signer::KeyProvider;
use tacit_tls::test_certificates::{Ca, Directory};

use super::*;

thread_local! {
    /// Names of rules that look-ups by name have compared.
    pub(super) static NAMES_READ: Cell<usize> = const { Cell::new(0) };
}

fn policy(text: &str) -> Policy {
    let parsed = parse(&format!("version = 1\n{text}"));
    parsed.policy.unwrap_or_else(|| panic!("{:?}", parsed.diagnostics))
}

fn permit(number: usize, more: &str) -> String {
    let [high, low] = [number >> 8, number & 0xff];
    format!(
        "[[rule]]\nname = \"r{number}\"\ndirection = \"outbound\"\nremote = \"10.7.{high}.{low}\"\n\
         permit = true\n{more}"
    )
}

fn first(text: &str) -> Live {
    let context = BuildContext { credentials: &Credentials::default(), chains: None };
    build(policy(text), context).unwrap()
}

fn next(before: &Live, text: &str) -> Built {
    let credentials = Credentials::default();
    let context = BuildContext { credentials: &credentials, chains: None };
    rebuild(policy(text), context, Installed { live: before, credentials: &credentials }).unwrap()
}

#[test]
fn a_rule_that_stays_is_kept_and_stored_once() {
    let before = first(&[permit(0, ""), permit(1, ""), permit(2, "")].concat());
    let text = ["\n\n", &permit(3, ""), &permit(1, ""), &permit(2, "log = true\n")].concat();
    let Built { live, changes } = next(&before, &text);
    assert_eq!((before.generation, live.generation), (1, 2));
    let names = |list: &[String]| list.join(" ");
    assert_eq!(names(&changes.added), "r3");
    assert_eq!(names(&changes.changed), "r2");
    assert_eq!(names(&changes.removed), "r0");

    let [old, kept] = [&before, &live].map(|live| live.find("r1").unwrap());
    assert!(Arc::ptr_eq(old, kept) && live.is_current(old));
    assert!(Arc::ptr_eq(&kept.rule, &live.policy.rules[1]), "the policy shares it");
    assert_eq!([live.line(0), live.line(1), live.line(2)], [Some(4), Some(9), Some(14)]);
    let [old, changed] = [&before, &live].map(|live| live.find("r2").unwrap());
    assert!(!live.is_current(old) && Arc::ptr_eq(&old.counters, &changed.counters));
    old.counters.count_failure(FailureKind("dial"));
    assert_eq!(live.failures(old.account()), Some(1), "the account outlives the change");
    let removed = before.find("r0").unwrap();
    assert_eq!((live.find("r0").is_none(), live.failures(removed.account())), (true, None));

    assert!(next(&live, &text).changes.is_empty());
}

#[test]
fn targets_outlive_a_change_of_their_rule_that_leaves_them_as_they_are() {
    let rule = |connect: &str, more: &str| {
        format!(
            "[[rule]]\nname = \"r\"\nlisten = \"127.0.0.1:1\"\nconnect = {connect}\n\
             permit = true\n{more}"
        )
    };
    let targets = |live: &Live| live.find("r").unwrap().targets.clone().unwrap();
    let both = "[\"127.0.0.1:2\", \"127.0.0.1:3\"]";
    let before = first(&rule(both, ""));
    let changed = next(&before, &rule(both, "log = true"));
    assert_eq!(changed.changes.changed, ["r"]);
    assert!(Arc::ptr_eq(&targets(&before), &targets(&changed.live)));
    for other in [rule(both, "order = \"round-robin\""), rule("\"127.0.0.1:2\"", "")] {
        let changed = next(&before, &other);
        assert!(!Arc::ptr_eq(&targets(&before), &targets(&changed.live)));
    }
    assert_eq!(targets(&before).to_string(), "127.0.0.1:2,127.0.0.1:3");
}

#[test]
fn a_renewed_certificate_builds_the_rules_that_use_it() {
    let directory = Directory::new();
    let ca = Ca::new("corp CA");
    let write = |name: &str| {
        let leaf = ca.leaf_until(4_000_000_000);
        directory.write(&format!("{name}.pem"), &leaf.cert_pem, 0o644);
        directory.write(&format!("{name}.key"), &leaf.key_pem, 0o600);
    };
    let identity =
        |name: &str| format!("[identity.{name}]\ncert = \"{name}.pem\"\nkey = \"{name}.key\"\n");
    let server = |name: &str, port: u16| {
        format!(
            "[[rule]]\nname = \"{name}\"\nlisten = \"127.0.0.1:{port}\"\n\
             connect = \"127.0.0.1:9\"\n\
             tls = {{ role = \"server\", identity = \"{name}\", client-cert = \"none\" }}\n"
        )
    };
    write("web");
    write("mail");
    let text =
        [identity("web"), identity("mail"), server("web", 1), server("mail", 2), permit(0, "")];
    let policy = policy(&text.concat());
    let mut findings = Vec::new();
    let used = Credentials::load(&policy, directory.path(), &KeyProvider::local(), &mut findings);
    assert_eq!(findings, []);
    let before = build(policy, BuildContext { credentials: &used, chains: None }).unwrap();

    assert!(!used.have_changed());
    write("mail");
    assert!(used.have_changed());
    let Refreshed { credentials, errors } =
        used.refreshed(&before.policy, directory.path(), &KeyProvider::local());
    assert!(errors.is_empty() && !credentials.same(&used));
    let context = BuildContext { credentials: &credentials, chains: None };
    let installed = Installed { live: &before, credentials: &used };
    let Built { live, changes } = renew(context, installed).unwrap();
    let wanted = Changes { changed: vec!["mail".to_owned()], ..Changes::default() };
    assert_eq!(changes, wanted);
    let is_kept = |name: &str| live.is_current(before.find(name).unwrap());
    assert_eq!(["web", "mail", "r0"].map(is_kept), [true, false, true]);
    assert!(Arc::ptr_eq(&before.search, &live.search), "what finds rules is built once");
    assert!(Arc::ptr_eq(&before.policy, &live.policy));
}

#[test]
fn new_contents_of_the_files_of_tunnels_are_found_by_their_tables() {
    let directory = Directory::new();
    let ca = Ca::new("corp CA");
    let write_identity = |name: &str| {
        let leaf = ca.leaf_until(4_000_000_000);
        directory.write(&format!("{name}.pem"), &leaf.cert_pem, 0o644);
        directory.write(&format!("{name}.key"), &leaf.key_pem, 0o600);
    };
    let peer = |name: &str, credentials: &str| {
        format!(
            "[ike.{name}]\npeer = \"192.0.2.1\"\n{credentials}\nlocal-id = \"db.example\"\n\
             inner = \"gateway\"\n"
        )
    };
    let text = [
        "[identity.gw]\ncert = \"gw.pem\"\nkey = \"gw.key\"\n[trust.corp]\nca = \"ca.pem\"\n",
        &peer("shared", "psk-file = \"psk\""),
        &peer("other", "psk-file = \"other-psk\""),
        &peer("certified", "identity = \"gw\"\ntrust = \"corp\""),
    ];
    let policy = policy(&text.concat());
    let load = || {
        let mut findings = Vec::new();
        let keys = KeyProvider::local();
        let loaded = Credentials::load(&policy, directory.path(), &keys, &mut findings);
        let Credentials { identities, trusts, shared_keys, .. } = &loaded;
        let counts = [identities.len(), trusts.len(), shared_keys.len()];
        assert_eq!(counts, [1, 1, 2], "{findings:?}");
        loaded
    };
    write_identity("gw");
    directory.write("ca.pem", ca.pem(), 0o644);
    directory.write("psk", "the first key of both sides", 0o600);
    directory.write("other-psk", "another key of both sides", 0o600);
    let first = load();
    assert_eq!(load().tables_with_new_contents(&first), [""; 0], "nothing has changed");
    assert_eq!(first.tables_with_new_contents(&Credentials::default()), [""; 0], "all are new");
    directory.write("psk", "the second key of both sides", 0o600);
    let second = load();
    assert_eq!(second.tables_with_new_contents(&first), ["[ike.shared]"]);
    write_identity("gw");
    assert_eq!(load().tables_with_new_contents(&second), ["[identity.gw]"]);
    assert_eq!(load().tables_with_new_contents(&first), ["[identity.gw]", "[ike.shared]"]);
}

#[test]
fn the_work_of_a_reload_grows_with_the_rules_alone() {
    for count in [500, 5000] {
        let rules: Vec<String> = (0..count).map(|number| permit(number, "")).collect();
        let text = rules.concat();
        let before = first(&text);
        NAMES_READ.set(0);
        let live = next(&before, &text).live;
        for rule in &live.rules {
            assert!(live.is_current(rule) && live.failures(rule.account()).is_some());
        }
        let read = NAMES_READ.get();
        // Each rule is looked up four times; sometimes the hashes of two names have the same
        // beginning.
        assert!(read <= 6 * count, "{count} rules: {read} names compared");
    }
}
