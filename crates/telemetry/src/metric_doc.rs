//! Declarations of metrics: name, kind, labels and one sentence each. Every metric is made from its declaration, and
//! [`metric_group!`](crate::metric_group) puts each declaration into the list that the reference shows, so no metric is
//! exported without a sentence.

use prometheus::{GaugeVec, HistogramOpts, HistogramVec, IntCounterVec, IntGaugeVec, Opts};

/// How a metric is exported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    Counter,
    Gauge,
    Histogram,
    /// A [`Timing`](crate::Timing) in nanoseconds: a summary, or a histogram if `use_histogram_timing` is set.
    Timing,
}

impl MetricKind {
    /// Its name in the reference.
    pub fn name(self) -> &'static str {
        match self {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
            MetricKind::Histogram => "histogram",
            MetricKind::Timing => "timing",
        }
    }
}

/// The declaration of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetricDoc {
    pub name: &'static str,
    pub kind: MetricKind,
    /// The labels besides those of its group. One that is absent in some cases is listed, too.
    pub labels: &'static [&'static str],
    /// One sentence, exported as the help text. Equal in all groups that have a metric of this name.
    pub help: &'static str,
    /// What the group's own source counts, if the name is shared by several sources.
    own_meaning: Option<&'static str>,
}

impl MetricDoc {
    pub const fn counter(name: &'static str, help: &'static str) -> MetricDoc {
        MetricDoc::new(MetricKind::Counter, name, help)
    }

    pub const fn gauge(name: &'static str, help: &'static str) -> MetricDoc {
        MetricDoc::new(MetricKind::Gauge, name, help)
    }

    pub const fn histogram(name: &'static str, help: &'static str) -> MetricDoc {
        MetricDoc::new(MetricKind::Histogram, name, help)
    }

    pub const fn timing(name: &'static str, help: &'static str) -> MetricDoc {
        MetricDoc::new(MetricKind::Timing, name, help)
    }

    const fn new(kind: MetricKind, name: &'static str, help: &'static str) -> MetricDoc {
        MetricDoc {
            name,
            kind,
            labels: &[],
            help,
            own_meaning: None,
        }
    }

    pub const fn with_labels(mut self, labels: &'static [&'static str]) -> MetricDoc {
        self.labels = labels;
        self
    }

    /// The same metric of a source that counts something of its own with it.
    pub const fn meaning(mut self, sentence: &'static str) -> MetricDoc {
        self.own_meaning = Some(sentence);
        self
    }

    /// The sentence of the reference.
    pub fn sentence(&self) -> &'static str {
        self.own_meaning.unwrap_or(self.help)
    }

    /// The unit of its values; empty if they count what the sentence names.
    pub fn unit(&self) -> &'static str {
        let name = self.name.strip_suffix("_total").unwrap_or(self.name);
        match self.kind {
            MetricKind::Timing => "ns",
            _ if name.ends_with("_seconds") => "s",
            _ if name.ends_with("_bytes") => "bytes",
            _ => "",
        }
    }

    /// Counters by the declared labels, which are exported once [`MetricFamilies::counters`] reports them.
    ///
    /// [`MetricFamilies::counters`]: crate::MetricFamilies::counters
    pub fn counters(&self) -> IntCounterVec {
        IntCounterVec::new(self.opts(), self.labels).expect(VALID)
    }

    pub(crate) fn gauges(&self) -> IntGaugeVec {
        IntGaugeVec::new(self.opts(), self.labels).expect(VALID)
    }

    pub(crate) fn float_gauges(&self) -> GaugeVec {
        GaugeVec::new(self.opts(), self.labels).expect(VALID)
    }

    pub(crate) fn histograms(&self, bounds: &[f64]) -> HistogramVec {
        HistogramVec::new(self.histogram_opts(bounds), self.labels).expect(VALID)
    }

    pub(crate) fn opts(&self) -> Opts {
        Opts::new(self.name, self.help)
    }

    pub(crate) fn histogram_opts(&self, bounds: &[f64]) -> HistogramOpts {
        HistogramOpts::new(self.name, self.help).buckets(bounds.to_vec())
    }
}

/// Label values come from the configuration and may be any text; names are constants of this program.
pub(crate) const VALID: &str = "metric names and label names are valid constants";

/// The labels of a component's metrics. `flow` is absent if the file has one flow without a name.
pub const COMPONENT_LABELS: &[&str] = &["flow", "label", "path"];

/// The metrics of one source: a kind of component, a section of the configuration, a listener.
#[derive(Clone, Copy, Debug)]
pub struct MetricGroup {
    /// The source, as the heading of the reference.
    pub title: &'static str,
    /// The labels that each of its metrics has.
    pub labels: &'static [&'static str],
    pub metrics: &'static [MetricDoc],
}

/// Declares metrics as constants, and the constant of their [`MetricGroup`], which has them all.
///
/// ```
/// use thalweg_telemetry::{MetricDoc, metric_group};
///
/// metric_group! {
///     pub STORE_METRICS("The store", &[]) {
///         STORED = MetricDoc::counter("stored_total", "Messages that were stored.").with_labels(&["queue"]);
///         WAITING = MetricDoc::gauge("waiting", "Messages that wait.");
///     }
/// }
///
/// assert_eq!(STORE_METRICS.metrics, [STORED, WAITING]);
/// ```
#[macro_export]
macro_rules! metric_group {
    ($visibility:vis $group:ident($title:literal, $labels:expr) { $($name:ident = $doc:expr;)+ }) => {
        $($visibility const $name: $crate::MetricDoc = $doc;)+
        $visibility const $group: $crate::MetricGroup = $crate::MetricGroup {
            title: $title,
            labels: $labels,
            metrics: &[$($name),+],
        };
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unit_is_in_the_name() {
        for (doc, unit) in [
            (MetricDoc::counter("cpu_seconds_total", "x"), "s"),
            (MetricDoc::gauge("free_bytes", "x"), "bytes"),
            (MetricDoc::timing("connection_time", "x"), "ns"),
            (MetricDoc::counter("records_total", "x"), ""),
        ] {
            assert_eq!(doc.unit(), unit, "{}", doc.name);
        }
    }

    #[test]
    fn sources_that_share_a_name_share_the_help_text() {
        let shared = MetricDoc::counter("processed", "Messages that were used.");
        let own = shared.meaning("Samples with a topic.");
        assert_eq!(
            (shared.sentence(), own.sentence()),
            ("Messages that were used.", "Samples with a topic.")
        );
        assert_eq!(own.help, shared.help);
    }
}
