//! Reads a profile, for tests. Texts stand where the format has their indexes.

use std::collections::BTreeMap;

use thalweg_kit::wire::{END, WireCursor};

#[derive(Debug)]
pub struct DecodedProfile {
    /// What is measured and its unit, for each value of a sample.
    pub value_types: Vec<[String; 2]>,
    pub samples: Vec<DecodedSample>,
    pub mappings: Vec<DecodedMapping>,
    pub locations: Vec<DecodedLocation>,
    pub functions: Vec<DecodedFunction>,
    pub strings: Vec<String>,
    pub drop_frames: String,
    pub time_nanos: u64,
    pub duration_nanos: u64,
    pub period_type: [String; 2],
    pub period: u64,
}

#[derive(Debug)]
pub struct DecodedSample {
    /// Ids of locations, innermost first.
    pub stack: Vec<u64>,
    pub values: Vec<i64>,
    /// Key, text, number.
    pub labels: Vec<(String, String, i64)>,
}

#[derive(Debug)]
pub struct DecodedMapping {
    pub id: u64,
    pub memory_limit: u64,
    pub file: String,
    pub build_id: String,
    /// Functions, files, lines, inlined functions.
    pub has: [bool; 4],
}

#[derive(Debug)]
pub struct DecodedLocation {
    pub id: u64,
    pub mapping: u64,
    pub address: u64,
    /// Ids of functions with line numbers.
    pub lines: Vec<(u64, u64)>,
}

#[derive(Debug)]
pub struct DecodedFunction {
    pub id: u64,
    pub name: String,
    pub system_name: String,
    pub file: String,
}

impl DecodedProfile {
    /// Panics if the bytes are no profile, or an index is beyond the string table.
    pub fn of(bytes: &[u8]) -> DecodedProfile {
        let profile = RawMessage::of(WireCursor::new(bytes));
        let strings = profile.texts(6);
        let text = |message: &RawMessage<'_>, field| strings[message.number(field) as usize].clone();
        let value_type = |message: &RawMessage<'_>| [text(message, 1), text(message, 2)];
        let labels = |sample: &RawMessage<'_>| -> Vec<(String, String, i64)> {
            let label = |label: &RawMessage<'_>| (text(label, 1), text(label, 2), label.number(3) as i64);
            sample.messages(3).iter().map(label).collect()
        };
        let sample = |sample: &RawMessage<'_>| DecodedSample {
            stack: sample.packed(1),
            values: sample.packed(2).into_iter().map(|value| value as i64).collect(),
            labels: labels(sample),
        };
        let mapping = |mapping: &RawMessage<'_>| DecodedMapping {
            id: mapping.number(1),
            memory_limit: mapping.number(3),
            file: text(mapping, 5),
            build_id: text(mapping, 6),
            has: [7, 8, 9, 10].map(|field| mapping.number(field) != 0),
        };
        let line = |line: &RawMessage<'_>| (line.number(1), line.number(2));
        let location = |location: &RawMessage<'_>| DecodedLocation {
            id: location.number(1),
            mapping: location.number(2),
            address: location.number(3),
            lines: location.messages(4).iter().map(line).collect(),
        };
        let function = |function: &RawMessage<'_>| DecodedFunction {
            id: function.number(1),
            name: text(function, 2),
            system_name: text(function, 3),
            file: text(function, 4),
        };
        DecodedProfile {
            value_types: profile.messages(1).iter().map(value_type).collect(),
            samples: profile.messages(2).iter().map(sample).collect(),
            mappings: profile.messages(3).iter().map(mapping).collect(),
            locations: profile.messages(4).iter().map(location).collect(),
            functions: profile.messages(5).iter().map(function).collect(),
            drop_frames: text(&profile, 7),
            time_nanos: profile.number(9),
            duration_nanos: profile.number(10),
            period_type: value_type(&profile.messages(11)[0]),
            period: profile.number(12),
            strings,
        }
    }

    /// The names of the functions of a sample, innermost first. Panics if the profile has no such location or function.
    pub fn names(&self, sample: &DecodedSample) -> Vec<&str> {
        let location = |id: &u64| self.locations.iter().find(|location| location.id == *id).unwrap();
        let name = |(id, _): &(u64, u64)| {
            let function = self.functions.iter().find(|function| function.id == *id).unwrap();
            function.name.as_str()
        };
        let lines = sample.stack.iter().flat_map(|id| &location(id).lines);
        lines.map(name).collect()
    }
}

/// The fields of a message by number.
struct RawMessage<'a> {
    numbers: BTreeMap<u32, u64>,
    /// Texts, messages and packed numbers, in order.
    bytes: BTreeMap<u32, Vec<WireCursor<'a>>>,
}

impl<'a> RawMessage<'a> {
    fn of(mut message: WireCursor<'a>) -> RawMessage<'a> {
        let (mut numbers, mut bytes) = (BTreeMap::new(), BTreeMap::<u32, Vec<WireCursor<'a>>>::new());
        loop {
            let key = message.key().unwrap();
            match key & 7 {
                _ if key == END => return RawMessage { numbers, bytes },
                0 => {
                    numbers.insert(key >> 3, message.number().unwrap());
                }
                2 => bytes.entry(key >> 3).or_default().push(message.message().unwrap()),
                other => panic!("a profile has no field of type {other}"),
            }
        }
    }

    /// Zero if there is none.
    fn number(&self, field: u32) -> u64 {
        self.numbers.get(&field).copied().unwrap_or_default()
    }

    fn all(&self, field: u32) -> &[WireCursor<'a>] {
        self.bytes.get(&field).map(Vec::as_slice).unwrap_or_default()
    }

    fn messages(&self, field: u32) -> Vec<RawMessage<'a>> {
        self.all(field).iter().map(|message| RawMessage::of(*message)).collect()
    }

    fn texts(&self, field: u32) -> Vec<String> {
        let text = |bytes: &WireCursor<'_>| String::from_utf8(bytes.rest().to_vec()).unwrap();
        self.all(field).iter().map(text).collect()
    }

    fn packed(&self, field: u32) -> Vec<u64> {
        let mut numbers = Vec::new();
        for mut packed in self.all(field).iter().copied() {
            while !packed.is_empty() {
                numbers.push(packed.number().unwrap());
            }
        }
        numbers
    }
}
