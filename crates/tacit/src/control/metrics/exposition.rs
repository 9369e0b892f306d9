//! Writes metrics in the text format of Prometheus, version 0.0.4. Each metric family has a `HELP`
//! line and a `TYPE` line, followed by the samples of the family.

use std::fmt::Write as _;

use crate::live::LatencyCounts;

/// The media type of the format.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The type of a metric family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Values that only rise until the agent is restarted; the name ends in `_total`.
    Counter,
    /// Values that rise and fall.
    Gauge,
    /// Counts of durations in buckets.
    Histogram,
}

/// The metric families of one answer, as text.
#[derive(Debug, Default)]
pub(crate) struct Page(String);

/// A metric family whose samples are being written.
#[derive(Debug)]
pub(crate) struct Family<'a> {
    page: &'a mut Page,
    name: &'static str,
}

impl Page {
    /// Begins a family. All its samples must be written before the next family begins.
    pub(crate) fn family(&mut self, name: &'static str, kind: Kind, help: &str) -> Family<'_> {
        debug_assert!(
            !help.contains(['\n', '\\']),
            "the help text contains a character that must be escaped, but this module does not \
             escape characters"
        );
        debug_assert_eq!(name.ends_with("_total"), kind == Kind::Counter, "{name}");
        let word = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {word}");
        Family { page: self, name }
    }

    pub(crate) fn finish(self) -> String {
        self.0
    }
}

impl Family<'_> {
    /// Writes one sample.
    pub(crate) fn sample(&mut self, labels: &[(&str, &str)], value: f64) -> &mut Self {
        self.sample_of("", labels, value)
    }

    /// Writes the samples of one histogram: cumulative buckets, sum and count.
    pub(crate) fn histogram(&mut self, label: (&str, &str), latency: &LatencyCounts) {
        for (bound_seconds, count) in &latency.at_most {
            let bound = bound_seconds.to_string();
            self.sample_of("_bucket", &[label, ("le", &bound)], *count as f64);
        }
        let count = latency.count as f64;
        self.sample_of("_bucket", &[label, ("le", "+Inf")], count);
        self.sample_of("_sum", &[label], latency.sum_seconds);
        self.sample_of("_count", &[label], count);
    }

    fn sample_of(&mut self, suffix: &str, labels: &[(&str, &str)], value: f64) -> &mut Self {
        let out = &mut self.page.0;
        out.push_str(self.name);
        out.push_str(suffix);
        for (number, (label, text)) in labels.iter().enumerate() {
            out.push(if number == 0 { '{' } else { ',' });
            let _ = write!(out, "{label}=\"{}\"", escaped(text));
        }
        if !labels.is_empty() {
            out.push('}');
        }
        let _ = writeln!(out, " {value}");
        self
    }
}

/// The value of a label. The format escapes only these three characters.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_has_cumulative_buckets_a_sum_and_a_count() {
        let mut page = Page::default();
        let latency =
            LatencyCounts { at_most: vec![(0.00025, 1), (10.0, 3)], count: 4, sum_seconds: 15.5 };
        page.family("a_seconds", Kind::Histogram, "How long.").histogram(("rule", "web"), &latency);
        let expected = "# HELP a_seconds How long.\n# TYPE a_seconds histogram\n\
                        a_seconds_bucket{rule=\"web\",le=\"0.00025\"} 1\n\
                        a_seconds_bucket{rule=\"web\",le=\"10\"} 3\n\
                        a_seconds_bucket{rule=\"web\",le=\"+Inf\"} 4\n\
                        a_seconds_sum{rule=\"web\"} 15.5\na_seconds_count{rule=\"web\"} 4\n";
        assert_eq!(page.finish(), expected);
    }

    #[test]
    fn families_have_help_type_and_samples() {
        let mut page = Page::default();
        page.family("a_total", Kind::Counter, "How many.")
            .sample(&[("rule", "web"), ("place", "engine")], 1.5)
            .sample(&[("rule", "a\"b\\c\nd")], 1e9);
        page.family("b", Kind::Gauge, "Now.").sample(&[], -2.0);
        let expected = "# HELP a_total How many.\n# TYPE a_total counter\n\
                        a_total{rule=\"web\",place=\"engine\"} 1.5\n\
                        a_total{rule=\"a\\\"b\\\\c\\nd\"} 1000000000\n\
                        # HELP b Now.\n# TYPE b gauge\nb -2\n";
        assert_eq!(page.finish(), expected);
    }
}
