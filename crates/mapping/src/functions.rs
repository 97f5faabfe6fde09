//! The functions of the language: names, parameters and results.

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use thalweg_record::{Text, Value};

use crate::Compiler;
use crate::context::EvalContext;
use crate::error::{EvalResult, Fault, SyntaxError};
use crate::expr::{Expr, meta_value};
use crate::expr_value::ExprValue;
use crate::host;
use crate::layout;
use crate::parser::arguments::{Arguments, Param, ParamKind};
use crate::path::Path;
use crate::view;

/// A function that does more than read a field or metadata of the message.
pub(crate) enum Function {
    Content,
    /// `json(path)` with a computed path.
    Json(Expr),
    /// `meta(key)` with a computed key.
    Meta(Expr),
    Error,
    Errored,
    Now,
    UnixTime {
        nanos_per_unit: i64,
    },
    Uuid,
    RandomInt(RandomSequence),
    Counter(Counter),
    Count(Arc<AtomicI64>),
    CountOf(Expr, Arc<host::NamedCounters>),
    Hostname,
    Env(Expr),
    /// `env` with a literal name. It is read once, because the environment of a process does not change.
    EnvOnce(Text, OnceLock<Value>),
    BatchIndex,
    BatchSize,
    Range {
        start: Expr,
        stop: Expr,
        step: Option<Expr>,
    },
    Throw(Expr),
    Deleted,
    Nothing,
}

pub(crate) struct FunctionSpec {
    pub name: &'static str,
    pub params: &'static [Param],
    pub build: fn(&mut Arguments, &Compiler) -> Result<FunctionNode, SyntaxError>,
}

/// The result of building a call: a function, or an expression node of another kind.
pub(crate) enum FunctionNode {
    Function(Function),
    Expr(Expr),
}

const fn simple(
    name: &'static str,
    build: fn(&mut Arguments, &Compiler) -> Result<FunctionNode, SyntaxError>,
) -> FunctionSpec {
    FunctionSpec {
        name,
        params: &[],
        build,
    }
}

pub(crate) static FUNCTIONS: &[FunctionSpec] = &[
    simple("batch_index", |_, _| Ok(FunctionNode::Function(Function::BatchIndex))),
    simple("batch_size", |_, _| Ok(FunctionNode::Function(Function::BatchSize))),
    simple("content", |_, _| Ok(FunctionNode::Function(Function::Content))),
    FunctionSpec {
        name: "count",
        params: &[Param::needed("name", ParamKind::Text)],
        build: build_count,
    },
    FunctionSpec {
        name: "counter",
        params: &[
            Param::optional("min", ParamKind::Integer),
            Param::optional("max", ParamKind::Integer),
            Param::optional("set", ParamKind::Any),
        ],
        build: build_counter,
    },
    simple("deleted", |_, _| Ok(FunctionNode::Function(Function::Deleted))),
    FunctionSpec {
        name: "env",
        params: &[
            Param::needed("name", ParamKind::Text),
            Param::optional("no_cache", ParamKind::Bool),
        ],
        build: build_env,
    },
    simple("error", |_, _| Ok(FunctionNode::Function(Function::Error))),
    simple("errored", |_, _| Ok(FunctionNode::Function(Function::Errored))),
    simple("hostname", |_, _| Ok(FunctionNode::Function(Function::Hostname))),
    FunctionSpec {
        name: "json",
        params: &[Param::optional("path", ParamKind::Text)],
        build: build_json,
    },
    FunctionSpec {
        name: "meta",
        params: &[Param::optional("key", ParamKind::Text)],
        build: build_meta,
    },
    FunctionSpec {
        name: "metadata",
        params: &[Param::optional("key", ParamKind::Text)],
        build: build_meta,
    },
    simple("nothing", |_, _| Ok(FunctionNode::Function(Function::Nothing))),
    simple("now", |_, _| Ok(FunctionNode::Function(Function::Now))),
    FunctionSpec {
        name: "random_int",
        params: &[
            Param::optional("seed", ParamKind::Any),
            Param::optional("min", ParamKind::Integer),
            Param::optional("max", ParamKind::Integer),
        ],
        build: build_random,
    },
    FunctionSpec {
        name: "range",
        params: &[
            Param::needed("start", ParamKind::Integer),
            Param::needed("stop", ParamKind::Integer),
            Param::optional("step", ParamKind::Integer),
        ],
        build: |arguments, _| {
            let (start, stop) = (arguments.value(0)?, arguments.value(1)?);
            let step = arguments.optional(2)?;
            Ok(FunctionNode::Function(Function::Range { start, stop, step }))
        },
    },
    FunctionSpec {
        name: "throw",
        params: &[Param::needed("why", ParamKind::Text)],
        build: |arguments, _| Ok(FunctionNode::Function(Function::Throw(arguments.value(0)?))),
    },
    simple("timestamp_unix", |_, _| unix_time(1_000_000_000)),
    simple("timestamp_unix_milli", |_, _| unix_time(1_000_000)),
    simple("timestamp_unix_nano", |_, _| unix_time(1)),
    simple("uuid_v4", |_, _| Ok(FunctionNode::Function(Function::Uuid))),
];

fn unix_time(nanos_per_unit: i64) -> Result<FunctionNode, SyntaxError> {
    Ok(FunctionNode::Function(Function::UnixTime { nanos_per_unit }))
}

fn build_count(arguments: &mut Arguments, compiler: &Compiler) -> Result<FunctionNode, SyntaxError> {
    let at = arguments.at(0);
    Ok(FunctionNode::Function(match arguments.value(0)? {
        Expr::Literal(Value::Text(name)) => {
            let counter = compiler.counts.named(&name);
            Function::Count(counter.map_err(|fault| SyntaxError::new(at, fault.to_string()))?)
        }
        computed => Function::CountOf(computed, compiler.counts.clone()),
    }))
}

fn build_env(arguments: &mut Arguments, _: &Compiler) -> Result<FunctionNode, SyntaxError> {
    let name = arguments.value(0)?;
    let no_cache = arguments.optional(1)?;
    let cached = matches!(no_cache, None | Some(Expr::Literal(Value::Bool(false))));
    Ok(FunctionNode::Function(match name {
        Expr::Literal(Value::Text(name)) if cached => Function::EnvOnce(name, OnceLock::new()),
        name => Function::Env(name),
    }))
}

fn build_json(arguments: &mut Arguments, _: &Compiler) -> Result<FunctionNode, SyntaxError> {
    Ok(match arguments.optional(0)? {
        None => FunctionNode::Expr(Expr::Input(Path::default())),
        Some(Expr::Literal(Value::Text(path))) => FunctionNode::Expr(Expr::Input(Path::dotted(&path))),
        Some(computed) => FunctionNode::Function(Function::Json(computed)),
    })
}

fn build_meta(arguments: &mut Arguments, _: &Compiler) -> Result<FunctionNode, SyntaxError> {
    Ok(match arguments.optional(0)? {
        None => FunctionNode::Expr(Expr::AllMeta),
        Some(Expr::Literal(Value::Text(key))) => FunctionNode::Expr(Expr::Meta(key)),
        Some(computed) => FunctionNode::Function(Function::Meta(computed)),
    })
}

fn build_random(arguments: &mut Arguments, _: &Compiler) -> Result<FunctionNode, SyntaxError> {
    Ok(FunctionNode::Function(Function::RandomInt(RandomSequence {
        seed: arguments.optional(0)?,
        min: arguments.optional(1)?,
        max: arguments.optional(2)?,
        state: OnceLock::new(),
    })))
}

fn build_counter(arguments: &mut Arguments, _: &Compiler) -> Result<FunctionNode, SyntaxError> {
    let (min, max) = (arguments.constant(0, 1)?, arguments.constant(1, i64::MAX)?);
    if min < 0 || max < min {
        return Err(SyntaxError::new(
            arguments.at(0),
            format!("function `counter` counts from `min` to `max`, with 0 <= min <= max, not from {min} to {max}"),
        ));
    }
    Ok(FunctionNode::Function(Function::Counter(Counter {
        min,
        max,
        set: arguments.optional(2)?,
        last: AtomicI64::new(min - 1),
    })))
}

impl Function {
    pub fn eval(&self, context: &mut EvalContext<'_>) -> EvalResult<ExprValue> {
        Ok(ExprValue::Value(match self {
            Function::Content => Value::Bytes(context.message.bytes().into_owned().into()),
            Function::Json(path) => {
                let path = Path::dotted(&text(path, context)?);
                context.input(&path)?
            }
            Function::Meta(key) => {
                let key = text(key, context)?;
                meta_value(context.meta(), &key)
            }
            Function::Error => match &context.message.failure {
                Some(failure) => Value::Text(failure.error.clone()),
                None => Value::Null,
            },
            Function::Errored => Value::Bool(context.message.failure.is_some()),
            Function::Now => Value::text(layout::rfc3339(context.host.unix_nanos())?),
            Function::UnixTime { nanos_per_unit } => Value::I64(context.host.unix_nanos().div_euclid(*nanos_per_unit)),
            Function::Uuid => Value::text(uuid(context.host.random_uuid())),
            Function::RandomInt(random) => Value::I64(random.next(context)?),
            Function::Counter(counter) => Value::I64(counter.next(context)?),
            Function::Count(counter) => Value::I64(host::next(counter)),
            Function::CountOf(name, counts) => {
                let name = text(name, context)?;
                Value::I64(host::next(&*counts.named(&name)?))
            }
            Function::Hostname => match context.host.hostname() {
                Some(name) => Value::text(name),
                None => return Err(Fault::text("the name of this host is unknown")),
            },
            Function::Env(name) => {
                let name = text(name, context)?;
                env(&name, context)
            }
            Function::EnvOnce(name, value) => value.get_or_init(|| env(name, context)).clone(),
            Function::BatchIndex => Value::I64(i64::try_from(context.index).unwrap_or(i64::MAX)),
            Function::BatchSize => Value::I64(i64::try_from(context.batch.len()).unwrap_or(i64::MAX)),
            Function::Range { start, stop, step } => range(start, stop, step.as_ref(), context)?,
            Function::Throw(why) => return Err(Fault::text(text(why, context)?)),
            Function::Deleted => return Ok(ExprValue::Deleted),
            Function::Nothing => return Ok(ExprValue::Nothing),
        }))
    }
}

fn text(argument: &Expr, context: &mut EvalContext<'_>) -> EvalResult<Text> {
    let value = argument.value("string", context)?;
    let text = view::need_text(&value).map_err(|fault| fault.from(|| argument.describe()));
    Ok(text?.into())
}

fn integer(argument: &Expr, context: &mut EvalContext<'_>) -> EvalResult<i64> {
    let value = argument.value("integer", context)?;
    view::integer(&value).ok_or_else(|| view::mismatch("integer", &value).from(|| argument.describe()))
}

fn env(name: &str, context: &EvalContext<'_>) -> Value {
    context.host.env(name).map_or(Value::Null, Value::text)
}

fn uuid(random: u128) -> Text {
    let uuid = uuid::Builder::from_random_bytes(random.to_be_bytes()).into_uuid();
    Text::new(uuid.hyphenated().encode_lower(&mut uuid::Uuid::encode_buffer()))
}

fn range(start: &Expr, stop: &Expr, step: Option<&Expr>, context: &mut EvalContext<'_>) -> EvalResult<Value> {
    let (start, stop) = (integer(start, context)?, integer(stop, context)?);
    let step = step.map_or(Ok(1), |step| integer(step, context))?;
    let message = match step {
        0 => "must not be 0",
        1.. if stop < start => "is positive, so `stop` must not lie below `start`",
        ..0 if stop > start => "is negative, so `stop` must not lie above `start`",
        _ => "",
    };
    if !message.is_empty() {
        return Err(Fault::text(format!("range({start}, {stop}, {step}): `step` {message}")));
    }
    let distance = (i128::from(stop) - i128::from(start)).unsigned_abs();
    let count = distance.div_ceil(i128::from(step).unsigned_abs());
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    context.spend_elements(count)?;
    let values = std::iter::successors(Some(start), |at| at.checked_add(step)).take(count);
    Ok(Value::Array(values.map(Value::I64).collect()))
}

/// `random_int(seed, min, max)`: the host's randomness without a seed, a repeatable sequence of its own with one.
pub(crate) struct RandomSequence {
    seed: Option<Expr>,
    min: Option<Expr>,
    max: Option<Expr>,
    /// State of a SplitMix64 generator (Steele, Lea, Flood), which advances by one atomic addition.
    state: OnceLock<AtomicU64>,
}

impl RandomSequence {
    fn next(&self, context: &mut EvalContext<'_>) -> EvalResult<i64> {
        let min = self.min.as_ref().map_or(Ok(0), |min| integer(min, context))?;
        let max = self
            .max
            .as_ref()
            .map_or(Ok(i64::MAX - 1), |max| integer(max, context))?;
        if max < min {
            return Err(Fault::text(format!("random_int: `min` {min} is above `max` {max}")));
        }
        let random = match &self.seed {
            None => context.host.random(),
            Some(seed) => self.seeded(seed, context)?,
        };
        let span = (i128::from(max) - i128::from(min)).unsigned_abs() + 1;
        // The high half of the product is uniform in 0..span with a bias of at most span / 2^64.
        let offset = (u128::from(random) * span) >> 64;
        let value = i128::from(min) + i128::try_from(offset).unwrap_or(0);
        Ok(i64::try_from(value).unwrap_or(max))
    }

    fn seeded(&self, seed: &Expr, context: &mut EvalContext<'_>) -> EvalResult<u64> {
        const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;
        let state = match self.state.get() {
            Some(state) => state,
            None => {
                let seed = integer(seed, context)?;
                self.state.get_or_init(|| AtomicU64::new(seed.cast_unsigned()))
            }
        };
        let z = state.fetch_add(GOLDEN, Ordering::Relaxed).wrapping_add(GOLDEN);
        let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        Ok(z ^ (z >> 31))
    }
}

/// `counter(min, max, set)`: each occurrence in a source text has its own count.
pub(crate) struct Counter {
    min: i64,
    max: i64,
    set: Option<Expr>,
    last: AtomicI64,
}

impl Counter {
    fn next(&self, context: &mut EvalContext<'_>) -> EvalResult<i64> {
        if let Some(set) = &self.set {
            match set.eval(context)? {
                ExprValue::Value(Value::Null) => return Ok(self.last.load(Ordering::Relaxed).max(self.min)),
                ExprValue::Value(value) => {
                    let to = view::integer(&value).filter(|to| *to >= 0);
                    let to = to.ok_or_else(|| view::mismatch("non-negative integer", &value));
                    let to = to.map_err(|fault| fault.from(|| "argument `set` of `counter`".to_owned()))?;
                    self.last.store(to, Ordering::Relaxed);
                    return Ok(to);
                }
                ExprValue::Deleted | ExprValue::Nothing => {}
            }
        }
        let after = |last: i64| if last >= self.max { self.min } else { last + 1 };
        let counted = self
            .last
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| Some(after(last)));
        Ok(after(counted.unwrap_or(self.min)))
    }
}
