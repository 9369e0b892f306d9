//! Builds DNS messages for tests.

use simple_dns::rdata::RData;
use simple_dns::{CLASS, Name, Packet, PacketFlag, QCLASS, ResourceRecord, TYPE};

pub(super) fn query(name: &str, kind: TYPE) -> Vec<u8> {
    let mut packet = Packet::new_query(7);
    packet.set_flags(PacketFlag::RECURSION_DESIRED);
    packet.questions.push(simple_dns::Question::new(
        Name::new_unchecked(name),
        kind.into(),
        QCLASS::CLASS(CLASS::IN),
        false,
    ));
    packet.build_bytes_vec().unwrap()
}

pub(super) fn response(name: &str, records: Vec<ResourceRecord<'static>>) -> Vec<u8> {
    let requested = query(name, TYPE::A);
    let mut packet = Packet::parse(&requested).unwrap().into_reply();
    packet.answers.extend(records);
    packet.build_bytes_vec().unwrap()
}

pub(super) fn record(
    owner: &'static str,
    ttl_s: u32,
    data: RData<'static>,
) -> ResourceRecord<'static> {
    ResourceRecord::new(Name::new_unchecked(owner), CLASS::IN, ttl_s, data)
}
