use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};

use thalweg_flow::OutputContext;

use super::requests::escaped;
use super::*;

/// Longer than any test takes, except for what must end immediately.
const LONG: Duration = Duration::from_secs(600);

fn patience(answer: Duration, messages: Duration) -> RegistryTimeouts {
    RegistryTimeouts {
        answer,
        messages,
        failure: LONG,
        hit: LONG,
        schema: LONG,
    }
}

fn registry(url: &str, patience: RegistryTimeouts) -> SchemaRegistryClient {
    SchemaRegistryClient::with_patience(url, false, OutputContext::for_tests("uns").component, patience)
}

fn contract(name: &str) -> BTreeSet<String> {
    BTreeSet::from([name.to_owned()])
}

fn reason(registry: &SchemaRegistryClient, contract: &str) -> String {
    match registry.known(contract) {
        ContractLookup::Subjects(_) => "it is checked".to_owned(),
        ContractLookup::Bypassed(bypass) => bypass.why.to_string(),
    }
}

/// Responds to each request with the result of `answer` for its path, or closes the connection.
fn serve(answer: impl Fn(&str) -> Option<(u16, String)> + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let _ = one(stream.unwrap(), &answer);
        }
    });
    url
}

fn one(stream: TcpStream, answer: &impl Fn(&str) -> Option<(u16, String)>) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    let (mut first, mut line) = (String::new(), String::new());
    reader.read_line(&mut first)?;
    while reader.read_line(&mut line)? > 2 {
        line.clear();
    }
    let Some((status, body)) = answer(first.split(' ').nth(1).unwrap_or_default()) else {
        return Ok(());
    };
    let length = body.len();
    let head = format!("HTTP/1.1 {status} x\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n");
    reader.get_mut().write_all((head + &body).as_bytes())
}

#[test]
fn a_subject_is_one_segment_of_a_path() {
    assert_eq!(escaped("_pump_v1-timeseries/ä"), "_pump_v1-timeseries%2F%C3%A4");
}

#[tokio::test]
async fn messages_do_not_wait_for_a_registry_that_takes_its_time() {
    // It accepts connections and sends nothing.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let registry = registry(&url, patience(LONG, Duration::from_millis(50)));
    for n in 0..100 {
        let name = format!("_c{n}_v1");
        // Each of these would take ten minutes if it waited for a response.
        registry.learn(&contract(&name)).await;
        assert_eq!(
            reason(&registry, &name),
            format!("the schema registry at {url} has not answered yet")
        );
    }
    // This ends its queries, and with them the test.
    drop(silent);
}

#[tokio::test]
async fn names_without_end_are_not_all_asked_for() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let registry = registry(&url, patience(LONG, Duration::ZERO));
    for n in 0..2 * ASKED_MAX {
        registry.learn(&contract(&format!("_c{n}_v1"))).await;
    }
    assert_eq!(registry.shared.state.lock().asked.len(), ASKED_MAX);
    drop(silent);
}

#[test]
fn what_has_a_schema_is_remembered_for_ever_and_the_rest_within_bounds() {
    let mut state = ContractCache::default();
    let hit = || CachedContract {
        known: ContractLookup::Subjects(Arc::default()),
        until: Instant::now(),
    };
    let miss = || CachedContract {
        known: ContractLookup::Bypassed(Bypass::new(BypassReason::NoSubject, "no subject")),
        until: Instant::now() + LONG,
    };
    state.remember("_pump_v1".into(), hit());
    for n in 0..3 * MISSES.entries_max {
        state.remember(format!("_c{n}_v1").as_str().into(), miss());
    }
    assert_eq!(state.misses.len(), MISSES.entries_max);
    let is_hit = |state: &ContractCache| {
        let known = state.get("_pump_v1").map(|entry| &entry.known);
        matches!(known, Some(ContractLookup::Subjects(_)))
    };
    assert!(is_hit(&state));
    // A contract is one or the other.
    state.remember("_pump_v1".into(), miss());
    assert!(!is_hit(&state) && state.hits.is_empty());
    state.remember("_pump_v1".into(), hit());
    assert!(is_hit(&state) && state.misses.get("_pump_v1").is_none());
}

#[tokio::test]
async fn one_silence_counts_for_all_contracts() {
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = asked.clone();
    let url = serve(move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
        None
    });
    let registry = registry(&url, patience(LONG, LONG));
    registry.learn(&contract("_a_v1")).await;
    let after_the_first = asked.load(Ordering::SeqCst);
    for n in 0..50 {
        let name = format!("_c{n}_v1");
        registry.learn(&contract(&name)).await;
        assert!(
            reason(&registry, &name).starts_with(&format!("the schema registry at {url} does not answer: ")),
            "{}",
            reason(&registry, &name)
        );
    }
    assert_eq!(asked.load(Ordering::SeqCst), after_the_first);
}

#[tokio::test]
async fn what_the_registry_says_of_one_contract_is_said_of_it_alone() {
    let url = serve(|path| {
        let version = |kind: &str| format!("{{\"schema\": \"true\"{kind}}}");
        Some(match path {
            "/subjects" => (200, r#"["_a_v1-x", "_b_v1-x", "_c_v1-x", "_d_v1-x"]"#.to_owned()),
            "/subjects/_a_v1-x/versions/latest" => (200, version(r#", "schemaType": "JSON""#)),
            "/subjects/_b_v1-x/versions/latest" => (200, version("")),
            "/subjects/_c_v1-x/versions/latest" => (200, version(r#", "schemaType": "PROTOBUF""#)),
            _ => (500, "{}".to_owned()),
        })
    });
    let registry = registry(&url, patience(LONG, LONG));
    let all = ["_d_v1", "_c_v1", "_b_v1", "_a_v1", "_e_v1"].map(str::to_owned);
    registry.learn(&BTreeSet::from(all)).await;
    let told = ["_a_v1", "_b_v1", "_c_v1", "_e_v1"].map(|contract| reason(&registry, contract));
    assert_eq!(
        told,
        [
            "it is checked",
            "the schema registry has no JSON schema for _b_v1: the schema of _b_v1-x is of type AVRO",
            "the schema registry has no JSON schema for _c_v1: the schema of _c_v1-x is of type PROTOBUF",
            "the schema registry has no subject that begins with _e_v1-",
        ]
    );
    let refused = reason(&registry, "_d_v1");
    assert!(
        refused.contains("refuses to answer") && refused.contains("500"),
        "{refused}"
    );
}

/// A registry that can be made to fail, and whose subjects can be extended.
#[derive(Clone, Default)]
struct Served {
    subjects: Arc<Mutex<Vec<String>>>,
    is_failing: Arc<std::sync::atomic::AtomicBool>,
    schemas_asked: Arc<AtomicUsize>,
}

impl Served {
    fn start(&self) -> String {
        let served = self.clone();
        serve(move |path| {
            if served.is_failing.load(Ordering::SeqCst) {
                return Some((200, "nonsense".to_owned()));
            }
            if path == "/subjects" {
                return Some((200, serde_json::to_string(&*served.subjects.lock()).unwrap()));
            }
            served.schemas_asked.fetch_add(1, Ordering::SeqCst);
            Some((200, r#"{"schema": "true", "schemaType": "JSON"}"#.to_owned()))
        })
    }

    fn add(&self, subject: &str) {
        self.subjects.lock().push(subject.to_owned());
    }
}

/// Queries repeatedly until the result is as expected.
async fn until_known(registry: &SchemaRegistryClient, name: &str, is_reached: impl Fn(&ContractLookup) -> bool) {
    let begun = Instant::now();
    while !is_reached(&registry.known(name)) {
        assert!(begun.elapsed() < Duration::from_secs(30), "{}", reason(registry, name));
        registry.learn(&contract(name)).await;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn subjects_of(known: &ContractLookup) -> usize {
    match known {
        ContractLookup::Subjects(subjects) => subjects.len(),
        ContractLookup::Bypassed(_) => 0,
    }
}

#[tokio::test]
async fn new_subjects_are_found_without_fetching_again_what_is_known() {
    let served = Served::default();
    let again_at_once = RegistryTimeouts {
        hit: Duration::ZERO,
        ..patience(LONG, LONG)
    };
    let registry = registry(&served.start(), again_at_once);
    until_known(&registry, "_pump_v1", |known| {
        known.reason() == Some(BypassReason::NoSubject)
    })
    .await;
    served.add("_pump_v1-number");
    until_known(&registry, "_pump_v1", |known| subjects_of(known) == 1).await;
    served.add("_pump_v1-text");
    until_known(&registry, "_pump_v1", |known| subjects_of(known) == 2).await;
    assert_eq!(served.schemas_asked.load(Ordering::SeqCst), 2);
}

/// If only some were checked, messages that the others allow would be rejected.
#[tokio::test]
async fn a_contract_of_more_subjects_than_can_be_checked_is_not_checked_and_says_so() {
    let served = Served::default();
    let registry = registry(&served.start(), patience(LONG, LONG));
    for contract in ["_few_v1", "_many_v1"] {
        for n in 0..requests::SUBJECTS_MAX + usize::from(contract == "_many_v1") {
            served.add(&format!("{contract}-{n}"));
        }
    }
    until_known(&registry, "_few_v1", |known| {
        subjects_of(known) == requests::SUBJECTS_MAX
    })
    .await;
    registry.learn(&contract("_many_v1")).await;
    assert_eq!(
        reason(&registry, "_many_v1"),
        "_many_v1 has 1001 subjects, and at most 1000 can be checked; remove unneeded ones"
    );
}

#[tokio::test]
async fn an_answer_of_the_registry_that_is_too_large_is_told_as_such() {
    let large = format!("[\"{}\"]", "x".repeat(16 << 20));
    let registry = registry(&serve(move |_| Some((200, large.clone()))), patience(LONG, LONG));
    registry.learn(&contract("_pump_v1")).await;
    let why = reason(&registry, "_pump_v1");
    assert!(why.ends_with("/subjects: its answer is larger than 16 MiB"), "{why}");
}

#[tokio::test]
async fn what_was_answered_counts_while_the_registry_fails() {
    let served = Served::default();
    served.add("_pump_v1-number");
    let again_at_once = RegistryTimeouts {
        hit: Duration::ZERO,
        failure: Duration::ZERO,
        ..patience(LONG, LONG)
    };
    let registry = registry(&served.start(), again_at_once);
    until_known(&registry, "_pump_v1", |known| subjects_of(known) == 1).await;
    served.is_failing.store(true, Ordering::SeqCst);
    until_known(&registry, "_valve_v1", |known| {
        known.reason() == Some(BypassReason::RegistryRefuses)
    })
    .await;
    for _ in 0..10 {
        registry.learn(&contract("_pump_v1")).await;
        assert_eq!(subjects_of(&registry.known("_pump_v1")), 1);
    }
}

#[tokio::test]
async fn messages_that_must_not_pass_wait_until_the_registry_answers() {
    let served = Served::default();
    served.add("_pump_v1-number");
    served.is_failing.store(true, Ordering::SeqCst);
    let again_at_once = RegistryTimeouts {
        failure: Duration::ZERO,
        ..patience(LONG, Duration::from_millis(20))
    };
    let component = OutputContext::for_tests("uns").component;
    let registry = SchemaRegistryClient::with_patience(&served.start(), true, component, again_at_once);
    let waiting = registry.clone();
    let waiting = tokio::spawn(async move { waiting.wait_for(&contract("_pump_v1")).await });
    while registry.held().is_none() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(!waiting.is_finished());
    served.is_failing.store(false, Ordering::SeqCst);
    waiting.await.unwrap();
    assert_eq!((subjects_of(&registry.known("_pump_v1")), registry.held()), (1, None));
}
