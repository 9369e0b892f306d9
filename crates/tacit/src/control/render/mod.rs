//! Renders displays as text tables with fixed columns, one line for each entry.

pub(crate) mod column;
pub mod connections;
pub mod costs;
pub mod policy;
pub(crate) mod table;

use serde_json::Value;

use self::table::{Column, table, text};
use super::display::connections::ConnectionsDisplay;
use super::{Display, client};

/// A display as text; ends with a newline.
#[must_use]
pub fn render(what: Display, value: &Value) -> String {
    match what {
        Display::Connections => match serde_json::from_value::<ConnectionsDisplay>(value.clone()) {
            Ok(shown) => connections::wide(&shown.connections),
            Err(error) => format!("{error}\n"),
        },
        Display::Rules => rules(value),
        Display::Runs => runs(value),
        Display::Engines => engines(value),
        Display::Identities => identities(value),
        Display::Limits => limits(value),
        Display::Refused => refused(value),
        Display::Policy => match serde_json::from_value(value.clone()) {
            Ok(shown) => policy::render(&shown),
            Err(error) => format!("{error}\n"),
        },
        Display::Metrics => value.as_str().unwrap_or_default().to_owned(),
        Display::Costs => match client::to_costs(value.clone()) {
            Ok(costs) => costs::render(&costs, costs::By::Rule),
            Err(error) => format!("{error}\n"),
        },
    }
}

fn runs(value: &Value) -> String {
    const COLUMNS: [Column; 8] = [
        ("ID", |r| text(&r["id"])),
        ("RUN", |r| text(&r["name"])),
        ("PID", |r| text(&r["pid"])),
        ("USER", |r| text(&r["user"])),
        ("OPEN", |r| text(&r["open"])),
        ("NAMES", |r| r["names"].as_array().map_or(0, Vec::len).to_string()),
        ("LISTEN", open_addresses),
        ("AGE", |r| format!("{}s", text(&r["age-s"]))),
    ];
    table(&value["runs"], &COLUMNS)
}

/// The outside addresses of a run; those that refuse connections are in parentheses.
fn open_addresses(run: &Value) -> String {
    let listen = run["listen"].as_array().map(Vec::as_slice).unwrap_or_default();
    let addresses = listen.iter().map(|one| match one["open"] == true {
        true => text(&one["address"]),
        false => format!("({})", text(&one["address"])),
    });
    let shown = addresses.collect::<Vec<_>>().join(",");
    if shown.is_empty() { "-".into() } else { shown }
}

fn rules(value: &Value) -> String {
    const COLUMNS: [Column; 9] = [
        ("RULE", |r| text(&r["name"])),
        ("ACTION", |r| text(&r["action"])),
        ("ROLE", |r| text(&r["role"])),
        ("LISTEN", |r| text(&r["listen"])),
        ("CONNECT", targets),
        ("OPEN", |r| text(&r["open"])),
        ("HITS", |r| text(&r["hits"])),
        ("FAILED", |r| text(&r["failures"])),
        ("LAST-HIT", |r| text(&r["last-hit"])),
    ];
    format!(
        "{}(connections that match no rule are rejected; policy generation {})\n",
        table(&value["rules"], &COLUMNS),
        text(&value["generation"])
    )
}

/// Where a rule connects to; of several targets, one that is down in parentheses.
fn targets(rule: &Value) -> String {
    let Some(states) = rule["targets"]["states"].as_array() else { return text(&rule["connect"]) };
    let target = |state: &Value| match state["down"] == true {
        true => format!("({})", text(&state["connect"])),
        false => text(&state["connect"]),
    };
    states.iter().map(target).collect::<Vec<_>>().join(",")
}

fn identities(value: &Value) -> String {
    const IDENTITIES: [Column; 7] = [
        ("IDENTITY", |i| text(&i["name"])),
        ("SUBJECT", |i| text(&i["certificate"]["subject"])),
        ("NAMES", |i| text(&i["certificate"]["sans"])),
        ("KEY", |i| text(&i["certificate"]["key"])),
        ("EXPIRES", |i| day(&i["certificate"]["not-after"])),
        ("DAYS", |i| text(&i["days-left"])),
        ("RULES", |i| text(&i["rules"])),
    ];
    const TRUSTS: [Column; 9] = [
        ("TRUST", |t| text(&t["name"])),
        ("ANCHORS", |t| text(&t["anchors"])),
        ("PINNED", |t| t["pinned"].as_array().map_or(0, Vec::len).to_string()),
        ("SUBJECT", |t| {
            let [anchors, pinned] = ["certificates", "pinned"].map(|list| &t[list][0]["subject"]);
            text(if anchors.is_null() { pinned } else { anchors })
        }),
        ("EXPIRES", |t| day(&t["expires"])),
        ("DAYS", |t| text(&t["days-left"])),
        ("REVOCATION", |t| text(&t["revocation"])),
        ("LISTS-UNTIL", |t| day(&t["lists-until"])),
        ("RULES", |t| text(&t["rules"])),
    ];
    let identities = table(&value["identities"], &IDENTITIES);
    format!("{identities}\n{}", table(&value["trusts"], &TRUSTS))
}

fn engines(value: &Value) -> String {
    const COLUMNS: [Column; 14] = [
        ("THREAD", |t| text(&t["thread"])),
        ("CPU", |t| if t["cpu"].is_null() { "any".into() } else { text(&t["cpu"]) }),
        ("CLASS", |t| text(&t["class"])),
        ("NICE", |t| text(&t["nice"])),
        ("STATE", |t| text(&t["state"])),
        ("IN-FLIGHT", |t| text(&t["in-flight"])),
        ("OPEN", |t| text(&t["connections"])),
        ("RELAYS", |t| text(&t["relays"])),
        ("HANDSHAKES", |t| text(&t["handshakes"])),
        ("HANDED", |t| text(&t["handed"])),
        ("LEFT", |t| text(&t["left"])),
        ("SPILLED", |t| text(&t["spilled"])),
        ("CPU-MS", |t| format!("{:.0}", t["cpu-us"].as_f64().unwrap_or(0.0) / 1e3)),
        ("PERCENT", |t| format!("{} ({})", text(&t["percent"]), text(&t["percent-recent"]))),
    ];
    let end = match value["spill"].as_bool() {
        None => "no engines: workers do all the work".to_owned(),
        Some(true) => "if all engines are saturated, workers set connections up".to_owned(),
        Some(false) => "if all engines are saturated, connections wait".to_owned(),
    };
    let count = text(&value["workers"]);
    let max = text(&value["workers-max"]);
    format!("{}({end}; {count} of at most {max} workers)\n", table(&value["threads"], &COLUMNS))
}

fn refused(value: &Value) -> String {
    const COLUMNS: [Column; 8] = [
        ("LAST", |r| text(&r["last"])),
        ("TIMES", |r| text(&r["count"])),
        ("RUN", |r| text(&r["run"]["name"])),
        ("KIND", |r| text(&r["kind"])),
        ("DESTINATION", |r| text(&r["destination"])),
        ("PROGRAM", |r| text(&r["program"])),
        ("WHY", why),
        ("WHAT-WOULD-ALLOW-IT", |r| text(&r["next"])),
    ];
    table(&value["refused"], &COLUMNS)
}

/// The reason of a refusal, with the rule that decided it, if there is one.
fn why(refusal: &Value) -> String {
    match &refusal["rule"] {
        Value::String(rule) => format!("{} by {rule}", text(&refusal["why"])),
        _ => text(&refusal["why"]),
    }
}

fn limits(value: &Value) -> String {
    const COLUMNS: [Column; 4] = [
        ("LIMIT", |l| text(&l["name"])),
        ("MAX", |l| text(&l["max"])),
        ("USED", |l| text(&l["used"])),
        ("BEYOND", |l| text(&l["beyond"])),
    ];
    table(&value["limits"], &COLUMNS)
}

/// A count of bytes with three digits and a unit.
fn bytes(count: u64) -> String {
    let (unit, shift) = match count {
        0..1_024 => return count.to_string(),
        1_024..1_048_576 => ("KiB", 10),
        1_048_576..1_073_741_824 => ("MiB", 20),
        _ => ("GiB", 30),
    };
    let tenths = ((count >> (shift - 4)) * 10) >> 4;
    format!("{}.{}{unit}", tenths / 10, tenths % 10)
}

/// The date and minute of an RFC 3339 time.
fn day(value: &Value) -> String {
    let parts = value.as_str().and_then(|time| time.get(..16)?.split_once('T'));
    parts.map_or_else(|| "-".into(), |(day, minute)| format!("{day} {minute} UTC"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::display;
    use serde_json::json;

    #[test]
    fn columns_line_up_and_absent_values_are_a_dash() {
        let value = json!({ "limits": [
            { "name": "connections", "max": 9, "used": 1, "beyond": "wait" },
            { "name": "batch-records", "max": 32 },
        ] });
        assert_eq!(
            render(Display::Limits, &value),
            "LIMIT          MAX  USED  BEYOND\n\
             connections    9    1     wait\n\
             batch-records  32   -     -\n"
        );
    }

    #[test]
    fn columns_line_up_in_every_script() {
        let value = json!({ "limits": [
            { "name": "数据库", "max": 9, "used": 1, "beyond": "wait" },
            { "name": "cafe\u{301}", "max": 32 },
        ] });
        assert_eq!(
            render(Display::Limits, &value),
            "LIMIT   MAX  USED  BEYOND\n\
             数据库  9    1     wait\n\
             cafe\u{301}    32   -     -\n"
        );
    }

    #[test]
    fn control_characters_in_cells_are_escaped() {
        let hostile = "a\nb\x1b[31m\u{202e}";
        let run = json!({ "name": hostile, "program": { "name": hostile, "pid": 7 } });
        let refused = json!({ "refused": [{
            "last": "now", "count": 1, "run": run, "kind": "name", "destination": hostile,
            "program": format!("/tmp/{hostile}"), "why": "denied", "rule": hostile, "next": hostile,
        }] });
        let mut connection = display::connections::example(1);
        connection.rule = hostile.to_owned();
        let connections = [connection];
        let runs = json!({ "runs": [{ "id": 1, "name": hostile, "pid": 7, "user": hostile }] });
        for (what, value) in [(Display::Refused, refused), (Display::Runs, runs)] {
            let shown = render(what, &value);
            assert_eq!(shown.lines().count(), 2, "{shown}");
            assert!(!shown.contains(['\x1b', '\u{202e}']), "{shown:?}");
            assert!(shown.contains(r"a\nb\u{1b}[31m\u{202e}"), "{shown}");
        }
        for shown in [connections::wide, connections::narrow, costs::connections] {
            let shown = shown(&connections);
            assert_eq!(shown.lines().count(), 2, "{shown}");
            assert!(!shown.contains(['\x1b', '\u{202e}']), "{shown:?}");
        }
    }

    #[test]
    fn bytes_have_units() {
        for (count, expected) in [
            (0, "0"),
            (1023, "1023"),
            (1536, "1.5KiB"),
            (5 << 20, "5.0MiB"),
            (3_u64 << 30, "3.0GiB"),
        ] {
            assert_eq!(bytes(count), expected);
        }
    }
}
