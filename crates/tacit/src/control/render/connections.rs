//! Formats open connections as text: as a table, as all details of one connection, or as CSV lines.

use std::time::SystemTime;

use tacit_core::query::ConnectionState;

use super::bytes;
use super::table::{ABSENT, lay_out};
use super::width::TextWidth;
use crate::clock::Rfc3339;
use crate::control::display::connections::{ConnectionDisplay, TcpState};

/// A column of the table: its heading, and the text of the cell.
type Column = (&'static str, fn(&ConnectionDisplay) -> Option<String>);

/// The width of the narrow table if standard output is not a terminal.
const DEFAULT_WIDTH: usize = 120;

/// The columns of the narrow table.
const NARROW: [Column; 10] = [
    ("ID", |c| Some(c.id.to_string())),
    ("RULE", |c| Some(c.rule.clone())),
    ("STATE", |c| Some(state(c))),
    ("REMOTE", |c| Some(c.origin().to_string())),
    ("PROGRAM", ConnectionDisplay::program),
    ("TLS", tls),
    ("PEER", peer),
    ("IN", |c| Some(bytes(c.bytes_in))),
    ("OUT", |c| Some(bytes(c.bytes_out))),
    ("AGE", |c| Some(format!("{}s", c.age_s))),
];

/// The widths to which these columns are cut if the table is too wide. All of them with these
/// widths and their gaps fit into [`DEFAULT_WIDTH`].
const LIMITS: [(&str, usize); 10] = [
    ("ID", 6),
    ("RULE", 12),
    ("STATE", 10),
    ("REMOTE", 21),
    ("PROGRAM", 11),
    ("TLS", 5),
    ("PEER", 12),
    ("IN", 9),
    ("OUT", 9),
    ("AGE", 7),
];

/// The columns that a small terminal does not have, in the order in which they are left out.
const OPTIONAL: [&str; 6] = ["AGE", "PROGRAM", "OUT", "IN", "STATE", "TLS"];

const WIDE: [Column; 22] = [
    ("ID", |c| Some(c.id.to_string())),
    ("RULE", |c| Some(c.rule.clone())),
    ("ROLE", |c| c.role.clone()),
    ("STATE", |c| Some(c.state.clone())),
    ("POLICY", |c| Some(c.policy.clone())),
    ("LOCAL", |c| Some(c.local.to_string())),
    ("REMOTE", |c| Some(c.origin().to_string())),
    ("PATH", |c| Some(c.path.clone())),
    ("CONNECT", |c| c.connect.as_ref().map(ToString::to_string)),
    ("RUN", |c| c.run.as_ref().map(|run| run.name.clone())),
    ("PROGRAM", ConnectionDisplay::program),
    ("TLS", tls),
    ("SUITE", |c| c.tls.as_ref().map(|tls| tls.suite.clone())),
    ("GROUP", |c| c.tls.as_ref().and_then(|tls| tls.group.clone())),
    ("PEER", peer),
    ("IN", |c| Some(bytes(c.bytes_in))),
    ("OUT", |c| Some(bytes(c.bytes_out))),
    ("AGE", |c| Some(format!("{}s", c.age_s))),
    ("RTT-US", |c| c.network_tcp().map(|tcp| tcp.rtt_us.to_string())),
    ("CWND", |c| c.network_tcp().map(|tcp| tcp.cwnd_segments.to_string())),
    ("UNSENT", |c| c.network_tcp().map(|tcp| tcp.unsent_bytes.to_string())),
    ("PARENT", |c| c.parent.map(|parent| parent.to_string())),
];

/// A table with the columns that fit into a terminal of this width. If the table is too wide, cells
/// are cut, first those of the column that exceeds its intended width the most; a cut cell ends
/// with `+`. Columns that do not fit with their intended widths are left out.
#[must_use]
pub fn narrow(connections: &[ConnectionDisplay], width: TextWidth) -> String {
    let width = match width {
        TextWidth::Whole => TextWidth::Terminal(DEFAULT_WIDTH),
        TextWidth::Terminal(_) => width,
    };
    lay_out(&cells(connections, &NARROW), width.without(&OPTIONAL).cut_to(&LIMITS))
}

/// A table with all columns.
#[must_use]
pub fn wide(connections: &[ConnectionDisplay]) -> String {
    lay_out(&cells(connections, &WIDE), TextWidth::Whole)
}

/// The headings, and the cells of each connection.
fn cells(connections: &[ConnectionDisplay], columns: &[Column]) -> Vec<Vec<String>> {
    let mut rows = vec![columns.iter().map(|(heading, _)| (*heading).to_owned()).collect()];
    for connection in connections {
        let cell = |(_, cell): &Column| {
            let text = cell(connection).filter(|text| !text.is_empty());
            text.unwrap_or_else(|| ABSENT.to_owned())
        };
        rows.push(columns.iter().map(cell).collect());
    }
    rows
}

/// The state of a connection; an open one whose rule has changed is shown as `stale`.
fn state(connection: &ConnectionDisplay) -> String {
    match connection.policy.as_str() {
        "stale" => "stale".to_owned(),
        _ => connection.state.clone(),
    }
}

/// The TLS version, or `clear` after a STARTTLS exchange that ended without TLS, and for a program
/// that has not started TLS.
fn tls(connection: &ConnectionDisplay) -> Option<String> {
    let is_clear = connection.starttls.as_ref().is_some_and(|starttls| starttls.state == "clear")
        || connection.controlled == Some(ConnectionState::Clear);
    match is_clear {
        true => Some("clear".to_owned()),
        false => Some(connection.tls.as_ref()?.version.clone()),
    }
}

/// The identity or the claimed name of the peer, with the result of verification.
fn peer(connection: &ConnectionDisplay) -> Option<String> {
    let tls = connection.tls.as_ref()?;
    let check = tls.check.word();
    let peer = &tls.peer;
    Some(match (&peer.identity, &peer.claimed_subject) {
        (Some(name), _) => format!("{name} ({check})"),
        (None, Some(claim)) => {
            format!("no verified name; the certificate contains the name {claim:?} ({check})")
        }
        (None, None) if peer.warned.is_some() => {
            format!(
                "no identity: a `warn` entry of an identity map matches the certificate ({check})"
            )
        }
        (None, None) => check.to_owned(),
    })
}

/// All facts of one connection, one in each line.
#[must_use]
pub fn detail(connection: &ConnectionDisplay, width: TextWidth) -> String {
    let mut facts = Facts::default();
    let c = connection;
    facts.add("connection", Some(c.id));
    facts.add("rule", Some(&c.rule));
    facts.add("policy", Some(&c.policy));
    facts.add("state", Some(&c.state));
    facts.add("role", c.role.as_ref());
    facts.add("path", Some(&c.path));
    facts.add("parent", c.parent);
    facts.add("since", Some(format!("{} ({} s)", c.since, c.age_s)));
    facts.add("remote", Some(&c.remote));
    facts.add("client", c.client.as_ref());
    facts.add("local", Some(&c.local));
    facts.add("connect", c.connect.as_ref());
    let bytes = format!("{}, {}", c.bytes_in, c.bytes_out);
    facts.add("bytes from client, bytes to client", Some(bytes));
    let messages = format!("{}, {}", c.messages_in, c.messages_out);
    facts.add("messages from client, messages to client", Some(messages));
    facts.add("agent CPU", Some(format!("{:.0} us", c.cpu_us)));
    if let Some(run) = &c.run {
        let claim = if run.claimed { ", claimed" } else { "" };
        let shown = format!("{}[{}], user {}{claim}", run.name, run.pid, run.user);
        facts.add("run", Some(shown));
        facts.add("direction", Some(&run.direction));
        facts.add("program", c.program());
        facts.add("DNS names looked up", Some(run.names.join(", ")));
        facts.add("alias", run.alias);
    }
    if let Some(starttls) = &c.starttls {
        let shown = format!("{} ({}): {}", starttls.protocol, starttls.mode, starttls.state);
        facts.add("STARTTLS", Some(shown));
    }
    facts.add_tls(c);
    let tables = [("accepted socket", &c.accepted_tcp), ("connected socket", &c.connected_tcp)];
    for (title, tcp) in tables {
        let Some(tcp) = tcp else { continue };
        facts.add(title, Some(&tcp.state));
        for (name, value) in samples(tcp) {
            facts.add(&format!("  {name}"), value);
        }
        facts.add("  congestion-control", tcp.congestion_control.as_ref());
    }
    lay_out(&facts.0, width.wrapped())
}

#[derive(Default)]
struct Facts(Vec<Vec<String>>);

impl Facts {
    fn add(&mut self, name: &str, value: Option<impl ToString>) {
        let value = value.map(|value| value.to_string()).filter(|value| !value.is_empty());
        self.0.push(vec![name.to_owned(), value.unwrap_or_else(|| "-".to_owned())]);
    }

    /// What is on the wire, the handshake, and the chain of the peer.
    fn add_tls(&mut self, c: &ConnectionDisplay) {
        let controlled = c.controlled.map(|state| match state {
            ConnectionState::Clear => "in clear until the program requests TLS",
            ConnectionState::Handshaking => {
                "the TLS handshake that the program requested is in \
                                             progress"
            }
            ConnectionState::Secure => "TLS, which the program requested",
        });
        self.add("controlled", controlled);
        let Some(tls) = &c.tls else { return };
        self.add("TLS version", Some(&tls.version));
        self.add("suite", Some(&tls.suite));
        self.add("group", tls.group.as_ref());
        self.add("ALPN", tls.alpn.as_ref());
        self.add("server name", tls.server_name.as_ref());
        self.add("resumed", Some(tls.resumed));
        self.add("KeyUpdates", Some(tls.rekeys));
        self.add("client-cert", tls.client_cert.as_ref());
        self.add("peer", peer(c));
        self.add("reason", tls.check.reason());
        let chain = if tls.chain.is_empty() { tls.certificate.as_slice() } else { &tls.chain };
        for certificate in chain {
            self.add("certificate", Some(&certificate.subject));
            self.add("  issuer", Some(&certificate.issuer));
            self.add("  names", Some(certificate.sans.join(", ")));
            self.add("  key", Some(&certificate.key));
            let validity = format!("{} to {}", certificate.not_before, certificate.not_after);
            self.add("  valid", Some(validity));
            self.add("  usages", Some(certificate.usages.join(", ")));
            self.add("  serial", Some(&certificate.serial));
            self.add("  SHA-256", Some(&certificate.sha256));
        }
    }
}

/// The figures of a socket, in the order of their columns.
fn samples(tcp: &TcpState) -> [(&'static str, Option<u64>); 21] {
    let wide = |value: Option<usize>| value.map(|value| value as u64);
    [
        ("rtt-us", Some(tcp.rtt_us.into())),
        ("rtt-deviation-us", Some(tcp.rtt_deviation_us.into())),
        ("rtt-min-us", Some(tcp.rtt_min_us.into())),
        ("rto-us", Some(tcp.rto_us.into())),
        ("cwnd-segments", Some(tcp.cwnd_segments.into())),
        ("ssthresh-segments", tcp.ssthresh_segments.map(u64::from)),
        ("mss-bytes", Some(tcp.mss_bytes.into())),
        ("receive-mss-bytes", Some(tcp.receive_mss_bytes.into())),
        ("path-mtu-bytes", Some(tcp.path_mtu_bytes.into())),
        ("send-window-bytes", Some(tcp.send_window_bytes.into())),
        ("receive-window-bytes", Some(tcp.receive_window_bytes.into())),
        ("segments-out", Some(tcp.segments_out.into())),
        ("segments-in", Some(tcp.segments_in.into())),
        ("retransmits", Some(tcp.retransmits.into())),
        ("lost-segments", Some(tcp.lost_segments.into())),
        ("unacknowledged-bytes", wide(tcp.unacknowledged_bytes)),
        ("unsent-bytes", Some(tcp.unsent_bytes.into())),
        ("unread-bytes", wide(tcp.unread_bytes)),
        ("send-buffer-bytes", wide(tcp.send_buffer_bytes)),
        ("receive-buffer-bytes", wide(tcp.receive_buffer_bytes)),
        ("last-used-ms", Some(tcp.last_sent_ms.min(tcp.last_received_ms).into())),
    ]
}

/// The header of [`csv_row`].
#[must_use]
pub fn csv_header() -> String {
    let mut cells: Vec<String> =
        ["time", "bytes-in", "bytes-out", "cpu-us"].map(str::to_owned).to_vec();
    for socket in ["accepted", "connected"] {
        let names = samples(&TcpState::default()).map(|(name, _)| format!("{socket}-{name}"));
        cells.extend(names);
    }
    cells.join(",") + "\n"
}

/// One sample of a connection; a value that is not known is empty.
#[must_use]
pub fn csv_row(connection: &ConnectionDisplay) -> String {
    let now = Rfc3339(SystemTime::now());
    let ConnectionDisplay { bytes_in, bytes_out, cpu_us, .. } = connection;
    let mut row = format!("{now},{bytes_in},{bytes_out},{cpu_us:.1}");
    let unknown = TcpState::default();
    for tcp in [&connection.accepted_tcp, &connection.connected_tcp] {
        for (_, value) in samples(tcp.as_ref().unwrap_or(&unknown)) {
            row.push(',');
            if let (Some(_), Some(value)) = (tcp, value) {
                row += &value.to_string();
            }
        }
    }
    row.push('\n');
    row
}

#[cfg(test)]
mod tests {
    use super::super::table::GAP;
    use super::*;
    use crate::control::display::connections::example;

    #[test]
    fn the_narrow_table_fits_into_120_columns_and_cut_cells_are_marked() {
        let mut long = example(123_456);
        long.rule = "a-rule-with-a-long-name".to_owned();
        long.state = "setting-up".to_owned();
        long.remote = "[2001:db8:1111:2222:3333:4444:5555:6666]:65535".parse().unwrap();
        long.bytes_in = 1 << 29;
        long.bytes_out = (1 << 30) - 1;
        long.age_s = 10_000_000;
        let shown = narrow(&[long.clone()], TextWidth::Terminal(DEFAULT_WIDTH));
        assert!(shown.lines().all(|line| line.len() <= 120), "{shown}");
        assert!(shown.contains("a-rule-w") && shown.contains('+'), "{shown}");
        assert!(wide(&[long]).contains("a-rule-with-a-long-name"));
    }

    #[test]
    fn a_cell_is_cut_only_if_the_table_does_not_fit() {
        let mut one = example(1);
        one.remote = "192.0.2.7:4711".parse().unwrap();
        one.rule = "a-rule-with-a-long-name".to_owned();
        let shown = narrow(&[one.clone()], TextWidth::Terminal(DEFAULT_WIDTH));
        assert!(shown.contains("a-rule-with-a-long-name") && !shown.contains('+'), "{shown}");
        one.rule = "r".repeat(200);
        let cut = narrow(&[one, example(2)], TextWidth::Terminal(DEFAULT_WIDTH));
        assert!(cut.lines().any(|line| line.len() == DEFAULT_WIDTH), "{cut}");
        assert_eq!(cut.matches('+').count(), 1, "{cut}");
    }

    #[test]
    fn a_small_terminal_has_fewer_columns_and_no_line_is_longer() {
        let mut long = example(123_456);
        long.rule = "a-rule-with-a-long-name".to_owned();
        long.state = "setting-up".to_owned();
        long.remote = "[2001:db8::5555:6666]:65535".parse().unwrap();
        long.bytes_out = (1 << 30) - 1;
        let heads = |columns: usize| {
            let shown = narrow(&[long.clone(), example(2)], TextWidth::Terminal(columns));
            assert!(shown.lines().all(|line| line.len() <= columns), "{columns}: {shown}");
            let first = shown.lines().next().unwrap();
            first.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(heads(120).len(), NARROW.len());
        let eighty = heads(80);
        assert!(!eighty.contains(&"AGE".to_owned()), "{eighty:?}");
        for kept in ["ID", "RULE", "STATE", "REMOTE", "TLS", "PEER"] {
            assert!(eighty.contains(&kept.to_owned()), "{eighty:?}");
        }
        assert_eq!(heads(60), ["ID", "RULE", "REMOTE", "TLS", "PEER"]);
    }

    #[test]
    fn the_widths_of_the_narrow_table_fit_into_the_terminal() {
        let widths: usize = LIMITS.iter().map(|(_, width)| width).sum();
        assert!(widths + GAP * (LIMITS.len() - 1) <= DEFAULT_WIDTH, "{widths}");
        assert!(NARROW.iter().zip(LIMITS).all(|((column, _), (of, _))| *column == of));
    }

    #[test]
    fn rows_of_the_series_have_as_many_cells_as_its_header() {
        let mut connection = example(1);
        connection.accepted_tcp = Some(TcpState { rtt_us: 77, ..TcpState::default() });
        let cells = |line: &str| line.split(',').count();
        assert_eq!(cells(&csv_row(&connection)), cells(&csv_header()));
        assert!(csv_row(&connection).contains(",77,"));
        let shown = detail(&connection, TextWidth::Whole);
        assert!(
            shown.contains("accepted socket") && !shown.contains("connected socket"),
            "{shown}"
        );
    }
}
