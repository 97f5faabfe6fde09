use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

/// Longer than any test takes, but for what is to be over at once.
const LONG: Duration = Duration::from_secs(600);

fn patience(answer: Duration, messages: Duration) -> Patience {
    Patience {
        answer,
        messages,
        failure: LONG,
        miss: LONG,
    }
}

fn contract(name: &str) -> BTreeSet<String> {
    BTreeSet::from([name.to_owned()])
}

fn reason(registry: &Registry, contract: &str) -> String {
    match registry.known(contract) {
        Known::Subjects(_) => "it is checked".to_owned(),
        Known::Bypassed(why) => why.to_string(),
    }
}

/// Answers each request for a path with what is said of it, or closes the connection.
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
    // It takes connections and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let registry = Registry::with_patience(&url, patience(LONG, Duration::from_millis(50)));
    for n in 0..100 {
        let name = format!("_c{n}_v1");
        // Each of these would take ten minutes if it waited for an answer.
        registry.learn(&contract(&name)).await;
        assert_eq!(
            reason(&registry, &name),
            format!("the schema registry at {url} has not answered yet")
        );
    }
    // So that its questions end, and with them the test.
    drop(silent);
}

#[tokio::test]
async fn names_without_end_are_not_all_asked_for() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let registry = Registry::with_patience(&url, patience(LONG, Duration::ZERO));
    for n in 0..2 * ASKED_MAX {
        registry.learn(&contract(&format!("_c{n}_v1"))).await;
    }
    assert_eq!(registry.shared.state.lock().asked.len(), ASKED_MAX);
    drop(silent);
}

#[test]
fn what_has_a_schema_is_remembered_for_ever_and_the_rest_within_bounds() {
    let mut state = State::default();
    let hit = || Entry {
        known: Known::Subjects(Arc::default()),
        until: None,
    };
    let miss = || Entry {
        known: Known::Bypassed("no subject".into()),
        until: Some(Instant::now() + LONG),
    };
    state.remember("_pump_v1".into(), hit());
    for n in 0..3 * MISSES_MAX {
        state.remember(format!("_c{n}_v1").as_str().into(), miss());
        assert!(state.entries.len() <= MISSES_MAX + 1);
    }
    assert!(matches!(
        state.entries.get("_pump_v1"),
        Some(Entry {
            known: Known::Subjects(_),
            ..
        })
    ));
    // One that is asked for once more is no further one.
    let (known, newest) = (state.entries.len(), format!("_c{}_v1", 3 * MISSES_MAX - 1));
    for _ in 0..3 * MISSES_MAX {
        state.remember(newest.as_str().into(), miss());
    }
    assert_eq!(state.entries.len(), known);
}

#[tokio::test]
async fn one_silence_counts_for_all_contracts() {
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = asked.clone();
    let url = serve(move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
        None
    });
    let registry = Registry::with_patience(&url, patience(LONG, LONG));
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
    let registry = Registry::with_patience(&url, patience(LONG, LONG));
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
