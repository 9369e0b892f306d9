use super::super::question::question;
use super::super::testing::query;
use super::*;
use proptest::prelude::*;
use simple_dns::{Packet, RCODE, TYPE};

fn with_edns(bytes: u16, copies: u8) -> Vec<u8> {
    let mut message = query("a.example", TYPE::A);
    message[11] = copies;
    for _ in 0..copies {
        let [high, low] = bytes.to_be_bytes();
        message.extend_from_slice(&[0, 0, 41, high, low, 0, 0, 0x80, 0, 0, 0]);
    }
    message
}

#[test]
fn a_program_says_how_much_it_can_receive() {
    let bytes_max = |message: &[u8]| Query::read(message).unwrap().datagram_bytes_max();
    assert_eq!(bytes_max(&query("a.example", TYPE::A)), 512);
    assert_eq!(bytes_max(&with_edns(100, 1)), 512);
    assert_eq!(bytes_max(&with_edns(1400, 1)), 1400);
    assert_eq!(bytes_max(&with_edns(65_535, 1)), 65_507);
    assert!(Query::read(&with_edns(1400, 1)).unwrap().bits.dnssec_ok);
    assert_eq!(Query::read(&with_edns(1400, 2)), Err(DnsError::Malformed));
    assert_eq!(Query::read(&with_edns(1400, 1)[..35]), Err(DnsError::Malformed));
}

#[test]
fn a_refusal_answers_the_question_it_refuses() {
    let asked = query("no.example", TYPE::A);
    let read = Query::read(&asked).unwrap();
    for (why, code) in [
        (ResponseCode::Refused, RCODE::Refused),
        (ResponseCode::ServerFailure, RCODE::ServerFailure),
        (ResponseCode::NoSuchName, RCODE::NameError),
        (ResponseCode::NoRecords, RCODE::NoError),
        (ResponseCode::NotImplemented, RCODE::NotImplemented),
    ] {
        let refused = refuse(&asked, why).unwrap();
        assert_eq!(refused, read.refused(why));
        let packet = Packet::parse(&refused).unwrap();
        assert_eq!((packet.id(), packet.rcode()), (7, code));
        assert_eq!(refuse(&refused, why), None, "a response is not answered");
    }
    let short = refuse(&asked[..14], ResponseCode::FormatError).unwrap();
    assert_eq!(short, [0, 7, 0x81, 0x81, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(refuse(&asked[..11], ResponseCode::FormatError), None);
}

#[test]
fn a_refusal_has_edns_if_the_query_had_it() {
    let refused = Query::read(&with_edns(1400, 1)).unwrap().refused(ResponseCode::Refused);
    assert_eq!(&refused[refused.len() - 11..], [0, 0, 41, 4, 0xd0, 0, 0, 0x80, 0, 0, 0]);
    let packet = Packet::parse(&refused).unwrap();
    assert!(packet.opt().is_some() && packet.questions.len() == 1);
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let read = Query::read(&bytes);
        let refused = refuse(&bytes, ResponseCode::ServerFailure);
        prop_assert!(read.is_err() || refused.is_some());
        if let Ok(read) = read {
            prop_assert_eq!(Ok(read.question), question(&bytes));
        }
    }

    #[test]
    fn records_behind_a_question_never_panic(
        count in 0..4_u8,
        records in prop::collection::vec(any::<u8>(), 0..100),
    ) {
        let mut message = query("a.example", TYPE::A);
        message[11] = count;
        message.extend_from_slice(&records);
        let _ = Query::read(&message);
    }
}
