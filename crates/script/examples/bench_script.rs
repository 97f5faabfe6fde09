//! The cost of a script call: `cargo run --release -p thalweg-script --example bench_script`.
//!
//! Prints, per case, the median over rounds of nanoseconds (wall time, and CPU time of all threads), allocations and
//! bytes per call. QuickJS's memory comes from the same allocator, in blocks of 4 KiB that are reused; they count when
//! they are allocated.
#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use thalweg_record::{Message, MetaMap, Metadata, Payload, Ticks, Value, ValueQuality};
use thalweg_script::{
    Cache, CallWatch, EngineMode, Environment, GuardOptions, GuardedProgram, LogConsole, Program, QuickJs, Script,
    ScriptCall, ScriptForm, ScriptLimits, UndefinedMeta,
};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
static BYTES: AtomicU64 = AtomicU64::new(0);

// SAFETY: forwards everything to the system allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Relaxed);
        BYTES.fetch_add(layout.size() as u64, Relaxed);
        // SAFETY: same contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: same contract.
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Relaxed);
        BYTES.fetch_add(size as u64, Relaxed);
        // SAFETY: same contract.
        unsafe { System.realloc(block, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn environment() -> Environment {
    Environment {
        limits: ScriptLimits::default(),
        console: Arc::new(LogConsole {
            component: "bench".into(),
        }),
        cache: Arc::new(Cache::new(1000)),
        computed: &[],
        undefined_meta: UndefinedMeta::Text,
        watch: CallWatch::default(),
    }
}

fn messages() -> Vec<Message> {
    (0..100)
        .map(|i| {
            let entries = [
                ("opcua_attr_nodeid", format!("ns=3;s=FastUInt{i}")),
                ("opcua_attr_browsename", format!("FastUInt{i}")),
                ("opcua_attr_description", "Constantly increasing value(s)".to_owned()),
                ("opcua_attr_nodeclass", "NodeClassVariable".to_owned()),
                ("opcua_attr_accesslevel", "AccessLevelType(3)".to_owned()),
                ("opcua_attr_datatype", "uint32".to_owned()),
                ("opcua_tag_name", format!("FastUInt{i}")),
                ("opcua_tag_group", "OpcPlc.Telemetry.Fast".to_owned()),
                ("opcua_tag_path", "OpcPlc.Telemetry.Fast".to_owned()),
                ("opcua_tag_type", "number".to_owned()),
            ];
            let map = MetaMap::new(entries.map(|(k, v)| (k.into(), v.into())), Some(i));
            let stamps = ValueQuality {
                source_time: Ticks(i as i64),
                ..ValueQuality::NONE
            };
            Message::new(
                Payload::Value(Value::U32(i as u32)),
                Metadata::stamped(Arc::new(map), stamps),
            )
        })
        .collect()
}

fn measure(name: &str, calls: usize, call: impl FnMut(usize)) {
    measure_each(name, calls, 1, call);
}

/// CPU time of all threads so far.
fn cpu_ns() -> u64 {
    let of_thread = |task: std::fs::DirEntry| {
        let text = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<u64>().ok()
    };
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    tasks.flatten().filter_map(of_thread).sum()
}

/// Like [`measure`], for calls that handle this many messages each.
fn measure_each(name: &str, calls: usize, messages: usize, mut call: impl FnMut(usize)) {
    (0..calls.min(1000)).for_each(&mut call);
    let mut rounds: Vec<(f64, f64)> = (0..7)
        .map(|_| {
            let (start, cpu) = (Instant::now(), cpu_ns());
            (0..calls).for_each(&mut call);
            let per = |ns: f64| ns / (calls * messages) as f64;
            (per(start.elapsed().as_nanos() as f64), per((cpu_ns() - cpu) as f64))
        })
        .collect();
    rounds.sort_by(|a, b| a.0.total_cmp(&b.0));
    let wall = rounds[3].0;
    rounds.sort_by(|a, b| a.1.total_cmp(&b.1));
    let cpu = rounds[3].1;
    let (allocations, bytes) = (ALLOCATIONS.load(Relaxed), BYTES.load(Relaxed));
    (0..calls).for_each(&mut call);
    let per = |counter: &AtomicU64, before: u64| (counter.load(Relaxed) - before) as f64 / (calls * messages) as f64;
    println!(
        "{name:44} {wall:9.0} ns {cpu:9.0} ns of CPU {:8.2} allocations {:9.0} bytes",
        per(&ALLOCATIONS, allocations),
        per(&BYTES, bytes)
    );
}

/// The same call through the guarded thread: alone, and in batches. Per message.
fn guarded(messages: &[Message]) {
    let script = Script {
        stage: "defaults".into(),
        form: ScriptForm::Body,
        code: "msg.payload = msg.payload * 2 + 1; msg.meta.x = 'y'; return msg".into(),
    };
    let mut program =
        GuardedProgram::new(&[script], environment(), EngineMode::QuickJs, GuardOptions::default()).unwrap();
    let mut results = Vec::new();
    for batch in [1, 10, 100, 1000] {
        let calls = 200_000 / batch;
        let name = format!("value, guarded, {calls} batches of {batch}");
        measure_each(&name, calls, batch, |_| {
            let mut calls = messages.iter().cycle().take(batch).map(|message| ScriptCall {
                condition: None,
                script: 0,
                message,
                origin: &message.meta,
            });
            program.call_all(&mut calls, &mut results);
            assert!(results.drain(..).all(|result| black_box(result).is_ok()));
        });
    }
}

fn main() {
    let typical = "msg.meta.location_path = 'enterprise.site.area'; msg.meta.data_contract = '_historian';
                   msg.meta.tag_name = msg.meta.opcua_tag_name; return msg;";
    let bodies = [
        ("return msg", "return msg"),
        ("typical: three assignments", typical),
        (
            "value: payload * 2 + 1",
            "msg.payload = msg.payload * 2 + 1; msg.meta.x = 'y'; return msg",
        ),
        (
            "spread of meta into a new object",
            "return {payload: msg.payload, meta: {...msg.meta, tag_name: 'x'}}",
        ),
        ("sets a global (tidy)", "globalThis.n = 1; return msg"),
        ("extends a built-in (open)", "Array.prototype.n = 1; return msg"),
    ];
    let messages = messages();
    for (name, code) in bodies {
        let script = Script {
            stage: "defaults".into(),
            form: ScriptForm::Body,
            code: code.into(),
        };
        let mut engine = QuickJs::new(&[script], environment()).unwrap();
        let calls = if name.contains("open") { 200 } else { 100_000 };
        measure(name, calls, |i| {
            let message = &messages[i % messages.len()];
            black_box(engine.run(0, message, &message.meta).unwrap());
        });
    }
    guarded(&messages);
    for (name, code) in [
        (
            "condition: expression",
            "msg.meta.opcua_tag_type === 'number' && msg.payload > 50",
        ),
        (
            "condition: statements",
            "var p = msg.payload; if (p > 50) { true } else { false }",
        ),
    ] {
        let script = Script {
            stage: "condition-0-if".into(),
            form: ScriptForm::Condition,
            code: code.into(),
        };
        let mut engine = QuickJs::new(&[script], environment()).unwrap();
        measure(name, 100_000, |i| {
            let message = &messages[i % messages.len()];
            black_box(engine.test(0, message, &message.meta).unwrap());
        });
    }
    let script = Script {
        stage: "defaults".into(),
        form: ScriptForm::Body,
        code: typical.into(),
    };
    let engine = QuickJs::new(&[script], environment()).unwrap();
    println!("an engine with one sealed script holds {} bytes", engine.memory_bytes());
    measure("making an engine (one sealed script)", 20, |_| {
        let script = Script {
            stage: "defaults".into(),
            form: ScriptForm::Body,
            code: typical.into(),
        };
        black_box(QuickJs::new(&[script], environment()).unwrap());
    });
}
