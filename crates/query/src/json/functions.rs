//! The functions. Each takes a text with JSON and a path: texts and numbers, or lists of them.

use std::borrow::Cow;
use std::sync::Arc;

use datafusion::arrow::array::{
    Array, ArrayRef, AsArray as _, BooleanBuilder, Float64Builder, Int64Builder, ListBuilder, StringBuilder,
    StringViewArray, StringViewBuilder,
};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, Field, FieldRef, Int64Type};
use datafusion::common::{Result, ScalarValue, exec_err, plan_err};
use datafusion::logical_expr::{
    ColumnarValue, Expr, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};

use super::value::{JsonValue, PathStep, STEPS_MAX};
use crate::format::json_column;

/// What a function makes of the value that it finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum JsonResult {
    /// The value as JSON.
    Json,
    /// A string without its quotes, other values as JSON.
    Text,
    /// A string.
    String,
    Integer,
    Double,
    Boolean,
    /// The elements of an array, each as JSON.
    Elements,
    Keys,
    Length,
    /// Whether the path leads to a value.
    IsThere,
    /// Whether the value has a member, or an element, or is a string of this name.
    HasKey,
}

/// The functions by name. An alias would double the names of nested calls, so there is none.
const FUNCTIONS: [(&str, JsonResult); 12] = [
    ("json_get", JsonResult::Json),
    ("json_get_json", JsonResult::Json),
    ("json_as_text", JsonResult::Text),
    ("json_get_str", JsonResult::String),
    ("json_get_int", JsonResult::Integer),
    ("json_get_float", JsonResult::Double),
    ("json_get_bool", JsonResult::Boolean),
    ("json_get_array", JsonResult::Elements),
    ("json_object_keys", JsonResult::Keys),
    ("json_length", JsonResult::Length),
    ("json_contains", JsonResult::IsThere),
    ("json_has_key", JsonResult::HasKey),
];

/// All functions of this module.
pub fn all() -> Vec<Arc<ScalarUDF>> {
    let mut all: Vec<_> = FUNCTIONS.iter().map(|(name, result)| function(name, *result)).collect();
    all.push(to_json());
    all
}

/// The function that an operator stands for.
pub fn of_operator(result: JsonResult) -> Arc<ScalarUDF> {
    let known = FUNCTIONS.iter().find(|(_, known)| *known == result);
    function(known.map_or("json_get", |(name, _)| name), result)
}

/// Whether an expression reads a value of any kind from JSON as a text.
pub fn is_text_of_json(expr: &Expr) -> bool {
    let Expr::ScalarFunction(call) = expr else { return false };
    let found = FUNCTIONS.iter().find(|(name, _)| *name == call.name());
    found.is_some_and(|(_, result)| matches!(result, JsonResult::Json | JsonResult::Text | JsonResult::String))
}

fn function(name: &'static str, result: JsonResult) -> Arc<ScalarUDF> {
    Arc::new(ScalarUDF::new_from_impl(JsonFunction {
        name,
        result,
        signature: Signature::user_defined(Volatility::Immutable),
    }))
}

pub fn to_json() -> Arc<ScalarUDF> {
    Arc::new(ScalarUDF::new_from_impl(ToJson {
        signature: Signature::any(1, Volatility::Immutable),
    }))
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct JsonFunction {
    name: &'static str,
    result: JsonResult,
    signature: Signature,
}

impl ScalarUDFImpl for JsonFunction {
    fn name(&self) -> &str {
        self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, given: &[DataType]) -> Result<Vec<DataType>> {
        let name = self.name;
        let Some((json, path)) = given.split_first() else {
            return plan_err!("{name}(json, path…) takes a text with JSON, and the path to a value");
        };
        let json = match value_type(json) {
            kind if kind.is_string() || kind.is_null() => DataType::Utf8View,
            kind if kind.is_nested() => kind.clone(),
            other => return plan_err!("{name}: the first argument is {other}, and no text with JSON"),
        };
        let is_complete = match self.result {
            JsonResult::IsThere => !path.is_empty(),
            JsonResult::HasKey => path.len() == 1,
            _ => true,
        };
        if !is_complete {
            return plan_err!("{name}(json, 'name') takes the name that is looked for");
        }
        if path.len() > STEPS_MAX {
            return plan_err!(
                "{name}: a path has at most {STEPS_MAX} steps, and this one {}",
                path.len()
            );
        }
        let mut types = vec![json];
        for kind in path {
            types.push(match (step_type(kind), kind) {
                (Some(step), _) => step,
                (None, DataType::List(item)) => match step_type(item.data_type()) {
                    Some(step) => DataType::List(Arc::new(Field::new_list_field(step, true))),
                    None => return self.no_step(kind),
                },
                _ => return self.no_step(kind),
            });
        }
        Ok(types)
    }

    fn return_type(&self, _given: &[DataType]) -> Result<DataType> {
        Ok(match self.result {
            JsonResult::Json | JsonResult::Text | JsonResult::String => DataType::Utf8View,
            JsonResult::Integer | JsonResult::Length => DataType::Int64,
            JsonResult::Double => DataType::Float64,
            JsonResult::Boolean | JsonResult::IsThere | JsonResult::HasKey => DataType::Boolean,
            JsonResult::Elements | JsonResult::Keys => DataType::List(text_item()),
        })
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let Some((json, path)) = args.args.split_first() else {
            return exec_err!("{} takes a text with JSON", self.name);
        };
        let is_constant = args.args.iter().all(|arg| matches!(arg, ColumnarValue::Scalar(_)));
        let rows = if is_constant { 1 } else { args.number_rows };
        let texts = JsonTexts::of(json)?;
        let path = path.iter().map(PathPart::of).collect::<Result<Vec<_>>>()?;
        let mut results = ResultBuilder::new(self.result, rows);
        let mut steps = Vec::new();
        for row in 0..rows {
            steps.clear();
            let is_path = path.iter().all(|part| part.add_steps(row, &mut steps).is_some());
            if steps.len() > STEPS_MAX {
                return exec_err!(
                    "{}: a path has at most {STEPS_MAX} steps, and one has {}",
                    self.name,
                    steps.len()
                );
            }
            let value = if is_path { texts.value(row) } else { None };
            results.append(value, &steps);
        }
        let made = results.finish();
        Ok(match is_constant {
            true => ColumnarValue::Scalar(ScalarValue::try_from_array(&made, 0)?),
            false => ColumnarValue::Array(made),
        })
    }
}

impl JsonFunction {
    fn no_step<T>(&self, kind: &DataType) -> Result<T> {
        plan_err!("{}: a path has texts and whole numbers, and no {kind}", self.name)
    }
}

fn value_type(kind: &DataType) -> &DataType {
    match kind {
        DataType::Dictionary(_, values) => values,
        kind => kind,
    }
}

fn step_type(kind: &DataType) -> Option<DataType> {
    match value_type(kind) {
        kind if kind.is_string() || kind.is_null() => Some(DataType::Utf8View),
        kind if kind.is_integer() => Some(DataType::Int64),
        _ => None,
    }
}

fn text_item() -> FieldRef {
    Arc::new(Field::new_list_field(DataType::Utf8, true))
}

/// The texts of the rows. A constant is checked once.
enum JsonTexts {
    Rows(StringViewArray),
    Constant(Option<String>),
}

impl JsonTexts {
    fn of(json: &ColumnarValue) -> Result<JsonTexts> {
        Ok(match json {
            ColumnarValue::Array(array) => JsonTexts::Rows(texts(array)?),
            ColumnarValue::Scalar(constant) => {
                let texts = texts(&constant.to_array()?)?;
                let text = texts.iter().next().flatten();
                JsonTexts::Constant(text.filter(|text| JsonValue::of(text).is_some()).map(str::to_owned))
            }
        })
    }

    fn value(&self, row: usize) -> Option<JsonValue<'_>> {
        match self {
            JsonTexts::Rows(texts) if texts.is_valid(row) => JsonValue::of(texts.value(row)),
            JsonTexts::Rows(_) => None,
            JsonTexts::Constant(text) => text.as_deref().map(JsonValue::of_checked),
        }
    }
}

/// Texts as they are, other values as JSON.
fn texts(array: &ArrayRef) -> Result<StringViewArray> {
    let texts = match array.data_type() {
        DataType::Utf8View => array.clone(),
        kind if kind.is_nested() => json_texts(array)?,
        _ => cast(array, &DataType::Utf8View)?,
    };
    match texts.as_string_view_opt() {
        Some(texts) => Ok(texts.clone()),
        None => exec_err!("{} is no text", array.data_type()),
    }
}

fn json_texts(array: &ArrayRef) -> Result<ArrayRef> {
    if array.data_type().is_null() {
        return Ok(cast(array, &DataType::Utf8View)?);
    }
    let field = Arc::new(Field::new("value", array.data_type().clone(), true));
    Ok(cast(&json_column(&field, array)?, &DataType::Utf8View)?)
}

/// The steps of one argument, which may have a path for each row.
struct PathPart {
    steps: ArrayRef,
    is_constant: bool,
}

impl PathPart {
    fn of(arg: &ColumnarValue) -> Result<PathPart> {
        Ok(match arg {
            ColumnarValue::Array(steps) => PathPart {
                steps: steps.clone(),
                is_constant: false,
            },
            ColumnarValue::Scalar(step) => PathPart {
                steps: step.to_array()?,
                is_constant: true,
            },
        })
    }

    /// `None`: a step is NULL.
    fn add_steps<'a>(&'a self, row: usize, steps: &mut Vec<PathStep<'a>>) -> Option<()> {
        add_steps(&self.steps, if self.is_constant { 0 } else { row }, steps)
    }
}

fn add_steps<'a>(array: &'a ArrayRef, row: usize, steps: &mut Vec<PathStep<'a>>) -> Option<()> {
    if array.is_null(row) {
        return None;
    }
    match array.data_type() {
        DataType::Utf8View => steps.push(PathStep::Key(array.as_string_view().value(row))),
        DataType::Int64 => steps.push(PathStep::Position(array.as_primitive::<Int64Type>().value(row))),
        DataType::List(_) => {
            let list = array.as_list::<i32>();
            let offsets = list.value_offsets();
            let offset = |at: usize| offsets.get(at).and_then(|offset| usize::try_from(*offset).ok());
            // One more than allowed is enough to be refused.
            for at in (offset(row)?..offset(row + 1)?).take(STEPS_MAX + 1) {
                add_steps(list.values(), at, steps)?;
            }
        }
        _ => return None,
    }
    Some(())
}

/// The results of the rows.
struct ResultBuilder {
    result: JsonResult,
    column: ResultColumn,
}

enum ResultColumn {
    Texts(StringViewBuilder),
    Integers(Int64Builder),
    Doubles(Float64Builder),
    Booleans(BooleanBuilder),
    Lists(ListBuilder<StringBuilder>),
}

impl ResultBuilder {
    fn new(result: JsonResult, rows: usize) -> ResultBuilder {
        let column = match result {
            JsonResult::Json | JsonResult::Text | JsonResult::String => {
                ResultColumn::Texts(StringViewBuilder::with_capacity(rows))
            }
            JsonResult::Integer | JsonResult::Length => ResultColumn::Integers(Int64Builder::with_capacity(rows)),
            JsonResult::Double => ResultColumn::Doubles(Float64Builder::with_capacity(rows)),
            JsonResult::Boolean | JsonResult::IsThere | JsonResult::HasKey => {
                ResultColumn::Booleans(BooleanBuilder::with_capacity(rows))
            }
            JsonResult::Elements | JsonResult::Keys => {
                let lists = ListBuilder::with_capacity(StringBuilder::new(), rows);
                ResultColumn::Lists(lists.with_field(text_item()))
            }
        };
        ResultBuilder { result, column }
    }

    /// `whole` is NULL if the text is no JSON.
    fn append(&mut self, whole: Option<JsonValue<'_>>, path: &[PathStep<'_>]) {
        let value = whole.and_then(|whole| whole.at(path));
        match &mut self.column {
            ResultColumn::Texts(texts) => texts.append_option(match self.result {
                JsonResult::Json => value.map(|value| Cow::Borrowed(value.json())),
                JsonResult::Text => value.and_then(JsonValue::text),
                _ => value.and_then(JsonValue::string),
            }),
            ResultColumn::Integers(integers) => integers.append_option(match self.result {
                JsonResult::Integer => value.and_then(JsonValue::integer),
                _ => value
                    .and_then(JsonValue::length)
                    .and_then(|length| i64::try_from(length).ok()),
            }),
            ResultColumn::Doubles(doubles) => doubles.append_option(value.and_then(JsonValue::double)),
            ResultColumn::Booleans(booleans) => booleans.append_option(match (self.result, path) {
                (JsonResult::IsThere, _) => whole.map(|_| value.is_some()),
                (JsonResult::HasKey, [PathStep::Key(key)]) => whole.map(|whole| whole.has(key)),
                (JsonResult::HasKey, _) => whole.map(|_| false),
                _ => value.and_then(JsonValue::boolean),
            }),
            ResultColumn::Lists(lists) => append_list(lists, self.result, value),
        }
    }

    fn finish(self) -> ArrayRef {
        match self.column {
            ResultColumn::Texts(mut texts) => Arc::new(texts.finish()),
            ResultColumn::Integers(mut integers) => Arc::new(integers.finish()),
            ResultColumn::Doubles(mut doubles) => Arc::new(doubles.finish()),
            ResultColumn::Booleans(mut booleans) => Arc::new(booleans.finish()),
            ResultColumn::Lists(mut lists) => Arc::new(lists.finish()),
        }
    }
}

fn append_list(lists: &mut ListBuilder<StringBuilder>, result: JsonResult, value: Option<JsonValue<'_>>) {
    use thalweg_kit::json_tokens::JsonKind::{Array, Object};
    match (result, value.map(|value| (value.kind(), value))) {
        (JsonResult::Keys, Some((Object, value))) => {
            for (key, _) in value.members() {
                lists.values().append_option(key.string());
            }
            lists.append(true);
        }
        (JsonResult::Elements, Some((Array, value))) => {
            for element in value.elements() {
                lists.values().append_value(element.json());
            }
            lists.append(true);
        }
        _ => lists.append(false),
    }
}

/// `to_json(value)`: any value as JSON, as an answer has it.
#[derive(Debug, PartialEq, Eq, Hash)]
struct ToJson {
    signature: Signature,
}

impl ScalarUDFImpl for ToJson {
    fn name(&self) -> &str {
        "to_json"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _given: &[DataType]) -> Result<DataType> {
        Ok(DataType::Utf8View)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        match args.args.first() {
            Some(ColumnarValue::Array(array)) => Ok(ColumnarValue::Array(json_texts(array)?)),
            Some(ColumnarValue::Scalar(constant)) => {
                let made = json_texts(&constant.to_array()?)?;
                Ok(ColumnarValue::Scalar(ScalarValue::try_from_array(&made, 0)?))
            }
            None => exec_err!("to_json takes a value"),
        }
    }
}
