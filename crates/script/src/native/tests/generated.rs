//! Generated programs, in both engines.

use std::cell::Cell;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use thalweg_record::{Message, Value};

use super::grower::{FROM_NUMBER, NUMERIC, cases, program};
use super::{Both, message, messages};
use crate::ScriptForm;

#[test]
#[expect(clippy::print_stdout, reason = "how much of what grew was compared")]
fn programs_that_grew_do_the_same_in_both() {
    let messages = messages();
    let mut runner = TestRunner::new(Config {
        cases: cases(500),
        failure_persistence: None,
        ..Config::default()
    });
    let [programs, outside, done, left] = [const { Cell::new(0) }; 4];
    let count = |counter: &Cell<u32>| counter.set(counter.get() + 1);
    let strategy = (prop::collection::vec(any::<u8>(), 0..160), any::<usize>());
    let result = runner.run(&strategy, |(bytes, first)| {
        let code = program(&bytes);
        count(&programs);
        let mut both = match Both::new(ScriptForm::Body, &code) {
            Ok(both) => both,
            Err(why) => {
                // A program that QuickJS rejects is an error of the generator.
                prop_assert!(!why.starts_with("QuickJS"), "{why}\n{code}");
                count(&outside);
                return Ok(());
            }
        };
        for i in 0..4 {
            let message = &messages[first.wrapping_add(i * 7) % messages.len()];
            let mut compare = |message: &Message| match both.compare(message) {
                Ok(()) => count(&done),
                Err(_) => count(&left),
            };
            compare(message);
            // Another value of the tag, for which part of the result is memoized.
            let payload = messages[first.wrapping_add(i * 5 + 1) % messages.len()].payload.clone();
            compare(&Message::new(payload, message.meta.clone()));
        }
        Ok(())
    });
    let [programs, outside, done, left] = [programs, outside, done, left].map(Cell::into_inner);
    println!("{programs} programs, {outside} outside the subset, {done} calls done, {left} left to QuickJS");
    result.unwrap_or_else(|error| panic!("{error}"));
    assert!(
        done > left,
        "most calls were left to QuickJS: {left} of {}",
        done + left
    );
}

/// Arithmetic on the payload.
fn arithmetic() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        2 => Just("msg.payload"),
        1 => prop::sample::select(vec!["0", "1", "0.1", "32", "-2.5", "1e6", "1e-7", "1e300", "9007199254740993", "33"]),
    ];
    leaf.prop_map(str::to_owned).prop_recursive(4, 24, 2, |inner| {
        prop_oneof![
            (inner.clone(), prop::sample::select(NUMERIC), inner.clone())
                .prop_map(|(a, by, b)| format!("({a} {by} {b})")),
            inner.clone().prop_map(|a| format!("(-{a})")),
            inner.clone().prop_map(|a| format!("(+{a})")),
            (prop::sample::select(FROM_NUMBER), inner).prop_map(|(function, a)| format!("{function}({a})")),
        ]
    })
}

fn number() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<f64>().prop_map(Value::F64),
        any::<f32>().prop_map(Value::F32),
        any::<i64>().prop_map(Value::I64),
        any::<u64>().prop_map(Value::U64),
        any::<i16>().prop_map(Value::I16),
        (-2_000_000i32..2_000_000).prop_map(Value::I32),
        prop::sample::select(vec![0.0, -0.0, 0.5, 1.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY])
            .prop_map(Value::F64),
    ]
}

#[test]
fn arithmetic_that_grew_does_the_same_in_both() {
    let mut runner = TestRunner::new(Config {
        cases: cases(500),
        failure_persistence: None,
        ..Config::default()
    });
    let strategy = (
        arithmetic(),
        prop::sample::select(NUMERIC),
        arithmetic(),
        prop::collection::vec(number(), 1..8),
    );
    let result = runner.run(&strategy, |(first, operator, second, numbers)| {
        let code = format!("msg.meta.a = 1; msg.payload = {first}; msg.payload {operator}= {second}; return msg;");
        let Ok(mut both) = Both::new(ScriptForm::Body, &code) else {
            return Ok(());
        };
        for number in numbers {
            let message = message(number);
            prop_assert_eq!(both.compare(&message), Ok(()), "{}", code);
        }
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
}
