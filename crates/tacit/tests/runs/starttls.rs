//! Tests `tacit run` with programs that do not support TLS. For these programs, tacit performs the
//! STARTTLS exchange.

use crate::network::Network;

/// Makes a database that ordinary users may start; `$PG` is where its programs are.
const DATABASE: &str = r#"
PG=$(ls -d /usr/lib/postgresql/*/bin | tail -n 1)
ordinary $PG/initdb --auth=trust --username=tester --no-sync --no-locale -D scratch/data >/dev/null
database="-D $PWD/scratch/data -c fsync=off -c unix_socket_directories="
for name in pem key; do
    cp tls.example.$name scratch/data/server.$name
    chown 54321 scratch/data/server.$name; chmod 600 scratch/data/server.$name
done
psql() {
    timeout 20 psql --no-psqlrc --tuples-only --no-align "user=tester dbname=postgres $1" \
        -c "$2" 2>&1
}
export -f psql
until_answered() { for try in $(seq 200); do psql "$1" "$2" && return; sleep 0.1; done; echo none; }
"#;

#[test]
fn psql_in_clear_reaches_a_database_that_takes_only_tls() {
    let rule = "[[rule]]\nname = \"database\"\ndirection = \"outbound\"\n\
                remote = [\"tls.example\"]\nremote-ports = [5432]\n\
                tls = { trust = \"ca\", starttls = \"postgres\" }\n";
    let said = Network::new(&[], DATABASE).with_rules(rule).ok(r#"
        echo hostssl all all all trust >scratch/data/pg_hba.conf
        start_ordinary $PG/postgres $database -h 10.9.8.8 -p 5432 -c ssl=on \
            -c ssl_cert_file=server.pem -c ssl_key_file=server.key 2>database.log
        until_true grep -q 'ready to accept' database.log
        who="select 'ssl=' || ssl from pg_stat_ssl where pid = pg_backend_pid()"
        psql "host=tls.example sslmode=disable" "$who" | grep -o 'no encryption'
        for mode in disable prefer; do
            run bash -c 'psql "$@"' bash "host=tls.example sslmode=$mode" "$who"
        done"#);
    assert_eq!(said, "no encryption\nssl=true\nssl=true\n");
}

#[test]
fn a_database_in_clear_serves_clients_that_insist_on_tls() {
    let rule = "[identity.me]\ncert = \"tls.example.pem\"\nkey = \"me.key\"\n[[rule]]\n\
                name = \"in\"\ndirection = \"inbound\"\nlisten = \"10.9.8.7:6432\"\n\
                local-ports = 5432\n\
                tls = { identity = \"me\", client-cert = \"none\", starttls = \"postgres\" }\n";
    let said = Network::new(&[], DATABASE).with_rules(rule).ok(r#"
        cp tls.example.key me.key; chmod 600 me.key; chown 54321 me.key
        echo host all all all trust >scratch/data/pg_hba.conf
        ip addr add 10.9.8.99/32 dev lo; ip route change local 10.9.8.7 dev lo src 10.9.8.99
        ordinary exec timeout 60 ./tacit run --policy run.toml -- \
            $PG/postgres $database -h 0.0.0.0 -p 5432 2>database.log & background+=($!)
        until_true grep -q 'ready to accept' database.log
        verified="hostaddr=10.9.8.7 port=6432 host=tls.example"
        verified="$verified sslmode=verify-full sslrootcert=ca.pem"
        until_answered "$verified" "select inet_client_addr()"
        psql "host=10.9.8.7 port=6432 sslmode=disable" "select 1" \
            | grep -o 'only TLS connections'"#);
    assert!(said.ends_with("only TLS connections\n"), "{said}");
    assert!(said.contains("10.9.8."), "{said}");
}

/// A server that answers no good-bye still has its first connection when the second arrives.
#[test]
fn a_mail_server_that_closes_slowly_serves_clients_under_tls() {
    let rule = "[identity.me]\ncert = \"tls.example.pem\"\nkey = \"me.key\"\n[[rule]]\n\
                name = \"in\"\ndirection = \"inbound\"\nlisten = \"10.9.8.7:6025\"\n\
                local-ports = 25\n\
                tls = { identity = \"me\", client-cert = \"none\", starttls = \"smtp\" }\n";
    let said = Network::new(&[], "").with_rules(rule).ok(r#"
        cp tls.example.key me.key; chmod 600 me.key; chown 54321 me.key
        cat >mail.py <<'P'
import socketserver, time
class Mail(socketserver.StreamRequestHandler):
    def handle(self):
        self.wfile.write(b"220 ready\r\n")
        for line in self.rfile:
            if line.startswith(b"QUIT"): time.sleep(30)
            self.wfile.write(b"250 " + self.client_address[0].encode() + b"\r\n")
class Server(socketserver.ThreadingTCPServer): allow_reuse_address, daemon_threads = True, True
Server(("", 25), Mail).serve_forever()
P
        cat >visit.py <<'P'
import smtplib, ssl, time
context = ssl.create_default_context(cafile="ca.pem")
context.check_hostname = False
for patience in range(500):
    try: client = smtplib.SMTP("10.9.8.7", 6025); break
    except ConnectionRefusedError: time.sleep(0.02)
client.ehlo("me")
client.starttls(context=context)
print(client.ehlo("me"), client.mail("a@b"))
P
        ip addr add 10.9.8.99/32 dev lo; ip route change local 10.9.8.7 dev lo src 10.9.8.99
        ordinary exec timeout 60 ./tacit run --policy run.toml -- python3 mail.py 2>mail.log & \
            background+=($!)
        timeout 40 python3 visit.py 2>&1 || cat mail.log"#);
    assert_eq!(said, "(250, b'10.9.8.99') (250, b'10.9.8.99')\n");
}

/// The server is written for the test: no telnet server with START_TLS is packaged.
#[test]
fn telnet_in_clear_reaches_a_server_with_start_tls() {
    let rule = "[[rule]]\nname = \"host\"\ndirection = \"outbound\"\n\
                remote = [\"tls.example\"]\nremote-ports = [2323]\n\
                tls = { trust = \"ca\", starttls = \"telnet\" }\n";
    let said = Network::new(&[], "").with_rules(rule).ok(r#"
        start python3 "$PEERS/starttls.py" 10.9.8.8 2323 tls.example.pem tls.example.key
        until_true sh -c 'ss -Hltn "src 10.9.8.8:2323" | grep -q .'
        mkfifo typed; chmod 666 typed
        run script -qec "telnet-ssl -z nossl tls.example 2323" /dev/null <typed >shown 2>&1 &
        exec 7>typed
        until_true grep -q 'what is it?' shown
        echo snow >&7
        until_true grep -q 'it is snow' shown
        grep -o 'it is snow.*[0-9.]' shown"#);
    assert!(said.contains("it is snow, by TLSv1.3"), "{said}");
}

/// Makes a Postfix and a vsftpd whose files their users can reach, in `$mail`, and a telnetd behind
/// a server that starts one for each connection, as inetd does.
const CHANGING_USERS: &str = r#"
mail=$(mktemp -d /tmp/tacit-mail-XXXXXX); chmod 755 $mail
remove() { postfix -c $mail/conf stop 2>/dev/null; finish; rm -rf $mail; }
trap remove EXIT
mkdir $mail/conf $mail/queue $mail/data $mail/box
chown postfix $mail/data; chown 65534 $mail/box
cat >$mail/conf/main.cf <<END
compatibility_level = 3.6
queue_directory = $mail/queue
data_directory = $mail/data
maillog_file = $mail/log
maillog_file_prefixes = $mail
myhostname = localhost
inet_protocols = ipv4
mydestination =
alias_maps =
alias_database =
virtual_mailbox_domains = localhost
virtual_mailbox_base = $mail/box
virtual_mailbox_maps = static:inbox
virtual_uid_maps = static:65534
virtual_gid_maps = static:65534
END
cat >$mail/conf/master.cf <<END
25 inet n - n - - smtpd
cleanup unix n - n - 0 cleanup
qmgr unix n - n 300 1 qmgr
rewrite unix - - n - - trivial-rewrite
bounce unix - - n - 0 bounce
defer unix - - n - 0 bounce
proxymap unix - - n - - proxymap
anvil unix - - n - 1 anvil
virtual unix - n n - - virtual
postlog unix-dgram n - n - 1 postlogd
END
mkdir $mail/site $mail/empty; echo hello >$mail/site/file.txt
cat >vsftpd.conf <<END
listen=YES
background=NO
seccomp_sandbox=NO
anonymous_enable=YES
local_enable=NO
no_anon_password=YES
nopriv_user=nobody
anon_root=$mail/site
secure_chroot_dir=$mail/empty
xferlog_enable=NO
END
cat >inetd.py <<'END'
import socket, subprocess
server = socket.create_server(("0.0.0.0", 23))
while True:
    stream, _ = server.accept()
    telnetd = ["/usr/sbin/in.telnetd", "-z", "nossl", "-L", "./login"]
    subprocess.Popen(telnetd, stdin=stream, stdout=stream)
    stream.close()
END
printf '#!/bin/sh\necho "what is it?"\nread it\necho "it is $it."\nread end\n' >login
chmod 755 login
"#;

#[test]
fn servers_that_change_user_serve_in_runs_of_root() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root can start servers that change user");
        return;
    }
    let rule = |name: &str, listen: u16, port: u16, protocol: &str| {
        format!(
            "[[rule]]\nname = \"{name}\"\ndirection = \"inbound\"\nlisten = \
             \"10.9.8.7:{listen}\"\nlocal-ports = {port}\ntls = {{ identity = \"me\", \
             client-cert = \"none\", starttls = \"{protocol}\" }}\n"
        )
    };
    let rules = "[identity.me]\ncert = \"tls.example.pem\"\nkey = \"me.key\"\n".to_owned()
        + &rule("mail", 2525, 25, "smtp")
        + &rule("terminal", 2323, 23, "telnet")
        + &rule("files", 2121, 21, "ftp");
    let network = Network::new(&[], CHANGING_USERS).with_rules(&rules).with_root();
    let said = network.ok(r#"
        cp tls.example.key me.key; chmod 600 me.key
        ip addr add 10.9.8.99/32 dev lo; ip route change local 10.9.8.7 dev lo src 10.9.8.99
        start timeout 60 ./tacit run --policy run.toml -- sh -c \
            "python3 inetd.py & vsftpd vsftpd.conf & exec postfix -c $mail/conf start-fg" 2>run.log
        serves() { timeout 10 openssl s_client -starttls smtp -connect 10.9.8.7:2525 \
            -CAfile ca.pem -verify_hostname tls.example -verify_return_error </dev/null 2>&1 |
            grep -q 'Verify return code: 0'; }
        until_true serves && echo verified
        swaks --silent 3 --server 10.9.8.7:2525 --tls --helo localhost \
            --from a@localhost --to b@localhost --header 'Subject: under TLS'
        until_true grep -q 'Subject: under TLS' $mail/box/inbox
        stat -c %u $mail/box/inbox
        s3270 -cafile ca.pem -accepthostname tls.example >screen <<'END'
Connect("10.9.8.7:2323")
Expect("what is it?",10)
Query(Tls)
String("snow\n")
Expect("it is snow.",10)
Quit()
END
        grep -c 'secure' screen || cat screen
        curl -sS --max-time 20 --ssl-reqd --cacert ca.pem --resolve tls.example:2121:10.9.8.7 \
            ftp://tls.example:2121/file.txt"#);
    assert_eq!(said, "verified\n65534\n1\nhello\n");
}
