//! Matches text with patterns that contain `*`, and finds the more specific of two patterns.
//!
//! `*` matches any number of characters, including none; `\` makes the next character literal.
//! Matching is case-sensitive.

/// A text in which each `*` stands for any number of characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    /// The text between the `*` characters; a single piece means that there is no `*`.
    pieces: Vec<String>,
}

/// How specific a condition is. The greater weight has precedence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Weight {
    /// The number of values in the condition.
    pub(super) values: usize,
    /// The number of values without a `*`.
    pub(super) whole: usize,
    /// The number of literal characters, or of bits of a network.
    pub(super) letters: usize,
}

impl Pattern {
    /// Parses a pattern; `None` if it ends within an escape sequence.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut pieces = vec![String::new()];
        let mut characters = text.chars();
        while let Some(character) = characters.next() {
            let literal = match character {
                '*' => {
                    pieces.push(String::new());
                    continue;
                }
                '\\' => characters.next()?,
                other => other,
            };
            // INVARIANT: there is one piece from the start.
            if let Some(piece) = pieces.last_mut() {
                piece.push(literal);
            }
        }
        Some(Self { pieces })
    }

    /// Whether the pattern matches the text.
    #[must_use]
    pub fn matches(&self, text: &str) -> bool {
        let (first, middle, last) = match self.pieces.as_slice() {
            [whole] => return whole == text,
            [first, middle @ .., last] => (first, middle, last),
            [] => return false,
        };
        let Some(rest) = text.strip_prefix(first.as_str()) else { return false };
        let Some(mut rest) = rest.strip_suffix(last.as_str()) else { return false };
        for piece in middle {
            // The earliest match leaves the most text for the next pieces.
            let Some((_, after)) = rest.split_once(piece.as_str()) else { return false };
            rest = after;
        }
        true
    }

    /// Whether there is a text that matches both patterns.
    pub(super) fn overlaps(&self, other: &Self) -> bool {
        match (self.pieces.as_slice(), other.pieces.as_slice()) {
            ([one], [another]) => one == another,
            ([first, .., last], [other_first, .., other_last]) => {
                // Between the two ends, the text can contain all middle pieces.
                let starts = first.starts_with(other_first.as_str());
                let ends = last.ends_with(other_last.as_str());
                (starts || other_first.starts_with(first.as_str()))
                    && (ends || other_last.ends_with(last.as_str()))
            }
            ([whole], _) => other.matches(whole),
            (_, [whole]) => self.matches(whole),
            ([], _) | (_, []) => false,
        }
    }

    /// Returns how specific the pattern is.
    pub(super) fn weight(&self) -> Weight {
        let letters = self.pieces.iter().map(|piece| piece.chars().count()).sum();
        let whole = usize::from(self.pieces.len() == 1);
        Weight { values: 1, whole, letters }
    }
}

impl std::ops::Add for Weight {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self {
            values: self.values + other.values,
            whole: self.whole + other.whole,
            letters: self.letters + other.letters,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pattern(text: &str) -> Pattern {
        Pattern::parse(text).unwrap()
    }

    #[test]
    fn stars_stand_for_any_characters_and_none() {
        for (text, matching, other) in [
            ("alice", "alice", "alicea"),
            ("a*", "a", "ba"),
            ("*a", "ba", "ab"),
            ("a*a", "aa", "a"),
            ("a*b*c", "aXbYc", "acb"),
            ("*", "", "\u{0}"),
            ("a\\*", "a*", "ab"),
            ("\\\\", "\\", "\\\\"),
            ("*ab*ab*", "abab", "aab"),
        ] {
            assert!(pattern(text).matches(matching), "{text} {matching}");
            assert_eq!(pattern(text).matches(other), text == "*", "{text} {other}");
        }
        assert_eq!(Pattern::parse("a\\"), None);
    }

    #[test]
    fn more_characters_weigh_more_and_a_whole_text_most() {
        let weight = |text| pattern(text).weight();
        assert!(weight("b") > weight("abcdef*"));
        assert!(weight("ab*") > weight("a*"));
        assert!(weight("*") < weight("a*") && Weight::default() < weight("*"));
    }

    proptest! {
        #[test]
        fn it_matches_as_the_naive_definition_says(
            pattern in "[ab*]{0,6}", text in "[ab]{0,8}",
        ) {
            let wanted = naive(pattern.as_bytes(), text.as_bytes());
            prop_assert_eq!(Pattern::parse(&pattern).unwrap().matches(&text), wanted);
        }

        #[test]
        fn patterns_that_a_text_matches_overlap(
            one in "[ab*]{0,4}", another in "[ab*]{0,4}", text in "[ab]{0,8}",
        ) {
            let one = pattern(&one);
            let another = pattern(&another);
            if one.matches(&text) && another.matches(&text) {
                prop_assert!(one.overlaps(&another));
            }
        }
    }

    fn naive(pattern: &[u8], text: &[u8]) -> bool {
        match pattern.split_first() {
            None => text.is_empty(),
            Some((b'*', rest)) => (0..=text.len()).any(|at| naive(rest, &text[at..])),
            Some((one, rest)) => text.first() == Some(one) && naive(rest, &text[1..]),
        }
    }
}
