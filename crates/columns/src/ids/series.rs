//! The id of a metric series.
//!
//! XXH3-64 with seed 0, read as signed, over a sequence of parts. Each part is its length in four little-endian bytes,
//! then its bytes: metric name, type, temporality, `true` or `false` for monotonic (empty if the type has no such
//! property), unit, scope name, scope version; then for each attribute `attr`, `resource` or `scope`, its name and its
//! text, sorted by the bytes of these three. A missing part is empty; the text of an attribute without a value has the
//! length 2^32 - 1.

use xxhash_rust::xxh3::xxh3_64;

use crate::rows::attribute_set::AttributeSet;

/// The length that stands for an attribute without a value.
const NO_TEXT: u32 = u32::MAX;

/// Computes ids for one scope and one metric at a time.
#[derive(Debug, Default)]
pub struct SeriesIdHasher {
    scope_name: Vec<u8>,
    scope_version: Vec<u8>,
    /// The encoded attributes of resource and scope, sorted.
    tail: Vec<u8>,
    /// The hashed bytes. Up to `head` they are the same for all points of a metric.
    bytes: Vec<u8>,
    head: usize,
    /// The attributes of the current point.
    attributes: Vec<(String, Option<String>)>,
    used: usize,
}

/// The identity of a metric without its points.
#[derive(Clone, Copy, Debug, Default)]
pub struct Metric<'a> {
    pub name: &'a [u8],
    pub kind: &'a str,
    pub temporality: &'a str,
    pub is_monotonic: Option<bool>,
    pub unit: &'a [u8],
}

impl SeriesIdHasher {
    pub fn begin_scope(&mut self, name: &[u8], version: &[u8], resource: &AttributeSet, scope: &AttributeSet) {
        self.scope_name.clear();
        self.scope_name.extend_from_slice(name);
        self.scope_version.clear();
        self.scope_version.extend_from_slice(version);
        self.tail.clear();
        for (source, pairs) in [("resource", resource), ("scope", scope)] {
            let mut sorted: Vec<(&str, Option<&str>)> = pairs.iter().collect();
            sorted.sort_unstable();
            for (name, text) in sorted {
                put_attribute(&mut self.tail, source, name, text);
            }
        }
    }

    pub fn begin_metric(&mut self, metric: &Metric<'_>) {
        let monotonic = match metric.is_monotonic {
            None => "",
            Some(true) => "true",
            Some(false) => "false",
        };
        self.bytes.clear();
        for part in [
            metric.name,
            metric.kind.as_bytes(),
            metric.temporality.as_bytes(),
            monotonic.as_bytes(),
            metric.unit,
            &self.scope_name,
            &self.scope_version,
        ] {
            put(&mut self.bytes, part);
        }
        self.head = self.bytes.len();
    }

    #[inline]
    pub fn begin_point(&mut self) {
        self.used = 0;
    }

    /// Adds an attribute of the point. A repeated name replaces the earlier value.
    #[inline]
    pub fn attribute(&mut self, name: &str, text: Option<&str>) {
        let known = self.attributes.get_mut(..self.used).unwrap_or_default();
        let text = text.map(str::to_owned);
        if let Some((_, known)) = known.iter_mut().find(|(known, _)| known == name) {
            *known = text;
            return;
        }
        match self.attributes.get_mut(self.used) {
            Some((kept, known)) => {
                kept.clear();
                kept.push_str(name);
                *known = text;
            }
            None => self.attributes.push((name.to_owned(), text)),
        }
        self.used += 1;
    }

    #[inline]
    pub fn id(&mut self) -> i64 {
        let attributes = self.attributes.get_mut(..self.used).unwrap_or_default();
        attributes.sort_unstable();
        self.bytes.truncate(self.head);
        for (name, text) in attributes {
            put_attribute(&mut self.bytes, "attr", name, text.as_deref());
        }
        self.bytes.extend_from_slice(&self.tail);
        xxh3_64(&self.bytes) as i64
    }
}

fn put_attribute(out: &mut Vec<u8>, source: &str, name: &str, text: Option<&str>) {
    put(out, source.as_bytes());
    put(out, name.as_bytes());
    match text {
        Some(text) => put(out, text.as_bytes()),
        None => out.extend_from_slice(&NO_TEXT.to_le_bytes()),
    }
}

fn put(out: &mut Vec<u8>, part: &[u8]) {
    out.extend_from_slice(&u32::try_from(part.len()).unwrap_or(NO_TEXT - 1).to_le_bytes());
    out.extend_from_slice(part);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(metric: &Metric<'_>, attributes: &[(&str, Option<&str>)]) -> i64 {
        let mut series = SeriesIdHasher::default();
        series.begin_scope(b"lib", b"1", &AttributeSet::default(), &AttributeSet::default());
        series.begin_metric(metric);
        series.begin_point();
        attributes.iter().for_each(|(name, text)| series.attribute(name, *text));
        series.id()
    }

    const REQUESTS: Metric<'_> = Metric {
        name: b"requests",
        kind: "sum",
        temporality: "cumulative",
        is_monotonic: Some(true),
        unit: b"1",
    };

    #[test]
    fn a_series_is_named_by_these_bytes() {
        let part = |text: &str| [&(text.len() as u32).to_le_bytes()[..], text.as_bytes()].concat();
        let parts = [
            "requests",
            "sum",
            "cumulative",
            "true",
            "1",
            "lib",
            "1",
            "attr",
            "a",
            "x",
            "attr",
            "b",
            "",
        ];
        let mut bytes: Vec<u8> = parts.iter().flat_map(|text| part(text)).collect();
        let attributes = [("b", Some("")), ("a", Some("x"))];
        assert_eq!(id(&REQUESTS, &attributes), xxh3_64(&bytes) as i64);
        bytes.truncate(bytes.len() - 4);
        bytes.extend_from_slice(&[0xff; 4]);
        assert_eq!(id(&REQUESTS, &[("b", None), ("a", Some("x"))]), xxh3_64(&bytes) as i64);
    }

    #[test]
    fn what_differs_in_one_part_is_another_series_and_order_is_no_difference() {
        let base = id(&REQUESTS, &[("a", Some("x")), ("b", Some("y"))]);
        assert_eq!(base, id(&REQUESTS, &[("b", Some("y")), ("a", Some("x"))]));
        assert_eq!(
            base,
            id(&REQUESTS, &[("a", Some("z")), ("b", Some("y")), ("a", Some("x"))])
        );
        let other = |metric: Metric<'static>| id(&metric, &[("a", Some("x")), ("b", Some("y"))]);
        let all = [
            base,
            other(Metric { unit: b"s", ..REQUESTS }),
            other(Metric {
                is_monotonic: Some(false),
                ..REQUESTS
            }),
            other(Metric {
                is_monotonic: None,
                ..REQUESTS
            }),
            other(Metric {
                temporality: "delta",
                ..REQUESTS
            }),
            id(&REQUESTS, &[("a", Some("xb")), ("", Some("y"))]),
            id(&REQUESTS, &[("ax", Some("")), ("b", Some("y"))]),
            id(&REQUESTS, &[("a", Some("x"))]),
        ];
        let distinct: std::collections::HashSet<i64> = all.into_iter().collect();
        assert_eq!(distinct.len(), all.len());
    }
}
