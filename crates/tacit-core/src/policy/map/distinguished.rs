//! Checks whether the distinguished name in a certificate matches a pattern, such as `CN=*.corp,
//! O=Corp`.
//!
//! Each attribute is compared separately, so that the value of one attribute cannot imitate another
//! attribute. This module ignores attributes if their type is not in the pattern. For each type in
//! the pattern, the name must have as many attributes of this type as the pattern. The order of
//! these attributes must also be the same.

use std::fmt;

use super::pattern::{Pattern, Weight};

/// The largest number of attributes in one pattern.
pub const ATTRIBUTES_MAX: usize = 16;

/// One attribute of a distinguished name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DnAttribute {
    /// Its type as a dotted object identifier.
    pub oid: String,
    /// Its value as text.
    pub value: String,
}

/// A pattern for distinguished names. Without attributes it matches any name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnPattern {
    attributes: Vec<AttributePattern>,
}

/// The required value of one attribute of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
struct AttributePattern {
    /// Its type as a dotted object identifier.
    oid: String,
    value: Pattern,
}

/// The fault of a pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DnFault {
    /// A part without `=`.
    NoEquals(String),
    /// A type that is neither known nor an object identifier.
    UnknownType(String),
    /// It ends within an escape sequence.
    OpenEscape,
    /// A part with nothing after `=`.
    NoValue(String),
    /// More than [`ATTRIBUTES_MAX`].
    TooMany,
}

/// Attribute types by their common names. The first name is the one in displays.
pub const TYPES: [(&str, &[&str]); 14] = [
    ("2.5.4.3", &["CN", "commonName"]),
    ("2.5.4.4", &["SN", "surname"]),
    ("2.5.4.5", &["serialNumber"]),
    ("2.5.4.6", &["C", "countryName"]),
    ("2.5.4.7", &["L", "localityName"]),
    ("2.5.4.8", &["ST", "S", "SP", "stateOrProvinceName"]),
    ("2.5.4.9", &["street", "streetAddress"]),
    ("2.5.4.10", &["O", "organizationName"]),
    ("2.5.4.11", &["OU", "organizationalUnitName"]),
    ("2.5.4.12", &["T", "title"]),
    ("2.5.4.42", &["GN", "givenName"]),
    ("0.9.2342.19200300.100.1.1", &["UID", "userId"]),
    ("0.9.2342.19200300.100.1.25", &["DC", "domainComponent"]),
    ("1.2.840.113549.1.9.1", &["Email", "E", "mail", "emailAddress"]),
];

/// Shows the attribute as [`parse_name`] reads it.
impl fmt::Display for DnAttribute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = TYPES.iter().find(|(oid, _)| *oid == self.oid);
        let word = known.and_then(|(_, names)| names.first().copied());
        let value = self.value.replace('\\', "\\\\").replace(',', "\\,");
        write!(f, "{}={value}", word.unwrap_or(&self.oid))
    }
}

/// Parses a name, `TYPE=VALUE, TYPE=VALUE`, in which every character of a value is literal; `\`
/// allows a comma.
///
/// # Errors
/// The fault of the text.
pub fn parse_name(text: &str) -> Result<Vec<DnAttribute>, DnFault> {
    let parts = parts(text);
    if parts.len() > ATTRIBUTES_MAX {
        return Err(DnFault::TooMany);
    }
    let attribute = |part| {
        let (oid, value) = type_and_value(part)?;
        Ok(DnAttribute { oid, value: unescaped(value).ok_or(DnFault::OpenEscape)? })
    };
    parts.into_iter().map(attribute).collect()
}

impl DnPattern {
    /// Parses `TYPE=VALUE, TYPE=VALUE`, or `*` for any name. Values are compared without regard to
    /// ASCII case; `\` makes the next character literal.
    ///
    /// # Errors
    /// The fault of the pattern.
    pub fn parse(text: &str) -> Result<Self, DnFault> {
        if text.trim() == "*" {
            return Ok(Self { attributes: Vec::new() });
        }
        let parts = parts(text);
        if parts.len() > ATTRIBUTES_MAX {
            return Err(DnFault::TooMany);
        }
        let attributes = parts.into_iter().map(attribute).collect::<Result<_, _>>()?;
        Ok(Self { attributes })
    }

    /// Whether the pattern matches the name. The values of the name must be in lower case.
    pub(super) fn matches(&self, name: &[DnAttribute]) -> bool {
        self.types().all(|oid| {
            let wanted = self.values(oid);
            let held = name.iter().filter(|attribute| attribute.oid == oid);
            wanted.clone().count() == held.clone().count()
                && wanted.zip(held).all(|(pattern, held)| pattern.matches(&held.value))
        })
    }

    /// Whether there is a name that matches both patterns.
    pub(super) fn overlaps(&self, other: &Self) -> bool {
        self.types().all(|oid| {
            let ours = self.values(oid);
            let theirs = other.values(oid);
            let our_count = ours.clone().count();
            let their_count = theirs.clone().count();
            their_count == 0
                || (our_count == their_count
                    && ours.zip(theirs).all(|(one, another)| one.overlaps(another)))
        })
    }

    pub(super) fn weight(&self) -> Weight {
        let weights = self.attributes.iter().map(|attribute| attribute.value.weight());
        weights.fold(Weight::default(), |sum, weight| sum + weight)
    }

    fn types(&self) -> impl Iterator<Item = &str> {
        self.attributes.iter().map(|attribute| attribute.oid.as_str())
    }

    fn values<'a>(&'a self, oid: &'a str) -> impl Iterator<Item = &'a Pattern> + Clone {
        let of_type = self.attributes.iter().filter(move |attribute| attribute.oid == oid);
        of_type.map(|attribute| &attribute.value)
    }
}

/// Splits the text at commas that do not follow a `\`.
fn parts(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut start = 0;
    let mut is_escaped = false;
    for (at, character) in text.char_indices() {
        match character {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            ',' => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

fn attribute(part: &str) -> Result<AttributePattern, DnFault> {
    let (oid, text) = type_and_value(part)?;
    let value = Pattern::parse(&text.to_ascii_lowercase()).ok_or(DnFault::OpenEscape)?;
    Ok(AttributePattern { oid, value })
}

/// Removes each `\` before another character; `None` if one ends the text.
fn unescaped(text: &str) -> Option<String> {
    let mut characters = text.chars();
    let mut value = String::new();
    while let Some(character) = characters.next() {
        value.push(if character == '\\' { characters.next()? } else { character });
    }
    Some(value)
}

/// The object identifier and the text of an attribute.
fn type_and_value(part: &str) -> Result<(String, &str), DnFault> {
    let part = part.trim();
    let Some((kind, text)) = part.split_once('=') else {
        return Err(DnFault::NoEquals(part.to_owned()));
    };
    let kind = kind.trim();
    let text = text.trim();
    if text.is_empty() {
        return Err(DnFault::NoValue(kind.to_owned()));
    }
    let oid = oid(kind).ok_or_else(|| DnFault::UnknownType(kind.to_owned()))?;
    Ok((oid, text))
}

fn oid(kind: &str) -> Option<String> {
    let is_called = |names: &[&str]| names.iter().any(|name| name.eq_ignore_ascii_case(kind));
    if let Some((oid, _)) = TYPES.iter().find(|(_, names)| is_called(names)) {
        return Some((*oid).to_owned());
    }
    let number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    (kind.contains('.') && kind.split('.').all(number)).then(|| kind.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(attributes: &[(&str, &str)]) -> Vec<DnAttribute> {
        let one = |(kind, value): &(&str, &str)| DnAttribute {
            oid: oid(kind).unwrap(),
            value: value.to_ascii_lowercase(),
        };
        attributes.iter().map(one).collect()
    }

    #[test]
    fn attributes_are_compared_one_by_one() {
        let alice = name(&[("C", "DE"), ("O", "Corp"), ("CN", "alice")]);
        for (pattern, wanted) in [
            ("CN=alice", true),
            ("cn=ALICE, o=corp", true),
            ("O=Corp,CN=al*", true),
            ("2.5.4.3=alice", true),
            ("commonName = alice", true),
            ("*", true),
            ("CN=*", true),
            ("OU=*", false),
            ("CN=alice, CN=alice", false),
            ("CN=alice, O=Other", false),
        ] {
            assert_eq!(DnPattern::parse(pattern).unwrap().matches(&alice), wanted, "{pattern}");
        }
    }

    #[test]
    fn a_value_cannot_pass_for_another_attribute_nor_a_second_one_go_unseen() {
        let pattern = DnPattern::parse("CN=alice, O=Corp").unwrap();
        assert!(!pattern.matches(&name(&[("CN", "alice, O=Corp")])));
        assert!(!pattern.matches(&name(&[("CN", "alice"), ("CN", "mallory"), ("O", "Corp")])));
        assert!(
            DnPattern::parse("CN=alice\\, O=Corp")
                .unwrap()
                .matches(&name(&[("CN", "alice, o=corp")]))
        );
    }

    #[test]
    fn a_name_has_literal_values_and_is_shown_as_it_is_read() {
        let text = "C=DE, O=Corp\\, Ltd, organizationalUnitName=*, 1.2.3=a\\\\b";
        let name = parse_name(text).unwrap();
        let values: Vec<_> =
            name.iter().map(|one| (one.oid.as_str(), one.value.as_str())).collect();
        let wanted =
            [("2.5.4.6", "DE"), ("2.5.4.10", "Corp, Ltd"), ("2.5.4.11", "*"), ("1.2.3", "a\\b")];
        assert_eq!(values, wanted);
        let shown: Vec<_> = name.iter().map(ToString::to_string).collect();
        assert_eq!(shown.join(", "), text.replace("organizationalUnitName", "OU"));
        assert_eq!(parse_name(&shown.join(", ")), Ok(name));
        assert_eq!(parse_name("CN=a, b"), Err(DnFault::NoEquals("b".into())));
        assert_eq!(parse_name("CN=a\\"), Err(DnFault::OpenEscape));
        assert_eq!(parse_name(&["CN=a"; 17].join(",")), Err(DnFault::TooMany));
    }

    #[test]
    fn invalid_patterns_are_reported() {
        for (text, wanted) in [
            ("alice", DnFault::NoEquals("alice".into())),
            ("CN=a,", DnFault::NoEquals(String::new())),
            ("XN=alice", DnFault::UnknownType("XN".into())),
            ("CN=", DnFault::NoValue("CN".into())),
            ("CN=a\\", DnFault::OpenEscape),
            (&["CN=a"; 17].join(","), DnFault::TooMany),
        ] {
            assert_eq!(DnPattern::parse(text), Err(wanted), "{text}");
        }
    }

    #[test]
    fn patterns_overlap_unless_an_attribute_tells_them_apart() {
        let overlap = |one: &str, another: &str| {
            let [one, another] = [one, another].map(|text| DnPattern::parse(text).unwrap());
            assert_eq!(one.overlaps(&another), another.overlaps(&one));
            one.overlaps(&another)
        };
        assert!(overlap("CN=alice", "OU=alice"));
        assert!(!overlap("CN=alice", "CN=carol"));
        assert!(overlap("CN=ab*", "CN=*cd"));
        assert!(!overlap("CN=ab*", "CN=cd*"));
        assert!(!overlap("CN=a, CN=b", "CN=a, OU=b"));
    }
}
