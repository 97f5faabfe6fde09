//! The end of a history: everything is taken out and compared with the model, and once more after a crash.

use std::collections::{BTreeMap, BTreeSet};

use super::ends::Stopped;
use super::world::{CONSUMERS, Counts, World};
use crate::support::{DAY, HOUR, SECOND, TODAY, letters, text, up_to};
use thalweg_queue::members::MemberKind;
use thalweg_queue::{Pause, QueueError, SettleAction};

#[derive(Default)]
struct Taken {
    /// Delivered by the work group.
    texts: Vec<String>,
    /// Delivered by the stream group.
    read: BTreeSet<String>,
}

impl World {
    pub async fn end(mut self) -> Counts {
        Self::others_have_their_turn().await;
        let (queue, group) = self.queue();
        let queues = self.machine().place.queues.clone();
        for what in [Pause::Both, Pause::Group(group.clone())] {
            queues.pause(&queue, what, false).await.unwrap();
        }
        let taken = self.take_all().await;
        let mut found = BTreeMap::new();
        for text in taken.texts {
            *found.entry(text).or_default() += 1;
        }
        let dead: Vec<String> = letters(&queue).await.iter().map(text).collect();
        dead.iter()
            .for_each(|text| *found.entry(text.clone()).or_default() += 1);
        self.counts.expired = self.model.check(&found, &taken.read);
        self.disk.kill();
        let machine = self.machine.take().unwrap();
        let before = Stopped::of(&machine);
        machine.place.kill();

        self.start_again(before).await;
        let again = self.take_all().await;
        assert!(
            again.texts.is_empty(),
            "settled, and handed out again: {:?}",
            again.texts
        );
        assert!(again.read.is_empty(), "committed, and read again: {:?}", again.read);
        let (queue, _) = self.queue();
        let still: Vec<String> = letters(&queue).await.iter().map(text).collect();
        assert_eq!(still, dead);
        self.machine.take().unwrap().place.stop().await;
        self.counts
    }

    async fn take_all(&mut self) -> Taken {
        let mut taken = Taken::default();
        let (queue, group) = self.queue();
        // Pipeline consumers keep their partitions until they leave.
        (0..CONSUMERS).for_each(|n| queue.leave(&group, &format!("c{n}")));
        self.take(&mut taken).await;
        // Leases end, failed messages are retried, and delayed ones become due.
        for time in [61 * SECOND, 2 * HOUR] {
            self.pass(time);
            self.take(&mut taken).await;
        }
        // Sets the clock later than anything it has shown before.
        let machine = self.machine();
        machine.set(TODAY + 500 * DAY - machine.wall()).await;
        self.see_the_time();
        self.take(&mut taken).await;
        self.pass(61 * SECOND);
        self.take(&mut taken).await;
        taken
    }

    async fn take(&mut self, taken: &mut Taken) {
        let (queue, _) = self.queue();
        // First the consumers that are gone, then what they left.
        for _ in 0..2 {
            queue.look_after_now().await;
            self.take_work(taken).await;
            self.take_stream(taken).await;
        }
    }

    async fn take_work(&mut self, taken: &mut Taken) {
        let (queue, group) = self.queue();
        loop {
            let claimed = queue
                .claim(&group, "last", MemberKind::Pipeline, up_to(1000))
                .await
                .unwrap();
            if claimed.is_empty() {
                return;
            }
            for delivery in &claimed {
                let text = text(&delivery.message);
                self.happened(("taken", &text, delivery.partition, delivery.message.offset));
                self.model.handed_out(&text);
                taken.texts.push(text);
            }
            let verdicts = claimed
                .iter()
                .map(|delivery| (queue.receipt(delivery), SettleAction::Ack));
            let settled = queue.settle(&group, verdicts.collect(), true).await.unwrap();
            assert!(settled.failed.is_empty(), "{:?}", settled.failed);
        }
    }

    async fn take_stream(&mut self, taken: &mut Taken) {
        let (queue, group) = self.stream();
        loop {
            let read = match queue.claim(&group, "last", MemberKind::Http, up_to(1000)).await {
                // The gap is reported once, and reading continues after it.
                Err(QueueError::OffsetGap { .. }) => continue,
                read => read.unwrap(),
            };
            if read.is_empty() {
                return;
            }
            for delivery in &read {
                let (text, place) = (text(&delivery.message), (delivery.partition, delivery.message.offset));
                self.happened(("read at the end", &text, place));
                self.model.read(&text, place);
                taken.read.insert(text);
            }
            let verdicts = read.iter().map(|delivery| (queue.receipt(delivery), SettleAction::Ack));
            let settled = queue.settle(&group, verdicts.collect(), true).await.unwrap();
            assert!(settled.failed.is_empty(), "{:?}", settled.failed);
        }
    }
}
