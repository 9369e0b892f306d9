use super::*;

const LIMITS: [usize; 3] = [16, 12, 8];

fn queue(waiting_max: usize) -> PermitQueue {
    let [handshakes, handshakes_per_rule, handshakes_per_source] = LIMITS;
    let limits =
        Limits { handshakes, handshakes_per_rule, handshakes_per_source, ..Limits::default() };
    PermitQueue::new(&limits, waiting_max)
}

fn request(source: u32, rule: &Arc<AtomicUsize>, initiator: Initiator) -> PermitRequest {
    PermitRequest {
        source: Source::V4(source),
        rule: Arc::clone(rule),
        initiator,
        signals: Arc::default(),
    }
}

fn is_granted(admission: &Admission) -> bool {
    matches!(admission, Admission::Granted(_))
}

/// Whether a waiting handshake has received a permit; `None`: it was rejected.
fn granted(admission: &mut Admission) -> Option<bool> {
    let Admission::Queued(_, granted) = admission else { return Some(true) };
    match granted.try_recv() {
        Ok(()) => Some(true),
        Err(oneshot::error::TryRecvError::Empty) => Some(false),
        Err(oneshot::error::TryRecvError::Closed) => None,
    }
}

fn number(admission: &Admission) -> u64 {
    match admission {
        Admission::Granted(number) | Admission::Queued(number, _) => *number,
    }
}

/// Whether a handshake was asked to make room.
fn is_displaced(request: &PermitRequest) -> bool {
    let mut asked = std::pin::pin!(request.signals.displaced.notified());
    let waker = std::task::Waker::noop();
    asked.as_mut().poll(&mut std::task::Context::from_waker(waker)).is_ready()
}

#[test]
fn a_quarter_of_the_permits_is_reserved_for_new_sources() {
    let mut queue = queue(100);
    let rule = Arc::default();
    let now = Instant::now();
    let mut acquire =
        |source| is_granted(&queue.acquire(request(source, &rule, Initiator::Peer), now));
    assert_eq!((0..12).filter(|_| acquire(1)).count(), 8, "one source has its own limit");
    assert_eq!((0..12).filter(|_| acquire(2)).count(), 1, "two leave the reserve of the rule");
    assert_eq!((3..9).filter(|source| acquire(*source)).count(), 3, "which fresh ones get");
    let other = Arc::default();
    let mut acquire =
        |source| is_granted(&queue.acquire(request(source, &other, Initiator::Peer), now));
    assert_eq!((20..40).filter(|source| acquire(*source)).count(), 4, "the reserve of all");
}

#[test]
fn the_next_permit_goes_to_the_source_with_the_fewest() {
    let mut queue = queue(100);
    let rule = Arc::default();
    let now = Instant::now();
    let flood: Vec<_> = (0..20)
        .map(|_| {
            let request = request(1, &rule, Initiator::Peer);
            (request.clone(), queue.acquire(request, now))
        })
        .collect();
    let mut others: Vec<_> =
        (2..8).map(|source| queue.acquire(request(source, &rule, Initiator::Peer), now)).collect();
    assert_eq!(others.iter().filter(|one| is_granted(one)).count(), 4);
    let mut late = queue.acquire(request(9, &rule, Initiator::Peer), now);
    assert_eq!(granted(&mut late), Some(false));
    for (request, admission) in flood.iter().take(3) {
        queue.leave(request, number(admission), now);
    }
    assert!(others.iter_mut().all(|one| granted(one) == Some(true)), "they wait before the flood");
    assert_eq!(granted(&mut late), Some(true));
}

#[test]
fn a_slow_handshake_of_the_busiest_source_is_displaced() {
    let mut queue = queue(100);
    let rule = Arc::default();
    let begin = Instant::now();
    let busy: Vec<_> = (0..8).map(|_| request(1, &rule, Initiator::Peer)).collect();
    for request in &busy {
        queue.acquire(request.clone(), begin);
    }
    for source in 2..6 {
        queue.acquire(request(source, &rule, Initiator::Peer), begin);
    }
    let late = request(9, &rule, Initiator::Peer);
    assert!(!is_granted(&queue.acquire(late.clone(), begin)));
    queue.displace_for(&late, begin + SLOW / 2);
    assert!(busy.iter().all(|request| !is_displaced(request)), "none is slow");
    queue.displace_for(&late, begin + SLOW);
    assert!(is_displaced(&busy[0]) && !is_displaced(&busy[1]), "the oldest");
}

/// A permit for each source, all of one rule; none is slow yet.
fn one_each(
    queue: &mut PermitQueue,
    rule: &Arc<AtomicUsize>,
    begin: Instant,
) -> Vec<(PermitRequest, u64)> {
    let take = |source| {
        let request = request(source, rule, Initiator::Peer);
        let admission = queue.acquire(request.clone(), begin + source * MOMENT);
        assert!(is_granted(&admission), "{source}");
        (request, number(&admission))
    };
    (1..13).rev().map(take).collect()
}

const MOMENT: Duration = Duration::from_millis(1);

#[test]
fn the_oldest_silent_handshake_is_displaced_when_every_source_has_one() {
    let mut queue = queue(100);
    let rule = Arc::default();
    let begin = Instant::now();
    let mut all = one_each(&mut queue, &rule, begin);
    let late = request(99, &rule, Initiator::Peer);
    assert!(!is_granted(&queue.acquire(late.clone(), begin)));
    let now = begin + 2 * SLOW;
    // The sources came in the reverse order of their times.
    let (oldest, _) = all.pop().unwrap();
    oldest.signals.is_answered.store(true, Ordering::Relaxed);
    queue.displace_for(&late, now);
    assert!(!is_displaced(&oldest), "its client is not silent");
    assert!(is_displaced(&all.pop().unwrap().0), "the oldest silent one");
    assert!(all.iter().all(|(one, _)| !is_displaced(one)));
    // A source that has a handshake displaces only those of sources with more.
    let second = request(5, &rule, Initiator::Peer);
    queue.displace_for(&second, now);
    assert!(all.iter().all(|(one, _)| !is_displaced(one)));
}

#[test]
fn what_is_displaced_makes_room_in_the_rule_that_needs_it() {
    let mut queue = queue(100);
    let [full, other] = [Arc::default(), Arc::default()];
    let begin = Instant::now();
    let busy: Vec<_> = (0..3).map(|_| request(50, &other, Initiator::Peer)).collect();
    for request in &busy {
        assert!(is_granted(&queue.acquire(request.clone(), begin)));
    }
    let all = one_each(&mut queue, &full, begin);
    let late = request(99, &full, Initiator::Peer);
    assert!(!is_granted(&queue.acquire(late.clone(), begin)));
    queue.displace_for(&late, begin + 2 * SLOW);
    assert!(busy.iter().all(|one| !is_displaced(one)), "of another rule");
    assert!(is_displaced(&all.last().unwrap().0));
}

#[test]
fn of_the_sources_with_the_fewest_the_newest_is_next() {
    let mut queue = queue(100);
    let rule = Arc::default();
    let now = Instant::now();
    let all = one_each(&mut queue, &rule, now);
    let wait = |queue: &mut PermitQueue, source, initiator| {
        queue.acquire(request(source, &rule, initiator), now)
    };
    let mut waiting = [
        wait(&mut queue, 60, Initiator::Agent),
        wait(&mut queue, 20, Initiator::Peer),
        wait(&mut queue, 99, Initiator::Peer),
    ];
    let mut order = Vec::new();
    for (holder, number) in &all[..3] {
        queue.leave(holder, *number, now);
        order.extend(waiting.iter_mut().position(|one| granted(one) == Some(true)));
    }
    assert_eq!(order, [0, 2, 1], "those of the agent do not wait for newer clients");
}

#[test]
fn handshakes_of_the_agent_are_neither_displaced_nor_rejected() {
    let mut queue = queue(4);
    let rule = Arc::default();
    let begin = Instant::now();
    let own: Vec<_> = (0..8).map(|_| request(1, &rule, Initiator::Agent)).collect();
    let mut admission: Vec<_> =
        own.iter().chain(&own).map(|one| queue.acquire(one.clone(), begin)).collect();
    let late = request(9, &rule, Initiator::Peer);
    queue.displace_for(&late, begin + 2 * SLOW);
    assert!(own.iter().all(|request| !is_displaced(request)));
    assert!(admission.iter_mut().all(|one| granted(one).is_some()));
}

#[test]
fn when_too_many_wait_the_oldest_of_the_source_with_the_most_is_refused() {
    let mut queue = queue(6);
    let rule = Arc::default();
    let now = Instant::now();
    let mut flood: Vec<_> =
        (0..13).map(|_| queue.acquire(request(1, &rule, Initiator::Peer), now)).collect();
    let mut other: Vec<_> =
        (0..3).map(|_| queue.acquire(request(2, &rule, Initiator::Peer), now)).collect();
    let refused = |all: &mut [Admission]| {
        all.iter_mut().map(|one| granted(one).is_none()).collect::<Vec<_>>()
    };
    let gone = refused(&mut flood);
    assert_eq!(gone.iter().position(|gone| *gone), Some(8), "the first that waited");
    assert_eq!(gone.iter().filter(|gone| **gone).count(), 1);
    assert!(refused(&mut other).iter().all(|gone| !gone));
}

#[test]
fn when_too_many_sources_wait_the_oldest_is_refused() {
    let mut queue = queue(2);
    let rule = Arc::default();
    let now = Instant::now();
    one_each(&mut queue, &rule, now);
    let mut waiting: Vec<_> = [30, 20, 40]
        .into_iter()
        .map(|source| queue.acquire(request(source, &rule, Initiator::Peer), now))
        .collect();
    let mut later = queue.acquire(request(10, &rule, Initiator::Peer), now);
    let left: Vec<_> = waiting.iter_mut().map(|one| granted(one).is_some()).collect();
    assert_eq!(left, [false, false, true]);
    assert!(granted(&mut later).is_some());
}

#[test]
fn a_waiter_that_gives_up_releases_a_permit_that_was_just_granted() {
    let mut queue = queue(6);
    let rule: Arc<AtomicUsize> = Arc::default();
    let now = Instant::now();
    let holders: Vec<_> =
        (0..8).map(|_| number(&queue.acquire(request(1, &rule, Initiator::Peer), now))).collect();
    let request = request(1, &rule, Initiator::Peer);
    let [first, second] = [(); 2].map(|()| queue.acquire(request.clone(), now));
    queue.give_up(&request, number(&first), now);
    queue.leave(&request, holders[0], now);
    // The second was granted, and its receiver still reports that.
    queue.give_up(&request, number(&second), now);
    for holder in &holders[1..] {
        queue.leave(&request, *holder, now);
    }
    assert_eq!((queue.in_flight(), rule.load(Ordering::Relaxed)), (0, 0));
    assert!(queue.sources.is_empty() && queue.waiting == 0);
}
