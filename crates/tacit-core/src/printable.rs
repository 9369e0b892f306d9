//! Escapes untrusted text for terminals and log lines. The escaped characters include those that
//! end a line, move the cursor, change colours or reverse the reading direction.

use std::borrow::Cow;

/// Whether a character is printable: not a control character, and not an invisible or bidirectional
/// character of Unicode.
#[must_use]
pub fn is_printable(character: char) -> bool {
    let is_format = matches!(
        character,
        '\u{ad}'
            | '\u{61c}'
            | '\u{180e}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e007f}'
    );
    !(is_format || character.is_control())
}

/// Returns the text with all other characters escaped, as `\n` or `\u{1b}`.
#[must_use]
pub fn printable(text: &str) -> Cow<'_, str> {
    if text.chars().all(is_printable) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if is_printable(c) { shown.push(c) } else { shown.extend(c.escape_default()) }
    }
    Cow::Owned(shown)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_controls_a_terminal_is_escaped_and_every_script_is_not() {
        assert_eq!(printable("a\nb\u{1b}[31m\u{9b}\u{7f}"), r"a\nb\u{1b}[31m\u{9b}\u{7f}");
        let turned = "x\u{202e}y\u{2066}\u{61c}\u{feff}\u{e0041}";
        assert_eq!(printable(turned), r"x\u{202e}y\u{2066}\u{61c}\u{feff}\u{e0041}");
        for text in ["", "orders-db", "数据库", "قاعدة", "cafe\u{301}", r"C:\n"] {
            assert!(matches!(printable(text), Cow::Borrowed(same) if same == text), "{text}");
        }
    }

    proptest! {
        #[test]
        fn printable_text_stays_as_it_is(text in any::<String>()) {
            let shown = printable(&text).into_owned();
            prop_assert!(shown.chars().all(is_printable));
            prop_assert_eq!(&*printable(&shown), &*shown);
        }
    }
}
