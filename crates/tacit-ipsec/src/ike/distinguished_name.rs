//! Reads, writes and compares distinguished names. IKE peers send them as identities of the type
//! `ID_DER_ASN1_DN`.
//!
//! Two names are equal if they have the same attributes in the same order. The comparison ignores
//! the string type (encoding) of a text, because the peer may use another string type than the CA.
//! The comparison also ignores the case of ASCII letters (RFC 5280 section 7.1). If this module
//! cannot parse the structure of a name, the comparison requires that all bytes are equal.
//!
//! Limits: [`NAME_BYTES_MAX`] bytes, [`ATTRIBUTES_MAX`] attributes.

use std::fmt::Write as _;

/// An attribute of a name.
#[derive(Debug)]
struct Attribute<'a> {
    /// The object identifier of its type, as in DER.
    kind: &'a [u8],
    /// The tag of its value.
    tag: u8,
    value: &'a [u8],
}

/// Writes a name in DER. Each attribute has a dotted object identifier and a text. Returns `None`
/// if an identifier is wrong, or the name is too long.
pub(super) fn encode(attributes: &[(&str, &str)]) -> Option<Vec<u8>> {
    if attributes.is_empty() || attributes.len() > ATTRIBUTES_MAX {
        return None;
    }
    let mut names = Vec::new();
    for (kind, value) in attributes {
        let tag = match *kind {
            // RFC 5280 appendix A.1: the country and serial number are PrintableString; the domain
            // component and e-mail address are IA5String.
            "2.5.4.6" | "2.5.4.5" => PRINTABLE_STRING,
            "0.9.2342.19200300.100.1.25" | "1.2.840.113549.1.9.1" => IA5_STRING,
            _ => UTF8_STRING,
        };
        let pair = [
            element(OBJECT_IDENTIFIER, &object_identifier(kind)?)?,
            element(tag, value.as_bytes())?,
        ];
        names.extend(element(SET, &element(SEQUENCE, &pair.concat())?)?);
    }
    element(SEQUENCE, &names)
}

/// Whether two names in DER are equal.
pub(super) fn are_equal(one: &[u8], other: &[u8]) -> bool {
    if one == other {
        return true;
    }
    let (Some(one), Some(other)) = (attributes(one), attributes(other)) else { return false };
    one.len() == other.len() && one.iter().zip(&other).all(|(one, other)| one.is(other))
}

/// Shows a name as `O=Corp, CN=gw.example`, in the order of its bytes. Returns `None` if this
/// module cannot read it, or it has characters that a log line must not have.
pub(super) fn show(name: &[u8]) -> Option<String> {
    let mut text = String::new();
    for Attribute { kind, tag, value } in attributes(name)? {
        let value = std::str::from_utf8(value).ok().filter(|_| is_text(tag))?;
        if !value.chars().all(|one| one.is_ascii_graphic() || one == ' ') {
            return None;
        }
        let separator = if text.is_empty() { "" } else { ", " };
        let known = KINDS.iter().find(|(known, _)| *known == kind);
        let kind = known.map_or_else(|| dotted(kind), |(_, word)| (*word).to_owned());
        let value = value.replace('\\', "\\\\").replace(',', "\\,");
        write!(text, "{separator}{kind}={value}").ok()?;
    }
    Some(text)
}

impl Attribute<'_> {
    fn is(&self, other: &Self) -> bool {
        let has_same_value = if is_text(self.tag) && is_text(other.tag) {
            self.value.eq_ignore_ascii_case(other.value)
        } else {
            (self.tag, self.value) == (other.tag, other.value)
        };
        self.kind == other.kind && has_same_value
    }
}

/// Whether the bytes of values with this tag are ASCII or UTF-8.
fn is_text(tag: u8) -> bool {
    [UTF8_STRING, PRINTABLE_STRING, IA5_STRING].contains(&tag)
}

/// The attributes of a name, unless one of its parts has several.
fn attributes(name: &[u8]) -> Option<Vec<Attribute<'_>>> {
    if name.len() > NAME_BYTES_MAX {
        return None;
    }
    let mut rest = whole(SEQUENCE, name)?;
    let mut all = Vec::new();
    while !rest.is_empty() {
        let (set, after) = split(SET, rest)?;
        let (kind, value) = split(OBJECT_IDENTIFIER, whole(SEQUENCE, set)?)?;
        let tag = *value.first()?;
        all.push(Attribute { kind, tag, value: whole(tag, value)? });
        if all.len() > ATTRIBUTES_MAX {
            return None;
        }
        rest = after;
    }
    Some(all)
}

/// The content of an element that has all these bytes.
fn whole(tag: u8, bytes: &[u8]) -> Option<&[u8]> {
    split(tag, bytes).filter(|(_, rest)| rest.is_empty()).map(|(content, _)| content)
}

/// The content of the first element, and what follows it. A length has at most two bytes after the
/// first.
fn split(tag: u8, bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (&[first, length], rest) = bytes.split_first_chunk::<2>()?;
    let (length, rest) = match length {
        0..=0x7f => (usize::from(length), rest),
        0x81 => rest.split_first().map(|(length, rest)| (usize::from(*length), rest))?,
        0x82 => {
            let (length, rest) = rest.split_first_chunk::<2>()?;
            (usize::from(u16::from_be_bytes(*length)), rest)
        }
        _ => return None,
    };
    rest.split_at_checked(length).filter(|_| first == tag)
}

fn element(tag: u8, content: &[u8]) -> Option<Vec<u8>> {
    let length = u16::try_from(content.len()).ok().filter(|_| content.len() <= NAME_BYTES_MAX)?;
    let [high, low] = length.to_be_bytes();
    let header = match length {
        0..=0x7f => vec![tag, low],
        0x80..=0xff => vec![tag, 0x81, low],
        _ => vec![tag, 0x82, high, low],
    };
    Some([header, content.to_vec()].concat())
}

/// The content of an object identifier (X.690 section 8.19).
fn object_identifier(dotted: &str) -> Option<Vec<u8>> {
    let numbers: Option<Vec<u32>> = dotted.split('.').map(|number| number.parse().ok()).collect();
    let numbers = numbers?;
    let (&[first, second], rest) = numbers.split_first_chunk::<2>()?;
    if first > 2 || (first < 2 && second > 39) {
        return None;
    }
    let joined = (first * 40).checked_add(second)?;
    let mut bytes = Vec::new();
    for number in std::iter::once(joined).chain(rest.iter().copied()) {
        let groups = (32 - number.leading_zeros()).div_ceil(7).max(1);
        for group in (0..groups).rev() {
            let more = if group > 0 { 0x80 } else { 0 };
            bytes.push(more | u8::try_from(number >> (7 * group) & 0x7f).ok()?);
        }
    }
    Some(bytes)
}

/// An object identifier as numbers, for displays.
fn dotted(content: &[u8]) -> String {
    let mut text = String::new();
    let mut number: u64 = 0;
    for byte in content {
        number = number << 7 | u64::from(byte & 0x7f);
        if byte & 0x80 == 0 {
            let _ = if text.is_empty() {
                let first = (number / 40).min(2);
                write!(text, "{first}.{}", number - first * 40)
            } else {
                write!(text, ".{number}")
            };
            number = 0;
        }
    }
    text
}

const OBJECT_IDENTIFIER: u8 = 6;
const UTF8_STRING: u8 = 12;
const PRINTABLE_STRING: u8 = 19;
const IA5_STRING: u8 = 22;
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
/// The words for types of attributes; the policy has the same.
const KINDS: [(&[u8], &str); 8] = [
    (&[0x55, 4, 3], "CN"),
    (&[0x55, 4, 6], "C"),
    (&[0x55, 4, 7], "L"),
    (&[0x55, 4, 8], "ST"),
    (&[0x55, 4, 10], "O"),
    (&[0x55, 4, 11], "OU"),
    (&[0x09, 0x92, 0x26, 0x89, 0x93, 0xf2, 0x2c, 0x64, 1, 25], "DC"),
    (&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 9, 1], "Email"),
];
/// The longest name that is read.
const NAME_BYTES_MAX: usize = 2048;
/// The most attributes of a name.
const ATTRIBUTES_MAX: usize = 32;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CN: &str = "2.5.4.3";
    const O: &str = "2.5.4.10";

    /// The subject of a certificate that openssl has made with `-subj "/C=DE/O=Corp/CN=gw"`.
    const BY_OPENSSL: [u8; 43] = [
        0x30, 0x29, 0x31, 0x0b, 0x30, 0x09, 0x06, 0x03, 0x55, 0x04, 0x06, 0x13, 0x02, 0x44, 0x45,
        0x31, 0x0d, 0x30, 0x0b, 0x06, 0x03, 0x55, 0x04, 0x0a, 0x0c, 0x04, 0x43, 0x6f, 0x72, 0x70,
        0x31, 0x0b, 0x30, 0x09, 0x06, 0x03, 0x55, 0x04, 0x03, 0x0c, 0x02, 0x67, 0x77,
    ];

    #[test]
    fn a_name_is_written_as_openssl_writes_it() {
        let name = encode(&[("2.5.4.6", "DE"), (O, "Corp"), (CN, "gw")]).unwrap();
        assert_eq!(name, BY_OPENSSL);
        assert_eq!(show(&name).unwrap(), "C=DE, O=Corp, CN=gw");
    }

    #[test]
    fn names_are_equal_by_their_attributes() {
        let name = encode(&[(O, "Corp"), (CN, "gw")]).unwrap();
        let mut printable = name.clone();
        let tags = name.iter().enumerate().filter(|(_, byte)| **byte == UTF8_STRING);
        tags.for_each(|(at, _)| printable[at] = PRINTABLE_STRING);
        assert_ne!(name, printable);
        assert!(are_equal(&name, &printable));
        assert!(are_equal(&name, &encode(&[(O, "CORP"), (CN, "Gw")]).unwrap()));
        for other in [
            &[(CN, "gw"), (O, "Corp")][..],
            &[(O, "Corp")],
            &[(O, "Corp"), (CN, "gw"), (CN, "gw")],
            &[(O, "Corp"), (CN, "gv")],
            &[(O, "Corp"), (O, "gw")],
            &[(O, "Corp, CN=gw")],
        ] {
            let other = encode(other).unwrap();
            assert!(!are_equal(&name, &other), "{:?}", show(&other));
        }
    }

    #[test]
    fn names_that_are_not_read_are_compared_as_bytes() {
        let name = encode(&[(CN, "gw")]).unwrap();
        let longer = [&name[..], &[0]].concat();
        assert!(are_equal(&longer, &longer) && !are_equal(&longer, &name));
        // Two attributes in one part.
        let pair = &name[4..];
        let both = [pair, pair].concat();
        let set = element(SEQUENCE, &element(SET, &both).unwrap()).unwrap();
        assert_eq!(show(&set), None);
        assert!(are_equal(&set, &set) && !are_equal(&set, &name));
    }

    #[test]
    fn only_printable_names_are_shown() {
        for value in ["a\nb", "\u{202e}a", "\u{1b}[31m"] {
            assert_eq!(show(&encode(&[(CN, value)]).unwrap()), None);
        }
        let shown = show(&encode(&[(CN, "a, O=b\\"), ("1.3.6.1.4.1.311.2", "c")]).unwrap());
        assert_eq!(shown.unwrap(), "CN=a\\, O=b\\\\, 1.3.6.1.4.1.311.2=c");
    }

    #[test]
    fn wrong_identifiers_and_long_names_are_refused() {
        for kind in ["", "2", "3.1", "1.40", "2.5.4.x", "2.5.-1", "2.5.99999999999"] {
            assert_eq!(encode(&[(kind, "a")]), None, "{kind}");
        }
        assert_eq!(encode(&[]), None);
        assert_eq!(encode(&[(CN, "a"); ATTRIBUTES_MAX + 1]), None);
        let long = "a".repeat(NAME_BYTES_MAX);
        assert_eq!(encode(&[(CN, &long)]), None);
        let name = encode(&[(CN, &long[..1000]), (O, &long[..200])]).unwrap();
        assert_eq!(attributes(&name).unwrap().len(), 2);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_read_or_not(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let _ = show(&bytes);
            prop_assert!(are_equal(&bytes, &bytes));
        }

        #[test]
        fn names_survive(values in prop::collection::vec("[ -~]{1,40}", 1..8)) {
            let attributes: Vec<_> = values.iter().map(|value| (CN, value.as_str())).collect();
            let name = encode(&attributes).unwrap();
            let read = super::attributes(&name).unwrap();
            let read: Vec<_> = read.iter().map(|one| one.value.to_vec()).collect();
            let wanted: Vec<_> = values.iter().map(|value| value.clone().into_bytes()).collect();
            prop_assert_eq!(read, wanted);
            for cut in 0..name.len() {
                prop_assert!(super::attributes(&name[..cut]).is_none());
            }
        }
    }
}
