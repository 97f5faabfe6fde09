//! The flow runtime: carries batches from an input through processors to an output, and acknowledgements back.
//!
//! Inputs and outputs are tasks on the async runtime. Processors run synchronously on their own threads, one instance
//! per thread; work is sharded by series, so that the order within a series holds with any number of threads. Every
//! queue is limited in messages and bytes: a full queue blocks its senders, back to the source.
#![cfg_attr(test, allow(clippy::unwrap_used))]
#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::disallowed_types))]

mod batching;
mod buffer;
mod chain;
mod children;
mod component;
mod connection;
mod context;
mod delivery;
mod input;
mod inputs;
mod metrics;
mod named_spec;
mod output;
mod output_driver;
mod outputs;
mod parse;
mod processed;
mod processor;
mod processors;
mod queue;
mod registry;
mod runtime;
mod shard;
mod worker;

pub use batching::Batching;
pub use buffer::{Buffer, BufferContext, BufferReader, BufferSink, BufferSpec};
pub use component::{BuildContext, BuildError, Component};
pub use connection::Connection;
pub use context::{DeadLetterSender, StageContext};
pub use input::{Input, InputContext, InputError, Sink, SinkClosed};
pub use metrics::METRICS;
pub use output::{OpenError, Output, OutputContext, Rejection, WriteError, all_but};
pub use parse::ParseContext;
pub use processor::Processor;
pub use registry::{ComponentReference, ComponentRegistry, InputSpec, OutputSpec, ProcessorSpec};
pub use runtime::{DeadLetterOutput, Flow, FlowEnvironment, FlowHandle, FlowSpec, StopReport};
pub use shard::ShardedMessages;
pub use thalweg_kit::backoff::Backoff;

/// The future that a method of an object-safe trait returns.
pub type BoxFuture<'a, T> = std::pin::Pin<Box<dyn Future<Output = T> + Send + 'a>>;
