//! Parses the settings of a subscription.

use thalweg_events::json::{Json, JsonKind};
use thalweg_events::limits::{STREAM_BYTES_MAX, TYPE_BYTES_MAX};
use thalweg_events::subscription::{
    DeliveryStrategy, SettingsChange, SubscriptionSettings, SubscriptionSource, TYPES_MAX,
};
use thalweg_events::{Namespace, StartPosition};

use super::within;
use crate::args::{CallOptions, name_within, stream_within};
use crate::problem::{Problem, Result};

pub(super) const MICROS_PER_MS: i64 = 1000;

/// Default, minimum and maximum.
const ACK_TIMEOUT_MS: (i64, i64, i64) = (30_000, 100, 43_200_000);
const MAX_ATTEMPTS: (i64, i64, i64) = (5, 1, 1000);
const MAX_IN_FLIGHT: (i64, i64, i64) = (100, 1, 10_000);

/// The start position may depend on what is stored.
pub(super) struct NewSubscription {
    settings: SubscriptionSettings,
    start: StartPosition,
}

impl NewSubscription {
    pub fn settings(self, namespace: &dyn Namespace) -> SubscriptionSettings {
        SubscriptionSettings {
            from: self.start.global(namespace),
            ..self.settings
        }
    }
}

pub(super) fn read(options: CallOptions<'_>) -> Result<NewSubscription> {
    let source = source(options)?;
    let start = start(options)?.unwrap_or(StartPosition::Start);
    let change = changed(options)?;
    let of_source = match &source {
        SubscriptionSource::Category(category) => name_within(category, STREAM_BYTES_MAX, "options.category"),
        SubscriptionSource::Stream(stream) => stream_within(stream),
        SubscriptionSource::All => Ok(()),
    };
    of_source?;
    Ok(NewSubscription {
        start,
        settings: SubscriptionSettings {
            source,
            from: 1,
            strategy: change.strategy.unwrap_or_default(),
            ack_timeout: change.ack_timeout.unwrap_or(ACK_TIMEOUT_MS.0 * MICROS_PER_MS),
            max_attempts: change.max_attempts.unwrap_or(MAX_ATTEMPTS.0 as u32),
            max_in_flight: change.max_in_flight.unwrap_or(MAX_IN_FLIGHT.0 as usize),
            types: change.types.unwrap_or_default(),
            correlation: change.correlation.flatten(),
        },
    })
}

pub(super) fn change(options: CallOptions<'_>) -> Result<SettingsChange> {
    for fixed in ["category", "stream", "all", "from"] {
        if options.get(fixed).is_some() {
            let cure = match fixed {
                "from" => "use sub.reset",
                _ => "delete the subscription and create it again",
            };
            return Err(Problem::invalid(format!("options.{fixed} cannot be changed: {cure}")));
        }
    }
    changed(options)
}

fn source(options: CallOptions<'_>) -> Result<SubscriptionSource> {
    let category = options.string("category")?;
    let stream = options.string("stream")?;
    if stream.as_deref() == Some("") {
        return Err(Problem::invalid("options.stream must be a non-empty string"));
    }
    let all = match options.get("all") {
        None => false,
        Some(json) if json.kind() == JsonKind::Boolean => json.bool().unwrap_or(false),
        Some(_) => return Err(Problem::invalid("options.all must be true or false")),
    };
    match (category, stream, all) {
        (Some(category), None, false) => Ok(SubscriptionSource::Category(category.into_owned())),
        (None, Some(stream), false) => Ok(SubscriptionSource::Stream(stream.into_owned())),
        (None, None, true) => Ok(SubscriptionSource::All),
        (None, None, false) => Err(Problem::invalid("options must have one of category, stream and all")),
        _ => Err(Problem::invalid(
            "options must have only one of category, stream and all",
        )),
    }
}

/// `None` if it is not given.
pub(super) fn start(options: CallOptions<'_>) -> Result<Option<StartPosition>> {
    let Some(json) = options.get("from") else {
        return Ok(None);
    };
    match (json.integer(), json.string().as_deref()) {
        (Some(global), _) => Ok(Some(StartPosition::At(global.clamp(1, PLACE_MAX).unsigned_abs()))),
        (None, Some("start")) => Ok(Some(StartPosition::Start)),
        (None, Some("end")) => Ok(Some(StartPosition::End)),
        _ => Err(Problem::invalid("options.from must be start, end or a number")),
    }
}

/// Exceeds every position.
const PLACE_MAX: i64 = 1 << 53;

fn changed(options: CallOptions<'_>) -> Result<SettingsChange> {
    let strategy = match options.get("strategy").map(Json::string) {
        None => None,
        Some(Some(name)) if name == strategy_name(DeliveryStrategy::ByStream) => Some(DeliveryStrategy::ByStream),
        Some(Some(name)) if name == strategy_name(DeliveryStrategy::RoundRobin) => Some(DeliveryStrategy::RoundRobin),
        Some(_) => return Err(Problem::invalid("options.strategy must be byStream or roundRobin")),
    };
    let limited = |name: &str, (default, least, most): (i64, i64, i64)| {
        let number = within(options, name, default, least, most)?;
        Ok::<_, Problem>(options.get(name).map(|_| number))
    };
    let ack_timeout = limited("ackTimeoutMs", ACK_TIMEOUT_MS)?;
    let max_attempts = limited("maxAttempts", MAX_ATTEMPTS)?;
    let max_in_flight = limited("maxInFlight", MAX_IN_FLIGHT)?;
    let types = options.get("types").map(|_| options.types()).transpose()?;
    if let Some(types) = &types {
        if types.len() > TYPES_MAX {
            return Err(Problem::invalid(format!(
                "options.types must have at most {TYPES_MAX} entries"
            )));
        }
        types
            .iter()
            .try_for_each(|kind| name_within(kind, TYPE_BYTES_MAX, "options.types"))?;
    }
    let correlation = options.string("correlation")?;
    if let Some(correlation) = &correlation {
        name_within(correlation, STREAM_BYTES_MAX, "options.correlation")?;
    }
    Ok(SettingsChange {
        strategy,
        ack_timeout: ack_timeout.map(|ms| ms * MICROS_PER_MS),
        max_attempts: max_attempts.and_then(|count| u32::try_from(count).ok()),
        max_in_flight: max_in_flight.and_then(|count| usize::try_from(count).ok()),
        types,
        // An empty text means no filter.
        correlation: correlation.map(|text| (!text.is_empty()).then(|| text.into_owned())),
    })
}

pub(super) fn strategy_name(strategy: DeliveryStrategy) -> &'static str {
    match strategy {
        DeliveryStrategy::ByStream => "byStream",
        DeliveryStrategy::RoundRobin => "roundRobin",
    }
}
