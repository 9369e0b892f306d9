//! One line of what `tacit doctor` says.

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) name: &'static str,
    pub(super) present: bool,
    /// Whether `tacit run` needs it.
    pub(super) needed: bool,
    /// What it is for, or what its lack costs.
    pub(super) note: String,
}

impl Finding {
    /// What `tacit run` does not work without.
    pub(super) fn needed(name: &'static str, present: bool, note: impl Into<String>) -> Self {
        Self { name, present, needed: true, note: note.into() }
    }

    /// What something would be better with.
    pub(super) fn wanted(name: &'static str, present: bool, note: impl Into<String>) -> Self {
        Self { name, present, needed: false, note: note.into() }
    }
}
