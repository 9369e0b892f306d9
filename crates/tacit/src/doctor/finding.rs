//! One line of what `tacit doctor` says.

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) name: &'static str,
    pub(super) presence: Presence,
    /// Whether `tacit run` needs it.
    pub(super) needed: bool,
    /// What it is for, or what its lack costs.
    pub(super) note: String,
}

/// Whether something is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Presence {
    There,
    Missing,
}

impl Presence {
    /// There if `condition` holds.
    #[expect(clippy::fn_params_excessive_bools, reason = "it turns a condition into a name")]
    pub(super) fn when(condition: bool) -> Self {
        if condition { Self::There } else { Self::Missing }
    }
}

impl Finding {
    pub(super) fn is_present(&self) -> bool {
        self.presence == Presence::There
    }

    /// What `tacit run` does not work without.
    pub(super) fn needed(name: &'static str, presence: Presence, note: impl Into<String>) -> Self {
        Self { name, presence, needed: true, note: note.into() }
    }

    /// What something would be better with.
    pub(super) fn wanted(name: &'static str, presence: Presence, note: impl Into<String>) -> Self {
        Self { name, presence, needed: false, note: note.into() }
    }
}
