//! Generated scripts and tags: messages of a few tags in any order. Each must have the same result, console lines and
//! cache changes as with QuickJS alone, whether its result was memoized or not.

use std::cell::Cell;

use proptest::test_runner::{Config, TestRunner};

use super::*;
use crate::native::tests::Lines;
use crate::native::tests::grower::{cases, condition, halves as in_halves, program};

/// Keys that generated scripts use, and some unusual ones.
const KEYS: &[&str] = &[
    "unit",
    "level",
    "opcua_tag_group",
    "opcua_tag_name",
    "opcua_attr_nodeid",
    "x",
    "own",
    "a",
    "length",
    "value",
    "toString",
    "10",
    "_keys",
    "opcua_gap",
];
const TEXTS: &[&str] = &[
    "",
    "°C",
    "7",
    "-0",
    " 12 ",
    "1e3",
    "Plant.Line1.Oven",
    "ns=3;s=Plant.Line1.Oven.Temperature",
    "a",
    "true",
    "😀",
    "a text that is longer than what lies inline",
];

/// What is specific to one message.
#[derive(Clone, Debug)]
struct Own {
    tag: usize,
    payload: usize,
    time: i64,
    /// With a bad quality, and after a gap.
    is_marked: bool,
    is_stamped: bool,
    change: Option<(&'static str, String)>,
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        3 => prop::sample::select(TEXTS).prop_map(str::to_owned),
        1 => "[a-zA-Z0-9.;=_ ä]{0,12}",
    ]
}

/// The metadata of a tag: most keys are missing.
fn tag() -> impl Strategy<Value = Vec<(&'static str, String)>> {
    prop::collection::vec((prop::sample::select(KEYS), text()), 0..8)
}

fn own() -> impl Strategy<Value = Own> {
    (
        0..3usize,
        any::<usize>(),
        1..1000i64,
        prop::bool::weighted(0.2),
        prop::bool::weighted(0.7),
        prop::option::weighted(0.1, (prop::sample::select(KEYS), text())),
    )
        .prop_map(|(tag, payload, time, is_marked, is_stamped, change)| Own {
            tag,
            payload,
            time,
            is_marked,
            is_stamped,
            change,
        })
}

fn message_of(maps: &[Arc<MetaMap>], own: &Own, payloads: &[Payload]) -> Message {
    let map = &maps[own.tag % maps.len()];
    let made = if own.is_marked { marked } else { message };
    let mut message = made(map, own.time);
    if !own.is_stamped {
        message.meta = Metadata::shared(map.clone());
    }
    if let Some((key, text)) = &own.change {
        message.meta.set(*key, text.as_str());
    }
    message.payload = payloads[own.payload % payloads.len()].clone();
    message
}

/// An engine beside QuickJS alone, each with its own console and cache.
struct Beside {
    plain: QuickJs,
    remembering: MemoizingEngine,
    consoles: [Arc<Lines>; 2],
    caches: [Arc<Cache>; 2],
    form: ScriptForm,
    code: String,
    halves: u64,
}

impl Beside {
    fn new(form: ScriptForm, code: String, mode: EngineMode) -> Beside {
        let consoles = [Arc::new(Lines::default()), Arc::new(Lines::default())];
        let caches = [Arc::new(Cache::new(4)), Arc::new(Cache::new(4))];
        let environment = |i: usize| Environment {
            console: consoles[i].clone(),
            cache: caches[i].clone(),
            ..environment(&code)
        };
        let scripts = [script(form.clone(), &code)];
        Beside {
            plain: QuickJs::new(&scripts, environment(0)).unwrap_or_else(|error| panic!("{error}\n{code}")),
            remembering: MemoizingEngine::new(Engine::new(&scripts, environment(1), mode).unwrap()),
            consoles,
            caches,
            form,
            code,
            halves: 0,
        }
    }

    fn compare(&mut self, message: &Message) {
        let code = &self.code;
        let (plain, remembering) = (&mut self.plain, &mut self.remembering);
        match self.form {
            ScriptForm::Condition => {
                let expected = plain.test(0, message, &message.meta);
                let found = remembering.test(0, message, &message.meta);
                assert_eq!(found, expected, "{code}\n{message:?}");
            }
            ScriptForm::Body | ScriptForm::Expression(_) => {
                let expected = plain
                    .run(0, message, &message.meta)
                    .map(|returned| effect(returned, message));
                let found = remembering
                    .run(0, message, &message.meta)
                    .map(|returned| effect(returned, message));
                assert_eq!(found, expected, "{code}\n{message:?}");
                if let Some(halves) = halves(remembering, message) {
                    self.halves += 1;
                    assert_eq!(Ok(effect(halves, message)), expected, "{code}\n{message:?}");
                }
            }
        }
        let [expected, found] = self
            .consoles
            .each_ref()
            .map(|lines| std::mem::take(&mut *lines.0.lock()));
        assert_eq!(found, expected, "{code}\n{message:?}");
        let [expected, found] = self.caches.each_ref().map(|cache| format!("{:?}", cache.sorted()));
        assert_eq!(found, expected, "{code}\n{message:?}");
    }
}

/// Runs generated scripts. Returns the number of messages, of memoized whole results, and of memoized halves.
fn grown(form: &ScriptForm, grow: fn(&[u8]) -> String, modes: &'static [EngineMode], of: u32) -> (u32, u64, u64) {
    let payloads = crate::native::tests::messages().into_iter();
    let payloads: Vec<Payload> = payloads.map(|message| message.payload).collect();
    let mut runner = TestRunner::new(Config {
        cases: cases(of),
        failure_persistence: None,
        ..Config::default()
    });
    let (messages, at_hand, halves) = (Cell::new(0), Cell::new(0), Cell::new(0));
    let strategy = (
        prop::collection::vec(any::<u8>(), 0..100),
        prop::sample::select(modes),
        prop::collection::vec(tag(), 1..4),
        prop::collection::vec(own(), 6..24),
    );
    let result = runner.run(&strategy, |(bytes, mode, tags, order)| {
        let mut beside = Beside::new(form.clone(), grow(&bytes), mode);
        let maps: Vec<Arc<MetaMap>> = (1..)
            .zip(tags)
            .map(|(series, entries)| {
                let entries = entries.into_iter().map(|(key, text)| (key.into(), text.into()));
                Arc::new(MetaMap::new(entries, Some(series)))
            })
            .collect();
        for own in &order {
            beside.compare(&message_of(&maps, own, &payloads));
        }
        messages.set(messages.get() + order.len() as u32);
        at_hand.set(at_hand.get() + beside.remembering.stats().remembered);
        halves.set(halves.get() + beside.halves);
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
    (messages.get(), at_hand.get(), halves.get())
}

#[test]
#[expect(clippy::print_stdout, reason = "how much of what grew was remembered")]
fn programs_that_grew_are_remembered_as_quickjs_runs_them() {
    let (messages, at_hand, halves) = grown(&ScriptForm::Body, program, &MODES, 200);
    println!("{messages} messages, {at_hand} results at hand, {halves} halves");
    assert!(
        at_hand * 10 > u64::from(messages),
        "{at_hand} of {messages} were at hand"
    );
}

#[test]
#[expect(clippy::print_stdout, reason = "how much of what grew was remembered")]
fn halves_that_grew_are_remembered_as_quickjs_runs_the_whole() {
    let (messages, _, halves) = grown(&ScriptForm::Body, in_halves, &[EngineMode::Auto], 400);
    println!("{messages} messages, {halves} halves");
    assert!(halves * 16 > u64::from(messages), "{halves} halves of {messages}");
}

#[test]
#[expect(clippy::print_stdout, reason = "how much of what grew was remembered")]
fn conditions_that_grew_are_remembered_as_quickjs_evaluates_them() {
    let (messages, at_hand, _) = grown(&ScriptForm::Condition, condition, &MODES, 150);
    println!("{messages} messages, {at_hand} results at hand");
    assert!(
        at_hand * 10 > u64::from(messages),
        "{at_hand} of {messages} were at hand"
    );
}
