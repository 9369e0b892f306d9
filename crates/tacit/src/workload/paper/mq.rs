//! Repeats some measurements of a paper about IBM MQ on z/OS (see `docs/papers.md`). MQ queue
//! managers exchange messages over connections named *channels*. The paper measures two things: the
//! CPU time to start and stop a channel with TLS, and the round trips of large messages.
//!
//! In the paper, the TCP/IP stack of z/OS does TLS (AT-TLS). In this module, an agent does TLS. In
//! the result tables, the cells for the CPU time of a queue manager stay empty, because tacit has
//! no queue manager.

use serde_json::Value;

use super::agents::{self, ANYWHERE, AgentPair, CLEAR, Protection, Route};
use super::cell::{CellSamples, Gap, PaperCell};
use super::sheet::{PaperSheet, PaperTable};
use super::stage::Stage;

/// A published round trip: the size on the command line, its name, and microseconds of MQ with its
/// own TLS, of MQ with AT-TLS, and the increase in percent.
type PublishedTrip = (&'static str, &'static str, [f64; 3]);

const TRIPS: [PublishedTrip; 5] = [
    ("2KiB", "2 KB", [2172.0, 2199.0, 1.24]),
    ("16KiB", "16 KB", [11_946.0, 12_840.0, 7.48]),
    ("32KiB", "32 KB", [22_699.0, 25_342.0, 11.64]),
    ("64KiB", "64 KB", [44_452.0, 51_707.0, 16.32]),
    ("1MiB", "1 MB", [693_844.0, 956_592.0, 37.87]),
];

/// A published start of a channel: the route here, the protection there, and microseconds of the
/// stack for a start and a stop.
type PublishedStart = (Route, &'static str, f64, &'static str);

const STARTS: [PublishedStart; 4] = [
    (Route { name: "clear", number: 1, protection: Protection::Permit }, "in clear", 30.0, "45"),
    (tls("tls12", 2, "1.2", "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"), "TLS 1.2", 210.0, STOP),
    (tls("tls13", 3, "1.3", "TLS_AES_256_GCM_SHA384"), "TLS 1.3, hardware", 530.0, STOP),
    (tls("chacha", 4, "1.3", CHACHA), "TLS 1.3, software", 690.0, STOP),
];

const STOP: &str = "100-150";
const CHACHA: &str = "TLS_CHACHA20_POLY1305_SHA256";
/// The published rate of starts with AT-TLS, in percent of the rate in clear.
const RELATIVE_RATE: &str = "75-80";

const TRIP: &str = "trip_us";
const START: &str = "start_us";
const STOPPED: &str = "stop_us";
const RATE: &str = "starts_per_s";

const fn tls(name: &'static str, number: u16, version: &'static str, suite: &'static str) -> Route {
    Route { name, number, protection: Protection::Tls { version, suite, client_cert: "required" } }
}

pub(super) fn measure(stage: &Stage) -> PaperSheet {
    let mut samples = CellSamples::default();
    let routes = STARTS.map(|(route, ..)| route);
    match agents::start(stage, &routes, "", ANYWHERE) {
        Ok(pair) => {
            for round in 1..=stage.extent.rounds {
                starts(stage, &mut samples, &pair, round);
                trips(stage, &mut samples, round);
            }
        }
        Err(gap) => {
            for (route, ..) in STARTS {
                samples.add(route.name, Err(gap.clone()));
            }
        }
    }
    sheet(&samples)
}

fn starts(stage: &Stage, samples: &mut CellSamples, pair: &AgentPair, round: usize) {
    let connections = (4000 / stage.extent.divisor).to_string();
    for (route, ..) in STARTS {
        let name = route.name;
        stage.progress(&format!("mq: start-stop, {name}, round {round}"));
        let cpu_of = pair.cpu_of();
        let entry = route.entry();
        let mut words = vec!["start-stop", "client", "--connections", &connections];
        words.extend(["--connect", &entry]);
        words.extend(cpu_of.iter().map(String::as_str));
        let figures = stage.client(&[], &words).and_then(|report| {
            let of_agents = |unit: &str| {
                let parts = ["near", "far"].map(|agent| part_us(&report, unit, agent));
                let [near, far] = parts;
                near.zip(far).map(|(near, far)| (near + far) / 2.0)
            };
            let all = [
                (START, of_agents("start")),
                (STOPPED, of_agents("stop")),
                (RATE, report["figures"][RATE].as_f64()),
            ];
            let figures = all.into_iter().map(|(key, value)| Some((key.to_owned(), value?)));
            let figures: Option<Vec<_>> = figures.collect();
            figures.ok_or_else(|| {
                Gap::failed("the report of the workload `start-stop` lacks CPU times or the rate")
            })
        });
        samples.add(route.name, figures);
    }
}

/// The CPU time of a component for a unit.
fn part_us(report: &Value, unit: &str, component: &str) -> Option<f64> {
    let title = format!("CPU time by component, per {unit}");
    let tables = report["tables"].as_array()?;
    let table = tables.iter().find(|table| table["title"] == title.as_str())?;
    let row = table["rows"].as_array()?.iter().find(|row| row["component"] == component)?;
    row[format!("us/{unit}")].as_f64()
}

/// Round trips of each size on one connection: in clear, and through the agents.
fn trips(stage: &Stage, samples: &mut CellSamples, round: usize) {
    let entry = STARTS[3].0.entry();
    let time = format!("{}ms", stage.extent.time.as_millis());
    for (size, ..) in TRIPS {
        for (subject, to) in [("clear", CLEAR), ("agents", &entry)] {
            let subject = format!("{subject} {size}");
            stage.progress(&format!("mq: request-reply, {subject}, round {round}"));
            let words = ["request-reply", "client", "--request", size, "--reply", size];
            let more = ["--connections", "1", "--seconds", &time, "--connect", to];
            let report = stage.report(&[], &[&words[..], &more].concat());
            let figures = report.and_then(|report| {
                let rate = report["figures"]["exchanges_per_s"].as_f64();
                let trip = rate.map(|rate| vec![(TRIP.to_owned(), 1e6 / rate)]);
                trip.ok_or_else(|| {
                    Gap::failed("the report of the workload `request-reply` has no rate")
                })
            });
            samples.add(&subject, figures);
        }
    }
}

fn sheet(samples: &CellSamples) -> PaperSheet {
    let mut sheet = PaperSheet {
        key: "mq",
        title: "MQ for z/OS with AT-TLS as channel encryption",
        method:
            "The paper measures two queue managers on an IBM z15, with a 1 Gbit/s network. This \
                 measurement uses two programs without TLS and two agents between them, on \
                 loopback. Both agents send a certificate. All handshakes are full: no session is \
                 resumed"
                .to_owned(),
        tables: vec![start_table(samples), trip_table(samples)],
        ..PaperSheet::default()
    };
    let bars: Vec<_> =
        STARTS.iter().map(|(route, name, ..)| (*name, samples.cell(route.name, START))).collect();
    sheet.bars("measured: CPU time of an agent to start a channel", "us", &bars);
    let bars: Vec<_> =
        STARTS.iter().map(|(_, name, us, _)| (*name, PaperCell::Published(*us))).collect();
    sheet.bars("published: CPU time of the TCP/IP stack to start a channel", "us", &bars);
    sheet.note(
        "this measurement uses no MQ: to start a channel, it opens a connection and sends one byte \
         in each direction. MQ does much more work to start a channel. So in the paper, TLS is a \
         smaller part of the work, and lowers the rate of channel starts less than here",
    );
    sheet
}

fn start_table(samples: &CellSamples) -> PaperTable {
    let columns = [
        "protection",
        "published: CPU time of the TCP/IP stack to start a channel (us)",
        "measured: CPU time of the agent to start a channel (us)",
        "published: CPU time of the TCP/IP stack to stop a channel (us)",
        "measured: CPU time of the agent to stop a channel (us)",
        "published: channel starts per second, in % of the rate in clear",
        "measured: channel starts per second, in % of the rate in clear",
    ];
    let title = "CPU time that one side uses to start and to stop a channel";
    let mut table = PaperTable::new("start-stop", title, &columns);
    let clear = STARTS[0].0.name;
    for (route, name, start, stop) in STARTS {
        let relative = samples.ratio(RATE, route.name, clear).map(|ratio| ratio * 100.0);
        table.rows.push(vec![
            PaperCell::name(name),
            PaperCell::Published(start),
            samples.cell(route.name, START),
            PaperCell::Quoted(stop),
            samples.cell(route.name, STOPPED),
            PaperCell::Quoted(if route.name == clear { "100" } else { RELATIVE_RATE }),
            relative.into(),
        ]);
    }
    table
}

fn trip_table(samples: &CellSamples) -> PaperTable {
    let columns = [
        "message",
        "round trip with MQ and System SSL (us)",
        "round trip with MQ and AT-TLS (us)",
        "published increase, %",
        "round trip with a queue manager that uses TLS (us)",
        "round trip with queue managers and agents (us)",
        "measured increase, %",
        "round trip of two programs in clear (us)",
        "round trip of two programs with agents between them (us)",
    ];
    let title = "Time of a round trip with ChaCha20-Poly1305";
    let mut table = PaperTable::new("round-trip", title, &columns);
    let absent = PaperCell::Empty(Gap::absent("tacit has no queue manager"));
    for (size, name, published) in TRIPS {
        let mut row = vec![PaperCell::name(name)];
        row.extend(published.map(PaperCell::Published));
        row.extend(std::iter::repeat_n(absent.clone(), 3));
        row.extend([
            samples.cell(&format!("clear {size}"), TRIP),
            samples.cell(&format!("agents {size}"), TRIP),
        ]);
        table.rows.push(row);
    }
    table
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn published_increases_follow_from_the_published_times() {
        for (_, name, [own, attls, percent]) in TRIPS {
            let increase = (attls / own - 1.0) * 100.0;
            assert!((increase - percent).abs() < 0.01, "{name}: {increase}");
        }
    }

    #[test]
    fn the_cpu_time_of_a_component_is_read_by_unit() {
        let rows = json!([{ "component": "far", "us/stop": 30.5 }]);
        let report = json!({
            "tables": [{ "title": "CPU time by component, per stop", "rows": rows }],
        });
        assert_eq!(part_us(&report, "stop", "far"), Some(30.5));
        assert_eq!(part_us(&report, "start", "far"), None);
        assert_eq!(part_us(&report, "stop", "near"), None);
    }

    #[test]
    fn cells_of_the_queue_manager_are_empty_and_no_others() {
        let mut samples = CellSamples::default();
        for (route, ..) in STARTS {
            let figures = [START, STOPPED, RATE].map(|key| (key.to_owned(), 1.0));
            samples.add(route.name, Ok(figures.into()));
        }
        for (size, ..) in TRIPS {
            for subject in ["clear", "agents"] {
                let trip = vec![(TRIP.to_owned(), 9.0)];
                samples.add(&format!("{subject} {size}"), Ok(trip));
            }
        }
        let sheet = sheet(&samples);
        let is_empty = |cell: &&PaperCell| matches!(cell, PaperCell::Empty(_));
        let empty = |table: &PaperTable| table.rows.iter().flatten().filter(is_empty).count();
        assert_eq!(sheet.tables.iter().map(empty).collect::<Vec<_>>(), [0, 15]);
    }
}
