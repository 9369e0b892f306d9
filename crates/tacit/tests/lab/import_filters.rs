//! Tests `tacit import attls` with the main file of a z/OS Policy Agent. TLS rules and IP filter
//! rules become one policy, which `tacit check` accepts and `tacit explain` can evaluate.

use crate::harness::{Lab, TACIT, text_of};

const MAIN: &str =
    "LogLevel 31\nCommonTTLSConfig /common.ttls\nTcpImage TCPIP /tcpip.image FLUSH\n";
const IMAGE: &str = "TTLSConfig tcpip.ttls PURGE\nIpSecConfig //'SYS1.IPSEC'\n";
const COMMON: &str = "\
TTLSGroupAction on
{
  TTLSEnabled On
}
TTLSEnvironmentAction client
{
  HandshakeRole Client
  TTLSKeyringParms
  {
    Keyring ring
  }
}
";
const TLS: &str = "\
TTLSRule reports   # what is asked of other hosts
{
  RemotePortRange 8000-8999
  Direction Outbound
  TTLSGroupActionRef on
  TTLSEnvironmentActionRef client
}
";
const FILTERS: &str = "\
IpFilterPolicy
{
  IpFilterRuleRef closed
  IpFilterRuleRef lan
}
IpFilterRule closed
{
  IpSourceAddr All
  IpDestAddr 10.9.0.0/16
  IpServiceRef opened
  IpGenericFilterActionRef deny
}
IpFilterRule lan
{
  IpSourceAddr All
  IpDestAddr 10.0.0.0/8
  IpServiceRef opened
  IpGenericFilterActionRef permit
}
IpService opened
{
  Protocol tcp
  Direction bidirectional OutboundConnect
}
IpGenericFilterAction permit
{
  IpFilterAction permit
}
IpGenericFilterAction deny
{
  IpFilterAction deny
  DiscardAction icmp
}
";
const MAP: &str = "[keyring.ring]\nca = \"ca.pem\"\n";

#[test]
fn a_main_file_is_imported_with_tls_rules_and_filters() {
    let lab = Lab::new();
    std::fs::create_dir(lab.path("root")).unwrap();
    for (name, text) in [
        ("main", MAIN),
        ("root/common.ttls", COMMON),
        ("root/tcpip.image", IMAGE),
        ("root/tcpip.ttls", TLS),
        ("ipsec.policy", FILTERS),
        ("map.toml", MAP),
    ] {
        lab.write(name, text);
    }
    let import = ["import", "attls", "main", "--root", "root", "--map", "map.toml"];
    let output = lab.run(TACIT, &import);
    assert_eq!(output.status.code(), Some(78));
    let said = text_of(&output);
    let fix = "add these lines to map.toml:\n         [dataset]\n         \"SYS1.IPSEC\" = \
               \"FILE\"\n";
    assert!(said.contains(fix), "{said}");

    lab.write("map.toml", format!("{MAP}[dataset]\n\"SYS1.IPSEC\" = \"ipsec.policy\"\n"));
    let words = [&import[..], &["-o", "policy.toml"]].concat();
    let output = lab.run(TACIT, &words);
    assert!(output.status.success(), "{}", text_of(&output));
    assert!(lab.tacit(&["check", "policy.toml"]).starts_with("policy OK, 3 rules"));
    for (remote, verdict) in [
        ("10.9.0.1:8000", "rule `closed` matches: deny"),
        ("10.0.0.1:8000", "rule `reports.lan` matches: tls"),
        ("10.0.0.1:25", "rule `lan` matches: permit"),
        ("192.0.2.1:8000", "no rule matches: deny"),
    ] {
        let words = ["explain", "--policy", "policy.toml", "--direction", "outbound", "--remote"];
        let said = lab.tacit(&[&words[..], &[remote]].concat());
        assert!(said.contains(verdict), "{remote}: {said}");
    }
}

#[test]
fn filters_alone_are_a_policy_too() {
    let lab = Lab::new();
    lab.write("ipsec.policy", FILTERS);
    let policy = lab.tacit(&["import", "attls", "--ipsec", "ipsec.policy"]);
    assert_eq!(policy.matches("[[rule]]").count(), 2, "{policy}");
    lab.write("ipsec.policy", format!("{FILTERS}KeyExchangePolicy\n{{\n}}\n"));
    let output = lab.run(TACIT, &["import", "attls", "--ipsec", "ipsec.policy"]);
    assert!(text_of(&output).contains("`KeyExchangePolicy` is not supported yet"));
    assert_eq!((output.status.code(), output.stdout.len()), (Some(78), 0));
}
