//! Finds the known word that is most similar to an unknown word. Also converts lists of words to
//! text for messages.

/// Returns the most similar known word, if it is similar enough.
#[must_use]
pub fn nearest_word<'w>(word: &str, known: &[&'w str]) -> Option<&'w str> {
    let lower: Vec<char> = word.chars().take(WORD_CHARS_MAX).flat_map(char::to_lowercase).collect();
    let distances = known.iter().map(|known| (edits(&lower, known), *known));
    let (distance, nearest) = distances.min_by_key(|(distance, _)| *distance)?;
    // At most one typing error in three characters: `lisen` is `listen`, but `foo` is not `log`.
    let length = lower.len().max(nearest.chars().count());
    (distance * 3 <= length).then_some(nearest)
}

/// Formats words as a list for a message.
#[must_use]
pub fn word_list(words: &[&str]) -> String {
    words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ")
}

/// Only this number of characters of a longer word is compared.
const WORD_CHARS_MAX: usize = 64;

/// Counts the insertions, deletions, replacements and swaps of neighbouring characters between two
/// words. The first word must be in lower case.
fn edits(word: &[char], known: &str) -> usize {
    let known: Vec<char> = known.chars().flat_map(char::to_lowercase).collect();
    let mut before = Vec::new();
    let mut last: Vec<usize> = (0..=known.len()).collect();
    for (i, a) in word.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, b) in known.iter().enumerate() {
            let replaced = last[j] + usize::from(a != b);
            let mut best = replaced.min(last[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *a == known[j - 1] && word[i - 1] == *b {
                best = best.min(before_at(&before, j - 1) + 1);
            }
            row.push(best);
        }
        before = std::mem::replace(&mut last, row);
    }
    last[known.len()]
}

fn before_at(row: &[usize], column: usize) -> usize {
    row.get(column).copied().unwrap_or(usize::MAX - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_forgives_slips_and_not_more() {
        let rule = &["name", "connect", "listen", "log", "remote", "remote-ports"];
        assert_eq!(nearest_word("lisen", rule), Some("listen"));
        assert_eq!(nearest_word("conenct", rule), Some("connect"));
        assert_eq!(nearest_word("remote_ports", rule), Some("remote-ports"));
        assert_eq!(nearest_word("Listen", rule), Some("listen"));
        assert_eq!(nearest_word("clientcert", &["client-cert", "trust"]), Some("client-cert"));
        assert_eq!(nearest_word("frobnicate", rule), None);
        assert_eq!(nearest_word("", rule), None);
    }

    #[test]
    fn edits_counts_a_swap_as_one() {
        let edits = |a: &str, b: &str| edits(&a.chars().collect::<Vec<_>>(), b);
        assert_eq!(edits("trust", "trust"), 0);
        assert_eq!(edits("turst", "trust"), 1);
        assert_eq!(edits("", "tls"), 3);
        assert_eq!(edits("tls", ""), 3);
        assert_eq!(edits("permit", "deny"), 5);
    }
}
