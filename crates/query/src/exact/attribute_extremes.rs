//! `min` and `max` of attributes, which are texts: numbers are ordered by their value, and before all other texts. So of 9, 100
//! and -1 the maximum is 100; one text that is no number is the maximum, and never hides in a comparison of digits.
//!
//! The functions have names of their own, which `crate::functions` puts in place of `min` and `max`; columns are named after these.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::mem::size_of;
use std::sync::Arc;

use datafusion::arrow::array::{Array as _, ArrayRef, AsArray as _, BooleanArray, StringViewArray};
use datafusion::arrow::datatypes::DataType;
use datafusion::common::{Result, ScalarValue, exec_err};
use datafusion::functions_aggregate::min_max::{max_udaf, min_udaf};
use datafusion::logical_expr::function::AccumulatorArgs;
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, EmitTo, GroupsAccumulator, SetMonotonicity, Signature, StatisticsArgs, Volatility,
};

use super::floats::canonical;
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
            DataType::Utf8View => Ok(Box::new(TextExtremes {
                is_max: self.is_max,
                extremes: Vec::new(),
                bytes: 0,
            })),
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
    extremes: Vec<Option<OrderedText<Box<str>>>>,
    bytes: usize,
}

impl GroupsAccumulator for TextExtremes {
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        groups: &[usize],
        filter: Option<&BooleanArray>,
        count: usize,
    ) -> Result<()> {
        self.extremes.resize(count, None);
        for (at, (text, group)) in texts(values)?.iter().zip(groups).enumerate() {
            let is_wanted = filter.is_none_or(|filter| filter.is_valid(at) && filter.value(at));
            let (Some(text), true, Some(extreme)) = (text, is_wanted, self.extremes.get_mut(*group)) else {
                continue;
            };
            let text = OrderedText::of(text);
            if extreme.as_ref().is_none_or(|known| text.is_better(known, self.is_max)) {
                let before = extreme.as_ref().map_or(0, |extreme| extreme.text.len());
                self.bytes = self.bytes.saturating_sub(before) + text.text.len();
                *extreme = Some(text.kept());
            }
        }
        Ok(())
    }

    fn merge_batch(&mut self, states: &[ArrayRef], groups: &[usize], count: usize) -> Result<()> {
        self.update_batch(states, groups, None, count)
    }

    fn evaluate(&mut self, emit_to: EmitTo) -> Result<ArrayRef> {
        let extremes = emit_to.take_needed(&mut self.extremes);
        let texts: StringViewArray = extremes
            .iter()
            .map(|extreme| extreme.as_ref().map(|extreme| &*extreme.text))
            .collect();
        let left: usize = extremes.iter().flatten().map(|extreme| extreme.text.len()).sum();
        self.bytes = self.bytes.saturating_sub(left);
        Ok(Arc::new(texts))
    }

    fn state(&mut self, emit_to: EmitTo) -> Result<Vec<ArrayRef>> {
        Ok(vec![self.evaluate(emit_to)?])
    }

    fn convert_to_state(&self, values: &[ArrayRef], filter: Option<&BooleanArray>) -> Result<Vec<ArrayRef>> {
        let wanted = |at: usize| filter.is_none_or(|filter| filter.is_valid(at) && filter.value(at));
        let texts = texts(values)?.iter().enumerate();
        let kept: StringViewArray = texts.map(|(at, text)| text.filter(|_| wanted(at))).collect();
        Ok(vec![Arc::new(kept)])
    }

    fn size(&self) -> usize {
        self.bytes + self.extremes.capacity() * size_of::<Option<OrderedText<Box<str>>>>()
    }
}
