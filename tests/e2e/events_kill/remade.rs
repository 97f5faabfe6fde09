//! A namespace that is created, written to and deleted all the time, and one of its streams with it: after each start it is in
//! the last state that its owner was told.

use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};
use thalweg_tests::Api;

use crate::events_server::{Events, TOKEN};

const NAME: &str = "remade";
const MESSAGES: usize = 3;

/// The last step with a response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Step {
    #[default]
    Nothing,
    Made,
    Written(usize),
    StreamDeleted,
    Deleted,
}

#[derive(Default)]
pub(super) struct Remade {
    /// Counts the creations.
    life: u64,
    token: Option<String>,
    step: Step,
    /// The next step was requested, too, and has no response.
    unsure: bool,
    pub deletions: u64,
}

/// The result, or nothing without a response.
fn call(address: &str, token: &str, call: &Value) -> Option<Value> {
    let path = format!("/rpc?token={token}");
    let answer = Api::at_root(address)
        .try_send("POST", &path, &[], &call.to_string())
        .ok()?;
    assert_eq!(answer.status, 200, "{call}: {answer:?}");
    Some(answer.json)
}

impl Remade {
    /// Runs until the process is gone.
    pub fn go_on(&mut self, address: &str, stop: &AtomicBool) {
        self.unsure = true;
        while !stop.load(Ordering::SeqCst) {
            if self.live(address).is_none() {
                return;
            }
        }
        self.unsure = false;
    }

    fn live(&mut self, address: &str) -> Option<()> {
        self.life += 1;
        (self.step, self.token) = (Step::Nothing, None);
        let made = call(address, TOKEN, &json!(["ns.create", NAME, {}]))?;
        let token = made["token"].as_str().unwrap().to_owned();
        (self.step, self.token) = (Step::Made, Some(token.clone()));
        for n in 0..MESSAGES {
            let message = json!({"type": "T", "data": {"life": self.life}});
            call(address, &token, &json!(["stream.write", "a-1", message]))?;
            self.step = Step::Written(n + 1);
        }
        call(address, &token, &json!(["stream.delete", "a-1"]))?;
        self.step = Step::StreamDeleted;
        call(address, TOKEN, &json!(["ns.delete", NAME]))?;
        self.step = Step::Deleted;
        self.deletions += 1;
        Some(())
    }

    /// Checks the state after a start, and deletes it for the next one.
    pub fn is_as_told(&mut self, events: &Events) {
        let list = events.call(json!(["ns.list"]));
        let is_there = list.as_array().unwrap().iter().any(|one| one["namespace"] == NAME);
        let may_be = |step: Step| self.step == step || self.unsure && self.step.before(step);
        if is_there {
            let may_be_there = self.step != Step::Deleted && (self.step != Step::Nothing || self.unsure);
            assert!(may_be_there, "after {:?}: {list}", self.step);
        } else {
            let gone = [Step::Nothing, Step::Deleted];
            assert!(gone.into_iter().any(may_be), "after {:?}: {list}", self.step);
        }
        if let (true, Some(token)) = (is_there, &self.token) {
            let read = call(&events.address, token, &json!(["stream.get", "a-1"])).unwrap();
            let rows = read.as_array().unwrap();
            assert!(
                rows.iter().all(|row| row[4]["life"] == self.life),
                "of an earlier life: {read}"
            );
            let is_one = (0..=MESSAGES).any(|n| match n {
                0 => rows.is_empty() && [Step::Made, Step::StreamDeleted].into_iter().any(may_be),
                n => rows.len() == n && may_be(Step::Written(n)),
            });
            assert!(is_one, "after {:?}: {read}", self.step);
        }
        if is_there {
            events.call(json!(["ns.delete", NAME]));
        }
        *self = Remade {
            life: self.life,
            deletions: self.deletions,
            ..Remade::default()
        };
    }
}

impl Step {
    /// Whether the other one is the next step.
    fn before(self, next: Step) -> bool {
        match (self, next) {
            (Step::Nothing | Step::Deleted, Step::Made)
            | (Step::Made, Step::Written(1))
            | (Step::StreamDeleted, Step::Deleted) => true,
            (Step::Written(n), Step::Written(next)) => next == n + 1,
            (Step::Written(n), Step::StreamDeleted) => n == MESSAGES,
            _ => false,
        }
    }
}
