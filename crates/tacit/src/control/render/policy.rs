//! Formats the installed policy as text, for `tacit show policy`.

use super::table::lay_out;
use super::width::TextWidth;
use crate::control::display::policy::{PolicyDisplay, PolicyTable, Setting, SettingValue};

/// The display as text; default values are marked.
#[must_use]
pub fn render(policy: &PolicyDisplay, width: TextWidth) -> String {
    let PolicyDisplay { version: _, file, included, generation, installed, tables, rules } = policy;
    let file = file.display();
    let first = format!("{file}, generation {generation}, installed {installed}\n");
    let mut out = width.prose(&first);
    for file in included {
        out += &format!("includes {file}\n");
    }
    for table in tables.iter().chain(rules) {
        out += &render_table(table, width);
    }
    out
}

fn render_table(table: &PolicyTable, width: TextWidth) -> String {
    let PolicyTable { title, name, file, line, settings } = table;
    // Titles of other tables contain the name.
    let name = name.as_ref().filter(|_| title == "[[rule]]");
    let name = name.map_or_else(String::new, |name| format!(" {name}"));
    let line = line.map_or_else(String::new, |line| format!(", line {line}"));
    let file = file.as_ref().map_or_else(String::new, |file| format!(" of {file}"));
    let mut out = format!("\n{title}{name}{line}{file}\n");
    let rows: Vec<_> = settings.iter().map(row).collect();
    for line in lay_out(&rows, width.minus(INDENT.len()).wrapped()).lines() {
        out += &format!("{INDENT}{line}\n");
    }
    out
}

fn row(setting: &Setting) -> Vec<String> {
    let Setting { key, value, default } = setting;
    let value = match value {
        SettingValue::None => "-".to_owned(),
        SettingValue::Boolean(value) => value.to_string(),
        SettingValue::Number(value) => value.to_string(),
        SettingValue::Text(value) => value.clone(),
        SettingValue::List(list) if list.is_empty() => "-".to_owned(),
        SettingValue::List(list) => list.join(", "),
    };
    let mark = if *default { "default" } else { "" };
    vec![key.clone(), mark.to_owned(), value]
}

/// The blanks before a key.
const INDENT: &str = "  ";
