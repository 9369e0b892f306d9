//! Reads TOML, one table at a time. For each mistake, reports the position and a fix.
//!
//! With this module, tacit reads all TOML files that users write, such as a policy, or the map file
//! of an import:
//!
//! ```
//! use tacit_core::policy::text::{Diagnostics, TableKeys, TableSchema, TomlDocument, TomlTable};
//!
//! let document = TomlDocument::parse("port = 80\nhots = \"a\"");
//! let report = Diagnostics::new(&document);
//! let keys = TableKeys::Fixed(&["host", "port"]);
//! let schema = TableSchema { keys, planned: &[], home: |_| None };
//! let top = TomlTable::top(&report, &document, schema, "the top of the file");
//! let port = top.value("port").and_then(|value| value.integer(1, 65_535));
//! let host = top.required("host", "add host = \"NAME\"").and_then(|value| value.string());
//! // The unknown key `hots` is read as `host`, and is the only error.
//! assert_eq!((port, host.as_deref()), (Some(80), Some("a")));
//! let found: Vec<String> = report.finish().iter().map(|found| found.render("f")).collect();
//! assert_eq!(found, ["f:2:1: error[unknown-key]: unknown key `hots` in the top of the file\n    \
//!                     fix: did you mean `host`?"]);
//! ```
//!
//! * [`TomlDocument`] is the parsed text, or the valid part of it.
//! * [`TomlTable`] reports every key that is not in its [`TableSchema`], and returns a
//!   [`TomlValue`] for each key that the caller reads.
//! * A function that reads a value returns `None` only if an error was reported.
//! * [`Diagnostics`] collects the errors and warnings, each with line, column and fix.
//!
//! Limit: a list has at most [`LIST_ITEMS_MAX`] entries, unless the code that reads it sets another
//! limit.

mod document;
mod lines;
mod node;
mod plain;
mod report;
mod schema;
mod table;
mod words;

pub use super::diagnostic::one_line;
pub use document::TomlDocument;
pub use node::{ByteSpan, TomlData, TomlEntries, TomlEntry, TomlInteger, TomlNode};
pub use report::Diagnostics;
pub use schema::{PlannedKey, TableKeys, TableSchema};
pub use table::{LIST_ITEMS_MAX, TableTitle, TomlTable, TomlValue};
pub use words::{nearest_word, word_list};
