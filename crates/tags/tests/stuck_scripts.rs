//! Scripts that cannot be stopped, in a running flow: only their messages are lost, and nothing waits for them.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use thalweg_config::{LoadOptions, SourceText, load};
use thalweg_flow::{ComponentRegistry, Flow, FlowEnvironment, FlowSpec, ParseContext, StopReport};
use thalweg_record::DropReason;

/// Far more than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs a flow of ten messages, `1` to `10`, through a script into a file. It is stopped within `time`, or when it has
/// ended by itself.
fn run(settings: &str, script: &str, time: Option<Duration>) -> (Vec<String>, StopReport) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let folder = std::env::temp_dir().join(format!("thalweg-stuck-{}-{}", std::process::id(), script.len()));
    std::fs::create_dir_all(&folder).unwrap();
    let text = format!(
        "{settings}input: {{generate: {{mapping: root = counter(), count: 10, interval: '', batch_size: 4}}}}\npipeline:\n  threads: 1\n  \
         processors:\n    - nodered_js:\n        code: |\n          {script}\noutput: {{file: {{path: {}/out, codec: lines}}}}\n",
        folder.display()
    );
    let loaded = load(&SourceText::new("t.yaml", text), &|_| None, &LoadOptions::default());
    let mut registry = ComponentRegistry::new();
    thalweg_tags::register(&mut registry, &Arc::default());
    let mut context = ParseContext::new(&loaded.diagnostics, &registry, &loaded.config);
    let spec = FlowSpec::parse(&loaded.config.flows[0], &mut context);
    assert_eq!(loaded.diagnostics.to_string(), "");
    let environment = FlowEnvironment {
        metrics: Arc::default(),
        data_dir: folder.clone(),
        runtime: runtime.handle().clone(),
        dead_letters: None,
    };
    let _guard = runtime.enter();
    let flow = Flow::start(spec.unwrap(), &environment).unwrap();
    let report = runtime.block_on(async {
        match time {
            None => tokio::time::timeout(PATIENCE, flow.ended())
                .await
                .expect("the flow goes on"),
            // The script is at its first message.
            Some(_) => {
                let begun = Instant::now();
                while flow.handle().counts().entered == 0 {
                    assert!(begun.elapsed() < PATIENCE, "nothing comes");
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            }
        }
        flow.stop(time.unwrap_or(PATIENCE)).await
    });
    let written = std::fs::read_to_string(folder.join("out")).unwrap_or_default();
    let _ = std::fs::remove_dir_all(&folder);
    (written.lines().map(str::to_owned).collect(), report)
}

#[test]
fn a_flow_goes_on_after_a_message_that_is_given_up_with_its_thread() {
    // Combining marks are sorted by insertion, within one built-in function.
    let script =
        "if (msg.payload % 4 === 3) ('a' + '\\u0323\\u0301'.repeat(15000)).normalize('NFD'); new Map(); return msg";
    let (written, report) = run("scripting: {timeout: 50ms}\n", script, None);
    assert_eq!(written, ["1", "2", "4", "5", "6", "8", "9", "10"]);
    let counts = report.counts;
    assert!(counts.adds_up() && counts.in_flight == 0, "{counts}");
    assert_eq!(
        (counts.entered, counts.out, counts.dropped(DropReason::ScriptTimeout)),
        (10, 8, 2)
    );
}

/// A timeout of an hour must not delay a stop of the process.
#[test]
fn a_stop_does_not_wait_for_a_script_and_every_message_is_accounted_for() {
    let started = Instant::now();
    let script = "for (;;) new Map(); return msg";
    let (written, report) = run("scripting: {timeout: 1h}\n", script, Some(Duration::from_millis(200)));
    assert!(started.elapsed() < PATIENCE);
    assert!(written.is_empty());
    let counts = report.counts;
    assert!(counts.adds_up() && counts.in_flight == 0, "{counts}");
    assert_eq!(
        (counts.out, counts.dropped(DropReason::Shutdown)),
        (0, counts.entered),
        "{counts}"
    );
    assert!(counts.entered > 0);
}
