use super::super::query::refuse;
use super::super::testing::{query, record, response};
use super::*;
use proptest::prelude::*;
use simple_dns::rdata::{A, RData};
use simple_dns::{Packet, RCODE, TYPE};

const OPT_RECORD: [u8; 11] = [0, 0, 41, 4, 0xd0, 0, 0, 0, 0, 0, 0];

fn asked(name: &str, edns_bytes: Option<u16>) -> Query {
    let mut message = query(name, TYPE::A);
    if let Some(bytes) = edns_bytes {
        message[11] = 1;
        let [high, low] = bytes.to_be_bytes();
        message.extend_from_slice(&[0, 0, 41, high, low, 0, 0, 0, 0, 0, 0]);
    }
    Query::read(&message).unwrap()
}

/// A response with this number of addresses, from a server with EDNS.
fn addresses(name: &'static str, count: u32) -> Vec<u8> {
    let records = (0..count).map(|n| record(name, 60, RData::A(A { address: n }))).collect();
    let mut message = response(name, records);
    message[11] = 1;
    message.extend_from_slice(&OPT_RECORD);
    message
}

#[test]
fn a_program_gets_its_own_question_and_no_edns_that_it_did_not_use() {
    let mut from_server = addresses("a.example", 2);
    from_server[..2].copy_from_slice(&[0xab, 0xcd]);
    from_server[12..23].copy_from_slice(b"\x01A\x07eXAMPLe\0");
    let answer = for_program(&from_server, &asked("A.exaMple", None), 512).unwrap();
    assert_eq!((&answer[..2], answer[11]), (&[0, 7][..], 0));
    assert_eq!(&answer[12..23], b"\x01A\x07exaMple\0");
    let packet = Packet::parse(&answer).unwrap();
    assert_eq!((packet.answers.len(), packet.opt().is_some()), (2, false));
    assert!(packet.answers.iter().all(|answer| answer.name.to_string() == "A.exaMple"));
    let answer = for_program(&from_server, &asked("a.example", Some(1400)), 1400).unwrap();
    assert_eq!(Packet::parse(&answer).unwrap().opt().unwrap().udp_packet_size, 1232);
}

#[test]
fn what_does_not_fit_is_cut_behind_a_record_and_marked() {
    let whole = addresses("a.example", 100);
    let plain = asked("a.example", None);
    for bytes_max in [512, 513, 600, 2000] {
        let answer = for_program(&whole, &plain, bytes_max).unwrap();
        let count = Packet::parse(&answer).unwrap().answers.len();
        let record_bytes = (whole.len() - 27 - OPT_RECORD.len()) / 100;
        assert_eq!(count, ((bytes_max - 27) / record_bytes).min(100));
        assert!(answer.len() <= bytes_max && is_truncated(&answer) == (count < 100));
    }
    let small = addresses("a.example", 1);
    assert!(!is_truncated(&for_program(&small, &plain, 512).unwrap()));
    let with_edns = asked("a.example", Some(1232));
    let answer = for_program(&whole, &with_edns, 1232).unwrap();
    assert!(answer.len() <= 1232 && is_truncated(&answer) && answer.ends_with(&OPT_RECORD));
    let mut cut_by_server = addresses("a.example", 1);
    cut_by_server[2] |= 2;
    assert!(is_truncated(&for_program(&cut_by_server, &plain, 512).unwrap()));
}

#[test]
fn additional_records_are_left_out_without_a_mark() {
    let mut message = response("a.example", Vec::new());
    message[11] = 40;
    for _ in 0..40 {
        message.extend_from_slice(b"\xc0\x0c\0\x01\0\x01\0\0\0\x3c\0\x04\x0a\0\0\x01");
    }
    let answer = for_program(&message, &asked("a.example", None), 512).unwrap();
    assert!(!is_truncated(&answer));
    assert_eq!(Packet::parse(&answer).unwrap().additional_records.len(), 30);
}

#[test]
fn validation_is_reported_to_those_that_ask_for_it() {
    let mut message = response("a.example", Vec::new());
    message[3] |= 0x20;
    let mut query = asked("a.example", None);
    let flag = |query: &Query| for_program(&message, query, 512).unwrap()[3] & 0x20;
    assert_eq!(flag(&query), 0);
    query.bits.authentic_data = true;
    assert_eq!(flag(&query), 0x20);
}

#[test]
fn codes_beyond_the_header_need_edns() {
    let mut message = addresses("a.example", 0);
    let at = message.len() - 6;
    message[at] = 1;
    let answer = for_program(&message, &asked("a.example", None), 512).unwrap();
    assert_eq!(Packet::parse(&answer).unwrap().rcode(), RCODE::ServerFailure);
    let answer = for_program(&message, &asked("a.example", Some(512)), 512).unwrap();
    assert_eq!(answer[answer.len() - 6], 1);
}

#[test]
fn a_response_that_cannot_be_cut_into_records_is_none() {
    let query = asked("a.example", None);
    let whole = addresses("a.example", 1);
    for length in 0..whole.len() {
        assert_eq!(for_program(&whole[..length], &query, 512), None, "{length}");
    }
    assert_eq!(for_program(&whole, &asked("b.example", None), 512), None);
}

#[test]
fn the_answer_repeats_number_and_question() {
    let sent = query("a.Example", TYPE::A);
    let answer = refuse(&sent, ResponseCode::NoRecords).unwrap();
    assert_eq!(matches(&answer, &sent), Match::Exact);
    let changed = |at: usize, value: u8| {
        let mut changed = answer.clone();
        changed[at] = value;
        matches(&changed, &sent)
    };
    assert_eq!(changed(15, b'e'), Match::Folded);
    assert_eq!(changed(15, b'x'), Match::None);
    assert_eq!(changed(1, 8), Match::None, "another number");
    assert_eq!(changed(answer.len() - 3, 28), Match::None, "another type");
    assert_eq!(changed(2, 0x01), Match::None, "a query");
    assert_eq!(changed(5, 2), Match::None, "two questions");
    assert_eq!(matches(&sent, &sent), Match::None);
    let mut complaint = refuse(&sent, ResponseCode::FormatError).unwrap();
    complaint.truncate(12);
    complaint[5] = 0;
    assert_eq!(matches(&complaint, &sent), Match::Unreadable);
}

#[test]
fn the_flags_of_a_response_are_read() {
    let asked = query("a.example", TYPE::A);
    let code = |why| is_refusal(&refuse(&asked, why).unwrap());
    assert!(
        code(ResponseCode::Refused)
            && code(ResponseCode::ServerFailure)
            && code(ResponseCode::NotImplemented)
    );
    assert!(!code(ResponseCode::NoSuchName) && !code(ResponseCode::NoRecords));
    let mut cut = refuse(&asked, ResponseCode::NoRecords).unwrap();
    assert!(!is_truncated(&cut));
    cut[2] |= 2;
    assert!(is_truncated(&cut));
}

proptest! {
    #[test]
    fn arbitrary_records_never_panic_and_never_exceed_the_limit(
        counts in any::<[u8; 3]>(),
        records in prop::collection::vec(any::<u8>(), 0..900),
        bytes_max in 512..700_usize,
        edns in prop::option::of(any::<u16>()),
    ) {
        let mut message = response("a.example", Vec::new());
        for (at, count) in [7, 9, 11].into_iter().zip(counts) {
            message[at] = count % 4;
        }
        message.extend_from_slice(&records);
        let query = asked("a.example", edns);
        if let Some(answer) = for_program(&message, &query, bytes_max) {
            prop_assert!(answer.len() <= bytes_max);
            prop_assert_eq!(for_program(&answer, &query, bytes_max), Some(answer));
        }
        let _ = (matches(&message, &query.wire), matches(&query.wire, &message));
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = for_program(&bytes, &asked("a.example", None), 512);
        let _ = (is_refusal(&bytes), is_truncated(&bytes), is_about_form(&bytes));
        let _ = matches(&bytes, &bytes);
    }
}
