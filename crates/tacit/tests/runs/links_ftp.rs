//! Tests FTP programs under `tacit run --link`. These programs do not support TLS. tacit must
//! protect their data connections and send them through the link, in passive and in active mode.

use crate::ftp::TOOLS;
use crate::links::LINK;
use crate::links_of_hosts::{MACHINE, TCP, network};
use crate::network::Network;

/// Lets the link whose server has the policy `$1`, the process `$2` and the log `$3` use FTP.
const PERMIT_FTP: &str = r#"
permit_ftp() {
    local link=$(sed -n 's/^\[link\.\(guest\|far\)\]$/\1/p' $1)
    cat >>$1 <<END
[[rule]]
name = "ftp"
link = "$link"
direction = "outbound"
remote = "10.9.8.8"
remote-ports = [21, "1024-65535"]
permit = true
[[rule]]
name = "ftp-data"
link = "$link"
direction = "inbound"
local = ["10.9.8.7", "10.9.8.8"]
local-ports = "50000-50020"
permit = true
END
    kill -HUP $2; until_true grep -q link-reloaded $3
}
"#;

const CLIENT_RULES: &str = "[[rule]]\nname = \"ftp\"\ndirection = \"outbound\"\n\
    remote = \"tls.example\"\nremote-ports = 21\ntls = { trust = \"ca\", starttls = \"ftp\" }\n";

/// A server that wants TLS, and a client without TLS in both modes.
const CLIENTS: &str = r#"
cat tls.example.pem tls.example.key >both.pem
vsftpd_conf far 10.9.8.8 "ssl_enable=YES
allow_anon_ssl=YES
force_anon_data_ssl=YES
force_anon_logins_ssl=YES
require_ssl_reuse=YES
ssl_ciphers=HIGH
rsa_cert_file=$PWD/both.pem"
start vsftpd far.conf
is_open() { ss -Hltn 'src 10.9.8.8:21' | grep -q .; }; until_true is_open
large
all_modes ftp://tls.example '' linked 2>run.log || true
grep -v " info " run.log; true
"#;

#[test]
fn clients_in_a_run_transfer_files_in_both_modes_through_a_link() {
    let unix = Network::new(&[], &format!("{LINK}\n{TOOLS}\n{PERMIT_FTP}"));
    let unix = unix.with_rules(CLIENT_RULES);
    let said = unix.ok(&format!("permit_ftp link.toml $LINK link.log\n{CLIENTS}"));
    assert_eq!(said, "hello\nsame\n".repeat(2));
    for across in [TCP, MACHINE] {
        let hosts = network(across).with_setup(TOOLS).with_setup(PERMIT_FTP);
        let said = hosts
            .with_rules(CLIENT_RULES)
            .ok(&format!("permit_ftp far.link.toml $FAR far.log\n{CLIENTS}"));
        assert_eq!(said, "hello\nsame\n".repeat(2), "{across}");
    }
}

#[test]
fn a_server_in_a_run_has_passive_connections_through_a_link() {
    let rules = "[identity.me]\ncert = \"tls.example.pem\"\nkey = \"tls.example.key\"\n\
                 [[rule]]\nname = \"ftp\"\ndirection = \"inbound\"\nlisten = \"10.9.8.7:8099\"\n\
                 local-ports = 21\n\
                 tls = { identity = \"me\", client-cert = \"none\", starttls = \"ftp\" }\n";
    let network = Network::new(&[], &format!("{LINK}\n{TOOLS}\n{PERMIT_FTP}")).with_rules(rules);
    let said = network.ok(r#"
        permit_ftp link.toml $LINK link.log
        chmod 644 tls.example.key; chown 54321 tls.example.key 2>/dev/null
        chmod 600 tls.example.key
        vsftpd_conf near 0.0.0.0
        chown 54321 near.conf 2>/dev/null
        linked /usr/sbin/vsftpd $PWD/near.conf 2>run.log & background+=($!)
        is_open() { ss -Hltn 'src 10.9.8.7:8099' | grep -q .; }; until_true is_open
        large
        tls="set ftp:ssl-allow-anonymous yes; set ftp:ssl-force yes; set ftp:ssl-protect-data yes;
            set ssl:ca-file $PWD/ca.pem; set ssl:check-hostname no;"
        direct() { timeout 60 "$@"; }
        direct lftp --norc -c "$(lftp_script on ftp://10.9.8.7:8099 "$tls")" 2>&1
        cmp large scratch/back && echo same
        grep " warn " run.log; true"#);
    assert_eq!(said, "hello\nsame\n");
}
