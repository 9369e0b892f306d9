//! Text in columns of a terminal: how wide it is there, padded and cut to a width.
//!
//! Names of programs, users and certificates come in every script: a Chinese character takes two
//! columns, a combining mark none. Control characters would move the cursor; [`fit`] escapes them.

use tacit_core::printable::printable;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// The last column of a text that was cut.
const CUT: char = '+';

/// The columns that a text takes.
pub(crate) fn width(text: &str) -> usize {
    text.width()
}

/// The text with blanks up to this width; a wider text stays as it is.
pub(crate) fn pad(text: &str, columns: usize) -> String {
    let mut padded = text.to_owned();
    padded.extend(std::iter::repeat_n(' ', columns.saturating_sub(width(text))));
    padded
}

/// The text in exactly this width, without control characters; a text that was cut ends with `+`.
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

/// As much from the start of the text as these columns hold.
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
    fn every_script_takes_the_columns_that_a_terminal_gives_it() {
        // Two columns a character.
        assert_eq!(width("数据库"), 6);
        assert_eq!(fit("数据库", 8), "数据库  ");
        // A character of two columns does not fit into the one that is left.
        assert_eq!(fit("数据库", 5), "数据+");
        assert_eq!(fit("数据库", 4), "数+ ");
        // One column each, or none: Cyrillic, Arabic, an accent of its own, Devanagari.
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
