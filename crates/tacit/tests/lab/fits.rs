//! Provides a check for tests: whether a JSON value conforms to a schema in docs/schema/.

use std::path::Path;

use serde_json::Value;

/// What of a value does not fit a schema: the keywords that the schemas here use.
pub fn misfits(schema: &Value, value: &Value, at: &str, found: &mut Vec<String>) {
    if let Some(choices) = schema["anyOf"].as_array() {
        let fits = |choice: &Value| {
            let mut found = Vec::new();
            misfits(choice, value, at, &mut found);
            found.is_empty()
        };
        if !choices.iter().any(fits) {
            found.push(format!("{at}: {value} fits none of {schema}"));
        }
        return;
    }
    let is_of = |word: &Value| match word.as_str().unwrap() {
        "string" => value.is_string(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("{at}: unknown type {other}"),
    };
    let fits = match &schema["type"] {
        Value::Array(words) => words.iter().any(is_of),
        word => is_of(word),
    };
    if !fits {
        found.push(format!("{at}: {value} is no {}", schema["type"]));
        return;
    }
    let constant = &schema["const"];
    if !constant.is_null() && constant != value {
        found.push(format!("{at}: {value} is not {constant}"));
    }
    if schema["enum"].as_array().is_some_and(|words| !words.contains(value)) {
        found.push(format!("{at}: {value} is not in {}", schema["enum"]));
    }
    if let (Some("date-time"), Some(time)) = (schema["format"].as_str(), value.as_str())
        && time.parse::<jiff::Timestamp>().is_err()
    {
        found.push(format!("{at}: {time} is no time"));
    }
    for (place, item) in value.as_array().into_iter().flatten().enumerate() {
        if schema["items"].is_object() {
            misfits(&schema["items"], item, &format!("{at}[{place}]"), found);
        }
    }
    let others = &schema["additionalProperties"];
    for (key, item) in value.as_object().into_iter().flatten().filter(|_| others.is_object()) {
        misfits(others, item, &format!("{at}.{key}"), found);
    }
    let Some(properties) = schema["properties"].as_object().filter(|_| value.is_object()) else {
        return;
    };
    for key in schema["required"].as_array().into_iter().flatten() {
        if value.get(key.as_str().unwrap()).is_none() {
            found.push(format!("{at}: {key} is missing"));
        }
    }
    for (key, item) in value.as_object().into_iter().flatten() {
        match properties.get(key) {
            Some(schema) => misfits(schema, item, &format!("{at}.{key}"), found),
            None => found.push(format!("{at}: {key} is not in the schema")),
        }
    }
}

/// Compares a text with the schema of that name in docs/schema/.
pub fn assert_fits(name: &str, text: &str) {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/schema");
    let schema = std::fs::read_to_string(directory.join(name).with_extension("json")).unwrap();
    let schema: Value = serde_json::from_str(&schema).unwrap();
    let value: Value = serde_json::from_str(text).unwrap();
    let mut found = Vec::new();
    misfits(&schema, &value, name, &mut found);
    assert!(found.is_empty(), "{found:#?}");
}
