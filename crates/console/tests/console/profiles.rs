use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use thalweg_console::RunningListener;

use crate::decoded::DecodedProfile;
use crate::support::{Answer, fetch, options, start_with};

/// There is one sampler per process, and tests run in parallel.
static ONE_AT_A_TIME: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

async fn start() -> RunningListener {
    let mut debugging = options();
    debugging.http.debug_endpoints = true;
    start_with(debugging).await
}

fn decode(answer: &Answer) -> DecodedProfile {
    assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.body));
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(&answer.body[..])
        .read_to_end(&mut bytes)
        .unwrap();
    DecodedProfile::of(&bytes)
}

/// Threads that do what is hard for a sampler that interrupts anywhere.
struct Load {
    stop: Arc<AtomicBool>,
    threads: Vec<std::thread::JoinHandle<u64>>,
}

impl Load {
    fn start() -> Load {
        let stop = Arc::new(AtomicBool::new(false));
        let works: [fn(); 4] = [allocate, unwind, spawn, compute];
        let threads = works.map(|work| {
            let stop = stop.clone();
            std::thread::spawn(move || {
                let mut rounds = 0;
                while !stop.load(Relaxed) {
                    work();
                    rounds += 1;
                }
                rounds
            })
        });
        Load {
            stop,
            threads: threads.into(),
        }
    }

    /// All threads ran to the end.
    fn finish(self) {
        self.stop.store(true, Relaxed);
        for thread in self.threads {
            assert!(thread.join().unwrap() > 0);
        }
    }
}

fn allocate() {
    let kept: Vec<Vec<u8>> = (0..200).map(|n| vec![n as u8; n * 50]).collect();
    std::hint::black_box(kept);
}

fn unwind() {
    // Without the panic hook, which would print.
    let caught = std::panic::catch_unwind(|| std::panic::resume_unwind(Box::new(7)));
    assert!(caught.is_err());
}

fn spawn() {
    std::thread::spawn(allocate).join().unwrap();
}

#[inline(never)]
fn compute() {
    std::hint::black_box((0..100_000u64).fold(1u64, |a, b| a.rotate_left(7) ^ b));
}

#[tokio::test]
async fn a_cpu_profile_names_what_runs_and_disturbs_no_thread() {
    let _turn = ONE_AT_A_TIME.lock().await;
    let running = start().await;
    let load = Load::start();
    let profile = decode(&fetch(&running, "/debug/pprof/profile?seconds=1").await);
    load.finish();
    assert!(!profile.samples.is_empty());
    assert_eq!(profile.value_types, [["samples", "count"], ["cpu", "nanoseconds"]]);
    let named = profile
        .functions
        .iter()
        .any(|function| function.name.contains("profiles::compute"));
    assert!(named, "{:?}", profile.strings);
    assert!(profile.samples.iter().any(|sample| !profile.names(sample).is_empty()));
}

#[tokio::test]
async fn profiles_can_be_taken_again_and_again() {
    let _turn = ONE_AT_A_TIME.lock().await;
    let running = start().await;
    let load = Load::start();
    for _ in 0..3 {
        decode(&fetch(&running, "/debug/pprof/profile?seconds=1").await);
    }
    load.finish();
}

#[tokio::test]
async fn a_second_profile_at_the_same_time_waits_its_turn() {
    let _turn = ONE_AT_A_TIME.lock().await;
    let running = start().await;
    let mut first = crate::support::connect(&running).await;
    tokio::io::AsyncWriteExt::write_all(
        &mut first,
        b"GET /debug/pprof/profile?seconds=300 HTTP/1.1\r\nhost: localhost\r\n\r\n",
    )
    .await
    .unwrap();
    loop {
        let second = fetch(&running, "/debug/pprof/profile?seconds=1").await;
        if second.status == 429 {
            assert!(second.text().contains("only one can be"), "{}", second.text());
            break;
        }
    }
    // A client that disconnects releases the sampler.
    drop(first);
    while fetch(&running, "/debug/pprof/profile?seconds=1").await.status != 200 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn the_length_of_a_profile_is_bounded() {
    let running = start().await;
    for seconds in ["0", "301", "-1", "x", "1.5", ""] {
        let answer = fetch(&running, &format!("/debug/pprof/profile?seconds={seconds}")).await;
        assert_eq!(
            (answer.status, answer.text()),
            (400, "seconds must be a whole number from 1 to 300\n"),
            "{seconds}"
        );
    }
}

#[tokio::test]
async fn a_heap_profile_says_how_to_turn_it_on() {
    let running = start().await;
    let answer = fetch(&running, "/debug/pprof/heap").await;
    assert_eq!(answer.status, 501);
    assert!(answer.text().contains("MALLOC_CONF=prof:true"), "{}", answer.text());
}

#[tokio::test]
async fn threads_come_as_text_and_as_profile() {
    let running = start().await;
    let text = fetch(&running, "/debug/stack").await;
    assert!(text.text().contains(" threads\n\nthread "), "{}", text.text());
    assert_eq!(
        fetch(&running, "/debug/pprof/goroutine?debug=2")
            .await
            .text()
            .lines()
            .next()
            .unwrap()
            .split(' ')
            .nth(1),
        Some("threads")
    );
    let profile = decode(&fetch(&running, "/debug/pprof/goroutine").await);
    assert!(!profile.samples.is_empty());
    assert!(profile.samples.iter().all(|sample| sample.values.len() == 2));
}

#[tokio::test]
async fn the_configuration_is_given_as_it_was_handed_in() {
    let running = start().await;
    assert_eq!(fetch(&running, "/debug/config/json").await.text(), "{}");
    assert_eq!(fetch(&running, "/debug/config/yaml").await.text(), "{}\n");
}
