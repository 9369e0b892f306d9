//! `tacit test`: evaluates a policy for each flow of a test file, and compares the result with the
//! expected result. This command is for continuous integration (CI).
//!
//! `tacit test` and `tacit explain` use the same code to evaluate a flow. `tacit test` needs no
//! agent, certificates or keys, and makes no connections.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use serde::Serialize;
use serde_json::json;
use tacit_core::message_id::MessageId;
use tacit_core::policy::{
    Diagnostic, Explanation, POLICY_BYTES_MAX, Policy, SourcePosition, explain, explain_link,
};

use self::file::{Expectation, ExpectedRule, FlowTest, TestFile};
use crate::control::render::table::lay_out;
use crate::control::render::width::TextWidth;
use crate::exit::{EXIT_FAILURE, EXIT_OK, EXIT_POLICY, fail, fail_policy, pretty, print};
use crate::explain;
use crate::live::{ENCODING_FIX, directory_of, read_limited};
use crate::policy_file;

mod file;

/// The options of `tacit test`.
#[derive(Debug, Args)]
#[command(after_help = "\
Example of FILE:
  policy = \"policy.toml\"            # relative to the directory of FILE
  [[flow]]
  name    = \"psql reaches the database\"
  remote  = \"db.corp.example:5432\"
  program = \"/usr/bin/psql\"
  expect  = \"db\"                    # the name of a rule, or \"denied\"
  action  = \"tls\"                   # or \"permit\" or \"deny\"

Exit status: 0 if every decision is as expected, 1 if a decision differs, 78 if a file has errors.
Manual: tacit(1); the project has an example in etc/flows.toml")]
pub struct TestArgs {
    /// File with flows and their expected decisions
    file: PathBuf,
    /// Test this policy instead of the one in FILE
    #[arg(short, long, value_name = "FILE")]
    policy: Option<PathBuf>,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
#[must_use]
pub fn run(args: &TestArgs) -> ExitCode {
    match test(args) {
        Ok(report) => {
            let code = if report.unexpected == 0 { EXIT_OK } else { EXIT_FAILURE };
            print(
                if args.json {
                    pretty(&json!(report))
                } else {
                    report.text(TextWidth::of_stdout())
                },
                code,
            )
        }
        Err(TestError::InFile(errors)) => fail_policy(errors),
        Err(TestError::Other(id, error)) => fail(id, error, EXIT_POLICY),
    }
}

/// Why the flows cannot be tested.
enum TestError {
    /// Errors in the file of flows or in the policy, each with its identifier and position.
    InFile(String),
    /// Another error.
    Other(MessageId, String),
}

fn test(args: &TestArgs) -> Result<TestReport, TestError> {
    let name = args.file.display().to_string();
    let text = read_flows(&args.file).map_err(|reason| {
        TestError::Other(MessageId("test-file-unreadable"), format!("cannot read {name}: {reason}"))
    })?;
    let in_file = |errors| TestError::InFile(render(errors, &text, &name));
    let file = TestFile::parse(&text).map_err(in_file)?;
    let of_file = file.policy.as_ref().map(|path| directory_of(&args.file).join(path));
    let path = args.policy.clone().or(of_file).or_else(|| policy_file::named(None));
    let path = path.ok_or_else(|| {
        let text = format!(
            "{name} has no `policy`\n    \
             fix: add policy = \"FILE\" as its first line, or use --policy FILE"
        );
        TestError::Other(MessageId("no-policy"), text)
    })?;
    let policy = explain::read(&path).map_err(TestError::InFile)?;
    let unknown = file.unknown_rules(&policy);
    if !unknown.is_empty() {
        return Err(in_file(unknown));
    }
    Ok(TestReport::of(&name, &path, &policy, &file))
}

/// Reads a file of flows. If this fails, returns the reason and the fix.
fn read_flows(path: &Path) -> Result<String, String> {
    let read = File::open(path).and_then(read_limited).map_err(|error| {
        format!(
            "{error}\n    \
             fix: give the path of a file with flows; `tacit test --help` has an example"
        )
    })?;
    let text = read.map_err(|SourcePosition { line, column, .. }| {
        format!("the byte at {line}:{column} is not UTF-8\n    fix: {ENCODING_FIX}")
    })?;
    if text.len() > POLICY_BYTES_MAX {
        return Err(format!(
            "the file has more than {POLICY_BYTES_MAX} bytes\n    fix: divide the flows into \
             several files"
        ));
    }
    Ok(text)
}

fn render(mut diagnostics: Vec<Diagnostic>, text: &str, file: &str) -> String {
    Diagnostic::quote(&mut diagnostics, text);
    let lines: Vec<_> = diagnostics.iter().map(|one| one.render(file)).collect();
    lines.join("\n")
}

/// The results of all flows.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
struct TestReport {
    version: u32,
    file: String,
    policy: PathBuf,
    flows: Vec<FlowResult>,
    as_expected: usize,
    unexpected: usize,
}

/// The result of one flow.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
struct FlowResult {
    line: usize,
    name: String,
    expected: ExpectedJson,
    found: Found,
    as_expected: bool,
    /// The reasons for an unexpected decision.
    why: Vec<String>,
}

/// The expected decision. A value is `null` if the test does not check it.
#[derive(Debug, Serialize)]
struct ExpectedJson {
    rule: Option<String>,
    action: Option<&'static str>,
}

/// The actual decision.
#[derive(Debug, Serialize)]
struct Found {
    /// The deciding rule; `None` if no rule matches.
    rule: Option<String>,
    /// The line of the deciding rule in the policy.
    line: Option<usize>,
    action: &'static str,
}

impl TestReport {
    fn of(file: &str, path: &Path, policy: &Policy, tests: &TestFile) -> Self {
        let flows: Vec<_> = tests.flows.iter().map(|test| FlowResult::of(policy, test)).collect();
        let as_expected = flows.iter().filter(|flow| flow.as_expected).count();
        Self {
            version: 1,
            file: file.to_owned(),
            policy: path.to_owned(),
            as_expected,
            unexpected: flows.len() - as_expected,
            flows,
        }
    }

    fn text(&self, width: TextWidth) -> String {
        let headings = ["RESULT", "LINE", "FLOW", "EXPECTED", "FOUND"].map(str::to_owned).to_vec();
        let mut rows = vec![headings];
        for flow in &self.flows {
            let result = if flow.as_expected { "ok" } else { "FAILED" };
            rows.push(vec![
                result.to_owned(),
                flow.line.to_string(),
                flow.name.clone(),
                flow.expected.text(),
                flow.found.text(),
            ]);
        }
        let mut out = lay_out(&rows, width.wrapped());
        for flow in self.flows.iter().filter(|flow| !flow.as_expected) {
            let FlowResult { line, name, expected, found, why, .. } = flow;
            let Self { file, .. } = self;
            let [expected, found] = [expected.text(), found.text()];
            out += &format!("\n{file}:{line}: {name}: expected {expected}; found {found}\n");
            for line in why {
                out += &format!("    {line}\n");
            }
        }
        let count = self.flows.len();
        let flows = if count == 1 { "flow" } else { "flows" };
        let Self { as_expected, unexpected, .. } = self;
        out += &format!("\n{count} {flows}: {as_expected} as expected, {unexpected} different\n");
        out
    }
}

impl FlowResult {
    fn of(policy: &Policy, test: &FlowTest) -> Self {
        let explanation = match &test.link {
            None => explain(policy, &test.flow),
            Some(link) => explain_link(policy, link, &test.flow),
        };
        let as_expected = test.expectation.is_met(&explanation);
        let why = if as_expected { Vec::new() } else { why(policy, test, &explanation) };
        let rule = match &test.expectation.rule {
            None => None,
            Some(ExpectedRule::Denied) => Some("denied".to_owned()),
            Some(ExpectedRule::Rule { name, .. }) => Some(name.clone()),
        };
        let decision = explanation.decision;
        Self {
            line: test.line,
            name: test.name.clone(),
            expected: ExpectedJson { rule, action: test.expectation.action },
            found: Found {
                rule: decision.as_ref().map(|decision| decision.rule.clone()),
                line: decision.map(|decision| decision.line),
                action: explanation.verdict,
            },
            as_expected,
            why,
        }
    }
}

/// Explains, line by line, why the decision differs from the expected decision.
fn why(policy: &Policy, test: &FlowTest, explanation: &Explanation) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(ExpectedRule::Rule { name, .. }) = &test.expectation.rule {
        let missed = explanation.earlier.iter().find(|missed| missed.rule == *name);
        match (missed, &explanation.decision) {
            (Some(missed), _) => lines.push(format!(
                "line {line}: rule `{name}` does not match: {why}",
                line = missed.line,
                why = missed.why
            )),
            (None, Some(decision)) if decision.rule != *name => {
                let line = line_of(policy, name);
                lines.push(format!(
                    "line {line}: rule `{name}` comes after the rule that applies to the flow"
                ));
            }
            _ => {}
        }
    }
    match &explanation.decision {
        Some(decision) => lines.push(format!(
            "line {}: rule `{}` matches: {}",
            decision.line, decision.rule, explanation.verdict
        )),
        None => {
            // The last evaluated rule may match without being applied.
            let last = explanation.earlier.last().filter(|last| {
                !lines.iter().any(|line| line.starts_with(&format!("line {}:", last.line)))
            });
            lines.extend(last.map(|last| {
                format!(
                    "line {line}: rule `{rule}` does not match: {why}",
                    line = last.line,
                    rule = last.rule,
                    why = last.why
                )
            }));
            lines.push("no rule matches: deny".to_owned());
        }
    }
    lines
}

/// Returns the line of the policy on which a rule begins.
fn line_of(policy: &Policy, name: &str) -> usize {
    let of_links = || policy.link_rules.iter().find(|rule| rule.name == name);
    let position = policy.rule(name).map(|rule| rule.position);
    position.or_else(|| of_links().map(|rule| rule.position)).map_or(0, |position| position.line)
}

impl Expectation {
    fn is_met(&self, explanation: &Explanation) -> bool {
        let found = explanation.decision.as_ref().map(|decision| decision.rule.as_str());
        let rule_is_met = match &self.rule {
            None => true,
            Some(ExpectedRule::Denied) => explanation.verdict == "deny",
            Some(ExpectedRule::Rule { name, .. }) => found == Some(name),
        };
        rule_is_met && self.action.is_none_or(|action| action == explanation.verdict)
    }
}

impl ExpectedJson {
    fn text(&self) -> String {
        match (&self.rule, self.action) {
            (Some(rule), Some(action)) => format!("{rule}: {action}"),
            (Some(rule), None) => rule.clone(),
            (None, action) => action.unwrap_or_default().to_owned(),
        }
    }
}

impl Found {
    fn text(&self) -> String {
        match &self.rule {
            Some(rule) => format!("{rule}: {}", self.action),
            None => format!("no rule: {}", self.action),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tacit_core::policy::parse;

    const POLICY: &str = r#"version = 1
[[rule]]
name = "db"
direction = "outbound"
remote = ["10.7.0.0/16", "*.corp.example"]
remote-ports = [5432, "6000-6003"]
program = "/usr/bin/psql"
tls = { trust = "system" }
[[rule]]
name = "guests"
direction = "outbound"
remote = "10.9.0.0/16"
deny = true
[[rule]]
name = "web"
listen = "0.0.0.0:8443"
connect = "127.0.0.1:8080"
permit = true
"#;

    fn report(flows: &str) -> TestReport {
        let policy = parse(POLICY).policy.unwrap();
        let file = TestFile::parse(flows).unwrap();
        assert_eq!(file.unknown_rules(&policy), []);
        TestReport::of("flows.toml", Path::new("policy.toml"), &policy, &file)
    }

    #[test]
    fn each_flow_is_compared_with_its_expected_decision() {
        let report = report(
            r#"
[[flow]]
remote = "db.corp.example:5432"
program = "/usr/bin/psql"
expect = "db"
action = "tls"
[[flow]]
name = "ports"
remote = "10.7.0.9"
ports = [5432, "6000-6002"]
program = "/usr/bin/psql"
expect = "db"
[[flow]]
remote = "10.9.0.1:22"
expect = "denied"
[[flow]]
remote = "192.0.2.1:22"
expect = "denied"
[[flow]]
direction = "inbound"
listen = "0.0.0.0:8443"
remote = "192.0.2.1"
action = "permit"
"#,
        );
        assert_eq!(
            (report.as_expected, report.unexpected),
            (8, 0),
            "{}",
            report.text(TextWidth::Whole)
        );
        let names: Vec<_> = report.flows.iter().map(|flow| flow.name.as_str()).collect();
        assert_eq!(names[..3], ["db.corp.example:5432", "ports, port 5432", "ports, port 6000"]);
        assert!(report.text(TextWidth::Whole).ends_with("\n8 flows: 8 as expected, 0 different\n"));
    }

    #[test]
    fn requests_of_a_link_are_compared_with_its_rules() {
        let rules = "[link.guest]\n[[rule]]\nname = \"out\"\nlink = \"guest\"\n\
             direction = \"outbound\"\nremote = \"10.7.0.0/16\"\npermit = true\n\
             [[rule]]\nname = \"in\"\nlink = \"guest\"\ndirection = \"inbound\"\n\
             local = \"192.0.2.1\"\nlocal-ports = 8080\npermit = true\n";
        let policy = parse(&format!("{POLICY}{rules}")).policy.unwrap();
        let file = TestFile::parse(
            "[[flow]]\nlink = \"guest\"\nremote = \"10.7.0.9:1\"\nexpect = \"out\"\n\
             [[flow]]\nlink = \"guest\"\nremote = \"10.9.0.9:1\"\nexpect = \"denied\"\n\
             [[flow]]\nlink = \"other\"\nremote = \"10.7.0.9:1\"\nexpect = \"denied\"\n\
             [[flow]]\nlink = \"guest\"\ndirection = \"inbound\"\nlocal = \"192.0.2.1:8080\"\n\
             expect = \"in\"\n",
        );
        let file = file.unwrap();
        assert_eq!(file.unknown_rules(&policy), []);
        let report = TestReport::of("flows.toml", Path::new("policy.toml"), &policy, &file);
        assert_eq!(
            (report.as_expected, report.unexpected),
            (4, 0),
            "{}",
            report.text(TextWidth::Whole)
        );
        assert_eq!(report.flows[3].name, "192.0.2.1:8080");
        let owned = "[[flow]]\nlink = \"guest\"\nremote = \"10.7.0.9:1\"\nuser = \"a\"\n\
             expect = \"out\"\n";
        let errors = TestFile::parse(owned).unwrap_err();
        assert!(errors[0].message.contains("compare only"), "{errors:?}");
    }

    #[test]
    fn an_unexpected_decision_is_explained() {
        let report = report(
            "[[flow]]\nname = \"a\"\nremote = \"10.7.0.9:5432\"\nprogram = \"/bin/sh\"\n\
             expect = \"db\"\n\
             [[flow]]\nname = \"b\"\nremote = \"10.9.0.9:1\"\nexpect = \"guests\"\n\
             action = \"permit\"\n",
        );
        let text = report.text(TextWidth::Whole);
        assert_eq!(report.unexpected, 2, "{text}");
        let wanted = "flows.toml:1: a: expected db; found no rule: deny\n    \
                      line 2: rule `db` does not match: program /bin/sh does not match \
                      /usr/bin/psql\n";
        assert!(text.contains(wanted), "{text}");
        let wanted = "flows.toml:6: b: expected guests: permit; found guests: deny\n    \
                      line 9: rule `guests` matches: deny\n";
        assert!(text.contains(wanted), "{text}");
        assert!(text.ends_with("\n2 flows: 0 as expected, 2 different\n"), "{text}");
    }
}
