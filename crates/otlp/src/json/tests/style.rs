//! The styles in which senders write, drawn from a seed and reproducible.

use std::fmt::Write;

/// A pseudorandom generator (xorshift64*).
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Dice {
        Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn any(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, end: usize) -> usize {
        (self.any() >> 33) as usize % end
    }

    pub fn is(&mut self, one_in: usize) -> bool {
        self.below(one_in) == 0
    }
}

/// Writes JSON in one of the allowed ways.
pub struct Style {
    dice: Dice,
    /// Like the collector: no spaces, no leniency, members in order.
    is_plain: bool,
}

/// A member of an object: its name, and its value as JSON, absent if it is the default.
pub type Member = (&'static str, Option<String>);

/// The lists for which their objects exist.
const LISTS: [&str; 10] = [
    "resourceLogs",
    "resourceMetrics",
    "resourceSpans",
    "scopeLogs",
    "scopeMetrics",
    "scopeSpans",
    "logRecords",
    "metrics",
    "spans",
    "dataPoints",
];

impl Style {
    pub fn plain() -> Style {
        Style {
            dice: Dice::new(0),
            is_plain: true,
        }
    }

    pub fn random(seed: u64) -> Style {
        Style {
            dice: Dice::new(seed),
            is_plain: false,
        }
    }

    fn is(&mut self, one_in: usize) -> bool {
        !self.is_plain && self.dice.is(one_in)
    }

    fn space(&mut self) -> &'static str {
        match self.is(6) {
            true => ["", " ", "\n\t", "\r\n  "][self.dice.below(4)],
            false => "",
        }
    }

    pub fn object(&mut self, members: Vec<Member>) -> String {
        // An unknown member in place of the records is refused.
        let lacks_list = |(name, value): &Member| LISTS.contains(name) && value.is_none();
        let may_have_unknown = !members.iter().any(lacks_list);
        self.object_with(members, may_have_unknown)
    }

    /// An object without members that OTLP does not define.
    pub fn known_object(&mut self, members: Vec<Member>) -> String {
        self.object_with(members, false)
    }

    fn object_with(&mut self, members: Vec<Member>, may_have_unknown: bool) -> String {
        let mut all: Vec<(String, String)> = Vec::new();
        for (name, value) in members {
            let name = match self.is(4) {
                true => snake(name),
                false => name.to_owned(),
            };
            match value {
                Some(value) => all.push((name, value)),
                None if self.is(8) => all.push((name, "null".to_owned())),
                None => {}
            }
        }
        if may_have_unknown && self.is(4) {
            let unknown = [
                r#"{"a":[1,{"b":null}],"c":"\u00e9\"}"}"#,
                "[]",
                "-1.5e-7",
                "true",
                r#""}""#,
            ];
            all.push(("notInOtlp".to_owned(), unknown[self.dice.below(5)].to_owned()));
        }
        if self.is(4) && !all.is_empty() {
            let by = self.dice.below(all.len());
            all.rotate_left(by);
        }
        let mut out = "{".to_owned();
        for (index, (name, value)) in all.iter().enumerate() {
            let name = self.text(name);
            let comma = if index > 0 { "," } else { "" };
            let spaces = [self.space(), self.space(), self.space(), self.space()];
            let [a, b, c, d] = spaces;
            write!(out, "{comma}{a}{name}{b}:{c}{value}{d}").unwrap();
        }
        out + self.space() + "}"
    }

    pub fn list(&mut self, items: Vec<String>) -> Option<String> {
        if items.is_empty() && !self.is(4) {
            return None;
        }
        let mut out = format!("[{}", self.space());
        for (index, item) in items.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            out += comma;
            out += self.space();
            out += item;
            out += self.space();
        }
        Some(out + "]")
    }

    pub fn text(&mut self, text: &str) -> String {
        let mut out = "\"".to_owned();
        for character in text.chars() {
            match character {
                '"' => out += "\\\"",
                '\\' => out += "\\\\",
                '\n' if !self.is(3) => out += "\\n",
                '\t' if !self.is(3) => out += "\\t",
                '/' if self.is(2) => out += "\\/",
                '\0'..' ' => write!(out, "\\u{:04x}", character as u32).unwrap(),
                _ if self.is(12) => {
                    for unit in character.encode_utf16(&mut [0; 2]) {
                        write!(out, "\\u{unit:04X}").unwrap();
                    }
                }
                _ => out.push(character),
            }
        }
        out + "\""
    }

    /// 64-bit integers are texts, and may be numbers.
    pub fn long(&mut self, number: impl std::fmt::Display) -> String {
        match self.is(3) {
            true => number.to_string(),
            false => format!("\"{number}\""),
        }
    }

    pub fn integer(&mut self, number: impl std::fmt::Display) -> String {
        match self.is(6) {
            true => format!("{number}.0e0"),
            false => number.to_string(),
        }
    }

    pub fn double(&mut self, number: f64) -> String {
        match number {
            _ if number.is_nan() => "\"NaN\"".to_owned(),
            _ if number.is_infinite() => match number > 0.0 {
                true => "\"Infinity\"".to_owned(),
                false => "\"-Infinity\"".to_owned(),
            },
            _ if self.is(4) => format!("{number:e}"),
            _ if self.is(8) => format!("\"{number}\""),
            _ => number.to_string(),
        }
    }

    pub fn one_of(&mut self, names: &[&'static str], number: i32) -> String {
        match names.get(number as usize) {
            Some(name) if self.is(3) => format!("\"{name}\""),
            _ => number.to_string(),
        }
    }

    pub fn id(&mut self, bytes: &[u8]) -> String {
        let mut out = "\"".to_owned();
        for byte in bytes {
            match self.is(4) {
                true => write!(out, "{byte:02X}").unwrap(),
                false => write!(out, "{byte:02x}").unwrap(),
            }
        }
        out + "\""
    }

    pub fn bytes(&mut self, bytes: &[u8]) -> String {
        let end = if self.is(3) { b"-_" } else { b"+/" };
        let alphabet: Vec<u8> = (b'A'..=b'Z')
            .chain(b'a'..=b'z')
            .chain(b'0'..=b'9')
            .chain(*end)
            .collect();
        let mut out = String::new();
        for three in bytes.chunks(3) {
            let bits = (0..3).fold(0_u32, |bits, at| {
                bits << 8 | u32::from(three.get(at).copied().unwrap_or(0))
            });
            for at in 0..=three.len() {
                out.push(char::from(alphabet[(bits >> (18 - 6 * at) & 63) as usize]));
            }
        }
        if !self.is(3) {
            while !out.len().is_multiple_of(4) {
                out.push('=');
            }
        }
        self.text(&out)
    }
}

fn snake(name: &str) -> String {
    let mut out = String::new();
    for character in name.chars() {
        if character.is_ascii_uppercase() {
            out.push('_');
        }
        out.push(character.to_ascii_lowercase());
    }
    out
}
