use super::*;

fn at(places: &Arc<ConnectionSlots>) -> Option<(ConnectionPermit, Option<EvictionReason>)> {
    places.take(false, &CancellationToken::new())
}

/// As if this much time had passed.
fn pass(places: &ConnectionSlots, time: Duration) {
    places.ahead.fetch_add(time.as_millis() as u32, Relaxed);
}

const MINUTE: Duration = Duration::from_secs(60);

fn whole(held: &ConnectionPermit) -> ActiveRequest {
    held.server().begin(true).0
}

#[test]
fn the_half_open_leave_first_then_the_slow_then_the_longest_idle() {
    let places = ConnectionSlots::new(6);
    let mut held: Vec<ConnectionPermit> = (0..5).map(|_| at(&places).unwrap().0).collect();
    // Two are idle, one for longer, one sends slowly, one is served, one is half open.
    drop(whole(&held[1]));
    pass(&places, MINUTE);
    drop(whole(&held[0]));
    let _served = whole(&held[3]);
    let _slow = held[2].server().begin(false);
    pass(&places, Duration::from_secs(6));
    // One sends, but not for long.
    held.push(at(&places).unwrap().0);
    let _sends = held[5].server().begin(false);
    let (mut order, mut new) = (Vec::new(), Vec::new());
    while let Some((came, why)) = at(&places) {
        let has_left = |n: &usize| held[*n].place.leave.is_cancelled() && !order.iter().any(|(_, known)| known == n);
        let who = (0..6).find(has_left).expect("somebody has left");
        order.push((why.expect("all places were taken"), who));
        new.push((whole(&came), came));
    }
    assert_eq!(
        order,
        [
            (EvictionReason::HalfOpen, 4),
            (EvictionReason::Slow, 2),
            (EvictionReason::Idle, 1),
            (EvictionReason::Idle, 0)
        ]
    );
    assert!(
        at(&places).is_none(),
        "all others are served, or have just begun to send"
    );
    assert_eq!(places.taken(), 6);
}

/// With this many connections, a scan for each new one would be too slow.
#[test]
fn one_of_a_hundred_thousand_is_found_at_once() {
    for (why, one) in [
        (EvictionReason::HalfOpen, 71_234),
        (EvictionReason::Slow, 99_999),
        (EvictionReason::Idle, 54_321),
    ] {
        let most = 100_000;
        let places = ConnectionSlots::new(most);
        let held: Vec<ConnectionPermit> = (0..most).map(|_| at(&places).unwrap().0).collect();
        let mut served = Vec::new();
        for (n, held) in held.iter().enumerate() {
            match why {
                EvictionReason::HalfOpen if n == one => {}
                EvictionReason::Slow if n == one => {
                    let (serving, receiving) = held.server().begin(false);
                    served.push(serving);
                    std::mem::forget(receiving);
                }
                EvictionReason::Idle if n == one => drop(whole(held)),
                _ => served.push(whole(held)),
            }
        }
        pass(&places, MINUTE);
        let (_new, left) = at(&places).expect("one can leave");
        assert_eq!(left, Some(why));
        assert!(held[one].place.leave.is_cancelled());
        assert!(at(&places).is_none(), "all others are served");
    }
}

#[test]
fn who_opens_requests_on_one_connection_and_sends_none_whole_is_slow() {
    let places = ConnectionSlots::new(1);
    let held = at(&places).unwrap().0;
    let requests = held.server();
    let mut first = requests.begin(false);
    pass(&places, Duration::from_secs(4));
    // The start of another request proves nothing; a complete request does.
    let second = requests.begin(false);
    pass(&places, Duration::from_secs(2));
    assert!(places.table.lock().lists.first(EvictionReason::Slow as usize).is_some());
    drop(first.1.take());
    assert!(at(&places).is_none(), "its answer is waited for");
    drop(first);
    assert!(at(&places).is_none(), "it has sent one whole just now");
    pass(&places, Duration::from_secs(4));
    drop(requests.begin(false));
    assert!(at(&places).is_none());
    pass(&places, Duration::from_secs(1));
    let (_new, why) = at(&places).expect("it sends nothing");
    assert_eq!(why, Some(EvictionReason::Slow));
    assert!(held.place.leave.is_cancelled());
    // Its later changes affect nobody.
    drop((second, held));
    assert_eq!(places.taken(), 1);
}

#[test]
fn an_answer_that_begins_before_the_whole_request_is_there_makes_nobody_slow() {
    let places = ConnectionSlots::new(1);
    let held = at(&places).unwrap().0;
    let (serving, receiving) = held.server().begin(false);
    serving.answers();
    pass(&places, MINUTE);
    assert!(at(&places).is_none());
    drop(receiving);
    assert!(at(&places).is_none());
    drop(serving);
    assert_eq!(at(&places).unwrap().1, Some(EvictionReason::Idle));
}

#[test]
fn whoever_has_just_come_is_left_alone_unless_places_are_for_passing() {
    let places = ConnectionSlots::new(1);
    let _first = at(&places).unwrap().0;
    assert!(at(&places).is_none());
    pass(&places, OPENING_MIN);
    assert_eq!(at(&places).unwrap().1, Some(EvictionReason::HalfOpen));
    let passing = ConnectionSlots::passing(1);
    let first = at(&passing).unwrap().0;
    assert_eq!(at(&passing).unwrap().1, Some(EvictionReason::HalfOpen));
    assert!(first.place.leave.is_cancelled());
}

#[test]
fn streams_leave_a_tenth_to_others() {
    let places = ConnectionSlots::new(10);
    let held: Vec<ConnectionPermit> = (0..10).map(|_| at(&places).unwrap().0).collect();
    let mut serving: Vec<ActiveRequest> = held.iter().map(whole).collect();
    let streams: Vec<bool> = serving.iter_mut().map(ActiveRequest::becomes_stream).collect();
    assert_eq!(streams.iter().filter(|is_stream| **is_stream).count(), 9);
    serving.remove(0);
    assert!(serving.last_mut().unwrap().becomes_stream(), "one has ended");
}

/// One connection with its requests.
type Holder = (ConnectionPermit, Vec<(ActiveRequest, Option<PendingBody>)>);

/// The expected eviction, found by a scan.
fn who_leaves(places: &ConnectionSlots, held: &[Holder]) -> Option<EvictionReason> {
    let table = places.table.lock();
    let now = places.now();
    let sitting = held.iter().filter(|(held, _)| !held.place.leave.is_cancelled());
    let whys = sitting.filter_map(|(held, serving)| {
        let seat = &table.seats[held.place.number as usize];
        let missing = |(serving, _): &&(ActiveRequest, Option<PendingBody>)| {
            serving.missing.as_ref().is_some_and(|missing| missing.load(Relaxed))
        };
        let receiving = serving.iter().filter(missing).count();
        let age = Duration::from_millis((now - seat.since).into());
        match (serving.len(), held.place.has_asked.load(Relaxed)) {
            (0, false) => (age >= OPENING_MIN).then_some(EvictionReason::HalfOpen),
            (0, true) => Some(EvictionReason::Idle),
            (serving, _) if serving == receiving => (age >= SENDING_MIN).then_some(EvictionReason::Slow),
            _ => None,
        }
    });
    whys.min()
}

#[test]
fn whatever_comes_and_goes_no_more_are_taken_than_there_are_and_none_is_lost() {
    let mut seed = 7_u64;
    let mut next = |below: u64| {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    for most in [1, 2, 7, 300, 1000] {
        let places = ConnectionSlots::new(most);
        let mut held: Vec<Holder> = Vec::new();
        for _ in 0..20_000 {
            held.retain(|(held, _)| !held.place.leave.is_cancelled());
            match next(7) {
                0..=2 => {
                    let full = held.len() >= most;
                    let expected = if full { who_leaves(&places, &held) } else { None };
                    match at(&places) {
                        Some((new, why)) => {
                            assert_eq!(why, expected);
                            held.push((new, Vec::new()));
                        }
                        None => assert!(full && expected.is_none()),
                    }
                }
                3 if !held.is_empty() => drop(held.swap_remove(next(held.len() as u64) as usize)),
                4 | 5 if !held.is_empty() => {
                    let at = next(held.len() as u64) as usize;
                    let begun = held[at].0.server().begin(next(2) == 0);
                    held[at].1.push(begun);
                }
                _ if !held.is_empty() => {
                    let at = next(held.len() as u64) as usize;
                    let of_one = &mut held[at].1;
                    match next(3) {
                        0 => of_one.iter_mut().for_each(|(_, receiving)| drop(receiving.take())),
                        1 => of_one.iter().for_each(|(serving, _)| serving.answers()),
                        _ => drop(of_one.pop()),
                    }
                    pass(&places, Duration::from_millis(next(300)));
                }
                _ => {}
            }
            let sitting = held.iter().filter(|(held, _)| !held.place.leave.is_cancelled()).count();
            assert_eq!(places.taken(), sitting);
            assert!(sitting <= most);
        }
        let seats = places.table.lock().seats.len();
        assert!(seats <= most, "{seats} seats of {most} places");
        drop(held);
        assert_eq!((places.taken(), places.streams.load(Relaxed)), (0, 0));
    }
}
