//! Fuzzes the imports of other products' configurations. The result of an import must be a policy
//! that tacit accepts, or an error.

use std::cell::Cell;

use tacit_import::{Files, Findings, InMemory, Input};
use tacit_import::{attls as at_tls, stunnel as of_stunnel};

/// A map file with the names of the seeds, so that some seeds are imported completely.
const MAP: &str = "[job]\n\"CICS*\" = { any = true }\n[user]\n\"WEBSRV\" = \"web\"\n\
    [keyring.\"WEB/RING\"]\ncert = \"a\"\nkey = \"b\"\nca = \"c\"\n";

/// More than the deepest nesting of files, but few enough for a short run.
const READS_MAX: u32 = 16;

/// A policy of AT-TLS, with a map file for the names of the seeds.
pub(crate) fn attls(input: &[u8]) {
    let ends = input.iter().filter(|b| matches!(b, b'\n' | 0x15 | 0x25)).count();
    // Or a file with records of 80 bytes.
    let lines = ends.max(input.len() / 80) + 1;
    let found = import(input, MAP.as_bytes());
    for finding in &found {
        assert!((1..=lines).contains(&finding.line), "{}", finding.render());
    }
}

/// A map file, with a policy that uses all kinds of entries.
pub(crate) fn map(input: &[u8]) {
    const POLICY: &str = include_str!("../../seeds/attls/server.policy");
    import(POLICY.as_bytes(), input);
}

fn import(policy: &[u8], map: &[u8]) -> Vec<tacit_import::Finding> {
    let mut findings = Findings::default();
    let file = Input { file: "p", bytes: policy };
    let map = Input { file: "m", bytes: map };
    let policies = ["p".to_owned()];
    let request =
        at_tls::AttlsRequest { policies: &policies, map: Some(map), ..Default::default() };
    let imported = at_tls::import(&request, &InMemory(&[file]), &mut findings);
    check(imported.policy.is_some(), findings)
}

/// IP filter rules, with TLS rules.
pub(crate) fn filters(input: &[u8]) {
    const TLS: &str = "TTLSRule t\n{\nLocalPortRange 22\nDirection Both\nTTLSGroupActionRef g\n}\n\
        TTLSGroupAction g\n{\nTTLSEnabled Off\n}\n";
    let mut findings = Findings::default();
    let tls = Input { file: "p", bytes: TLS.as_bytes() };
    let file = Input { file: "i", bytes: input };
    let policies = ["p".to_owned()];
    let filters = ["i".to_owned()];
    let request =
        at_tls::AttlsRequest { policies: &policies, filters: &filters, ..Default::default() };
    let imported = at_tls::import(&request, &InMemory(&[tls, file]), &mut findings);
    check(imported.policy.is_some(), findings);
}

/// A configuration that may include itself and its directory several times.
pub(crate) fn stunnel(input: &[u8]) {
    struct One<'i> {
        bytes: &'i [u8],
        reads: Cell<u32>,
    }
    impl Files for One<'_> {
        fn read(&self, _: &str) -> Result<Vec<u8>, String> {
            self.reads.set(self.reads.get() + 1);
            match self.reads.get() <= READS_MAX {
                true => Ok(self.bytes.to_vec()),
                false => Err("no such file".to_owned()),
            }
        }
        fn names(&self, _: &str) -> Result<Vec<String>, String> {
            Ok(vec!["0a1b2c3d.0".to_owned()])
        }
    }
    let mut findings = Findings::default();
    let options = of_stunnel::StunnelOptions::default();
    let files = One { bytes: input, reads: Cell::new(0) };
    let policy = of_stunnel::import(&["f".to_owned()], &files, &options, &mut findings);
    check(policy.is_some(), findings);
}

/// Checks that there is a policy or an error, and that every diagnostic is one line.
fn check(is_imported: bool, findings: Findings) -> Vec<tacit_import::Finding> {
    assert_eq!(is_imported, !findings.has_errors());
    let found = findings.finish();
    for finding in &found {
        assert!(!finding.message.contains(char::is_control), "{finding:?}");
    }
    found
}
