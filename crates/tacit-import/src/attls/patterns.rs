//! Names and patterns of the original, and what the map has for those that a pattern covers.

use crate::draft::Toml;

/// All values of lists or of single values, each once.
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

/// Whether a name or pattern is all of the names that another one is, or more; names have no case.
#[must_use]
pub(super) fn covers(pattern: &str, name: &str) -> bool {
    let Some(stem) = pattern.strip_suffix('*') else {
        return pattern.eq_ignore_ascii_case(name);
    };
    let other = name.strip_suffix('*').unwrap_or(name);
    other.get(..stem.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(stem))
}
