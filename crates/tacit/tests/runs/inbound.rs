//! Tests servers under `tacit run`: clients connect through inbound rules, and servers see the
//! addresses of the clients.

use crate::network::Network;

/// Ways in to port 80 of a run: in clear and through TLS, over IPv4 and IPv6.
fn ways_in() -> Network {
    let way = |number: u8, listen: &str, action: &str| {
        format!(
            "[[rule]]\nname = \"in-{number}\"\ndirection = \"inbound\"\nlisten = \"{listen}\"\n\
             local-ports = 80\n{action}\n"
        )
    };
    let tls = "tls = { identity = \"me\", client-cert = \"none\" }";
    let rules = "[identity.me]\ncert = \"tls.example.pem\"\nkey = \"tls.example.key\"\n".to_owned()
        + &way(1, "10.9.8.7:8080", "permit = true")
        + &way(2, "[2001:db8::7]:8080", "permit = true")
        + &way(3, "10.9.8.7:8443", tls)
        + &way(4, "[2001:db8::7]:8443", tls);
    Network::new(&[], CLIENTS).with_rules(&rules).with_ipv6()
}

/// Clients from addresses of their own, once the server answers; each in clear and through TLS.
const CLIENTS: &str = r#"
chmod 644 tls.example.key; chown 54321 tls.example.key; chmod 600 tls.example.key
ip addr add 10.9.8.99/32 dev lo
ip -6 addr add 2001:db8::99/128 dev lo nodad
served() { ordinary exec timeout 60 ./tacit run --policy run.toml -- "$@" & background+=($!); }
client() {
    local name=tls.example
    until_true curl -s -o /dev/null --interface 10.9.8.99 http://10.9.8.7:8080/
    for from in 10.9.8.99 2001:db8::99; do
        to=10.9.8.7; [ $from = 10.9.8.99 ] || to=2001:db8::7
        curl -sS --interface $from --resolve "$name:8080:$to" http://$name:8080/${1-}
        curl -sS --interface $from --resolve "$name:8443:$to" --cacert ca.pem \
            https://$name:8443/${1-}
    done 2>&1
}
mkdir web; head -c 2000000 /dev/urandom >web/large; echo small >web/small
"#;

/// Both clients are seen at least twice, and no other.
fn assert_seen(log: &str) {
    for client in ["10.9.8.99", "2001:db8::99"] {
        let times = log.lines().filter(|line| line.contains(client)).count();
        assert!(times >= 2, "{client} was seen {times} times: {log}");
    }
}

#[test]
fn pythons_http_server_sees_its_clients() {
    let said = ways_in()
        .ok("served /usr/bin/python3 -m http.server --bind :: --directory web 80 >/dev/null 2>log
         client large | sha256sum; for i in 1 2 3 4; do cat web/large; done | sha256sum; cat log");
    let lines: Vec<_> = said.lines().collect();
    assert_eq!(lines[0], lines[1], "{said}");
    assert_seen(&said);
}

#[test]
fn nginx_sees_its_clients() {
    let said = ways_in().ok(r#"cat >nginx.conf <<END
        daemon off; pid $PWD/scratch/pid; error_log stderr; worker_processes 2;
        events { }
        http {
            access_log off;
            client_body_temp_path $PWD/scratch/1; proxy_temp_path $PWD/scratch/2;
            fastcgi_temp_path $PWD/scratch/3; uwsgi_temp_path $PWD/scratch/4;
            scgi_temp_path $PWD/scratch/5;
            server { listen 80; listen [::]:80; return 200 "\$remote_addr\n"; }
        }
END
        served nginx -p $PWD/scratch -c $PWD/nginx.conf -e stderr 2>/dev/null
        client"#);
    assert_eq!(said, "10.9.8.99\n10.9.8.99\n2001:db8::99\n2001:db8::99\n");
}

#[test]
fn a_static_go_server_sees_its_clients() {
    let source = r#"package main
import ("fmt"; "net"; "net/http")
func main() {
    fmt.Println(http.ListenAndServe(":80", http.HandlerFunc(
        func(answer http.ResponseWriter, request *http.Request) {
            host, _, _ := net.SplitHostPort(request.RemoteAddr)
            fmt.Fprintln(answer, host)
        })))
}"#;
    let said = ways_in()
        .with_build(&format!(
            "cat >server.go <<'END'\n{source}\nEND\nCGO_ENABLED=0 go build -o server server.go"
        ))
        .ok("served ./server >/dev/null; client");
    assert_eq!(said, "10.9.8.99\n10.9.8.99\n2001:db8::99\n2001:db8::99\n");
}

#[test]
fn busybox_httpd_sees_its_clients() {
    let said = ways_in().ok(
        "mkdir web/cgi-bin; printf '#!/bin/sh\necho; echo $REMOTE_ADDR\n' >web/cgi-bin/who
         chmod 755 web/cgi-bin/who
         served busybox httpd -f -p 80 -h web; client cgi-bin/who | tr -d '[]'",
    );
    let seen: Vec<_> = said.lines().map(|line| line.trim_start_matches("::ffff:")).collect();
    assert_eq!(seen, ["10.9.8.99", "10.9.8.99", "2001:db8::99", "2001:db8::99"]);
}

#[test]
fn what_is_not_listened_on_inside_is_refused_outside() {
    let said = ways_in().ok("served /usr/bin/python3 -c 'if True:
            import os, socket, time
            def wait(name):
                while not os.path.exists(name): time.sleep(0.01)
            open(\"scratch/started\", \"w\").close()
            wait(\"scratch/listen\")
            server = socket.create_server((\"\", 80))
            stream, peer = server.accept()
            stream.sendall(peer[0].encode())
            stream.close(); server.close()
            wait(\"scratch/end\")'
         try_it() { curl -sS -o /dev/null --http0.9 http://10.9.8.7:8080/ 2>/dev/null; echo $?; }
         until_true [ -e scratch/started ]; try_it
         touch scratch/listen
         is_open() { ss -Hltn 'src 10.9.8.7:8080' | grep -q .; }; until_true is_open
         /usr/bin/python3 -c 'if True:
            import socket
            print(socket.create_connection((\"10.9.8.7\", 8080), 10, (\"10.9.8.99\", 0)).recv(99))'
         is_closed() { ! is_open; }; until_true is_closed; try_it; touch scratch/end");
    assert_eq!(said, "7\nb'10.9.8.99'\n7\n");
}

/// TLS is on the network side, whichever of the two peers begins it there.
#[test]
fn a_stated_role_does_not_move_tls_to_the_programs_side() {
    let rules = "[identity.me]\ncert = \"tls.example.pem\"\nkey = \"tls.example.key\"\n\
        [[rule]]\nname = \"in\"\ndirection = \"inbound\"\nlisten = \"10.9.8.7:9443\"\n\
        local-ports = 80\n\
        tls = { role = \"client\", trust = \"ca\", server-name = \"tls.example\" }\n\
        [[rule]]\nname = \"out\"\ndirection = \"outbound\"\nremote = \"10.9.8.99\"\n\
        remote-ports = 7000\n\
        tls = { role = \"server\", identity = \"me\", client-cert = \"none\" }\n";
    let said = Network::new(&[], CLIENTS).with_rules(rules).ok("cat >peer.py <<'END'
import socket, ssl, sys
def seen(stream): return stream.recv(999)
if sys.argv[1] == 'in':
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain('tls.example.pem', 'tls.example.key')
    stream = context.wrap_socket(socket.create_connection(('10.9.8.7', 9443), 10), server_side=True)
    stream.sendall(b'question')
    print('inbound:', seen(stream).decode())
else:
    server = socket.create_server(('10.9.8.99', 7000))
    context = ssl.create_default_context(cafile='ca.pem')
    open('scratch/ready', 'w').close()
    stream = context.wrap_socket(server.accept()[0], server_hostname='tls.example')
    print('outbound:', seen(stream).decode())
    stream.sendall(b'heard')
END
cat >scratch/program.py <<'END'
import socket
stream = socket.create_connection(('10.9.8.99', 7000), 10)
stream.sendall(b'opened inside')
assert stream.recv(99) == b'heard'
server = socket.create_server(('', 80))
open('scratch/listening', 'w').close()
stream = server.accept()[0]
stream.sendall(b'answer to ' + stream.recv(99))
END
timeout 30 python3 peer.py out & out=$!
until_true [ -e scratch/ready ]
served /usr/bin/python3 scratch/program.py
wait $out
is_open() { ss -Hltn 'src 10.9.8.7:9443' | grep -q .; }; until_true is_open
timeout 30 python3 peer.py in 2>&1");
    assert_eq!(said, "outbound: opened inside\ninbound: answer to question\n");
}
