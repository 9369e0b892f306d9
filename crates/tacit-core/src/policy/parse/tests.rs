//! Tests of whole policy texts.

use super::parse;

const BOTH_ROLES: &str = r#"
version = 1
[identity.web]
cert = "web.pem"
key  = "web.key"
[trust.corp]
ca = "corp-ca.pem"            # string or list; the name "system" is built in
[[rule]]
name    = "front"
listen  = "0.0.0.0:8443"      # or a list; unix:/path, unix:@abstract
connect = "127.0.0.1:8080"
tls     = { role = "server", identity = "web", client-cert = "required", trust = "corp" }
[[rule]]
name    = "out"
listen  = "127.0.0.1:9000"
connect = "db.corp.example:5433"
[rule.tls]
role        = "client"
trust       = "corp"
identity    = "web"
server-name = "db.corp.example"
min-version = "1.3"
rekey       = { bytes = "1GiB", after = "1h" }
"#;

#[test]
fn both_roles_of_the_fixed_form_are_read() {
    let parsed = parse(BOTH_ROLES);
    assert_eq!(parsed.diagnostics, []);
    assert_eq!(parsed.policy.unwrap().rules.len(), 2);
}
