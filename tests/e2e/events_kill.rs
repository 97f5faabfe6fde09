//! `kill -9` of the event store while many clients write and one follows, the wall clock is set, clients disconnect in the
//! middle of their calls, a namespace is deleted and recreated, and rebuildable files are damaged. Acknowledged messages are at
//! their positions. Each append is stored whole or not at all, at the stream version that it expected. A repeated call without
//! a response learns its outcome. Deleted data stays deleted. The follower, which reconnects after each kill, gets every
//! message once and in order.

mod remade;

use std::collections::{HashMap, HashSet};
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use thalweg_tests::Api;
use thalweg_tests::thalweg::set_wall_clock;

use crate::events_server::{Backend, Events, TOKEN, for_lasting_backends};
use crate::trouble::{WallClock, damage, leave, request};
use remade::Remade;

for_lasting_backends!(kill_nine_loses_nothing_repeats_nothing_and_leaves_no_gap);

const WRITERS: u64 = 6;
const STREAMS: u64 = 5;

/// Reproducible random numbers.
struct Chance(u64);

impl Chance {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

/// Messages for some streams, each with a unique number.
#[derive(Clone)]
struct Asked {
    parts: Vec<(String, Vec<u64>)>,
    expected: Option<i64>,
    /// Whether the messages have their own ids.
    has_ids: bool,
}

enum Said {
    /// The position of each part, in its stream and globally.
    Stored(Vec<(u64, u64)>),
    Refused,
    Nothing,
}

#[derive(Default)]
struct Known {
    said: Vec<(Asked, Said)>,
    /// A lower bound.
    versions: HashMap<String, i64>,
}

/// Everything found so far.
#[derive(Default)]
struct Found {
    /// By global position from 1: stream, position, number.
    all: Vec<(String, u64, u64)>,
    versions: HashMap<String, i64>,
    /// Index of each number.
    at: HashMap<u64, usize>,
}

impl Asked {
    fn some(chance: &mut Chance, known: &Mutex<Known>, next: &mut u64) -> Asked {
        let mut take = |count: u64| {
            let numbers = (*next..*next + count).collect();
            *next += count;
            numbers
        };
        let first = chance.below(STREAMS);
        let stream = |n: u64| format!("s-{}", n % STREAMS);
        match chance.below(8) {
            0 => Asked {
                parts: vec![(stream(first), take(2)), (stream(first + 1), take(3))],
                expected: None,
                has_ids: true,
            },
            1 => Asked {
                expected: Some(
                    known
                        .lock()
                        .unwrap()
                        .versions
                        .get(&stream(first))
                        .copied()
                        .unwrap_or(-1),
                ),
                parts: vec![(stream(first), take(1))],
                has_ids: false,
            },
            2 => Asked {
                parts: vec![(stream(first), take(40))],
                expected: None,
                has_ids: true,
            },
            n => Asked {
                parts: vec![(stream(first), take(1))],
                expected: None,
                has_ids: n == 3,
            },
        }
    }

    fn numbers(&self) -> impl Iterator<Item = u64> {
        self.parts.iter().flat_map(|(_, numbers)| numbers.iter().copied())
    }

    fn call(&self) -> Value {
        let message = |number: &u64| {
            let mut message = json!({"type": "t", "data": {"number": number}});
            if self.has_ids {
                message["id"] = format!("00000000-0000-4000-8000-{number:012x}").into();
            }
            message
        };
        let parts: Vec<Value> = self
            .parts
            .iter()
            .map(|(stream, numbers)| {
                let messages: Vec<Value> = numbers.iter().map(message).collect();
                let mut part = json!({"stream": stream, "messages": messages});
                if let Some(expected) = self.expected {
                    part["expectedVersion"] = expected.into();
                }
                part
            })
            .collect();
        json!(["stream.appendMany", parts])
    }
}

fn ask(api: &Api, asked: &Asked) -> Option<(u16, Value)> {
    let answer = api.try_send("POST", &format!("/rpc?token={TOKEN}"), &[], &asked.call().to_string());
    answer.ok().map(|answer| (answer.status, answer.json))
}

fn places(answer: &Value) -> Vec<(u64, u64)> {
    let parts = answer.as_array().unwrap().iter();
    parts
        .map(|part| {
            let at = |name: &str| part[name].as_u64().unwrap_or_else(|| panic!("{part}"));
            (at("firstPosition"), at("firstGlobalPosition"))
        })
        .collect()
}

fn write(address: &str, known: &Mutex<Known>, stop: &AtomicBool, mut chance: Chance, mut next: u64) {
    let api = &Api::at_root(address);
    loop {
        let asked = Asked::some(&mut chance, known, &mut next);
        if asked.has_ids && chance.below(8) == 0 {
            let whole = request("POST", &format!("/rpc?token={TOKEN}"), &asked.call().to_string());
            leave(address, &whole, whole.len() - 9 * chance.below(2) as usize);
            known.lock().unwrap().said.push((asked, Said::Nothing));
            continue;
        }
        let (said, is_over) = match ask(api, &asked) {
            Some((200, answer)) => {
                let places = places(&answer);
                let mut known = known.lock().unwrap();
                for ((stream, numbers), (position, _)) in asked.parts.iter().zip(&places) {
                    let version = known.versions.entry(stream.clone()).or_insert(-1);
                    *version = (*version).max((position + numbers.len() as u64 - 1) as i64);
                }
                (Said::Stored(places), false)
            }
            Some((409, _)) => (Said::Refused, false),
            other => {
                assert!(stop.load(Ordering::SeqCst) || other.is_none(), "{other:?}");
                (Said::Nothing, true)
            }
        };
        known.lock().unwrap().said.push((asked, said));
        if is_over || stop.load(Ordering::SeqCst) {
            return;
        }
    }
}

/// Adds received pokes to `heard` until the server is gone, or everything up to `last` is received.
fn follow(address: &str, heard: &mut Vec<(String, u64)>, last: Option<usize>) {
    let Ok(mut stream) = TcpStream::connect(address) else {
        return;
    };
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let after = heard.len();
    let request = format!("GET /subscribe?all=true&lastEventId={after}&token={TOKEN} HTTP/1.1\r\nhost: x\r\n\r\n");
    if stream.write_all(request.as_bytes()).is_err() {
        return;
    }
    let mut lines = BufReader::new(stream).lines();
    while last.is_none_or(|last| heard.len() < last) {
        let Some(Ok(line)) = lines.next() else { return };
        let Some(data) = line.strip_prefix("data: ") else {
            continue;
        };
        let poke: Value = serde_json::from_str(data).unwrap_or_else(|_| panic!("{data}"));
        heard.push((
            poke["stream"].as_str().unwrap().to_owned(),
            poke["position"].as_u64().unwrap(),
        ));
        assert_eq!(poke["globalPosition"], heard.len(), "a gap, or a message twice");
    }
}

impl Found {
    /// Reads messages since the last read.
    fn read(&mut self, events: &Events) {
        let from = self.all.len() + 1;
        let rows = events.call(json!(["category.get", "s", {"batchSize": -1, "position": from}]));
        for row in rows.as_array().unwrap() {
            assert_eq!(row[4], self.all.len() + 1, "a gap, or a message twice");
            let (stream, position) = (row[1].as_str().unwrap().to_owned(), row[3].as_u64().unwrap());
            let version = self.versions.entry(stream.clone()).or_insert(-1);
            assert_eq!(position as i64, *version + 1, "of stream {stream}");
            *version += 1;
            let number = row[5]["number"].as_u64().unwrap();
            let twice = self.at.insert(number, self.all.len());
            assert_eq!(twice, None, "number {number} is stored twice");
            self.all.push((stream, position, number));
        }
    }

    fn holds(&self, asked: &Asked, said: &Said) {
        let there = asked.numbers().filter(|number| self.at.contains_key(number)).count();
        let all = asked.numbers().count();
        match said {
            Said::Refused => assert_eq!(there, 0, "what was refused is there"),
            Said::Nothing => assert!(there == 0 || there == all, "{there} of {all} messages of one append"),
            Said::Stored(places) => {
                for ((stream, numbers), (position, global)) in asked.parts.iter().zip(places) {
                    for (n, number) in (0..).zip(numbers) {
                        let found = self.all.get((global + n - 1) as usize);
                        assert_eq!(
                            found,
                            Some(&(stream.clone(), position + n, *number)),
                            "an acknowledged message"
                        );
                    }
                }
            }
        }
        if let (Some(expected), true) = (asked.expected, there == all) {
            let (stream, numbers) = &asked.parts[0];
            let (_, position, _) = &self.all[self.at[&numbers[0]]];
            assert_eq!(*position as i64, expected + 1, "of stream {stream}");
        }
    }

    /// Appends without a response are repeated.
    fn ask_again(&mut self, events: &Events, asked: &Asked) {
        let was_there = asked.numbers().all(|number| self.at.contains_key(&number));
        let (status, answer) = ask(&events.api, asked).expect("an answer");
        assert_eq!(status, 200, "{answer}");
        let parts = answer.as_array().unwrap();
        assert!(
            parts.iter().all(|part| (part["duplicate"] == true) == was_there),
            "{answer}"
        );
        self.read(events);
        self.holds(asked, &Said::Stored(places(&answer)));
    }
}

/// `THALWEG_KILL_ROUNDS` rounds from the seed `THALWEG_KILL_SEED`.
#[allow(clippy::print_stdout, reason = "a long run prints its result")]
fn kill_nine_loses_nothing_repeats_nothing_and_leaves_no_gap(mut events: Events) {
    let number = |name: &str, default: u64| std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(default);
    let (rounds, seed) = (number("THALWEG_KILL_ROUNDS", 3), number("THALWEG_KILL_SEED", 1));
    let mut chance = Chance(seed << 20 | 1);
    let (mut found, mut heard) = (Found::default(), Vec::new());
    let (mut acknowledged, mut without_answer, mut left) = (0, 0, 0);
    let (mut remade, mut clock, folder) = (Remade::default(), WallClock::default(), events.folder.path().to_owned());
    // A database has its own clock and files.
    let is_embedded = events.backend != Backend::Postgres;
    if is_embedded {
        set_wall_clock(&folder, 0).unwrap();
        events = events.again();
    }
    // Nothing here gets that old, unless a clock change counts as elapsed time.
    events.call(json!(["retention.set", {"category": "s"}, {"maxAge": 43_200}]));
    for round in 0..rounds {
        let (known, stop) = (Mutex::new(Known::default()), AtomicBool::new(false));
        known.lock().unwrap().versions.clone_from(&found.versions);
        let address = events.address.clone();
        std::thread::scope(|scope| {
            for writer in 0..WRITERS {
                let (known, stop, address) = (&known, &stop, &address);
                let own = Chance(chance.below(u64::MAX) | 1);
                scope.spawn(move || write(address, known, stop, own, round << 32 | writer << 24));
            }
            let (heard, remade, address, stop) = (&mut heard, &mut remade, &address, &stop);
            scope.spawn(move || follow(address, heard, None));
            scope.spawn(move || remade.go_on(address, stop));
            if is_embedded && chance.below(3) == 0 {
                clock.set(&folder, &events.process, chance.below(64));
            }
            while known.lock().unwrap().said.len() < 40 {
                std::thread::sleep(Duration::from_millis(5));
            }
            std::thread::sleep(Duration::from_millis(chance.below(400)));
            stop.store(true, Ordering::SeqCst);
            events.process.kill().unwrap();
        });
        if is_embedded && chance.below(3) == 0 {
            clock.set_back(&folder, chance.below(64));
        }
        if is_embedded && chance.below(3) == 0 {
            damage(&folder.join("data"), chance.below(1 << 20));
        }
        events = events.again();
        remade.is_as_told(&events);
        found.read(&events);
        let said = known.into_inner().unwrap().said;
        for (asked, said) in &said {
            found.holds(asked, said);
            match said {
                Said::Stored(_) => acknowledged += asked.numbers().count(),
                Said::Nothing if asked.has_ids => {
                    left += 1;
                    found.ask_again(&events, asked);
                }
                Said::Nothing => without_answer += 1,
                Said::Refused => {}
            }
        }
        let numbers: HashSet<u64> = said.iter().flat_map(|(asked, _)| asked.numbers()).collect();
        let of_round = found.all.iter().filter(|(.., number)| number >> 32 == round);
        assert!(
            of_round.clone().all(|(.., number)| numbers.contains(number)),
            "nobody has asked for it"
        );
    }
    follow(&events.address, &mut heard, Some(found.all.len()));
    let all: Vec<(String, u64)> = found
        .all
        .into_iter()
        .map(|(stream, position, _)| (stream, position))
        .collect();
    assert_eq!(heard, all, "what the follower heard of");
    println!(
        "{rounds} rounds of kill -9, seed {seed}, {:?}: {acknowledged} messages acknowledged, none lost, {} stored, none \
         twice, no gap; {left} appends had no answer and were asked for again, {without_answer} were not; a namespace was deleted {} times",
        events.backend,
        all.len(),
        remade.deletions,
    );
}
