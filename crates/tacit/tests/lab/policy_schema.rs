//! Tests the JSON schema of the policy language. Editors use this schema.

use std::path::Path;

use serde_json::Value;

use crate::fits::{assert_fits, misfits};
use crate::harness::Lab;

/// The schema as the program prints it.
fn schema() -> Value {
    serde_json::from_str(&Lab::new().tacit(&["check", "--schema"])).unwrap()
}

/// The schema of a table of the policy by its title in messages.
fn schema_of<'s>(schema: &'s Value, title: &str) -> &'s Value {
    let rule = &schema["properties"]["rule"]["items"]["properties"];
    let named = |table: &str| &schema["properties"][table]["additionalProperties"];
    let table_of = |key: &'s Value| {
        let choices = key["anyOf"].as_array().unwrap();
        choices.iter().find(|choice| choice["type"] == "object").unwrap()
    };
    let tls = &rule["tls"]["properties"];
    match title {
        "the top of the file" => schema,
        "[identity.NAME]" => named("identity"),
        "[trust.NAME]" => named("trust"),
        "[ike.NAME]" => named("ike"),
        "[sa.NAME]" => named("sa"),
        "[link.NAME]" => named("link"),
        "[activate.NAME]" => named("activate"),
        "`ipsec`" => &rule["ipsec"],
        "[[map.NAME]]" => &named("map")["items"],
        "[agent]" | "[engine]" | "[host]" | "[limits]" => {
            &schema["properties"][title.trim_matches(['[', ']'])]
        }
        "[[rule]]" => &schema["properties"]["rule"]["items"],
        "`tls`" => &rule["tls"],
        "`starttls`" => table_of(&tls["starttls"]),
        "`rekey`" => &tls["rekey"],
        "`when`" => &rule["when"],
        "`client-cert`" => table_of(&tls["client-cert"]),
        other => panic!("no schema for {other}"),
    }
}

#[test]
fn the_schema_of_policies_has_every_key_and_no_other() {
    let schema = schema();
    for (title, words) in tacit_core::policy::language() {
        let properties = schema_of(&schema, title)["properties"].as_object().unwrap();
        let mut keys: Vec<&str> = properties.keys().map(String::as_str).collect();
        let mut words = words.to_vec();
        keys.sort_unstable();
        words.sort_unstable();
        assert_eq!(keys, words, "{title}");
    }
}

#[test]
fn policies_of_the_repository_fit_the_schema() {
    let lab = Lab::new();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let seeds = std::fs::read_dir(root.join("fuzz/seeds/policy")).unwrap();
    let seeds = seeds.map(|seed| seed.unwrap().path());
    let to_json = "import json, sys, tomllib\n\
                   print(json.dumps(tomllib.load(open(sys.argv[1], 'rb'))))";
    let mut count = 0;
    for policy in seeds.chain([root.join("etc/policy.toml")]) {
        let text = std::fs::read_to_string(&policy).unwrap();
        if tacit_core::policy::parse(&text).policy.is_none() {
            continue;
        }
        count += 1;
        let converted = lab.run("python3", &["-c", to_json, policy.to_str().unwrap()]);
        assert_fits("policy", std::str::from_utf8(&converted.stdout).unwrap());
    }
    assert!(count >= 3, "{count} policies");
    for wrong in [
        "{ \"version\": 1, \"rlue\": [] }",
        "{ \"version\": 1, \"identity\": { \"a\": { \"cert\": \"a\", \"kye\": \"b\" } } }",
        "{ \"version\": 2 }",
    ] {
        let wrong: Value = serde_json::from_str(wrong).unwrap();
        let mut found = Vec::new();
        misfits(&schema(), &wrong, "policy", &mut found);
        assert!(!found.is_empty(), "{wrong}");
    }
}
