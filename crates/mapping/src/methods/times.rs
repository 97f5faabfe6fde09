//! Points in time: parsing and formatting by Go's reference layouts, and Unix time.
//!
//! A time method accepts a timestamp, a number of seconds since 1970, or a text in RFC 3339 form.

use std::str::FromStr as _;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use thalweg_record::{Ticks, Value};

use super::{Method, MethodSpec, built, custom, plain};
use crate::context::EvalContext;
use crate::error::{EvalResult, Fault};
use crate::expr_value::ExprValue;
use crate::layout::{RFC3339_NANO, TimeLayout};
use crate::parser::arguments::{Param, ParamKind};
use crate::prepared_argument::PreparedArgument;
use crate::view::{self, Number};

pub(super) static METHODS: &[MethodSpec] = &[
    custom(
        "ts_format",
        &[
            Param::optional("format", ParamKind::Text),
            Param::optional("tz", ParamKind::Text),
        ],
        |arguments| {
            let (at, zone_at) = (arguments.at(0), arguments.at(1));
            let layout = match arguments.optional(0)? {
                Some(layout) => Some(PreparedArgument::new("format", layout, at, TimeLayout::parse)?),
                None => None,
            };
            let zone = match arguments.optional(1)? {
                Some(zone) => Some(PreparedArgument::new("tz", zone, zone_at, time_zone)?),
                None => None,
            };
            Ok(Method::Time(TimeMethod::Format { layout, zone }))
        },
    ),
    custom("ts_parse", &[Param::needed("format", ParamKind::Text)], |arguments| {
        let at = arguments.at(0);
        Ok(Method::Time(TimeMethod::Parse(PreparedArgument::new(
            "format",
            arguments.value(0)?,
            at,
            TimeLayout::parse,
        )?)))
    }),
    plain("ts_unix", |value, _| unix_time(&value, 1_000_000_000)),
    plain("ts_unix_milli", |value, _| unix_time(&value, 1_000_000)),
];

pub(crate) enum TimeMethod {
    Parse(PreparedArgument<TimeLayout>),
    Format {
        layout: Option<PreparedArgument<TimeLayout>>,
        zone: Option<PreparedArgument<TimeZone>>,
    },
}

impl TimeMethod {
    pub fn eval(&self, target: Value, context: &mut EvalContext<'_>) -> EvalResult<ExprValue> {
        match self {
            TimeMethod::Parse(layout) => {
                let text = view::need_text(&target)?;
                let time = layout.with(context, |layout, _| layout.read(&text).map_err(Fault::text))?;
                Ok(ExprValue::Value(Value::Time(ticks(time)?)))
            }
            TimeMethod::Format { layout, zone } => {
                let time = timestamp(&target)?;
                let zone = match zone {
                    Some(zone) => zone.with(context, |zone, _| Ok(zone.clone()))?,
                    None => TimeZone::UTC,
                };
                match layout {
                    Some(layout) => layout.with(context, |layout, _| built(layout.write(time, zone))),
                    None => built(RFC3339_NANO.write(time, zone)),
                }
            }
        }
    }
}

fn time_zone(name: &str) -> Result<TimeZone, String> {
    if matches!(name, "" | "UTC") {
        return Ok(TimeZone::UTC);
    }
    TimeZone::get(name).map_err(|_| {
        format!("unknown time zone `{name}`: it must be a name such as `Europe/Berlin` that this system's time zone database has")
    })
}

fn unix_time(value: &Value, nanos_per_unit: i128) -> EvalResult<ExprValue> {
    let units = timestamp(value)?.as_nanosecond().div_euclid(nanos_per_unit);
    Ok(ExprValue::Value(Number::Integer(units).value()))
}

fn ticks(time: Timestamp) -> EvalResult<Ticks> {
    let ticks = i64::try_from(time.as_nanosecond().div_euclid(100));
    ticks.map(Ticks).map_err(|_| Fault::text("the time is out of range"))
}

/// Converts a value to a timestamp.
fn timestamp(value: &Value) -> EvalResult<Timestamp> {
    let nanos = match value {
        Value::Time(ticks) => i128::from(ticks.0) * 100,
        Value::Decimal(text) => decimal_nanos(text).ok_or_else(|| view::mismatch("timestamp", value))?,
        other => match Number::of(other) {
            Some(Number::Integer(seconds)) => seconds.saturating_mul(1_000_000_000),
            Some(Number::Float(seconds)) => float_nanos(seconds).ok_or_else(|| view::mismatch("timestamp", value))?,
            None => {
                let text = view::text(other).ok_or_else(|| view::mismatch("timestamp", other))?;
                return RFC3339_NANO.read(&text).map_err(Fault::text);
            }
        },
    };
    Timestamp::from_nanosecond(nanos).map_err(|_| {
        let shown = thalweg_record::json::to_string(value);
        Fault::text(format!(
            "{shown} is not a time in seconds since 1970 between the years -9999 and 9999"
        ))
    })
}

/// Uses the shortest decimal that represents the float: 1597405526.371 is 371 ms, not 371.00005.
fn float_nanos(seconds: f64) -> Option<i128> {
    if !seconds.is_finite() {
        return None;
    }
    decimal_nanos(&seconds.to_string())
}

/// Parses decimal seconds directly, because a float would lose digits of the fraction.
fn decimal_nanos(text: &str) -> Option<i128> {
    let Some((whole, fraction)) = text.split_once('.').filter(|_| !text.contains(['e', 'E'])) else {
        return match i128::from_str(text) {
            Ok(seconds) => Some(seconds.saturating_mul(1_000_000_000)),
            Err(_) => text
                .parse()
                .ok()
                .filter(|_| text.contains(['e', 'E']))
                .and_then(float_nanos),
        };
    };
    let digits: String = fraction.chars().chain("000000000".chars()).take(9).collect();
    let nanos: i128 = digits.parse().ok()?;
    let whole_nanos = i128::from_str(whole).ok()?.saturating_mul(1_000_000_000);
    Some(if text.starts_with('-') {
        whole_nanos.saturating_sub(nanos)
    } else {
        whole_nanos.saturating_add(nanos)
    })
}
