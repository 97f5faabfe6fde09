//! The thread that runs QuickJS for another thread, and their shared job.
//!
//! A job is a list of calls. The engine is sent to the helper with the job and returned at its end. Results are added
//! one by one under a lock, so those before a call that is given up are kept. Whoever takes the lock first decides
//! whether a call has ended or was given up; a helper that was given up drops the engine and ends.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::process::{Pid, setpriority_process};
use thalweg_kit::clock;
use thalweg_kit::threads::{self, Condvar};
use thalweg_record::{Message, Metadata};

use super::lost_threads::LostThread;
use super::spin::Spin;
use super::{GuardOptions, failed};
use crate::{
    CallFailure, CallOutcome, CallWatch, Failure, FailureKind, MemoizingEngine, MetaReply, PayloadReply, Program,
    Reply, ScriptCall, ScriptOutput,
};

/// Added to the stack that scripts may use.
const STACK_ROOM: usize = 1 << 20;

/// Minimum time for an interrupted call to end, because threads of a busy machine wait for CPU time.
const GRACE_MIN: Duration = Duration::from_millis(250);

/// Niceness of a lost thread, so that all others come first.
const LOST_NICENESS: i32 = 19;

/// Interval of checks whether the flow gives up.
const LOOK: Duration = Duration::from_millis(100);

/// A call that owns its message.
#[derive(Clone)]
pub(super) struct OwnedCall {
    pub condition: Option<usize>,
    pub script: usize,
    message: Message,
    origin: Metadata,
    kind: CallPart,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum CallPart {
    Whole,
    /// Native code bailed out of its first script.
    Left,
    /// There is nothing to run if the condition holds.
    ConditionAlone,
}

impl OwnedCall {
    pub fn new(call: ScriptCall<'_>) -> OwnedCall {
        OwnedCall {
            condition: call.condition,
            script: call.script,
            message: call.message.clone(),
            origin: call.origin.clone(),
            kind: CallPart::Whole,
        }
    }

    /// The original call, if nothing of it was run yet.
    pub fn as_call(&self) -> Option<ScriptCall<'_>> {
        (self.kind == CallPart::Whole).then_some(ScriptCall {
            condition: self.condition,
            script: self.script,
            message: &self.message,
            origin: &self.origin,
        })
    }

    /// What native code left of a call; `holds`: its condition is known to hold.
    pub fn rest_of(call: ScriptCall<'_>, holds: bool) -> OwnedCall {
        OwnedCall {
            condition: call.condition.filter(|_| !holds),
            kind: CallPart::Left,
            ..OwnedCall::new(call)
        }
    }

    pub fn condition_alone(condition: usize, message: &Message, origin: &Metadata) -> OwnedCall {
        OwnedCall {
            condition: Some(condition),
            script: condition,
            message: message.clone(),
            origin: origin.clone(),
            kind: CallPart::ConditionAlone,
        }
    }

    fn make(&self, program: &mut MemoizingEngine, job: &Job) -> Result<CallOutcome, CallFailure> {
        let (message, origin) = (&self.message, &self.origin);
        let mut is_left = self.kind != CallPart::Whole;
        if let Some(condition) = self.condition {
            let truth = match is_left {
                true => program.test_quickjs(condition, message, origin),
                false => program.test(condition, message, origin),
            };
            is_left = false;
            if !truth.map_err(|failure| failed(failure, true))? {
                return Ok(CallOutcome::Skipped);
            }
            if self.kind == CallPart::ConditionAlone {
                return Ok(CallOutcome::Returned(ScriptOutput::One(Reply {
                    payload: PayloadReply::Same,
                    meta: MetaReply::Changes(Vec::new()),
                })));
            }
            job.begin(&mut job.state.lock(), false);
        }
        let returned = match is_left {
            true => program.run_quickjs(self.script, message, origin),
            false => program.run(self.script, message, origin),
        };
        returned
            .map(CallOutcome::Returned)
            .map_err(|failure| failed(failure, false))
    }
}

/// A thread that waits for jobs. It ends when this is dropped, after the current job.
pub(super) struct Helper {
    jobs: mpsc::Sender<(Arc<Job>, Box<MemoizingEngine>)>,
}

impl Helper {
    pub fn spawn(name: &str, stack: usize) -> std::io::Result<Helper> {
        let (jobs, waiting) = mpsc::channel::<(Arc<Job>, Box<MemoizingEngine>)>();
        let work = move || {
            let mut spin = Spin::default();
            let thread = rustix::thread::gettid();
            while let Some((job, program)) = spin.until(|| waiting.try_recv().ok()).or_else(|| waiting.recv().ok()) {
                if let Some(lost) = job.work(program, thread) {
                    // Last, when everything that the call held is freed.
                    drop(job);
                    return drop(lost);
                }
            }
        };
        threads::spawn_with_stack(name, stack.saturating_add(STACK_ROOM), work)?;
        Ok(Helper { jobs })
    }

    pub fn start(
        &self,
        program: Box<MemoizingEngine>,
        watch: CallWatch,
        calls: Arc<Vec<OwnedCall>>,
        from: usize,
        results: Vec<Result<CallOutcome, CallFailure>>,
    ) -> Result<Arc<Job>, String> {
        let job = Arc::new(Job {
            calls,
            from,
            watch,
            state: Mutex::new(JobState {
                results,
                call: 0,
                thread: None,
                is_condition: false,
                started: None,
                end: None,
                lost: None,
            }),
            is_ended: AtomicBool::new(false),
            ended: Condvar::new(),
        });
        let sent = self.jobs.send((job.clone(), program));
        sent.map_err(|_| "the script thread has ended".to_owned())?;
        Ok(job)
    }
}

/// Calls in progress.
pub(super) struct Job {
    calls: Arc<Vec<OwnedCall>>,
    from: usize,
    watch: CallWatch,
    state: Mutex<JobState>,
    /// Lets a spinning waiter see the end without the lock.
    is_ended: AtomicBool,
    ended: Condvar,
}

struct JobState {
    results: Vec<Result<CallOutcome, CallFailure>>,
    /// The number of the current call.
    call: u64,
    /// The thread that runs it.
    thread: Option<Pid>,
    is_condition: bool,
    /// When it began; `None` before the first one.
    started: Option<Instant>,
    /// The engine, once all calls are made, or a panic.
    end: Option<Result<Box<MemoizingEngine>, Box<dyn Any + Send>>>,
    /// Set when the job was given up; the thread drops it at its end.
    lost: Option<LostThread>,
}

/// How a job ended for the waiting thread.
pub(super) enum JobOutcome {
    Done(Box<MemoizingEngine>),
    /// The call after the last result was given up.
    GivenUp(CallFailure),
    Panicked(Box<dyn Any + Send>),
}

/// The helper's side.
impl Job {
    /// Makes all calls. `Some` if the job was given up.
    fn work(&self, mut program: Box<MemoizingEngine>, thread: Pid) -> Option<LostThread> {
        self.state.lock().thread = Some(thread);
        let made = catch_unwind(AssertUnwindSafe(|| {
            let mut calls = self.calls.get(self.from..).unwrap_or_default().iter().peekable();
            if let Some(first) = calls.peek() {
                self.begin(&mut self.state.lock(), first.condition.is_some());
            }
            while let Some(call) = calls.next() {
                let result = call.make(&mut program, self);
                let mut state = self.state.lock();
                if state.lost.is_some() {
                    return;
                }
                state.results.push(result);
                if let Some(next) = calls.peek() {
                    self.begin(&mut state, next.condition.is_some());
                }
            }
        }));
        let mut state = self.state.lock();
        if let Some(lost) = state.lost.take() {
            drop(state);
            drop(program);
            return Some(lost);
        }
        state.end = Some(made.map(|()| program));
        drop(state);
        self.is_ended.store(true, Ordering::Release);
        self.ended.notify_one();
        None
    }

    /// Starts the time of a script.
    fn begin(&self, state: &mut JobState, is_condition: bool) {
        state.started = Some(clock::now());
        state.is_condition = is_condition;
        state.call = self.watch.begin();
    }
}

/// The waiting thread's side.
impl Job {
    /// Waits until all calls are made, or one must be given up. Returns the results of the calls that were made.
    pub fn wait(
        &self,
        timeout: Duration,
        guard: &GuardOptions,
        spin: &mut Spin,
        results: &mut Vec<Result<CallOutcome, CallFailure>>,
    ) -> JobOutcome {
        let handed_over = clock::now();
        let patience = timeout.saturating_add(timeout.max(GRACE_MIN));
        spin.until(|| self.is_ended.load(Ordering::Acquire).then_some(()));
        let mut state = self.state.lock();
        loop {
            if let Some(end) = state.end.take() {
                *results = std::mem::take(&mut state.results);
                return match end {
                    Ok(program) => JobOutcome::Done(program),
                    Err(panic) => JobOutcome::Panicked(panic),
                };
            }
            let ran = state.started.map(|started| started.elapsed()).unwrap_or_default();
            let stands = state.started.unwrap_or(handed_over).elapsed();
            let is_stopping = stands >= LOOK && (guard.gives_up)();
            if is_stopping || ran >= patience {
                return self.give_up(&mut state, timeout, is_stopping, guard, results);
            }
            let mut left = timeout.saturating_sub(ran);
            if left.is_zero() {
                self.watch.end_call(state.call);
                left = patience.saturating_sub(ran);
            }
            self.ended.wait_for(&mut state, left.min(LOOK));
        }
    }

    fn give_up(
        &self,
        state: &mut JobState,
        timeout: Duration,
        is_stopping: bool,
        guard: &GuardOptions,
        results: &mut Vec<Result<CallOutcome, CallFailure>>,
    ) -> JobOutcome {
        // If the built-in function ever returns, the script ends at its next step.
        self.watch.abandon();
        state.lost = Some(guard.lost.add(guard.on_lost.clone()));
        // The thread exists until it has had the lock. On systems without a niceness per thread this has no effect.
        if let Some(thread) = state.thread {
            let _ = setpriority_process(Some(thread), LOST_NICENESS);
        }
        *results = std::mem::take(&mut state.results);
        let (kind, text) = match is_stopping {
            true => (FailureKind::Stopped, "the flow stopped while the script ran".to_owned()),
            false => (
                FailureKind::Timeout,
                format!(
                    "the script ran longer than {timeout:?} and could not be stopped within a built-in function, so it was \
                     given up with its thread"
                ),
            ),
        };
        let failure = failed(Failure { kind, text }, state.is_condition);
        JobOutcome::GivenUp(failure)
    }
}
