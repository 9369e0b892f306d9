//! Tests the bytes of nftables messages. The rules themselves are tested in `rules.rs`.

#![cfg(target_endian = "little")]

use super::batch::{BATCH_BEGIN, BATCH_END, mark};
use super::install::{chain, table};
use super::sets::{ADDING, ELEMENTS_PER_BATCH_MAX, Element, REMOVING, Set, check, list, strokes};
use crate::netlink::IpProtocol;
use crate::netlink::message::NetlinkRequest;
use crate::netlink::testing::{bytes, sealed};

const TACIT: &str = "7461636974 00 0000";

fn element(protocol: IpProtocol, range: [&str; 2], ports: [u16; 2]) -> Element {
    let [first, last] = range.map(|text| text.parse().unwrap());
    Element { protocol, first, last, first_port: ports[0], last_port: ports[1] }
}

#[test]
fn a_batch_is_opened_and_closed() {
    let open = bytes("1400 0000 1000 0100 00000000 00000000 00 00 000a");
    assert_eq!(sealed(&mark("", BATCH_BEGIN)), open);
    let close = bytes("1400 0000 1100 0100 00000000 00000000 00 00 000a");
    assert_eq!(sealed(&mark("", BATCH_END)), close);
}

#[test]
fn the_table_and_the_chain_byte_by_byte() {
    let wanted = format!("2000 0000 000a 0506 00000000 00000000 01 00 0000 0a00 0100 {TACIT}");
    assert_eq!(sealed(&table()), bytes(&wanted));
    let wanted = format!(
        "5800 0000 030a 0504 00000000 00000000 01 00 0000 0a00 0100 {TACIT} \
         0f00 0300 707265726f7574696e67 00 00 \
         1400 0480 0800 0100 00000000 0800 0200 ffffff6a \
         0800 0500 00000001 0b00 0700 66696c746572 00 00"
    );
    assert_eq!(sealed(&chain()), bytes(&wanted));
}

#[test]
fn a_set_is_a_concatenation_of_an_address_and_a_port() {
    let wanted = |name: &str, kind: &str, key: &str, number: &str, address: &str| {
        format!(
            "6c00 0000 090a 0504 00000000 00000000 01 00 0000 0a00 0100 {TACIT} \
             0900 0200 {name}00 000000 0800 0300 00000084 0800 0400 {kind} 0800 0500 000000{key} \
             0800 0a00 000000{number} \
             2000 0980 1c00 0280 0c00 0180 0800 0100 000000{address} 0c00 0180 0800 0100 00000002"
        )
    };
    let four = wanted("74637034", "000001cd", "08", "01", "04");
    assert_eq!(sealed(&Set::Tcp4.declaration()), bytes(&four));
    let six = wanted("75647036", "0000020d", "14", "04", "10");
    assert_eq!(sealed(&Set::Udp6.declaration()), bytes(&six));
}

#[test]
fn elements_byte_by_byte() {
    let head = |length: &str, kind: &str, flags: &str, name: &str| {
        format!(
            "{length} 0000 {kind}0a {flags} 00000000 00000000 01 00 0000 0a00 0100 {TACIT} \
             0900 0200 {name}00 000000"
        )
    };
    let four = element(IpProtocol::Tcp, ["10.9.8.0", "10.9.8.255"], [80, 443]);
    let wanted = format!(
        "{} 2800 0380 2400 0180 1000 0180 0c00 0100 0a090800 0050 0000 \
         1000 0a80 0c00 0100 0a0908ff 01bb 0000",
        head("5400", "0c", "0506", "74637034")
    );
    let added = list(ADDING, &[four]);
    assert_eq!(added.len(), 1);
    assert_eq!(sealed(&added[0]), bytes(&wanted));
    let removed = bytes(&wanted.replacen("0c0a 0506", "0e0a 0500", 1));
    assert_eq!(sealed(&list(REMOVING, &[four])[0]), removed);
    let six = element(IpProtocol::Udp, ["2001:db8::77", "2001:db8::77"], [53, 53]);
    let wanted = format!(
        "{} 4000 0380 3c00 0180 1c00 0180 1800 0100 20010db8000000000000000000000077 0035 0000 \
         1c00 0a80 1800 0100 20010db8000000000000000000000077 0035 0000",
        head("6c00", "0c", "0506", "75647036")
    );
    assert_eq!(sealed(&list(ADDING, &[six])[0]), bytes(&wanted));
    let emptied = bytes(&head("2c00", "0e", "0500", "74637036"));
    assert_eq!(sealed(&Set::Tcp6.emptying()), emptied);
}

#[test]
fn what_goes_and_what_comes_is_one_transaction_up_to_the_limit() {
    let one = element(IpProtocol::Tcp, ["10.0.0.1", "10.0.0.1"], [1, 2]);
    let steps = |gone: usize, new: usize| {
        let strokes = strokes(&vec![one; gone], &vec![one; new]);
        let step = |message: &NetlinkRequest| message.step;
        strokes.iter().map(|stroke| stroke.iter().map(step).collect()).collect::<Vec<Vec<_>>>()
    };
    let going = REMOVING.0;
    let coming = ADDING.0;
    assert!(steps(0, 0).is_empty());
    assert_eq!(steps(1, 1), [[going, coming]]);
    let half = ELEMENTS_PER_BATCH_MAX / 2;
    assert_eq!(steps(half, half).len(), 1);
    let split = steps(half + 1, half);
    assert!(split.len() == 2 && split[0].iter().all(|step| *step == going), "{split:?}");
    assert_eq!(steps(ELEMENTS_PER_BATCH_MAX + 1, ELEMENTS_PER_BATCH_MAX + 1).len(), 4);
}

#[test]
fn the_largest_batch_fits_one_send() {
    let six = element(IpProtocol::Tcp, ["::1", "::2"], [1, 2]);
    let many = vec![six; ELEMENTS_PER_BATCH_MAX];
    let messages = list(ADDING, &many);
    let length = |message: &NetlinkRequest| message.bytes_len();
    assert!(messages.iter().all(|message| length(message) < usize::from(u16::MAX)));
    let total: usize = messages.iter().map(length).sum();
    assert!(total + 1024 < crate::netlink::BATCH_BYTES_MAX, "{total}");
}

#[test]
fn upside_down_ranges_are_refused() {
    for bad in [
        element(IpProtocol::Tcp, ["10.0.0.2", "10.0.0.1"], [1, 1]),
        element(IpProtocol::Tcp, ["10.0.0.1", "::1"], [1, 1]),
        element(IpProtocol::Udp, ["::1", "::1"], [2, 1]),
    ] {
        assert!(check(&[bad]).is_err(), "{bad:?}");
    }
}
