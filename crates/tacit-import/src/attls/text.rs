//! Decodes the bytes of an AT-TLS policy file to text.
//!
//! Policies on z/OS are in EBCDIC (code page IBM-1047). Files that were transferred to Linux are
//! mostly in ASCII or Latin-1. This module tries UTF-8 first, because text in another encoding is
//! rarely valid UTF-8.
//!
//! If a data set (a file on z/OS) was copied as bytes, the copy has no line ends. Each line is a
//! record of 80 characters. If every record has a line number in columns 73 to 80, this module
//! removes the line numbers.

use std::fmt;

/// Largest file in bytes: real policies have some kilobytes.
pub(super) const FILE_BYTES_MAX: usize = 4 << 20;

/// The character encoding of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Encoding {
    /// UTF-8, which includes ASCII.
    Utf8,
    /// ISO 8859-1.
    Latin1,
    /// EBCDIC, code page IBM-1047.
    Ibm1047,
}

impl fmt::Display for Encoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Utf8 => "UTF-8",
            Self::Latin1 => "ISO 8859-1",
            Self::Ibm1047 => "EBCDIC (IBM-1047)",
        })
    }
}

/// The text of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Decoded {
    /// Lines end in `\n`.
    pub text: String,
    /// The encoding of the file.
    pub encoding: Encoding,
    /// Whether it had records instead of lines.
    pub records: bool,
    /// Whether its lines ended with line numbers.
    pub numbered: bool,
}

/// Why a file cannot be text: what is wrong, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NotText {
    /// What is wrong.
    pub message: String,
    /// What to do.
    pub fix: &'static str,
}

/// Reads the bytes as text.
///
/// # Errors
/// The file is too large, or is no text at all.
pub(super) fn decode(bytes: &[u8]) -> Result<Decoded, NotText> {
    if bytes.len() > FILE_BYTES_MAX {
        let message = format!("the file has {} bytes; the limit is {FILE_BYTES_MAX}", bytes.len());
        return Err(NotText {
            message,
            fix: "split the file; the import combines several files into one policy",
        });
    }
    let (mut text, encoding) = match std::str::from_utf8(bytes) {
        Ok(text) => (text.strip_prefix('\u{feff}').unwrap_or(text).to_owned(), Encoding::Utf8),
        Err(_) if bytes.starts_with(b"\xff\xfe") || bytes.starts_with(b"\xfe\xff") => {
            let fix = "convert the file: iconv -f UTF-16 -t UTF-8";
            return Err(NotText {
                message: "the file is UTF-16, which cannot be imported".to_owned(),
                fix,
            });
        }
        Err(_) if is_ebcdic(bytes) => {
            (bytes.iter().map(|b| ibm_1047(*b)).collect(), Encoding::Ibm1047)
        }
        Err(_) => (bytes.iter().map(|b| char::from(*b)).collect(), Encoding::Latin1),
    };
    let stray = |c: char| c.is_control() && !matches!(c, '\n' | '\r' | '\t');
    if let Some(Stray { line, character }) = find_stray(&text, stray) {
        let shown = show(character);
        let message = format!(
            "line {line} has the control character {shown}, so the file is probably not a text file"
        );
        let fix = "transfer the file in text mode, or remove the character";
        return Err(NotText { message, fix });
    }
    let records = encoding == Encoding::Ibm1047 && is_records(&text);
    if records {
        text = in_lines(&text);
    }
    let numbered = is_numbered(&text);
    if numbered {
        text = without_numbers(&text);
    }
    Ok(Decoded { text, encoding, records, numbered })
}

/// Length of a record in almost every data set with text.
const RECORD_CHARS: usize = 80;
/// Column at which the line number of a record begins.
const NUMBER_COLUMN: usize = 72;

/// Whether the text consists of records without line ends.
fn is_records(text: &str) -> bool {
    let chars = text.chars().count();
    chars > RECORD_CHARS && chars.is_multiple_of(RECORD_CHARS) && !text.contains('\n')
}

fn in_lines(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    chars.chunks(RECORD_CHARS).flat_map(|record| record.iter().copied().chain(['\n'])).collect()
}

/// Whether every line is a record with a line number.
fn is_numbered(text: &str) -> bool {
    let numbered = |line: &str| {
        let number = line.get(NUMBER_COLUMN..).unwrap_or_default();
        line.is_ascii() && line.len() == RECORD_CHARS && number.bytes().all(|b| b.is_ascii_digit())
    };
    !text.is_empty() && text.lines().all(numbered)
}

fn without_numbers(text: &str) -> String {
    let lines = text.lines().filter_map(|line| line.get(..NUMBER_COLUMN));
    lines.flat_map(|line| [line, "\n"]).collect()
}

/// A control character that text does not contain.
struct Stray {
    /// Its line, from 1.
    line: usize,
    character: char,
}

fn find_stray(text: &str, stray: impl Fn(char) -> bool) -> Option<Stray> {
    text.split('\n').zip(1..).find_map(|(text, line)| {
        let character = text.chars().find(|character| stray(*character))?;
        Some(Stray { line, character })
    })
}

fn show(c: char) -> String {
    format!("{:#04x}", u32::from(c))
}

/// Whether the bytes look like EBCDIC. Its letters and digits have the codes of accented letters in
/// other encodings, which are rare there. Its blank, which fills records, is their `@` and is not
/// counted.
fn is_ebcdic(bytes: &[u8]) -> bool {
    let (high, blank) = bytes.iter().fold((0, 0), |(high, blank), b| {
        (high + usize::from(*b >= 0x80), blank + usize::from(*b == 0x40))
    });
    high * 3 > bytes.len() - blank
}

/// A character of IBM-1047; both of its line ends become `\n`.
fn ibm_1047(byte: u8) -> char {
    match IBM_1047[usize::from(byte)] {
        0x85 => '\n',
        latin1 => char::from(latin1),
    }
}

/// The text as codes of IBM-1047, for the order of names on z/OS.
#[must_use]
pub(super) fn ibm_1047_order(text: &str) -> Vec<usize> {
    let of = |b: u8| IBM_1047.iter().position(|latin1| *latin1 == b);
    text.bytes().filter_map(of).collect()
}

/// The characters of IBM-1047 as codes of ISO 8859-1.
#[rustfmt::skip]
const IBM_1047: [u8; 256] = [
    0x00, 0x01, 0x02, 0x03, 0x9C, 0x09, 0x86, 0x7F, 0x97, 0x8D, 0x8E, 0x0B, 0x0C, 0x0D, 0x0E, 0x0F,
    0x10, 0x11, 0x12, 0x13, 0x9D, 0x85, 0x08, 0x87, 0x18, 0x19, 0x92, 0x8F, 0x1C, 0x1D, 0x1E, 0x1F,
    0x80, 0x81, 0x82, 0x83, 0x84, 0x0A, 0x17, 0x1B, 0x88, 0x89, 0x8A, 0x8B, 0x8C, 0x05, 0x06, 0x07,
    0x90, 0x91, 0x16, 0x93, 0x94, 0x95, 0x96, 0x04, 0x98, 0x99, 0x9A, 0x9B, 0x14, 0x15, 0x9E, 0x1A,
    0x20, 0xA0, 0xE2, 0xE4, 0xE0, 0xE1, 0xE3, 0xE5, 0xE7, 0xF1, 0xA2, 0x2E, 0x3C, 0x28, 0x2B, 0x7C,
    0x26, 0xE9, 0xEA, 0xEB, 0xE8, 0xED, 0xEE, 0xEF, 0xEC, 0xDF, 0x21, 0x24, 0x2A, 0x29, 0x3B, 0x5E,
    0x2D, 0x2F, 0xC2, 0xC4, 0xC0, 0xC1, 0xC3, 0xC5, 0xC7, 0xD1, 0xA6, 0x2C, 0x25, 0x5F, 0x3E, 0x3F,
    0xF8, 0xC9, 0xCA, 0xCB, 0xC8, 0xCD, 0xCE, 0xCF, 0xCC, 0x60, 0x3A, 0x23, 0x40, 0x27, 0x3D, 0x22,
    0xD8, 0x61, 0x62, 0x63, 0x64, 0x65, 0x66, 0x67, 0x68, 0x69, 0xAB, 0xBB, 0xF0, 0xFD, 0xFE, 0xB1,
    0xB0, 0x6A, 0x6B, 0x6C, 0x6D, 0x6E, 0x6F, 0x70, 0x71, 0x72, 0xAA, 0xBA, 0xE6, 0xB8, 0xC6, 0xA4,
    0xB5, 0x7E, 0x73, 0x74, 0x75, 0x76, 0x77, 0x78, 0x79, 0x7A, 0xA1, 0xBF, 0xD0, 0x5B, 0xDE, 0xAE,
    0xAC, 0xA3, 0xA5, 0xB7, 0xA9, 0xA7, 0xB6, 0xBC, 0xBD, 0xBE, 0xDD, 0xA8, 0xAF, 0x5D, 0xB4, 0xD7,
    0x7B, 0x41, 0x42, 0x43, 0x44, 0x45, 0x46, 0x47, 0x48, 0x49, 0xAD, 0xF4, 0xF6, 0xF2, 0xF3, 0xF5,
    0x7D, 0x4A, 0x4B, 0x4C, 0x4D, 0x4E, 0x4F, 0x50, 0x51, 0x52, 0xB9, 0xFB, 0xFC, 0xF9, 0xFA, 0xFF,
    0x5C, 0xF7, 0x53, 0x54, 0x55, 0x56, 0x57, 0x58, 0x59, 0x5A, 0xB2, 0xD4, 0xD6, 0xD2, 0xD3, 0xD5,
    0x30, 0x31, 0x32, 0x33, 0x34, 0x35, 0x36, 0x37, 0x38, 0x39, 0xB3, 0xDB, 0xDC, 0xD9, 0xDA, 0x9F,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_encoding_is_recognised_by_its_bytes() {
        let text = "# a rule\nTTLSRule a~1.b-c_d\n{\n  Keyring U/R#[1]\n}\n";
        let utf8 = decode(text.as_bytes()).unwrap();
        assert_eq!((utf8.text.as_str(), utf8.encoding), (text, Encoding::Utf8));
        let position = |c| IBM_1047.iter().position(|b| *b == c).unwrap();
        for newline in [0x15, 0x25] {
            let ebcdic: Vec<u8> = text
                .bytes()
                .map(|b| if b == b'\n' { newline } else { u8::try_from(position(b)).unwrap() })
                .collect();
            let read = decode(&ebcdic).unwrap();
            assert_eq!((read.text.as_str(), read.encoding), (text, Encoding::Ibm1047));
        }
        let latin1 = decode(b"# \xa9 somebody\n").unwrap();
        assert_eq!((latin1.text.as_str(), latin1.encoding), ("# © somebody\n", Encoding::Latin1));
        assert_eq!(decode("\u{feff}# x".as_bytes()).unwrap().text, "# x");
    }

    #[test]
    fn records_become_lines_and_lose_their_numbers() {
        let record = |text: &str, number: &str| format!("{text:72}{number:8}");
        let ebcdic = |text: &str| -> Vec<u8> {
            let byte = |b: u8| IBM_1047.iter().position(|latin1| *latin1 == b).unwrap();
            text.bytes().map(|b| u8::try_from(byte(b)).unwrap()).collect()
        };
        let lines = |text: &str| text.lines().map(str::trim_end).collect::<Vec<_>>().join("|");
        let rule = "TTLSRule a";
        let plain = decode(&ebcdic(&(record(rule, "") + &record(rule, "")))).unwrap();
        assert_eq!((lines(&plain.text), plain.records), (format!("{rule}|{rule}"), true));
        let numbered = record(rule, "00010000") + &record(rule, "00020000");
        let read = decode(&ebcdic(&numbered)).unwrap();
        assert_eq!((lines(&read.text), read.numbered), (format!("{rule}|{rule}"), true));
        // One line without a number, and they may be values.
        let mixed = format!("{}\n{}\n", record("A", "00010000"), record("Port", "8443"));
        assert_eq!(decode(mixed.as_bytes()).unwrap().text, mixed);
    }

    #[test]
    fn what_is_no_text_is_refused() {
        for (bytes, words) in [
            (&b"\xff\xfeT\0"[..], "UTF-16"),
            (b"TTLSRule\0", "0x00"),
            (b"a\nb\x1b[31m", "line 2 has the control character 0x1b"),
            (&vec![b' '; FILE_BYTES_MAX + 1], "the limit is"),
        ] {
            let refused = decode(bytes).unwrap_err();
            assert!(refused.message.contains(words), "{refused:?}");
        }
    }

    #[test]
    fn the_code_page_is_a_permutation() {
        let mut seen = IBM_1047;
        seen.sort_unstable();
        assert!(seen.iter().zip(0..=u8::MAX).all(|(a, b)| *a == b));
    }
}
