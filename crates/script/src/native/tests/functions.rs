//! Every function and method by name, with usual and unusual arguments. The names come from their declarations, so a
//! new one is tested, or fails here if native code runs none of its calls.

use std::cell::{Cell, RefCell};

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::grower::{REGEXES, cases};
use super::*;
use crate::native::ir::{Global, Method};

/// Stands for undefined, which no payload contains.
const UNDEFINED: &str = "<undefined>";

/// A script that gets its arguments as the payload.
fn script(code: &str) -> String {
    format!(
        "function defined(x) {{ return x === '{UNDEFINED}' ? undefined : x }}\nconst args = msg.payload.map(defined); \
         const [receiver, ...rest] = args; const result = {code};\n\
         msg.payload = {{result, type: typeof result, receiver}}; return msg"
    )
}

fn number(n: f64) -> Value {
    // As a script would have created it.
    crate::view::exact_integer(n).map_or(Value::F64(n), Value::I64)
}

fn list(values: impl IntoIterator<Item = Value>) -> Value {
    Value::Array(values.into_iter().collect::<Vec<_>>().into())
}

fn numbers() -> Vec<Value> {
    let numbers = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        2.0,
        3.0,
        10.0,
        16.0,
        37.0,
        255.0,
        0.5,
        -0.5,
        0.49999999999999994,
        1.5,
        2.5,
        -2.5,
        0.1,
        1.005,
        1e-7,
        1e21,
        -1e21,
        123_456.789,
        5e-324,
        f64::MAX,
        f64::MIN_POSITIVE,
        2_147_483_648.0,
        -2_147_483_649.0,
        4_294_967_295.5,
        9_007_199_254_740_991.0,
        9_007_199_254_740_992.0,
        f64::NAN,
        f64::INFINITY,
        f64::NEG_INFINITY,
    ];
    numbers.map(number).into()
}

fn texts() -> Vec<Value> {
    let texts = [
        "",
        " ",
        "0",
        "-0",
        "12",
        " 12\n",
        "12px",
        "1.5e3",
        "1e400",
        "-1e-400",
        ".5",
        "5.",
        ".",
        "-",
        "1_000",
        "0x1F",
        "0X1f",
        "-0x1F",
        "0x",
        "0b101",
        "0o17",
        "0x20000000000001",
        "9007199254740993",
        "zz",
        "Infinity",
        "-Infinity",
        "+Infinityx",
        "NaN",
        "abc",
        "a.b.c",
        "Plant.Line1",
        "  äÖ ß ",
        "ä€",
        "\u{e000}",
        "a😀b",
        "{\"a\": [1, 2.50, \"x\"], \"b\": null}",
        "[1, -0, 1e2]",
        "{",
        "2026-11-25T08:00:00Z",
        "2026-11-25T08:00:00.5Z",
        "2026-11-25T08:00:00.123Z",
        "2026-02-30T08:00:00Z",
        "2026-11-25T24:00:00Z",
        "2026-11-25T08:00:60Z",
        "2026-13-01T00:00:00Z",
        "2026-11-25T08:00:00+01:00",
        "2026-11-25",
        "0000-01-01T00:00:00Z",
        "Invalid Date",
        UNDEFINED,
    ];
    texts.map(Value::text).into()
}

fn others() -> Vec<Value> {
    vec![
        Value::Null,
        Value::Bool(true),
        Value::Bool(false),
        list([]),
        list([number(1.0)]),
        list([number(1.0), number(2.0), number(3.0)]),
        list(["b", "a", "", "a"].map(Value::text)),
        list([Value::Null, number(f64::NAN), number(-0.0), Value::Bool(true)]),
        list([
            list([number(1.0), list([number(2.0), list([number(3.0)])])]),
            number(4.0),
            list([]),
        ]),
        list([
            list([Value::text("k"), number(1.0)]),
            list([Value::text("l"), Value::Null]),
        ]),
        object(vec![]),
        object(vec![("a", number(1.0)), ("b", Value::text("x"))]),
        object(vec![("length", number(2.0)), ("toString", number(1.0))]),
    ]
}

/// Arguments that are combined in twos and threes.
fn few() -> Vec<Value> {
    let mut few = [-1.0, -0.0, 1.0, 2.0, 16.0, 2.5, f64::NAN, f64::INFINITY]
        .map(number)
        .to_vec();
    few.extend(["", "a", "12", "0x1F", "length", UNDEFINED].map(Value::text));
    few.extend([
        Value::Null,
        list([number(1.0), Value::text("a")]),
        object(vec![("a", number(1.0))]),
    ]);
    few
}

/// Lists of one of these arguments after `first`, or after nothing.
fn single(first: Option<&Value>) -> Vec<Vec<Value>> {
    let mut lists = vec![Vec::new()];
    lists.extend(few().into_iter().map(|value| vec![value]));
    after(first, lists)
}

/// Lists of several arguments after `first`, or after nothing.
fn several(first: Option<&Value>) -> Vec<Vec<Value>> {
    let few = few();
    let some = || few.iter().step_by(3);
    let pairs = some().flat_map(|a| some().map(|b| vec![a.clone(), b.clone()]));
    let mut lists: Vec<Vec<Value>> = pairs.collect();
    for a in [0.0, 1.0, -2.0] {
        for b in [0.0, 1.0, 2.0] {
            lists.push([a, b, -1.0].map(number).to_vec());
            lists.push(vec![number(a), number(b), Value::text("new"), Value::Null]);
        }
    }
    after(first, lists)
}

fn after(first: Option<&Value>, mut lists: Vec<Vec<Value>>) -> Vec<Vec<Value>> {
    for list in &mut lists {
        list.splice(0..0, first.cloned());
    }
    lists
}

/// How many of the calls native code ran; all calls have the same result in both engines.
#[derive(Default)]
struct Count {
    done: usize,
    calls: usize,
}

impl Count {
    fn run(&mut self, code: &str, arguments: impl IntoIterator<Item = Vec<Value>>) {
        let mut both = in_both(code);
        for arguments in arguments {
            self.compare(&mut both, arguments);
        }
    }

    /// With each of the receivers and at most one argument; `widely` also with several, for receivers that have the
    /// method.
    fn run_of(&mut self, code: &str, receivers: &[Value], widely: bool) {
        let mut both = in_both(code);
        for receiver in receivers {
            let before = self.done;
            for arguments in single(Some(receiver)) {
                self.compare(&mut both, arguments);
            }
            if widely && self.done > before {
                for arguments in several(Some(receiver)) {
                    self.compare(&mut both, arguments);
                }
            }
        }
    }

    fn compare(&mut self, both: &mut Both, arguments: Vec<Value>) {
        self.calls += 1;
        self.done += usize::from(both.compare(&message(list(arguments))).is_ok());
    }
}

fn in_both(code: &str) -> Both {
    let code = script(code);
    Both::new(ScriptForm::Body, &code).unwrap_or_else(|why| panic!("{code}\nis outside: {why}"))
}

#[test]
#[expect(clippy::print_stdout, reason = "how much of each was compared")]
fn every_function_of_the_language_does_the_same_in_both() {
    let each = || numbers().into_iter().chain(texts()).chain(others());
    for (global, name) in Global::ALL {
        let mut count = Count::default();
        let calls = match global {
            // Its result differs between calls.
            Global::DateNow => vec!["typeof Date.now() + (Date.now() > 1.7e12) + Date.now() % 1".to_owned()],
            Global::JsonParse => vec!["JSON.parse(receiver)".to_owned()],
            Global::JsonStringify => vec![
                "JSON.stringify()".to_owned(),
                "JSON.stringify(receiver)".to_owned(),
                "JSON.stringify({a: [receiver], b: undefined}, null, rest[0])".to_owned(),
            ],
            _ => vec![format!("{name}(...args)"), format!("[{name}()]")],
        };
        for call in &calls {
            count.run(call, each().map(|value| vec![value]));
            count.run(call, single(None));
            count.run(call, several(None));
            count.run(call, each().zip(few().into_iter().cycle()).map(|(a, b)| vec![a, b]));
        }
        println!("{name}: {} of {} calls", count.done, count.calls);
        assert!(
            count.done >= 5,
            "{name}: native code did {} of {} calls",
            count.done,
            count.calls
        );
    }
}

#[test]
fn the_documentation_names_what_is_native() {
    let docs = include_str!("../../../../../docs/how-to/scripts.md");
    let (_, native) = docs.split_once("**Runs as native code:**").unwrap();
    let (native, _) = native.split_once("**Runs in QuickJS:**").unwrap();
    let words: Vec<&str> = native.split(|c: char| !c.is_ascii_alphanumeric()).collect();
    let methods = Method::ALL.iter().map(|(_, name)| *name);
    let globals = Global::ALL.iter().map(|(_, name)| *name);
    // The documentation claims that all of these exist.
    let globals = globals.filter(|name| !name.starts_with("Math."));
    for name in methods.chain(globals) {
        let last = name.rsplit('.').next().unwrap();
        assert!(words.contains(&last), "docs/how-to/scripts.md does not name {name}");
    }
}

/// Functions that are passed to methods.
const CALLBACKS: &[&str] = &[
    "x => x",
    "(x, i) => i > 0",
    "(x, y) => x + y",
    "(x, y, i) => `${x}${y}${i}`",
    "x => [x, [x]]",
    "x => !x",
    "(x, i, all) => all.length",
    "() => undefined",
    "String",
    "Number",
    "Boolean",
];

#[test]
#[expect(clippy::print_stdout, reason = "how much of each was compared")]
fn every_method_does_the_same_in_both() {
    let receivers: Vec<Value> = numbers().into_iter().chain(texts()).chain(others()).collect();
    for (method, name) in Method::ALL {
        let mut count = Count::default();
        count.run_of(&format!("receiver.{name}(...rest)"), &receivers, true);
        let mut of_all = |code: &str, receivers: &[Value]| count.run_of(code, receivers, false);
        let (texts, lists) = (texts(), others());
        match method {
            Method::Every
            | Method::Filter
            | Method::Find
            | Method::FindIndex
            | Method::FlatMap
            | Method::ForEach
            | Method::Map
            | Method::Reduce
            | Method::ReduceRight
            | Method::Some => {
                for callback in CALLBACKS {
                    of_all(&format!("receiver.{name}({callback}, ...rest)"), &lists);
                    of_all(&format!("receiver.{name}({callback})"), &lists);
                }
            }
            Method::Match | Method::Search | Method::Split => {
                for regex in REGEXES {
                    of_all(&format!("receiver.{name}({regex}, ...rest)"), &texts);
                }
            }
            Method::Replace | Method::ReplaceAll => {
                for callback in CALLBACKS {
                    of_all(&format!("receiver.{name}('a', {callback})"), &texts);
                    of_all(&format!("receiver.{name}(/[a-z.]/g, {callback})"), &texts);
                }
                for regex in REGEXES {
                    of_all(&format!("receiver.{name}({regex}, ...rest)"), &texts);
                }
            }
            // Of all arguments together.
            Method::Sort => of_all("args.sort()", &receivers),
            Method::Test => {
                for regex in REGEXES {
                    of_all(&format!("{regex}.test(receiver)"), &texts);
                    of_all(&format!("{regex}.test(...rest)"), &texts[..3]);
                }
            }
            _ => {}
        }
        let is_of_dates = name.starts_with("getUTC") || matches!(method, Method::GetTime | Method::ToIsoString);
        if is_of_dates || *method == Method::ValueOf {
            of_all(&format!("new Date(receiver).{name}()"), &receivers);
            let times = [
                1_700_000_000_123.0,
                -1.0,
                -62_167_219_200_000.0,
                253_402_300_799_999.0,
                253_402_300_800_000.0,
                951_782_400_000.5,
            ];
            of_all(&format!("new Date(receiver).{name}()"), &times.map(number));
        }
        println!("{name}: {} of {} calls", count.done, count.calls);
        // A call bails out for each receiver that does not have the method.
        assert!(
            count.done >= 100,
            "{name}: native code did {} of {} calls",
            count.done,
            count.calls
        );
    }
}

/// Numbers of all magnitudes, and ordinary ones.
fn any_number() -> impl Strategy<Value = f64> {
    prop_oneof![
        4 => any::<u64>().prop_map(f64::from_bits),
        2 => -1.0..1.0f64,
        2 => -40.0..40.0f64,
        1 => -1e6..1e6f64,
        1 => any::<i32>().prop_map(f64::from),
        1 => (any::<i32>(), 0..60i32).prop_map(|(n, by)| f64::from(n) * 0.5f64.powi(by)),
        1 => (-1075..1024i32).prop_map(|by| 2f64.powi(by)),
        1 => (-100_000..100_000i32).prop_map(|n| f64::from(n) / 1000.0),
    ]
}

fn runner() -> TestRunner {
    TestRunner::new(Config {
        cases: cases(6000),
        failure_persistence: None,
        ..Config::default()
    })
}

/// Compares the results of a script for numbers, to the last digit.
fn compare_of_numbers(code: &str, numbers: impl Strategy<Value = Vec<f64>>) {
    let both = Both::new(ScriptForm::Body, code).unwrap_or_else(|why| panic!("{code}\nis outside: {why}"));
    let both = RefCell::new(both);
    let result = runner().run(&numbers, |numbers| {
        let message = message(list(numbers.into_iter().map(Value::F64)));
        // A panic of the comparison fails the test; calls that bailed out were not compared.
        prop_assert_eq!(both.borrow_mut().compare(&message), Ok(()));
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn mathematics_is_that_of_quickjs_to_the_last_bit() {
    let functions = Global::ALL.iter().map(|(_, name)| name);
    let functions = functions.filter(|name| name.starts_with("Math."));
    let calls: Vec<String> = functions
        .map(|name| format!("{name}(x), {name}(x, y), {name}(x, y, x + y)"))
        .collect();
    let code = format!(
        "const [x, y] = msg.payload; msg.payload = {{results: [{}]}}; return msg",
        calls.join(", ")
    );
    compare_of_numbers(&code, prop::collection::vec(any_number(), 2));
}

#[test]
fn numbers_are_written_as_quickjs_writes_them() {
    let digits = [1, 2, 3, 5, 8, 15, 16, 17, 18, 21, 40, 100];
    let rounded = digits.map(|n| format!("x.toFixed({n}), x.toExponential({n}), x.toPrecision({n})"));
    let code = format!(
        "const [x] = msg.payload; msg.payload = {{texts: [String(x), x.toString(), x.toFixed(), x.toFixed(0), \
         x.toExponential(), x.toExponential(0), x.toPrecision(), {}]}}; return msg",
        rounded.join(", ")
    );
    compare_of_numbers(&code, prop::collection::vec(any_number(), 1));
}

/// The neighbouring numbers are at different distances, so the shortest digits may not be the nearest.
#[test]
fn powers_of_two_are_written_as_quickjs_writes_them() {
    let code = "const [x] = msg.payload; msg.payload = {texts: [String(x), `${-x}`, x.toExponential(), JSON.stringify(x)]}; \
                return msg";
    let mut both = Both::new(ScriptForm::Body, code).unwrap();
    for by in -1074..1024 {
        // Beyond the smallest exponent, `powi` would divide by an overflow.
        let power = 2f64.powi(by.max(-1000)) * 2f64.powi((by + 1000).min(0));
        assert_eq!(both.compare(&message(list([Value::F64(power)]))), Ok(()), "2^{by}");
    }
}

#[test]
fn integers_and_texts_of_other_radixes_are_those_of_quickjs() {
    let code = "const [x, radix] = msg.payload; const n = Math.trunc(x % 9007199254740992); \
                msg.payload = {texts: [n.toString(radix), parseInt(n, radix), Number.parseInt(x, 10), parseInt(x), \
                parseFloat(x), Number.parseFloat(String(x)), Number(String(x)), +`${x}`]}; return msg";
    let both = RefCell::new(Both::new(ScriptForm::Body, code).unwrap());
    let done = Cell::new(0);
    let result = runner().run(&(any_number(), 2..37i32), |(x, radix)| {
        let message = message(list([Value::F64(x), Value::F64(f64::from(radix))]));
        // Integers with more digits than a number has exactly are left to QuickJS.
        done.set(done.get() + u32::from(both.borrow_mut().compare(&message).is_ok()));
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
    assert!(done.get() > cases(6000) / 3, "{}", done.get());
}
