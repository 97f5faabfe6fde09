//! Generates programs from bytes, so that a failing program shrinks with them.

/// Grows a program. Once the bytes are used up, every choice is the first one, which ends the growth.
struct Grower<'b> {
    bytes: &'b [u8],
    out: String,
    loops: usize,
    /// Whether the variables that programs begin with exist.
    has_variables: bool,
}

/// The usual type of an expression.
#[derive(Clone, Copy)]
enum Kind {
    Text,
    Number,
    Truth,
    List,
    Record,
}

const KINDS: [Kind; 5] = [Kind::Text, Kind::Number, Kind::Truth, Kind::List, Kind::Record];

const TEXTS: &[&str] = &[
    "'a'",
    "a",
    "msg.meta.unit",
    "msg.meta.level",
    "msg.meta.opcua_tag_group",
    "''",
    "'10'",
    "' 12 '",
    "'Line1.Oven'",
    "'ä€'",
    "'ß'",
    "'0x1F'",
    "'1e3'",
    "'a.b.c'",
    "'$1$&'",
    "'-0'",
    "'\\u00e9\\n'",
    "'Infinity'",
    "'2026-11-25T08:00:00Z'",
    "msg.meta.opcua_attr_nodeid",
    "'x y  z'",
    "'😀'",
    "'{\"a\": [1, 2.50]}'",
    "'unit'",
    "'opcua_gap'",
    "'opcua_source_timestamp'",
    "msg.meta._keys",
    "msg.meta.opcua_attr_statuscode",
];
const NUMBERS: &[&str] = &[
    "1",
    "b",
    "0",
    "-1",
    "0.5",
    "10",
    "-0",
    "1e21",
    "1e-7",
    "NaN",
    "Infinity",
    "255",
    "2147483648",
    "9007199254740993",
    "2",
    "3",
    "-2.5",
    "1.005",
    "123456.789",
    "Math.PI",
    "Number.EPSILON",
    "4294967295.5",
    "Object.keys(msg.meta).length",
];
const TRUTHS: &[&str] = &[
    "true",
    "false",
    "msg.meta.x === undefined",
    "('opcua_gap' in msg.meta)",
    "(msg.payload > 5)",
    "true",
];
const LISTS: &[&str] = &[
    "[]",
    "[1, 'b', null]",
    "[3, 1, 2]",
    "['c', 'a', 'b']",
    "d",
    "[[1, 'x'], ['y', 2]]",
    "[undefined, -0, NaN]",
];
const RECORDS: &[&str] = &[
    "{}",
    "{a: 1, b: 'x', 3: 4}",
    "msg.meta",
    "{length: 2}",
    "{value: 1.5, list: [1]}",
    "e",
];
const OTHERS: &[&str] = &[
    "msg.payload",
    "null",
    "undefined",
    "c",
    "msg.meta.x",
    "msg.payload?.value",
    "msg.payload?.list",
    "msg",
    "msg.meta.opcua_gap",
    "msg.meta.opcua_gap_to",
    "msg.meta.opcua_source_timestamp",
    "msg.meta.own",
    "msg.meta[a]",
];

pub(super) const NUMERIC: &[&str] = &["+", "-", "*", "/", "%", "**", "&", "|", "^", "<<", ">>", ">>>"];
const COMPARING: &[&str] = &["==", "!=", "===", "!==", "<", "<=", ">", ">="];
pub(super) const FROM_NUMBER: &[&str] = &[
    "Math.abs",
    "Math.round",
    "Math.floor",
    "Math.ceil",
    "Math.trunc",
    "Math.sign",
    "Math.sqrt",
    "Math.log10",
    "Math.log2",
    "Math.sin",
    "Math.exp",
    "Math.cbrt",
    "Math.tan",
    "Math.log",
    "Math.atan",
    "Math.cos",
    "Math.asin",
    "Math.acos",
    "Math.sinh",
    "Math.cosh",
    "Math.tanh",
    "Math.asinh",
    "Math.acosh",
    "Math.atanh",
    "Math.log1p",
    "Math.expm1",
    "Math.fround",
    "Math.clz32",
    "Number",
    "+",
    "-",
    "~",
];
const FROM_NUMBERS: &[&str] = &[
    "Math.max",
    "Math.min",
    "Math.pow",
    "Math.atan2",
    "Math.hypot",
    "Math.imul",
];
pub(super) const REGEXES: &[&str] = &[
    "/a/",
    "/[a-z]+/g",
    "/\\d+/",
    "/(\\w)(.)?/",
    "/\\s*/g",
    "/^[^.]*/",
    "/e|i|(o)/g",
    "/\\./g",
    "/x*/g",
    "/[A-Z]/gi",
    "/.{2,3}?/",
    "/$/",
    "/\\bL/",
    "/[\\s\\S]/g",
    "/(?:ab|a)c?/",
];
const CALLBACKS: &[&str] = &[
    "x => x",
    "(x, i) => i",
    "x => x + 1",
    "x => !x",
    "String",
    "Number",
    "Boolean",
    "(x, y) => x + y",
    "helper",
    "([x, y = 5]) => `${y}${x}`",
    "x => { if (x > 1) { return 'big' } return typeof x }",
];
const NAMES: &[&str] = &["x", "unit", "a", "b", "length", "value", "list", "level", "y"];

impl Grower<'_> {
    fn next(&mut self, n: usize) -> usize {
        match self.bytes.split_first() {
            Some((byte, rest)) => {
                self.bytes = rest;
                usize::from(*byte) % n
            }
            None => 0,
        }
    }

    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        match from[self.next(from.len())] {
            "a" if !self.has_variables => "'a'",
            "b" if !self.has_variables => "7",
            "c" if !self.has_variables => "null",
            "d" if !self.has_variables => "[2, 'x', 1.5]",
            "e" if !self.has_variables => "({a: 1})",
            "helper" if !self.has_variables => "String",
            picked => picked,
        }
    }

    fn any(&mut self, depth: usize) -> String {
        let kind = KINDS[self.next(KINDS.len())];
        self.expr(kind, depth)
    }

    fn expr(&mut self, kind: Kind, depth: usize) -> String {
        // Now and then it has another type.
        match self.next(24) {
            22 => return format!("({})", self.pick(OTHERS)),
            23 if depth > 0 => return self.any(depth - 1),
            _ => {}
        }
        if depth > 0 {
            match self.next(12) {
                10 => {
                    let test = self.expr(Kind::Truth, depth - 1);
                    return format!(
                        "({test} ? {} : {})",
                        self.expr(kind, depth - 1),
                        self.expr(kind, depth - 1)
                    );
                }
                11 => {
                    let (left, right) = (self.any(depth - 1), self.expr(kind, depth - 1));
                    return format!("({left} {} {right})", self.pick(&["??", "||", "&&"]));
                }
                _ => {}
            }
        }
        match kind {
            Kind::Text => self.text(depth),
            Kind::Number => self.number(depth),
            Kind::Truth => self.truth(depth),
            Kind::List => self.list(depth),
            Kind::Record => self.record(depth),
        }
    }

    fn text(&mut self, depth: usize) -> String {
        if depth == 0 {
            return self.pick(TEXTS).to_owned();
        }
        let d = depth - 1;
        match self.next(14) {
            0 => self.pick(TEXTS).to_owned(),
            1 => format!("({} + {})", self.expr(Kind::Text, d), self.any(d)),
            2 => format!("`p${{{}}}q${{{}}}`", self.any(d), self.any(d)),
            3 => {
                let receiver = self.expr(Kind::Text, d);
                let method = self.pick(&[
                    "trim",
                    "toUpperCase",
                    "toLowerCase",
                    "trimStart",
                    "trimEnd",
                    "toString",
                    "valueOf",
                ]);
                format!("{receiver}.{method}()")
            }
            4 | 5 => {
                let receiver = self.expr(Kind::Text, d);
                let method = self.pick(&["slice", "substring", "substr", "charAt", "at", "repeat"]);
                format!(
                    "{receiver}.{method}({}, {})",
                    self.expr(Kind::Number, d),
                    self.expr(Kind::Number, 0)
                )
            }
            6 => {
                let receiver = self.expr(Kind::Text, d);
                let method = self.pick(&["padStart", "padEnd"]);
                format!(
                    "{receiver}.{method}({}, {})",
                    self.expr(Kind::Number, 0),
                    self.expr(Kind::Text, 0)
                )
            }
            7 | 8 => {
                let receiver = self.expr(Kind::Text, d);
                let pattern = match self.next(3) {
                    0 => self.expr(Kind::Text, 0),
                    _ => self.pick(REGEXES).to_owned(),
                };
                let with = match self.next(3) {
                    0 => "'<$1$&$`$2>'".to_owned(),
                    1 => "(x, y) => `${y}${x}!`".to_owned(),
                    _ => self.expr(Kind::Text, d),
                };
                format!(
                    "{receiver}.{}({pattern}, {with})",
                    self.pick(&["replace", "replaceAll"])
                )
            }
            9 => format!("{}.join({})", self.expr(Kind::List, d), self.expr(Kind::Text, 0)),
            10 => {
                let (of, digits) = (self.expr(Kind::Number, d), self.next(4));
                let method = self.pick(&["toFixed", "toExponential", "toPrecision"]);
                format!("({of}).{method}({digits})")
            }
            11 => format!(
                "({}).toString({})",
                self.expr(Kind::Number, d),
                self.pick(&["", "16", "2", "10"])
            ),
            12 => format!("JSON.stringify({})", self.any(d)),
            _ => format!("{}({})", self.pick(&["String", "typeof", "helper"]), self.any(d)),
        }
    }

    fn number(&mut self, depth: usize) -> String {
        if depth == 0 {
            return format!("({})", self.pick(NUMBERS));
        }
        let d = depth - 1;
        match self.next(12) {
            0 => format!("({})", self.pick(NUMBERS)),
            1 | 2 => {
                let operator = self.pick(NUMERIC);
                format!(
                    "(({}) {operator} ({}))",
                    self.expr(Kind::Number, d),
                    self.expr(Kind::Number, d)
                )
            }
            3 => format!("({}({}))", self.pick(FROM_NUMBER), self.expr(Kind::Number, d)),
            4 => format!(
                "{}({}, {})",
                self.pick(FROM_NUMBERS),
                self.expr(Kind::Number, d),
                self.expr(Kind::Number, d)
            ),
            5 => {
                let function = self.pick(&["Number", "parseFloat", "parseInt", "Number.parseFloat"]);
                format!("{function}({})", self.any(d))
            }
            6 => format!(
                "parseInt({}, {})",
                self.expr(Kind::Text, d),
                self.pick(&["10", "16", "2", "0", "36"])
            ),
            7 => {
                let receiver = self.expr(Kind::Text, d);
                let method = self.pick(&["indexOf", "lastIndexOf", "charCodeAt", "codePointAt", "localeCompare"]);
                format!("{receiver}.{method}({})", self.any(0))
            }
            8 => {
                let of = [Kind::Text, Kind::List][self.next(2)];
                format!("{}.length", self.expr(of, d))
            }
            9 => format!("{}.search({})", self.expr(Kind::Text, d), self.pick(REGEXES)),
            10 => {
                let receiver = self.expr(Kind::List, d);
                let method = self.pick(&["reduce", "reduceRight"]);
                let callback = self.pick(&["(x, y) => x + y", "(x, y, i) => i", "helper", "Number"]);
                match self.next(2) {
                    0 => format!("{receiver}.{method}({callback})"),
                    _ => format!("{receiver}.{method}({callback}, {})", self.any(0)),
                }
            }
            _ => format!(
                "{}.{}({})",
                self.expr(Kind::List, d),
                self.pick(&["indexOf", "push", "unshift"]),
                self.any(0)
            ),
        }
    }

    fn truth(&mut self, depth: usize) -> String {
        if depth == 0 {
            return self.pick(TRUTHS).to_owned();
        }
        let d = depth - 1;
        match self.next(9) {
            0 => self.pick(TRUTHS).to_owned(),
            1 | 2 => {
                let operator = self.pick(COMPARING);
                format!("({} {operator} {})", self.any(d), self.any(d))
            }
            3 => format!("!({})", self.any(d)),
            4 => {
                let receiver = self.expr(Kind::Text, d);
                let method = self.pick(&["includes", "startsWith", "endsWith"]);
                format!(
                    "{receiver}.{method}({}, {})",
                    self.expr(Kind::Text, 0),
                    self.pick(&["0", "1", "-1", "undefined", "9"])
                )
            }
            5 => {
                let function = self.pick(&[
                    "isNaN",
                    "isFinite",
                    "Number.isInteger",
                    "Number.isFinite",
                    "Number.isSafeInteger",
                    "Number.isNaN",
                    "Array.isArray",
                    "Boolean",
                ]);
                format!("{function}({})", self.any(d))
            }
            6 => format!("({} in {})", self.expr(Kind::Text, 0), self.expr(Kind::Record, d)),
            7 => {
                let regex = self.pick(REGEXES);
                format!("{regex}.test({})", self.any(d))
            }
            _ => {
                let method = self.pick(&["some", "every", "find", "findIndex"]);
                format!("{}.{method}({})", self.expr(Kind::List, d), self.pick(CALLBACKS))
            }
        }
    }

    fn list(&mut self, depth: usize) -> String {
        if depth == 0 {
            return self.pick(LISTS).to_owned();
        }
        let d = depth - 1;
        match self.next(10) {
            0 => self.pick(LISTS).to_owned(),
            1 => format!("[{}, {}]", self.any(d), self.any(d)),
            2 => format!("[...{}, {}]", self.expr(Kind::List, d), self.any(d)),
            3 => {
                let separator = match self.next(2) {
                    0 => self.expr(Kind::Text, 0),
                    _ => self.pick(REGEXES).to_owned(),
                };
                format!("{}.split({separator})", self.expr(Kind::Text, d))
            }
            4 => {
                let receiver = self.expr(Kind::List, d);
                let method = self.pick(&["map", "filter", "forEach", "flatMap"]);
                format!("({receiver}.{method}({}) || [])", self.pick(CALLBACKS))
            }
            5 => format!(
                "{}.{}()",
                self.expr(Kind::List, d),
                self.pick(&["reverse", "sort", "slice", "concat", "flat"])
            ),
            6 => format!(
                "{}.{}({}, {})",
                self.expr(Kind::List, d),
                self.pick(&["slice", "splice", "fill"]),
                self.expr(Kind::Number, 0),
                self.expr(Kind::Number, 0)
            ),
            7 => format!("({}.match({}) || [])", self.expr(Kind::Text, d), self.pick(REGEXES)),
            8 => {
                let function = self.pick(&["Object.keys", "Object.values", "Object.entries"]);
                format!("{function}({})", self.expr(Kind::Record, d))
            }
            _ => format!("{}.concat({})", self.expr(Kind::List, d), self.any(d)),
        }
    }

    fn record(&mut self, depth: usize) -> String {
        if depth == 0 {
            return format!("({})", self.pick(RECORDS));
        }
        let d = depth - 1;
        match self.next(5) {
            0 => format!("({})", self.pick(RECORDS)),
            1 => {
                let name = self.pick(NAMES);
                format!(
                    "({{{name}: {}, ...{}, [{}]: 1}})",
                    self.any(d),
                    self.expr(Kind::Record, d),
                    self.expr(Kind::Text, 0)
                )
            }
            2 => format!("Object.assign({{}}, {})", self.expr(Kind::Record, d)),
            3 => format!("Object.fromEntries(Object.entries({}))", self.expr(Kind::Record, d)),
            _ => format!("JSON.parse(JSON.stringify({}))", self.expr(Kind::Record, d)),
        }
    }

    fn assignment(&mut self) -> String {
        match self.next(10) {
            0 => format!("msg.meta.x = {};", self.any(3)),
            1 => format!("a = {};", self.expr(Kind::Text, 3)),
            2 => format!("b = {};", self.expr(Kind::Number, 3)),
            3 => format!("c = {};", self.any(3)),
            4 => format!("d = {};", self.expr(Kind::List, 2)),
            5 => format!("e = {};", self.expr(Kind::Record, 2)),
            6 => format!("msg.payload = {};", self.any(3)),
            7 => format!("msg.meta[{}] = {};", self.expr(Kind::Text, 1), self.any(1)),
            8 => format!("e.{} = {};", self.pick(NAMES), self.any(2)),
            _ => format!(
                "d[{}] = {};",
                self.pick(&["0", "1", "d.length", "'0'", "b"]),
                self.any(1)
            ),
        }
    }

    fn statement(&mut self, depth: usize) {
        let code = match self.next(if depth == 0 { 6 } else { 14 }) {
            0 | 1 => self.assignment(),
            2 => {
                let target = self.pick(&[
                    "a",
                    "b",
                    "c",
                    "msg.meta.x",
                    "msg.meta.level",
                    "e.a",
                    "d[0]",
                    "msg.payload",
                ]);
                let operator = self.pick(&["+=", "-=", "*=", "??=", "||=", "&&=", "|=", "**="]);
                format!("{target} {operator} {};", self.any(2))
            }
            3 => format!(
                "delete {};",
                self.pick(&["msg.meta.unit", "msg.meta.x", "e.a", "msg.meta.nothing"])
            ),
            4 => format!(
                "{}{};",
                self.pick(&["b", "c", "msg.meta.level", "e.a"]),
                self.pick(&["++", "--"])
            ),
            5 => format!("console.log({}, {});", self.any(2), self.any(1)),
            6 | 7 => {
                let test = self.expr(Kind::Truth, 2);
                self.out += &format!("if ({test}) {{ ");
                self.statement(depth - 1);
                self.out += "} else { ";
                self.statement(depth - 1);
                "} ".to_owned()
            }
            8 => {
                self.loops += 1;
                let (i, end) = (self.loops, self.next(4));
                self.out += &format!("for (let i{i} = 0; i{i} < {end}; i{i}++) {{ let t = i{i}; ");
                self.statement(depth - 1);
                let leave = self.pick(&["break", "continue"]);
                format!("msg.meta.x = t; if ({}) {leave} }} ", self.expr(Kind::Truth, 1))
            }
            9 => {
                let (kind, list) = match self.next(3) {
                    0 => ("of", self.expr(Kind::List, 2)),
                    1 => ("of", self.expr(Kind::Text, 2)),
                    _ => ("in", self.expr(Kind::Record, 2)),
                };
                self.out += &format!("for (const k {kind} {list}) {{ c = k; ");
                self.statement(depth - 1);
                "} ".to_owned()
            }
            10 => {
                let (value, one, two) = (self.any(1), self.any(0), self.any(0));
                self.out += &format!("switch ({value}) {{ case {one}: ");
                self.statement(depth - 1);
                let leave = self.pick(&["break; ", ""]);
                self.out += &format!("{leave}case {two}: ");
                self.statement(depth - 1);
                self.out += "default: ";
                self.statement(depth - 1);
                "} ".to_owned()
            }
            11 => format!("cache.set({}, {}); ", self.pick(&["'k'", "'l'", "a"]), self.any(2)),
            12 => "if (cache.exists('k')) { c = cache.get('k') } ".to_owned(),
            _ => {
                let returned = self.pick(&[
                    "null",
                    "msg",
                    "[msg, {payload: a, meta: e}]",
                    "{payload: c}",
                    "{meta: e}",
                    "e",
                    "d",
                ]);
                format!("return {returned}; ")
            }
        };
        self.out += &code;
        self.out.push('\n');
    }
}

/// A script of `msg`.
pub(crate) fn program(bytes: &[u8]) -> String {
    let mut grower = Grower {
        bytes,
        out: String::new(),
        loops: 0,
        has_variables: true,
    };
    grower.out += "let a = 'Plant.Line', b = 7, c, d = [2, 'x', 1.5], e = {a: 1, list: [1, {b: 2}]};\n";
    grower.out += "function helper(x = 1) { const y = x; return y ? y : typeof x }\n";
    let count = 1 + grower.next(6);
    for _ in 0..count {
        grower.statement(2);
    }
    grower.out += "return msg;";
    grower.out
}

/// A script that can usually be split: metadata from metadata, and a payload from the payload.
pub(crate) fn halves(bytes: &[u8]) -> String {
    let mut grower = Grower {
        bytes,
        out: String::new(),
        loops: 0,
        has_variables: false,
    };
    for name in ["x", "level"] {
        let value = grower.any(2);
        grower.out += &format!("msg.meta.{name} = {value}; ");
    }
    let of_payload = [
        "msg.payload",
        "msg.payload * 2",
        "Math.round(msg.payload)",
        "String(msg.payload)",
        "(msg.payload?.value ?? 1)",
        "[msg.payload]",
        "JSON.stringify(msg.payload)",
    ];
    let (first, operator, second) = (
        grower.pick(&of_payload),
        grower.pick(&["+=", "-=", "*=", "="]),
        grower.pick(&of_payload),
    );
    let condition = grower.pick(&["true", "msg.payload > 10", "msg.payload !== null"]);
    let otherwise = grower.any(1);
    grower.out
        + &format!("msg.payload = {condition} ? {first} : {otherwise}; msg.payload {operator} {second}; return msg;")
}

/// A condition on `msg` that is usually a boolean.
pub(crate) fn condition(bytes: &[u8]) -> String {
    let mut grower = Grower {
        bytes,
        out: String::new(),
        loops: 0,
        has_variables: false,
    };
    grower.expr(Kind::Truth, 3)
}

/// The number of cases of a test with generated programs.
pub(crate) fn cases(by_default: u32) -> u32 {
    let set = std::env::var("THALWEG_SCRIPT_CASES")
        .ok()
        .and_then(|cases| cases.parse().ok());
    set.unwrap_or(by_default)
}
