//! Tests the import with random rules: each flow must get the decision that z/OS would make.
//!
//! The test generates random rules, writes these rules to policy files, and imports the files. Then
//! the test looks up flows in the imported policy. For each flow, the test also evaluates the
//! generated rules in the order of z/OS. The filters come first, in sequence. The TLS rules come
//! second, by priority and name. Both decisions must be the same.

use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};

use proptest::option::of;
use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use tacit_core::flow::{Address, Direction, Flow, Protocol};
use tacit_core::policy::{Action, Index};

const HERE: &str = "192.0.2.1";
const REMOTES: [&str; 4] = ["All", "10.0.0.0/8", "10.9.0.0/16", "192.168.1.1"];

/// A TLS rule as it was made up.
#[derive(Clone, Debug)]
struct Tls {
    priority: Option<u32>,
    /// `Inbound`, `Outbound` or `Both`.
    direction: &'static str,
    remote: &'static str,
    local_port: Option<u16>,
    remote_port: Option<(u16, u16)>,
    is_on: bool,
}

/// A filter as it was made up.
#[derive(Clone, Debug)]
struct Made {
    permits: bool,
    remote: &'static str,
    protocol: &'static str,
    local_port: Option<u16>,
    remote_port: Option<(u16, u16)>,
    /// What follows `bidirectional`.
    connect: &'static str,
}

#[derive(Clone, Debug)]
struct Case {
    tls: Vec<Tls>,
    filters: Option<Vec<Made>>,
    /// Whether filters name the one address of this host.
    at_one_address: bool,
}

/// One connection or exchange of datagrams.
#[derive(Clone, Copy, Debug)]
struct Tried {
    is_inbound: bool,
    is_udp: bool,
    local_port: u16,
    remote: SocketAddr,
}

impl Tried {
    fn all() -> impl Iterator<Item = Self> {
        let ends = ["10.0.0.5", "10.9.0.5", "192.168.1.1"].into_iter().flat_map(|ip| {
            [80, 8000, 40_000].map(|port| SocketAddr::new(ip.parse::<IpAddr>().unwrap(), port))
        });
        let local = [22, 80, 443, 40_000_u16];
        ends.flat_map(move |remote| {
            local.into_iter().flat_map(move |local_port| {
                [(true, false), (false, false), (false, true)].map(|(is_inbound, is_udp)| Self {
                    is_inbound,
                    is_udp,
                    local_port,
                    remote,
                })
            })
        })
    }

    fn meets(
        &self,
        remote: &str,
        local_port: Option<u16>,
        remote_port: Option<(u16, u16)>,
    ) -> bool {
        let is_there = match remote {
            "All" => true,
            "10.0.0.0/8" => self.remote.ip().to_string().starts_with("10."),
            "10.9.0.0/16" => self.remote.ip().to_string().starts_with("10.9."),
            one => self.remote.ip().to_string() == one,
        };
        is_there
            && local_port.is_none_or(|port| port == self.local_port)
            && remote_port.is_none_or(|(a, b)| (a..=b).contains(&self.remote.port()))
    }
}

impl Case {
    /// What the original does: the TLS rule by its place, or whether it passes in clear.
    fn verdict(&self, tried: Tried) -> Result<usize, bool> {
        let filtered = self.filters.as_ref().map(|filters| {
            let first = filters.iter().find(|filter| {
                let protocol = match filter.protocol {
                    "all" => true,
                    protocol => (protocol == "udp") == tried.is_udp,
                };
                let connects = match filter.connect {
                    // Who connects is a matter of TCP.
                    _ if tried.is_udp => true,
                    "InboundConnect" => tried.is_inbound,
                    "OutboundConnect" => !tried.is_inbound,
                    _ => true,
                };
                protocol
                    && connects
                    && tried.meets(filter.remote, filter.local_port, filter.remote_port)
            });
            first.is_some_and(|filter| filter.permits)
        });
        if filtered == Some(false) || tried.is_udp {
            return Err(filtered.unwrap_or(true));
        }
        let mut order: Vec<usize> = (0..self.tls.len()).collect();
        // By priority; the names rise with the places.
        order.sort_by_key(|place| std::cmp::Reverse(self.tls[*place].priority.unwrap_or(1)));
        let first = order.into_iter().find(|place| {
            let rule = &self.tls[*place];
            let direction = match rule.direction {
                "Inbound" => tried.is_inbound,
                "Outbound" => !tried.is_inbound,
                _ => true,
            };
            direction && tried.meets(rule.remote, rule.local_port, rule.remote_port)
        });
        match first {
            Some(place) if self.tls[place].is_on => Ok(place),
            _ => Err(true),
        }
    }

    fn texts(&self) -> (String, Option<String>) {
        let range = |ports: &Option<(u16, u16)>, word: &str| match ports {
            Some((first, last)) => format!("{word} {first}-{last}\n"),
            None => String::new(),
        };
        let mut tls = TLS[TLS.find("TTLSGroupAction g").unwrap()..].to_owned();
        tls.push_str("TTLSGroupAction off\n{\nTTLSEnabled Off\n}\n");
        for (rule, place) in self.tls.iter().zip(0..) {
            let _ = write!(tls, "TTLSRule t{place}\n{{\nDirection {}\n", rule.direction);
            let _ = writeln!(tls, "RemoteAddr {}", rule.remote);
            if let Some(port) = rule.local_port {
                let _ = writeln!(tls, "LocalPortRange {port}");
            }
            tls.push_str(&range(&rule.remote_port, "RemotePortRange"));
            if let Some(priority) = rule.priority {
                let _ = writeln!(tls, "Priority {priority}");
            }
            let group = if rule.is_on { "g" } else { "off" };
            let _ = writeln!(tls, "TTLSGroupActionRef {group}");
            tls.push_str("TTLSEnvironmentActionRef server\n}\n");
        }
        let source = if self.at_one_address { HERE } else { "All" };
        let filters = self.filters.as_ref().map(|made| {
            let rules = made.iter().map(|filter| {
                let local = filter.local_port.map(|port| (port, port));
                let body = format!(
                    "Protocol {}\nDirection bidirectional {}\n{}{}",
                    filter.protocol,
                    filter.connect,
                    range(&local, "SourcePortRange"),
                    range(&filter.remote_port, "DestinationPortRange"),
                );
                let body = service(body.trim_end());
                format!("IpSourceAddr {source}\nIpDestAddr {}\n{body}", filter.remote)
            });
            let names: Vec<String> = (0..made.len()).map(|place| format!("f{place}")).collect();
            let bodies: Vec<String> = rules.collect();
            let rules = names.iter().zip(made).zip(&bodies).map(|((name, filter), body)| {
                let action = if filter.permits { "permit" } else { "deny" };
                (name.as_str(), action, body.as_str())
            });
            filters(&rules.collect::<Vec<_>>())
        });
        (tls, filters)
    }
}

/// What the imported policy does, in the same words.
fn looked_up(policy: &Policy, index: &Index, tried: Tried) -> Result<usize, bool> {
    let here: IpAddr = HERE.parse().unwrap();
    let listen = tried.is_inbound.then(|| {
        let mut sockets = policy.rules.iter().flat_map(|rule| rule.listens()).filter(|socket| {
            let ip = socket.ip().unwrap();
            socket.port() == Some(tried.local_port)
                && (ip == here || (ip.is_unspecified() && ip.is_ipv4()))
        });
        sockets.next().cloned()
    });
    // Without a listener, no peer can connect.
    let Some(listen) = listen.map_or(Some(None), |socket| socket.map(Some)) else {
        return Err(false);
    };
    let flow = Flow {
        direction: if tried.is_inbound { Direction::Inbound } else { Direction::Outbound },
        protocol: if tried.is_udp { Protocol::Udp } else { Protocol::Tcp },
        local: Address::Inet(SocketAddr::new(here, tried.local_port)),
        remote: tried.remote.into(),
        remote_names: Vec::new(),
        alias: None,
        is_shared: false,
        program: None,
        user: None,
        group: None,
        cgroup: None,
        run: None,
        to_own_host: false,
        at_unix_s: 0,
        listen,
    };
    let Some(rule) = index.lookup(&flow).rule.map(|place| &policy.rules[place]) else {
        return Err(false);
    };
    match rule.action {
        Action::Permit => Err(true),
        Action::Deny(_) | Action::Ipsec(_) => Err(false),
        Action::Tls(_) => {
            let name = rule.name.strip_prefix('t').unwrap();
            let digits = name.find(|c: char| !c.is_ascii_digit()).unwrap_or(name.len());
            Ok(name[..digits].parse().unwrap())
        }
    }
}

fn tls() -> impl Strategy<Value = Tls> {
    (
        of(select(vec![1, 5])),
        select(vec!["Inbound", "Outbound", "Both"]),
        select(REMOTES.to_vec()),
        select(vec![22, 80, 443_u16]),
        of(select(vec![(80, 80), (8000, 8999), (1, 65_535)])),
        any::<bool>(),
    )
        .prop_map(|(priority, direction, remote, port, remote_port, is_on)| Tls {
            priority,
            direction,
            remote,
            // What is accepted must say where.
            local_port: (direction != "Outbound").then_some(port),
            remote_port: remote_port.filter(|_| port != 22),
            is_on,
        })
}

fn made() -> impl Strategy<Value = Made> {
    (
        any::<bool>(),
        select(REMOTES.to_vec()),
        select(vec!["tcp", "udp", "all"]),
        of(select(vec![22, 80, 443_u16])),
        of(select(vec![(80, 80), (8000, 8999)])),
        select(vec!["", "InboundConnect", "OutboundConnect"]),
    )
        .prop_map(|(permits, remote, protocol, port, remote_port, connect)| {
            // Who permits others to connect says where; datagrams are not let in by that.
            let connect = match (permits, port, protocol) {
                (_, _, "udp" | "all") => "",
                (true, None, _) => "OutboundConnect",
                _ => connect,
            };
            let local_port = match (permits, protocol) {
                (true, "all") => port.or(Some(443)),
                _ => port,
            };
            Made { permits, remote, protocol, local_port, remote_port, connect }
        })
}

proptest! {
    #[test]
    fn imported_policies_decide_as_the_original_does(
        tls in proptest::collection::vec(tls(), 1..7),
        filters in of(proptest::collection::vec(made(), 1..7)),
        at_one_address in any::<bool>(),
    ) {
        let case = Case { tls, filters, at_one_address };
        let (tls, filters) = case.texts();
        let mut findings = Findings::default();
        let inputs = [Input { file: "tls", bytes: tls.as_bytes() }];
        let text = filters.unwrap_or_default();
        let ipsec = [Input { file: "ipsec", bytes: text.as_bytes() }];
        let given = Given {
            policies: &inputs,
            filters: if case.filters.is_some() { &ipsec } else { &[] },
            map: Some(Input { file: "map", bytes: MAP.as_bytes() }),
            options: AttlsOptions::default(),
        };
        let imported = given.import(&mut findings);
        let policy = imported.policy.unwrap_or_else(|| panic!("{:#?}", findings.finish()));
        let parsed = parse(&policy).policy.unwrap();
        let index = Index::new(&parsed.rules);
        for tried in Tried::all() {
            let mut wanted = case.verdict(tried);
            // Without filters all is let in that has a program; tacit opens what rules name.
            let named = case.tls.iter().any(|rule| {
                rule.direction != "Outbound" && rule.local_port == Some(tried.local_port)
            });
            let mut got = looked_up(&parsed, &index, tried);
            if tried.is_inbound && case.filters.is_none() && wanted == Err(true) && !named {
                (wanted, got) = (Err(false), got.and(Err(true)));
            }
            prop_assert_eq!(got, wanted, "{:?}\n{}", tried, policy);
        }
    }
}
