use super::*;
use crate::store::flaky::{Faults, Flaky, left_after};

const SHORT: Duration = Duration::from_millis(300);

fn holder(id: &str, process: u32) -> LeaseHolder {
    LeaseHolder {
        id: id.to_owned(),
        host: format!("host-{id}"),
        process,
        data_dir: format!("/data/{id}"),
        renewed_unix_ms: 0,
        is_released: false,
    }
}

fn lease(store: &Flaky, id: &str, process: u32, held: Duration) -> Arc<Lease> {
    let times = (held, held / 6);
    let prefix = StorePath::from("lake");
    let own = holder(id, process);
    Lease::with_times("s3://b/lake", Arc::new(store.clone()), &prefix, move || own, times)
}

async fn until_it_may_commit(lease: &Lease, may_commit: bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while lease.check().is_ok() != may_commit {
        assert!(Instant::now() < until, "{:?}", lease.check());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn leases(store: &Flaky) -> usize {
    let truth = store.truth();
    let listed = truth.list(Some(&StorePath::from("lake/_thalweg")));
    listed.try_collect::<Vec<_>>().await.unwrap().len()
}

#[tokio::test]
async fn the_second_process_hears_who_the_first_one_is() {
    let store = Flaky::new(1);
    let first = lease(&store, "one", 11, HELD_FOR);
    first.claim().await.unwrap();
    assert_eq!(first.check(), Ok(()));
    let second = lease(&store, "two", 22, HELD_FOR);
    let error = second.claim().await.unwrap_err();
    assert_eq!(error.kind(), FaultKind::Held);
    let text = error.to_string();
    assert!(
        text.starts_with(
            "lake.held: s3://b/lake is written by process 11 on host-one (/data/one), which renewed its lease"
        ),
        "{text}"
    );
    assert!(second.check().is_err());
    assert_eq!(first.holder().await.unwrap().unwrap().0.process, 11);
    // The probes and attempts leave nothing behind.
    assert_eq!(leases(&store).await, 1);
}

#[tokio::test]
async fn of_many_that_start_at_once_one_gets_it() {
    let store = Flaky::new(2);
    let all: Vec<_> = (0..8).map(|n| lease(&store, &n.to_string(), n, HELD_FOR)).collect();
    let claims = all.iter().map(|lease| {
        tokio::spawn({
            let lease = lease.clone();
            async move { lease.claim().await.is_ok() }
        })
    });
    let mut won = 0;
    for claim in claims.collect::<Vec<_>>() {
        won += usize::from(claim.await.unwrap());
    }
    assert_eq!(won, 1);
    assert_eq!(all.iter().filter(|lease| lease.check().is_ok()).count(), 1);
}

#[tokio::test]
async fn a_lease_is_free_when_it_was_given_back_or_its_data_folder_has_another_process() {
    let store = Flaky::new(3);
    let first = lease(&store, "one", 11, HELD_FOR);
    first.claim().await.unwrap();
    let again = lease(&store, "one", 12, HELD_FOR);
    again.claim().await.unwrap();
    again.release().await;
    assert!(again.check().is_err());
    assert_eq!(again.holder().await.unwrap(), None);
    let other = lease(&store, "two", 22, HELD_FOR);
    other.claim().await.unwrap();
    assert_eq!(leases(&store).await, 1);
}

#[tokio::test]
async fn a_holder_that_cannot_renew_waits_and_commits_nothing_until_it_has() {
    let store = Flaky::new(4);
    let first = lease(&store, "one", 11, SHORT);
    first.claim().await.unwrap();
    // Without a renewal it would have ended.
    tokio::time::sleep(SHORT * 2).await;
    assert_eq!(first.check(), Ok(()), "it is renewed");
    store.set(Faults::Down);
    until_it_may_commit(&first, false).await;
    let (why, is_lost) = first.check().unwrap_err();
    assert!(!is_lost && why.starts_with("the object store does not answer"), "{why}");
    store.set(Faults::None);
    // Nobody else has taken it.
    until_it_may_commit(&first, true).await;
}

#[tokio::test]
async fn a_holder_that_was_away_for_too_long_loses_the_lake_for_good() {
    let store = Flaky::new(5);
    let first = lease(&store, "one", 11, SHORT);
    first.claim().await.unwrap();
    store.set(Faults::Down);
    tokio::time::sleep(SHORT * 2).await;
    store.set(Faults::None);
    // The clock of the store decides whether the last renewal has expired.
    let second = lease(&store, "two", 22, SHORT);
    let taken = second.claim().await;
    let until = Instant::now() + Duration::from_secs(5);
    while first.check().is_ok() || !first.check().unwrap_err().1 {
        if taken.is_err() {
            // The first process renewed before.
            assert_eq!(first.check(), Ok(()));
            return;
        }
        assert!(Instant::now() < until);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let (why, is_lost) = first.check().unwrap_err();
    assert!(is_lost && why.contains("is written by process 22 on host-two"), "{why}");
    assert_eq!(second.check(), Ok(()));
}

#[tokio::test]
async fn a_store_that_takes_a_name_twice_is_refused() {
    let store = Flaky::new(6);
    store.set(Faults::Overwrites);
    let error = lease(&store, "one", 11, HELD_FOR).claim().await.unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("lake.no_conditional_put: s3://b/lake takes the same name twice")
    );
    assert_eq!(leases(&store).await, 0);
}

#[tokio::test]
async fn what_a_store_refuses_is_one_sentence_with_its_cure() {
    let store = Flaky::new(7);
    for (code, kind, words) in [
        (
            "InvalidAccessKeyId",
            FaultKind::Denied,
            "refuses these credentials (InvalidAccessKeyId: It is not there); check lake.storage",
        ),
        (
            "NoSuchBucket",
            FaultKind::NoBucket,
            "the bucket does not exist (NoSuchBucket: It is not there); make it",
        ),
    ] {
        store.set(Faults::Refused(code));
        let error = lease(&store, "one", 11, HELD_FOR).claim().await.unwrap_err();
        assert_eq!(error.kind(), kind);
        assert!(error.to_string().contains(words), "{error}");
    }
    store.set(Faults::Down);
    let error = lease(&store, "one", 11, HELD_FOR).claim().await.unwrap_err();
    assert_eq!(error.kind(), FaultKind::Other);
    assert!(
        error
            .to_string()
            .starts_with("s3://b/lake cannot be used: the object store does not answer"),
        "{error}"
    );
}

#[tokio::test]
async fn answers_that_are_lost_leave_one_holder_all_the_same() {
    for seed in 0..200 {
        let store = Flaky::new(seed);
        store.set(Faults::OneOf(3));
        let all: Vec<_> = (0..3).map(|n| lease(&store, &n.to_string(), n, HELD_FOR)).collect();
        for _ in 0..20 {
            for lease in &all {
                let _ = lease.claim().await;
            }
        }
        assert!(
            all.iter().filter(|lease| lease.check().is_ok()).count() <= 1,
            "seed {seed}"
        );
    }
}

#[tokio::test]
async fn one_that_was_away_while_others_came_and_went_does_not_come_back() {
    let store = Flaky::new(8);
    let first = lease(&store, "one", 11, SHORT * 20);
    first.claim().await.unwrap();
    // As if its lease had expired: two others have had the lake since, and one is gone.
    for id in ["two", "three"] {
        let next = Lease::with_times(
            "s3://b/lake",
            Arc::new(store.clone()),
            &StorePath::from("lake"),
            move || holder(id, 22),
            (Duration::ZERO, HELD_FOR),
        );
        next.claim().await.unwrap();
        next.release().await;
    }
    first.renew_once().await;
    let (why, is_lost) = first.check().unwrap_err();
    assert!(is_lost && why.contains("host-three"), "{why}");
    assert_eq!(leases(&store).await, 1);
}

/// A start waits for the store only for some seconds.
#[tokio::test]
async fn a_claim_that_is_given_up_at_any_await_is_made_again_and_what_is_held_is_renewed() {
    for waits in 0.. {
        let store = Flaky::new(4);
        let before = lease(&store, "before", 1, HELD_FOR);
        before.claim().await.unwrap();
        before.release().await;
        store.set(Faults::Slow);
        let own = lease(&store, "own", 2, SHORT);
        let done = left_after(waits, own.claim()).await;
        own.claim()
            .await
            .unwrap_or_else(|error| panic!("left after {waits} waits: {error}"));
        tokio::time::sleep(2 * SHORT).await;
        assert_eq!(own.check(), Ok(()), "left after {waits} waits");
        let other = lease(&store, "other", 3, SHORT);
        assert!(other.claim().await.is_err(), "left after {waits} waits");
        if done.is_some() {
            assert!(waits > 3, "there was nothing to leave");
            break;
        }
    }
}

/// Otherwise the lake would seem to be held until the lease expires, and no process could start meanwhile.
#[tokio::test]
async fn what_is_given_back_while_it_is_renewed_is_free() {
    for waits in 0.. {
        let store = Flaky::new(9);
        let own = lease(&store, "own", 1, HELD_FOR);
        own.claim().await.unwrap();
        store.set(Faults::Slow);
        let mut renewal = std::pin::pin!(own.renew_once());
        let is_done = left_after(waits, renewal.as_mut()).await.is_some();
        let renew = async {
            if !is_done {
                renewal.await;
            }
        };
        // The release goes first wherever it can.
        tokio::join!(biased; own.release(), renew);
        assert_eq!(own.holder().await.unwrap(), None, "given back after {waits} waits");
        assert!(own.check().is_err());
        let other = lease(&store, "other", 2, HELD_FOR);
        other
            .claim()
            .await
            .unwrap_or_else(|error| panic!("given back after {waits} waits: {error}"));
        if is_done {
            assert!(waits > 2, "there was nothing to wait for");
            break;
        }
    }
}

#[tokio::test]
async fn a_lease_that_is_given_back_by_halves_is_free_when_it_has_expired() {
    for waits in 0..3 {
        let store = Flaky::new(5);
        let own = lease(&store, "own", 1, SHORT);
        own.claim().await.unwrap();
        store.set(Faults::Slow);
        left_after(waits, own.release()).await;
        assert!(own.check().is_err(), "nothing is committed any more");
        tokio::time::sleep(SHORT + SHORT / 3).await;
        let other = lease(&store, "other", 2, SHORT);
        other
            .claim()
            .await
            .unwrap_or_else(|error| panic!("left after {waits} waits: {error}"));
    }
}
