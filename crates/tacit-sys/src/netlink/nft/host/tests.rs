use super::super::sets::Element;
use super::names::Openers;
use super::{
    CgroupId, CountedElement, HostElement, HostMarks, HostTable, Layout, Lifetime, PacketVerdict,
    SenderCheck, Stage, TableSection, contents, declare,
};
use crate::ip_version::IpSupport;
use crate::netlink::IpProtocol;
use crate::netlink::testing::{bytes, sealed};

const EVERYONE: &[TableSection<'static>] = &[TableSection {
    senders: &[SenderCheck { user: None, group: None, cgroup: None, without_mark: None }],
    outbound: &[],
    counted: &[],
}];

const TRACKED: Layout = Layout { openers: Openers::Tracked, stage: Stage::First };

fn table(inbound: &[Element]) -> HostTable<'_> {
    let marks = HostMarks::new(0x3000_0000).unwrap();
    HostTable {
        marks,
        user: None,
        others: PacketVerdict::Pass,
        sections: EVERYONE,
        inbound,
        names: None,
        forwarded: &[],
        lifetime: Lifetime::Unlimited,
        filters: None,
    }
}

fn element(protocol: IpProtocol, address: &str, port: u16) -> Element {
    let address = address.parse().unwrap();
    Element { protocol, first: address, last: address, first_port: port, last_port: port }
}

#[test]
fn marks_take_two_bits() {
    let marks = HostMarks::new(0x8001_0000).unwrap();
    assert_eq!(
        [marks.agent(), marks.captured(), marks.release()],
        [0x1_0000, 0x8000_0000, 0x8001_0000]
    );
    for wrong in [0, 1, 7, u32::MAX] {
        assert_eq!(HostMarks::new(wrong), None, "{wrong:x}");
    }
}

#[test]
#[cfg(target_endian = "little")]
fn a_table_that_persists_byte_by_byte() {
    let wanted = "2800 0000 000a 0504 00000000 00000000 01 00 0000 0a00 0100 7461636974 00 0000 \
                  0800 0200 00000006";
    assert_eq!(sealed(&declare(super::OWNER | super::PERSIST)), bytes(wanted));
}

#[test]
#[cfg(target_endian = "little")]
fn a_message_takes_the_name_of_another_table_byte_by_byte() {
    let wanted = "2c00 0000 000a 0504 00000000 00000000 01 00 0000 \
                  0e00 0100 74616369742d6e6577 00 0000 0800 0200 00000006";
    let message = declare(super::OWNER | super::PERSIST);
    assert_eq!(sealed(&super::of_table(message, super::NEW_TABLE)), bytes(wanted));
}

#[test]
#[cfg(target_endian = "little")]
fn an_element_holds_its_verdict_byte_by_byte() {
    let to = element(IpProtocol::Tcp, "10.9.8.7", 443);
    let messages =
        super::elements::outbound(3, &[HostElement { to, verdict: PacketVerdict::Capture }]);
    let wanted = "7000 0000 0c0a 0504 00000000 00000000 01 00 0000 0a00 0100 7461636974 00 0000 \
         0b00 0200 74637034 5f33 00 00 \
         4400 0380 4000 0180 1000 0180 0c00 0100 0a090807 01bb 0000 \
         1000 0a80 0c00 0100 0a090807 01bb 0000 \
         1c00 0280 1800 0280 0800 0100 fffffffc 0c00 0200 63617074757265 00";
    assert_eq!(sealed(&messages[0]), bytes(wanted));
}

#[test]
fn inbound_rules_are_there_only_for_captured_ports() {
    let leads = |inbound: &[Element]| {
        let all = contents::all(IpSupport::V4AndV6, &table(inbound), TRACKED);
        all.iter().any(|message| message.step.contains("sends packets of clients to the agent"))
    };
    assert!(!leads(&[]));
    assert!(leads(&[element(IpProtocol::Tcp, "0.0.0.0", 80)]));
}

#[test]
fn every_captured_packet_that_finds_no_agent_is_refused() {
    let all =
        contents::all(IpSupport::V4AndV6, &table(&[element(IpProtocol::Tcp, "::", 80)]), TRACKED);
    let holds = |message: &crate::netlink::message::NetlinkRequest, name: &[u8]| {
        sealed(message).windows(name.len()).any(|part| part == name)
    };
    for (at, message) in all.iter().enumerate().filter(|(_, one)| holds(one, b"tproxy")) {
        assert!(holds(&all[at + 1], b"reject"), "{}", message.step);
    }
}

#[test]
fn destinations_are_decided_as_programs_use_them_and_as_nat_makes_them() {
    let to = element(IpProtocol::Udp, "10.9.8.7", 443);
    let outbound = [HostElement { to, verdict: PacketVerdict::Capture }];
    let sections = [TableSection { outbound: &outbound, ..EVERYONE[0] }];
    let all = contents::all(
        IpSupport::V4AndV6,
        &HostTable { sections: &sections, ..table(&[]) },
        TRACKED,
    );
    let decided = |chain: &[u8]| {
        let holds =
            |message: &[u8], name: &[u8]| message.windows(name.len()).any(|part| part == name);
        let all = all.iter().filter(|message| message.step.contains("looks up the destination"));
        all.filter(|message| holds(&sealed(message), chain)).count()
    };
    assert_eq!(
        [decided(b"output\0"), decided(b"rewritten\0")],
        [1, 1],
        "a map without elements has no rule"
    );
}

#[test]
fn a_section_is_reached_only_by_its_senders() {
    let cgroup = CgroupId { level: 2, id: 0x0102_0304_0506_0708 };
    let senders = [
        SenderCheck { user: Some(1000), group: Some(0x64), ..SenderCheck::default() },
        SenderCheck { cgroup: Some(cgroup), ..SenderCheck::default() },
    ];
    let to = element(IpProtocol::Tcp, "10.9.8.7", 443);
    let outbound = &[HostElement { to, verdict: PacketVerdict::Capture }];
    let sections = [
        TableSection { senders: &senders, outbound, counted: &[] },
        TableSection { senders: &[], outbound, counted: &[] },
        TableSection { outbound, ..EVERYONE[0] },
    ];
    let all = contents::all(
        IpSupport::V4AndV6,
        &HostTable { sections: &sections, ..table(&[]) },
        TRACKED,
    );
    let holds = |message: &[u8], part: &[u8]| message.windows(part.len()).any(|at| at == part);
    let sealed: Vec<_> = all.iter().map(|message| (message.step, sealed(message))).collect();
    let jumps: Vec<_> = sealed
        .iter()
        .filter(|(step, message)| step.contains("checks the sender") && holds(message, b"output\0"))
        .collect();
    assert_eq!(jumps.len(), 2, "no check, no sender");
    assert!(holds(&jumps[0].1, &1000_u32.to_ne_bytes()) && holds(&jumps[0].1, b"section_0\0"));
    assert!(holds(&jumps[1].1, &cgroup.id.to_ne_bytes()) && holds(&jumps[1].1, b"socket\0"));
    let in_chain = |chain: &[u8]| {
        let rules = sealed.iter().filter(|(step, _)| step.contains("looks up the destination"));
        rules.filter(|(_, message)| holds(message, chain)).count()
    };
    let chains = [&b"section_0\0"[..], b"section_1\0", b"section_2\0", b"output\0"];
    assert_eq!(chains.map(in_chain), [1, 1, 0, 1]);
}

/// The rules without connection tracking for one captured port, each with its bytes.
fn untracked(stage: Stage) -> Vec<(&'static str, Vec<u8>)> {
    let to = element(IpProtocol::Tcp, "10.9.8.7", 443);
    let outbound = [HostElement { to, verdict: PacketVerdict::Capture }];
    let sections = [TableSection { outbound: &outbound, ..EVERYONE[0] }];
    let table = HostTable { sections: &sections, ..table(&[]) };
    assert_eq!(super::untracked::openers(&table), Openers::InSets);
    let layout = Layout { openers: Openers::InSets, stage };
    let all = contents::all(IpSupport::V4AndV6, &table, layout);
    all.iter().map(|message| (message.step, sealed(message))).collect()
}

fn holds(message: &[u8], part: &[u8]) -> bool {
    message.windows(part.len()).any(|at| at == part)
}

#[test]
fn a_table_of_outbound_rules_has_no_expression_of_connection_tracking() {
    for (step, message) in untracked(Stage::Replacing) {
        assert!(!holds(&message, b"\x07\0\x01\0ct\0"), "{step}");
    }
    let tracked = contents::all(IpSupport::V4AndV6, &table(&[]), TRACKED);
    assert!(tracked.iter().any(|message| holds(&sealed(message), b"\x07\0\x01\0ct\0")));
}

#[test]
fn every_captured_packet_that_cannot_be_noted_is_refused() {
    let all = untracked(Stage::First);
    let notes = |(_, message): &&(_, Vec<u8>)| {
        // Those that are for a SYN, and those for datagrams.
        holds(message, b"dynset") && (holds(message, &180_000_u64.to_be_bytes()))
    };
    let kept =
        all.iter().filter(notes).filter(|(step, _)| step.contains("of a captured connection"));
    assert_eq!(kept.count(), 4, "a SYN and an end, over IPv4 and IPv6");
    let syn = |(step, message): &(&str, Vec<u8>), last: &[u8]| {
        step.contains("of a captured connection")
            && holds(message, last)
            && !holds(message, b"goto")
    };
    let first = all.iter().position(|rule| syn(rule, &180_000_u64.to_be_bytes())).unwrap();
    assert!(syn(&all[first + 1], b"reject"), "the next rule refuses the SYN");
    let datagrams = all.iter().rposition(|(step, _)| step.contains("captures datagrams")).unwrap();
    assert!(holds(&all[datagrams + 1].1, b"reject"), "the next rule refuses the datagram");
}

/// How many rules find or count flows, of a table that captures one port and counts another.
fn counting(protocol: IpProtocol, counted_port: u16) -> [usize; 2] {
    let captured = element(protocol, "10.9.8.7", 443);
    let outbound = [HostElement { to: captured, verdict: PacketVerdict::Capture }];
    let counted =
        [CountedElement { to: Element { first_port: counted_port, ..captured }, number: 0 }];
    let sections = [TableSection { outbound: &outbound, counted: &counted, ..EVERYONE[0] }];
    let table = HostTable { sections: &sections, ..table(&[]) };
    let layout = Layout { openers: Openers::InSets, stage: Stage::First };
    let all = contents::all(IpSupport::V4AndV6, &table, layout);
    ["selects the flows to count", "counts flows"]
        .map(|step| all.iter().filter(|message| message.step.ends_with(step)).count())
}

#[test]
fn only_flows_outside_the_range_of_the_rules_are_found_for_counting() {
    for protocol in [IpProtocol::Tcp, IpProtocol::Udp] {
        assert_eq!(counting(protocol, 443), [0, 1], "no further comparison of every packet");
        assert_eq!(counting(protocol, 80), [2, 1]);
    }
}

#[test]
fn strays_are_looked_for_only_after_another_table() {
    let counted = |stage| {
        let all = untracked(stage);
        all.iter().filter(|(_, message)| holds(message, b"strays\0")).count()
    };
    assert_eq!([counted(Stage::First), counted(Stage::Replacing)], [0, 5]);
}

#[test]
fn rules_that_answers_to_clients_meet_need_connection_tracking() {
    let to = element(IpProtocol::Tcp, "10.9.8.7", 443);
    let of = |last_port, verdict, others, forwarded: &[String]| {
        let to = Element { last_port, ..to };
        let outbound = [HostElement { to, verdict }];
        let sections = [TableSection { outbound: &outbound, ..EVERYONE[0] }];
        super::untracked::openers(&HostTable {
            sections: &sections,
            others,
            forwarded,
            ..table(&[])
        })
    };
    let capture = PacketVerdict::Capture;
    let pass = PacketVerdict::Pass;
    assert_eq!(of(443, capture, pass, &[]), Openers::InSets);
    assert_eq!(of(u16::MAX, pass, pass, &[]), Openers::InSets);
    assert_eq!(of(u16::MAX, capture, pass, &[]), Openers::Tracked);
    assert_eq!(of(443, capture, PacketVerdict::Refuse, &[]), Openers::Tracked);
    assert_eq!(of(443, capture, pass, &["br0".to_owned()]), Openers::Tracked);
    let inbound = [to];
    assert_eq!(super::untracked::openers(&table(&inbound)), Openers::Tracked);
}
