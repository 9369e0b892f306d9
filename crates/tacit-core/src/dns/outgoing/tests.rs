use super::super::message::question_end;
use super::super::testing::query;
use super::*;
use proptest::prelude::*;
use simple_dns::TYPE;

fn asked(message: &[u8]) -> OutgoingQuery {
    OutgoingQuery::new(&Query::read(message).unwrap())
}

/// A query with EDNS options and with additional bytes at its end.
fn loaded(name: &str, id: [u8; 2], options: &[u8], behind: &[u8]) -> Vec<u8> {
    let mut message = query(name, TYPE::A);
    message[..2].copy_from_slice(&id);
    message[11] = 1;
    message.extend_from_slice(&[0, 0, 41, 0x20, 0, 0, 0, 0, 0]);
    message.extend_from_slice(&u16::try_from(options.len()).unwrap().to_be_bytes());
    message.extend_from_slice(options);
    message.extend_from_slice(behind);
    message
}

#[test]
fn flags_follow_the_program_and_recursion_is_always_asked_for() {
    let plain = query("a.example", TYPE::A);
    let written = |flags: [u8; 2], opt: Option<u8>| {
        let mut message = plain.clone();
        message[2..4].copy_from_slice(&flags);
        if let Some(high) = opt {
            message[11] = 1;
            message.extend_from_slice(&[0, 0, 41, 0x10, 0, 0, 0, high, 0x55, 0, 0]);
        }
        let sent = asked(&message).message(0x1234, Style::USUAL, &mut || 0);
        let end = question_end(&sent).unwrap();
        (sent[..4].to_vec(), sent[end..].to_vec())
    };
    let opt = |flags: u8| vec![0, 0, 41, 4, 0xd0, 0, 0, flags, 0, 0, 0];
    assert_eq!(written([0, 0], None), (vec![0x12, 0x34, 1, 0], opt(0)));
    assert_eq!(written([7, 0xff], Some(0)), (vec![0x12, 0x34, 1, 0x30], opt(0)));
    assert_eq!(written([1, 0x20], Some(0xff)), (vec![0x12, 0x34, 1, 0x20], opt(0x80)));
}

#[test]
fn letters_get_a_random_case_and_nothing_else_does() {
    let asked = asked(&query("db-7.Example", TYPE::A));
    let sent = asked.message(1, Style::USUAL, &mut || u64::MAX);
    assert_eq!(&sent[12..26], b"\x04DB-7\x07EXAMPLE\0");
    let plain = Style { mixed_case: false, edns: false };
    let sent = asked.message(1, plain, &mut || u64::MAX);
    assert_eq!(&sent[12..], b"\x04db-7\x07example\0\0\x01\0\x01");
    assert_eq!(sent[11], 0);
}

proptest! {
    #[test]
    fn nothing_of_a_program_leaves_but_the_question(
        name in "[a-zA-Z]{1,20}(\\.[a-zA-Z]{1,20}){0,3}",
        ids in any::<([u8; 2], [u8; 2])>(),
        options in prop::collection::vec(any::<u8>(), 0..200),
        behind in prop::collection::vec(any::<u8>(), 0..200),
        random in any::<u64>(),
    ) {
        let bare = loaded(&name.to_lowercase(), ids.0, &[], &[]);
        let loaded = loaded(&name, ids.1, &options, &behind);
        let sent = |message: &[u8]| asked(message).message(9, Style::USUAL, &mut || random);
        prop_assert_eq!(sent(&bare), sent(&loaded));
        prop_assert_eq!(asked(&bare), asked(&loaded));
    }
}
