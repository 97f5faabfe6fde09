//! The stored form of a subscription. Messages that were never delivered are not stored, because they can be read
//! again.
//!
//! Version 2 · settings · time of creation 8 · read, touched, numbered, 1 + cleared or 0 (varints; the last one is
//! missing in version 1) · consumers (count, then texts) · open messages (count, then each: step from the one before,
//! key 8, bytes, attempts, state) · reasons · parked messages (count, then each: step, key 8, bytes, attempts, time 8,
//! number of the reason). A text is a varint length and UTF-8; numbers without a width are varints.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use thalweg_kit::varint;
use thalweg_log::format::{FieldReader, FieldWriter};

use super::{
    DeliveryStrategy, OpenMessage, OpenMessageState, ParkedEntry, Subscription, SubscriptionSettings,
    SubscriptionSource,
};

const VERSION: u8 = 2;
/// Maximum total length of all reasons, which keeps the document small however different they are.
const REASONS_BYTES_MAX: usize = 256 << 10;
const REASON_NOT_KEPT: &str = "(not kept: parked messages have more than 256 KiB of different reasons)";

const READY: u8 = 0;
const DELAYED: u8 = 1;
const LEASED: u8 = 2;

impl Subscription {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(128 + 24 * (self.open.len() + self.parked.len()));
        out.push(VERSION);
        put_settings(&mut out, &self.settings);
        FieldWriter(&mut out).i64(self.created_at);
        let untouched = self.open.range(self.touched + 1..).next();
        varint::put(&mut out, untouched.map_or(self.read, |(global, _)| *global));
        varint::put(&mut out, self.touched);
        varint::put(&mut out, self.numbered);
        varint::put(&mut out, self.cleared.map_or(0, |cleared| cleared + 1));
        self.put_open(&mut out);
        self.put_parked(&mut out);
        out
    }

    fn put_open(&self, out: &mut Vec<u8>) {
        let touched: Vec<(&u64, &OpenMessage)> = self.open.range(..=self.touched).collect();
        let mut consumers = StringTable::default();
        for (_, open) in &touched {
            if let OpenMessageState::Leased { consumer, .. } = &open.state {
                consumers.number(consumer);
            }
        }
        consumers.put(out);
        varint::put(out, touched.len() as u64);
        let mut before = 0;
        for (global, open) in touched {
            put_message(out, *global - before, open.key, open.bytes, open.attempts);
            before = *global;
            match &open.state {
                OpenMessageState::Ready => out.push(READY),
                OpenMessageState::Delayed { until } => {
                    FieldWriter(out).u8(DELAYED).i64(*until);
                }
                OpenMessageState::Leased {
                    number,
                    deadline,
                    consumer,
                } => {
                    FieldWriter(out).u8(LEASED).i64(*deadline);
                    varint::put(out, *number);
                    varint::put(out, consumers.number(consumer));
                }
            }
        }
    }

    fn put_parked(&self, out: &mut Vec<u8>) {
        let mut reasons = StringTable::default();
        let mut numbers = Vec::with_capacity(self.parked.len());
        for parked in self.parked.values() {
            let is_new = !reasons.numbers.contains_key(&*parked.reason);
            let fits = reasons.bytes + parked.reason.len() <= REASONS_BYTES_MAX;
            numbers.push(match is_new && !fits {
                true => reasons.number(REASON_NOT_KEPT),
                false => reasons.number(&parked.reason),
            });
        }
        reasons.put(out);
        varint::put(out, self.parked.len() as u64);
        let mut before = 0;
        for ((global, parked), reason) in self.parked.iter().zip(numbers) {
            put_message(out, *global - before, parked.key, parked.bytes, parked.attempts);
            before = *global;
            FieldWriter(out).i64(parked.at);
            varint::put(out, reason);
        }
    }

    /// `None` if the bytes are not a subscription, or one of a later version.
    pub fn decode(bytes: &[u8]) -> Option<Subscription> {
        let mut take = FieldReader(bytes);
        let version = take.u8().filter(|version| (1..=VERSION).contains(version))?;
        let settings = settings(&mut take)?;
        let created_at = take.i64()?;
        let (read, touched, numbered) = (number(&mut take)?, number(&mut take)?, number(&mut take)?);
        let cleared = match version {
            1 => None,
            _ => number(&mut take)?.checked_sub(1),
        };
        // Positions are added to, so they must not be near the end of the range.
        if read == 0 || [read, touched, numbered].iter().any(|number| *number > 1 << 62) {
            return None;
        }
        let open = take_open(&mut take, read.max(touched.checked_add(1)?))?;
        let parked = take_parked(&mut take)?;
        take.0.is_empty().then_some(Subscription {
            settings,
            created_at,
            read,
            touched,
            numbered,
            open,
            parked,
            cleared,
        })
    }
}

fn take_open(take: &mut FieldReader<'_>, below: u64) -> Option<BTreeMap<u64, OpenMessage>> {
    let consumers = texts(take)?;
    let mut out = BTreeMap::new();
    let mut before = 0_u64;
    for _ in 0..number(take)? {
        let (step, key, bytes, attempts) = message(take)?;
        before = before.checked_add(step).filter(|global| *global < below)?;
        let state = match take.u8()? {
            READY => OpenMessageState::Ready,
            DELAYED => OpenMessageState::Delayed { until: take.i64()? },
            LEASED => OpenMessageState::Leased {
                deadline: take.i64()?,
                number: number(take)?,
                consumer: named(&consumers, number(take)?)?,
            },
            _ => return None,
        };
        let open = OpenMessage {
            key,
            bytes,
            attempts,
            state,
        };
        out.insert(before, open);
    }
    Some(out)
}

fn take_parked(take: &mut FieldReader<'_>) -> Option<BTreeMap<u64, ParkedEntry>> {
    let reasons = texts(take)?;
    let mut out = BTreeMap::new();
    let mut before = 0_u64;
    for _ in 0..number(take)? {
        let (step, key, bytes, attempts) = message(take)?;
        before = before.checked_add(step)?;
        let parked = ParkedEntry {
            at: take.i64()?,
            reason: named(&reasons, number(take)?)?,
            attempts,
            key,
            bytes,
        };
        out.insert(before, parked);
    }
    Some(out)
}

fn put_message(out: &mut Vec<u8>, step: u64, key: u64, bytes: u32, attempts: u32) {
    varint::put(out, step);
    FieldWriter(out).u64(key);
    varint::put(out, u64::from(bytes));
    varint::put(out, u64::from(attempts));
}

/// Step, key, bytes and attempts.
fn message(take: &mut FieldReader<'_>) -> Option<(u64, u64, u32, u32)> {
    // Each message has a different position.
    let step = number(take).filter(|step| *step > 0)?;
    let key = take.u64()?;
    let (bytes, attempts) = (number(take)?, number(take)?);
    Some((step, key, bytes.try_into().ok()?, attempts.try_into().ok()?))
}

fn put_settings(out: &mut Vec<u8>, settings: &SubscriptionSettings) {
    let (kind, name) = match &settings.source {
        SubscriptionSource::Category(category) => (0, category.as_str()),
        SubscriptionSource::Stream(stream) => (1, stream.as_str()),
        SubscriptionSource::All => (2, ""),
    };
    out.push(kind);
    put_text(out, name);
    varint::put(out, settings.from);
    out.push(match settings.strategy {
        DeliveryStrategy::ByStream => 0,
        DeliveryStrategy::RoundRobin => 1,
    });
    FieldWriter(out).i64(settings.ack_timeout);
    varint::put(out, u64::from(settings.max_attempts));
    varint::put(out, settings.max_in_flight as u64);
    varint::put(out, settings.types.len() as u64);
    settings.types.iter().for_each(|kind| put_text(out, kind));
    out.push(u8::from(settings.correlation.is_some()));
    put_text(out, settings.correlation.as_deref().unwrap_or_default());
}

fn settings(take: &mut FieldReader<'_>) -> Option<SubscriptionSettings> {
    let (kind, name) = (take.u8()?, text(take)?);
    let source = match kind {
        0 => SubscriptionSource::Category(name.to_owned()),
        1 => SubscriptionSource::Stream(name.to_owned()),
        2 if name.is_empty() => SubscriptionSource::All,
        _ => return None,
    };
    let from = number(take)?;
    let strategy = match take.u8()? {
        0 => DeliveryStrategy::ByStream,
        1 => DeliveryStrategy::RoundRobin,
        _ => return None,
    };
    let ack_timeout = take.i64()?;
    let max_attempts = number(take)?.try_into().ok()?;
    let max_in_flight: u32 = number(take)?.try_into().ok()?;
    let types = texts(take)?.iter().map(|kind| kind.to_string()).collect();
    let correlation = match (take.u8()?, text(take)?) {
        (0, "") => None,
        (1, correlation) => Some(correlation.to_owned()),
        _ => return None,
    };
    Some(SubscriptionSettings {
        source,
        from,
        strategy,
        ack_timeout,
        max_attempts,
        max_in_flight: max_in_flight as usize,
        types,
        correlation,
    })
}

/// A table of repeated texts, each stored once.
#[derive(Default)]
struct StringTable<'a> {
    texts: Vec<&'a str>,
    numbers: HashMap<&'a str, u64>,
    bytes: usize,
}

impl<'a> StringTable<'a> {
    fn number(&mut self, text: &'a str) -> u64 {
        if let Some(number) = self.numbers.get(text) {
            return *number;
        }
        let number = self.texts.len() as u64;
        self.texts.push(text);
        self.numbers.insert(text, number);
        self.bytes += text.len();
        number
    }

    fn put(&self, out: &mut Vec<u8>) {
        varint::put(out, self.texts.len() as u64);
        self.texts.iter().for_each(|text| put_text(out, text));
    }
}

fn named(texts: &[Arc<str>], number: u64) -> Option<Arc<str>> {
    texts.get(usize::try_from(number).ok()?).cloned()
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    varint::put(out, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

fn texts(take: &mut FieldReader<'_>) -> Option<Vec<Arc<str>>> {
    let mut out = Vec::new();
    for _ in 0..number(take)? {
        out.push(text(take)?.into());
    }
    Some(out)
}

fn text<'a>(take: &mut FieldReader<'a>) -> Option<&'a str> {
    let len = usize::try_from(number(take)?).ok()?;
    let (text, rest) = take.0.split_at_checked(len)?;
    take.0 = rest;
    std::str::from_utf8(text).ok()
}

fn number(take: &mut FieldReader<'_>) -> Option<u64> {
    let (number, rest) = varint::take(take.0)?;
    take.0 = rest;
    Some(number)
}
