//! Something to put right.

use super::source::Source;

/// Something to put right.
pub(crate) struct Finding {
    /// From the root.
    pub(super) path: String,
    /// From 1; 0 where it is about the whole file.
    pub(super) line: usize,
    /// What, and what to do instead.
    pub(super) message: String,
    /// Whether it only deserves a thought.
    pub(super) note: bool,
}

impl Finding {
    pub(super) fn new(source: &Source, line: usize, message: impl Into<String>) -> Self {
        Self { path: source.path.clone(), line, message: message.into(), note: false }
    }

    pub(super) fn note(source: &Source, message: impl Into<String>) -> Self {
        Self { note: true, ..Self::new(source, 0, message) }
    }

    pub(super) fn render(&self) -> String {
        let Self { path, line, message, note } = self;
        let kind = if *note { "note: " } else { "" };
        match line {
            0 => format!("{path}: {kind}{message}"),
            _ => format!("{path}:{line}: {kind}{message}"),
        }
    }
}
