//! `min` and `max` of attributes, which are texts: numbers are ordered by their value, and before all other texts. So of 9, 100
//! and -1 the maximum is 100; one text that is no number is the maximum, and never hides in a comparison of digits.
//!
//! The functions have names of their own, which `crate::functions` puts in place of `min` and `max`; columns are named after these.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::mem::size_of;
use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, AsArray as _, StringViewArray};
use datafusion::arrow::datatypes::DataType;
use datafusion::common::{Result, ScalarValue, exec_err};
use datafusion::functions_aggregate::min_max::{max_udaf, min_udaf};
use datafusion::logical_expr::function::AccumulatorArgs;
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, GroupsAccumulator, SetMonotonicity, Signature, StatisticsArgs, Volatility,
};

use super::floats::canonical;
use super::grouped::{GroupReduction, Grouped, GroupedRows, Groups};
use crate::delegating_aggregate::{AggregateParts, delegating};

pub const MIN: &str = "attribute_min";
pub const MAX: &str = "attribute_max";

pub fn functions() -> [Arc<AggregateUDF>; 2] {
    [(min_udaf(), false), (max_udaf(), true)].map(|(inner, is_max)| {
        let signature = Signature::user_defined(Volatility::Immutable);
        delegating(inner, ExtremeOfTexts { is_max, signature })
    })
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct ExtremeOfTexts {
    is_max: bool,
    signature: Signature,
}

impl AggregateParts for ExtremeOfTexts {
    fn name<'a>(&'a self, _inner: &'a AggregateUDF) -> &'a str {
        if self.is_max { MAX } else { MIN }
    }

    fn signature<'a>(&'a self, _inner: &'a AggregateUDF) -> &'a Signature {
        &self.signature
    }

    fn coerce_types(&self, inner: &AggregateUDF, given: &[DataType]) -> Result<Vec<DataType>> {
        match given {
            [kind] if kind.is_string() => Ok(vec![DataType::Utf8View]),
            _ => inner.coerce_types(given),
        }
    }

    fn accumulator(&self, inner: &AggregateUDF, args: AccumulatorArgs<'_>) -> Result<Box<dyn Accumulator>> {
        match args.return_type() {
            DataType::Utf8View => Ok(Box::new(TextExtreme {
                is_max: self.is_max,
                extreme: None,
            })),
            _ => inner.accumulator(args),
        }
    }

    fn sliding_accumulator(&self, inner: &AggregateUDF, args: AccumulatorArgs<'_>) -> Result<Box<dyn Accumulator>> {
        match args.return_type() {
            DataType::Utf8View => Ok(Box::new(SlidingTextExtreme {
                is_max: self.is_max,
                texts: BTreeMap::new(),
                bytes: 0,
            })),
            _ => inner.create_sliding_accumulator(args),
        }
    }

    fn has_groups_accumulator(&self, inner: &AggregateUDF, args: AccumulatorArgs<'_>) -> bool {
        matches!(args.return_type(), DataType::Utf8View) || inner.groups_accumulator_supported(args)
    }

    fn groups_accumulator(
        &self,
        inner: &AggregateUDF,
        args: AccumulatorArgs<'_>,
    ) -> Result<Box<dyn GroupsAccumulator>> {
        match args.return_type() {
            DataType::Utf8View => Ok(Grouped::boxed(TextExtremes { is_max: self.is_max })),
            _ => inner.create_groups_accumulator(args),
        }
    }

    /// The library would look for the first or last text.
    fn is_descending(&self, _inner: &AggregateUDF) -> Option<bool> {
        None
    }

    fn set_monotonicity(&self, _inner: &AggregateUDF, _kind: &DataType) -> SetMonotonicity {
        SetMonotonicity::NotMonotonic
    }

    /// Files tell the extremes in the order of texts.
    fn value_from_stats(&self, _inner: &AggregateUDF, _args: &StatisticsArgs<'_>) -> Option<ScalarValue> {
        None
    }
}

/// A text and its number, if it is one.
#[derive(Clone, Debug)]
struct OrderedText<T> {
    number: Option<f64>,
    text: T,
}

impl<'a> OrderedText<&'a str> {
    fn of(text: &'a str) -> OrderedText<&'a str> {
        OrderedText {
            number: text.parse().ok().map(canonical),
            text,
        }
    }

    fn kept(self) -> OrderedText<Box<str>> {
        OrderedText {
            number: self.number,
            text: self.text.into(),
        }
    }
}

impl<T: AsRef<str>> OrderedText<T> {
    fn order<U: AsRef<str>>(&self, other: &OrderedText<U>) -> Ordering {
        let texts = self.text.as_ref().cmp(other.text.as_ref());
        match (self.number, other.number) {
            (Some(own), Some(other)) => own.total_cmp(&other).then(texts),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (None, None) => texts,
        }
    }

    fn is_better<U: AsRef<str>>(&self, than: &OrderedText<U>, is_max: bool) -> bool {
        match self.order(than) {
            Ordering::Greater => is_max,
            Ordering::Less => !is_max,
            Ordering::Equal => false,
        }
    }
}

impl PartialEq for OrderedText<Box<str>> {
    fn eq(&self, other: &OrderedText<Box<str>>) -> bool {
        self.order(other).is_eq()
    }
}

impl Eq for OrderedText<Box<str>> {}

impl PartialOrd for OrderedText<Box<str>> {
    fn partial_cmp(&self, other: &OrderedText<Box<str>>) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for OrderedText<Box<str>> {
    fn cmp(&self, other: &OrderedText<Box<str>>) -> Ordering {
        self.order(other)
    }
}

fn texts(values: &[ArrayRef]) -> Result<&StringViewArray> {
    match values.first().and_then(|values| values.as_string_view_opt()) {
        Some(texts) => Ok(texts),
        None => exec_err!("min and max of attributes take texts"),
    }
}

/// The extreme of one group.
#[derive(Debug)]
struct TextExtreme {
    is_max: bool,
    extreme: Option<OrderedText<Box<str>>>,
}

impl Accumulator for TextExtreme {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        for text in texts(values)?.iter().flatten() {
            let text = OrderedText::of(text);
            let is_better = |known: &OrderedText<Box<str>>| text.is_better(known, self.is_max);
            if self.extreme.as_ref().is_none_or(is_better) {
                self.extreme = Some(text.kept());
            }
        }
        Ok(())
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        self.update_batch(states)
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        Ok(scalar(self.extreme.as_ref()))
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        Ok(vec![self.evaluate()?])
    }

    fn size(&self) -> usize {
        size_of::<TextExtreme>() + self.extreme.as_ref().map_or(0, |extreme| extreme.text.len())
    }
}

fn scalar(text: Option<&OrderedText<Box<str>>>) -> ScalarValue {
    ScalarValue::Utf8View(text.map(|text| text.text.to_string()))
}

/// The extreme of a window, with how often each text is in it.
#[derive(Debug)]
struct SlidingTextExtreme {
    is_max: bool,
    texts: BTreeMap<OrderedText<Box<str>>, u64>,
    bytes: usize,
}

impl Accumulator for SlidingTextExtreme {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        for text in texts(values)?.iter().flatten() {
            self.bytes += text.len();
            *self.texts.entry(OrderedText::of(text).kept()).or_default() += 1;
        }
        Ok(())
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        self.update_batch(states)
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        for text in texts(values)?.iter().flatten() {
            let kept = OrderedText::of(text).kept();
            self.bytes = self.bytes.saturating_sub(text.len());
            match self.texts.get_mut(&kept) {
                Some(times) if *times > 1 => *times -= 1,
                _ => drop(self.texts.remove(&kept)),
            }
        }
        Ok(())
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        let extreme = match self.is_max {
            true => self.texts.last_key_value(),
            false => self.texts.first_key_value(),
        };
        Ok(scalar(extreme.map(|(text, _)| text)))
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        Ok(vec![self.evaluate()?])
    }

    fn size(&self) -> usize {
        size_of::<SlidingTextExtreme>() + self.bytes + self.texts.len() * 2 * size_of::<(OrderedText<Box<str>>, u64)>()
    }
}

/// The extremes of many groups.
#[derive(Debug)]
struct TextExtremes {
    is_max: bool,
}

impl GroupReduction for TextExtremes {
    type Group = Option<OrderedText<Box<str>>>;

    fn add(&self, groups: &mut Groups<Self::Group>, values: &[ArrayRef], rows: GroupedRows<'_>) -> Result<()> {
        for (at, text) in texts(values)?.iter().enumerate() {
            let group = rows.group(at).and_then(|group| groups.all.get_mut(group));
            let (Some(text), Some(extreme)) = (text.map(OrderedText::of), group) else {
                continue;
            };
            if extreme.as_ref().is_none_or(|known| text.is_better(known, self.is_max)) {
                let before = Self::allocated_bytes(extreme);
                groups.bytes = groups.bytes.saturating_sub(before) + text.text.len();
                *extreme = Some(text.kept());
            }
        }
        Ok(())
    }

    fn result(&self, groups: Vec<Self::Group>) -> Result<ArrayRef> {
        let texts = groups
            .iter()
            .map(|extreme| extreme.as_ref().map(|extreme| &*extreme.text));
        Ok(Arc::new(texts.collect::<StringViewArray>()))
    }

    fn allocated_bytes(group: &Self::Group) -> usize {
        group.as_ref().map_or(0, |extreme| extreme.text.len())
    }
}
