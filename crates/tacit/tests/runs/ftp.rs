//! Tests FTP programs under `tacit run`. These programs do not support TLS. The data connections of
//! these programs need no separate rule.

use crate::network::Network;

/// `vsftpd_conf NAME ADDRESS [MORE]` makes a configuration whose files are in `$NAME.root`;
/// `all_modes URL SETTINGS HOW` has lftp bring a large file up and down, passive and active.
pub const TOOLS: &str = r#"
vsftpd_conf() {
    mkdir -p $1.root/up $1.empty; echo hello >$1.root/file.txt; chmod -R 777 $1.root
    cat >$1.conf <<END
listen=YES
background=NO
listen_address=$2
listen_port=21
run_as_launching_user=YES
seccomp_sandbox=NO
anonymous_enable=YES
local_enable=NO
no_anon_password=YES
anon_root=$PWD/$1.root
allow_writeable_chroot=YES
write_enable=YES
anon_upload_enable=YES
anon_other_write_enable=YES
anon_world_readable_only=NO
secure_chroot_dir=$PWD/$1.empty
xferlog_enable=NO
${3-}
END
}
large() { [ -e large ] || head -c 3000000 /dev/urandom >large; chmod 644 large; }
lftp_script() {
    echo "set cmd:fail-exit yes; set net:max-retries 1; set net:timeout 10; set xfer:clobber yes;
        set ftp:passive-mode $1; $3 open $2;
        cat file.txt; put -O up large; get up/large -o $PWD/scratch/back; rm up/large"
}
all_modes() {
    local url=$1 settings=$2; shift 2
    for mode in on off; do
        "$@" lftp --norc -c "$(lftp_script $mode $url "$settings")" || { echo "lftp $mode"; }
        cmp large scratch/back && echo same; rm -f scratch/back
    done
}
"#;

#[test]
fn clear_clients_in_a_run_reach_a_server_that_wants_tls_and_resumed_sessions() {
    let rules = "[[rule]]\nname = \"ftp\"\ndirection = \"outbound\"\n\
                 remote = [\"tls.example\", \"dual.tls.example\"]\n\
                 remote-ports = 21\nlog = true\ntls = { trust = \"ca\", starttls = \"ftp\" }\n";
    let network = Network::new(&[], TOOLS).with_rules(rules);
    let said = network.ok(r#"
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
        RUN_OPTIONS='--log stderr'
        all_modes ftp://tls.example '' run 2>run.log || true
        run curl -sS ftp://tls.example/file.txt 2>>run.log
        run curl -sS --disable-epsv ftp://tls.example/file.txt 2>>run.log
        run curl -sS -P - ftp://tls.example/file.txt 2>>run.log
        run /usr/bin/python3 -c 'if True:
            import ftplib
            for passive in (True, False):
                client = ftplib.FTP("tls.example", timeout=20); client.login()
                client.set_pasv(passive)
                client.retrlines("RETR file.txt"); client.quit()' 2>>run.log
        # Another name has the address already: the server is known by an alias.
        run bash -c 'getent ahosts dual.tls.example >/dev/null
            for how in "" --disable-epsv "-P -"; do
                curl -sS $how ftp://tls.example/file.txt
            done' 2>>run.log
        grep -v " info " run.log; true"#);
    let wanted = "hello\nsame\n".repeat(2) + &"hello\n".repeat(8);
    assert_eq!(said, wanted);
}

#[test]
fn a_clear_server_in_a_run_serves_tls_clients_and_sees_who_they_are() {
    let rules = "[identity.me]\ncert = \"tls.example.pem\"\nkey = \"tls.example.key\"\n\
                 [[rule]]\nname = \"ftp\"\ndirection = \"inbound\"\nlisten = \"10.9.8.7:2121\"\n\
                 local-ports = 21\nlog = true\n\
                 tls = { identity = \"me\", client-cert = \"none\", starttls = \"ftp\" }\n";
    let network = Network::new(&[], TOOLS).with_rules(rules);
    let said = network.ok(r#"
        ip addr add 10.9.8.99/32 dev lo
        chmod 644 tls.example.key; chown 54321 tls.example.key 2>/dev/null
        chmod 600 tls.example.key
        vsftpd_conf near 0.0.0.0 "xferlog_enable=YES
vsftpd_log_file=$PWD/near.root/log"
        chown 54321 near.conf 2>/dev/null
        ordinary exec timeout 60 ./tacit run --policy run.toml --log stderr -- \
            /usr/sbin/vsftpd $PWD/near.conf \
            2>run.log & background+=($!)
        is_open() { ss -Hltn 'src 10.9.8.7:2121' | grep -q .; }; until_true is_open
        large
        tls="set ftp:ssl-allow-anonymous yes; set ftp:ssl-force yes; set ftp:ssl-protect-data yes;
            set ssl:ca-file $PWD/ca.pem; set ssl:check-hostname no;
            set net:socket-bind-ipv4 10.9.8.99; set ftp:port-ipv4 10.9.8.99;"
        direct() { timeout 60 "$@"; }
        all_modes ftp://10.9.8.7:2121 "$tls" direct 2>&1
        curl -sS --interface 10.9.8.99 --ssl-reqd -k ftp://10.9.8.7:2121/file.txt
        grep -c '"10.9.8.99"\| 10.9.8.99 ' near.root/log | sed 's/^0$/unseen/;s/^[0-9]*$/seen/'
        grep " warn " run.log; true"#);
    assert_eq!(said, "hello\nsame\n".repeat(2) + "hello\nseen\n");
}

/// Its data connections would come to the successor, which knows of no session: here a rule of its
/// own would let them out in clear.
#[test]
fn a_session_that_stays_with_the_agent_before_has_no_passive_mode() {
    let rules = "[[rule]]\nname = \"ftp\"\ndirection = \"outbound\"\nremote = \"tls.example\"\n\
                 remote-ports = 21\nlog = true\ntls = { trust = \"ca\", starttls = \"ftp\" }\n\
                 [[rule]]\nname = \"rest\"\ndirection = \"outbound\"\nremote = \"tls.example\"\n\
                 remote-ports = [\"1024-65535\"]\nlog = true\npermit = true\n";
    let network = Network::new(&[], TOOLS).with_rules(rules);
    let said = network.ok(r#"
        cat tls.example.pem tls.example.key >both.pem
        vsftpd_conf far 10.9.8.8 "ssl_enable=YES
allow_anon_ssl=YES
force_anon_data_ssl=YES
force_anon_logins_ssl=YES
ssl_ciphers=HIGH
rsa_cert_file=$PWD/both.pem"
        start vsftpd far.conf
        is_open() { ss -Hltn 'src 10.9.8.8:21' | grep -q .; }; until_true is_open
        export XDG_RUNTIME_DIR=$PWD/scratch
        cat >stay.py <<'P'
import ftplib, os, time
client = ftplib.FTP("tls.example", timeout=20); client.login()
client.retrlines("RETR file.txt")
open("scratch/said", "w")
while not os.path.exists("scratch/go"): time.sleep(0.01)
for passive in (True, False):
    client.set_pasv(passive)
    try: client.retrlines("RETR file.txt")
    except ftplib.error_temp as error: print(error)
client.quit()
P
        RUN_OPTIONS='--log stderr'
        run /usr/bin/python3 stay.py >said 2>run.log & client=$!
        until_true [ -e scratch/said ]
        control=$(ls -d $XDG_RUNTIME_DIR/tacit-run-*/agent.sock)
        ordinary ./tacit restart --control $control >/dev/null
        until_true succeeded $control ordinary
        touch scratch/go; wait $client; cat said
        until_true grep -q 'a new agent has taken over' run.log
        grep -o 'a new agent has taken over' run.log"#);
    let wanted =
        "hello\n425 Cannot open a data connection now.\nhello\na new agent has taken over\n";
    assert_eq!(said, wanted);
}
