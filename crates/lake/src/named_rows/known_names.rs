//! The usual names of the time, the body, the severity and the service in files of other programs, whatever their case
//! and their separators: `eventTime`, `event_time` and `Event Time` are one name.

use thalweg_columns::rows::attribute_columns::AttributeSource;

/// A role that one value of a row has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FieldRole {
    Time,
    Body,
    Severity,
    Service,
}

impl FieldRole {
    pub const COUNT: usize = 4;
}

/// A name of a role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RoleName {
    pub role: FieldRole,
    /// In the list of names, the best first.
    pub position: u8,
    /// The user says so, so it is better than all others.
    pub is_mapped: bool,
    pub unit: NumberUnit,
    /// A value that is no time rejects the row. Otherwise it is an attribute.
    pub is_strict: bool,
}

/// What the numbers of a time count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NumberUnit {
    Nanos,
    Micros,
    Millis,
    /// The unit follows from the magnitude.
    Magnitude,
}

/// The names of the time, as [`plain`] makes them.
const TIMES: [(&str, NumberUnit); 16] = [
    ("timeunixnano", NumberUnit::Nanos),
    ("chqtsns", NumberUnit::Nanos),
    ("chqtimestamp", NumberUnit::Millis),
    ("timestamp", NumberUnit::Magnitude),
    ("time", NumberUnit::Magnitude),
    ("ts", NumberUnit::Magnitude),
    ("@timestamp", NumberUnit::Magnitude),
    ("timestampns", NumberUnit::Nanos),
    ("timestampus", NumberUnit::Micros),
    ("timestampms", NumberUnit::Millis),
    ("eventtime", NumberUnit::Magnitude),
    ("eventtimestamp", NumberUnit::Magnitude),
    ("datetime", NumberUnit::Magnitude),
    ("logtime", NumberUnit::Magnitude),
    ("createdat", NumberUnit::Magnitude),
    ("date", NumberUnit::Magnitude),
];
pub(super) const OWN_TIME: u8 = 0;
pub(super) const THEIR_TIME: u8 = 1;
pub(super) const DATE: u8 = 15;
/// In these spellings, a value that is no time rejects the row.
const STRICT_TIMES: [&str; 7] = [
    "time_unix_nano",
    "chq_tsns",
    "chq_timestamp",
    "timestamp",
    "time",
    "ts",
    "@timestamp",
];
const BODIES: [&str; 9] = [
    "body",
    "logmessage",
    "message",
    "msg",
    "log",
    "line",
    "text",
    "content",
    "raw",
];
/// From here on an object is a body only if the row has no other one: `{"log": {"level": …}, "line": …}`.
pub(super) const WEAK_BODIES: u8 = 4;
const SEVERITIES: [&str; 5] = ["severitytext", "loglevel", "severity", "level", "levelname"];
/// Of this name, a number is a text, too.
pub(super) const SEVERITY_TEXT: u8 = 0;
const SERVICES: [&str; 2] = ["servicename", "service"];
/// The prefix of the reference system's older files.
const PREFIX: &str = "_cardinalhq.";

/// The role that a name has. `has_body`: the table has bodies and severities.
pub(super) fn role_of(name: &str, has_body: bool) -> Option<RoleName> {
    let found = |role, position: usize, unit, is_strict| RoleName {
        role,
        position: u8::try_from(position).unwrap_or(u8::MAX),
        is_mapped: false,
        unit,
        is_strict,
    };
    let plain = plain(without_prefix(name).unwrap_or(name));
    let at = |names: &[&str]| names.iter().position(|known| *known == plain);
    if let Some(position) = TIMES.iter().position(|(known, _)| *known == plain) {
        let unit = TIMES[position].1;
        return Some(found(FieldRole::Time, position, unit, STRICT_TIMES.contains(&name)));
    }
    let of = |role, names: &[&str]| Some(found(role, at(names)?, NumberUnit::Magnitude, true));
    let of_logs = || of(FieldRole::Body, &BODIES).or_else(|| of(FieldRole::Severity, &SEVERITIES));
    has_body
        .then(of_logs)
        .flatten()
        .or_else(|| of(FieldRole::Service, &SERVICES))
}

/// A name without the prefix of the reference system.
pub(super) fn without_prefix(name: &str) -> Option<&str> {
    name.strip_prefix(PREFIX)
}

/// A name in lower case without separators.
pub(super) fn plain(name: &str) -> String {
    let kept = name.chars().filter(|letter| !matches!(letter, '_' | '-' | '.' | ' '));
    kept.map(|letter| letter.to_ascii_lowercase()).collect()
}

/// Whose attributes the members of an object or a map of this name are, as in OTLP.
pub(super) fn attributes_of(name: &str) -> Option<AttributeSource> {
    match plain(name).as_str() {
        "resource" | "resourceattributes" => Some(AttributeSource::Resource),
        "scope" | "scopeattributes" => Some(AttributeSource::Scope),
        "attributes" | "attr" | "logattributes" | "spanattributes" | "metricattributes" => Some(AttributeSource::Attr),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIME_SPELLINGS: &str = "timestamp|Timestamp|TIMESTAMP|_cardinalhq.timestamp|ts|TS|time|@timestamp|@Timestamp|datetime|\
        DateTime|date|Date|event_time|eventTime|Event Time|event-time|created_at|createdAt|timestamp_ns|timestamp_us|timestampMs";
    const BODY_SPELLINGS: &str =
        "message|Message|msg|MSG|body|Body|text|content|raw|Raw|log|line|_cardinalhq.message|log_message";
    const SEVERITY_SPELLINGS: &str =
        "level|Level|severity|loglevel|log_level|logLevel|log.level|severity_text|SeverityText|_cardinalhq.level";
    const SERVICE_SPELLINGS: &str = "service|Service|service_name|service.name|ServiceName|_cardinalhq.service";
    const OTHERS: &str = "|_|times|time_ms|update|timestamp_zone|lines|messages|services";

    #[test]
    fn a_name_is_known_whatever_its_case_and_its_separators() {
        let role = |name: &str, has_body| role_of(name, has_body).map(|found| found.role);
        for (names, expected, is_of_logs) in [
            (TIME_SPELLINGS, Some(FieldRole::Time), false),
            (BODY_SPELLINGS, Some(FieldRole::Body), true),
            (SEVERITY_SPELLINGS, Some(FieldRole::Severity), true),
            (SERVICE_SPELLINGS, Some(FieldRole::Service), false),
            (OTHERS, None, false),
        ] {
            for name in names.split('|') {
                assert_eq!(role(name, true), expected, "{name}");
                let elsewhere = expected.filter(|_| !is_of_logs);
                assert_eq!(role(name, false), elsewhere, "{name} in a table without bodies");
            }
        }
    }

    #[test]
    fn positions_are_those_of_their_names() {
        let names = [(OWN_TIME, "timeunixnano"), (THEIR_TIME, "chqtsns"), (DATE, "date")];
        for (position, name) in names {
            assert_eq!(TIMES[usize::from(position)].0, name);
        }
        assert_eq!(
            (BODIES[usize::from(WEAK_BODIES)], SEVERITIES[usize::from(SEVERITY_TEXT)]),
            ("log", "severitytext")
        );
    }
}
