//! Bodies that arrive in pieces, whole or not, with and without room.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::channel::mpsc::{UnboundedSender, unbounded};
use hyper::body::{Frame, SizeHint};
use thalweg_kit::byte_budget::ByteBudget;
use tokio::task::JoinHandle;

use super::*;

const KIB: usize = 1 << 10;
/// Longer than any test waits.
const LONG: Duration = Duration::from_secs(600);

type Piece = Result<Bytes, Infallible>;
type Collected = Result<(Bytes, ByteReservation), BodyFault>;

fn body() -> (UnboundedSender<Piece>, Body) {
    let (sender, pieces) = unbounded();
    (sender, Body::from_stream(pieces))
}

fn kib(count: usize) -> Piece {
    Ok(vec![b'x'; count * KIB].into())
}

/// A body with a declared length.
struct Declared {
    inner: Body,
    bytes: usize,
}

impl Declared {
    fn body(inner: Body, bytes: usize) -> Body {
        Body::new(Declared { inner, bytes })
    }
}

impl HttpBody for Declared {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.inner).poll_frame(context)
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes as u64)
    }
}

fn patient(limit: usize, room_patience: Duration) -> BodyRules {
    BodyRules {
        room_patience,
        ..BodyRules::up_to(limit)
    }
}

fn begin(budget: &ByteBudget, body: Body, rules: BodyRules) -> JoinHandle<Collected> {
    let room = budget.reservation();
    tokio::spawn(collect(body, rules, room))
}

#[tokio::test]
async fn who_announces_much_and_sends_nothing_takes_no_room() {
    let budget = ByteBudget::new(8 * KIB);
    let rules = patient(8 * KIB, LONG);
    let mut silent = Vec::new();
    for _ in 0..100 {
        let (sender, pieces) = body();
        silent.push((sender, begin(&budget, Declared::body(pieces, 8 * KIB), rules)));
    }
    tokio::task::yield_now().await;
    let whole = collect(vec![b'x'; 8 * KIB].into(), rules, budget.reservation());
    let (whole, room) = whole.await.unwrap();
    assert_eq!((whole.len(), room.bytes()), (8 * KIB, 8 * KIB));
    assert!(silent.iter().all(|(_, read)| !read.is_finished()));
}

#[tokio::test]
async fn a_body_waits_for_room_and_gives_it_back_with_its_answer() {
    let budget = ByteBudget::new(8 * KIB);
    let rules = patient(8 * KIB, LONG);
    let first = collect(vec![b'x'; 5 * KIB].into(), rules, budget.reservation());
    let (_, first) = first.await.unwrap();
    let (sender, pieces) = body();
    let read = begin(&budget, pieces, rules);
    for _ in 0..2 {
        sender.unbounded_send(kib(2)).unwrap();
    }
    drop(sender);
    while budget.used() < 7 * KIB {
        tokio::task::yield_now().await;
    }
    assert!(!read.is_finished());
    drop(first);
    let (whole, room) = read.await.unwrap().unwrap();
    assert_eq!((whole.len(), room.bytes()), (4 * KIB, 4 * KIB));
    drop(room);
    assert_eq!(budget.used(), 0);
}

#[tokio::test]
async fn of_bodies_that_wait_for_each_other_one_is_refused_and_the_other_goes_on() {
    let budget = ByteBudget::new(8 * KIB);
    let both = [(); 2].map(|()| {
        let (sender, pieces) = body();
        sender.unbounded_send(kib(4)).unwrap();
        (
            sender,
            begin(&budget, pieces, patient(8 * KIB, Duration::from_millis(200))),
        )
    });
    while budget.used() < 8 * KIB {
        tokio::task::yield_now().await;
    }
    let reads = both.map(|(sender, read)| {
        sender.unbounded_send(kib(3)).unwrap();
        read
    });
    let (mut taken, mut refused) = (0, 0);
    for read in reads {
        match read.await.unwrap() {
            Ok((whole, _)) => taken += usize::from(whole.len() == 7 * KIB),
            Err(fault) => {
                assert!(
                    matches!(fault, BodyFault::NoRoom { bytes } if bytes == 7 * KIB),
                    "{fault:?}"
                );
                refused += 1;
            }
        }
    }
    assert_eq!((taken, refused), (1, 1));
    assert_eq!(budget.used(), 0, "what was refused or dropped holds nothing");
}

#[tokio::test]
async fn without_patience_a_body_that_finds_no_room_is_refused_at_once() {
    let budget = ByteBudget::new(8 * KIB);
    let held = collect(vec![b'x'; 6 * KIB].into(), patient(8 * KIB, LONG), budget.reservation());
    let (_, held) = held.await.unwrap();
    let read = || {
        collect(
            vec![b'x'; 3 * KIB].into(),
            patient(8 * KIB, Duration::ZERO),
            budget.reservation(),
        )
    };
    assert!(matches!(read().await, Err(BodyFault::NoRoom { bytes }) if bytes == 3 * KIB));
    drop(held);
    assert!(read().await.is_ok());
}

#[tokio::test]
async fn a_body_beyond_its_limit_is_refused_announced_or_not() {
    let budget = ByteBudget::new(256 << 20);
    let (_open, pieces) = body();
    let announced = Declared::body(Body::empty(), 11);
    let undeclared = Body::from_stream(futures::stream::iter([kib(1), kib(1)]));
    for (body, limit) in [
        (announced, 10),
        (Body::from(vec![b'x'; 11]), 10),
        (undeclared, 2 * KIB - 1),
    ] {
        let refused = collect(body, BodyRules::up_to(limit), budget.reservation()).await;
        assert!(matches!(refused, Err(BodyFault::TooLarge { limit: told }) if told == limit));
    }
    let fits = Body::from_stream(futures::stream::iter([kib(1), kib(1)]));
    for (body, bytes) in [(Body::from(vec![b'x'; 10]), 10), (fits, 2 * KIB), (Body::empty(), 0)] {
        let whole = collect(body, BodyRules::up_to(bytes), budget.reservation()).await;
        assert_eq!(whole.unwrap().0.len(), bytes);
    }
    assert_eq!(budget.used(), 0);
    // A body that is not refused is read to its end, however long that takes.
    let mut waits = std::pin::pin!(collect(pieces, BodyRules::up_to(10), ()));
    assert!(futures::poll!(waits.as_mut()).is_pending());
}

#[tokio::test]
async fn a_body_of_one_piece_is_not_copied() {
    let piece = Bytes::from(vec![b'x'; 100]);
    let (whole, ()) = collect(Body::from(piece.clone()), BodyRules::up_to(100), ())
        .await
        .unwrap();
    assert_eq!(whole.as_ptr(), piece.as_ptr());
    let pieces = ["", "ab", "", "c", "de"].map(|text| Ok::<_, Infallible>(Bytes::from(text)));
    let body = Body::from_stream(futures::stream::iter(pieces));
    let (whole, ()) = collect(body, BodyRules::up_to(5), ()).await.unwrap();
    assert_eq!(whole, "abcde");
}

#[tokio::test]
async fn a_body_that_ends_early_or_is_too_slow_is_told_apart() {
    let cut = futures::stream::iter([Ok(Bytes::from("ab")), Err(std::io::Error::other("gone"))]);
    let fault = collect(Body::from_stream(cut), BodyRules::up_to(10), ())
        .await
        .unwrap_err();
    match fault {
        BodyFault::EndedEarly(error) => assert_eq!(error.to_string(), "gone"),
        other => panic!("{other:?}"),
    }
    let (_open, pieces) = body();
    let within = Some(Duration::from_millis(20));
    let rules = BodyRules {
        within,
        ..BodyRules::up_to(10)
    };
    let fault = collect(pieces, rules, ()).await.unwrap_err();
    assert!(matches!(fault, BodyFault::TooSlow { .. }), "{fault:?}");
}

#[tokio::test]
async fn a_refused_body_is_read_on_to_its_end_but_no_longer_and_no_farther_than_may_be() {
    // Pieces that were read are counted.
    let read = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counted = |pieces: usize| {
        let read = read.clone();
        let pieces = futures::stream::iter((0..pieces).map(move |_| {
            read.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            kib(1)
        }));
        Body::from_stream(pieces)
    };
    let take = || read.swap(0, std::sync::atomic::Ordering::SeqCst);
    drain_within(&mut counted(100), 1000 * KIB, LONG).await;
    assert_eq!(take(), 100);
    drain_within(&mut counted(100), 10 * KIB, LONG).await;
    assert_eq!(take(), 10);
    let (_open, mut silent) = body();
    drain_within(&mut silent, 10 * KIB, Duration::from_millis(20)).await;
    // The whole of a refused body is read before its client is answered.
    let refused = collect(counted(100), BodyRules::up_to(10 * KIB), ()).await;
    assert!(matches!(refused, Err(BodyFault::TooLarge { .. })));
    assert_eq!(take(), 100);
}
