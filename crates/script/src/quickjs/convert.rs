//! Converts a script's return value to changes of its message.

use thalweg_record::{Message, Payload, Text, Value};

use super::from_js::{ConversionBudget, ConversionError, from_js};
use super::lazy;
use super::runtime::QuickJsRuntime;
use super::runtime_state::LimitHit;
use super::text::meta_text;
use super::value::{PendingException, Val};
use crate::view::is_small;
use crate::{MetaReply, PayloadReply, Reply, ScriptOutput, UndefinedMeta};

/// Why a result could not be read.
#[derive(Debug)]
pub(super) enum ResultReadError {
    /// An exception is pending.
    Thrown,
    /// It is not a message.
    Bad(String),
    /// It exceeds a limit.
    Limit(String),
}

impl From<PendingException> for ResultReadError {
    fn from(_: PendingException) -> ResultReadError {
        ResultReadError::Thrown
    }
}

/// The error for a returned value that is neither a message nor a list.
pub const NOT_A_MESSAGE: &str = "code must return a message object or array of message objects";
/// The error for a returned list.
pub const NOT_ALL_MESSAGES: &str = "array elements must be message objects";

/// Reads the return value of a body. `msg` is its argument.
pub(super) fn returned(
    machine: &QuickJsRuntime,
    msg: &Val,
    message: &Message,
    result: Val,
) -> Result<ScriptOutput, ResultReadError> {
    if result.is_nullish() {
        return Ok(ScriptOutput::Nothing);
    }
    let mut reader = QuickJsResultReader {
        machine,
        msg,
        message,
        budget: ConversionBudget::new(machine.shared().limits.memory),
    };
    if !result.is_array() {
        return match is_message(&result) {
            true => reader.reply(&result).map(ScriptOutput::One),
            false => Err(ResultReadError::Bad(NOT_A_MESSAGE.to_owned())),
        };
    }
    let length = usize::try_from(result.length()?).unwrap_or_default();
    let limit = machine.shared().limits.results;
    if length > limit {
        machine.shared().hit.set(Some(LimitHit::Results));
        return Err(ResultReadError::Limit(format!(
            "code returned {length} messages, more than {limit}; raise scripting.results if that is meant"
        )));
    }
    let mut replies = Vec::with_capacity(length);
    for i in 0..length {
        let element = result.get_index(i as u32)?;
        if element.is_nullish() {
            continue;
        }
        if !is_message(&element) {
            return Err(ResultReadError::Bad(NOT_ALL_MESSAGES.to_owned()));
        }
        replies.push(reader.reply(&element)?);
    }
    Ok(match replies.len() {
        0 => ScriptOutput::Nothing,
        _ => ScriptOutput::Many(replies),
    })
}

fn is_message(value: &Val) -> bool {
    value.is_object() && !value.is_array() && !value.is_function() && !value.is_date()
}

struct QuickJsResultReader<'a> {
    machine: &'a QuickJsRuntime,
    msg: &'a Val,
    message: &'a Message,
    budget: ConversionBudget,
}

impl QuickJsResultReader<'_> {
    fn reply(&mut self, result: &Val) -> Result<Reply, ResultReadError> {
        Ok(Reply {
            payload: self.payload(result)?,
            meta: self.meta(result)?,
        })
    }

    fn payload(&mut self, result: &Val) -> Result<PayloadReply, ResultReadError> {
        let shared = self.machine.shared();
        let read = lazy::read_payload(shared, self.msg);
        let is_msg = result.address() == self.msg.address();
        if is_msg && matches!(read, Some(lazy::PayloadAccess::Never)) {
            return Ok(PayloadReply::Same);
        }
        let Some(payload) = result.get_own(shared.atoms.get().payload)? else {
            return Ok(PayloadReply::Missing);
        };
        let original: Option<&Value> = match (&read, &self.message.payload) {
            (Some(lazy::PayloadAccess::As(value)), _) => Some(value),
            (None, Payload::Value(value)) => Some(value),
            // It is lazy only because the call is traced, or to know whether it was set.
            (Some(_), Payload::Value(value)) if is_small(value) => {
                shared.depends.set(true);
                Some(value)
            }
            _ => None,
        };
        match from_js(&payload, original, &mut self.budget) {
            Ok(converted) if converted.same => {
                let is_set = !is_msg || lazy::sets_payload(shared, self.msg);
                Ok(PayloadReply::kept(&converted.value, is_set))
            }
            Ok(converted) => Ok(PayloadReply::New(converted.value)),
            Err(unfit) => Err(self.unread(unfit, "payload")),
        }
    }

    fn meta(&mut self, result: &Val) -> Result<MetaReply, ResultReadError> {
        let none = MetaReply::Replaced(Vec::new());
        let shared = self.machine.shared();
        let Some(meta) = result.get_own(shared.atoms.get().meta)? else {
            return Ok(none);
        };
        if !is_message(&meta) {
            return Ok(none);
        }
        if let Some(touched) = lazy::meta_changes(shared, &meta)? {
            let mut changes = Vec::with_capacity(touched.len());
            for (atom, value) in touched {
                if let Some(entry) = self.entry(atom, value.as_ref())? {
                    changes.push(entry);
                }
            }
            return Ok(MetaReply::Changes(changes));
        }
        let names = meta.keys()?;
        let mut entries = Vec::with_capacity(names.atoms().len());
        for atom in names.atoms() {
            let value = meta.get(atom)?;
            if let Some(entry) = self.entry(atom, Some(&value))? {
                entries.push(entry);
            }
        }
        Ok(MetaReply::Replaced(entries))
    }

    /// One key with its text; `None` for symbols and computed keys.
    fn entry(
        &mut self,
        atom: rquickjs::qjs::JSAtom,
        value: Option<&Val>,
    ) -> Result<Option<(Text, Text)>, ResultReadError> {
        let ctx = self.msg.ctx;
        let shared = self.machine.shared();
        let Some(name) = shared.keys.borrow_mut().name(ctx, atom) else {
            return Ok(None);
        };
        if shared.computed.iter().any(|key| key.name == name) {
            return Ok(None);
        }
        let spent = |budget: &mut ConversionBudget, text: &str| budget.spend(text.len() + name.len());
        let text = match value {
            None => Text::default(),
            Some(value) if value.is_undefined() && shared.undefined_meta == UndefinedMeta::Absent => Text::default(),
            Some(value) if value.is_string() => {
                let budget = &mut self.budget;
                let share = |text: &str| {
                    spent(budget, text)?;
                    Ok(shared.keys.borrow_mut().share(ctx, atom, text))
                };
                value.with_text(share)?.map_err(|unfit| self.unread(unfit, "meta"))?
            }
            Some(value) => match meta_text(value, &mut self.budget) {
                Ok(text) => shared.keys.borrow_mut().share(ctx, atom, &text),
                Err(unfit) => return Err(self.unread(unfit, &format!("meta.{name}"))),
            },
        };
        Ok(Some((name, text)))
    }

    fn unread(&self, unfit: ConversionError, what: &str) -> ResultReadError {
        match unfit {
            ConversionError::Thrown => ResultReadError::Thrown,
            ConversionError::Bad(why) => ResultReadError::Bad(format!("{what} cannot be used: {why}")),
            ConversionError::TooLarge => {
                self.machine.shared().hit.set(Some(LimitHit::Results));
                let limit = self.machine.shared().limits.memory;
                ResultReadError::Limit(format!("{what} is larger than scripting.memory ({limit} bytes)"))
            }
        }
    }
}
