//! The configuration file: YAML text in, a typed [`Config`] and a list of mistakes out.
//!
//! Every value keeps its position in the user's file, also after environment replacement, anchors and `-s` overrides,
//! so each mistake is reported as `flow.yaml:7:5: ...`. Reading never stops at the first mistake: [`Diagnostics`]
//! collects them all, and other crates add theirs while they read their own part through [`Fields`].
#![cfg_attr(test, allow(clippy::unwrap_used))]
#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::disallowed_types))]

mod batch_policy;
mod component;
mod config;
mod describe;
mod diagnostics;
mod emit;
mod environment;
mod exposure;
mod fields;
pub mod kind;
mod load;
mod machine;
mod names;
mod node;
mod overrides;
mod parse;
mod reference;
mod scalar;
mod secrets;
mod source;
mod units;

pub use batch_policy::{BATCH_BYTES_MAX, BatchPolicy};
pub use component::{ComponentKind, ComponentNode, common_fields};
pub use config::{
    AuthConfig, BasicAuth, BufferConfig, CONNECTIONS_USUAL, Config, CorsConfig, FlowConfig, HttpConfig, ListenerConfig,
    LogFileConfig, LogFormat, LogLevel, LoggerConfig, MEMORY_MIN, MEMORY_NEEDED, MemoryConfig, MetricsConfig,
    PipelineConfig, Resources, Role, ScriptEngine, ScriptingConfig, TokenConfig, TokenSecret, is_login_name,
    sha256_from_hex,
};
pub use describe::{FieldDoc, describe};
pub use diagnostics::{Diagnostic, Diagnostics, Severity};
pub use exposure::{ExposureError, ListenerNames, Protection, exposure, is_loopback, literal_address};
pub use fields::Fields;
pub use load::{LoadOptions, LoadedConfig, load, load_path, process_environment};
pub use machine::memory_bytes;
pub use names::{closest, is_slip, nearest};
pub use node::{Key, Mapping, Node, ValueKind};
pub use reference::{BUFFER_TEXTS, FieldText, ReferenceText, SECTION_TEXTS};
pub use source::{Pos, SourceText};
pub use units::{parse_duration, parse_size};
