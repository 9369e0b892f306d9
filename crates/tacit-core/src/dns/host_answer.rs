//! Writes DNS responses with the true addresses of a name, for `tacit agent --host`. Programs under
//! `tacit run` may get an alias (a reserved address that stands for one name) instead.

use std::net::IpAddr;
use std::time::Duration;

use simple_dns::{Packet, PacketFlag, TYPE};

use super::alias_answer::address_of;
use super::message::DnsError;

/// Returns the response with only those addresses for which `may_have` is true, and with TTLs of at
/// most `ttl_max`; `None` if nothing changes.
///
/// If an address is removed, the signatures (RRSIG), the AD flag and all records in other sections
/// are removed too. The signatures and the flag are valid only for the complete list of addresses.
///
/// # Errors
/// The response is malformed.
pub fn with_addresses(
    response: &[u8],
    may_have: impl Fn(IpAddr) -> bool,
    ttl_max: Duration,
) -> Result<Option<Vec<u8>>, DnsError> {
    let mut packet = Packet::parse(response).map_err(|_| DnsError::Malformed)?;
    let ttl_max_s = u32::try_from(ttl_max.as_secs()).unwrap_or(u32::MAX);
    let all = packet.answers.iter().chain(&packet.name_servers).chain(&packet.additional_records);
    let loses =
        all.filter_map(|record| address_of(&record.rdata)).any(|address| !may_have(address));
    let is_long = packet.answers.iter().any(|record| record.ttl > ttl_max_s);
    if !loses && !is_long {
        return Ok(None);
    }
    for record in &mut packet.answers {
        record.ttl = record.ttl.min(ttl_max_s);
    }
    if loses {
        packet.answers.retain(|record| match address_of(&record.rdata) {
            Some(address) => may_have(address),
            None => record.rdata.type_code() != TYPE::RRSIG,
        });
        packet.name_servers.clear();
        packet.additional_records.clear();
        packet.remove_flags(PacketFlag::AUTHENTIC_DATA);
    }
    packet.build_bytes_vec_compressed().map(Some).map_err(|_| DnsError::Malformed)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use simple_dns::rdata::{A, RData};

    use super::super::question::question;
    use super::super::testing::{query, record, response};
    use super::super::{DnsQuestion, answers};
    use super::*;

    const MAX: Duration = Duration::from_secs(600);

    fn v4(address: u32) -> RData<'static> {
        RData::A(A { address })
    }

    fn requested() -> DnsQuestion {
        question(&query("db.example", TYPE::A)).unwrap()
    }

    fn is_good(address: IpAddr) -> bool {
        address != IpAddr::from([169, 254, 0, 1])
    }

    #[test]
    fn addresses_that_a_name_may_not_have_are_left_out_and_long_ttls_cut() {
        let records = vec![
            record("db.example", 3600, v4(0x0a07_0005)),
            record("db.example", 60, v4(0xa9fe_0001)),
        ];
        let changed = with_addresses(&response("db.example", records), is_good, MAX);
        let found = answers(&changed.unwrap().unwrap(), &requested()).unwrap();
        let found: Vec<_> = found.iter().map(|one| (one.address.to_string(), one.ttl)).collect();
        assert_eq!(found, [("10.7.0.5".to_owned(), MAX)]);
        let plain = response("db.example", vec![record("db.example", 600, v4(0x0a07_0005))]);
        assert_eq!(with_addresses(&plain, is_good, MAX), Ok(None));
        assert_eq!(with_addresses(&plain[..20], is_good, MAX), Err(DnsError::Malformed));
    }

    proptest! {
        #[test]
        fn no_other_address_and_no_longer_ttl_leaves(
            records in prop::collection::vec((0xa9fe_0000_u32..0xa9fe_0003, 0_u32..1200), 0..20),
        ) {
            let records = records.iter().map(|(one, ttl)| record("db.example", *ttl, v4(*one)));
            let wire = response("db.example", records.collect());
            let changed = with_addresses(&wire, is_good, MAX).unwrap().unwrap_or(wire);
            for found in answers(&changed, &requested()).unwrap() {
                prop_assert!(is_good(found.address) && found.ttl <= MAX);
            }
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = with_addresses(&bytes, is_good, MAX);
        }
    }
}
