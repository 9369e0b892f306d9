//! Programs under `tacit run` whose protocol begins TLS after a few words in clear, which they know
//! nothing of.

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
        psql "host=10.9.8.7 port=6432 sslmode=disable" "select 1" | grep -o 'with TLS only'"#);
    assert!(said.ends_with("with TLS only\n"), "{said}");
    assert!(said.contains("10.9.8."), "{said}");
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
