//! JavaScript for message stages: source text in, changes to messages out.
//!
//! A [`Program`] contains the compiled scripts of one processor, for one thread. It reads a message's typed payload and
//! metadata and returns what the script made of them ([`ScriptOutput`]). It never changes the message itself, so a
//! failed script changes nothing. Changes that a script makes to globals or built-in objects are invisible to the next
//! call.
//!
//! Two engines implement the trait: native code for what it can run exactly as JavaScript specifies, and QuickJS-ng
//! ([`QuickJs`]) for everything ([`Engine`]). Results that depend only on the metadata shared by all messages of a tag
//! are memoized ([`MemoizingEngine`]). QuickJS runs on a thread that can be given up ([`GuardedProgram`]), so no script
//! blocks a flow. Engines are independent of processors, which define the scripts, the console destination, and the
//! computed keys of `msg.meta`.
#![cfg_attr(test, allow(clippy::unwrap_used))]
#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::disallowed_types))]

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
pub use environment::{ComputedKey, Console, ConsoleLevel, Environment, LogConsole, ScriptLimits, UndefinedMeta};
pub use guarded::{GuardOptions, GuardedProgram, LostThreads};
pub use memoization::MemoizingEngine;
pub use native::OffendingConstruct;
pub use program::{
    CallFailure, CallOutcome, CompileError, Failure, FailureKind, MemoizedOutcome, Program, ProgramStats, Script,
    ScriptCall, ScriptForm,
};
pub use quickjs::{NOT_A_MESSAGE, NOT_ALL_MESSAGES, QuickJs};
pub use reply::{MetaReply, PayloadReply, Reply, ScriptOutput};
pub use scan::{only_word, without_final_semicolons};
pub use view::{number_seen, number_text, payload_value, plain_form, text_form};
pub use watch::CallWatch;
