//! Checks whether a pattern covers a job name or user ID, and combines lists of values.

use crate::draft::Toml;

/// The distinct values of lists and of single values.
pub(super) fn union(values: impl IntoIterator<Item = Toml>) -> Toml {
    let items = values.into_iter().flat_map(|value| match value {
        Toml::List(items) => items,
        one => vec![one],
    });
    let mut distinct: Vec<Toml> = Vec::new();
    for item in items {
        if !distinct.contains(&item) {
            distinct.push(item);
        }
    }
    distinct.into()
}

/// Whether a pattern covers all names that another name or pattern matches. The case of letters is
/// ignored.
#[must_use]
pub(super) fn covers(pattern: &str, name: &str) -> bool {
    let Some(stem) = pattern.strip_suffix('*') else {
        return pattern.eq_ignore_ascii_case(name);
    };
    let other = name.strip_suffix('*').unwrap_or(name);
    other.get(..stem.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(stem))
}
