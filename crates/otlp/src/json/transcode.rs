//! Translates JSON objects to protobuf messages, driven by the OTLP schema.

use super::message_schema::{ANY, FieldEncoding, FieldSchema, METRIC, MessageSchema, request_of};
use super::scalar::{self, JsonInteger};
use super::write::{ProtoWriter, WIDE, width_of};
use super::{JsonError, JsonLimits, JsonResult, TOO_LARGE};
use crate::validate::TOO_OLD;
use thalweg_kit::json_tokens::{JsonLiteral, JsonString, JsonTokenizer, unescape};
use thalweg_lake::Signal;

/// From this nesting depth on, lengths are no longer guessed. A wrong guess moves bytes at each level, and no real
/// sender nests so deep.
const GUESSED_DEPTH: usize = 32;

/// No metric of the request has points.
const NO_KIND: &str =
    "a metric has a member that OTLP does not define, and no points of a known kind; correct the name";

pub struct JsonTranscoder<'a, 'o> {
    tokens: JsonTokenizer<'a>,
    out: ProtoWriter<'o>,
    /// Nothing that was accepted earlier is refused.
    is_stored: bool,
    /// An unknown member of a metric that has no known kind of points.
    unknown_kind: Option<usize>,
    /// Whether a metric has a known kind of points.
    has_kind: bool,
    /// Buffer for unescaped texts that are not written as text, and for unescaped names.
    scratch: Vec<u8>,
    output_bytes: usize,
}

impl<'a, 'o> JsonTranscoder<'a, 'o> {
    pub fn new(json: &'a [u8], limits: &JsonLimits, out: &'o mut Vec<u8>) -> JsonTranscoder<'a, 'o> {
        JsonTranscoder {
            tokens: JsonTokenizer::new(json, limits.depth),
            out: ProtoWriter::new(out),
            is_stored: limits.is_stored,
            unknown_kind: None,
            has_kind: false,
            scratch: Vec::new(),
            output_bytes: limits.output_bytes,
        }
    }

    /// The current offset in the text.
    pub fn offset(&self) -> usize {
        self.tokens.offset()
    }

    pub fn end(&mut self) -> JsonResult<()> {
        self.tokens.end()
    }

    pub fn request(&mut self, signal: Signal) -> JsonResult<()> {
        self.message(request_of(signal))?;
        // A kind that OTLP does not have yet must not cost the metrics of the other kinds.
        match self.unknown_kind.filter(|_| !self.has_kind && !self.is_stored) {
            Some(offset) => Err(JsonError { offset, what: NO_KIND }),
            None => Ok(()),
        }
    }

    /// Returns the signal of the first member that belongs to a request.
    pub fn signal(&mut self) -> JsonResult<Option<Signal>> {
        self.tokens.object()?;
        let mut is_first = true;
        while self.tokens.more(b'}', is_first)? {
            is_first = false;
            let name = self.tokens.name()?;
            let name = self.plain(name);
            // The first field of each schema is that of its own signal.
            let of = |signal: &Signal| find(request_of(*signal), name).is_some_and(|(index, _)| index == 0);
            if let Some(signal) = Signal::ALL.into_iter().find(of) {
                return Ok(Some(signal));
            }
            self.tokens.skip()?;
        }
        Ok(None)
    }

    /// Writes the members of an object as the fields of a message, without the length.
    fn message(&mut self, of: &'static MessageSchema) -> JsonResult<()> {
        self.tokens.object()?;
        let (mut given, mut chosen, mut next, mut is_first) = (0_u32, false, 0, true);
        let (mut unknown, mut has_list) = (None, false);
        while self.tokens.more(b'}', is_first)? {
            is_first = false;
            let offset = self.tokens.offset();
            let Some((index, field)) = self.member(of, next)? else {
                unknown.get_or_insert(offset);
                self.tokens.skip()?;
                continue;
            };
            next = index + 1;
            has_list |= matches!(field.shape, FieldEncoding::Many(_));
            if self.tokens.null()? {
                continue;
            }
            let is_again = given >> index & 1 == 1;
            given |= 1 << index;
            if (is_again && matches!(field.shape, FieldEncoding::One(_))) || (field.is_choice && chosen) {
                let what = "a field that may be given once is given twice";
                return Err(JsonError { offset, what });
            }
            chosen |= field.is_choice;
            self.field(field, is_again)?;
            if self.out.len() > self.output_bytes {
                return Err(self.too_large());
            }
        }
        self.has_kind |= chosen && std::ptr::eq(of, &METRIC);
        match unknown {
            Some(offset) => self.unknown_member(of, offset, has_list, chosen),
            None => Ok(()),
        }
    }

    /// OTLP has unknown members skipped. One that stands where the records should be is a wrong name, and to skip it
    /// would answer "accepted" to a request of which nothing is stored.
    #[cold]
    fn unknown_member(
        &mut self,
        of: &'static MessageSchema,
        offset: usize,
        has_list: bool,
        has_choice: bool,
    ) -> JsonResult<()> {
        if std::ptr::eq(of, &METRIC) && !has_choice {
            self.unknown_kind.get_or_insert(offset);
        }
        match of.without_list.filter(|_| !has_list && !self.is_stored) {
            Some(what) => Err(JsonError { offset, what }),
            None => Ok(()),
        }
    }

    /// Finds the field of the next member, and its index in the message; `None` if it is unknown.
    #[inline(always)]
    fn member(&mut self, of: &'static MessageSchema, next: usize) -> JsonResult<Option<(usize, &'static FieldSchema)>> {
        // Members mostly come in the order of the schema, so the expected name is compared first, without searching for
        // its end.
        if let Some(field) = of.fields.get(next)
            && self.tokens.peek() == b'"'
            && let Some(after) = self.tokens.rest().get(1..)
            && after.starts_with(field.name.as_bytes())
            && after.get(field.name.len()) == Some(&b'"')
        {
            self.tokens.pass(field.name.len() + 2);
            self.tokens.colon()?;
            return Ok(Some((next, field)));
        }
        let name = self.tokens.name()?;
        Ok(match name.is_escaped {
            false => find(of, name.raw),
            true => find(of, self.plain(name)),
        })
    }

    fn plain<'s>(&'s mut self, text: JsonString<'s>) -> &'s [u8] {
        if !text.is_escaped {
            return text.raw;
        }
        self.scratch.clear();
        unescape(text.raw, &mut self.scratch);
        &self.scratch
    }

    #[cold]
    fn too_large(&self) -> JsonError {
        let offset = self.tokens.offset();
        JsonError {
            offset,
            what: TOO_LARGE,
        }
    }

    fn field(&mut self, field: &'static FieldSchema, is_again: bool) -> JsonResult<()> {
        let key = field.key;
        match field.shape {
            FieldEncoding::Text => {
                let text = self.tokens.quoted()?;
                self.out.key(key);
                self.text(text);
            }
            FieldEncoding::One(of) => {
                self.out.key(key);
                self.nested(of)?;
            }
            FieldEncoding::Many(of) => self.messages(field, of)?,
            FieldEncoding::Id => {
                let text = self.tokens.quoted()?;
                // An empty id counts as absent, unless the field was already given.
                if !text.raw.is_empty() || is_again {
                    self.out.key(key);
                    self.decoded(text, text.raw.len() / 2, scalar::hex)?;
                }
            }
            FieldEncoding::Bytes => {
                let text = self.tokens.quoted()?;
                self.out.key(key);
                self.decoded(text, text.raw.len() / 4 * 3, scalar::base64)?;
            }
            FieldEncoding::Bool => {
                let offset = self.tokens.offset();
                let value = match self.tokens.literal() {
                    Ok(JsonLiteral::True) => 1,
                    Ok(JsonLiteral::False) => 0,
                    _ => return Err(wrong(offset)("expected true or false")),
                };
                self.out.key(key);
                self.out.varint(value);
            }
            FieldEncoding::Doubles => {
                self.packed(field, |mapper| mapper.double().map(|bits| mapper.out.fixed64(bits)))?
            }
            FieldEncoding::Fixed64s => {
                self.packed(field, |mapper| mapper.unsigned(u64::MAX).map(|n| mapper.out.fixed64(n)))?
            }
            FieldEncoding::Uint64s => {
                self.packed(field, |mapper| mapper.unsigned(u64::MAX).map(|n| mapper.out.varint(n)))?
            }
            FieldEncoding::OfAnotherSignal => {
                return Err(self.tokens.wrong("a request of one signal has a member of another"));
            }
            FieldEncoding::BeforeVersion1 if self.is_stored => self.tokens.skip()?,
            FieldEncoding::BeforeVersion1 => return Err(self.tokens.wrong(TOO_OLD)),
            _ => self.number(field)?,
        }
        Ok(())
    }

    #[inline(always)]
    fn number(&mut self, field: &'static FieldSchema) -> JsonResult<()> {
        let key = field.key;
        match field.shape {
            FieldEncoding::Fixed64 => {
                let number = self.unsigned(u64::MAX)?;
                self.out.key(key);
                self.out.fixed64(number);
            }
            FieldEncoding::Sfixed64 => {
                let number = self.signed(64)?;
                self.out.key(key);
                self.out.fixed64(number as u64);
            }
            FieldEncoding::Fixed32 => {
                let number = self.unsigned(u32::MAX.into())?;
                self.out.key(key);
                self.out.fixed32(number as u32);
            }
            FieldEncoding::Double => {
                let bits = self.double()?;
                self.out.key(key);
                self.out.fixed64(bits);
            }
            _ => {
                let number = match field.shape {
                    FieldEncoding::Enum(names) => self.one_of(names)? as u64,
                    FieldEncoding::Uint32 => self.unsigned(u32::MAX.into())?,
                    FieldEncoding::Sint32 => {
                        let number = self.signed(32)?;
                        (number << 1 ^ number >> 63) as u64
                    }
                    _ => self.signed(64)? as u64,
                };
                self.out.key(key);
                self.out.varint(number);
            }
        }
        Ok(())
    }

    /// Writes a message with its length.
    #[inline(always)]
    fn nested(&mut self, of: &'static MessageSchema) -> JsonResult<()> {
        let is_guessed = self.tokens.depth() < GUESSED_DEPTH;
        let open = self.out.open(if is_guessed { of.width } else { WIDE });
        self.message(of)?;
        self.out.close(open);
        Ok(())
    }

    fn messages(&mut self, field: &'static FieldSchema, of: &'static MessageSchema) -> JsonResult<()> {
        self.tokens.list()?;
        let mut is_first = true;
        while self.tokens.more(b']', is_first)? {
            is_first = false;
            self.out.key(field.key);
            match std::ptr::eq(of, &ANY) && self.tokens.null()? {
                true => self.out.varint(0),
                false => self.nested(of)?,
            }
            if self.out.len() > self.output_bytes {
                return Err(self.too_large());
            }
        }
        Ok(())
    }

    fn packed(
        &mut self,
        field: &'static FieldSchema,
        mut item: impl FnMut(&mut Self) -> JsonResult<()>,
    ) -> JsonResult<()> {
        self.tokens.list()?;
        self.out.key(field.key);
        let open = self.out.open(1);
        let mut is_first = true;
        while self.tokens.more(b']', is_first)? {
            is_first = false;
            item(self)?;
            if self.out.len() > self.output_bytes {
                return Err(self.too_large());
            }
        }
        self.out.close(open);
        Ok(())
    }

    #[inline(always)]
    fn text(&mut self, text: JsonString<'a>) {
        match text.is_escaped {
            false => self.out.text(text.raw),
            true => {
                let open = self.out.open(width_of(text.raw.len()));
                unescape(text.raw, self.out.bytes());
                self.out.close(open);
            }
        }
    }

    /// Writes bytes that JSON encodes as text. `len` is their expected number.
    fn decoded(&mut self, text: JsonString<'a>, len: usize, decode: TextDecodeFn) -> JsonResult<()> {
        let open = self.out.open(width_of(len));
        let done = match text.is_escaped {
            false => decode(text.raw, self.out.bytes()),
            true => {
                self.scratch.clear();
                unescape(text.raw, &mut self.scratch);
                decode(&self.scratch, self.out.bytes())
            }
        };
        self.out.close(open);
        done.map_err(wrong(text.offset))
    }

    /// Reads a number, or a text that contains one.
    #[inline(always)]
    fn numeral<T>(&mut self, read: impl FnOnce(&[u8]) -> std::result::Result<T, &'static str>) -> JsonResult<T> {
        if self.tokens.peek() != b'"' {
            let offset = self.tokens.offset();
            return read(self.tokens.number()?).map_err(wrong(offset));
        }
        let text = self.tokens.quoted()?;
        match text.is_escaped {
            false => read(text.raw),
            true => read(self.plain(text)),
        }
        .map_err(wrong(text.offset))
    }

    #[inline(always)]
    fn unsigned(&mut self, max: u64) -> JsonResult<u64> {
        self.numeral(|text| JsonInteger::read(text)?.unsigned(max))
    }

    #[inline(always)]
    fn signed(&mut self, bits: u32) -> JsonResult<i64> {
        self.numeral(|text| JsonInteger::read(text)?.signed(bits))
    }

    fn double(&mut self) -> JsonResult<u64> {
        self.numeral(scalar::double).map(f64::to_bits)
    }

    /// Reads an enum: its number or its name.
    fn one_of(&mut self, names: &'static [&'static str]) -> JsonResult<i64> {
        self.numeral(|text| {
            if !text.first().is_some_and(u8::is_ascii_uppercase) {
                return JsonInteger::read(text)?.signed(32);
            }
            let found = names.iter().position(|name| name.as_bytes() == text);
            found
                .map(|number| number as i64)
                .ok_or("the enum has no value of this name")
        })
    }
}

type TextDecodeFn = fn(&[u8], &mut Vec<u8>) -> std::result::Result<(), &'static str>;

fn wrong(offset: usize) -> impl Fn(&'static str) -> JsonError {
    move |what| JsonError { offset, what }
}

/// Finds a field by its name in camel case or snake case.
fn find(of: &'static MessageSchema, name: &[u8]) -> Option<(usize, &'static FieldSchema)> {
    let mut fields = of.fields.iter().enumerate();
    let found = fields.find(|(_, field)| field.name.as_bytes() == name);
    match found {
        None if name.contains(&b'_') => {
            let mut fields = of.fields.iter().enumerate();
            fields.find(|(_, field)| is_snake_of(field.name, name))
        }
        found => found,
    }
}

/// Whether `snake` is `camel` in snake case.
fn is_snake_of(camel: &str, snake: &[u8]) -> bool {
    let mut given = snake.iter();
    let all = camel.bytes().all(|byte| match byte.is_ascii_uppercase() {
        true => given.next() == Some(&b'_') && given.next() == Some(&byte.to_ascii_lowercase()),
        false => given.next() == Some(&byte),
    });
    all && given.next().is_none()
}
