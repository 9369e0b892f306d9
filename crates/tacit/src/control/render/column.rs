//! Computes the width of text in terminal columns, and pads or truncates text to a given width.
//!
//! A Chinese character takes two columns, and a combining mark takes none. [`fit`] also escapes
//! control characters, because they could move the cursor.

use tacit_core::printable::printable;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// The mark in the last column of a text that was cut.
const CUT: char = '+';

/// The number of columns that a text takes.
pub(crate) fn width(text: &str) -> usize {
    text.width()
}

/// Pads the text with blanks to this width; a wider text is returned unchanged.
pub(crate) fn pad(text: &str, columns: usize) -> String {
    let mut padded = text.to_owned();
    padded.extend(std::iter::repeat_n(' ', columns.saturating_sub(width(text))));
    padded
}

/// Pads or cuts the text to exactly this width and escapes control characters. A text that was cut
/// ends with `+`.
pub(crate) fn fit(text: &str, columns: usize) -> String {
    let shown = printable(text);
    if width(&shown) <= columns {
        return pad(&shown, columns);
    }
    let mut cut = cut(&shown, columns.saturating_sub(1));
    if columns > 0 {
        cut.push(CUT);
    }
    pad(&cut, columns)
}

/// The start of the text, as much as fits into these columns.
pub(crate) fn cut(text: &str, columns: usize) -> String {
    let mut cut = String::new();
    let mut used = 0;
    for character in text.chars() {
        used += character.width().unwrap_or(0);
        if used > columns {
            break;
        }
        cut.push(character);
    }
    cut
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_padded_or_cut_to_its_width() {
        assert_eq!(fit("orders-db", 12), "orders-db   ");
        assert_eq!(fit("a-very-long-name", 8), "a-very-+");
        assert_eq!(fit("abc", 3), "abc");
        assert_eq!(fit("abc", 1), "+");
        assert_eq!(fit("abc", 0), "");
        assert_eq!(pad("abc", 2), "abc");
    }

    #[test]
    fn the_width_of_a_text_is_that_of_a_terminal_in_every_script() {
        // Two columns a character.
        assert_eq!(width("数据库"), 6);
        assert_eq!(fit("数据库", 8), "数据库  ");
        // A character of two columns does not fit into the one that is left.
        assert_eq!(fit("数据库", 5), "数据+");
        assert_eq!(fit("数据库", 4), "数+ ");
        // These characters take one column, or none: Cyrillic, Arabic, a combining accent,
        // Devanagari.
        assert_eq!(width("заказы"), 6);
        assert_eq!(width("قاعدة"), 5);
        assert_eq!(width("cafe\u{301}"), 4);
        assert_eq!(fit("cafe\u{301}", 6), "cafe\u{301}  ");
        assert_eq!(fit("naïve-ñandú", 7), "naïve-+");
    }

    #[test]
    fn a_name_cannot_move_the_cursor() {
        assert_eq!(fit("a\x1b[2Jb\n", 16), r"a\u{1b}[2Jb\n   ");
        assert_eq!(fit("a\x1b[2Jb\n", 6), r"a\u{1+");
    }
}
