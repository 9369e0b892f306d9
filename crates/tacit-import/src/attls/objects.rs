//! Converts the tree of parsed statements to typed objects (rules, actions, address groups), and
//! checks the value of each attribute.
//!
//! Objects are checked even if no rule uses them. A misspelt keyword is an error, and its block is
//! still checked. For this check, the most similar keyword takes the place of the misspelt one.

use std::collections::{BTreeMap, BTreeSet};

use super::lex::Node;
use super::values;
use super::words::Kind::{IpAddr, IpAddrGroup, IpAddrSet, PortGroup, PortRange};
use super::words::{Attribute, Form, Kind};
use crate::finding::{Findings, Origin};
use tacit_core::policy::text::{nearest_word, word_list};

/// One statement.
#[derive(Clone, Debug)]
pub(super) struct Object {
    /// Its kind.
    pub kind: Kind,
    /// Its name; empty for a block without one.
    pub name: String,
    /// Its line.
    pub at: Origin,
    /// Its fields, in order.
    pub fields: Vec<Field>,
    /// Its fields that belong in one of its parts.
    pub misplaced: Vec<Misplaced>,
    /// Attributes with invalid values, which were reported.
    pub rejected: Vec<&'static str>,
}

/// A field that belongs in a part of the statement that has it.
#[derive(Clone, Debug)]
pub(super) struct Misplaced {
    /// The kind of that part.
    pub part: Kind,
    /// The field.
    pub field: Field,
}

/// One attribute with its value.
#[derive(Clone, Debug)]
pub(super) struct Field {
    /// The attribute.
    pub attribute: &'static Attribute,
    /// Its value in the spelling of the manual; the case of a name is kept.
    pub value: String,
    /// The statement inside, for a block.
    pub block: Option<Object>,
    /// Its line.
    pub at: Origin,
}

impl Object {
    /// The last field of an attribute.
    #[must_use]
    pub(super) fn field(&self, word: &str) -> Option<&Field> {
        self.fields.iter().rfind(|field| field.attribute.word == word)
    }

    /// The effective fields, in order: if an attribute is repeated and is not a list, only the
    /// last.
    pub(super) fn counted(&self) -> impl Iterator<Item = &Field> {
        let last = |at: usize, field: &Field| {
            let mut later = self.fields.iter().skip(at + 1);
            !later.any(|later| later.attribute == field.attribute)
        };
        let fields = self.fields.iter().enumerate();
        fields
            .filter(move |(at, field)| field.attribute.repeats || last(*at, field))
            .map(|(_, f)| f)
    }

    /// All fields of an attribute.
    pub(super) fn all<'o>(&'o self, word: &str) -> impl Iterator<Item = &'o Field> {
        self.fields.iter().filter(move |field| field.attribute.word == word)
    }

    /// Whether it has the same fields, whatever its line.
    fn same(&self, other: &Self) -> bool {
        self.fields.len() == other.fields.len()
            && self.misplaced.len() == other.misplaced.len()
            && self.fields.iter().zip(&other.fields).all(|(a, b)| a.same(b))
            && self.misplaced.iter().zip(&other.misplaced).all(|(a, b)| a.field.same(&b.field))
    }
}

impl Field {
    fn same(&self, other: &Self) -> bool {
        let blocks = match (&self.block, &other.block) {
            (Some(a), Some(b)) => a.same(b),
            (a, b) => a.is_none() && b.is_none(),
        };
        self.attribute.word == other.attribute.word && self.value == other.value && blocks
    }
}

/// The kind and name of a statement, which identify it.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ObjectKey {
    kind: Kind,
    name: String,
}

/// A reference to a statement by kind and name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Reference<'o> {
    kind: Kind,
    name: &'o str,
}

impl<'o> Reference<'o> {
    /// The reference to the statement of this kind and name.
    pub(super) fn to(kind: Kind, name: &'o str) -> Self {
        Self { kind, name }
    }
}

/// All named statements of all files.
#[derive(Debug, Default)]
pub(super) struct Objects {
    by_name: BTreeMap<ObjectKey, Object>,
}

impl Objects {
    /// Reads the statements outside of all braces; all files share one namespace.
    #[must_use]
    pub(super) fn read<'n>(
        nodes: impl IntoIterator<Item = &'n Node>,
        findings: &mut Findings,
    ) -> Self {
        let mut objects = Self::default();
        for node in nodes {
            let Some(kind) = kind(node, findings) else { continue };
            if node.block.is_none() {
                let message =
                    format!("the statement `{statement}` needs a block", statement = kind.word());
                findings.error(
                    &node.at,
                    message,
                    "on the lines below, write `{`, the attributes of the statement, and `}`",
                );
                continue;
            }
            // There is only one filter policy, and it has no name.
            let unnamed = node.value.is_empty() && kind == Kind::FilterPolicy;
            if !unnamed && (node.value.is_empty() || node.value.contains(char::is_whitespace)) {
                let message =
                    format!("`{keyword}` needs a name without spaces", keyword = node.keyword);
                findings.error(&node.at, message, format!("write `{} NAME`", kind.word()));
            }
            let object = object(kind, node, findings);
            objects.insert(object, findings);
        }
        objects.check_references(findings);
        objects
    }

    /// The statement of this kind and name.
    #[must_use]
    pub(super) fn find(&self, kind: Kind, name: &str) -> Option<&Object> {
        self.by_name.get(&ObjectKey { kind, name: name.to_owned() })
    }

    /// All statements of a kind, ordered by name.
    pub(super) fn of_kind(&self, kind: Kind) -> impl Iterator<Item = &Object> {
        self.by_name.values().filter(move |object| object.kind == kind)
    }

    /// Reports statements that neither the rules nor the statements in `used` lead to.
    pub(super) fn report_unused<'o>(
        &'o self,
        used: impl Iterator<Item = Reference<'o>>,
        findings: &mut Findings,
    ) {
        let mut reached: BTreeSet<Reference<'_>> = used.collect();
        reached.extend(self.of_kind(Kind::Rule).map(|rule| Reference::to(Kind::Rule, &rule.name)));
        let mut open: Vec<&Object> =
            reached.iter().filter_map(|to| self.find(to.kind, to.name)).collect();
        while let Some(object) = open.pop() {
            for field in &object.fields {
                open.extend(&field.block);
                if let Form::Ref(kind) = field.attribute.form
                    && reached.insert(Reference::to(kind, &field.value))
                {
                    open.extend(self.find(kind, &field.value));
                }
            }
        }
        for (ObjectKey { kind, name }, object) in &self.by_name {
            if !reached.contains(&Reference::to(*kind, name)) {
                findings
                    .info(&object.at, format!("no rule uses {kind} `{name}`", kind = kind.word()));
            }
        }
    }

    fn insert(&mut self, object: Object, findings: &mut Findings) {
        let key = ObjectKey { kind: object.kind, name: object.name.clone() };
        let Some(first) = self.by_name.get(&key) else {
            self.by_name.insert(key, object);
            return;
        };
        let word = object.kind.word();
        let name = &object.name;
        if first.same(&object) {
            let message =
                format!("{word} `{name}` repeats the definition at {first}", first = first.at);
            findings.info(&object.at, message);
        } else {
            let message =
                format!("{word} `{name}` has another definition at {first}", first = first.at);
            findings.error(&object.at, message, "rename or remove one of the two definitions");
        }
    }

    fn check_references(&self, findings: &mut Findings) {
        let mut open: Vec<&Object> = self.by_name.values().collect();
        while let Some(object) = open.pop() {
            for field in &object.fields {
                open.extend(&field.block);
                let Form::Ref(kind) = field.attribute.form else { continue };
                if self.find(kind, &field.value).is_some() || field.value.is_empty() {
                    continue;
                }
                let known: Vec<&str> = self.of_kind(kind).map(|one| one.name.as_str()).collect();
                let message =
                    format!("there is no {kind} `{name}`", kind = kind.word(), name = field.value);
                let fix = match nearest_word(&field.value, &known) {
                    Some(name) => format!("did you mean `{name}`?"),
                    None => format!(
                        "add this statement, or remove `{reference}`",
                        reference = field.attribute.word
                    ),
                };
                findings.error(&field.at, message, fix);
            }
        }
    }
}

/// The kind of the statement that begins here. A misspelled keyword counts as the known one, after
/// an error.
fn kind(node: &Node, findings: &mut Findings) -> Option<Kind> {
    if let Some(kind) = Kind::of(&node.keyword) {
        return Some(kind);
    }
    let keyword = &node.keyword;
    let homes: Vec<&str> = Kind::ALL
        .iter()
        .filter(|kind| kind.attribute(keyword).is_some())
        .map(|k| k.word())
        .collect();
    if !homes.is_empty() {
        let message = format!("the attribute `{keyword}` is outside of all blocks");
        findings.error(
            &node.at,
            message,
            format!("move the attribute to {statements}", statements = word_list(&homes)),
        );
        return None;
    }
    let known = Kind::ALL.map(Kind::word);
    let near = nearest_word(keyword, &known);
    let fix = match near {
        Some(word) => format!("did you mean `{word}`?"),
        None => {
            format!("write one of these statements: {statements}", statements = word_list(&known))
        }
    };
    findings.error(&node.at, format!("unknown statement `{keyword}`"), fix);
    near.and_then(Kind::of)
}

/// Reads a statement with everything inside it.
pub(super) fn object(kind: Kind, node: &Node, findings: &mut Findings) -> Object {
    let mut object = Object {
        kind,
        name: node.value.clone(),
        at: node.at.clone(),
        fields: Vec::new(),
        misplaced: Vec::new(),
        rejected: Vec::new(),
    };
    for node in node.block.iter().flatten() {
        match owner_of(kind, node, findings) {
            Some(AttributeOwner::This(attribute)) => {
                let Some(field) = field(kind, attribute, node, findings) else {
                    object.rejected.push(attribute.word);
                    continue;
                };
                if !attribute.repeats
                    && let Some(first) = object.field(attribute.word)
                {
                    report_repeated(kind, &field, first, findings);
                }
                object.fields.push(field);
            }
            Some(AttributeOwner::Part(part, attribute)) => {
                let Some(field) = field(part, attribute, node, findings) else { continue };
                let message = format!(
                    "`{attribute}` is not an attribute of {outer}; the import treats it as an \
                     attribute of the {inner} in this block",
                    attribute = attribute.word,
                    outer = kind.word(),
                    inner = part.word()
                );
                findings.changed(&field.at, message, "move the attribute into the inner block");
                object.misplaced.push(Misplaced { part, field });
            }
            None => {}
        }
    }
    let has_content = !object.fields.is_empty() || findings.has_errors();
    if !has_content && matches!(kind, IpAddr | IpAddrSet | IpAddrGroup | PortRange | PortGroup) {
        let message = format!(
            "{block} is empty, and an empty block would match everything",
            block = kind.word()
        );
        findings.error(&object.at, message, "add a value, or remove the block");
    }
    object
}

fn report_repeated(owner: Kind, field: &Field, first: &Field, findings: &mut Findings) {
    let word = field.attribute.word;
    // If an action repeats a block or reference, the code that chooses one of them reports it.
    let is_action = matches!(owner, Kind::Group | Kind::Environment | Kind::Connection | Kind::Gsk);
    if is_action && matches!(field.attribute.form, Form::Block(_) | Form::Ref(_)) {
        return;
    }
    let message = if field.attribute.is_secret() {
        format!("`{word}` is set twice; the last value is used")
    } else if field.value == first.value {
        format!("`{word}` is set twice, both times to `{value}`", value = field.value)
    } else {
        format!(
            "`{word}` is set twice: `{used}` is used, `{ignored}` is ignored",
            used = field.value,
            ignored = first.value
        )
    };
    findings.changed(
        &field.at,
        message,
        format!("remove one of the two lines; the other line is at {other}", other = first.at),
    );
}

/// The object that an attribute belongs to: the present one, or a part of it.
enum AttributeOwner {
    This(&'static Attribute),
    Part(Kind, &'static Attribute),
}

fn owner_of(kind: Kind, node: &Node, findings: &mut Findings) -> Option<AttributeOwner> {
    let keyword = node.keyword.as_str();
    if let Some(attribute) = kind.attribute(keyword) {
        return Some(AttributeOwner::This(attribute));
    }
    let mut parts: Vec<Kind> = kind.parts().filter(|p| p.attribute(keyword).is_some()).collect();
    if parts.len() == 1
        && let Some(part) = parts.pop()
    {
        return part.attribute(keyword).map(|attribute| AttributeOwner::Part(part, attribute));
    }
    let words: Vec<&str> = kind.attributes().map(|attribute| attribute.word).collect();
    let owners = Kind::ALL.iter().filter(|kind| kind.attribute(keyword).is_some());
    let homes: Vec<&str> = owners.map(|kind| kind.word()).collect();
    let near = nearest_word(keyword, &words);
    let (message, fix) = match near {
        _ if !homes.is_empty() => (
            format!("`{keyword}` is not an attribute of {statement}", statement = kind.word()),
            format!("move the attribute to {statements}", statements = word_list(&homes)),
        ),
        Some(word) => (
            format!("unknown attribute `{keyword}` in {statement}", statement = kind.word()),
            format!("did you mean `{word}`?"),
        ),
        None => (
            format!("unknown attribute `{keyword}` in {statement}", statement = kind.word()),
            "remove the attribute, or correct its spelling according to the AT-TLS manual"
                .to_owned(),
        ),
    };
    findings.error(&node.at, message, fix);
    near.filter(|_| homes.is_empty())
        .and_then(|word| kind.attribute(word))
        .map(AttributeOwner::This)
}

/// Reads a value; `None` after an error.
fn field(
    owner: Kind,
    attribute: &'static Attribute,
    node: &Node,
    findings: &mut Findings,
) -> Option<Field> {
    let word = attribute.word;
    let at = node.at.clone();
    match attribute.form {
        Form::Block(kind) => {
            if node.block.is_none() {
                let fix = format!("write a block in braces, or `{word}Ref NAME`");
                findings.error(&at, format!("`{word}` needs a block"), fix);
                return None;
            }
            let block = object(kind, node, findings);
            return Some(Field { attribute, value: node.value.clone(), block: Some(block), at });
        }
        Form::Ref(kind) if node.block.is_some() => {
            let message = format!("`{word}` takes a name, not a block");
            let fix = format!(
                "either write `{kind}` before the block, or define the block elsewhere and write \
                 `{word} NAME`",
                kind = kind.word()
            );
            findings.error(&at, message, fix);
            let is_meant = |one: &&Attribute| one.form == Form::Block(kind);
            let meant = owner.attributes().find(is_meant)?;
            return field(owner, meant, node, findings);
        }
        _ if node.block.is_some() => {
            findings.error(&at, format!("`{word}` takes a value, not a block"), "remove the block");
            return None;
        }
        _ => {}
    }
    if node.value.is_empty() {
        findings.error(&at, format!("`{word}` has no value"), "add a value, or remove the line");
        return None;
    }
    let value = value(attribute, node, findings)?;
    Some(Field { attribute, value, block: None, at })
}

/// The value in the spelling of the manual.
fn value(attribute: &Attribute, node: &Node, findings: &mut Findings) -> Option<String> {
    let word = attribute.word;
    let text = node.value.as_str();
    let choices: &[&str] = match attribute.form {
        Form::Switch => &["On", "Off"],
        Form::Choice(words) => words,
        Form::Number(min, max) => {
            let number = text.parse::<u32>().ok().filter(|number| (min..=max).contains(number));
            if number.is_none() {
                let message = format!("`{word}` cannot be `{text}`");
                findings.error(&node.at, message, format!("write a number from {min} to {max}"));
            }
            return number.map(|number| number.to_string());
        }
        Form::Ref(_) if text.contains(char::is_whitespace) => {
            findings.error(
                &node.at,
                format!("`{word}` takes one name"),
                "write each name on its own line",
            );
            return None;
        }
        Form::Address => return values::address_word(word, node, findings),
        Form::Ports => return values::ports_word(word, node, findings),
        Form::Text | Form::Ref(_) | Form::Block(_) => return Some(text.to_owned()),
    };
    if let Some(choice) = choices.iter().find(|choice| choice.eq_ignore_ascii_case(text)) {
        return Some((*choice).to_owned());
    }
    let fix = match nearest_word(text, choices) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("write one of {}", word_list(choices)),
    };
    findings.error(&node.at, format!("`{word}` cannot be `{text}`"), fix);
    None
}
