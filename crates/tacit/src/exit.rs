//! Defines the exit status of commands, and prints their results and errors.
//!
//! Exit status: 0 success, 1 failure, 64 wrong command line, 78 wrong policy. `tacit run` has
//! further values ([`crate::launch`]).

use std::io::{self, Write};
use std::process::ExitCode;

use serde::Serialize;
use serde_json::{Value, json};

use tacit_core::message_id::MessageId;

/// Success.
pub const EXIT_OK: u8 = 0;
/// Failure.
pub const EXIT_FAILURE: u8 = 1;
/// The command line is invalid (`EX_USAGE`).
pub const EXIT_USAGE: u8 = 64;
/// The policy is invalid (`EX_CONFIG`).
pub const EXIT_POLICY: u8 = 78;

/// The version of the JSON that commands print.
const JSON_VERSION: u32 = 1;

/// The JSON of the result of a command: an object with the `version` of its format.
pub fn versioned(result: &impl Serialize) -> String {
    /// A result and the version.
    #[derive(Serialize)]
    struct Versioned<'r, R> {
        version: u32,
        #[serde(flatten)]
        result: &'r R,
    }
    pretty(&json!(Versioned { version: JSON_VERSION, result }))
}

/// Formats JSON with indentation.
#[must_use]
pub fn pretty(value: &Value) -> String {
    format!("{value:#}\n")
}

/// Prints to standard output and returns `code`. Returns a failure if the text cannot be written,
/// unless the reader has closed the pipe.
pub fn print(text: impl AsRef<[u8]>, code: u8) -> ExitCode {
    printed(io::stdout().write_all(text.as_ref()), code)
}

/// The exit status after text was written to standard output: `code`, or a failure as for
/// [`print()`].
pub fn printed(written: io::Result<()>, code: u8) -> ExitCode {
    match written.and_then(|()| io::stdout().flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => fail(
            MessageId("output-failed"),
            format_args!("cannot write to standard output: {error}"),
            EXIT_FAILURE,
        ),
        _ => code.into(),
    }
}

/// Writes a line to standard error. `eprintln` would panic on an error, such as a full disk.
pub fn complain(line: impl std::fmt::Display) {
    // One write, because several processes of a run may write to the same file.
    let _ = io::stderr().write_all(format!("{line}\n").as_bytes());
}

/// Prints why a command failed.
pub fn fail(id: MessageId, error: impl std::fmt::Display, code: u8) -> ExitCode {
    complain_of(id, error);
    code.into()
}

/// Prints an error of a command, with its identifier.
pub fn complain_of(id: MessageId, error: impl std::fmt::Display) {
    complain(format_args!("tacit: error[{id}]: {error}"));
}

/// Prints a warning of a command, with its identifier.
pub fn warn(id: MessageId, warning: impl std::fmt::Display) {
    complain(format_args!("tacit: warning[{id}]: {warning}"));
}

/// Prints what a command that runs for a time has done, with its identifier.
pub fn note(id: MessageId, text: impl std::fmt::Display) {
    complain(format_args!("tacit: info[{id}]: {text}"));
}

/// The text of an error with its next step, on a line of its own. A text that has one already does
/// not change.
#[must_use]
pub fn with_fix(error: &str, fix: &str) -> String {
    if error.contains("\n    fix: ") {
        return error.to_owned();
    }
    format!("{error}\n    fix: {fix}")
}

/// Prints the errors of a policy, each with its identifier and place.
pub fn fail_policy(errors: impl std::fmt::Display) -> ExitCode {
    complain(errors);
    EXIT_POLICY.into()
}
