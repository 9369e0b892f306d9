//! Tests programs under `tacit run` with a policy that was imported from AT-TLS.

use crate::network::Network;

/// A server for which only the network changes, a client likewise, and what goes in clear.
const POLICY: &str = r#"
cat >server.policy <<'END'
# The server: TLS before a program that knows nothing of it.
TTLSRule WEB_SERVER
{
  LocalAddr                 10.9.8.7
  LocalPortRange            8443
  Direction                 Inbound
  TTLSGroupActionRef        ON
  TTLSEnvironmentActionRef  WEB_SERVER
}
TTLSEnvironmentAction WEB_SERVER
{
  HandshakeRole             ServerWithClientAuth
  TTLSKeyringParms
  {
    Keyring                 WEBSRV/WEBRING
  }
  TTLSEnvironmentAdvancedParmsRef MODERN
}
END
cat >client.policy <<'END'
# The client, by the port it wants.
TTLSRule WEB_CLIENT
{
  RemotePortRange           8443
  Jobname                   BATCH*
  Direction                 Outbound
  Priority                  50
  TTLSGroupActionRef        ON
  TTLSEnvironmentActionRef  WEB_CLIENT
}
TTLSEnvironmentAction WEB_CLIENT
{
  HandshakeRole             Client
  TTLSKeyringParms
  {
    Keyring                 BATCH/RING
  }
  TTLSEnvironmentAdvancedParms
  {
    TLSv1                   Off
    TLSv1.1                 Off
    TLSv1.3                 On
    CertificateLabel        Batch Client
    HostReferenceIdDNS      tls.example
    HostRefWildcardValidation On
  }
}
END
cat >shared.policy <<'END'
TTLSGroupAction ON
{
  TTLSEnabled               On
}
TTLSEnvironmentAdvancedParms MODERN
{
  TLSv1                     Off
  TLSv1.1                   Off
  TLSv1.2                   On
  TLSv1.3                   On
}
END
cat >map.toml <<'END'
[job]
"BATCH*" = { any = true }
[keyring."WEBSRV/WEBRING"]
cert = "tls.example.pem"
key = "tls.example.key"
ca = "ca.pem"
[keyring."BATCH/RING"]
ca = "ca.pem"
[keyring."BATCH/RING".label."Batch Client"]
cert = "tls.example.pem"
key = "tls.example.key"
END
chmod 644 tls.example.key; chown 54321 tls.example.key; chmod 600 tls.example.key
for side in server client; do
    ./tacit import attls $side.policy shared.policy --map map.toml -o $side.toml >said 2>&1 ||
        cat said
    ordinary ./tacit check $side.toml >/dev/null
done
"#;

#[test]
fn an_imported_policy_serves_clients_and_reaches_servers() {
    let said = Network::new(&[], POLICY).ok("mkdir web; echo hello >web/page
         start_ordinary timeout 60 ./tacit run --policy server.toml -- \
             /usr/bin/python3 -m http.server --directory web 8443 >log 2>&1
         is_open() { ss -Hltn 'src 10.9.8.7:8443' | grep -q .; }; until_true is_open
         get() { curl -sS -m 20 --resolve tls.example:8443:10.9.8.7 --cacert ca.pem \"$@\" 2>&1; }
         get --cert tls.example.pem --key tls.example.key https://tls.example:8443/page
         get https://tls.example:8443/page >/dev/null || echo no certificate, no page
         get --http0.9 http://tls.example:8443/page | grep -q hello || echo no TLS, no page
         ordinary timeout 60 ./tacit run --policy client.toml -- \
             curl -sS -m 20 http://10.9.8.7:8443/page");
    assert_eq!(said, "hello\nno certificate, no page\nno TLS, no page\nhello\n");
}
