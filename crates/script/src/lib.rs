//! JavaScript for message stages: source text in, changes to messages out.
//!
//! A [`Program`] holds the scripts of one processor, compiled, for one thread. It reads a message's typed payload and
//! metadata and says what the script made of them ([`Returned`]); it never changes the message itself, so a script that
//! fails changes nothing. Nothing that a script does to globals or built-in objects is seen by the next call.
//!
//! Two engines are behind the trait: native code for what it can run exactly as JavaScript says, and QuickJS-ng ([`QuickJs`]) for
//! everything ([`Engine`]). What a script makes of the metadata that all messages of a tag share is remembered
//! ([`Remembering`]). QuickJS runs on a thread that can be given up ([`Guarded`]), so no script keeps a flow. An engine knows nothing of processors: they say which scripts there are, where console lines go, and which
//! computed keys `msg.meta` shows.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod cache;
mod engine;
mod environment;
mod guarded;
mod native;
mod program;
mod quickjs;
mod reach;
mod remembering;
mod reply;
mod scan;
mod view;
mod watch;

pub use cache::{Cache, CacheFull};
pub use engine::{Engine, Explanation, Mode, beyond, explain};
pub use environment::{ComputedKey, Console, ConsoleLevel, Environment, Limits, LogConsole};
pub use guarded::{Guard, Guarded, LostThreads};
pub use native::Outside;
pub use program::{
    Call, CallFailure, Called, CompileError, Failure, FailureKind, Form, Program, Remembered, Script, Stats,
};
pub use quickjs::{NOT_A_MESSAGE, NOT_ALL_MESSAGES, QuickJs};
pub use reach::{FreeName, Reach, reach};
pub use remembering::Remembering;
pub use reply::{MetaReply, PayloadReply, Reply, Returned};
pub use view::{number_seen, number_text, payload_value, plain_form, text_form};
pub use watch::Watch;
