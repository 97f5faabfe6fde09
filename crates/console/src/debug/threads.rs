//! `/debug/stack` and `/debug/pprof/goroutine`: what each thread is doing, according to `/proc/self/task`.
//!
//! The kernel stack shows what a thread waits for. Only root can read it; others get the function in which the thread
//! sleeps. For the time of running threads, use the CPU profile.

use std::fmt::Write;
use std::path::Path;
use std::time::{Duration, SystemTime};

use axum::extract::Query;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use thalweg_kit::clock;
use thalweg_telemetry::aside;

use super::profile::{ProfileFunction, ProfileHead, ProfileWriter, SampleLabel};
use super::{download, gzipped, problem};

/// Further threads are left out.
const THREADS_MAX: usize = 4096;

#[derive(Debug, PartialEq)]
pub struct ThreadInfo {
    id: u64,
    name: String,
    /// `sleeping`, `running`, …
    state: &'static str,
    cpu: Duration,
    /// Kernel functions, innermost first.
    stack: Vec<String>,
}

/// All threads of the process, ordered by id. Threads that end meanwhile are left out.
pub fn read() -> Vec<ThreadInfo> {
    let Ok(entries) = std::fs::read_dir("/proc/self/task") else {
        return Vec::new();
    };
    let folders = entries.filter_map(|entry| Some(entry.ok()?.path())).take(THREADS_MAX);
    let mut threads: Vec<ThreadInfo> = folders.filter_map(|folder| read_thread(&folder)).collect();
    threads.sort_by_key(|thread| thread.id);
    threads
}

fn read_thread(folder: &Path) -> Option<ThreadInfo> {
    let text = |name: &str| std::fs::read_to_string(folder.join(name)).ok();
    let (id, name, state, cpu) = parse_stat(&text("stat")?)?;
    let mut stack = text("stack").map(|stack| parse_stack(&stack)).unwrap_or_default();
    if stack.is_empty() {
        // `0` for a thread that does not sleep, or if the kernel does not report it.
        stack.extend(
            text("wchan")
                .map(|name| name.trim().to_owned())
                .filter(|name| !name.is_empty() && name != "0"),
        );
    }
    Some(ThreadInfo {
        id,
        name,
        state,
        cpu,
        stack,
    })
}

/// `proc_pid_stat(5)`: id, (name), state, …; fields 14 and 15 are clock ticks in user and kernel mode.
fn parse_stat(stat: &str) -> Option<(u64, String, &'static str, Duration)> {
    let (id, rest) = stat.split_once(" (")?;
    let (name, rest) = rest.rsplit_once(") ")?;
    let mut fields = rest.split_whitespace();
    let state = match fields.next()? {
        "R" => "running",
        "S" => "sleeping",
        "D" => "waiting for the disk",
        "T" | "t" => "stopped",
        "Z" | "X" => "ended",
        "I" => "idle",
        _ => "unknown",
    };
    let ticks: u64 = fields
        .skip(10)
        .take(2)
        .filter_map(|ticks| ticks.parse::<u64>().ok())
        .sum();
    let per_second = rustix::param::clock_ticks_per_second().max(1);
    let cpu = Duration::from_nanos(ticks.saturating_mul(1_000_000_000 / per_second));
    Some((id.parse().ok()?, name.to_owned(), state, cpu))
}

/// Lines like `[<0>] futex_wait_queue+0x60/0x90`.
fn parse_stack(stack: &str) -> Vec<String> {
    let name = |line: &str| {
        let (_, function) = line.split_once("] ")?;
        Some(
            function
                .split_once('+')
                .map_or(function, |(name, _)| name)
                .trim()
                .to_owned(),
        )
    };
    stack.lines().filter_map(name).collect()
}

pub fn text(threads: &[ThreadInfo]) -> String {
    let mut text = format!("{} threads\n", threads.len());
    for ThreadInfo {
        id,
        name,
        state,
        cpu,
        stack,
    } in threads
    {
        let _ = writeln!(
            text,
            "\nthread {id} \"{name}\": {state}, {:.2} s of CPU time",
            cpu.as_secs_f64()
        );
        for function in stack {
            let _ = writeln!(text, "    {function}");
        }
    }
    text
}

#[derive(Deserialize)]
pub struct ThreadProfileQuery {
    /// As in Go: 1 and 2 select text.
    debug: Option<String>,
}

/// Runs on a blocking thread, because the kernel is queried for thousands of threads.
pub async fn profile(Query(form): Query<ThreadProfileQuery>) -> Response {
    aside(move || profile_of(&form)).await
}

fn profile_of(form: &ThreadProfileQuery) -> Response {
    let threads = read();
    if form.debug.as_deref().is_some_and(|debug| debug != "0") {
        return text(&threads).into_response();
    }
    match gzipped(&encode(&threads, clock::wall())) {
        Ok(bytes) => download("goroutine", bytes),
        Err(error) => problem(
            StatusCode::INTERNAL_SERVER_ERROR,
            &format!("the profile could not be written: {error}"),
        ),
    }
}

/// One sample per thread. Its stack is, from the outside in: the thread's name, its state, the kernel functions.
fn encode(threads: &[ThreadInfo], now: SystemTime) -> Vec<u8> {
    let mut profile = ProfileWriter::new(&ProfileHead {
        values: &[("cpu", "nanoseconds"), ("threads", "count")],
        period_type: ("threads", "count"),
        period: 1,
        begin: now,
        duration: Duration::ZERO,
    });
    for thread in threads {
        let frames = thread.stack.iter().map(String::as_str);
        let stack: Vec<u64> = frames
            .chain([thread.state, thread.name.as_str()])
            .map(|name| {
                let function = ProfileFunction {
                    name,
                    system_name: name,
                    file: "",
                };
                profile.function_location(&function, 0)
            })
            .collect();
        let cpu = i64::try_from(thread.cpu.as_nanos()).unwrap_or(i64::MAX);
        profile.sample(&stack, &[cpu, 1], Some(SampleLabel::Number("thread", thread.id as i64)));
    }
    profile.finish()
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::super::decoded::DecodedProfile;
    use super::*;

    #[test]
    fn a_thread_is_read_from_its_proc_files() {
        let stat = "42 (a (b) c) S 1 1 1 0 -1 4194304 0 0 0 0 150 50 0 0 20 0 3 0 100";
        let (id, name, state, cpu) = parse_stat(stat).unwrap();
        assert_eq!((id, name.as_str(), state), (42, "a (b) c", "sleeping"));
        assert_eq!(
            cpu,
            Duration::from_secs(200) / rustix::param::clock_ticks_per_second() as u32
        );
        assert_eq!(parse_stat("nonsense"), None);
        let stack = "[<0>] futex_wait_queue+0x60/0x90\n[<0>] do_futex+0x105/0x260\n";
        assert_eq!(parse_stack(stack), ["futex_wait_queue", "do_futex"]);
    }

    #[test]
    fn this_process_has_threads_and_they_are_told() {
        let started = std::thread::Builder::new().name("a-sleeper".to_owned());
        let (done, wait) = std::sync::mpsc::channel::<()>();
        let sleeper = started.spawn(move || wait.recv()).unwrap();
        while !read().iter().any(|thread| thread.name == "a-sleeper") {}
        let text = text(&read());
        assert!(text.contains("\"a-sleeper\": "), "{text}");
        drop(done);
        let _ = sleeper.join();
    }

    #[test]
    fn equal_frames_are_written_once() {
        let thread = |id, stack: &[&str]| ThreadInfo {
            id,
            name: "worker".to_owned(),
            state: "sleeping",
            cpu: Duration::from_secs(1),
            stack: stack.iter().map(|name| (*name).to_owned()).collect(),
        };
        let threads = [thread(1, &["futex_wait"]), thread(2, &["futex_wait"]), thread(3, &[])];
        let profile = DecodedProfile::of(&encode(&threads, UNIX_EPOCH));
        assert_eq!(profile.value_types, [["cpu", "nanoseconds"], ["threads", "count"]]);
        assert_eq!((profile.samples.len(), profile.locations.len()), (3, 3));
        let [first, _, third] = &profile.samples[..] else {
            panic!("{profile:?}");
        };
        assert_eq!(profile.names(first), ["futex_wait", "sleeping", "worker"]);
        assert_eq!(profile.names(third), ["sleeping", "worker"]);
        assert_eq!(third.values, [1_000_000_000, 1]);
        assert_eq!(third.labels, [("thread".to_owned(), String::new(), 3)]);
        assert_eq!(profile.strings[0], "");
    }
}
