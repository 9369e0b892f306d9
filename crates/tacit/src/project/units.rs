//! Measures the CPU time of TLS on this machine, for `tacit project`. This module measures
//! handshakes, and the encryption and decryption of records. Records are measured with each cipher
//! suite that `tacit project` compares, and with the mean message length of each rule.

use std::collections::BTreeMap;
use std::time::Duration;

use tacit_core::policy::Suite;
use tacit_core::projection::{MeasuredCosts, MeasuredRuleCosts, RuleChange, UnitCosts};

use super::arguments::{NewSetting, ProjectArgs, SuiteArg};
use super::interval::KnownSuite;
use tacit_tls::measure::{self, CannotMeasure, RecordCosts};

/// Message length of a rule without messages: one full record.
const MESSAGE_BYTES: usize = 16 * 1024;

/// A measured combination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct MeasuredCase {
    suite: &'static str,
    message_bytes: usize,
}

/// The measurements so far.
pub(super) struct Units<'a> {
    costs: &'a MeasuredCosts,
    time: Duration,
    records: BTreeMap<MeasuredCase, RecordCosts>,
    handshake_us: Option<f64>,
}

impl<'a> Units<'a> {
    pub(super) fn new(costs: &'a MeasuredCosts, time: Duration) -> Self {
        Self { costs, time, records: BTreeMap::new(), handshake_us: None }
    }

    /// The changes that the command line requests for each rule; adds the assumptions made.
    pub(super) fn changes(
        &mut self,
        args: &ProjectArgs,
        suites: &[KnownSuite],
        assumptions: &mut Vec<String>,
    ) -> Result<BTreeMap<String, Vec<RuleChange>>, CannotMeasure> {
        let wanted = args.suite.map(SuiteArg::suite);
        let mut changes: BTreeMap<String, Vec<RuleChange>> = BTreeMap::new();
        for rule in &args.rules {
            let what = match rule.what {
                NewSetting::Permit => RuleChange::Permit,
                NewSetting::Engine => RuleChange::Engine,
                NewSetting::Tls => {
                    let suite = wanted.unwrap_or(Suite::DEFAULT[0]);
                    // `project` refuses a rule that does not exist.
                    let measured = self.costs.rule(&rule.name);
                    RuleChange::Tls(self.tls(measured, suite, assumptions)?)
                }
            };
            if what == RuleChange::Permit {
                assumptions.push(format!(
                    "rule {name}: the projection assumes that receiving and sending a byte costs \
                     the same CPU time with TLS and without. So the CPU time without TLS is the \
                     measured time minus the time for handshakes, encryption and decryption",
                    name = rule.name
                ));
            }
            changes.entry(rule.name.clone()).or_default().push(what);
        }
        let Some(wanted) = wanted else { return Ok(changes) };
        for rule in self.costs.rules.iter().filter(|rule| rule.is_rule() && rule.has_tls()) {
            let name = &rule.name;
            if changes.get(name).is_some_and(|changes| changes.contains(&RuleChange::Permit)) {
                continue;
            }
            let known = suites.iter().find(|known| known.rule == *name).map(|known| known.suite);
            let now = known.unwrap_or(Suite::DEFAULT[0]);
            if known.is_none() {
                assumptions.push(format!(
                    "rule {name}: tacit assumes the cipher suite {suite}, because no open \
                     connection of the rule shows which suite is used",
                    suite = now.name()
                ));
            }
            let change = self.suite(rule, now, wanted, assumptions)?;
            changes.entry(name.clone()).or_default().push(change);
        }
        Ok(changes)
    }

    /// The ratio of costs between two cipher suites.
    fn suite(
        &mut self,
        rule: &MeasuredRuleCosts,
        now: Suite,
        wanted: Suite,
        assumptions: &mut Vec<String>,
    ) -> Result<RuleChange, CannotMeasure> {
        let message_bytes = message_bytes(rule);
        let before = self.records(now, message_bytes)?;
        let after = self.records(wanted, message_bytes)?;
        assumptions.push(format!(
            "rule {name}: tacit has just measured on this machine how much CPU time TLS needs for \
             1 MB in messages of {message_bytes} bytes. With {suite}: {seal} for encryption, \
             {open} for decryption. With {new_suite}: {new_seal} for encryption, {new_open} for \
             decryption",
            name = rule.name,
            suite = now.name(),
            seal = us(before.seal_us_per_mb),
            open = us(before.open_us_per_mb),
            new_suite = wanted.name(),
            new_seal = us(after.seal_us_per_mb),
            new_open = us(after.open_us_per_mb),
        ));
        Ok(RuleChange::Suite {
            seal: after.seal_us_per_mb / before.seal_us_per_mb,
            open: after.open_us_per_mb / before.open_us_per_mb,
        })
    }

    /// The cost of TLS for a rule without TLS.
    fn tls(
        &mut self,
        rule: Option<&MeasuredRuleCosts>,
        suite: Suite,
        assumptions: &mut Vec<String>,
    ) -> Result<UnitCosts, CannotMeasure> {
        let message_bytes = rule.map_or(MESSAGE_BYTES, message_bytes);
        let records = self.records(suite, message_bytes)?;
        let name = rule.map_or("", |rule| &rule.name);
        assumptions.push(format!(
            "rule {name}: tacit has just measured on this machine how much CPU time TLS needs for \
             1 MB in messages of {message_bytes} bytes. With {suite}: {seal} for encryption, \
             {open} for decryption. The projection assumes that TLS does not change the \
             CPU time of receiving and sending",
            suite = suite.name(),
            seal = us(records.seal_us_per_mb),
            open = us(records.open_us_per_mb),
        ));
        let handshake_us = match UnitCosts::measured_handshake_us(self.costs) {
            Some(handshake_us) => {
                assumptions.push(format!(
                    "rule {name}: the projection assumes one handshake for each connection, and \
                     {time} for each handshake (the mean of all rules in this interval)",
                    time = us(handshake_us)
                ));
                handshake_us
            }
            None => self.measure_handshake(name, suite, assumptions)?,
        };
        let RecordCosts { seal_us_per_mb, open_us_per_mb } = records;
        Ok(UnitCosts { handshake_us, seal_us_per_mb, open_us_per_mb })
    }

    fn measure_handshake(
        &mut self,
        name: &str,
        suite: Suite,
        assumptions: &mut Vec<String>,
    ) -> Result<f64, CannotMeasure> {
        let handshake_us = match self.handshake_us {
            Some(known) => known,
            None => measure::server_handshake_us(suite, self.time)?,
        };
        self.handshake_us = Some(handshake_us);
        assumptions.push(format!(
            "rule {name}: the projection assumes one full handshake as server for each \
             connection. Each handshake takes {time}. Because no rule had a handshake in this \
             interval, tacit has just measured this time on this machine, with a P-256 certificate \
             and without I/O",
            time = us(handshake_us)
        ));
        Ok(handshake_us)
    }

    fn records(
        &mut self,
        suite: Suite,
        message_bytes: usize,
    ) -> Result<RecordCosts, CannotMeasure> {
        let case = MeasuredCase { suite: suite.name(), message_bytes };
        if let Some(known) = self.records.get(&case) {
            return Ok(*known);
        }
        let costs = measure::records(suite, message_bytes, self.time)?;
        self.records.insert(case, costs);
        Ok(costs)
    }
}

fn us(us: f64) -> String {
    format!("{us:.0} us")
}

/// The mean message length of a rule, rounded to two digits, so that similar rules share a
/// measurement.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the cast is safe: the mean is at least 1, and at most the total number of bytes"
)]
fn message_bytes(rule: &MeasuredRuleCosts) -> usize {
    let Some(mean) = rule.message_bytes().filter(|mean| *mean >= 1.0) else {
        return MESSAGE_BYTES;
    };
    let step = 10_f64.powf(mean.log10().floor() - 1.0).max(1.0);
    ((mean / step).round() * step) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use tacit_core::projection::{Components, CostsOwner};

    #[test]
    fn message_lengths_are_rounded_to_two_digits() {
        let of = |sent_bytes| {
            message_bytes(&MeasuredRuleCosts {
                name: "web".into(),
                owner: CostsOwner::Rule,
                connections: 1,
                handshakes: 0,
                messages: 1,
                sent_bytes,
                received_bytes: 0,
                cpu_us: Components::default(),
            })
        };
        assert_eq!(
            [0, 1, 7, 99, 512, 16_384, 1_048_576].map(of),
            [MESSAGE_BYTES, 1, 7, 99, 510, 16_000, 1_000_000]
        );
    }
}
