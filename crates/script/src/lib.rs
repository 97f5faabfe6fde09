//! JavaScript for message stages: source text in, changes to messages out.
//!
//! A [`Program`] holds the scripts of one processor, compiled, for one thread. It reads a message's typed payload and
//! metadata and says what the script made of them ([`ScriptOutput`]); it never changes the message itself, so a script that
//! fails changes nothing. Nothing that a script does to globals or built-in objects is seen by the next call.
//!
//! Two engines are behind the trait: native code for what it can run exactly as JavaScript says, and QuickJS-ng ([`QuickJs`]) for
//! everything ([`Engine`]). What a script makes of the metadata that all messages of a tag share is remembered
//! ([`MemoizingEngine`]). QuickJS runs on a thread that can be given up ([`GuardedProgram`]), so no script keeps a flow. An engine knows nothing of processors: they say which scripts there are, where console lines go, and which
//! computed keys `msg.meta` shows.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod cache;
mod dependencies;
mod engine;
mod environment;
mod guarded;
mod memoization;
mod native;
mod program;
mod quickjs;
mod reply;
mod scan;
mod view;
mod watch;

pub use cache::{Cache, CacheFull};
pub use dependencies::{ExpressionDependencies, FreeVariable, reach};
pub use engine::{Engine, EngineMode, Explanation, beyond, explain};
pub use environment::{ComputedKey, Console, ConsoleLevel, Environment, LogConsole, ScriptLimits};
pub use guarded::{GuardOptions, GuardedProgram, LostThreads};
pub use memoization::MemoizingEngine;
pub use native::OffendingConstruct;
pub use program::{
    CallFailure, CallOutcome, CompileError, Failure, FailureKind, MemoizedOutcome, Program, ProgramStats, Script,
    ScriptCall, ScriptForm,
};
pub use quickjs::{NOT_A_MESSAGE, NOT_ALL_MESSAGES, QuickJs};
pub use reply::{MetaReply, PayloadReply, Reply, ScriptOutput};
pub use view::{number_seen, number_text, payload_value, plain_form, text_form};
pub use watch::CallWatch;
