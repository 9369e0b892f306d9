//! Decodes one AT-TLS policy file to text, and parses the text into statements.

use super::lex::Document;
use super::text;
use crate::files::Input;
use crate::finding::{Findings, Origin};

/// The statements of one file; `None` if it is not text.
pub(super) fn read(input: &Input<'_>, findings: &mut Findings) -> Option<Document> {
    let at = Origin { file: input.file.into(), line: 1 };
    let decoded = match text::decode(input.bytes) {
        Ok(decoded) => decoded,
        Err(refused) => {
            findings.error(&at, refused.message, refused.fix);
            return None;
        }
    };
    if decoded.encoding != text::Encoding::Utf8 {
        let encoding = decoded.encoding;
        let message = if decoded.records {
            format!("the import read the file as {encoding}, in records of 80 bytes")
        } else {
            format!("the import read the file as {encoding}")
        };
        findings.info(&at, message);
    }
    if decoded.numbered {
        findings.info(&at, "the import ignored the line numbers in columns 73 to 80");
    }
    Some(Document::read(input.file, &decoded.text, findings))
}
