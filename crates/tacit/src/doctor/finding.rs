//! Defines the result of one check of `tacit doctor`.

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) name: &'static str,
    pub(super) presence: Presence,
    /// Whether `tacit run` requires it.
    pub(super) needed: bool,
    /// What the feature is for, or what does not work without it.
    pub(super) note: String,
}

/// Whether the feature exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Presence {
    There,
    Missing,
}

impl Presence {
    /// `There` if `condition` is true.
    #[expect(
        clippy::fn_params_excessive_bools,
        reason = "this function converts a bool to a `Presence`"
    )]
    pub(super) fn when(condition: bool) -> Self {
        if condition { Self::There } else { Self::Missing }
    }
}

impl Finding {
    pub(super) fn is_present(&self) -> bool {
        self.presence == Presence::There
    }

    /// The result for a feature that `tacit run` requires.
    pub(super) fn needed(name: &'static str, presence: Presence, note: impl Into<String>) -> Self {
        Self { name, presence, needed: true, note: note.into() }
    }

    /// The result for an optional feature.
    pub(super) fn wanted(name: &'static str, presence: Presence, note: impl Into<String>) -> Self {
        Self { name, presence, needed: false, note: note.into() }
    }
}
