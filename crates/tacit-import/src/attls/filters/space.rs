//! Computes intersections of address lists and of port lists.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;

/// A range of addresses of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    is_v4: bool,
    first: u128,
    last: u128,
}

/// The ranges that an entry of a policy stands for.
fn spans(text: &str) -> Option<Vec<Span>> {
    match text {
        "loopback" => return [span("127.0.0.0/8"), span("::1")].into_iter().collect(),
        "link-local" => return [span("169.254.0.0/16"), span("fe80::/10")].into_iter().collect(),
        _ => {}
    }
    span(text).map(|span| vec![span])
}

fn span(text: &str) -> Option<Span> {
    let number = |ip: IpAddr| match ip.to_canonical() {
        IpAddr::V4(ip) => (true, u128::from(ip.to_bits())),
        IpAddr::V6(ip) => (false, ip.to_bits()),
    };
    if let Some((network, length)) = text.split_once('/') {
        let (is_v4, first) = number(network.parse().ok()?);
        let width = if is_v4 { 32 } else { 128 };
        let host_bits = width - length.parse::<u32>().ok().filter(|length| *length <= width)?;
        let hosts = 1_u128.checked_shl(host_bits).map_or(u128::MAX, |size| size - 1);
        return Some(Span { is_v4, first, last: first | hosts });
    }
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let ((is_v4, first), (other, last)) = (number(first.parse().ok()?), number(last.parse().ok()?));
    (is_v4 == other && first <= last).then_some(Span { is_v4, first, last })
}

impl Span {
    fn meet(self, other: Self) -> Option<Self> {
        let first = self.first.max(other.first);
        let last = self.last.min(other.last);
        (self.is_v4 == other.is_v4 && first <= last).then_some(Self { first, last, ..self })
    }

    fn show(self) -> String {
        let ip = |bits: u128| match self.is_v4 {
            true => IpAddr::V4(Ipv4Addr::from_bits(u32::try_from(bits).unwrap_or(u32::MAX))),
            false => IpAddr::V6(Ipv6Addr::from_bits(bits)),
        };
        let hosts = self.last - self.first;
        let width = if self.is_v4 { 32 } else { 128 };
        // The range is a network if its size is a power of two and its first address is aligned to
        // it.
        let is_network = hosts & hosts.wrapping_add(1) == 0 && self.first & hosts == 0;
        match hosts {
            0 => ip(self.first).to_string(),
            _ if is_network => {
                let length = width - (u128::BITS - hosts.leading_zeros());
                format!("{}/{length}", ip(self.first))
            }
            _ => format!("{}-{}", ip(self.first), ip(self.last)),
        }
    }
}

/// The intersection of two lists of addresses, where an empty list means all addresses; `Ok(None)`
/// if it is empty.
///
/// # Errors
/// A word that is a name, and could be any address.
pub(super) fn addresses(a: &[String], b: &[String]) -> Result<Option<Vec<String>>, String> {
    if a.is_empty() || b.is_empty() {
        return Ok(Some([a, b].concat()));
    }
    let all = |texts: &[String]| {
        let spans = texts.iter().map(|text| spans(text).ok_or_else(|| text.clone()));
        spans.collect::<Result<Vec<_>, _>>().map(|spans| spans.concat())
    };
    let ours = all(a)?;
    let theirs = all(b)?;
    let common = ours.iter().flat_map(|one| theirs.iter().filter_map(|other| one.meet(*other)));
    let mut distinct = Vec::new();
    for shown in common.map(Span::show) {
        if !distinct.contains(&shown) {
            distinct.push(shown);
        }
    }
    Ok((!distinct.is_empty()).then_some(distinct))
}

/// The intersection of two lists of ports.
pub(super) fn ports(
    a: &[RangeInclusive<u16>],
    b: &[RangeInclusive<u16>],
) -> Option<Vec<RangeInclusive<u16>>> {
    if a.is_empty() || b.is_empty() {
        return Some([a, b].concat());
    }
    let meet = |a: &RangeInclusive<u16>, b: &RangeInclusive<u16>| {
        let both = *a.start().max(b.start())..=*a.end().min(b.end());
        (!both.is_empty()).then_some(both)
    };
    let common: Vec<_> =
        a.iter().flat_map(|one| b.iter().filter_map(|other| meet(one, other))).collect();
    (!common.is_empty()).then_some(common)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn meet(a: &[&str], b: &[&str]) -> Option<String> {
        let [a, b] = [a, b].map(|all| all.iter().map(|one| (*one).to_owned()).collect::<Vec<_>>());
        addresses(&a, &b).unwrap().map(|common| common.join(" "))
    }

    #[test]
    fn addresses_have_in_common_what_both_mean() {
        for (a, b, wanted) in [
            (&[][..], &[][..], Some("")),
            (&["10.0.0.0/8"], &[], Some("10.0.0.0/8")),
            (&["10.0.0.0/8"], &["10.1.0.0/16", "11.0.0.1"], Some("10.1.0.0/16")),
            (&["10.0.0.1-10.0.0.9"], &["10.0.0.8/29"], Some("10.0.0.8/31")),
            (&["10.0.0.1-10.0.0.9"], &["10.0.0.5-10.0.0.6"], Some("10.0.0.5-10.0.0.6")),
            (&["loopback"], &["0.0.0.0/0", "::/0"], Some("127.0.0.0/8 ::1")),
            (&["::/0"], &["::/0"], Some("::/0")),
            (&["10.0.0.1"], &["10.0.0.2"], None),
            (&["0.0.0.0/0"], &["::/0"], None),
        ] {
            assert_eq!(meet(a, b).as_deref(), wanted, "{a:?} {b:?}");
        }
        let names = ["db.example".to_owned()];
        assert_eq!(addresses(&names, &[]), Ok(Some(names.to_vec())));
        assert!(addresses(&names, &["10.0.0.1".to_owned()]).is_err());
        assert_eq!(ports(&[1..=10, 20..=30], &[5..=25]), Some(vec![5..=10, 20..=25]));
        assert_eq!(ports(&[1..=1], &[2..=2]), None);
    }

    proptest! {
        #[test]
        fn what_is_shown_of_a_span_means_the_same(first in any::<u32>(), length in 0..70_000_u32) {
            let last = first.saturating_add(length);
            let span = Span { is_v4: true, first: first.into(), last: last.into() };
            prop_assert_eq!(super::span(&span.show()), Some(span));
        }
    }
}
