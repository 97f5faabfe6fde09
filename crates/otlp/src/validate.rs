//! Validates a request in one pass before it is stored: whether it can be read to its end, how many records it has, and
//! which of them exceed a limit. The pass builds no values. Only this pass rejects records; the decoder leaves out
//! those that it lists.

use thalweg_columns::rows::record_limits::{RecordLimits, RejectionReason};

use super::fields::{
    any, before_version_1, buckets, data, event, exemplar, exponential_point, group, histogram_point, link, list, log,
    map, metric, number_point, pair, quantile, request, resource, scope, scoped, span, status, summary_point, unpacked,
};
use thalweg_kit::wire::{END, FieldKey, WireCursor, WireResult, once};
use thalweg_lake::Signal;

/// The result of a validation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ValidationReport {
    /// All records, including rejected ones.
    pub records: u32,
    /// Indexes of rejected records in the request, ascending.
    pub rejected: Vec<u32>,
    /// Rejected records for each of [`RejectionReason::ALL`].
    pub reasons: [u32; RejectionReason::ALL.len()],
}

/// The error for a field of an old version, which would otherwise be skipped like any unknown field, with its records.
pub(super) const TOO_OLD: &str =
    "a field belongs to OTLP before version 1, and its content would be lost; update the sender";

/// Validates the bytes of a request.
pub fn walk(signal: Signal, bytes: &[u8], limits: &RecordLimits) -> WireResult<ValidationReport> {
    let mut walk = RequestValidator {
        limits,
        signal,
        walked: ValidationReport::default(),
    };
    let mut at = WireCursor::new(bytes);
    loop {
        match at.key()? {
            request::GROUPS => walk.group(at.message()?)?,
            END => return Ok(walk.walked),
            key => at.skip(key, request::KNOWN)?,
        }
    }
}

struct RequestValidator<'a> {
    limits: &'a RecordLimits,
    signal: Signal,
    walked: ValidationReport,
}

/// The state of one set of attributes.
#[derive(Clone, Copy, Default)]
struct AttributeCheck {
    count: usize,
    /// The first violation that was found.
    wrong: Option<RejectionReason>,
}

impl AttributeCheck {
    fn is(&mut self, wrong: RejectionReason) {
        self.wrong.get_or_insert(wrong);
    }

    /// The reason to reject the record, if there is one.
    fn reason(&self, limits: &RecordLimits) -> Option<RejectionReason> {
        let too_many = (self.count > limits.attributes).then_some(RejectionReason::TooManyAttributes);
        self.wrong.or(too_many)
    }
}

impl RequestValidator<'_> {
    /// Validates the group of a resource. The resource may follow its records.
    fn group(&mut self, group: WireCursor<'_>) -> WireResult<()> {
        let mut seen = AttributeCheck::default();
        if let Some(mut at) = first_of(group)? {
            loop {
                match at.key()? {
                    resource::ATTRIBUTES => self.attribute(at.message()?, &mut seen)?,
                    resource::DROPPED => drop(at.number()?),
                    END => break,
                    key => at.skip(key, resource::KNOWN)?,
                }
            }
        }
        let mut at = group;
        loop {
            match at.key()? {
                group::SCOPES => self.scope(at.message()?, seen)?,
                group::RESOURCE | group::SCHEMA_URL => drop(at.bytes()?),
                before_version_1::LIBRARY_SCOPES => return Err(at.malformed(TOO_OLD)),
                END => return Ok(()),
                key => at.skip(key, group::KNOWN)?,
            }
        }
    }

    fn scope(&mut self, group: WireCursor<'_>, mut seen: AttributeCheck) -> WireResult<()> {
        if let Some(mut at) = first_of(group)? {
            loop {
                match at.key()? {
                    scope::ATTRIBUTES => self.attribute(at.message()?, &mut seen)?,
                    scope::NAME | scope::VERSION => drop(at.bytes()?),
                    scope::DROPPED => drop(at.number()?),
                    END => break,
                    key => at.skip(key, scope::KNOWN)?,
                }
            }
        }
        let mut at = group;
        loop {
            match at.key()? {
                scoped::RECORDS => {
                    let inner = at.message()?;
                    match self.signal {
                        Signal::Logs => self.log(inner, seen)?,
                        Signal::Metrics => self.metric(inner, seen)?,
                        Signal::Traces => self.span(inner, seen)?,
                    }
                }
                scoped::SCOPE | scoped::SCHEMA_URL => drop(at.bytes()?),
                END => return Ok(()),
                key => at.skip(key, scoped::KNOWN)?,
            }
        }
    }

    /// Counts a record.
    fn record(&mut self, seen: AttributeCheck) {
        if let Some(reason) = seen.reason(self.limits) {
            self.walked.rejected.push(self.walked.records);
            self.walked.reasons[reason as usize] += 1;
        }
        self.walked.records += 1;
    }

    fn log(&mut self, mut at: WireCursor<'_>, mut seen: AttributeCheck) -> WireResult<()> {
        let mut body = None;
        loop {
            match at.key()? {
                log::ATTRIBUTES => self.attribute(at.message()?, &mut seen)?,
                log::TIME | log::OBSERVED_TIME => drop(at.fixed64()?),
                log::SEVERITY_NUMBER | log::DROPPED => drop(at.number()?),
                log::SEVERITY_TEXT | log::TRACE_ID | log::SPAN_ID | log::EVENT_NAME => drop(at.bytes()?),
                log::BODY => {
                    let value = at.message()?;
                    once(&mut body, value)?;
                    seen.wrong = seen.wrong.or(self.value(value, 1)?);
                }
                log::FLAGS => drop(at.fixed32()?),
                END => break,
                key => at.skip(key, log::KNOWN)?,
            }
        }
        self.record(seen);
        Ok(())
    }

    fn span(&mut self, mut at: WireCursor<'_>, mut seen: AttributeCheck) -> WireResult<()> {
        let (mut trace, mut id, mut state) = (0, 0, None);
        loop {
            match at.key()? {
                span::ATTRIBUTES => self.attribute(at.message()?, &mut seen)?,
                span::TRACE_ID => trace = at.bytes()?.len(),
                span::SPAN_ID => id = at.bytes()?.len(),
                span::TRACE_STATE | span::PARENT_SPAN_ID | span::NAME => drop(at.bytes()?),
                span::KIND | span::DROPPED_ATTRIBUTES | span::DROPPED_EVENTS | span::DROPPED_LINKS => {
                    at.number().map(drop)?;
                }
                span::START | span::END => drop(at.fixed64()?),
                span::EVENTS => self.event(at.message()?, &mut seen)?,
                span::LINKS => self.link(at.message()?, &mut seen)?,
                span::STATUS => {
                    let status = at.message()?;
                    once(&mut state, status)?;
                    self.status(status)?;
                }
                span::FLAGS => drop(at.fixed32()?),
                END => break,
                key => at.skip(key, span::KNOWN)?,
            }
        }
        if (trace, id) != (16, 8) {
            seen.is(RejectionReason::InvalidId);
        }
        self.record(seen);
        Ok(())
    }

    fn status(&mut self, mut at: WireCursor<'_>) -> WireResult<()> {
        loop {
            match at.key()? {
                status::MESSAGE => drop(at.bytes()?),
                status::CODE => drop(at.number()?),
                END => return Ok(()),
                key => at.skip(key, status::KNOWN)?,
            }
        }
    }

    fn event(&mut self, mut at: WireCursor<'_>, seen: &mut AttributeCheck) -> WireResult<()> {
        let mut own = AttributeCheck::default();
        loop {
            match at.key()? {
                event::TIME => drop(at.fixed64()?),
                event::NAME => drop(at.bytes()?),
                event::ATTRIBUTES => self.attribute(at.message()?, &mut own)?,
                event::DROPPED => drop(at.number()?),
                END => break,
                key => at.skip(key, event::KNOWN)?,
            }
        }
        self.part(own, seen);
        Ok(())
    }

    /// Events, links and exemplars have their own attribute limit, because a record may have many of them.
    fn part(&self, own: AttributeCheck, seen: &mut AttributeCheck) {
        if let Some(reason) = own.reason(self.limits) {
            seen.is(reason);
        }
    }

    fn link(&mut self, mut at: WireCursor<'_>, seen: &mut AttributeCheck) -> WireResult<()> {
        let mut own = AttributeCheck::default();
        loop {
            match at.key()? {
                link::TRACE_ID | link::SPAN_ID | link::TRACE_STATE => drop(at.bytes()?),
                link::ATTRIBUTES => self.attribute(at.message()?, &mut own)?,
                link::DROPPED => drop(at.number()?),
                link::FLAGS => drop(at.fixed32()?),
                END => break,
                key => at.skip(key, link::KNOWN)?,
            }
        }
        self.part(own, seen);
        Ok(())
    }

    fn metric(&mut self, mut at: WireCursor<'_>, seen: AttributeCheck) -> WireResult<()> {
        let (mut given, mut kind) = (None, END);
        loop {
            match at.key()? {
                metric::NAME | metric::DESCRIPTION | metric::UNIT | metric::METADATA => drop(at.bytes()?),
                key @ (metric::GAUGE
                | metric::SUM
                | metric::HISTOGRAM
                | metric::EXPONENTIAL_HISTOGRAM
                | metric::SUMMARY) => {
                    once(&mut given, at.message()?)?;
                    kind = key;
                }
                before_version_1::INT_GAUGE | before_version_1::INT_SUM | before_version_1::INT_HISTOGRAM => {
                    return Err(at.malformed(TOO_OLD));
                }
                END => break,
                key => at.skip(key, metric::KNOWN)?,
            }
        }
        let Some(mut at) = given else { return Ok(()) };
        loop {
            match at.key()? {
                data::POINTS => {
                    let point = at.message()?;
                    let mut seen = seen;
                    self.point(kind, point, &mut seen)?;
                    self.record(seen);
                }
                data::TEMPORALITY | data::IS_MONOTONIC => drop(at.number()?),
                END => return Ok(()),
                key => at.skip(key, data::KNOWN)?,
            }
        }
    }

    fn point(&mut self, kind: FieldKey, at: WireCursor<'_>, seen: &mut AttributeCheck) -> WireResult<()> {
        let is_right = match kind {
            metric::HISTOGRAM => self.histogram_point(at, seen)?,
            metric::EXPONENTIAL_HISTOGRAM => self.exponential_point(at, seen)?,
            metric::SUMMARY => self.summary_point(at, seen)?,
            _ => self.number_point(at, seen)?,
        };
        if !is_right {
            seen.is(RejectionReason::InvalidPoint);
        }
        Ok(())
    }

    fn number_point(&mut self, mut at: WireCursor<'_>, seen: &mut AttributeCheck) -> WireResult<bool> {
        loop {
            match at.key()? {
                number_point::ATTRIBUTES => self.attribute(at.message()?, seen)?,
                number_point::START | number_point::TIME | number_point::DOUBLE | number_point::INT => {
                    at.fixed64().map(drop)?;
                }
                number_point::EXEMPLARS => self.exemplar(at.message()?, seen)?,
                number_point::FLAGS => drop(at.number()?),
                before_version_1::LABELS => return Err(at.malformed(TOO_OLD)),
                END => return Ok(true),
                key => at.skip(key, number_point::KNOWN)?,
            }
        }
    }

    fn histogram_point(&mut self, mut at: WireCursor<'_>, seen: &mut AttributeCheck) -> WireResult<bool> {
        use histogram_point as of;
        let (mut buckets, mut is_right, mut bounds) = (0_usize, true, BucketBoundsCheck::default());
        let mut bucket = |count| {
            buckets += 1;
            is_right &= count <= COUNT_MAX;
        };
        loop {
            match at.key()? {
                of::ATTRIBUTES => self.attribute(at.message()?, seen)?,
                of::COUNT => {
                    let count = at.fixed64()?;
                    bounds.is_right &= count <= COUNT_MAX;
                }
                of::START | of::TIME | of::SUM | of::MIN | of::MAX => drop(at.fixed64()?),
                of::BUCKETS => at.packed_fixed64(&mut bucket)?,
                unpacked::BUCKETS => bucket(at.fixed64()?),
                of::BOUNDS => at.packed_fixed64(|bits| bounds.next(f64::from_bits(bits)))?,
                unpacked::BOUNDS => bounds.next(f64::from_bits(at.fixed64()?)),
                of::EXEMPLARS => self.exemplar(at.message()?, seen)?,
                of::FLAGS => drop(at.number()?),
                before_version_1::LABELS => return Err(at.malformed(TOO_OLD)),
                END => break,
                key => at.skip(key, of::KNOWN)?,
            }
        }
        // A histogram without buckets has only a sum.
        let is_whole = buckets == bounds.count + 1 || (buckets, bounds.count) == (0, 0);
        Ok(is_right && bounds.is_right && is_whole)
    }

    fn exponential_point(&mut self, mut at: WireCursor<'_>, seen: &mut AttributeCheck) -> WireResult<bool> {
        use exponential_point as of;
        let (mut positive, mut negative, mut is_right) = (None, None, true);
        loop {
            match at.key()? {
                of::ATTRIBUTES => self.attribute(at.message()?, seen)?,
                of::COUNT | of::ZERO_COUNT => is_right &= at.fixed64()? <= COUNT_MAX,
                of::START | of::TIME | of::SUM | of::MIN | of::MAX | of::ZERO_THRESHOLD => drop(at.fixed64()?),
                of::SCALE | of::FLAGS => drop(at.number()?),
                of::POSITIVE => once(&mut positive, at.message()?)?,
                of::NEGATIVE => once(&mut negative, at.message()?)?,
                of::EXEMPLARS => self.exemplar(at.message()?, seen)?,
                END => break,
                key => at.skip(key, of::KNOWN)?,
            }
        }
        for mut at in [positive, negative].into_iter().flatten() {
            loop {
                match at.key()? {
                    buckets::OFFSET => drop(at.number()?),
                    buckets::COUNTS => at.packed_numbers(|count| is_right &= count <= COUNT_MAX)?,
                    unpacked::COUNTS => is_right &= at.number()? <= COUNT_MAX,
                    END => break,
                    key => at.skip(key, buckets::KNOWN)?,
                }
            }
        }
        Ok(is_right)
    }

    fn summary_point(&mut self, mut at: WireCursor<'_>, seen: &mut AttributeCheck) -> WireResult<bool> {
        use summary_point as of;
        let mut is_right = true;
        loop {
            match at.key()? {
                of::ATTRIBUTES => self.attribute(at.message()?, seen)?,
                of::COUNT => is_right &= at.fixed64()? <= COUNT_MAX,
                of::START | of::TIME | of::SUM => drop(at.fixed64()?),
                of::QUANTILES => self.quantile(at.message()?)?,
                of::FLAGS => drop(at.number()?),
                before_version_1::LABELS => return Err(at.malformed(TOO_OLD)),
                END => return Ok(is_right),
                key => at.skip(key, of::KNOWN)?,
            }
        }
    }

    fn quantile(&mut self, mut at: WireCursor<'_>) -> WireResult<()> {
        loop {
            match at.key()? {
                quantile::QUANTILE | quantile::VALUE => drop(at.fixed64()?),
                END => return Ok(()),
                key => at.skip(key, quantile::KNOWN)?,
            }
        }
    }

    fn exemplar(&mut self, mut at: WireCursor<'_>, seen: &mut AttributeCheck) -> WireResult<()> {
        let mut own = AttributeCheck::default();
        loop {
            match at.key()? {
                exemplar::ATTRIBUTES => self.attribute(at.message()?, &mut own)?,
                exemplar::TIME | exemplar::DOUBLE | exemplar::INT => drop(at.fixed64()?),
                exemplar::SPAN_ID | exemplar::TRACE_ID => drop(at.bytes()?),
                END => break,
                key => at.skip(key, exemplar::KNOWN)?,
            }
        }
        self.part(own, seen);
        Ok(())
    }

    fn attribute(&mut self, at: WireCursor<'_>, seen: &mut AttributeCheck) -> WireResult<()> {
        seen.count += 1;
        if let Some(wrong) = self.pair(at, 1)? {
            seen.is(wrong);
        }
        Ok(())
    }

    /// Validates a name and a value at nesting depth `depth`.
    #[inline]
    fn pair(&mut self, mut at: WireCursor<'_>, depth: usize) -> WireResult<Option<RejectionReason>> {
        let (mut name, mut given, mut wrong) = (0, None, None);
        loop {
            match at.key()? {
                pair::NAME => name = at.bytes()?.len(),
                pair::VALUE => {
                    let value = at.message()?;
                    once(&mut given, value)?;
                    wrong = self.value(value, depth)?;
                }
                END => break,
                key => at.skip(key, pair::KNOWN)?,
            }
        }
        match name > self.limits.name_bytes {
            true => Ok(Some(RejectionReason::NameTooLong)),
            false => Ok(wrong),
        }
    }

    #[inline]
    fn value(&mut self, mut at: WireCursor<'_>, depth: usize) -> WireResult<Option<RejectionReason>> {
        if depth > self.limits.nesting {
            // The content is not read.
            return Ok(Some(RejectionReason::NestingTooDeep));
        }
        let (mut wrong, mut given) = (None, None);
        loop {
            let choice = at;
            match at.key()? {
                any::TEXT | any::BYTES => wrong = self.long(at.bytes()?.len()),
                any::BOOL | any::INT => drop(at.number()?),
                any::DOUBLE => drop(at.fixed64()?),
                any::LIST => wrong = self.list(at.message()?, depth)?,
                any::MAP => wrong = self.map(at.message()?, depth)?,
                END => return Ok(wrong),
                key => {
                    at.skip(key, any::KNOWN)?;
                    continue;
                }
            }
            once(&mut given, choice)?;
        }
    }

    fn long(&self, bytes: usize) -> Option<RejectionReason> {
        let is_long = bytes > self.limits.value_bytes && !self.limits.cut_values;
        is_long.then_some(RejectionReason::ValueTooLong)
    }

    fn list(&mut self, mut at: WireCursor<'_>, depth: usize) -> WireResult<Option<RejectionReason>> {
        let mut wrong = self.long(at.len());
        loop {
            match at.key()? {
                list::VALUES => wrong = wrong.or(self.value(at.message()?, depth + 1)?),
                END => return Ok(wrong),
                key => at.skip(key, list::KNOWN)?,
            }
        }
    }

    fn map(&mut self, mut at: WireCursor<'_>, depth: usize) -> WireResult<Option<RejectionReason>> {
        let mut wrong = self.long(at.len());
        loop {
            match at.key()? {
                map::PAIRS => wrong = wrong.or(self.pair(at.message()?, depth + 1)?),
                END => return Ok(wrong),
                key => at.skip(key, map::KNOWN)?,
            }
        }
    }
}

/// Finds the resource of a group, or the scope of a scope group. It may follow its records.
pub(super) fn first_of(group: WireCursor<'_>) -> WireResult<Option<WireCursor<'_>>> {
    let (mut at, mut found) = (group, None);
    loop {
        match at.key()? {
            // The key is the same in both messages.
            group::RESOURCE => once(&mut found, at.message()?)?,
            END => return Ok(found),
            // The caller validates the other fields.
            key => at.skip(key, 0)?,
        }
    }
}

/// Checks that bucket bounds ascend.
struct BucketBoundsCheck {
    count: usize,
    last: f64,
    is_right: bool,
}

impl Default for BucketBoundsCheck {
    fn default() -> BucketBoundsCheck {
        BucketBoundsCheck {
            count: 0,
            last: f64::NEG_INFINITY,
            is_right: true,
        }
    }
}

impl BucketBoundsCheck {
    fn next(&mut self, bound: f64) {
        // NaN has no order. The first bound may be negative infinity.
        self.is_right &= bound > self.last || (self.count == 0 && !bound.is_nan());
        (self.count, self.last) = (self.count + 1, bound);
    }
}

/// Count columns are signed.
const COUNT_MAX: u64 = i64::MAX as u64;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::{JsonLimits, to_proto};
    use thalweg_kit::wire::WireWriter;

    /// A list of `count` attributes as JSON.
    fn attributes(count: usize) -> String {
        let one = |n| format!(r#"{{"key":"a{n}","value":{{"intValue":"{n}"}}}}"#);
        format!("[{}]", (0..count).map(one).collect::<Vec<_>>().join(","))
    }

    fn times(count: usize, one: &str) -> String {
        format!("[{}]", vec![one; count].join(","))
    }

    fn walked(signal: Signal, json: &str) -> ValidationReport {
        let mut proto = Vec::new();
        to_proto(signal, json.as_bytes(), &JsonLimits::default(), &mut proto).unwrap();
        walk(signal, &proto, &RecordLimits::default()).unwrap()
    }

    /// A span with this many attributes on its resource and on itself, and `(count, attributes of each)` for events and
    /// links.
    fn span(resource: usize, own: usize, events: (usize, usize), links: (usize, usize)) -> ValidationReport {
        let event = format!(r#"{{"name":"e","attributes":{}}}"#, attributes(events.1));
        let ids = r#""traceId":"5b8efff798038103d269b633813fc60c","spanId":"eee19b7ec3c1b174""#;
        let link = format!(r#"{{{ids},"attributes":{}}}"#, attributes(links.1));
        let span = format!(
            r#"{{{ids},"attributes":{},"events":{},"links":{}}}"#,
            attributes(own),
            times(events.0, &event),
            times(links.0, &link)
        );
        let json = format!(
            r#"{{"resourceSpans":[{{"resource":{{"attributes":{}}},"scopeSpans":[{{"spans":[{span}]}}]}}]}}"#,
            attributes(resource)
        );
        walked(Signal::Traces, &json)
    }

    #[test]
    fn events_and_links_of_a_span_are_judged_by_themselves() {
        for (name, walked) in [
            ("many small ones", span(10, 10, (128, 10), (128, 10))),
            ("as large as may be", span(1000, 24, (2, 1024), (2, 1024))),
        ] {
            assert_eq!((walked.records, walked.rejected.len()), (1, 0), "{name}");
        }
        for (name, walked) in [
            ("the span", span(1000, 25, (0, 0), (0, 0))),
            ("an event", span(0, 0, (1, 1025), (0, 0))),
            ("a link", span(0, 0, (0, 0), (1, 1025))),
        ] {
            assert_eq!(walked.rejected, [0], "{name}");
            assert_eq!(walked.reasons[RejectionReason::TooManyAttributes as usize], 1, "{name}");
        }
    }

    #[test]
    fn fields_before_version_1_are_refused_where_their_content_would_be_lost() {
        /// A request with this inner message below the given fields.
        fn nested(fields: &[u32]) -> Vec<u8> {
            let mut out = WireWriter::new();
            match fields {
                [] => out.number(15, 1),
                [field, rest @ ..] => out.bytes(*field, &nested(rest)),
            }
            out.finish()
        }
        let refused = |signal, fields: &[u32]| {
            walk(signal, &nested(fields), &RecordLimits::default())
                .unwrap_err()
                .what
        };
        for signal in Signal::ALL {
            assert_eq!(refused(signal, &[1, 1000]), TOO_OLD, "instrumentation_library_…");
        }
        for kind in [4, 6, 8] {
            assert_eq!(refused(Signal::Metrics, &[1, 2, 2, kind]), TOO_OLD, "int_…");
        }
        for kind in [5, 7, 9, 11] {
            assert_eq!(refused(Signal::Metrics, &[1, 2, 2, kind, 1, 1]), TOO_OLD, "labels");
        }
        // Attributes of an exponential point have the number that labels had elsewhere.
        let exponential = nested(&[1, 2, 2, 10, 1, 1]);
        assert_eq!(
            walk(Signal::Metrics, &exponential, &RecordLimits::default())
                .unwrap()
                .records,
            1
        );
        // Unknown fields are skipped as ever.
        assert!(walk(Signal::Logs, &nested(&[1, 1001]), &RecordLimits::default()).is_ok());
    }

    #[test]
    fn exemplars_of_a_point_are_judged_by_themselves() {
        let point = |exemplars, each| {
            let exemplar = format!(r#"{{"asDouble":1,"filteredAttributes":{}}}"#, attributes(each));
            let point = format!(r#"{{"asDouble":1,"exemplars":{}}}"#, times(exemplars, &exemplar));
            let metric = format!(r#"{{"name":"m","gauge":{{"dataPoints":[{point}]}}}}"#);
            let json = format!(r#"{{"resourceMetrics":[{{"scopeMetrics":[{{"metrics":[{metric}]}}]}}]}}"#);
            walked(Signal::Metrics, &json).rejected.len()
        };
        assert_eq!((point(20, 60), point(1, 1025)), (0, 1));
    }
}
