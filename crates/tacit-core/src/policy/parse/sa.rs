//! Parses the tables `[sa.NAME]` of a policy. Each table defines a pair of IPsec security
//! associations (SAs) with one peer. The keys of the SAs are in files.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use super::ike::{InnerUsers, check_users, inner_addresses};
use super::names::tables;
use super::value;
use super::words::Scope;
use crate::message_id::MessageId;
use crate::policy::diagnostic::SourcePosition;
use crate::policy::ike::{IkePeer, Sha2, TunnelCipher};
use crate::policy::sa::{ManualMode, ManualProtection, ManualSa, SaKeyFile};
use crate::policy::text::{TableTitle, TomlTable, TomlValue};

/// The SPIs of received packets, each with the table that has it.
type SpiUsers = RefCell<BTreeMap<u32, (String, SourcePosition)>>;

/// Reads all tables; those with errors by their name only.
pub(super) fn read_all<'a>(
    top: &TomlTable<'a>,
    ikes: &BTreeMap<&'a str, Option<IkePeer>>,
    inner: &InnerUsers,
) -> BTreeMap<&'a str, Option<ManualSa>> {
    let spis = SpiUsers::default();
    tables(top, "sa", Scope::Sas, |name, value| {
        let sa = read(name, value, &spis, inner)?;
        if ikes.contains_key(name) {
            let message = format!("the policy also has a table [ike.{name}]");
            let fix = "choose another name: rules and the output of `tacit show` identify a tunnel \
                       only by this name";
            value.report.error(MessageId("name-taken"), &value.name_at, message, fix);
            return None;
        }
        Some(sa)
    })
}

/// Reads one table; `None` after an error was reported.
fn read(
    name: &str,
    value: &TomlValue<'_>,
    spis: &SpiUsers,
    users: &InnerUsers,
) -> Option<ManualSa> {
    let table = value.table(Scope::Sa, format!("[sa.{name}]"))?;
    let fix = "set the IP address of the peer: peer = \"192.0.2.1\"";
    let peer = table.required("peer", fix).and_then(|value| peer(&value));
    let wrapping = wrapping(&table)?;
    let port = port(&table, wrapping);
    let algorithms = algorithms(&table, wrapping);
    let fix = "set the SPI of packets that tacit receives: spi-in = 0x1001. This SPI must be equal \
               to `spi-out` of the peer";
    let spi_in = table.required("spi-in", fix).and_then(|value| {
        let number = spi(&value)?;
        check_spi(&table.title, &value, number, spis).map(|()| number)
    });
    let fix = "set the SPI of packets that tacit sends: spi-out = 0x1002. This SPI must be equal \
               to `spi-in` of the peer";
    let spi_out = table.required("spi-out", fix).and_then(|value| spi(&value));
    let fix =
        "set the file that contains the keys for received packets: keys-in = \"branch-in.keys\"";
    let keys_in = table.required("keys-in", fix).and_then(|value| key_file(&value));
    let fix =
        "set the file that contains the keys for sent packets: keys-out = \"branch-out.keys\"";
    let keys_out = table.required("keys-out", fix).and_then(|value| key_file(&value));
    let anti_replay = table.boolean("anti-replay", false);
    let ends = ends(&table, peer, wrapping, users);
    let keys_in = keys_in?;
    let keys_out = keys_out?;
    check_files(&table, &keys_in, &keys_out)?;
    let Ends { mode, inner, local } = ends?;
    Some(ManualSa {
        peer: SocketAddr::new(peer?, port?),
        protection: protection(wrapping, algorithms?, local)?,
        spi_in: spi_in?,
        spi_out: spi_out?,
        keys_in,
        keys_out,
        anti_replay: anti_replay?,
        mode,
        inner,
        position: table.report.position(table.at.start),
    })
}

/// The protocol, and what its packets are sent in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wrapping {
    EspInUdp,
    Esp,
    Ah,
}

fn wrapping(table: &TomlTable<'_>) -> Option<Wrapping> {
    let is_ah = match table.value("protocol") {
        Some(value) => value.choice(&[("esp", false), ("ah", true)])?,
        None => false,
    };
    let Some(value) = table.value("encapsulation") else {
        return Some(if is_ah { Wrapping::Ah } else { Wrapping::EspInUdp });
    };
    match (is_ah, value.choice(&[("udp", true), ("none", false)])?) {
        (false, true) => Some(Wrapping::EspInUdp),
        (false, false) => Some(Wrapping::Esp),
        (true, false) => Some(Wrapping::Ah),
        (true, true) => {
            // RFC 3948 section 1 only has ESP.
            let message = "AH packets cannot be sent in UDP, because AH authenticates the \
                           addresses of the IP header";
            value.error(message, "remove `encapsulation`, or set protocol = \"esp\"");
            None
        }
    }
}

/// The UDP port of the peer; 0 without UDP.
fn port(table: &TomlTable<'_>, wrapping: Wrapping) -> Option<u16> {
    if wrapping != Wrapping::EspInUdp {
        let why = "the IPsec packets are not sent in UDP, so they have no ports";
        table.refuse(&["port"], why, "remove `port`");
        return Some(0);
    }
    let Some(value) = table.value("port") else { return Some(ManualSa::PORT_DEFAULT) };
    value.integer(1, u64::from(u16::MAX)).and_then(|port| u16::try_from(port).ok())
}

/// The cipher, which AH has not, and the hash of the HMAC.
fn algorithms(table: &TomlTable<'_>, wrapping: Wrapping) -> Option<(Option<CbcBits>, Sha2)> {
    let bits = if wrapping == Wrapping::Ah {
        let why = "AH authenticates packets, and does not encrypt them";
        table.refuse(&["encryption"], why, "remove `encryption`, or set protocol = \"esp\"");
        Some(None)
    } else {
        let fix = "set the cipher: encryption = \"aes256-cbc\"";
        table.required("encryption", fix).and_then(|value| encryption(&value)).map(Some)
    };
    let fix = "set the hash of the HMAC: integrity = \"sha256\"";
    let hash = table.required("integrity", fix).and_then(|value| integrity(&value));
    bits.zip(hash)
}

fn protection(
    wrapping: Wrapping,
    (bits, hash): (Option<CbcBits>, Sha2),
    local: Option<IpAddr>,
) -> Option<ManualProtection> {
    let cipher = bits.map(|bits| match bits {
        CbcBits::Aes128 => TunnelCipher::Aes128Cbc(hash),
        CbcBits::Aes256 => TunnelCipher::Aes256Cbc(hash),
    });
    Some(match wrapping {
        Wrapping::EspInUdp => ManualProtection::EspInUdp(cipher?),
        Wrapping::Esp => ManualProtection::Esp { cipher: cipher?, local: local? },
        Wrapping::Ah => ManualProtection::Ah { hash, local: local? },
    })
}

/// The peer cannot be a name: another host could get the address of the name, but not the keys.
fn peer(value: &TomlValue<'_>) -> Option<IpAddr> {
    let text = value.string()?;
    let address = text.parse::<IpAddr>().ok().map(|ip| ip.to_canonical());
    let usable = address.filter(|ip| !ip.is_unspecified() && !ip.is_multicast());
    if usable.is_none() {
        let message = format!("`peer` cannot be `{text}`: this is not the IP address of a host");
        let fix = "write only the IP address of the peer, and set its port with the key `port`";
        value.error(message, fix);
    }
    usable
}

/// The length of an AES key.
#[derive(Clone, Copy)]
enum CbcBits {
    Aes128,
    Aes256,
}

/// The mode, and the addresses that belong to it.
struct Ends {
    mode: ManualMode,
    /// The addresses of the run.
    inner: Vec<IpAddr>,
    /// The address of this host, in transport mode and without UDP.
    local: Option<IpAddr>,
}

/// Parses the mode, and the addresses that belong to it.
fn ends(
    table: &TomlTable<'_>,
    peer: Option<IpAddr>,
    wrapping: Wrapping,
    users: &InnerUsers,
) -> Option<Ends> {
    let is_transport = match table.value("mode") {
        Some(value) => value.choice(&[("tunnel", false), ("transport", true)])?,
        None => false,
    };
    if is_transport {
        let why = "in transport mode, programs use the address of this host";
        table.refuse(&["inner"], why, "remove `inner`, and set `local`");
        let local = local(table, peer)?;
        let mode = ManualMode::Transport { local };
        return Some(Ends { mode, inner: vec![local], local: Some(local) });
    }
    let local = if wrapping == Wrapping::EspInUdp {
        let why = "tunnel mode with ESP in UDP needs only `inner`, the address that programs have \
                   inside the tunnel";
        table.refuse(&["local"], why, "remove `local`, or set mode = \"transport\"");
        None
    } else {
        Some(local(table, peer)?)
    };
    let fix = "set the address that programs have inside the tunnel: inner = \"10.1.0.1\"";
    let value = table.required("inner", fix)?;
    let fix = "write the address that programs have inside the tunnel, without a prefix length: \
               \"10.1.0.1\"";
    let inner = inner_addresses(&value, fix)?;
    check_users(&table.title, &value, &inner, users)?;
    Some(Ends { mode: ManualMode::Tunnel, inner, local })
}

/// Parses the address from which this host reaches the peer.
fn local(table: &TomlTable<'_>, peer: Option<IpAddr>) -> Option<IpAddr> {
    let fix = "set the address of this host: local = \"192.0.2.7\"";
    let value = table.required("local", fix)?;
    let fix = "write the address of this host, without a prefix length: \"192.0.2.7\"";
    let [local] = *inner_addresses(&value, fix)?.as_slice() else {
        value.error("`local` has more than one address", fix);
        return None;
    };
    if local.is_ipv4() != peer?.is_ipv4() {
        let message = "`local` and `peer` have different IP versions";
        value.error(message, "write the address from which this host reaches the peer");
        return None;
    }
    Some(local)
}

fn encryption(value: &TomlValue<'_>) -> Option<CbcBits> {
    let text = value.string()?;
    let plain: String = text.to_ascii_lowercase().chars().filter(|c| !"-_".contains(*c)).collect();
    if AEADS.iter().any(|word| plain.contains(word)) {
        let message = format!(
            "`{text}` is not secure with keys from a file: after a restart, the agent would use \
             the same nonces again with the same key (RFC 4106 section 10)"
        );
        let fix = "set encryption = \"aes256-cbc\" and integrity = \"sha256\", or use IKE: \
                   [ike.NAME]";
        value.error_of(MessageId("weak-algorithm"), message, fix);
        return None;
    }
    if WEAK_CIPHERS.contains(&plain.trim_end_matches("cbc")) {
        let message = format!("`{text}` is refused: the cipher is weak (RFC 8221)");
        value.error_of(MessageId("weak-algorithm"), message, "set encryption = \"aes256-cbc\"");
        return None;
    }
    value.choice(&[("aes128-cbc", CbcBits::Aes128), ("aes256-cbc", CbcBits::Aes256)])
}

fn integrity(value: &TomlValue<'_>) -> Option<Sha2> {
    let text = value.string()?;
    if WEAK_HASHES.contains(&text.to_ascii_lowercase().as_str()) {
        let message = format!("`{text}` is refused: the hash is weak (RFC 8221)");
        value.error_of(MessageId("weak-algorithm"), message, "set integrity = \"sha256\"");
        return None;
    }
    value.choice(&Sha2::ALL.map(|hash| (hash.word(), hash)))
}

fn spi(value: &TomlValue<'_>) -> Option<u32> {
    let number = value.integer(u64::from(ManualSa::SPI_MIN), u64::from(u32::MAX))?;
    u32::try_from(number).ok()
}

/// Reports an SPI that another table has too: the receiver finds the keys by it.
fn check_spi(
    title: &TableTitle<'_>,
    value: &TomlValue<'_>,
    number: u32,
    users: &SpiUsers,
) -> Option<()> {
    let position = value.report.position(value.at.start);
    let earlier = users.borrow_mut().insert(number, (title.to_string(), position));
    let Some((other_table, first)) = earlier else { return Some(()) };
    let line = value.report.line(first, position);
    let message = format!("`spi-in` of {other_table} in line {line} is also {number}");
    let fix = "write another SPI: tacit finds the keys of a received packet by its SPI";
    value.error_of(MessageId("shared-spi"), message, fix);
    None
}

fn key_file(value: &TomlValue<'_>) -> Option<SaKeyFile> {
    let position = value.report.position(value.at.start);
    Some(SaKeyFile { file: value::file(value)?, position })
}

/// Reports one file for both directions: packets could be sent back to their sender.
fn check_files(table: &TomlTable<'_>, one: &SaKeyFile, other: &SaKeyFile) -> Option<()> {
    if one.file != other.file {
        return Some(());
    }
    let message = format!("`keys-in` and `keys-out` are the same file: {}", one.file.display());
    let fix = "create separate keys for each direction. Otherwise an attacker could send a packet \
               back to its sender, and the sender would accept the packet";
    let at = table.value("keys-out").map_or_else(|| table.at.clone(), |value| value.at);
    table.report.error(MessageId("shared-keys"), &at, message, fix);
    None
}

/// Parts of the names of AEAD ciphers and of counter mode, which has the same weakness.
const AEADS: [&str; 6] = ["gcm", "gmac", "ccm", "ctr", "chacha", "poly1305"];
/// Ciphers that RFC 8221 section 5 forbids or advises against, without `cbc`.
const WEAK_CIPHERS: [&str; 7] = ["des", "3des", "null", "blowfish", "cast", "cast128", "idea"];
/// Hashes that RFC 8221 section 6 forbids or advises against.
const WEAK_HASHES: [&str; 8] =
    ["none", "md5", "hmac-md5", "sha", "sha1", "sha-1", "hmac-sha1", "hmac-sha-1"];
