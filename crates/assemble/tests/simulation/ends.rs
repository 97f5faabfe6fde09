//! The ends of the path that the test plays: a source that sends again what is not acknowledged, and a slow consumer.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use thalweg_flow::{
    BoxFuture, BuildContext, BuildError, ComponentRegistry, Input, InputContext, InputError, InputSpec, Output,
    OutputSpec, WriteError,
};
use thalweg_log::disk::sim::Random;
use thalweg_record::{AckResult, Message};
use tokio::sync::mpsc;

use crate::ledger::Ledger;
use crate::process::FanOutOrder;

/// The number of keys of readings.
pub const KEYS: u64 = 5;

/// What both ends share.
#[derive(Clone)]
pub struct Ends {
    pub ledger: Ledger,
    pub random: Arc<Mutex<Random>>,
    pub next: Arc<Mutex<u64>>,
    /// The source sends new readings.
    pub sends: bool,
    /// The consumer is slow and fails now and then.
    pub is_slow: bool,
    pub order: FanOutOrder,
}

pub fn register(registry: &mut ComponentRegistry, ends: &Ends) {
    let own = ends.clone();
    registry.input("plant", "", move |_, _| Some(Arc::new(Plant(own.clone()))));
    let own = ends.clone();
    registry.output("consumer", "", move |_, _| Some(Arc::new(Consumer(own.clone()))));
}

impl Ends {
    fn below(&self, n: u64) -> u64 {
        self.random.lock().below(n)
    }
}

#[derive(Clone)]
struct Plant(Ends);

impl InputSpec for Plant {
    fn build(&self, _: &BuildContext) -> Result<Box<dyn Input>, BuildError> {
        Ok(Box::new(self.clone()))
    }
}

impl Input for Plant {
    fn run(self: Box<Self>, context: InputContext) -> BoxFuture<'static, Result<(), InputError>> {
        Box::pin(async move {
            context.connection.up();
            let (again, mut nacked) = mpsc::unbounded_channel();
            for id in self.0.ledger.take_unanswered() {
                let _ = again.send(id);
            }
            loop {
                let pause = Duration::from_millis(self.0.below(150));
                tokio::select! {
                    biased;
                    () = context.stop.cancelled() => return Ok(()),
                    () = tokio::time::sleep(pause) => {}
                }
                let mut ids = Vec::new();
                while let Ok(id) = nacked.try_recv() {
                    ids.push(id);
                }
                if self.0.sends {
                    let mut next = self.0.next.lock();
                    let count = 1 + self.0.below(6);
                    ids.extend(*next..*next + count);
                    *next += count;
                }
                if ids.is_empty() {
                    continue;
                }
                let text = |id: &u64| format!(r#"{{"id":{id},"key":"k{}"}}"#, id % KEYS);
                let messages = ids.iter().map(|id| Message::raw(text(id))).collect();
                ids.iter().for_each(|id| self.0.ledger.sent(*id));
                self.0.ledger.note(|| format!("sends {ids:?}"));
                let (ledger, again) = (self.0.ledger.clone(), again.clone());
                let settle = move |outcome: AckResult| match outcome {
                    AckResult::Acked => {
                        ledger.note(|| format!("acknowledged {ids:?}"));
                        ids.iter().for_each(|id| ledger.acknowledged(*id));
                    }
                    AckResult::Nacked => {
                        ledger.note(|| format!("not acknowledged {ids:?}"));
                        for id in ids {
                            let _ = again.send(id);
                        }
                    }
                };
                if context.sink.send_all(messages, settle).await.is_err() {
                    return Ok(());
                }
            }
        })
    }
}

#[derive(Clone)]
struct Consumer(Ends);

impl OutputSpec for Consumer {
    fn build(&self, _: &BuildContext) -> Result<Arc<dyn Output>, BuildError> {
        Ok(Arc::new(self.clone()))
    }
}

impl Output for Consumer {
    fn write(&self, messages: Arc<Vec<Message>>) -> BoxFuture<'static, Result<(), WriteError>> {
        let own = self.0.clone();
        Box::pin(async move {
            if own.is_slow {
                // Now and then longer than a lease.
                let longest = if own.below(20) == 0 { 40_000 } else { 300 };
                tokio::time::sleep(Duration::from_millis(own.below(longest))).await;
                if own.below(8) == 0 {
                    return Err(WriteError::Temporary("the consumer does not feel like it".to_owned()));
                }
            }
            let ids: Vec<u64> = messages.iter().map(id_of).collect();
            own.ledger.note(|| format!("consumed {ids:?}"));
            ids.iter().for_each(|id| own.ledger.consumed(*id));
            Ok(())
        })
    }
}

fn id_of(message: &Message) -> u64 {
    let value: serde_json::Value = serde_json::from_slice(&message.bytes()).unwrap();
    value["id"].as_u64().unwrap()
}
