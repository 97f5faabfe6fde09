//! A server and a network that misbehave at random for a while: calls are cut off, rejected or answered wrongly,
//! messages are lost, and Republish requests get arbitrary responses. Afterwards everything works again, and the value
//! after each missing one of a tag is marked.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use opcua::types::{
    BrowseResponse, CreateMonitoredItemsResponse, NotificationMessage, ReadResponse, RepublishResponse, StatusCode,
};

use crate::harness::{Collector, Plant, SimulatorOptions, collect_retrying, meta, open, payload};
use crate::proxy::{self, Fate, Proxy, Request, Verdict, decode, encode};

const TAGS: usize = 12;
const REPUBLISH_RESPONSE: u32 = 835;

/// Number of seeds in CI; `THALWEG_OPCUA_SEEDS` overrides it.
const SEEDS: u64 = 6;

/// SplitMix64.
#[derive(Clone)]
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, most: u64) -> u64 {
        self.next() % most.max(1)
    }

    fn one_in(&mut self, many: u64) -> bool {
        self.below(many) == 0
    }
}

/// Decides what happens to a request.
fn judge(chance: &mut Chance, request: &Request) -> Verdict {
    const REFUSALS: [StatusCode; 5] = [
        StatusCode::BadInternalError,
        StatusCode::BadTooManyOperations,
        StatusCode::BadServerTooBusy,
        StatusCode::BadInvalidArgument,
        StatusCode::BadResponseTooLarge,
    ];
    if chance.one_in(60) {
        return Verdict::Cut;
    }
    match request.kind {
        proxy::REPUBLISH => match chance.below(6) {
            0 => Verdict::Cut,
            1 => republished(request, 0),
            2 => republished(request, chance.below(100) as u32),
            3 => Verdict::Refuse(StatusCode::BadMessageNotAvailable),
            4 => Verdict::Refuse(StatusCode::BadInternalError),
            _ => Verdict::Pass,
        },
        proxy::PUBLISH if chance.one_in(30) => Verdict::Refuse(StatusCode::BadInternalError),
        proxy::READ | proxy::BROWSE | proxy::CREATE_ITEMS | proxy::CALL if chance.one_in(12) => {
            Verdict::Refuse(REFUSALS[chance.below(REFUSALS.len() as u64) as usize])
        }
        _ => Verdict::Pass,
    }
}

fn republished(request: &Request, number: u32) -> Verdict {
    let response = RepublishResponse {
        response_header: request.response_header(StatusCode::Good),
        notification_message: NotificationMessage {
            sequence_number: number,
            ..NotificationMessage::default()
        },
    };
    Verdict::Answer(proxy::answer(REPUBLISH_RESPONSE, &response))
}

/// Decides what happens to a response.
fn tell(chance: &mut Chance, request: &Request, body: &[u8]) -> Fate {
    match request.kind {
        // A message with values is lost.
        proxy::PUBLISH if body.len() > 200 && chance.one_in(25) => Fate::Hold,
        proxy::READ if chance.one_in(8) => {
            let mut answer: ReadResponse = decode(body);
            answer.results.iter_mut().for_each(|all| shorten(chance, all));
            Fate::Change(encode(&answer))
        }
        proxy::BROWSE if chance.one_in(8) => {
            let mut answer: BrowseResponse = decode(body);
            answer.results.iter_mut().for_each(|all| shorten(chance, all));
            Fate::Change(encode(&answer))
        }
        proxy::CREATE_ITEMS if chance.one_in(3) => {
            let mut answer: CreateMonitoredItemsResponse = decode(body);
            answer.results.iter_mut().for_each(|all| shorten(chance, all));
            Fate::Change(encode(&answer))
        }
        _ => Fate::Pass,
    }
}

fn shorten<T>(chance: &mut Chance, results: &mut Vec<T>) {
    results.truncate(chance.below(results.len() as u64) as usize);
}

/// Checks that no value is out of order, that none is repeated unless its item was recreated, and that no missing value
/// is unmarked.
fn holes_are_marked(collector: &Collector, seed: u64) {
    for tag in 1..=TAGS {
        let messages = collector.of(&format!("ns=3;s=FastUInt{tag}"));
        let seen: Vec<(u32, bool)> = messages
            .iter()
            .map(|message| (payload(message).parse().unwrap(), meta(message, "opcua_gap") == "true"))
            .collect();
        for pair in seen.windows(2) {
            let ((before, _), (now, is_marked)) = (pair[0], pair[1]);
            let fine = now == before + 1 || (is_marked && now >= before);
            assert!(fine, "seed {seed}, FastUInt{tag}: {before}, {now} in {seen:?}");
        }
    }
}

async fn misbehave(seed: u64) {
    let plant = Plant::start(SimulatorOptions {
        fast_nodes: TAGS as u32,
        ..open()
    })
    .await;
    let proxy = Proxy::start(&plant.endpoint()).await;
    let is_on = Arc::new(AtomicBool::new(true));
    let (judges, tells) = (is_on.clone(), is_on.clone());
    let (mut of_judge, mut of_teller) = (Chance(seed), Chance(!seed));
    proxy.judge(move |request| match judges.load(Ordering::SeqCst) {
        true => judge(&mut of_judge, request),
        false => Verdict::Pass,
    });
    proxy.tell(move |request, body| match tells.load(Ordering::SeqCst) {
        true => tell(&mut of_teller, request, body),
        false => Fate::Pass,
    });
    let fields = "subscribeEnabled: true, queueSize: 200, publishingInterval: 50, connections: 2";
    let collector = collect_retrying(&proxy.endpoint(), fields).await;
    collector
        .until(&format!("some values in spite of it (seed {seed})"), |c| {
            c.count() > 40 * TAGS
        })
        .await;
    is_on.store(false, Ordering::SeqCst);
    collector.until_served(TAGS).await;
    let before: Vec<usize> = (1..=TAGS)
        .map(|tag| collector.of(&format!("ns=3;s=FastUInt{tag}")).len())
        .collect();
    collector
        .until(&format!("values of all tags (seed {seed})"), |c| {
            (1..=TAGS).all(|tag| c.of(&format!("ns=3;s=FastUInt{tag}")).len() > before[tag - 1] + 5)
        })
        .await;
    holes_are_marked(&collector, seed);
    assert_eq!(collector.metric("items_failed"), 0.0);
    assert!(proxy.seen(proxy::REPUBLISH).len() < 1000);
    collector.stop().await;
    plant.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_server_and_network_do_everything_flows_afterwards_and_holes_are_marked() {
    const AT_A_TIME: u64 = 6;
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let seeds: u64 = number("THALWEG_OPCUA_SEEDS").unwrap_or(SEEDS);
    let first: u64 = number("THALWEG_OPCUA_FIRST_SEED").unwrap_or(1);
    let mut running = tokio::task::JoinSet::new();
    for seed in first..first + seeds {
        if running.len() as u64 >= AT_A_TIME {
            running.join_next().await.unwrap().unwrap();
        }
        running.spawn(misbehave(seed));
    }
    while let Some(ended) = running.join_next().await {
        ended.unwrap();
    }
}
