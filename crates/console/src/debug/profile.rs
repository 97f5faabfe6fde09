//! Writes a profile in the format of Go's pprof (`profile.proto`). In come samples, which are values at a stack of
//! locations; out goes one protobuf message. Texts and functions are written when they come first; later ones refer to
//! them by number.

use std::collections::HashMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use thalweg_kit::wire::WireWriter;

// The fields of the message `Profile`. Those of the messages in it stand where they are written.
const SAMPLE_TYPE: u32 = 1;
const SAMPLE: u32 = 2;
const MAPPING: u32 = 3;
const LOCATION: u32 = 4;
const FUNCTION: u32 = 5;
const STRING_TABLE: u32 = 6;
const DROP_FRAMES: u32 = 7;
const TIME_NANOS: u32 = 9;
const DURATION_NANOS: u32 = 10;
const PERIOD_TYPE: u32 = 11;
const PERIOD: u32 = 12;

/// What is measured and its unit, such as `("cpu", "nanoseconds")`.
pub type ValueType = (&'static str, &'static str);

/// What holds for all samples of a profile.
pub struct ProfileHead<'a> {
    /// One for each value of a sample. Readers show the last one by default.
    pub values: &'a [ValueType],
    /// There is a sample for every `period` of these.
    pub period_type: ValueType,
    /// Zero if it is unknown.
    pub period: i64,
    pub begin: SystemTime,
    /// Zero for the state of one moment.
    pub duration: Duration,
}

/// A function; its name alone tells it from others.
pub struct ProfileFunction<'a> {
    pub name: &'a str,
    /// The name that the linker knows.
    pub system_name: &'a str,
    /// The source file, or an empty text.
    pub file: &'a str,
}

/// A file that is mapped into memory, and what the profile tells of the locations in it.
pub struct ProfileMapping<'a> {
    /// From 1; locations refer to it.
    pub id: u64,
    pub file: &'a str,
    /// In hexadecimal, or an empty text.
    pub build_id: &'a str,
    pub has_functions: bool,
    pub has_files: bool,
    pub has_lines: bool,
    pub has_inlined: bool,
}

/// A fact about a sample: its key, and a text or a number.
pub enum SampleLabel<'a> {
    Text(&'a str, &'a str),
    Number(&'a str, i64),
}

#[derive(Default)]
pub struct ProfileWriter {
    out: WireWriter,
    /// Their indexes in the string table.
    texts: HashMap<String, u64>,
    /// Ids by name.
    functions: HashMap<String, u64>,
    locations: u64,
    /// Locations that stand for a whole function, by the id of the function.
    whole_functions: HashMap<u64, u64>,
}

impl ProfileWriter {
    pub fn new(head: &ProfileHead<'_>) -> ProfileWriter {
        let mut profile = ProfileWriter::default();
        // The format wants the empty text first.
        profile.text("");
        for value in head.values {
            profile.value_type(SAMPLE_TYPE, *value);
        }
        profile.value_type(PERIOD_TYPE, head.period_type);
        profile.out.signed(PERIOD, head.period);
        let since_epoch = head.begin.duration_since(UNIX_EPOCH).unwrap_or_default();
        profile.out.signed(TIME_NANOS, nanos(since_epoch));
        profile.out.signed(DURATION_NANOS, nanos(head.duration));
        profile
    }

    /// Makes readers leave out functions whose names fully match the pattern, and what these call.
    pub fn drop_frames(&mut self, pattern: &str) {
        let pattern = self.text(pattern);
        self.out.number(DROP_FRAMES, pattern);
    }

    /// The id of a function.
    pub fn function(&mut self, function: &ProfileFunction<'_>) -> u64 {
        if let Some(id) = self.functions.get(function.name) {
            return *id;
        }
        let id = self.functions.len() as u64 + 1;
        self.functions.insert(function.name.to_owned(), id);
        let name = self.text(function.name);
        let system_name = self.text(function.system_name);
        let file = self.text(function.file);
        self.out.message(FUNCTION, |out| {
            out.number(1, id);
            out.number(2, name);
            out.number(3, system_name);
            out.number(4, file);
        });
        id
    }

    /// Writes a location and returns its id. `mapping` is zero if the address is in no file. `lines` are ids of
    /// functions, each with a line number or zero: an inlined function comes before the one that it is inlined into.
    pub fn location(&mut self, mapping: u64, address: u64, lines: &[(u64, u32)]) -> u64 {
        self.locations += 1;
        let id = self.locations;
        self.out.message(LOCATION, |out| {
            out.number(1, id);
            out.number(2, mapping);
            out.number(3, address);
            for (function, line) in lines {
                out.message(4, |out| {
                    out.number(1, *function);
                    out.number(2, u64::from(*line));
                });
            }
        });
        id
    }

    /// The id of the location that stands for a whole function. Its line is that of the first call.
    pub fn function_location(&mut self, function: &ProfileFunction<'_>, line: u32) -> u64 {
        let function = self.function(function);
        if let Some(id) = self.whole_functions.get(&function) {
            return *id;
        }
        let id = self.location(0, 0, &[(function, line)]);
        self.whole_functions.insert(function, id);
        id
    }

    /// Readers take the first mapping for the program. Addresses are those of its file, wherever it is in memory.
    pub fn mapping(&mut self, mapping: &ProfileMapping<'_>) {
        let file = self.text(mapping.file);
        let build_id = self.text(mapping.build_id);
        self.out.message(MAPPING, |out| {
            out.number(1, mapping.id);
            // `memory_start` (2) is zero, and `memory_limit` ends no file.
            out.number(3, u64::MAX);
            out.number(5, file);
            out.number(6, build_id);
            out.number(7, u64::from(mapping.has_functions));
            out.number(8, u64::from(mapping.has_files));
            out.number(9, u64::from(mapping.has_lines));
            out.number(10, u64::from(mapping.has_inlined));
        });
    }

    /// `stack` has ids of locations, innermost first; `values` are those of [`ProfileHead::values`].
    pub fn sample(&mut self, stack: &[u64], values: &[i64], label: Option<SampleLabel<'_>>) {
        let label = label.map(|label| match label {
            SampleLabel::Text(key, text) => (self.text(key), self.text(text), 0),
            SampleLabel::Number(key, number) => (self.text(key), 0, number),
        });
        self.out.message(SAMPLE, |out| {
            out.packed(1, stack.iter().copied());
            out.packed(2, values.iter().map(|value| *value as u64));
            if let Some((key, text, number)) = label {
                out.message(3, |out| {
                    out.number(1, key);
                    out.number(2, text);
                    out.signed(3, number);
                });
            }
        });
    }

    /// The encoded profile.
    pub fn finish(self) -> Vec<u8> {
        self.out.finish()
    }

    fn value_type(&mut self, field: u32, (kind, unit): ValueType) {
        let (kind, unit) = (self.text(kind), self.text(unit));
        self.out.message(field, |out| {
            out.number(1, kind);
            out.number(2, unit);
        });
    }

    /// The index of a text.
    fn text(&mut self, text: &str) -> u64 {
        if let Some(index) = self.texts.get(text) {
            return *index;
        }
        let index = self.texts.len() as u64;
        self.texts.insert(text.to_owned(), index);
        self.out.bytes(STRING_TABLE, text.as_bytes());
        index
    }
}

fn nanos(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::super::decoded::DecodedProfile;
    use super::*;

    fn named(name: &str) -> ProfileFunction<'_> {
        ProfileFunction {
            name,
            system_name: name,
            file: "",
        }
    }

    fn head(values: &[ValueType]) -> ProfileHead<'_> {
        ProfileHead {
            values,
            period_type: ("cpu", "nanoseconds"),
            period: 7,
            begin: UNIX_EPOCH + Duration::from_secs(5),
            duration: Duration::from_millis(2),
        }
    }

    #[test]
    fn every_part_is_read_as_it_was_written() {
        let mut writer = ProfileWriter::new(&head(&[("samples", "count"), ("cpu", "nanoseconds")]));
        writer.drop_frames("malloc|free");
        let inlined = writer.function(&ProfileFunction {
            name: "a::inlined",
            system_name: "_Z1a",
            file: "src/a.rs",
        });
        let caller = writer.function(&named("b"));
        assert_eq!(
            writer.function(&named("a::inlined")),
            inlined,
            "the name tells functions apart"
        );
        let location = writer.location(1, 0x1000, &[(inlined, 3), (caller, 0)]);
        writer.sample(&[location], &[1, -1], Some(SampleLabel::Text("thread", "worker")));
        writer.sample(&[], &[0, i64::MAX], Some(SampleLabel::Number("thread", 42)));
        writer.mapping(&ProfileMapping {
            id: 1,
            file: "/usr/bin/thalweg",
            build_id: "00ff",
            has_functions: true,
            has_files: true,
            has_lines: false,
            has_inlined: true,
        });
        let profile = DecodedProfile::of(&writer.finish());
        assert_eq!(profile.value_types, [["samples", "count"], ["cpu", "nanoseconds"]]);
        assert_eq!(profile.period_type, ["cpu", "nanoseconds"]);
        assert_eq!(
            (profile.period, profile.time_nanos, profile.duration_nanos),
            (7, 5_000_000_000, 2_000_000)
        );
        assert_eq!(
            (profile.strings[0].as_str(), profile.drop_frames.as_str()),
            ("", "malloc|free")
        );
        let [first, second] = &profile.functions[..] else {
            panic!("{profile:?}");
        };
        assert_eq!(
            (
                first.id,
                first.name.as_str(),
                first.system_name.as_str(),
                first.file.as_str()
            ),
            (inlined, "a::inlined", "_Z1a", "src/a.rs")
        );
        assert_eq!((second.id, second.file.as_str()), (caller, ""));
        let [place] = &profile.locations[..] else {
            panic!("{profile:?}");
        };
        assert_eq!((place.id, place.mapping, place.address), (location, 1, 0x1000));
        assert_eq!(place.lines, [(inlined, 3), (caller, 0)]);
        let [file] = &profile.mappings[..] else {
            panic!("{profile:?}");
        };
        assert_eq!(
            (file.id, file.file.as_str(), file.build_id.as_str()),
            (1, "/usr/bin/thalweg", "00ff")
        );
        assert_eq!((file.memory_limit, file.has), (u64::MAX, [true, true, false, true]));
        let [text, number] = &profile.samples[..] else {
            panic!("{profile:?}");
        };
        assert_eq!(
            (profile.names(text), &text.values[..]),
            (vec!["a::inlined", "b"], &[1, -1][..])
        );
        assert_eq!(text.labels, [("thread".to_owned(), "worker".to_owned(), 0)]);
        assert_eq!((number.stack.len(), &number.values[..]), (0, &[0, i64::MAX][..]));
        assert_eq!(number.labels, [("thread".to_owned(), String::new(), 42)]);
    }

    proptest! {
        #[test]
        fn every_sample_is_read_as_it_was_written_and_every_name_is_written_once(
            samples in prop::collection::vec((prop::collection::vec("[a-d]{0,2}", 0..6), any::<[i64; 2]>()), 0..20),
        ) {
            let mut writer = ProfileWriter::new(&head(&[("a", "b"), ("", "b")]));
            for (stack, values) in &samples {
                let stack: Vec<u64> = stack.iter().map(|name| writer.function_location(&named(name), 1)).collect();
                writer.sample(&stack, values, None);
            }
            let profile = DecodedProfile::of(&writer.finish());
            prop_assert_eq!(profile.samples.len(), samples.len());
            for (found, (stack, values)) in profile.samples.iter().zip(&samples) {
                prop_assert_eq!(profile.names(found), stack.clone());
                prop_assert_eq!(&found.values[..], &values[..]);
            }
            let names: BTreeSet<&String> = profile.functions.iter().map(|function| &function.name).collect();
            prop_assert_eq!(names.len(), profile.functions.len());
            prop_assert_eq!(names.len(), profile.locations.len());
            let texts: BTreeSet<&String> = profile.strings.iter().collect();
            prop_assert_eq!(texts.len(), profile.strings.len());
        }
    }
}
