//! Tests common clients and servers, such as curl and ssh, under `tacit run`.

use crate::comparison::Comparison;

/// A web server with a large file.
pub const WEB: &str = r#"
mkdir web; head -c 3000000 /dev/urandom >web/large; echo small >web/small
(cd web; exec python3 -m http.server --bind 10.9.8.7 8080 >/dev/null 2>&1) & background+=($!)
await 8080
"#;

pub const CURL: Comparison = Comparison {
    ports: &[8080],
    servers: &[WEB],
    script: r#"
        curl -sS http://$HOST:8080/large | sha256sum
        curl -sS -o /dev/null -o /dev/null \
            -w '%{http_code} %{remote_ip} %{remote_port} %{num_connects}\n' \
            http://$HOST:8080/absent http://$HOST:8080/large
        curl -sS -T /etc/services http://$HOST:8080/ -w '%{http_code}\n' -o /dev/null"#,
    wanted: &["404 10.9.8.7 8080 1"],
    ..Comparison::NONE
};

#[test]
fn curl_sees_no_difference() {
    CURL.compare();
}

pub const WGET: Comparison = Comparison {
    ports: &[8080],
    servers: &[WEB],
    script: r#"
        wget -q -O - http://$HOST:8080/large | sha256sum
        wget -nv -O /dev/null http://$HOST:8080/absent 2>&1 | sed 's/^[-0-9: ]*//'
        head -c 1000 web/large >scratch/part
        wget -q -c -O scratch/part http://$HOST:8080/large && sha256sum <scratch/part"#,
    wanted: &["ERROR 404: File not found."],
    ..Comparison::NONE
};

#[test]
fn wget_sees_no_difference() {
    WGET.compare();
}

/// Over http as hosts of repositories speak it, which is more than files: a CGI program.
pub const GIT: Comparison = Comparison {
    ports: &[8080],
    servers: &[r#"
        mkdir -p scratch/web/cgi-bin; chmod -R 777 scratch
        as_author() { ordinary env -C scratch git -c user.name=T -c user.email=t@example "$@"; }
        as_author init -q -b main work
        head -c 500000 /dev/urandom >scratch/work/file; as_author -C work add file
        for number in $(seq 30); do as_author -C work commit -q --allow-empty -m "change $number"
        done
        as_author clone -q --bare work repo.git
        as_author -C repo.git config http.receivepack true
        printf '#!/bin/sh\nexport GIT_PROJECT_ROOT=%s GIT_HTTP_EXPORT_ALL=1\n%s\n' $PWD/scratch \
            'exec git http-backend' >scratch/web/cgi-bin/git
        chmod 755 scratch/web/cgi-bin/git
        start_ordinary busybox httpd -f -p 10.9.8.7:8080 -h $PWD/scratch/web; await 8080"#],
    script: r#"
        rm -rf scratch/clone
        git clone -q http://$HOST:8080/cgi-bin/git/repo.git scratch/clone || exit
        cd scratch/clone; sha256sum file; git log --format=%H | sha256sum
        head -c 700000 /dev/urandom >more; git add more
        git -c user.name=T -c user.email=t@example commit -q -m pushed
        git push -q origin HEAD:refs/heads/pushed && git fetch -q && git diff HEAD origin/pushed
        git push -q origin :refs/heads/pushed
        git ls-remote -q | cut -f 2"#,
    wanted: &["refs/heads/main\nstatus 0"],
    ..Comparison::NONE
};

#[test]
fn git_over_http_sees_no_difference() {
    GIT.compare();
}

pub const SSH: Comparison = Comparison {
    ports: &[2222],
    servers: &[r#"
        ordinary ssh-keygen -q -t ed25519 -N '' -f scratch/host
        ordinary ssh-keygen -q -t ed25519 -N '' -f scratch/key
        start_ordinary $(command -v sshd) -D -e -p 2222 -o ListenAddress=10.9.8.7 -f /dev/null \
            -o HostKey=$PWD/scratch/host -o AuthorizedKeysFile=$PWD/scratch/key.pub \
            -o PidFile=none -o StrictModes=no -o UsePAM=no 2>sshd.log
        await 2222"#],
    script: r#"
        way="ssh -F none -i scratch/key -p 2222 -o StrictHostKeyChecking=no \
            -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR tester@$HOST"
        $way 'cat; echo error >&2; exit 7' 2>&1 </etc/services | sha256sum
        $way 'exit 7'; echo $?
        head -c 8000000 /dev/zero | $way sha256sum
        $way 'head -c 8000000 /dev/zero' | sha256sum
        $way 'kill -TERM $$'; echo $?
        echo forwarded | $way -W 10.9.8.7:2222 | head -n 1 | cut -c 1-8"#,
    wanted: &["SSH-2.0-"],
    ..Comparison::NONE
};

#[test]
fn ssh_sees_no_difference() {
    SSH.compare();
}

pub const PSQL: Comparison = Comparison {
    ports: &[5432],
    servers: &[r#"
        PATH=$PATH:$(printf '%s:' /usr/lib/postgresql/*/bin)
        ordinary initdb -A trust -U tester --no-sync -D scratch/data >initdb.log 2>&1
        echo 'host all all 10.9.8.0/24 trust' >>scratch/data/pg_hba.conf
        start_ordinary postgres -D scratch/data -c unix_socket_directories= -c fsync=off \
            -c listen_addresses=10.9.8.7 2>postgres.log
        until_true grep -q 'ready to accept' postgres.log"#],
    script: r#"
        way="psql -X -At -h $HOST -U tester postgres"
        seq 20000 | sed 's/.*/&,text &/' | $way -c 'create table t (n int, t text)' \
            -c '\copy t from stdin csv' -c 'select count(*), max(t) from t'
        $way -c 'select * from t order by n' | sha256sum
        $way -c 'select 1/0' 2>&1
        $way -c 'select inet_server_addr(), inet_server_port()'
        # Taking back a statement takes a second connection.
        $way -c 'select pg_sleep(50)' 2>&1 & sleeping=$!
        query="select count(*) from pg_stat_activity where query like 'select pg_sleep%'"
        until [ "$($way -c "$query")" = 1 ]; do sleep 0.05; done
        kill -INT $sleeping; wait $sleeping
        $way -c 'drop table t'"#,
    wanted: &["ERROR:  canceling statement due to user request"],
    ..Comparison::NONE
};

#[test]
fn psql_sees_no_difference() {
    PSQL.compare();
}

pub const REDIS: Comparison = Comparison {
    ports: &[6379],
    servers: &[r#"
        head -c 5000000 /dev/urandom >web
        server=$(command -v redis-server || command -v redis-check-rdb)
        ln -s $server redis-server
        start ./redis-server --bind 10.9.8.7 --save '' --dir scratch --protected-mode no >redis.log
        await 6379"#],
    script: r#"
        way="redis-cli -h $HOST"
        $way ping; $way flushall
        head -c 5000000 web | $way -x set large | cat; $way get large | sha256sum
        seq 10000 | sed 's/.*/SET key& value&/' | $way --pipe; $way dbsize
        (timeout 50 $way subscribe news | head -n 6 | tail -n 1) &
        until [ $($way publish news told) = 1 ]; do sleep 0.02; done
        # The subscriber ends when it cannot write.
        until [ $($way publish news again) = 0 ]; do sleep 0.02; done
        wait; $way -n 99 ping"#,
    wanted: &["errors: 0, replies: 10000\n10001\ntold\n"],
    ..Comparison::NONE
};

#[test]
fn redis_sees_no_difference() {
    REDIS.compare();
}

/// nginx adds its socket to epoll before it connects.
pub const NGINX: Comparison = Comparison {
    ports: &[8080],
    servers: &[WEB],
    script: r#"
        at=$(mktemp -d $PWD/scratch/XXXX)
        cat >$at/nginx.conf <<END
        daemon off; pid $at/pid; worker_processes 2; error_log $at/error.log;
        events { use epoll; }
        http {
            access_log off;
            client_body_temp_path $at/1; proxy_temp_path $at/2;
            fastcgi_temp_path $at/3; uwsgi_temp_path $at/4; scgi_temp_path $at/5;
            upstream far { server $HOST:8080; keepalive 4; }
            server {
                listen 127.0.0.1:8088;
                location / { proxy_pass http://far; proxy_http_version 1.1; }
                location /refused { proxy_pass http://$HOST:8081; }
            }
        }
END
        nginx -p $at -c $at/nginx.conf -e $at/error.log 2>/dev/null & nginx=$!
        for try in $(seq 1000); do curl -s -o /dev/null http://127.0.0.1:8088/ && break; sleep 0.02
        done
        curl -sS http://127.0.0.1:8088/large | sha256sum
        curl -sS -o /dev/null -w '%{http_code}\n' http://127.0.0.1:8088/absent
        curl -sS -o /dev/null -w '%{http_code}\n' http://127.0.0.1:8088/refused
        seq 40 | xargs -P 8 -I NR curl -sS http://127.0.0.1:8088/small | sort | uniq -c
        grep -c Connection.refused $at/error.log
        kill $nginx; wait $nginx"#,
    wanted: &["404\n502\n     40 small\n1\nstatus 0"],
    ..Comparison::NONE
};

#[test]
fn nginx_as_a_proxy_sees_no_difference() {
    NGINX.compare();
}
