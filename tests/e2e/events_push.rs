//! `/subscribe` on every kind of storage: the wire format, byte by byte, the starting point, and completeness.

use serde_json::{Value, json};

use crate::events::MEMBERS;
use crate::events_server::{Events, Pokes, TOKEN, as_token, for_every_backend, poke, record, token};

for_every_backend!(
    a_subscriber_hears_of_history_and_of_what_comes_in_one_sequence,
    a_wrong_subscription_is_told_as_plain_text,
    the_head_and_each_poke_are_what_known_clients_read,
    a_subscription_begins_where_it_is_told_to,
    members_of_a_group_are_told_of_their_streams_only,
    whole_messages_come_as_they_are_read_however_long_they_are,
    what_is_not_wanted_is_not_told,
    of_pokes_that_wait_the_newest_of_each_stream_is_told,
    who_does_not_read_for_long_misses_nothing,
    what_is_imported_above_a_subscriber_is_told,
    a_subscription_ends_properly_with_its_namespace_and_with_the_server,
);

fn a_subscriber_hears_of_history_and_of_what_comes_in_one_sequence(events: Events) {
    for n in 0..3 {
        events.call(json!(["stream.write", format!("c-{}", n % 2), {"type": "t", "data": {}}]));
    }
    let mut stream = Pokes::open(&events, "stream=c-0");
    let mut category = Pokes::open(&events, "category=c&position=2");
    let mut all = Pokes::open(&events, "all=true&position=0");
    let mut resumed = Pokes::open(&events, "all=true&lastEventId=2");
    assert_eq!(stream.chunk(), poke("c-0", 0, 1));
    assert_eq!(stream.chunk(), poke("c-0", 1, 3));
    assert_eq!(category.chunk(), poke("c-1", 0, 2));
    assert_eq!(category.chunk(), poke("c-0", 1, 3));
    assert_eq!(resumed.chunk(), poke("c-0", 1, 3));
    events.call(json!(["stream.write", "d-0", {"type": "t", "data": {}}]));
    events.call(json!(["stream.write", "c-0", {"type": "t", "data": {}}]));
    assert_eq!(stream.chunk(), poke("c-0", 2, 5));
    assert_eq!(category.chunk(), poke("c-0", 2, 5));
    for subscriber in [&mut all, &mut resumed] {
        assert_eq!(subscriber.chunk(), poke("d-0", 0, 4));
        assert_eq!(subscriber.chunk(), poke("c-0", 2, 5));
    }
}

fn a_wrong_subscription_is_told_as_plain_text(events: Events) {
    for (query, text) in [
        ("", "Either 'stream', 'category', or 'all=true' parameter required"),
        (
            "stream=&category=&all=",
            "Either 'stream', 'category', or 'all=true' parameter required",
        ),
        (
            "all=TRUE",
            "Either 'stream', 'category', or 'all=true' parameter required",
        ),
        ("all=1", "Either 'stream', 'category', or 'all=true' parameter required"),
        (
            "all=true&stream=s&category=c",
            "Cannot combine 'all' with 'stream' or 'category'",
        ),
        (
            "stream=s&category=c&position=x",
            "Cannot specify both 'stream' and 'category'",
        ),
        ("stream=s&position=x&consumer=x", "Invalid position parameter"),
        ("category=c&consumer=-1&size=x", "Invalid consumer parameter"),
        ("category=c&consumer=1&size=x", "Invalid size parameter"),
        ("category=c&size=-2", "Invalid size parameter"),
        (
            "category=c&consumer=2&size=2",
            "Invalid consumer group: member must be < size",
        ),
        ("category=c&consumer=1", "Invalid consumer group: member must be < size"),
    ] {
        let answer = events.api.get(&format!("/subscribe?{query}&token={TOKEN}"));
        assert_eq!((answer.status, answer.text.as_str()), (400, text), "{query}");
        assert_eq!(answer.headers["content-type"], "text/plain; charset=utf-8");
    }
}

/// The number of connections is limited by the listener; the engine is not involved.
#[test]
fn a_thousand_open_subscriptions_do_not_hold_up_the_end() {
    let mut events = Events::in_memory();
    let mut open: Vec<Pokes> = (0..1000)
        .map(|n| Pokes::open(&events, &format!("stream=s-{n}")))
        .collect();
    events.process.signal("TERM").unwrap();
    assert!(events.process.wait().unwrap().success());
    // Each has ended; output that a loaded machine cannot write in time is cut off.
    let ends: Vec<String> = open.iter_mut().map(Pokes::end).collect();
    assert!(ends.iter().all(|end| end.is_empty() || end == "0\r\n\r\n"), "{ends:?}");
    std::net::TcpListener::bind(&events.address).unwrap();
}

fn write(events: &Events, stream: &str) {
    events.call(json!(["stream.write", stream, {"type": "t", "data": {}}]));
}

fn the_head_and_each_poke_are_what_known_clients_read(events: Events) {
    write(&events, "a-1");
    for query in ["stream=a-1", "category=a", "all=true&catchup=true"] {
        let mut pokes = Pokes::open(&events, query);
        for header in [
            "content-type: text/event-stream",
            "cache-control: no-cache",
            "connection: keep-alive",
            "access-control-allow-origin: *",
            "transfer-encoding: chunked",
        ] {
            assert!(
                pokes.head.contains(&format!("\r\n{header}\r\n")),
                "{header} in {}",
                pokes.head
            );
        }
        assert!(pokes.head.contains("\r\nserver: Thalweg/"), "{}", pokes.head);
        // The exact bytes: one space after each colon, no empty block, one chunk.
        let data = "data: {\"stream\":\"a-1\",\"position\":0,\"globalPosition\":1}\n\n";
        assert_eq!(pokes.chunk(), format!("event: poke\nid: 1\n{data}"));
    }
    // A name is JSON in the data, even with line ends, which would end an event.
    write(&events, "q\"\\\n\r-é");
    let mut pokes = Pokes::open(&events, "all=true&position=2&catchup=true");
    let data = "data: {\"stream\":\"q\\\"\\\\\\n\\r-é\",\"position\":0,\"globalPosition\":2}\n\n";
    assert_eq!(pokes.chunk(), format!("event: poke\nid: 2\n{data}"));
    // Values are decoded like forms; unencoded ones are used unchanged.
    for (stream, query) in [
        ("b c+d-1", "stream=b+c%2Bd-1"),
        ("é:/-1", "stream=é:/-1"),
        ("50%-1", "stream=50%-1"),
    ] {
        write(&events, stream);
        let poke = Pokes::open(&events, query).chunk();
        assert!(
            poke.contains(&format!("{{\"stream\":\"{stream}\",\"position\":0,")),
            "{poke}"
        );
    }
}

fn a_subscription_begins_where_it_is_told_to(events: Events) {
    // Global positions 1 to 9 in three streams of two categories: positions 0 to 2 in each.
    for n in 0..9 {
        write(&events, ["a-1", "a-2", "b-1"][n % 3]);
    }
    let place = |global: u64| {
        poke(
            ["a-1", "a-2", "b-1"][(global as usize - 1) % 3],
            (global - 1) / 3,
            global,
        )
    };
    let next = |n: u64| poke("a-1", 2 + n, 9 + n);
    let last_event_id = |id: &str| format!("last-event-id: {id}\r\n");
    let cases: Vec<(&str, String, Vec<u64>)> = vec![
        ("stream=a-1", String::new(), vec![1, 4, 7]),
        ("stream=a-1&position=0", String::new(), vec![1, 4, 7]),
        ("stream=a-1&position=-3", String::new(), vec![1, 4, 7]),
        ("stream=a-1&position=2", String::new(), vec![7]),
        ("stream=a-1&position=3", String::new(), vec![]),
        ("stream=a-1&position=", String::new(), vec![1, 4, 7]),
        ("stream=a-1&position=2", last_event_id("1"), vec![4, 7]),
        ("stream=a-1&lastEventId=3", String::new(), vec![4, 7]),
        ("stream=a-1", last_event_id("9"), vec![]),
        ("category=a", String::new(), vec![1, 2, 4, 5, 7, 8]),
        ("category=a&position=4", String::new(), vec![4, 5, 7, 8]),
        ("category=a&position=9", last_event_id("4"), vec![5, 7, 8]),
        ("category=a&position=10", String::new(), vec![]),
        ("category=a&consumer=0", String::new(), vec![1, 2, 4, 5, 7, 8]),
        ("category=a&size=0", String::new(), vec![1, 2, 4, 5, 7, 8]),
        // No history, wherever it starts, unless requested.
        ("all=true", String::new(), vec![]),
        ("all=true&position=0", String::new(), vec![]),
        ("all=true&position=5", String::new(), vec![]),
        ("all=true&catchup=true", String::new(), (1..10).collect()),
        ("all=true&catchup=true&position=7", String::new(), vec![7, 8, 9]),
        ("all=true&position=8", last_event_id("6"), vec![7, 8, 9]),
        ("all=true&lastEventId=8", last_event_id("none"), vec![9]),
    ];
    let mut open: Vec<_> = cases
        .iter()
        .map(|(query, headers, expected)| {
            let mut pokes = Pokes::open_with(&events, query, headers);
            for global in expected {
                assert_eq!(pokes.chunk(), place(*global), "{query} {headers}");
            }
            (query, pokes)
        })
        .collect();
    // Positions in the future.
    let mut later = Pokes::open(&events, "all=true&position=11");
    let mut later_of_stream = Pokes::open(&events, "stream=a-1&position=4");
    write(&events, "a-1");
    write(&events, "a-1");
    for (query, pokes) in &mut open {
        assert_eq!((pokes.chunk(), pokes.chunk()), (next(1), next(2)), "{query}");
    }
    assert_eq!((later.chunk(), later_of_stream.chunk()), (next(2), next(2)));
}

fn members_of_a_group_are_told_of_their_streams_only(events: Events) {
    for (id, _) in MEMBERS {
        write(&events, &format!("g-{id}+more"));
    }
    for stream in ["g", "g-", "g-+x"] {
        write(&events, stream);
    }
    let mut open = Vec::new();
    for size in [2, 3, 4_usize] {
        for member in 0..size {
            // The first member need not be named.
            let query = match member {
                0 => format!("category=g&size={size}"),
                _ => format!("category=g&consumer={member}&size={size}"),
            };
            let own = |(_, (_, members)): &(u64, (&str, [u64; 3]))| members[size - 2] == member as u64;
            let streams: Vec<(u64, String)> = (1_u64..)
                .zip(MEMBERS)
                .filter(own)
                .map(|(global, (id, _))| (global, format!("g-{id}+more")))
                .collect();
            open.push((query, streams));
        }
    }
    let mut subscribers: Vec<_> = open
        .iter()
        .map(|(query, streams)| {
            let mut pokes = Pokes::open(&events, query);
            for (global, stream) in streams {
                assert_eq!(pokes.chunk(), poke(stream, 0, *global), "{query}");
            }
            (pokes, query, streams)
        })
        .collect();
    write(&events, "g");
    for (id, _) in MEMBERS {
        write(&events, &format!("g-{id}+more"));
    }
    for (pokes, query, streams) in &mut subscribers {
        for (global, stream) in *streams {
            assert_eq!(pokes.chunk(), poke(stream, 1, global + 12), "{query}");
        }
    }
}

/// The event, its id, and its data.
fn fields(event: &str) -> (&str, u64, Value) {
    let mut lines = event.strip_suffix("\n\n").unwrap().split('\n');
    let mut field = |name: &str| lines.next().unwrap().strip_prefix(name).unwrap();
    let (name, id, data) = (field("event: "), field("id: "), field("data: "));
    assert_eq!(lines.next(), None, "no line more");
    (name, id.parse().unwrap(), serde_json::from_str(data).unwrap())
}

fn whole_messages_come_as_they_are_read_however_long_they_are(events: Events) {
    let large = "é".repeat(40 << 10);
    events.call(json!(["stream.write", "d-1", {"type": "t", "data": {"n": 1.10, "x": "y"}, "metadata": {"m": 1}}]));
    events.call(json!(["stream.write", "d-1", {"type": "u", "data": {"x": large}}]));
    let mut open: Vec<Pokes> = [
        "stream=d-1&data=true",
        "category=d&data=true",
        "all=true&catchup=true&data=true",
    ]
    .map(|query| Pokes::open(&events, query))
    .into();
    events.call(json!(["stream.write", "d-1", {"type": "v", "data": {"x": large, "y": large}}]));
    write(&events, "d-1");
    let rows = events.call(json!(["category.get", "d"]));
    for pokes in &mut open {
        for global in 1..=4 {
            let event = pokes.event();
            assert_eq!(fields(&event), ("message", global, rows[global as usize - 1].clone()));
        }
    }
    let mut again = Pokes::open(&events, "category=d&data=true&position=2");
    let (first, second) = (again.chunk(), again.chunk());
    assert!(
        first.len() <= 16 << 10 && !first.ends_with('\n') && second.len() <= 16 << 10,
        "{}",
        first.len()
    );
}

fn what_is_not_wanted_is_not_told(events: Events) {
    let mut wanted = Vec::new();
    let queries = [
        "category=w&types=A,C",
        "all=true&catchup=true&types=A,C",
        "stream=w-1&types=A,,C",
        "category=w&correlation=cart",
        "all=true&catchup=true&correlation=cart",
        "stream=w-1&correlation=cart",
    ];
    let write_all = |from: u64| {
        for (n, (kind, about)) in (from..).zip([("A", "cart-1"), ("B", "cart"), ("C", "carts-1"), ("D", "")]) {
            let metadata = json!({"correlationStreamName": about});
            let written = events.call(json!(["stream.write", "w-1", {"type": kind, "data": {}, "metadata": metadata}]));
            assert_eq!(written["position"], n);
        }
    };
    let expected = |query: &str, from: u64| {
        if query.contains("types") {
            [from, from + 2]
        } else {
            [from, from + 1]
        }
    };
    write_all(0);
    for query in queries {
        let mut pokes = Pokes::open(&events, query);
        for position in expected(query, 0) {
            assert_eq!(pokes.chunk(), poke("w-1", position, position + 1), "{query}");
        }
        wanted.push((query, pokes));
    }
    write_all(4);
    for (query, pokes) in &mut wanted {
        for position in expected(query, 4) {
            assert_eq!(pokes.chunk(), poke("w-1", position, position + 1), "{query}");
        }
    }
}

fn of_pokes_that_wait_the_newest_of_each_stream_is_told(events: Events) {
    let messages = vec![json!({"type": "t", "data": {}}); 400];
    for stream in ["k-1", "k-2"] {
        events.call(json!(["stream.append", stream, messages]));
    }
    for query in ["category=k&coalesce=true", "all=true&catchup=true&coalesce=true"] {
        let mut pokes = Pokes::open(&events, query);
        assert_eq!(
            (pokes.chunk(), pokes.chunk()),
            (poke("k-1", 399, 400), poke("k-2", 399, 800)),
            "{query}"
        );
    }
    let mut pokes = Pokes::open(&events, "stream=k-1&coalesce=true");
    assert_eq!(pokes.chunk(), poke("k-1", 399, 400));
    write(&events, "k-1");
    assert_eq!(pokes.chunk(), poke("k-1", 400, 801));
    // Other subscribers get a poke for each.
    let mut pokes = Pokes::open(&events, "stream=k-2&coalesce=false");
    (0..400).for_each(|n| assert_eq!(pokes.chunk(), poke("k-2", n, 401 + n)));
}

fn who_does_not_read_for_long_misses_nothing(events: Events) {
    // Far more than sockets and server can buffer, of existing messages and of new ones.
    let append = || {
        let messages = vec![json!({"type": "t", "data": {}}); 10_000];
        events.call(json!([
            "stream.append",
            "slow-0123456789012345678901234567890123456789",
            messages
        ]));
    };
    append();
    let queries = [
        "stream=slow-0123456789012345678901234567890123456789",
        "category=slow",
        "all=true&catchup=true",
    ];
    let mut open = queries.map(|query| Pokes::open(&events, query));
    append();
    append();
    for pokes in &mut open {
        for n in 0..30_000 {
            let expected = poke("slow-0123456789012345678901234567890123456789", n, n + 1);
            assert_eq!(pokes.chunk(), expected);
        }
    }
}

fn what_is_imported_above_a_subscriber_is_told(events: Events) {
    write(&events, "i-1");
    let mut open = ["stream=i-1", "category=i", "all=true"].map(|query| Pokes::open(&events, query));
    assert_eq!(
        (open[0].chunk(), open[1].chunk()),
        (poke("i-1", 0, 1), poke("i-1", 0, 1))
    );
    // With gaps, and out of order.
    let lines = record("i-1", 5, 90) + &record("i-1", 3, 50);
    assert_eq!(events.import("", &lines)[0]["done"], true);
    for pokes in &mut open {
        assert_eq!((pokes.chunk(), pokes.chunk()), (poke("i-1", 3, 50), poke("i-1", 5, 90)));
    }
    write(&events, "i-1");
    for pokes in &mut open {
        assert_eq!(pokes.chunk(), poke("i-1", 6, 91));
    }
}

fn a_subscription_ends_properly_with_its_namespace_and_with_the_server(mut events: Events) {
    let own = token("own", '1');
    events.call(json!(["ns.create", "own", {"token": own}]));
    // A filter without matches gets only the end.
    let queries = [
        "stream=s-1",
        "category=s",
        "all=true",
        "category=s-1",
        "all=true&correlation=s-1",
    ];
    let told = [true, true, true, false, false];
    let mut open = queries.map(|query| Pokes::open(&events, &format!("{query}&token={own}")));
    let mut others = queries.map(|query| Pokes::open(&events, query));
    let write = json!(["stream.write", "s-1", {"type": "t", "data": {}}]);
    assert_eq!(as_token(&events, &own, &write).0, 200);
    for (pokes, told) in open.iter_mut().zip(told) {
        if told {
            assert_eq!(pokes.chunk(), poke("s-1", 0, 1));
        }
    }
    events.call(json!(["ns.delete", "own"]));
    open.iter_mut().for_each(|pokes| assert_eq!(pokes.chunk(), ""));
    events.call(write);
    events.process.signal("TERM").unwrap();
    assert!(events.process.wait().unwrap().success());
    for (pokes, told) in others.iter_mut().zip(told) {
        // Its own namespace's message, but nothing of the other's.
        let first = pokes.chunk();
        assert!(
            first.is_empty() || told && first == poke("s-1", 0, 1) && pokes.chunk().is_empty(),
            "{first}"
        );
    }
}

/// The connection's own timer sends it, without reading from any store.
#[test]
fn after_a_quarter_of_a_minute_of_silence_each_subscriber_is_told_that_it_stands() {
    let events = Events::in_memory();
    let queries = [
        "stream=s-1",
        "category=s",
        "all=true",
        "category=s-1",
        "all=true&data=true",
    ];
    let mut open = queries.map(|query| Pokes::open(&events, query));
    open.iter_mut().for_each(|pokes| assert_eq!(pokes.chunk(), ": hb\n\n"));
    write(&events, "s-1");
    for pokes in &mut open[..3] {
        assert_eq!(pokes.chunk(), poke("s-1", 0, 1));
    }
}
