//! Calls that do not end by themselves: each is ended, the calls around it run, and it has no later effects.

mod generated;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::*;
use crate::{Cache, Console, ConsoleLevel, ScriptForm, ScriptLimits};

/// Far more than any of these takes, and far less than they would without a limit.
const GENEROUS: Duration = Duration::from_secs(20);

/// One built-in function that takes seconds: it sorts combining marks of alternating classes by insertion.
const SLOW: &str = "('a' + '\\u0323\\u0301'.repeat(20000)).normalize('NFD')";

#[derive(Default)]
struct Lines(parking_lot::Mutex<Vec<String>>);

impl Console for Lines {
    fn enabled(&self, _level: ConsoleLevel) -> bool {
        true
    }

    fn line(&self, _level: ConsoleLevel, text: &str) {
        self.0.lock().push(text.to_owned());
    }
}

struct Bench {
    program: GuardedProgram,
    lost: LostThreads,
    lines: Arc<Lines>,
    cache: Arc<Cache>,
}

impl Bench {
    fn new(scripts: &[(ScriptForm, &str)], timeout: Duration, guard: GuardOptions) -> Bench {
        let (lines, cache) = (Arc::new(Lines::default()), Arc::new(Cache::new(100)));
        let scripts: Vec<Script> = scripts
            .iter()
            .enumerate()
            .map(|(i, (form, code))| Script {
                stage: format!("script-{i}"),
                form: form.clone(),
                code: (*code).to_owned(),
            })
            .collect();
        let environment = Environment {
            limits: ScriptLimits {
                timeout,
                memory: 32 << 20,
                ..ScriptLimits::default()
            },
            console: lines.clone(),
            cache: cache.clone(),
            ..Environment::bare()
        };
        let lost = guard.lost.clone();
        let program = GuardedProgram::new(&scripts, environment, EngineMode::Auto, guard).unwrap();
        Bench {
            program,
            lost,
            lines,
            cache,
        }
    }

    fn body(code: &str) -> Bench {
        Bench::new(
            &[(ScriptForm::Body, code)],
            Duration::from_millis(100),
            GuardOptions::default(),
        )
    }

    fn run(&mut self, payload: &str) -> Result<ScriptOutput, Failure> {
        let message = Message::raw(payload.to_owned().into_bytes());
        self.program.run(0, &message, &message.meta)
    }

    /// The results of a batch, one letter per message: r(eturned), n(othing), s(kipped), t(imeout), l(imit), x
    /// (stopped), e(xception).
    fn batch(&mut self, condition: Option<usize>, script: usize, payloads: &[&str]) -> String {
        let messages: Vec<Message> = payloads
            .iter()
            .map(|payload| Message::raw((*payload).to_owned().into_bytes()))
            .collect();
        let mut calls = messages.iter().map(|message| ScriptCall {
            condition,
            script,
            message,
            origin: &message.meta,
        });
        let mut results = Vec::new();
        self.program.call_all(&mut calls, &mut results);
        let letter = |result: &Result<CallOutcome, CallFailure>| match result {
            Ok(CallOutcome::Skipped) => 's',
            Ok(CallOutcome::Returned(ScriptOutput::Nothing)) => 'n',
            Ok(CallOutcome::Returned(_)) => 'r',
            Err(failed) => match failed.failure.kind {
                FailureKind::Timeout => 't',
                FailureKind::Limit => 'l',
                FailureKind::Stopped => 'x',
                _ => 'e',
            },
        };
        results.iter().map(letter).collect()
    }

    /// Until the built-in functions have ended.
    fn until_none_is_lost(&self) {
        let start = Instant::now();
        while self.lost.count() > 0 {
            assert!(start.elapsed() < 6 * GENEROUS, "a thread is lost for ever");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn ends<R>(what: &str, run: impl FnOnce() -> R) -> R {
    let start = Instant::now();
    let result = run();
    assert!(start.elapsed() < GENEROUS, "{what} took {:?}", start.elapsed());
    result
}

#[test]
fn a_loop_of_built_in_functions_is_stopped_and_no_thread_is_lost() {
    for code in [
        "const t = 'a'.repeat(1e5), n = 'a'.repeat(50) + 'b'; for (;;) t.indexOf(n)",
        "const t = 'a'.repeat(1e5), n = 'a'.repeat(50) + 'b'; for (;;) t.includes(n)",
        "const t = 'a'.repeat(1e5), n = 'b' + 'a'.repeat(50); for (;;) t.lastIndexOf(n)",
        "const t = 'a'.repeat(4e6), n = 'a'.repeat(4e6); for (;;) t.startsWith(n) && t.endsWith(n)",
        "const t = 'a,'.repeat(1e5); for (;;) t.split(',')",
        "const t = 'a,'.repeat(1e5); for (;;) t.replaceAll(',', ';')",
        "const t = 'ä'.repeat(1e5); for (;;) t.toUpperCase()",
        "const t = '\u{e9}'.repeat(1e5); for (;;) t.normalize('NFD')",
        "const t = 'a'.repeat(1e5); for (;;) try { t.split('') } catch {}",
        "const t = new Array(4e5).fill('x'); for (;;) t.indexOf('y')",
        "const t = new Uint8Array(8e6); for (;;) t.fill(1)",
        "const t = new Float64Array(1e6); for (;;) t.indexOf(1)",
        "const t = JSON.stringify(new Array(1e5).fill(1)); for (;;) JSON.parse(t)",
        "let n = 3n ** 20000n; for (;;) n * n",
        "const t = 'a'.repeat(3e5); for (;;) /(a+)b/.test(t)",
    ] {
        let mut bench = Bench::body(&format!("if (msg.payload === 'bad') {{ {code} }} return msg"));
        let failure = ends(code, || bench.run("bad")).unwrap_err();
        assert_eq!(failure.kind, FailureKind::Timeout, "{code}: {failure:?}");
        assert_eq!(
            failure.text, "the script ran longer than 100ms and was stopped",
            "{code}"
        );
        assert!(bench.run("1").is_ok(), "{code}");
        let stats = bench.program.stats();
        assert_eq!(
            (stats.timeouts, stats.given_up, bench.lost.count()),
            (1, 0, 0),
            "{code}"
        );
    }
}

#[test]
fn a_built_in_function_that_does_not_end_is_given_up_with_its_thread() {
    for code in [
        SLOW,
        "const t = 'ab'.repeat(1e6), n = 'ab'.repeat(2e5) + 'x'; t.indexOf(n) + t.split(n).length",
        "let t = 'a', n = 'b'; for (let i = 0; i < 29; i++) { t = t + t; } for (let i = 0; i < 40; i++) [t < t + n, t === t + n]",
    ] {
        let mut bench = Bench::body(&format!("if (msg.payload === 'bad') {{ {code} }} return msg"));
        let failure = ends(code, || bench.run("bad"));
        assert!(bench.run("1").is_ok(), "{code}: {failure:?}");
    }
    let mut bench = Bench::body(&format!("if (msg.payload === 'bad') {SLOW}; return msg"));
    let failure = ends(SLOW, || bench.run("bad")).unwrap_err();
    let text = "the script ran longer than 100ms and could not be stopped within a built-in function, so it was given up with its \
                thread";
    assert_eq!((failure.kind, failure.text.as_str()), (FailureKind::Timeout, text));
    let stats = bench.program.stats();
    assert_eq!((stats.calls, stats.timeouts, stats.given_up), (1, 1, 1));
    bench.until_none_is_lost();
    assert!(bench.run("1").is_ok());
}

#[test]
fn the_messages_around_one_that_is_given_up_keep_their_results_and_their_order() {
    let script = format!(
        "if (msg.payload === 'bad') {SLOW}; if (msg.payload === 0) return null; console.log(String(msg.payload)); return msg"
    );
    let condition = format!("if (msg.payload === 'slow') {SLOW}; msg.payload !== 'skip'");
    let mut bench = Bench::new(
        &[(ScriptForm::Body, &script), (ScriptForm::Condition, &condition)],
        Duration::from_millis(100),
        GuardOptions::default(),
    );
    assert_eq!(bench.batch(None, 0, &["1", "bad", "0", "2"]), "rtnr");
    assert_eq!(
        bench.batch(Some(1), 0, &["3", "skip", "slow", "4", "bad", "5"]),
        "rstrtr"
    );
    assert_eq!(*bench.lines.0.lock(), ["'1'", "'2'", "'3'", "'4'", "'5'"]);
    bench.until_none_is_lost();
}

#[test]
fn what_a_call_does_after_it_was_given_up_is_void() {
    let code = format!(
        "if (msg.payload !== 'bad') return msg; cache.set('early', 1); console.log('early'); {SLOW};
         cache.set('late', 1); cache.delete('early'); console.log('late'); return msg"
    );
    let mut bench = Bench::body(&code);
    assert_eq!(bench.run("bad").unwrap_err().kind, FailureKind::Timeout);
    bench.until_none_is_lost();
    assert!(bench.cache.exists("early") && !bench.cache.exists("late"));
    assert_eq!(*bench.lines.0.lock(), ["'early'"]);
}

#[test]
fn lost_threads_are_bounded_and_told_and_calls_go_on_once_one_has_ended() {
    let told = Arc::new(parking_lot::Mutex::new(0i64));
    let on_lost = told.clone();
    let guard = GuardOptions {
        lost_max: 2,
        on_lost: Arc::new(move |change| *on_lost.lock() += change),
        ..GuardOptions::default()
    };
    let script = format!("if (msg.payload === 'bad') {SLOW}; new Map(); return msg");
    let native = "return msg";
    let mut bench = Bench::new(
        &[(ScriptForm::Body, &script), (ScriptForm::Body, native)],
        Duration::from_millis(50),
        guard,
    );
    assert_eq!(bench.batch(None, 0, &["1", "bad", "bad", "bad", "1"]), "rttll");
    assert_eq!((bench.lost.count(), *told.lock()), (2, 2));
    assert_eq!(bench.batch(None, 1, &["1", "2"]), "rr", "native code needs no thread");
    let failure = bench.run("1").unwrap_err();
    assert!(
        failure.text.starts_with("2 threads are lost in calls that do not end")
            && failure.text.contains("scripting.lost_threads"),
        "{}",
        failure.text
    );
    bench.until_none_is_lost();
    assert_eq!((bench.batch(None, 0, &["1"]), *told.lock()), ("r".to_owned(), 0));
}

/// Any number of lost threads takes only CPU time that no other thread wants.
#[test]
fn a_lost_thread_comes_after_all_others() {
    let guard = GuardOptions {
        name: "to be lost".to_owned(),
        ..GuardOptions::default()
    };
    let script = format!("new Map(); if (msg.payload === 'bad') {SLOW}; return msg");
    let mut bench = Bench::new(&[(ScriptForm::Body, &script)], Duration::from_millis(50), guard);
    let niceness = || -> Vec<String> {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let stats = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("stat")).ok());
        let of_script = stats.filter_map(|stat| Some(stat.split_once("(to be lost) ")?.1.to_owned()));
        // The name is the second of the fields, and niceness the nineteenth.
        of_script
            .map(|fields| fields.split(' ').nth(16).unwrap().to_owned())
            .collect()
    };
    assert_eq!(bench.batch(None, 0, &["1"]), "r");
    let before = niceness();
    assert_eq!(bench.batch(None, 0, &["bad", "1"]), "tr");
    assert_eq!((before.len(), bench.lost.count()), (1, 1));
    let mut after = niceness();
    after.sort();
    let mut expected = [before, vec!["19".to_owned()]].concat();
    expected.sort();
    assert_eq!(after, expected, "the lost one, and the one in its place");
    bench.until_none_is_lost();
}

#[test]
fn a_flow_that_gives_up_does_not_wait_for_a_script() {
    let gives_up = Arc::new(AtomicBool::new(false));
    let asked = gives_up.clone();
    let guard = GuardOptions {
        gives_up: Arc::new(move || asked.load(Ordering::Relaxed)),
        ..GuardOptions::default()
    };
    let script = "if (msg.payload === 'bad') for (;;) {} return msg";
    let mut bench = Bench::new(&[(ScriptForm::Body, script)], Duration::from_secs(3600), guard);
    let later = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(150));
        gives_up.store(true, Ordering::Relaxed);
    });
    assert_eq!(ends(script, || bench.batch(None, 0, &["1", "bad", "1", "bad"])), "rxxx");
    assert!(bench.lost.count() <= 1);
    later.join().unwrap();
    bench.until_none_is_lost();
}

/// The time of a message starts with it, however many precede it in its batch.
#[test]
fn a_long_batch_of_short_calls_is_not_late() {
    let script = "const m = new Map(); for (let i = 0; i < 20000; i++) m.set(i % 10, i); return msg";
    let mut bench = Bench::new(
        &[(ScriptForm::Body, script)],
        Duration::from_millis(500),
        GuardOptions::default(),
    );
    assert_eq!(bench.batch(None, 0, &["1"; 1000]), "r".repeat(1000));
}
