//! Several servers with one database.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use thalweg_events::{
    Append, CategoryRead, Direction, EventsError, ExpectedVersion, Health, Namespace, NewEvent, NewNamespace, Scopes,
    Store, new_token,
};
use thalweg_events_postgres::{PostgresOptions, PostgresStore};

use crate::server::Server;

/// Longer than any step takes; reaching it fails the test.
const PATIENCE: Duration = Duration::from_secs(60);

pub async fn open(server: &Server) -> PostgresStore {
    PostgresStore::open(&server.url(), PostgresOptions::default())
        .await
        .unwrap()
}

pub async fn create(store: &PostgresStore, name: &str) -> String {
    let (token, text) = new_token(name).unwrap();
    let new = NewNamespace {
        name: name.to_owned(),
        description: String::new(),
        metadata: None,
        digest: *token.digest(),
        scopes: Scopes::READ_WRITE,
    };
    store.create(new).await.unwrap();
    text
}

pub async fn write(namespace: &Arc<dyn Namespace>, stream: &str, data: &str) -> Result<u64, EventsError> {
    let append = Append {
        stream,
        expected: ExpectedVersion::Any,
        events: vec![NewEvent {
            id: None,
            kind: "T",
            data,
            metadata: None,
        }],
    };
    Ok(namespace.append(&[append]).await?[0].first_global)
}

pub async fn read(namespace: &Arc<dyn Namespace>, from: u64) -> Vec<(u64, String)> {
    let (mut found, mut at) = (Vec::new(), Some(from));
    while let Some(from) = at {
        let page = CategoryRead {
            category: None,
            from: Some(from),
            direction: Direction::Forward,
            max: 1000,
            correlation: None,
            member: None,
            types: &[],
        };
        let page = namespace.read_category(page).await.unwrap();
        found.extend(
            page.events
                .iter()
                .map(|stored| (stored.event().global, stored.event().data.to_owned())),
        );
        at = page.next;
    }
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_on_each_server_see_what_all_servers_write_once_and_in_order() {
    const WRITERS: usize = 4;
    const EACH: usize = 100;
    let server = Server::start();
    let stores = [Arc::new(open(&server).await), Arc::new(open(&server).await)];
    create(&stores[0], "both").await;
    let mut readers = Vec::new();
    for store in &stores {
        let namespace = store.namespace("both").await.unwrap();
        readers.push(tokio::spawn(async move {
            let mut watch = namespace.watch();
            let mut found: Vec<(u64, String)> = Vec::new();
            while found.len() < 2 * WRITERS * EACH {
                let _ = tokio::time::timeout(Duration::from_secs(5), watch.changed()).await;
                found.extend(read(&namespace, found.len() as u64 + 1).await);
            }
            found
        }));
    }
    let mut writers = Vec::new();
    for (s, store) in stores.iter().enumerate() {
        for w in 0..WRITERS {
            let namespace = store.namespace("both").await.unwrap();
            writers.push(tokio::spawn(async move {
                for n in 0..EACH {
                    let stream = format!("a-{}", n % 3);
                    write(&namespace, &stream, &format!("[{s},{w},{n}]")).await.unwrap();
                }
            }));
        }
    }
    for writer in writers {
        writer.await.unwrap();
    }
    for reader in readers {
        let found = reader.await.unwrap();
        let globals: Vec<u64> = found.iter().map(|(global, _)| *global).collect();
        assert_eq!(globals, (1..=(2 * WRITERS * EACH) as u64).collect::<Vec<_>>());
        let data: HashSet<&String> = found.iter().map(|(_, data)| data).collect();
        assert_eq!(data.len(), found.len(), "each message once");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_revoked_and_a_namespace_deleted_on_one_server_end_on_the_other() {
    let server = Server::start();
    let (one, other) = (open(&server).await, open(&server).await);
    let text = create(&one, "shared").await;
    let token = thalweg_events::Token::parse(&text).unwrap();
    let grant = other.authorize(&token).await.unwrap().unwrap();
    let mut valid = grant.valid.clone();
    let id = other.tokens("shared").await.unwrap()[0].id.clone();
    assert!(one.revoke_token("shared", &id).await.unwrap());
    let ended = tokio::time::timeout(Duration::from_secs(20), valid.changed())
        .await
        .unwrap();
    assert!(ended.is_err(), "a revoked token ends what was granted by it");
    assert!(other.authorize(&token).await.unwrap().is_none());
    let mut watch = other.namespace("shared").await.unwrap().watch();
    one.delete("shared").await.unwrap();
    tokio::time::timeout(Duration::from_secs(20), async {
        while watch.changed().await.is_ok() {}
    })
    .await
    .unwrap();
    let gone = other.namespace("shared").await;
    assert!(matches!(gone, Err(EventsError::NamespaceNotFound(_))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_no_notification_told_is_found_by_looking() {
    let server = Server::start();
    let (one, other) = (open(&server).await, open(&server).await);
    let token = thalweg_events::Token::parse(&create(&one, "shared").await).unwrap();
    let namespace = other.namespace("shared").await.unwrap();
    let mut watch = namespace.watch();
    let mut valid = other.authorize(&token).await.unwrap().unwrap().valid.clone();
    // Replaces the database's own function.
    server.sql(
        "CREATE TABLE thalweg_events.unheard (payload text); \
         CREATE FUNCTION thalweg_events.pg_notify(text, text) RETURNS void LANGUAGE sql \
         AS 'INSERT INTO thalweg_events.unheard VALUES ($2)'",
    );
    let global = write(&one.namespace("shared").await.unwrap(), "a-1", "{}")
        .await
        .unwrap();
    while watch.borrow_and_update().last < global {
        tokio::time::timeout(PATIENCE, watch.changed()).await.unwrap().unwrap();
    }
    assert_eq!(read(&namespace, 1).await, [(global, "{}".to_owned())]);
    let id = one.tokens("shared").await.unwrap()[0].id.clone();
    assert!(one.revoke_token("shared", &id).await.unwrap());
    let ended = tokio::time::timeout(PATIENCE, valid.changed()).await.unwrap();
    assert!(ended.is_err(), "a revoked token ends what was granted by it");
    one.delete("shared").await.unwrap();
    let closed = async { while watch.changed().await.is_ok() {} };
    tokio::time::timeout(PATIENCE, closed).await.unwrap();
    let kinds = server.sql("SELECT string_agg(DISTINCT left(payload, 1), '') FROM thalweg_events.unheard");
    assert_eq!(kinds, "dmt", "a message, a token and a namespace were told to nobody");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_name_the_place_and_never_the_password_and_a_newer_schema_is_refused() {
    let server = Server::start();
    let nobody = "postgres://thalweg:hidden-word@127.0.0.1:1/postgres";
    let error = PostgresStore::open(nobody, PostgresOptions::default())
        .await
        .err()
        .unwrap()
        .to_string();
    assert!(
        error.starts_with("cannot reach the database at 127.0.0.1:1: "),
        "{error}"
    );
    assert!(!error.contains("hidden-word"), "{error}");
    let store = open(&server).await;
    assert_eq!((store.backend(), store.durability()), ("postgres", "fsync"));
    drop(store);
    server.sql("ALTER ROLE thalweg SET synchronous_commit = off");
    assert_eq!(open(&server).await.durability(), "relaxed");
    server.sql("UPDATE thalweg_events.version SET version = 99");
    let error = PostgresStore::open(&server.url(), PostgresOptions::default())
        .await
        .err()
        .unwrap()
        .to_string();
    assert!(error.contains("has version 99"), "{error}");
}

/// Without a timeout, callers would wait as long as the database is silent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_for_a_database_that_says_nothing_any_more_is_told_and_it_goes_on_when_it_speaks() {
    let server = Server::start();
    // Another host answers, even if only with a refusal: it must not hide the silence of the first.
    let refuses = tokio::net::TcpSocket::new_v4().unwrap();
    refuses.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let (_, place) = server
        .url()
        .split_once('@')
        .map(|(user, place)| (user.to_owned(), place.to_owned()))
        .unwrap();
    let (host, database) = place.split_once('/').unwrap();
    let both = format!("{host},127.0.0.1:{}/{database}", refuses.local_addr().unwrap().port());
    let url = server.url().replace(&place, &both);
    let store = PostgresStore::open(&url, PostgresOptions::default()).await.unwrap();
    create(&store, "one").await;
    let namespace = store.namespace("one").await.unwrap();
    write(&namespace, "a-1", "1").await.unwrap();
    server.freeze(true);
    let began = Instant::now();
    let asked: Vec<_> = (0..40)
        .map(|n| {
            let namespace = namespace.clone();
            tokio::spawn(async move {
                match n % 2 {
                    0 => write(&namespace, "a-1", "lost").await.err(),
                    _ => namespace.info().await.err(),
                }
            })
        })
        .collect();
    for asked in asked {
        let told = tokio::time::timeout(PATIENCE, asked).await.unwrap().unwrap();
        let why = told.expect("nobody answers");
        assert!(matches!(why, EventsError::Unavailable(_)), "{why}");
        // 1 s until the next poll, 10 s for the poll, and 5 s for a new connection; the rest is for a slow machine.
        assert!(began.elapsed() < Duration::from_secs(40), "{why}");
    }
    assert!(matches!(store.health(), Health::ReadOnly(_)), "{:?}", store.health());
    let began = Instant::now();
    let opened = PostgresStore::open(&server.url(), PostgresOptions::default()).await;
    let why = opened.err().unwrap().to_string();
    assert!(why.ends_with("it did not answer within 5s"), "{why}");
    assert!(began.elapsed() < Duration::from_secs(20));
    server.freeze(false);
    until("it is healthy", || store.health() == Health::Healthy).await;
    // A store that reports itself healthy must answer.
    write(&namespace, "a-1", "2").await.unwrap();
    let kept: Vec<String> = read(&namespace, 1).await.into_iter().map(|(_, data)| data).collect();
    // The fate of unanswered writes is unknown; an answered write is stored once.
    assert_eq!(kept.first().unwrap(), "1");
    assert_eq!(kept.iter().filter(|data| *data == "2").count(), 1, "{kept:?}");
}

/// Whoever listens to the database cannot find that it is silent by a poll if its connection was lost before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_is_told_too_when_the_database_falls_silent_while_nobody_listens_to_it() {
    let server = Server::start();
    let store = open(&server).await;
    create(&store, "one").await;
    let namespace = store.namespace("one").await.unwrap();
    write(&namespace, "a-1", "1").await.unwrap();
    let mut listens = String::new();
    until("it listens", || {
        let polls = "SELECT pid FROM pg_stat_activity WHERE query LIKE '%tokens_change FROM namespaces WHERE id = ANY%' \
                     AND pid <> pg_backend_pid()";
        listens = server.sql(polls);
        !listens.is_empty()
    })
    .await;
    server.close_and_end(&listens);
    until("it is lost", || matches!(store.health(), Health::ReadOnly(_))).await;
    // The other connection is as good as before.
    write(&namespace, "a-1", "2").await.unwrap();
    server.freeze(true);
    let told = tokio::time::timeout(PATIENCE, write(&namespace, "a-1", "3")).await;
    let why = told.expect("it waits for ever").unwrap_err();
    assert!(matches!(why, EventsError::Unavailable(_)), "{why}");
    server.freeze(false);
    until("it is healthy", || store.health() == Health::Healthy).await;
    write(&namespace, "a-1", "4").await.unwrap();
}

/// A locked table, as during a change of its columns.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_locked_is_waited_for_ten_seconds_on_ten_connections_and_then_told() {
    let server = Server::start();
    let store = open(&server).await;
    create(&store, "one").await;
    let namespace = store.namespace("one").await.unwrap();
    write(&namespace, "a-1", "1").await.unwrap();
    let lock = "BEGIN; LOCK TABLE thalweg_events.namespaces IN ACCESS EXCLUSIVE MODE; SELECT pg_sleep(16); COMMIT";
    let connections = || server.sql("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'thalweg'");
    std::thread::scope(|scope| {
        let locked = scope.spawn(|| server.sql(lock));
        tokio::task::block_in_place(|| {
            let held = "SELECT count(*) FROM pg_locks WHERE mode = 'AccessExclusiveLock' AND granted \
                        AND relation = 'thalweg_events.namespaces'::regclass";
            let until = Instant::now() + PATIENCE;
            while server.sql(held) == "0" {
                assert!(Instant::now() < until, "the table is not locked");
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let asked: Vec<_> = (0..40)
            .map(|_| {
                let namespace = namespace.clone();
                tokio::spawn(async move { namespace.info().await.err().map(|why| why.to_string()) })
            })
            .collect();
        let told = tokio::task::block_in_place(|| {
            // All have asked by then, and none is refused yet: no more connections are opened.
            std::thread::sleep(Duration::from_secs(5));
            assert_eq!(connections(), "11", "ten, and the one that listens");
            let until = Instant::now() + PATIENCE;
            while !matches!(store.health(), Health::ReadOnly(why) if why.contains("55P03")) {
                assert!(Instant::now() < until, "{:?}", store.health());
                std::thread::sleep(Duration::from_millis(20));
            }
            // Those of after the first refusals wait now.
            std::thread::sleep(Duration::from_secs(3));
            assert_eq!(
                connections(),
                "11",
                "who does not wait any more leaves no connection behind"
            );
            locked.join().unwrap();
            tokio::runtime::Handle::current().block_on(futures::future::join_all(asked))
        });
        let told: Vec<Option<String>> = told.into_iter().map(Result::unwrap).collect();
        let refused = told
            .iter()
            .flatten()
            .filter(|why| why.contains("(SQLSTATE 55P03)"))
            .count();
        assert!(refused >= 10, "{told:?}");
        assert_eq!(refused, told.iter().flatten().count(), "nothing else fails: {told:?}");
        assert!(refused < 40, "who came later has waited for a shorter time: {told:?}");
    });
    until("it is healthy", || store.health() == Health::Healthy).await;
    write(&namespace, "a-1", "2").await.unwrap();
}

async fn until(what: &str, mut reached: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !reached() {
        assert!(Instant::now() < until, "never reached: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
