use std::sync::atomic::{AtomicI64, Ordering};

use super::*;
use crate::subscription::{DeliveryStrategy, SubscriptionSource};
use crate::test_double::NamespaceDouble;

const TIMEOUT: Micros = 30_000_000;

/// A namespace and a server for it.
struct Scene {
    double: Arc<NamespaceDouble>,
    namespace: Arc<dyn Namespace>,
    time: Arc<AtomicI64>,
    server: Subscriptions,
}

fn scene() -> Scene {
    let double = Arc::new(NamespaceDouble::new("a"));
    let time = Arc::new(AtomicI64::new(1_000_000));
    Scene {
        namespace: double.clone(),
        server: server(&time),
        double,
        time,
    }
}

fn server(time: &Arc<AtomicI64>) -> Subscriptions {
    let time = time.clone();
    Subscriptions::new(Arc::new(move || time.load(Ordering::Relaxed)))
}

fn settings(source: SubscriptionSource) -> SubscriptionSettings {
    SubscriptionSettings {
        source,
        from: 1,
        strategy: DeliveryStrategy::ByStream,
        ack_timeout: TIMEOUT,
        max_attempts: 5,
        max_in_flight: 100,
        types: Vec::new(),
        correlation: None,
    }
}

fn orders() -> SubscriptionSettings {
    settings(SubscriptionSource::Category("order".into()))
}

fn ask(max: usize) -> FetchRequest {
    FetchRequest {
        consumer: "c".into(),
        max,
        held: Vec::new(),
    }
}

impl Scene {
    async fn create(&self, settings: SubscriptionSettings) {
        self.server.create(&self.namespace, "s", settings).await.unwrap();
    }

    async fn write(&self, streams: &[&str]) {
        for stream in streams {
            self.double.write(stream, "Created", None).await;
        }
    }

    async fn fetch_from(&self, server: &Subscriptions, max: usize) -> Vec<(u64, Lease)> {
        let fetched = server
            .fetch(&self.namespace, "s", ask(max), Instant::now())
            .await
            .unwrap();
        let messages = fetched.messages.iter();
        messages
            .map(|message| (message.stored.event().global, message.lease))
            .collect()
    }

    async fn fetch(&self, max: usize) -> Vec<(u64, Lease)> {
        self.fetch_from(&self.server, max).await
    }

    async fn ack(&self, lease: Lease) -> SettleOutcome {
        self.server.ack(&self.namespace, "s", vec![lease]).await.unwrap()
    }

    fn puts(&self) -> usize {
        self.double.puts.load(Ordering::Relaxed)
    }
}

fn globals(fetched: &[(u64, Lease)]) -> Vec<u64> {
    fetched.iter().map(|(global, _)| *global).collect()
}

#[tokio::test]
async fn consumers_share_a_subscription_and_another_process_goes_on_with_it() {
    let scene = scene();
    scene.create(orders()).await;
    scene
        .write(&["order-1", "order-1", "cart-1", "order-2", "order-3"])
        .await;
    let first = scene.fetch(2).await;
    assert_eq!(globals(&first), [1, 4]);
    assert_eq!(globals(&scene.fetch(10).await), [5]);
    assert_eq!(scene.ack(first[0].1).await.settled, 1);
    let other = server(&scene.time);
    assert_eq!(globals(&scene.fetch_from(&other, 10).await), [2]);
    let info = other.info(&scene.namespace, "s").await.unwrap();
    assert_eq!((info.position, info.in_flight), (1, 3));
    scene.time.fetch_add(TIMEOUT, Ordering::Relaxed);
    assert_eq!(globals(&scene.fetch_from(&other, 10).await), [2, 4, 5]);
    assert_eq!(scene.ack(first[1].1).await.stale, [first[1].1]);
}

#[tokio::test]
async fn two_servers_never_hand_out_a_message_twice() {
    let scene = scene();
    scene
        .create(SubscriptionSettings {
            strategy: DeliveryStrategy::RoundRobin,
            ..orders()
        })
        .await;
    let (a, b) = (server(&scene.time), server(&scene.time));
    for n in 0..50 {
        scene.double.write(&format!("order-{n}"), "Created", None).await;
    }
    scene.double.overtake(3);
    let fetches = (0..50).map(|n| scene.fetch_from(if n % 2 == 0 { &a } else { &b }, 1));
    let mut tasks = Vec::new();
    for fetch in fetches {
        tasks.push(Box::pin(fetch));
    }
    let mut all = Vec::new();
    for fetched in join(tasks).await {
        all.extend(globals(&fetched));
    }
    all.sort_unstable();
    assert_eq!(all, (1..=50).collect::<Vec<u64>>());
}

/// Runs all futures concurrently.
async fn join<F: Future>(mut tasks: Vec<std::pin::Pin<Box<F>>>) -> Vec<F::Output> {
    let mut done: Vec<Option<F::Output>> = tasks.iter().map(|_| None).collect();
    std::future::poll_fn(|context| {
        for (task, done) in tasks.iter_mut().zip(&mut done) {
            if done.is_none()
                && let std::task::Poll::Ready(output) = task.as_mut().poll(context)
            {
                *done = Some(output);
            }
        }
        match done.iter().all(Option::is_some) {
            true => std::task::Poll::Ready(()),
            false => std::task::Poll::Pending,
        }
    })
    .await;
    done.into_iter().flatten().collect()
}

#[tokio::test]
async fn acknowledgements_that_come_together_are_stored_once_and_an_empty_fetch_stores_nothing() {
    let scene = scene();
    scene
        .create(SubscriptionSettings {
            strategy: DeliveryStrategy::RoundRobin,
            ..orders()
        })
        .await;
    for n in 0..40 {
        scene.double.write(&format!("order-{n}"), "Created", None).await;
    }
    let fetched = scene.fetch(40).await;
    let before = scene.puts();
    let acks = fetched.iter().map(|(_, lease)| Box::pin(scene.ack(*lease))).collect();
    assert!(join(acks).await.iter().all(|settled| settled.settled == 1));
    assert_eq!(scene.puts() - before, 1);
    assert_eq!(scene.fetch(10).await, []);
    assert_eq!(scene.ack(fetched[0].1).await.settled, 0);
    assert_eq!(scene.puts() - before, 1);
    assert_eq!(scene.server.info(&scene.namespace, "s").await.unwrap().position, 40);
}

#[tokio::test]
async fn what_could_not_be_stored_was_not_done() {
    let scene = scene();
    scene.create(orders()).await;
    scene.write(&["order-1"]).await;
    scene.double.fail(1);
    let failed = scene.server.fetch(&scene.namespace, "s", ask(1), Instant::now()).await;
    assert!(matches!(failed.unwrap_err(), EventsError::Unavailable(_)));
    let fetched = scene.fetch(1).await;
    assert_eq!(globals(&fetched), [1]);
    scene.double.fail(1);
    assert!(
        scene
            .server
            .ack(&scene.namespace, "s", vec![fetched[0].1])
            .await
            .is_err()
    );
    assert_eq!(scene.ack(fetched[0].1).await.settled, 1);
}

#[tokio::test]
async fn a_fetch_waits_for_a_message_and_for_one_that_is_freed() {
    let scene = Arc::new(scene());
    scene.create(orders()).await;
    let wait = |scene: &Arc<Scene>| {
        let scene = scene.clone();
        tokio::spawn(async move {
            let until = Instant::now() + Duration::from_secs(60);
            let fetched = scene.server.fetch(&scene.namespace, "s", ask(1), until).await?;
            Ok::<_, EventsError>((fetched.messages[0].lease, fetched.messages[0].attempt))
        })
    };
    let waiting = wait(&scene);
    tokio::task::yield_now().await;
    scene.write(&["order-1", "order-1"]).await;
    let (lease, attempt) = waiting.await.unwrap().unwrap();
    assert_eq!((lease.global, attempt), (1, 1));
    let waiting = wait(&scene);
    tokio::task::yield_now().await;
    let retry = Nack::Retry {
        delay: 0,
        reason: "no".into(),
    };
    scene
        .server
        .nack(&scene.namespace, "s", vec![lease], retry)
        .await
        .unwrap();
    let (lease, attempt) = waiting.await.unwrap().unwrap();
    assert_eq!((lease.global, attempt), (1, 2));
    let waiting = wait(&scene);
    tokio::task::yield_now().await;
    scene.server.delete(&scene.namespace, "s").await.unwrap();
    let gone = waiting.await.unwrap().unwrap_err();
    assert_eq!(gone.to_string(), "Subscription 's' not found");
}

#[tokio::test]
async fn who_stops_waiting_leaves_the_message_to_the_next() {
    let scene = scene();
    scene.create(orders()).await;
    scene.write(&["order-1"]).await;
    let until = Instant::now();
    let mut fetch = Box::pin(scene.server.fetch(&scene.namespace, "s", ask(1), until));
    std::future::poll_fn(|context| {
        assert!(fetch.as_mut().poll(context).is_pending());
        std::task::Poll::Ready(())
    })
    .await;
    drop(fetch);
    let next = scene
        .server
        .fetch(&scene.namespace, "s", ask(1), until + Duration::from_secs(60))
        .await;
    assert_eq!(next.unwrap().messages[0].attempt, 1, "nobody was given it");
}

#[tokio::test]
async fn what_was_read_ahead_and_nobody_asks_for_takes_no_memory() {
    let scene = scene();
    scene.create(orders()).await;
    scene.write(&["order-1"; 20]).await;
    let handle = scene.server.handle(scene.namespace.as_ref(), "s");
    scene.fetch(1).await;
    assert!(handle.read_ahead() > 0);
    scene.time.fetch_add(2_000_000, Ordering::Relaxed);
    while handle.read_ahead() > 0 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn messages_that_are_gone_count_as_done() {
    let scene = scene();
    scene
        .create(SubscriptionSettings {
            strategy: DeliveryStrategy::RoundRobin,
            ..orders()
        })
        .await;
    scene.write(&["order-1", "order-2", "order-3"]).await;
    let fetched = scene.fetch(2).await;
    assert_eq!(globals(&fetched), [1, 2]);
    scene.double.hide(1);
    scene.time.fetch_add(TIMEOUT, Ordering::Relaxed);
    let again = scene.fetch(10).await;
    assert_eq!(globals(&again), [2, 3]);
    for (_, lease) in again {
        scene.ack(lease).await;
    }
    assert_eq!(scene.server.info(&scene.namespace, "s").await.unwrap().position, 3);
}

#[tokio::test]
async fn only_messages_of_the_types_and_the_correlation_come_also_from_a_stream() {
    let of_cart = "{\"correlationStreamName\":\"cart-7\"}";
    for source in [
        SubscriptionSource::Stream("order-1".into()),
        SubscriptionSource::Category("order".into()),
        SubscriptionSource::All,
    ] {
        let scene = scene();
        scene
            .create(SubscriptionSettings {
                types: vec!["Paid".into()],
                correlation: Some("cart".into()),
                ..settings(source)
            })
            .await;
        for (kind, metadata) in [("Paid", None), ("Created", Some(of_cart)), ("Paid", Some(of_cart))] {
            scene.double.write("order-1", kind, metadata).await;
        }
        assert_eq!(globals(&scene.fetch(10).await), [3]);
    }
}

#[tokio::test]
async fn parked_messages_are_listed_with_their_reasons_and_replayed() {
    let scene = scene();
    scene.create(orders()).await;
    scene.write(&["order-1", "order-2"]).await;
    let leases = scene.fetch(2).await.iter().map(|(_, lease)| *lease).collect();
    let park = Nack::Park {
        reason: "no such customer".into(),
    };
    scene.server.nack(&scene.namespace, "s", leases, park).await.unwrap();
    scene.double.hide(2);
    let parked = scene.server.parked(&scene.namespace, "s", 1, 10).await.unwrap();
    let told: Vec<_> = parked
        .iter()
        .map(|one| (one.global, &*one.reason, one.attempts, one.stored.is_some()))
        .collect();
    assert_eq!(
        told,
        [(1, "no such customer", 1, true), (2, "no such customer", 1, false)]
    );
    let replayed = scene
        .server
        .replay(&scene.namespace, "s", Vec::new(), 10, false)
        .await
        .unwrap();
    assert_eq!(replayed, 2);
    assert_eq!(globals(&scene.fetch(10).await), [1]);
}

#[tokio::test]
async fn names_are_taken_once_and_leases_of_a_deleted_one_mean_nothing() {
    let scene = scene();
    let missing = scene.server.info(&scene.namespace, "s").await.unwrap_err();
    assert_eq!(missing.to_string(), "Subscription 's' not found");
    scene.create(orders()).await;
    let taken = scene.server.create(&scene.namespace, "s", orders()).await.unwrap_err();
    assert_eq!(taken.to_string(), "Subscription 's' already exists");
    scene.write(&["order-1"]).await;
    let old = scene.fetch(1).await;
    scene.server.delete(&scene.namespace, "s").await.unwrap();
    scene.time.fetch_add(1_000_000, Ordering::Relaxed);
    scene.create(orders()).await;
    let new = scene.fetch(1).await;
    assert_eq!(scene.ack(old[0].1).await.stale, [old[0].1]);
    assert_eq!(scene.ack(new[0].1).await.settled, 1);
    let listed = scene.server.list(&scene.namespace, "", "", 10).await.unwrap();
    assert_eq!(listed.len(), 1);
    assert!(
        scene
            .server
            .list(&scene.namespace, "", "s", 10)
            .await
            .unwrap()
            .is_empty()
    );
}

#[tokio::test]
async fn a_reset_reads_again_and_the_end_is_after_all_there_is() {
    let scene = scene();
    scene.create(orders()).await;
    scene.write(&["order-1", "order-2"]).await;
    assert_eq!(globals(&scene.fetch(10).await), [1, 2]);
    let server = &scene.server;
    assert_eq!(
        server.reset(&scene.namespace, "s", StartPosition::At(2)).await.unwrap(),
        2
    );
    assert_eq!(globals(&scene.fetch(10).await), [2]);
    assert_eq!(
        server.reset(&scene.namespace, "s", StartPosition::End).await.unwrap(),
        3
    );
    assert_eq!(scene.fetch(10).await, []);
    scene.write(&["order-1"]).await;
    assert_eq!(globals(&scene.fetch(10).await), [3]);
}

#[tokio::test]
async fn after_all_messages_were_removed_it_begins_at_the_first_and_a_consumer_that_waits_hears_of_it() {
    let scene = scene();
    scene.create(orders()).await;
    scene.write(&["order-1"; 20]).await;
    let held = scene.fetch(1).await;
    let waiting = {
        let (server, namespace) = (server(&scene.time), scene.namespace.clone());
        tokio::spawn(async move {
            let until = Instant::now() + Duration::from_secs(60);
            server.fetch(&namespace, "s", ask(10), until).await
        })
    };
    scene.namespace.clear().await.unwrap();
    scene.write(&["order-1"]).await;
    let fetched = waiting.await.unwrap().unwrap();
    assert_eq!(fetched.messages.len(), 1);
    assert_eq!(fetched.messages[0].lease.global, 1);
    assert_eq!(scene.ack(held[0].1).await.stale, [held[0].1]);
    assert_eq!(scene.ack(fetched.messages[0].lease).await.settled, 1);
    assert_eq!(scene.fetch(10).await, [], "it begins anew once");
}

#[tokio::test]
async fn what_is_told_of_a_subscription_is_what_it_came_to() {
    let scene = scene();
    scene
        .create(SubscriptionSettings {
            strategy: DeliveryStrategy::RoundRobin,
            ..orders()
        })
        .await;
    assert_eq!(scene.server.figures(), []);
    scene.write(&["order-1", "order-2", "order-3", "order-4"]).await;
    let first = scene.fetch(2).await;
    scene.ack(first[0].1).await;
    scene.time.fetch_add(TIMEOUT, Ordering::Relaxed);
    assert_eq!(globals(&scene.fetch(1).await), [2]);
    let expected = SubscriptionStats {
        namespace: "a".to_owned(),
        name: "s".to_owned(),
        behind: 3,
        in_flight: 1,
        waiting: 2,
        parked: 0,
        redelivered: 1,
    };
    assert_eq!(scene.server.figures(), [expected]);
    scene.server.delete(&scene.namespace, "s").await.unwrap();
    scene.server.info(&scene.namespace, "s").await.unwrap_err();
    assert_eq!(scene.server.figures(), []);
}

#[tokio::test]
async fn nothing_is_kept_in_memory_of_subscriptions_and_namespaces_that_are_deleted() {
    let scene = scene();
    let kept = || scene.server.handles.lock().len();
    for _ in 0..3 {
        scene.create(orders()).await;
        scene.write(&["order-1"]).await;
        assert!(!scene.fetch(1).await.is_empty());
        scene.server.delete(&scene.namespace, "s").await.unwrap();
        assert_eq!((kept(), scene.server.figures()), (0, Vec::new()));
    }
    // A waiter for a message that never comes.
    let later = Instant::now() + Duration::from_secs(3600);
    scene
        .create(settings(SubscriptionSource::Category("none".into())))
        .await;
    let waits = scene.server.fetch(&scene.namespace, "s", ask(1), later);
    let deletes = async {
        while kept() == 0 {
            tokio::task::yield_now().await;
        }
        scene.server.delete(&scene.namespace, "s").await.unwrap();
    };
    let (fetched, ()) = tokio::join!(waits, deletes);
    assert!(matches!(fetched, Err(EventsError::SubscriptionNotFound(_))));
    assert_eq!(kept(), 0);
    // Deleting a namespace affects only its own subscriptions.
    scene.create(orders()).await;
    scene.fetch(1).await;
    let other: Arc<dyn Namespace> = Arc::new(NamespaceDouble::new("b"));
    scene.server.create(&other, "s", orders()).await.unwrap();
    scene.server.info(&other, "s").await.unwrap();
    scene.server.forget("a");
    let left: Vec<String> = scene.server.handles.lock().keys().map(|(of, _)| of.clone()).collect();
    assert_eq!(left, ["b"]);
}
