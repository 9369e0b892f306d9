//! Tests the parsing of the key `starttls`, for each protocol.

use super::*;

#[test]
fn starttls_is_a_protocol_or_a_table_with_a_mode() {
    let start = |text: &str| match only_rule(&server(text)).action {
        Action::Tls(tls) => (tls.common().start.clone(), tls.common().handshake_timeout),
        action => panic!("{action:?}"),
    };
    let begins = |protocol, mode| Start::Starttls(Box::new(Starttls { protocol, mode }));
    let required = StarttlsMode::Required;
    let optional = StarttlsMode::Optional;
    let said = |starttls: &str| start(&format!("client-cert = \"none\", starttls = {starttls}"));
    assert_eq!(start("client-cert = \"none\"").0, Start::Immediate);
    let smtp = begins(StarttlsProtocol::Smtp, required);
    assert_eq!(said("\"smtp\""), (smtp, Duration::from_secs(60)));
    let ftp = begins(StarttlsProtocol::Ftp(FtpOptions::default()), required);
    assert_eq!(said("\"ftp\""), (ftp, Duration::from_secs(60)));
    let telnet = begins(StarttlsProtocol::Telnet, optional);
    let table = "{ protocol = \"telnet\", mode = \"optional\" }";
    assert_eq!(said(table), (telnet, Duration::from_secs(10)));
    let postgres = begins(StarttlsProtocol::Postgres(PostgresOptions::default()), required);
    assert_eq!(said("{ protocol = \"postgres\" }").0, postgres);
    let cancels =
        begins(StarttlsProtocol::Postgres(PostgresOptions { cancel: Cancel::Clear }), required);
    assert_eq!(said("{ protocol = \"postgres\", cancel = \"clear\" }").0, cancels);
    assert_eq!(said("{ protocol = \"postgres\", cancel = \"refuse\" }").0, postgres);
}

#[test]
fn a_protocol_with_a_name_in_alpn_has_it_unless_the_rule_says_another() {
    let alpn = |text: &str| match only_rule(text).action {
        Action::Tls(tls) => tls.common().alpn.clone(),
        action => panic!("{action:?}"),
    };
    let as_server = |more: &str| server(&format!("client-cert = \"none\", starttls = {more}"));
    let as_client =
        |more: &str| client("db.example:5", &format!("trust = \"system\", starttls = {more}"));
    for text in [as_server("\"postgres\""), as_client("\"postgres\"")] {
        assert_eq!(alpn(&text), ["postgresql"]);
    }
    for text in [as_server("\"smtp\""), as_client("\"smtp\"")] {
        assert!(alpn(&text).is_empty());
    }
    assert_eq!(alpn(&as_server("\"postgres\", alpn = \"own\"")), ["own"]);
}

#[test]
fn starttls_of_ftp_says_where_its_data_connections_go() {
    let ftp = |starttls: &str| {
        let text = server(&format!("client-cert = \"none\", starttls = {starttls}"));
        let Action::Tls(tls) = only_rule(&text).action else { panic!("no TLS") };
        match &tls.common().start.starttls().unwrap().protocol {
            StarttlsProtocol::Ftp(ftp) => ftp.clone(),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(ftp("\"ftp\""), FtpOptions::default());
    let said = ftp("{ protocol = \"ftp\", implicit = true, data-ports = [990, \"50000-50063\"], \
                    data-address = \"192.0.2.1\", data-resumption = \"off\" }");
    let wanted = FtpOptions {
        implicit: true,
        data_ports: vec![990..=990, 50000..=50063],
        data_address: "192.0.2.1".parse().ok(),
        data_resumption: DataResumption::Off,
    };
    assert_eq!(said, wanted);
}
