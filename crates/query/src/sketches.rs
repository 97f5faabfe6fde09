//! `sketch_quantile(sketch, part)` and `sketch_merge(sketch)`: quantiles over the sketches of rollups, for one window
//! or many.
//!
//! `sketch_quantile(sketch_merge(sketch), 0.99)` is the quantile of all values in the windows of a group. NULL is
//! ignored. The result is NULL if there is nothing else, or if the sketch has no values.

use std::mem::size_of;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BinaryBuilder, BinaryViewArray, BooleanArray, Float64Builder};
use arrow::compute::{cast, nullif};
use arrow::datatypes::{DataType, Float64Type};
use datafusion::common::{Result, ScalarValue, exec_datafusion_err, exec_err};
use datafusion::logical_expr::function::AccumulatorArgs;
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, ColumnarValue, EmitTo, GroupsAccumulator, ScalarUDF, Signature,
    Volatility, create_udf,
};
use thalweg_sketch::{Sketch, SketchError};

pub const QUANTILE: &str = "sketch_quantile";
pub const MERGE: &str = "sketch_merge";

pub fn quantile_function() -> Arc<ScalarUDF> {
    Arc::new(create_udf(
        QUANTILE,
        vec![DataType::BinaryView, DataType::Float64],
        DataType::Float64,
        Volatility::Immutable,
        Arc::new(quantiles),
    ))
}

pub fn merge_function() -> Arc<AggregateUDF> {
    Arc::new(AggregateUDF::from(SketchMerge {
        signature: Signature::exact(vec![DataType::BinaryView], Volatility::Immutable),
    }))
}

/// Constant arguments are evaluated once.
fn quantiles(arguments: &[ColumnarValue]) -> Result<ColumnarValue> {
    let is_constant = arguments
        .iter()
        .all(|argument| matches!(argument, ColumnarValue::Scalar(_)));
    let arrays = ColumnarValue::values_to_arrays(arguments)?;
    let [sketches, parts] = &arrays[..] else {
        return exec_err!("{QUANTILE}(sketch, part) takes two arguments");
    };
    let (sketches, parts) = (sketches.as_binary_view(), parts.as_primitive::<Float64Type>());
    let (mut out, mut sketch) = (Float64Builder::with_capacity(sketches.len()), Sketch::default());
    for (bytes, part) in sketches.iter().zip(parts) {
        if let Some(part) = part
            && !(0.0..=1.0).contains(&part)
        {
            return exec_err!("{QUANTILE}(sketch, {part}): the part must be from 0 to 1; the median is 0.5");
        }
        let quantile = match (bytes, part) {
            (Some(bytes), Some(part)) => {
                sketch.clear();
                sketch
                    .merge_bytes(bytes)
                    .map_err(|error| not_a_sketch(QUANTILE, &error))?;
                sketch.quantile(part)
            }
            _ => None,
        };
        out.append_option(quantile);
    }
    let made: ArrayRef = Arc::new(out.finish());
    Ok(match is_constant {
        true => ColumnarValue::Scalar(ScalarValue::try_from_array(&made, 0)?),
        false => ColumnarValue::Array(made),
    })
}

fn not_a_sketch(function: &str, error: &SketchError) -> datafusion::error::DataFusionError {
    exec_datafusion_err!(
        "{function}() was given {error}; give it the column sketch of a rollup, or another DDSketch in protobuf form"
    )
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct SketchMerge {
    signature: Signature,
}

impl AggregateUDFImpl for SketchMerge {
    fn name(&self) -> &str {
        MERGE
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Binary)
    }

    fn accumulator(&self, _: AccumulatorArgs<'_>) -> Result<Box<dyn Accumulator>> {
        Ok(Box::<SketchAccumulator>::default())
    }

    fn groups_accumulator_supported(&self, _: AccumulatorArgs<'_>) -> bool {
        true
    }

    fn create_groups_accumulator(&self, _: AccumulatorArgs<'_>) -> Result<Box<dyn GroupsAccumulator>> {
        Ok(Box::<SketchGroupsAccumulator>::default())
    }

    /// Counts are added, so the order does not matter.
    fn order_sensitivity(&self) -> datafusion::logical_expr::utils::AggregateOrderSensitivity {
        datafusion::logical_expr::utils::AggregateOrderSensitivity::Insensitive
    }
}

/// Reads sketches from arguments or from partial states.
fn sketches(values: &[ArrayRef]) -> Result<BinaryViewArray> {
    match values {
        [values] => Ok(cast(values, &DataType::BinaryView)?.as_binary_view().clone()),
        _ => exec_err!("{MERGE}(sketch) takes one argument"),
    }
}

fn merge_into(merged: &mut Option<Sketch>, bytes: &[u8]) -> Result<()> {
    let merged = merged.get_or_insert_default();
    merged.merge_bytes(bytes).map_err(|error| not_a_sketch(MERGE, &error))
}

/// The merged sketch of all rows; `None` if there was none.
#[derive(Debug, Default)]
struct SketchAccumulator(Option<Sketch>);

impl Accumulator for SketchAccumulator {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let values = sketches(values)?;
        values
            .iter()
            .flatten()
            .try_for_each(|bytes| merge_into(&mut self.0, bytes))
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        self.update_batch(states)
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        Ok(ScalarValue::Binary(self.0.as_ref().map(|sketch| {
            let mut bytes = Vec::new();
            sketch.encode(&mut bytes);
            bytes
        })))
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        Ok(vec![self.evaluate()?])
    }

    fn size(&self) -> usize {
        size_of::<Self>() + self.0.as_ref().map_or(0, Sketch::allocated_bytes)
    }
}

/// One sketch per group. Unlike [`SketchAccumulator`] it needs no slice of the rows for each group.
#[derive(Debug, Default)]
struct SketchGroupsAccumulator {
    groups: Vec<Option<Sketch>>,
    /// Heap bytes of the sketches.
    bytes: usize,
}

impl SketchGroupsAccumulator {
    fn allocated(sketch: &Option<Sketch>) -> usize {
        sketch.as_ref().map_or(0, Sketch::allocated_bytes)
    }
}

impl GroupsAccumulator for SketchGroupsAccumulator {
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        group_indices: &[usize],
        filter: Option<&BooleanArray>,
        groups: usize,
    ) -> Result<()> {
        let values = sketches(values)?;
        self.groups.resize_with(groups, || None);
        for (row, (bytes, group)) in values.iter().zip(group_indices).enumerate() {
            let is_wanted = filter.is_none_or(|filter| filter.is_valid(row) && filter.value(row));
            if let Some(bytes) = bytes.filter(|_| is_wanted)
                && let Some(sketch) = self.groups.get_mut(*group)
            {
                let before = SketchGroupsAccumulator::allocated(sketch);
                merge_into(sketch, bytes)?;
                self.bytes += SketchGroupsAccumulator::allocated(sketch) - before;
            }
        }
        Ok(())
    }

    fn merge_batch(&mut self, states: &[ArrayRef], group_indices: &[usize], groups: usize) -> Result<()> {
        self.update_batch(states, group_indices, None, groups)
    }

    fn evaluate(&mut self, emit_to: EmitTo) -> Result<ArrayRef> {
        let groups = emit_to.take_needed(&mut self.groups);
        let (mut out, mut bytes) = (BinaryBuilder::with_capacity(groups.len(), 0), Vec::new());
        for sketch in groups {
            self.bytes = self.bytes.saturating_sub(SketchGroupsAccumulator::allocated(&sketch));
            match sketch {
                Some(sketch) => {
                    bytes.clear();
                    sketch.encode(&mut bytes);
                    out.append_value(&bytes);
                }
                None => out.append_null(),
            }
        }
        Ok(Arc::new(out.finish()))
    }

    fn state(&mut self, emit_to: EmitTo) -> Result<Vec<ArrayRef>> {
        Ok(vec![self.evaluate(emit_to)?])
    }

    /// The state of a group with one row is the row's sketch.
    fn convert_to_state(&self, values: &[ArrayRef], filter: Option<&BooleanArray>) -> Result<Vec<ArrayRef>> {
        let [values] = values else {
            return exec_err!("{MERGE}(sketch) takes one argument");
        };
        let values = match filter {
            // Filtered rows become NULL.
            Some(filter) => nullif(
                values,
                &arrow::compute::not(&arrow::compute::prep_null_mask_filter(filter))?,
            )?,
            None => values.clone(),
        };
        Ok(vec![cast(&values, &DataType::Binary)?])
    }

    fn size(&self) -> usize {
        self.groups.capacity() * size_of::<Option<Sketch>>() + self.bytes
    }
}
