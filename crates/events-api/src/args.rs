//! Parses and validates the arguments of a call, in the order in which mistakes are reported.

use std::borrow::Cow;
use std::fmt;

use thalweg_events::json::{Json, JsonKind};
use thalweg_events::limits::{check_message_size, check_stream, check_type, name_fault};
use thalweg_events::names::GroupMember;
use thalweg_events::{BrokenLimit, Direction, EventsError, ExpectedVersion, MessageId, NewEvent, Uuid};

use crate::problem::{Problem, Result};

/// The default page size, in messages.
const BATCH: usize = 1000;
const BATCH_MAX: i64 = 10_000;
/// Limited because each type is compared with the type of each message that is read.
pub(crate) const TYPES_MAX: usize = 255;

/// The arguments after the name of the method.
#[derive(Clone, Copy)]
pub(crate) struct CallArgs<'a>(pub &'a [Json<'a>]);

/// An options object, or none.
#[derive(Clone, Copy)]
pub(crate) struct CallOptions<'a>(Option<Json<'a>>);

impl<'a> CallArgs<'a> {
    pub fn at_least(self, count: usize, message: &str) -> Result<()> {
        match self.0.len() >= count {
            true => Ok(()),
            false => Err(Problem::invalid(message)),
        }
    }

    pub fn get(self, n: usize) -> Option<Json<'a>> {
        self.0.get(n).copied()
    }

    pub fn string(self, n: usize, message: &str) -> Result<Cow<'a, str>> {
        let found = self.get(n).and_then(Json::string);
        found.ok_or_else(|| Problem::invalid(message))
    }

    pub fn non_empty(self, n: usize, message: &str) -> Result<Cow<'a, str>> {
        let text = self.string(n, message)?;
        match text.is_empty() {
            true => Err(Problem::invalid(message)),
            false => Ok(text),
        }
    }

    pub fn stream(self, n: usize) -> Result<Cow<'a, str>> {
        self.non_empty(n, "streamName must be a non-empty string")
    }

    pub fn namespace(self, n: usize) -> Result<Cow<'a, str>> {
        self.non_empty(n, "namespace ID must be a non-empty string")
    }

    pub fn object(self, n: usize, message: &str) -> Result<Json<'a>> {
        let found = self.get(n).filter(|json| json.kind() == JsonKind::Object);
        found.ok_or_else(|| Problem::invalid(message))
    }

    /// `null` is not an object either.
    pub fn options(self, n: usize) -> Result<CallOptions<'a>> {
        match self.get(n) {
            None => Ok(CallOptions(None)),
            Some(_) => Ok(CallOptions(Some(self.object(n, "options must be an object")?))),
        }
    }
}

impl<'a> CallOptions<'a> {
    pub fn of(object: Json<'a>) -> CallOptions<'a> {
        CallOptions(Some(object))
    }

    pub fn get(self, name: &str) -> Option<Json<'a>> {
        self.0?.get(name)
    }

    /// `name` as it stands in error messages.
    pub fn number(self, name: &str) -> Result<Option<i64>> {
        self.number_named(name, &format!("options.{name}"))
    }

    pub fn number_named(self, name: &str, told: &str) -> Result<Option<i64>> {
        let Some(json) = self.get(name) else { return Ok(None) };
        let number = json.integer();
        number
            .map(Some)
            .ok_or_else(|| Problem::invalid(format!("{told} must be a number")))
    }

    pub fn string(self, name: &str) -> Result<Option<Cow<'a, str>>> {
        self.string_named(name, &format!("options.{name}"))
    }

    pub fn string_named(self, name: &str, told: &str) -> Result<Option<Cow<'a, str>>> {
        let Some(json) = self.get(name) else { return Ok(None) };
        let text = json.string();
        text.map(Some)
            .ok_or_else(|| Problem::invalid(format!("{told} must be a string")))
    }

    pub fn object(self, name: &str) -> Result<Option<Json<'a>>> {
        match self.get(name) {
            None => Ok(None),
            Some(json) if json.kind() == JsonKind::Object => Ok(Some(json)),
            Some(_) => Err(Problem::invalid(format!("options.{name} must be an object"))),
        }
    }

    /// The number of messages; -1 is no limit.
    pub fn batch_size(self) -> Result<usize> {
        match self.number("batchSize")? {
            Some(size) if size > BATCH_MAX => Err(Problem::invalid(
                "options.batchSize must be <= 10000 or -1 for unlimited",
            )),
            Some(-1) => Ok(usize::MAX),
            Some(size) if size > 0 => Ok(size as usize),
            _ => Ok(BATCH),
        }
    }

    pub fn direction(self) -> Result<Direction> {
        match self.string("direction")?.as_deref() {
            None | Some("forward") => Ok(Direction::Forward),
            Some("backward") => Ok(Direction::Backward),
            Some(_) => Err(Problem::invalid("options.direction must be forward or backward")),
        }
    }

    pub fn bool(self, name: &str) -> Result<bool> {
        let Some(json) = self.get(name) else { return Ok(false) };
        let wrong = || Problem::invalid(format!("options.{name} must be a boolean"));
        json.bool().ok_or_else(wrong)
    }

    pub fn types(self) -> Result<Vec<String>> {
        let Some(json) = self.get("types") else {
            return Ok(Vec::new());
        };
        let wrong = || Problem::invalid("options.types must be an array of strings");
        let mut types = Vec::new();
        for kind in json.array().ok_or_else(wrong)? {
            if types.len() == TYPES_MAX {
                let message = format!("options.types must have at most {TYPES_MAX} entries");
                return Err(Problem::invalid(message));
            }
            types.push(kind.string().ok_or_else(wrong)?.into_owned());
        }
        Ok(types)
    }

    pub fn member(self) -> Result<Option<GroupMember>> {
        let wrong = |what: &str| Err(Problem::invalid(format!("options.consumerGroup{what}")));
        let Some(group) = self.object("consumerGroup")? else {
            return Ok(None);
        };
        let group = CallOptions::of(group);
        let number = group.number_named("member", "options.consumerGroup.member")?;
        let size = group.number_named("size", "options.consumerGroup.size")?;
        if number.is_some_and(|number| number < 0) {
            return wrong(".member must be non-negative");
        }
        if size.is_some_and(|size| size <= 0) {
            return wrong(".size must be positive");
        }
        match (number, size) {
            (None, None) => Ok(None),
            (Some(number), Some(size)) => match GroupMember::new(number.unsigned_abs(), size.unsigned_abs()) {
                Some(member) => Ok(Some(member)),
                None => wrong(".member must be < size"),
            },
            _ => wrong(" requires both member and size"),
        }
    }

    pub fn id(self) -> Result<Option<MessageId>> {
        match self.string("id")?.filter(|id| !id.is_empty()) {
            None => Ok(None),
            Some(id) => uuid(&id, "options.id").map(Some),
        }
    }

    pub fn expected(self) -> Result<ExpectedVersion> {
        expected(self.get("expectedVersion"))
    }
}

fn uuid(id: &str, told: &str) -> Result<MessageId> {
    let uuid = Uuid::parse(id).map(MessageId::Uuid);
    uuid.ok_or_else(|| Problem::invalid(format!("{told} must be a valid UUID")))
}

fn expected(json: Option<Json<'_>>) -> Result<ExpectedVersion> {
    let Some(json) = json else {
        return Ok(ExpectedVersion::Any);
    };
    match (json.integer(), json.string().as_deref()) {
        (Some(version), _) => Ok(ExpectedVersion::Version(version)),
        (None, Some("any")) => Ok(ExpectedVersion::Any),
        (None, Some("exists")) => Ok(ExpectedVersion::Exists),
        (None, Some("noStream")) => Ok(ExpectedVersion::NoStream),
        _ => Err(Problem::invalid("options.expectedVersion must be a number")),
    }
}

/// A message to append, with its type, which may come from outside the request.
pub(crate) struct MessageArg<'a> {
    kind: Cow<'a, str>,
    data: &'a str,
    metadata: Option<&'a str>,
}

impl<'a> MessageArg<'a> {
    /// `told` is the name that error messages use.
    pub fn read(json: Json<'a>, told: &str) -> Result<MessageArg<'a>> {
        let wrong = |what: &str| Problem::invalid(format!("{told}{what}"));
        let kind = json.get("type").and_then(Json::string).filter(|kind| !kind.is_empty());
        let kind = kind.ok_or_else(|| wrong(".type must be a non-empty string"))?;
        let data = json.get("data").filter(|data| data.kind() == JsonKind::Object);
        let data = data.ok_or_else(|| wrong(".data must be an object"))?.text();
        let metadata = match json.get("metadata") {
            None => None,
            Some(metadata) if metadata.is_null() => None,
            Some(metadata) if metadata.kind() == JsonKind::Object => Some(metadata.text()),
            Some(_) => return Err(wrong(".metadata must be an object")),
        };
        Ok(MessageArg { kind, data, metadata })
    }

    pub fn within(&self, bytes_max: usize) -> Result<()> {
        check_type(&self.kind)?;
        Ok(check_message_size(self.bytes(), bytes_max)?)
    }

    /// The size of type, data and metadata together.
    pub fn bytes(&self) -> usize {
        self.kind.len() + self.data.len() + self.metadata.map_or(0, str::len)
    }

    pub fn new_event(&self, id: Option<MessageId>) -> NewEvent<'_> {
        NewEvent {
            id,
            kind: &self.kind,
            data: self.data,
            metadata: self.metadata,
        }
    }
}

impl From<BrokenLimit> for Problem {
    fn from(limit: BrokenLimit) -> Problem {
        EventsError::from(limit).into()
    }
}

pub(crate) fn stream_within(stream: &str) -> Result<()> {
    Ok(check_stream(stream)?)
}

pub(crate) fn name_within(name: &str, bytes_max: usize, told: impl fmt::Display) -> Result<()> {
    match name_fault(name, bytes_max) {
        Some(fault) => Err(Problem::invalid(format!("{told} {fault}"))),
        None => Ok(()),
    }
}
