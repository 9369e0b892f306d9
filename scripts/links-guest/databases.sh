# The database and the directory of scripts/test-links-guest.sh: PostgreSQL and slapd, which accept only
# TLS. $pki is the folder of their certificate.

postgres=$(command -v postgres || compgen -G '/usr/lib/postgresql/*/bin/postgres' | tail -n 1) || true
# The command psql of Debian is a script in Perl that starts this one.
psql=$(compgen -G '/usr/lib/postgresql/*/bin/psql' | tail -n 1 || command -v psql) || true
slapd=$(PATH="$PATH:/usr/sbin" command -v slapd) || true
# PostgreSQL refuses to run as root.
ordinary=(unshare --user --map-user=65534 --map-group=65534 --)

start_database() {
    local data=$work/database
    "${ordinary[@]}" "$(dirname "$(realpath "$postgres")")/initdb" --auth=trust --username=tester --no-sync \
        --no-locale -D "$data" >"$work/initdb.log"
    echo 'hostssl all all all trust' >"$data/pg_hba.conf"
    cp "$pki/tls.example.pem" "$pki/tls.example.key" "$data/"
    chmod 600 "$data/tls.example.key"
    start "${ordinary[@]}" "$postgres" -D "$data" -h "$v4" -p 5432 -c unix_socket_directories= \
        -c fsync=off -c ssl=on -c ssl_cert_file=tls.example.pem -c ssl_key_file=tls.example.key \
        2>"$work/database.log"
    until_true grep -q 'ready to accept' "$work/database.log"
}

start_directory() {
    mkdir "$work/directory"
    cat >"$work/slapd.conf" <<END
include /etc/ldap/schema/core.schema
TLSCertificateFile $pki/tls.example.pem
TLSCertificateKeyFile $pki/tls.example.key
database ldif
suffix "dc=example"
directory $work/directory
END
    "$slapd" -T add -f "$work/slapd.conf" <<END 2>"$work/slapadd.log"
dn: dc=example
objectClass: organization
objectClass: dcObject
o: example
dc: example

dn: cn=marked-person,dc=example
objectClass: person
cn: marked-person
sn: person
description: marked-entry
END
    start "$slapd" -d 0 -h "ldaps://$v4:6636" -f "$work/slapd.conf" 2>"$work/directory.log"
    until_true by_ldaps
}
by_ldaps() {
    LDAPTLS_CACERT=$pki/ca.pem ldapsearch -x -H "ldaps://tls.example:6636" -b dc=example -s base
}

# Without TLS, neither gives an answer.
refuse_clear() {
    ! "$psql" -XAtc 'select 1' "host=$v4 user=tester dbname=postgres sslmode=disable" &&
        ! ldapsearch -x -o nettimeout=10 -H "ldap://$v4:6636" -b dc=example -s base
}
