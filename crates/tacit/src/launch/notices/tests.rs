use super::*;

use crate::run::protocol::{self, Frame};

fn note(notices: &mut Notices, family: u32, now: Instant) {
    let refused = notices.refused.entry(RefusedSocketKind::of_family(family)).or_default();
    refused.times += 1;
    notices.report_due(now);
}

fn reports(line: &UnixStream) -> Vec<(String, u64)> {
    line.set_nonblocking(true).unwrap();
    let mut reports = Vec::new();
    while let Ok(Some(Frame { message: HelperReport::Refused(refused), .. })) = protocol::read(line)
    {
        reports.push((refused.socket.name(), refused.times));
    }
    reports
}

#[test]
fn the_first_is_reported_at_once_and_repetitions_together() {
    let (near, far) = UnixStream::pair().unwrap();
    let mut notices = Notices::default();
    notices.report_on(far);
    let start = Instant::now();
    note(&mut notices, 40, start);
    note(&mut notices, 17, start);
    let expected = |kind: &str, times| (kind.to_owned(), times);
    assert_eq!(reports(&near), [expected("AF_VSOCK", 1), expected("AF_PACKET", 1)]);
    assert!(notices.timeout().is_none());
    for _ in 0..1000 {
        note(&mut notices, 40, start);
    }
    assert_eq!(reports(&near), []);
    assert!(notices.timeout().is_some(), "the rest is due without a further call");
    notices.report_due(start + REPORT_INTERVAL);
    assert_eq!(reports(&near), [expected("AF_VSOCK", 1000)]);
}

#[test]
fn refusals_that_cannot_be_sent_are_reported_later() {
    let mut notices = Notices::default();
    let mut now = Instant::now();
    note(&mut notices, 38, now);
    note(&mut notices, 38, now);
    assert!(notices.timeout().is_none(), "it waits for an agent, not for time");
    let (near, far) = UnixStream::pair().unwrap();
    notices.report_on(far);
    assert_eq!(reports(&near), [("AF_ALG".to_owned(), 2)]);
    let mut noted = 0;
    while noted < 10_000 {
        now += REPORT_INTERVAL;
        note(&mut notices, 38, now);
        noted += 1;
    }
    let mut seen: u64 = reports(&near).iter().map(|(_, times)| times).sum();
    assert!(seen < noted, "the agent's socket was full");
    notices.report_due(now + REPORT_INTERVAL);
    seen += reports(&near).iter().map(|(_, times)| times).sum::<u64>();
    assert_eq!(seen, noted);
}

#[test]
fn the_number_of_remembered_kinds_of_sockets_is_limited() {
    let mut notices = Notices::default();
    for family in 0..100_000 {
        note(&mut notices, family, Instant::now());
    }
    assert_eq!(notices.refused.len(), 65);
}

#[test]
fn a_file_that_cannot_be_hidden_is_reported_once_there_is_an_agent() {
    let mut notices = Notices::default();
    notices.report_not_hidden("first".to_owned());
    notices.report_not_hidden("second".to_owned());
    let (near, far) = UnixStream::pair().unwrap();
    notices.report_on(far);
    let report = protocol::read::<HelperReport>(&near).unwrap().unwrap().message;
    assert_eq!(report, HelperReport::NotHidden("second".to_owned()));
    assert!(notices.timeout().is_none());
    notices.report_due(Instant::now());
    assert_eq!(reports(&near), []);
}

#[test]
fn a_program_without_a_listener_is_reported_once() {
    let (channel, launcher) = UnixStream::pair().unwrap();
    let (near, far) = UnixStream::pair().unwrap();
    let mut notices = Notices::awaited(channel);
    notices.report_on(far);
    assert!(notices.can_come());
    drop(launcher);
    let events = [PollFlags::IN | PollFlags::HUP, PollFlags::empty()];
    notices.serve(&events, &mut ConnectHandler::default());
    assert!(!notices.can_come());
    let report = protocol::read::<HelperReport>(&near).unwrap().unwrap().message;
    assert_eq!(report, HelperReport::Unreported);
    assert!(notices.timeout().is_none());
}
