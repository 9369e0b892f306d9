//! Writes DNS responses that contain alias addresses instead of true addresses. An alias is an
//! address that tacit assigns to one name, so that the address identifies the name.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use simple_dns::rdata::{A, AAAA, PTR, RData};
use simple_dns::{CLASS, Name, Packet, PacketFlag, QTYPE, ResourceRecord, TYPE};

use super::message::DnsError;

/// The time for which a program may cache the name of an alias address. An alias keeps its meaning
/// for the whole run.
const POINTER_TTL_S: u32 = 60;

/// Returns the response with each address replaced by the address that `used` returns for it;
/// `None` if no address changes. Address records without a replacement are removed. Otherwise a
/// program could use an address that the table does not have for this name.
///
/// A changed response keeps its CNAME records and TTLs. It has no signatures (RRSIG) and no AD
/// flag, because those are valid only for the true addresses. It has no records in other sections.
///
/// # Errors
/// The response is malformed.
pub fn with_aliases(
    response: &[u8],
    used: impl Fn(IpAddr) -> Option<IpAddr>,
) -> Result<Option<Vec<u8>>, DnsError> {
    let mut packet = Packet::parse(response).map_err(|_| DnsError::Malformed)?;
    let all = packet.answers.iter().chain(&packet.name_servers).chain(&packet.additional_records);
    let stays = |record: &ResourceRecord<'_>| {
        address_of(&record.rdata).is_none_or(|address| used(address) == Some(address))
    };
    if all.into_iter().all(stays) {
        return Ok(None);
    }
    packet.answers.retain_mut(|record| {
        let Some(address) = address_of(&record.rdata) else {
            return record.rdata.type_code() != TYPE::RRSIG;
        };
        let Some(used) = used(address) else { return false };
        replace(&mut record.rdata, used)
    });
    packet.name_servers.clear();
    packet.additional_records.clear();
    packet.remove_flags(PacketFlag::AUTHENTIC_DATA);
    packet.build_bytes_vec_compressed().map(Some).map_err(|_| DnsError::Malformed)
}

/// Builds the response to a query for the name of an address (PTR); `None` if the name does not
/// fit.
#[must_use]
pub fn name_answer(query: &[u8], name: &str) -> Option<Vec<u8>> {
    let mut packet = Packet::parse(query).ok()?.into_reply();
    packet.set_flags(PacketFlag::RESPONSE | PacketFlag::RECURSION_AVAILABLE);
    let owner = packet.questions.first()?.qname.clone();
    // The table escapes labels with other bytes. They are not host names.
    let target = Name::new(name).ok().filter(|_| !name.contains('\\'))?;
    let data = RData::PTR(PTR(target));
    packet.answers.push(ResourceRecord::new(owner, CLASS::IN, POINTER_TTL_S, data));
    packet.additional_records.clear();
    packet.build_bytes_vec_compressed().ok()
}

/// Builds the response to a query for the addresses of a host (A or AAAA); `None` for other types.
#[must_use]
pub fn address_answer(query: &[u8], addresses: &[IpAddr]) -> Option<Vec<u8>> {
    let mut packet = Packet::parse(query).ok()?.into_reply();
    packet.set_flags(PacketFlag::RESPONSE | PacketFlag::RECURSION_AVAILABLE);
    let requested = packet.questions.first()?;
    let QTYPE::TYPE(kind @ (TYPE::A | TYPE::AAAA)) = requested.qtype else { return None };
    let owner = requested.qname.clone();
    let records = addresses.iter().filter_map(|address| match (address, kind) {
        (IpAddr::V4(v4), TYPE::A) => Some(RData::A(A { address: v4.to_bits() })),
        (IpAddr::V6(v6), TYPE::AAAA) => Some(RData::AAAA(AAAA { address: v6.to_bits() })),
        _ => None,
    });
    let record = |data| ResourceRecord::new(owner.clone(), CLASS::IN, POINTER_TTL_S, data);
    packet.answers.extend(records.map(record));
    packet.additional_records.clear();
    packet.build_bytes_vec_compressed().ok()
}

/// The address in a record.
pub(super) fn address_of(data: &RData<'_>) -> Option<IpAddr> {
    match data {
        RData::A(a) => Some(Ipv4Addr::from_bits(a.address).into()),
        RData::AAAA(aaaa) => Some(IpAddr::from(Ipv6Addr::from_bits(aaaa.address)).to_canonical()),
        _ => None,
    }
}

/// Writes an address into a record. Returns whether the record can contain this address.
fn replace(data: &mut RData<'_>, address: IpAddr) -> bool {
    match (data, address) {
        (RData::A(A { address: bits }), IpAddr::V4(v4)) => *bits = v4.to_bits(),
        (RData::AAAA(AAAA { address: bits }), IpAddr::V4(v4)) => {
            *bits = v4.to_ipv6_mapped().to_bits();
        }
        (RData::AAAA(AAAA { address: bits }), IpAddr::V6(v6)) => *bits = v6.to_bits(),
        _ => return false,
    }
    true
}

#[cfg(test)]
mod tests {
    use super::super::answers;
    use super::super::question::question;
    use super::super::response::{Match, matches};
    use super::super::testing::{query, record, response};
    use super::*;
    use proptest::prelude::*;
    use simple_dns::rdata::CNAME;

    fn v4(address: u32) -> RData<'static> {
        RData::A(A { address })
    }

    fn chain() -> Vec<u8> {
        let cname = RData::CNAME(CNAME(Name::new_unchecked("cdn.example")));
        let mapped = RData::AAAA(AAAA { address: 0xffff_0a07_0007 });
        let records = vec![
            record("www.example", 300, cname),
            record("cdn.example", 60, v4(0x0a07_0005)),
            record("cdn.example", 60, mapped),
            record("other.example", 60, v4(0x0a07_0006)),
        ];
        let mut wire = response("www.example", records);
        wire[3] |= 0x20;
        wire
    }

    fn alias(address: IpAddr) -> Option<IpAddr> {
        match address.to_string().as_str() {
            "10.7.0.5" => Some("198.18.0.1".parse().unwrap()),
            "10.7.0.7" => Some("198.18.0.2".parse().unwrap()),
            _ => None,
        }
    }

    #[test]
    fn the_address_at_the_end_of_a_chain_is_replaced_and_the_ttl_kept() {
        let wire = chain();
        let changed = with_aliases(&wire, alias).unwrap().unwrap();
        let requested = query("www.example", TYPE::A);
        assert_eq!(matches(&changed, &requested), Match::Exact);
        let found = answers(&changed, &question(&requested).unwrap()).unwrap();
        let found: Vec<_> =
            found.iter().map(|one| (one.address.to_string(), one.ttl.as_secs())).collect();
        let expected = [("198.18.0.1", 60), ("::ffff:198.18.0.2", 60)];
        assert_eq!(found, expected.map(|(address, ttl)| (address.to_owned(), ttl)));
        let packet = Packet::parse(&changed).unwrap();
        assert_eq!(packet.answers.len(), 3, "the record of another name is left out");
        assert!(!packet.has_flags(PacketFlag::AUTHENTIC_DATA));
    }

    #[test]
    fn a_response_whose_addresses_all_stay_is_not_changed() {
        assert_eq!(with_aliases(&chain(), Some), Ok(None));
    }

    #[test]
    fn an_alias_has_a_name() {
        let requested = query("1.0.18.198.in-addr.arpa", TYPE::PTR);
        let answer = name_answer(&requested, "db.example").unwrap();
        assert_eq!(matches(&answer, &requested), Match::Exact);
        let packet = Packet::parse(&answer).unwrap();
        assert_eq!(packet.answers[0].rdata, RData::PTR(PTR(Name::new_unchecked("db.example"))));
        assert_eq!(name_answer(&requested, "a\\046b.example"), None);
    }

    #[test]
    fn a_host_has_its_addresses_of_the_type_in_the_query() {
        let addresses = ["10.7.0.5", "2001:db8::5"].map(|one| one.parse().unwrap());
        let found = |addresses: &[IpAddr], kind| {
            let requested = query("gateway.example", kind);
            let answer = address_answer(&requested, addresses)?;
            assert_eq!(matches(&answer, &requested), Match::Exact);
            let found = answers(&answer, &question(&requested).unwrap()).unwrap();
            Some(found.iter().map(|one| one.address.to_string()).collect::<Vec<_>>())
        };
        assert_eq!(found(&addresses, TYPE::A), Some(vec!["10.7.0.5".to_owned()]));
        assert_eq!(found(&addresses, TYPE::AAAA), Some(vec!["2001:db8::5".to_owned()]));
        assert_eq!(found(&addresses[..1], TYPE::AAAA), Some(vec![]));
        assert_eq!(found(&addresses, TYPE::TXT), None);
    }

    proptest! {
        #[test]
        fn no_address_but_those_given_leaves(
            addresses in prop::collection::vec(0x0a07_0000_u32..0x0a07_000a, 0..20),
        ) {
            let owners = ["a.example", "b.example"];
            let records = addresses.iter().enumerate();
            let records = records.map(|(at, one)| record(owners[at % 2], 60, v4(*one))).collect();
            let wire = response("a.example", records);
            let changed = with_aliases(&wire, alias).unwrap().unwrap_or(wire);
            for record in Packet::parse(&changed).unwrap().answers {
                prop_assert_eq!(record.class, CLASS::IN);
                let address = address_of(&record.rdata).unwrap().to_string();
                prop_assert!(address.starts_with("198.18.0."), "{}", address);
            }
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = with_aliases(&bytes, |_| None);
            let _ = name_answer(&bytes, "a");
        }
    }
}
