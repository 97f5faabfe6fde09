use proptest::prelude::*;

use super::*;

/// Messages whose values are their numbers.
type Messages = Retransmission<u32>;

/// A subscription that has received `seen` messages in order.
fn following(seen: u32) -> Messages {
    let mut messages = Messages::default();
    for number in 1..=seen {
        assert_eq!(messages.published(number, &[number], number), Arrival::InOrder);
        assert_eq!(messages.next(), Some(deliver(number)));
    }
    assert_eq!(messages.next(), None);
    messages
}

fn deliver(number: u32) -> RetransmissionStep<u32> {
    RetransmissionStep::Deliver { number, values: number }
}

fn message(number: u32) -> RepublishReply<u32> {
    RepublishReply::Message {
        number,
        is_keep_alive: false,
        values: number,
    }
}

/// The response of servers that do not know the number.
fn empty(number: u32) -> RepublishReply<u32> {
    RepublishReply::Message {
        number,
        is_keep_alive: true,
        values: 0,
    }
}

const LOST: RetransmissionStep<u32> = RetransmissionStep::Gap(GapReason::NotRepublished);

fn counts(missing: u32, asked: u32, fetched: u32) -> RetransmissionStep<u32> {
    RetransmissionStep::Ended(RecoveryCounts {
        missing,
        asked,
        fetched,
    })
}

/// Runs all steps until there is nothing to do; `answer` serves each request.
fn steps(messages: &mut Messages, answer: impl Fn(u32) -> RepublishReply<u32>) -> Vec<RetransmissionStep<u32>> {
    let mut all = Vec::new();
    while let Some(step) = messages.next() {
        if let RetransmissionStep::Ask(number) = step {
            messages.answered(number, answer(number));
        }
        all.push(step);
    }
    all
}

#[test]
fn after_a_reconnect_an_empty_or_wrong_message_ends_the_asking() {
    for answer in [
        |_: u32| empty(0),
        |number: u32| empty(number),
        |number: u32| message(number + 1),
        |number: u32| message(number - 1),
        |_: u32| RepublishReply::NotAvailable,
        |_: u32| RepublishReply::Unanswered,
    ] {
        let mut messages = following(5);
        messages.reconnected(&[]);
        assert_eq!(
            steps(&mut messages, answer),
            [RetransmissionStep::Ask(6), counts(0, 1, 0)]
        );
        assert_eq!(messages.published(6, &[], 6), Arrival::InOrder);
        assert_eq!(steps(&mut messages, answer), [deliver(6)]);
    }
}

#[test]
fn after_a_reconnect_what_the_server_has_is_fetched_until_it_has_no_more() {
    let mut messages = following(5);
    messages.reconnected(&[]);
    let keeps_two = |number: u32| if number <= 7 { message(number) } else { empty(0) };
    let expected = [
        RetransmissionStep::Ask(6),
        deliver(6),
        RetransmissionStep::Ask(7),
        deliver(7),
        RetransmissionStep::Ask(8),
        counts(2, 3, 2),
    ];
    assert_eq!(steps(&mut messages, keeps_two), expected);
}

/// A server that invents messages cannot be recognized, but the number of requests is limited.
#[test]
fn a_server_that_never_runs_out_of_messages_is_asked_for_so_many_and_no_more() {
    let mut messages = following(5);
    messages.reconnected(&[]);
    let asked = steps(&mut messages, message);
    assert_eq!(
        asked
            .iter()
            .filter(|step| matches!(step, RetransmissionStep::Ask(_)))
            .count(),
        AHEAD_MAX
    );
    let next = 6 + AHEAD_MAX as u32;
    assert_eq!(messages.published(next, &[], next), Arrival::InOrder);
}

#[test]
fn after_a_transfer_what_the_server_lists_is_asked_for_and_nothing_else() {
    let mut messages = following(5);
    messages.reconnected(&[3, 9, 8, 8, 0, 5]);
    let expected = [
        RetransmissionStep::Ask(8),
        LOST,
        deliver(8),
        RetransmissionStep::Ask(9),
        deliver(9),
        counts(4, 2, 2),
    ];
    assert_eq!(steps(&mut messages, message), expected);
    // Every listed message was seen before.
    messages.reconnected(&[3, 9]);
    assert_eq!(steps(&mut messages, message), []);
    // The server does not keep what it lists: the loss shows with the next message.
    messages.reconnected(&[11]);
    assert_eq!(
        steps(&mut messages, |_| empty(0)),
        [RetransmissionStep::Ask(11), counts(0, 1, 0)]
    );
    messages.published(12, &[12], 12);
    assert_eq!(steps(&mut messages, message), [LOST, counts(2, 0, 0), deliver(12)]);
}

#[test]
fn a_hole_is_filled_in_order_and_what_does_not_come_is_a_gap_where_it_is() {
    let mut messages = following(2);
    assert!(matches!(messages.published(8, &[3, 5, 6, 8], 8), Arrival::After(_)));
    let six_is_gone = |number: u32| if number == 6 { empty(0) } else { message(number) };
    let expected = [
        RetransmissionStep::Ask(3),
        deliver(3),
        RetransmissionStep::Ask(5),
        LOST,
        deliver(5),
        RetransmissionStep::Ask(6),
        LOST,
        counts(5, 3, 2),
        deliver(8),
    ];
    assert_eq!(steps(&mut messages, six_is_gone), expected);
    assert_eq!(messages.published(6, &[], 6), Arrival::Seen, "it comes too late");
    assert_eq!(steps(&mut messages, message), []);
}

#[test]
fn a_message_that_cannot_be_read_is_a_gap_that_says_so() {
    let mut messages = following(1);
    messages.published(3, &[2, 3], 3);
    let unreadable = RetransmissionStep::Gap(GapReason::Undecodable);
    let expected = [RetransmissionStep::Ask(2), unreadable, counts(1, 1, 0), deliver(3)];
    assert_eq!(steps(&mut messages, |_| RepublishReply::Unreadable), expected);
}

#[test]
fn of_very_many_missing_messages_those_are_asked_for_that_the_server_still_has() {
    let mut messages = following(1);
    let kept: Vec<u32> = (5001..=5004).collect();
    messages.published(5005, &kept, 5005);
    let asked = steps(&mut messages, message);
    let expected = [
        RetransmissionStep::Ask(5001),
        LOST,
        deliver(5001),
        RetransmissionStep::Ask(5002),
    ];
    assert_eq!(asked[..4], expected);
    assert_eq!(asked[asked.len() - 2..], [counts(5003, 4, 4), deliver(5005)]);
    // The newest ones, if the server lists more than the limit or nothing.
    for (lists, most) in [(true, LISTED_MAX as u32), (false, UNLISTED_MAX)] {
        let mut messages = following(1);
        let all: Vec<u32> = (2..=100_000).collect();
        messages.published(100_001, if lists { &all } else { &[] }, 100_001);
        let asked = steps(&mut messages, message);
        assert_eq!(asked[..2], [RetransmissionStep::Ask(100_001 - most), LOST]);
        let questions = asked.iter().filter(|step| matches!(step, RetransmissionStep::Ask(_)));
        assert_eq!(questions.count() as u32, most);
        assert_eq!(asked.last(), Some(&deliver(100_001)));
    }
}

/// Two messages of the hole are fetched, then the connection breaks twice.
#[test]
fn a_break_while_a_hole_is_filled_loses_neither_the_rest_of_it_nor_the_message_after_it() {
    let mut messages = following(1);
    messages.published(5, &[2, 3, 4, 5], 5);
    assert_eq!(messages.next(), Some(RetransmissionStep::Ask(2)));
    messages.answered(2, message(2));
    assert_eq!(messages.next(), Some(deliver(2)));
    for _ in 0..2 {
        assert_eq!(messages.next(), Some(RetransmissionStep::Ask(3)));
        messages.reconnected(&[]);
    }
    let has_up_to_six = |number: u32| if number <= 6 { message(number) } else { empty(0) };
    let expected = [
        RetransmissionStep::Ask(3),
        deliver(3),
        RetransmissionStep::Ask(4),
        deliver(4),
        counts(3, 3, 3),
        deliver(5),
        RetransmissionStep::Ask(6),
        deliver(6),
        RetransmissionStep::Ask(7),
        counts(1, 2, 1),
    ];
    assert_eq!(steps(&mut messages, has_up_to_six), expected);
}

#[test]
fn what_is_given_up_is_a_gap_and_the_message_after_it_still_leaves() {
    let mut messages = following(1);
    messages.published(4, &[2, 3, 4], 4);
    assert_eq!(messages.next(), Some(RetransmissionStep::Ask(2)));
    // The subscription is gone.
    messages.give_up();
    assert_eq!(steps(&mut messages, message), [LOST, counts(2, 0, 0), deliver(4)]);
    messages.kept_alive(8, &[]);
    messages.give_up();
    assert_eq!(steps(&mut messages, message), [LOST, counts(3, 0, 0)]);
}

/// How the server treats a request for a message.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Honest,
    /// Sends the message if it was ever sent.
    Sent,
    Empty,
    EmptyOfThisNumber,
    AnotherNumber(u32),
    Refused,
    Unanswered,
    Unreadable,
    /// The connection breaks before the request reaches the server.
    CutBefore,
    /// The connection breaks after the server has sent the message and discarded it.
    CutAfter,
}

/// What the server lists as kept.
#[derive(Clone, Debug)]
enum Listed {
    Honest,
    Nothing,
    /// Every number twice, newest first.
    Confused,
    /// Numbers around that of its last message.
    MadeUp(Vec<i8>),
    /// Arbitrary numbers.
    Noise(Vec<u32>),
}

#[derive(Clone, Debug)]
enum Event {
    /// The server sends `count` messages, the first `lost` of which are lost without a connection loss.
    Send {
        count: u8,
        lost: u8,
        listed: Listed,
    },
    KeepAlive(Listed),
    /// `count` messages are in flight when the connection breaks.
    Cut {
        count: u8,
        listed: Listed,
    },
    /// Recovery is given up, as when the subscription is gone.
    GiveUp,
}

fn listings() -> impl Strategy<Value = Listed> {
    prop_oneof![
        3 => Just(Listed::Honest),
        1 => Just(Listed::Nothing),
        1 => Just(Listed::Confused),
        1 => prop::collection::vec(any::<i8>(), 0..20).prop_map(Listed::MadeUp),
        1 => prop::collection::vec(any::<u32>(), 0..20).prop_map(Listed::Noise),
    ]
}

fn fates() -> impl Strategy<Value = Fate> {
    prop_oneof![
        6 => Just(Fate::Honest),
        1 => Just(Fate::Sent),
        1 => Just(Fate::Empty),
        1 => Just(Fate::EmptyOfThisNumber),
        1 => any::<u32>().prop_map(Fate::AnotherNumber),
        1 => Just(Fate::Refused),
        1 => Just(Fate::Unanswered),
        1 => Just(Fate::Unreadable),
        2 => Just(Fate::CutBefore),
        2 => Just(Fate::CutAfter),
    ]
}

fn events() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => (0..6u8, 0..6u8, listings()).prop_map(|(count, lost, listed)| Event::Send { count, lost, listed }),
        1 => listings().prop_map(Event::KeepAlive),
        3 => (0..90u8, listings()).prop_map(|(count, listed)| Event::Cut { count, listed }),
        1 => Just(Event::GiveUp),
    ]
}

/// A server, a connection that breaks, and the client.
struct World {
    messages: Messages,
    fates: Vec<Fate>,
    sent: u32,
    kept: VecDeque<u32>,
    keeps_max: usize,
    /// What was delivered, in order: a message number, or `None` for a gap.
    left: Vec<Option<u32>>,
}

impl World {
    fn send(&mut self) -> u32 {
        self.sent += 1;
        self.kept.push_back(self.sent);
        while self.kept.len() > self.keeps_max {
            self.kept.pop_front();
        }
        self.sent
    }

    fn list(&self, listed: &Listed) -> Vec<u32> {
        let kept = self.kept.iter().copied();
        match listed {
            Listed::Honest => kept.collect(),
            Listed::Nothing => Vec::new(),
            Listed::Confused => kept.clone().rev().chain(kept).collect(),
            Listed::MadeUp(steps) => steps
                .iter()
                .map(|step| self.sent.wrapping_add_signed((*step).into()))
                .collect(),
            Listed::Noise(numbers) => numbers.clone(),
        }
    }

    /// Returns the response to a request; `None` if the connection breaks.
    fn answer(&mut self, number: u32) -> Option<RepublishReply<u32>> {
        let has = self.kept.contains(&number);
        Some(match self.fates.pop().unwrap_or(Fate::Honest) {
            Fate::Honest if has => message(number),
            Fate::Sent if number <= self.sent => message(number),
            Fate::Honest | Fate::Refused => RepublishReply::NotAvailable,
            Fate::Sent | Fate::Empty => empty(0),
            Fate::EmptyOfThisNumber => empty(number),
            Fate::AnotherNumber(other) if other != number => message(other),
            Fate::AnotherNumber(_) | Fate::Unanswered => RepublishReply::Unanswered,
            Fate::Unreadable => RepublishReply::Unreadable,
            Fate::CutBefore => return None,
            Fate::CutAfter => {
                self.kept.retain(|kept| *kept != number);
                return None;
            }
        })
    }

    /// Runs all steps, over as many connections as needed.
    fn run(&mut self, listed: usize) {
        let mut asked = 0;
        let mut connections = 1;
        while let Some(step) = self.messages.next() {
            match step {
                RetransmissionStep::Gap(_) => self.left.push(None),
                RetransmissionStep::Deliver { number, values } => {
                    assert_eq!(number, values);
                    self.left.push(Some(number));
                    self.kept.retain(|kept| *kept != number);
                }
                RetransmissionStep::Ended(counts) => {
                    assert!(counts.fetched <= counts.asked && counts.fetched <= counts.missing)
                }
                RetransmissionStep::Ask(number) => {
                    asked += 1;
                    match self.answer(number) {
                        Some(reply) => self.messages.answered(number, reply),
                        None => {
                            connections += 1;
                            self.messages.reconnected(&[]);
                        }
                    }
                }
            }
            // Only existing messages may cause more than one request per connection and listed number.
            let most = listed + UNLISTED_MAX as usize + self.sent as usize + 2 * connections;
            assert!(asked <= most, "{asked} questions, at most {most}");
        }
    }

    fn happen(&mut self, event: &Event) {
        match event {
            Event::Send { count, lost, listed } => {
                for nth in 0..*count {
                    let number = self.send();
                    if nth >= *lost {
                        let list = self.list(listed);
                        self.messages.published(number, &list, number);
                        self.run(list.len());
                    }
                }
            }
            Event::KeepAlive(listed) => {
                let list = self.list(listed);
                self.messages.kept_alive(self.sent + 1, &list);
                self.run(list.len());
            }
            Event::Cut { count, listed } => {
                (0..*count).for_each(|_| {
                    self.send();
                });
                let list = self.list(listed);
                self.messages.reconnected(&list);
                self.run(list.len());
            }
            Event::GiveUp => {
                self.messages.give_up();
                self.run(0);
            }
        }
    }

    /// Checks that each message is delivered once and in order, or that a gap covers it.
    fn check(&self) {
        let mut last = 0;
        let mut is_marked = false;
        for left in &self.left {
            let Some(number) = left else {
                is_marked = true;
                continue;
            };
            assert!(*number > last, "{number} after {last}: {:?}", self.left);
            assert!(
                *number == last + 1 || is_marked,
                "from {last} to {number} without a gap: {:?}",
                self.left
            );
            (last, is_marked) = (*number, false);
        }
        assert_eq!(last, self.sent, "the last message has left");
    }
}

proptest! {
    /// Whatever the server responds and wherever connections break, each message is delivered once or covered by a gap,
    /// the number of requests is limited, and the subscription continues. `PROPTEST_CASES` sets the number of cases.
    #[test]
    fn every_message_leaves_once_or_is_covered_by_a_gap(
        events in prop::collection::vec(events(), 1..30),
        fates in prop::collection::vec(fates(), 0..200),
        keeps_max in 0..100usize,
    ) {
        let mut world = World {
            messages: Messages::default(),
            fates,
            sent: 0,
            kept: VecDeque::new(),
            keeps_max,
            left: Vec::new(),
        };
        for event in &events {
            world.happen(event);
        }
        world.happen(&Event::Send { count: 1, lost: 0, listed: Listed::Honest });
        world.check();
    }
}
