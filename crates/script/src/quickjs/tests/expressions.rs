//! Expressions of variables, in both engines: what they see, what they return, and how they fail.

use thalweg_record::{Object, json};

use super::*;
use crate::{Engine, EngineMode, ProgramStats};

/// An engine with one expression.
fn engine(variables: &[&str], code: &str, mode: EngineMode) -> Result<Engine, (usize, usize, String)> {
    let script = Script {
        stage: "motor.power".to_owned(),
        form: ScriptForm::Expression(variables.iter().map(|&name| name.to_owned()).collect()),
        code: code.to_owned(),
    };
    let environment = Environment {
        limits: test_limits(),
        ..Environment::bare()
    };
    Engine::new(&[script], environment, mode).map_err(|error| (error.line, error.column, error.text))
}

/// The value as JSON, and which engine computed it.
fn value(variables: &[(&str, Value)], code: &str, mode: EngineMode) -> (Result<String, String>, ProgramStats) {
    let names: Vec<&str> = variables.iter().map(|(name, _)| *name).collect();
    let mut engine = engine(&names, code, mode).unwrap();
    let members = variables.iter().map(|(name, value)| ((*name).into(), value.clone()));
    let payload = Payload::Value(members.collect::<Object>().into());
    let message = Message::new(payload.clone(), Metadata::default());
    let result = match engine.run(0, &message, &message.meta) {
        Ok(ScriptOutput::One(reply)) => Ok(match reply.payload {
            PayloadReply::New(value) => json::to_string(&value),
            other => format!("{other:?}"),
        }),
        Ok(other) => panic!("an expression gives one message, not {other:?}"),
        Err(failure) => Err(failure.text),
    };
    (result, engine.stats())
}

#[test]
fn an_expression_is_computed_from_its_variables_alike_in_both_engines() {
    let variables = [("left", Value::I64(6)), ("rechts", Value::text("x"))];
    for (code, expected, is_native) in [
        ("left * 7", "42", true),
        ("left > 5 ? rechts : null", "\"x\"", true),
        ("`${rechts}${left}`", "\"x6\"", true),
        ("{l: left, r: [rechts]}", r#"{"l":6,"r":["x"]}"#, true),
        ("{left, rechts}", "Same", true),
        ("[1, 2].map(left => left * 2)", "[2,4]", true),
        ("left, rechts // the last one counts", "\"x\"", true),
        ("undefined", "null", true),
        ("typeof msg + typeof this", "\"undefinedundefined\"", false),
        ("new Map([[1, left]]).get(1)", "6", false),
        ("(left = left + 1, left)", "7", true),
    ] {
        for mode in [EngineMode::QuickJs, EngineMode::Auto, EngineMode::Verify] {
            let (result, stats) = value(&variables, code, mode);
            assert_eq!(result.as_deref(), Ok(expected), "{code} {mode:?}");
            assert_eq!(stats.differences, 0, "{code}");
            assert_eq!(
                stats.native_calls > 0,
                is_native && mode != EngineMode::QuickJs,
                "{code} {mode:?}"
            );
        }
    }
}

#[test]
fn an_expression_needs_no_variables_and_takes_any_name() {
    assert_eq!(value(&[], "1 + 1", EngineMode::Auto).0.as_deref(), Ok("2"));
    let variables = [
        ("msg", Value::I64(1)),
        ("größe_$2", Value::I64(2)),
        ("Math", Value::I64(3)),
    ];
    let sum = value(&variables, "msg + größe_$2 + Math", EngineMode::Auto).0;
    assert_eq!(sum.as_deref(), Ok("6"));
}

#[test]
fn what_goes_wrong_has_its_place_in_the_expression() {
    let variables = [("left", Value::I64(6))];
    for (code, text) in [
        (
            "left + missing",
            "ReferenceError: missing is not defined (line 1, column 8)",
        ),
        (
            "left +\n  left.a.b",
            "TypeError: cannot read property 'b' of undefined (line 2, column 3)",
        ),
        (
            "other = left",
            "ReferenceError: other is not defined (line 1, column 9)",
        ),
        ("() => left", "payload cannot be used: a function has no data form"),
    ] {
        assert_eq!(value(&variables, code, EngineMode::Auto).0.unwrap_err(), text, "{code}");
    }
}

#[test]
fn only_a_whole_expression_compiles() {
    for code in ["left", "{a: left}", "(left)\n// end", "[left]"] {
        assert!(engine(&["left"], code, EngineMode::Auto).is_ok(), "{code}");
    }
    for (code, line, column) in [
        ("", 1, 1),
        ("left +", 1, 7),
        ("left +\n* 2", 2, 1),
        ("let a = 1", 1, 1),
        ("left; left", 1, 5),
        ("left) + (left", 1, 5),
        ("left)}; }); (function () { return ({a: (left", 1, 5),
        ("...left", 1, 1),
        ("return left", 1, 1),
        ("// the sum\n  return left + left;", 2, 3),
        ("left + import('fs')", 1, 8),
        ("010", 1, 1),
    ] {
        let (found_line, found_column, text) = engine(&["left"], code, EngineMode::Auto).map(|_| ()).unwrap_err();
        assert_eq!((found_line, found_column), (line, column), "{code}: {text}");
        assert!(text.starts_with("SyntaxError: "), "{code}: {text}");
    }
}

/// A promise that nothing fulfils would be the value of the call.
#[test]
fn a_script_that_imports_is_refused_in_every_form() {
    let expression = ScriptForm::Expression(Arc::from([]));
    for (form, code, column) in [
        (ScriptForm::Body, "import('fs'); return msg", 1),
        (ScriptForm::Body, "let msg = 1; return import('fs')", 21),
        (ScriptForm::Condition, "import('fs')", 1),
        (ScriptForm::Condition, "let a = 1; import('fs')", 12),
        (expression, "[import('fs')]", 2),
    ] {
        let script = Script {
            stage: "defaults".to_owned(),
            form,
            code: code.to_owned(),
        };
        let errors = QuickJs::check(&[script]);
        let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
        let expected =
            format!("SyntaxError: import() is not available: scripts have no modules (line 1, column {column})");
        assert_eq!(texts, [expected], "{code}");
    }
}
