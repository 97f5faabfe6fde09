//! Points in time: parsing and formatting by Go's reference layouts and by `strftime`, zones, rounding, and Unix time.
//!
//! A time method accepts a timestamp, a number of seconds since 1970, or a text in RFC 3339 form.

use std::str::FromStr as _;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use thalweg_record::{Ticks, Value};

use super::{Method, MethodSpec, built, custom, durations, integer_argument, needed, plain, with};
use crate::context::EvalContext;
use crate::error::{EvalResult, Fault, SyntaxError};
use crate::expr_value::ExprValue;
use crate::layout::{RFC3339_NANO, StrftimeFormat, TimeLayout};
use crate::parser::arguments::{Arguments, Param, ParamKind};
use crate::prepared_argument::PreparedArgument;
use crate::view::{self, Number};

const FORMAT: Param = Param::needed("format", ParamKind::Text);
const ZONE: Param = Param::optional("tz", ParamKind::Text);

pub(super) static METHODS: &[MethodSpec] = &[
    custom(
        "format_timestamp",
        &[Param::optional("format", ParamKind::Text), ZONE],
        ts_format,
    ),
    custom("format_timestamp_strftime", &[FORMAT, ZONE], ts_strftime),
    plain("format_timestamp_unix", |value, _| unix_time(&value, 1_000_000_000)),
    plain("format_timestamp_unix_micro", |value, _| unix_time(&value, 1_000)),
    plain("format_timestamp_unix_milli", |value, _| unix_time(&value, 1_000_000)),
    plain("format_timestamp_unix_nano", |value, _| unix_time(&value, 1)),
    plain("parse_duration", |value, _| {
        let nanos = durations::parse(&view::need_text(&value)?).map_err(Fault::text)?;
        Ok(ExprValue::Value(Value::I64(nanos)))
    }),
    custom("parse_timestamp", &[FORMAT], ts_parse),
    custom("parse_timestamp_strptime", &[FORMAT], ts_strptime),
    custom(
        "ts_format",
        &[Param::optional("format", ParamKind::Text), ZONE],
        ts_format,
    ),
    custom("ts_parse", &[FORMAT], ts_parse),
    with("ts_round", &[Param::needed("duration", ParamKind::Integer)], ts_round),
    custom("ts_strftime", &[FORMAT, ZONE], ts_strftime),
    custom("ts_strptime", &[FORMAT], ts_strptime),
    custom("ts_tz", &[Param::needed("tz", ParamKind::Text)], |arguments| {
        let (at, zone) = (arguments.at(0), arguments.value(0)?);
        let zone = PreparedArgument::new("tz", zone, at, time_zone)?;
        Ok(Method::Time(TimeMethod::InZone(zone)))
    }),
    plain("ts_unix", |value, _| unix_time(&value, 1_000_000_000)),
    plain("ts_unix_micro", |value, _| unix_time(&value, 1_000)),
    plain("ts_unix_milli", |value, _| unix_time(&value, 1_000_000)),
    plain("ts_unix_nano", |value, _| unix_time(&value, 1)),
];

pub(crate) enum TimeMethod {
    Parse(PreparedArgument<TimeLayout>),
    Strptime(PreparedArgument<StrftimeFormat>),
    Format {
        layout: Option<PreparedArgument<TimeLayout>>,
        zone: Option<PreparedArgument<TimeZone>>,
    },
    Strftime {
        format: PreparedArgument<StrftimeFormat>,
        zone: Option<PreparedArgument<TimeZone>>,
    },
    /// A timestamp has no zone: the result is RFC 3339 text with the offset.
    InZone(PreparedArgument<TimeZone>),
}

fn ts_parse(arguments: &mut Arguments) -> Result<Method, SyntaxError> {
    let (at, layout) = (arguments.at(0), arguments.value(0)?);
    let layout = PreparedArgument::new("format", layout, at, TimeLayout::parse)?;
    Ok(Method::Time(TimeMethod::Parse(layout)))
}

fn ts_strptime(arguments: &mut Arguments) -> Result<Method, SyntaxError> {
    let (at, format) = (arguments.at(0), arguments.value(0)?);
    let format = PreparedArgument::new("format", format, at, StrftimeFormat::parse)?;
    Ok(Method::Time(TimeMethod::Strptime(format)))
}

fn ts_format(arguments: &mut Arguments) -> Result<Method, SyntaxError> {
    let at = arguments.at(0);
    let layout = match arguments.optional(0)? {
        Some(layout) => Some(PreparedArgument::new("format", layout, at, TimeLayout::parse)?),
        None => None,
    };
    let zone = zone_argument(arguments)?;
    Ok(Method::Time(TimeMethod::Format { layout, zone }))
}

fn ts_strftime(arguments: &mut Arguments) -> Result<Method, SyntaxError> {
    let (at, format) = (arguments.at(0), arguments.value(0)?);
    let format = PreparedArgument::new("format", format, at, StrftimeFormat::parse)?;
    let zone = zone_argument(arguments)?;
    Ok(Method::Time(TimeMethod::Strftime { format, zone }))
}

fn zone_argument(arguments: &mut Arguments) -> Result<Option<PreparedArgument<TimeZone>>, SyntaxError> {
    let at = arguments.at(1);
    let zone = arguments.optional(1)?;
    zone.map(|zone| PreparedArgument::new("tz", zone, at, time_zone))
        .transpose()
}

impl TimeMethod {
    pub fn eval(&self, target: Value, context: &mut EvalContext<'_>) -> EvalResult<ExprValue> {
        match self {
            TimeMethod::Parse(layout) => {
                let text = view::need_text(&target)?;
                let time = layout.with(context, |layout, _| layout.read(&text).map_err(Fault::text))?;
                Ok(ExprValue::Value(Value::Time(ticks(time)?)))
            }
            TimeMethod::Strptime(format) => {
                let text = view::need_text(&target)?;
                let time = format.with(context, |format, _| format.read(&text).map_err(Fault::text))?;
                Ok(ExprValue::Value(Value::Time(ticks(time)?)))
            }
            TimeMethod::Format { layout, zone } => {
                let (time, zone) = in_zone(&target, zone.as_ref(), context)?;
                match layout {
                    Some(layout) => layout.with(context, |layout, _| built(layout.write(time, zone))),
                    None => built(RFC3339_NANO.write(time, zone)),
                }
            }
            TimeMethod::Strftime { format, zone } => {
                let (time, zone) = in_zone(&target, zone.as_ref(), context)?;
                let text = format.with(context, |format, _| format.write(time, zone).map_err(Fault::text))?;
                context.spend_bytes(text.len())?;
                built(text)
            }
            TimeMethod::InZone(zone) => {
                let (time, zone) = in_zone(&target, Some(zone), context)?;
                built(RFC3339_NANO.write(time, zone))
            }
        }
    }

    /// `ts_tz(zone)` before a method that formats gives it the zone with its name, which a text would not keep.
    pub fn takes_zone_of(&mut self, before: &mut Method) -> bool {
        let Method::Time(TimeMethod::InZone(_)) = before else {
            return false;
        };
        let (TimeMethod::Format { zone: zone @ None, .. } | TimeMethod::Strftime { zone: zone @ None, .. }) = self
        else {
            return false;
        };
        let Method::Time(TimeMethod::InZone(named)) = std::mem::replace(before, Method::Type) else {
            return false;
        };
        *zone = Some(named);
        true
    }
}

/// A time with the zone that is named, or that it has.
fn in_zone(
    target: &Value,
    named: Option<&PreparedArgument<TimeZone>>,
    context: &mut EvalContext<'_>,
) -> EvalResult<(Timestamp, TimeZone)> {
    let (time, own) = zoned(target)?;
    Ok(match named {
        Some(named) => (time, named.with(context, |zone, _| Ok(zone.clone()))?),
        None => (time, own),
    })
}

/// Rounds to the nearest multiple of a duration since the first day of year 1; what is halfway goes up.
fn ts_round(value: Value, arguments: &[Option<Value>], _: &mut EvalContext<'_>) -> EvalResult<ExprValue> {
    const YEAR_ONE_NANOS: i128 = -62_135_596_800_000_000_000;
    let step = i128::from(integer_argument(needed(arguments, 0), "duration")?);
    let (time, zone) = zoned(&value)?;
    let nanos = time.as_nanosecond();
    let rounded = match step {
        ..=0 => nanos,
        step => {
            let since = nanos - YEAR_ONE_NANOS;
            let below = since.rem_euclid(step);
            nanos - below + if below * 2 >= step { step } else { 0 }
        }
    };
    let rounded = Timestamp::from_nanosecond(rounded).map_err(|_| Fault::text("the time is out of range"))?;
    match zone == TimeZone::UTC {
        true => Ok(ExprValue::Value(Value::Time(ticks(rounded)?))),
        false => built(RFC3339_NANO.write(rounded, zone)),
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

fn timestamp(value: &Value) -> EvalResult<Timestamp> {
    zoned(value).map(|(time, _)| time)
}

/// A timestamp with the offset of a text; anything else is in UTC.
fn zoned(value: &Value) -> EvalResult<(Timestamp, TimeZone)> {
    let nanos = match value {
        Value::Time(ticks) => i128::from(ticks.0) * 100,
        Value::Decimal(text) => decimal_nanos(text).ok_or_else(|| view::mismatch("timestamp", value))?,
        other => match Number::of(other) {
            Some(Number::Integer(seconds)) => seconds.saturating_mul(1_000_000_000),
            Some(Number::Float(seconds)) => float_nanos(seconds).ok_or_else(|| view::mismatch("timestamp", value))?,
            None => {
                let text = view::text(other).ok_or_else(|| view::mismatch("timestamp", other))?;
                let (time, offset_seconds) = RFC3339_NANO.read_with_offset(&text).map_err(Fault::text)?;
                let offset = jiff::tz::Offset::from_seconds(offset_seconds);
                let zone = offset.ok().filter(|offset| !offset.is_zero()).map(TimeZone::fixed);
                return Ok((time, zone.unwrap_or(TimeZone::UTC)));
            }
        },
    };
    let time = Timestamp::from_nanosecond(nanos).map_err(|_| {
        let shown = thalweg_record::json::to_string(value);
        Fault::text(format!(
            "{shown} is not a time in seconds since 1970 between the years -9999 and 9999"
        ))
    })?;
    Ok((time, TimeZone::UTC))
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
