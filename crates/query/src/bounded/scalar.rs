//! A function with a bounded result: it is called only when the memory for the result is reserved.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef};
use datafusion::arrow::buffer::Buffer;
use datafusion::arrow::compute::concat;
use datafusion::arrow::datatypes::{DataType, FieldRef};
use datafusion::common::config::ConfigOptions;
use datafusion::common::{ExprSchema, Result, ScalarValue};
use datafusion::execution::memory_pool::MemoryReservation;
use datafusion::logical_expr::interval_arithmetic::Interval;
use datafusion::logical_expr::preimage::PreimageResult;
use datafusion::logical_expr::simplify::{ExprSimplifyResult, SimplifyContext};
use datafusion::logical_expr::sort_properties::{ExprProperties, SortProperties};
use datafusion::logical_expr::{
    ColumnarValue, Documentation, Expr, ExpressionPlacement, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF,
    ScalarUDFImpl, Signature, StructFieldMapping,
};

use super::budget::{Budget, too_large};
use super::function_list::{self, ResultBound};
use super::measure::array_bytes;
use super::rewrite;
use super::sizes::FunctionCall;

/// The most rows of a batch.
const BATCH_ROWS: usize = 8_192;

/// Bounds a function. Returns `None` if queries may not call it.
pub fn bounded(function: &Arc<ScalarUDF>) -> Option<Arc<ScalarUDF>> {
    if function.inner().is::<BoundedScalarFunction>() {
        return Some(function.clone());
    }
    match function_list::scalar(function.name())? {
        ResultBound::Refused => None,
        ResultBound::Plain => Some(function.clone()),
        size => Some(Arc::new(ScalarUDF::new_from_impl(BoundedScalarFunction {
            inner: function.clone(),
            size,
        }))),
    }
}

#[derive(Debug)]
pub struct BoundedScalarFunction {
    inner: Arc<ScalarUDF>,
    size: ResultBound,
}

impl PartialEq for BoundedScalarFunction {
    fn eq(&self, other: &BoundedScalarFunction) -> bool {
        self.inner == other.inner
    }
}

impl Eq for BoundedScalarFunction {}

impl Hash for BoundedScalarFunction {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.inner.hash(state);
    }
}

impl BoundedScalarFunction {
    fn call(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let budget = Budget::of(&args.config_options);
        budget.check_time()?;
        if let ResultBound::Pattern(_) = self.size {
            check_patterns(&budget, self.name(), args.args.get(1))?;
        }
        let are_constants = args.args.iter().all(|arg| matches!(arg, ColumnarValue::Scalar(_)));
        let number_rows = args.number_rows;
        let rows = if are_constants { 1 } else { number_rows };
        let asked = self.size.asked(&FunctionCall { args: &args.args, rows });
        // The consumer of a constant repeats it for each row.
        let repeated = if are_constants { number_rows.max(1) } else { 1 };
        let asked = asked.saturating_mul(repeated);
        let allowed = match self.size {
            ResultBound::Inputs(_) if !are_constants => usize::MAX,
            // A window passes all rows of a partition at once.
            _ => budget.result_max().saturating_mul(rows.div_ceil(BATCH_ROWS).max(1)),
        };
        if asked > allowed {
            return match self.size {
                ResultBound::AtMost(_) | ResultBound::Pattern(_) if !are_constants && number_rows > 1 => {
                    self.call_by_parts(&budget, args, allowed)
                }
                _ => Err(too_large(self.name(), asked, allowed)),
            };
        }
        let taken = budget.take(self.name(), asked)?;
        let made = self.inner.invoke_with_args(args)?;
        let Some(taken) = taken else { return Ok(made) };
        let array = match made {
            ColumnarValue::Array(array) => array,
            // Written out as the consumer would do: a constant cannot own a reservation.
            ColumnarValue::Scalar(constant) => constant.to_array_of_size(number_rows)?,
        };
        Ok(ColumnarValue::Array(held(&budget, array, taken)?))
    }

    /// Calls the function for fewer rows at a time. The bound is the worst case, and the actual size of each part is
    /// known before the next.
    fn call_by_parts(&self, budget: &Budget, args: ScalarFunctionArgs, allowed: usize) -> Result<ColumnarValue> {
        let (mut parts, mut made_bytes, mut from) = (Vec::new(), 0_usize, 0);
        let mut taken = budget.reservation();
        while from < args.number_rows {
            budget.check_time()?;
            let mut rows = args.number_rows - from;
            let (part, asked) = loop {
                let part = slice(&args, from, rows);
                let asked = self.size.asked(&FunctionCall { args: &part.args, rows });
                if asked <= allowed || rows == 1 {
                    break (part, asked);
                }
                rows = rows.div_ceil(2);
            };
            if asked > allowed || made_bytes > allowed {
                return Err(too_large(self.name(), asked.max(made_bytes), allowed));
            }
            if let Some(taken) = &mut taken {
                taken.try_resize(made_bytes.saturating_add(asked))?;
            }
            let made = self.inner.invoke_with_args(part)?.into_array(rows)?;
            made_bytes = made_bytes.saturating_add(array_bytes(&made));
            parts.push(made);
            from += rows;
        }
        if let Some(taken) = &mut taken {
            taken.try_resize(made_bytes.saturating_mul(2))?;
        }
        let parts: Vec<&dyn Array> = parts.iter().map(AsRef::as_ref).collect();
        let whole = concat(&parts)?;
        Ok(ColumnarValue::Array(match taken {
            Some(taken) => held(budget, whole, taken)?,
            None => whole,
        }))
    }
}

fn slice(args: &ScalarFunctionArgs, from: usize, rows: usize) -> ScalarFunctionArgs {
    let part = |arg: &ColumnarValue| match arg {
        ColumnarValue::Array(array) => ColumnarValue::Array(array.slice(from, rows)),
        constant => constant.clone(),
    };
    ScalarFunctionArgs {
        args: args.args.iter().map(part).collect(),
        number_rows: rows,
        ..args.clone()
    }
}

/// Each pattern is compiled; those of a column, one after the other.
fn check_patterns(budget: &Budget, function: &str, patterns: Option<&ColumnarValue>) -> Result<()> {
    match patterns {
        Some(ColumnarValue::Scalar(pattern)) => match pattern.try_as_str().flatten() {
            Some(pattern) => budget.check_pattern(function, pattern),
            None => Ok(()),
        },
        Some(ColumnarValue::Array(patterns)) => {
            let texts = datafusion::arrow::compute::cast(patterns, &DataType::Utf8View)?;
            let texts = datafusion::arrow::array::AsArray::as_string_view(&texts);
            texts
                .iter()
                .flatten()
                .try_for_each(|pattern| budget.check_pattern(function, pattern))
        }
        None => Ok(()),
    }
}

/// Attaches the reservation to the array until it is freed, if the array is large enough.
fn held(budget: &Budget, array: ArrayRef, taken: MemoryReservation) -> Result<ArrayRef> {
    let bytes = array.get_array_memory_size();
    if !budget.holds(bytes) {
        return Ok(array);
    }
    taken.try_resize(bytes)?;
    let data = array.to_data();
    let largest = largest_buffer(&data);
    let mut taken = Some(taken);
    let data = with_owner(data, largest, &mut taken)?;
    Ok(datafusion::arrow::array::make_array(data))
}

fn largest_buffer(data: &datafusion::arrow::array::ArrayData) -> usize {
    let own = data.buffers().iter().map(Buffer::len);
    own.chain(data.child_data().iter().map(largest_buffer))
        .max()
        .unwrap_or(0)
}

/// Attaches the reservation to the first buffer of the given size. It is released with the last array that uses the
/// buffer.
fn with_owner(
    data: datafusion::arrow::array::ArrayData,
    bytes: usize,
    taken: &mut Option<MemoryReservation>,
) -> Result<datafusion::arrow::array::ArrayData> {
    let mut buffers = data.buffers().to_vec();
    if let Some(buffer) = buffers.iter_mut().find(|buffer| buffer.len() == bytes)
        && let Some(taken) = taken.take()
    {
        let owner = ReservedBuffer {
            buffer: buffer.clone(),
            _taken: taken,
        };
        *buffer = Buffer::from(bytes::Bytes::from_owner(owner));
    }
    let mut children = data.child_data().to_vec();
    for child in &mut children {
        if taken.is_some() {
            *child = with_owner(child.clone(), bytes, taken)?;
        }
    }
    Ok(data.into_builder().buffers(buffers).child_data(children).build()?)
}

struct ReservedBuffer {
    buffer: Buffer,
    _taken: MemoryReservation,
}

impl AsRef<[u8]> for ReservedBuffer {
    fn as_ref(&self) -> &[u8] {
        self.buffer.as_slice()
    }
}

/// The results of planning hooks are bounded again.
#[warn(clippy::missing_trait_methods)]
impl ScalarUDFImpl for BoundedScalarFunction {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn display_name(&self, args: &[Expr]) -> Result<String> {
        #[expect(deprecated)]
        self.inner.inner().display_name(args)
    }

    fn schema_name(&self, args: &[Expr]) -> Result<String> {
        self.inner.schema_name(args)
    }

    fn signature(&self) -> &Signature {
        self.inner.signature()
    }

    fn return_type(&self, arg_types: &[DataType]) -> Result<DataType> {
        self.inner.inner().return_type(arg_types)
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        let field = self.inner.return_field_from_args(args)?;
        rewrite::check_type(field.data_type())?;
        Ok(field)
    }

    fn is_nullable(&self, args: &[Expr], schema: &dyn ExprSchema) -> bool {
        #[expect(deprecated)]
        self.inner.inner().is_nullable(args, schema)
    }

    fn is_strict(&self) -> bool {
        self.inner.inner().is_strict()
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        self.call(args)
    }

    fn with_updated_config(&self, config: &ConfigOptions) -> Option<ScalarUDF> {
        let updated = self.inner.inner().with_updated_config(config)?;
        Some(ScalarUDF::new_from_impl(BoundedScalarFunction {
            inner: Arc::new(updated),
            size: self.size,
        }))
    }

    fn aliases(&self) -> &[String] {
        self.inner.aliases()
    }

    fn simplify(&self, args: Vec<Expr>, info: &SimplifyContext) -> Result<ExprSimplifyResult> {
        // Planning may replace the function by an operator, which is evaluated at once if its arguments are constants.
        if let (ResultBound::Pattern(_), Some(Expr::Literal(pattern, _))) = (self.size, args.get(1))
            && let Some(pattern) = pattern.try_as_str().flatten()
        {
            Budget::of(info.config_options()).check_pattern(self.name(), pattern)?;
        }
        match self.inner.simplify(args, info)? {
            ExprSimplifyResult::Simplified(expr) => Ok(ExprSimplifyResult::Simplified(rewrite::functions(expr)?)),
            original => Ok(original),
        }
    }

    fn preimage(&self, args: &[Expr], lit_expr: &Expr, info: &SimplifyContext) -> Result<PreimageResult> {
        self.inner.inner().preimage(args, lit_expr, info)
    }

    fn conditional_arguments<'a>(&self, args: &'a [Expr]) -> Option<(Vec<&'a Expr>, Vec<&'a Expr>)> {
        self.inner.inner().conditional_arguments(args)
    }

    fn short_circuits(&self) -> bool {
        self.inner.inner().short_circuits()
    }

    fn evaluate_bounds(&self, input: &[&Interval]) -> Result<Interval> {
        self.inner.inner().evaluate_bounds(input)
    }

    fn propagate_constraints(&self, interval: &Interval, inputs: &[&Interval]) -> Result<Option<Vec<Interval>>> {
        self.inner.inner().propagate_constraints(interval, inputs)
    }

    fn struct_field_mapping(&self, literal_args: &[Option<ScalarValue>]) -> Option<StructFieldMapping> {
        self.inner.inner().struct_field_mapping(literal_args)
    }

    fn output_ordering(&self, inputs: &[ExprProperties]) -> Result<SortProperties> {
        self.inner.inner().output_ordering(inputs)
    }

    fn preserves_lex_ordering(&self, inputs: &[ExprProperties]) -> Result<bool> {
        self.inner.inner().preserves_lex_ordering(inputs)
    }

    fn strictly_order_preserving(&self, inputs: &[ExprProperties]) -> Result<bool> {
        self.inner.inner().strictly_order_preserving(inputs)
    }

    fn coerce_types(&self, arg_types: &[DataType]) -> Result<Vec<DataType>> {
        self.inner.inner().coerce_types(arg_types)
    }

    fn documentation(&self) -> Option<&Documentation> {
        self.inner.inner().documentation()
    }

    fn placement(&self, args: &[ExpressionPlacement]) -> ExpressionPlacement {
        self.inner.inner().placement(args)
    }
}
