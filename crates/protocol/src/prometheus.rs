//! Samples in the text format that Prometheus reads (version 0.0.4).

use std::fmt::Write;

/// `Content-Type` of the text.
pub const PROMETHEUS_CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

crate::named! {
    /// What the samples of a family mean.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum SampleKind {
        /// A number that only grows. The family's name ends in `_total`.
        Counter = "counter",
        /// A number that rises and falls.
        Gauge = "gauge",
    }
}

/// Families of samples as text.
///
/// A family is described once, before its samples. A value that is not known has no sample.
#[derive(Clone, Debug, Default)]
pub struct PrometheusText(String);

impl PrometheusText {
    /// A family with one sample without labels.
    pub fn single(&mut self, name: &str, help: &str, kind: SampleKind, value: Option<f64>) {
        self.family(name, help, kind);
        self.sample(name, &[], value);
    }

    /// Describes the family whose samples follow.
    pub fn family(&mut self, name: &str, help: &str, kind: SampleKind) {
        // Writing into a string does not fail.
        let _ = write!(self.0, "# HELP {name} {help}\n# TYPE {name} {}\n", kind.name());
    }

    /// A sample of the family that was described last.
    pub fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: Option<f64>) {
        let Some(value) = value else { return };
        self.0.push_str(name);
        for (number, (label, text)) in labels.iter().enumerate() {
            let opening = if number == 0 { '{' } else { ',' };
            let _ = write!(self.0, "{opening}{label}=\"{}\"", escaped(text));
        }
        let closing = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(self.0, "{closing} {value}");
    }

    /// The text.
    pub fn into_string(self) -> String {
        self.0
    }
}

/// Label values escape the backslash, the quote and the end of line.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_are_described_before_their_samples() {
        let mut text = PrometheusText::default();
        text.single("a_total", "As.", SampleKind::Counter, Some(2.0));
        text.family("b", "Bs.", SampleKind::Gauge);
        text.sample("b", &[("x", "1"), ("y", "2")], Some(0.5));
        text.sample("b", &[("x", "3")], None);
        assert_eq!(
            text.into_string(),
            "# HELP a_total As.\n# TYPE a_total counter\na_total 2\n\
             # HELP b Bs.\n# TYPE b gauge\nb{x=\"1\",y=\"2\"} 0.5\n"
        );
    }

    #[test]
    fn labels_cannot_end_their_line() {
        let mut text = PrometheusText::default();
        text.sample("a", &[("x", "a\"b\\c\nd")], Some(1.0));
        assert_eq!(text.into_string(), "a{x=\"a\\\"b\\\\c\\nd\"} 1\n");
    }
}
