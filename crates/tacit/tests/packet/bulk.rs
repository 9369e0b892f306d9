//! Tests that two workers transfer the data of unmodified programs. Only ESP packets may be on the
//! network link between the workers. The process `tap` records the packets on this link.
//!
//! ```text
//!   program ─ tacit0 ─ worker 10.99.0.1 ── w0 ══ w1 ── 10.99.0.2 worker ─ tacit0 ─ program
//!   10.1.0.1                          tap ─┘                                     10.2.0.1
//! ```

use std::process::Command;

use super::driver;

/// The process that the scripts start; nothing in an ordinary run of the tests.
#[test]
fn driver() {
    if let Ok(end) = std::env::var("PACKET_DRIVER") {
        driver::run(&end);
    }
}

#[test]
fn streams_datagrams_and_pings_cross_with_gcm_over_ipv4() {
    run("gcm", V4, &format!("{DIVIDE}{TRANSFER}\n{DECRYPT}"));
}

#[test]
fn streams_datagrams_and_pings_cross_with_chacha20_over_ipv6() {
    run("chacha", V6, TRANSFER);
}

#[test]
fn streams_datagrams_and_pings_cross_with_cbc_over_ipv4() {
    run("cbc", V4, TRANSFER);
}

#[test]
fn a_stream_survives_loss_repetition_and_reordering() {
    run("gcm", ["10.99.0.1:4600", "10.99.0.1:4601"], LOSSY);
}

#[test]
fn streams_and_datagrams_cross_while_receiving_moves_between_threads() {
    run_with("moving", "gcm", V4, &format!("{TRANSFER}{MOVED}"));
}

#[test]
fn an_engine_moves_all_packets_on_its_cpu() {
    run_with("engine", "gcm", V4, &format!("{ON_ENGINE}{TRANSFER}{NOT_SPILLED}"));
}

#[test]
fn a_saturated_engine_spills_what_it_receives_to_another_cpu() {
    run_with("spill", "gcm", V4, &format!("{ON_ENGINE}{TRANSFER}{SPILLED}"));
}

const V4: [&str; 2] = ["10.99.0.2:4500", "10.99.0.1:4500"];
const V6: [&str; 2] = ["[fd99::2]:4500", "[fd99::1]:4500"];

/// Both inner families; then the capture: of IP packets, apart from those of neighbour discovery,
/// only UDP between the two ports.
const TRANSFER: &str = "
for address in 10.2.0.1 fd02::1; do
    python3 talk.py check $address 8 >client.out 2>&1 || fail $address
    ping -c 3 -i 0.2 -W 2 $address >client.out 2>&1 || fail ping $address
done
kill $tap; wait $tap
tshark -r wire.pcap -T fields -e udp.srcport -e udp.dstport -Y \
    '(ip or ipv6) and not (icmpv6.type >= 130 and icmpv6.type <= 143)' 2>/dev/null |
    sort | uniq -c >ports
[ \"$(awk '{ print $2, $3 }' ports)\" = '4500 4500' ] || fail \"on the wire: $(cat ports)\"
for end in near far; do
    statistics $end >$end.numbers
    ! grep -q 'Integrity\\|Malformed\\|Replayed\\|Kernel\\|Segmentation' $end.numbers ||
        fail \"$(cat $end.numbers)\"
done";

/// Receiving has moved often, and both threads have received.
const MOVED: &str = "
for end in near far; do
    grep -q ' moves: [0-9][0-9][0-9]' $end.numbers || fail \"$(cat $end.numbers)\"
    grep -q 'received_second: Traffic { v4: PacketVolume { packets: [1-9]' $end.numbers ||
        fail \"$(cat $end.numbers)\"
done";

/// The thread of the engine has the last CPU only.
const ON_ENGINE: &str = "
cpus() { sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' $1/status; }
of_thread() {
    local driver=$(pgrep -P $$ -f bulk::driver | sed -n $1p)
    grep -lx $2 /proc/$driver/task/*/comm
}
last=$(cpus /proc/self | sed 's/.*[,-]//')
for end in 1 2; do
    packet=$(of_thread $end tacit-packet) || fail no thread
    [ \"$(cpus ${packet%/comm})\" = \"$last\" ] || fail \"on $(cpus ${packet%/comm})\"
done";

/// The engine has received everything.
const NOT_SPILLED: &str = "
for end in near far; do
    grep -q ' moves: 0,' $end.numbers || fail \"$(cat $end.numbers)\"
    grep -q 'received_second: Traffic { v4: PacketVolume { packets: 0,' $end.numbers ||
        fail \"$(cat $end.numbers)\"
done";

/// Another thread has received, and may use all CPUs.
const SPILLED: &str = "
for end in near far; do
    grep -q ' moves: 1,' $end.numbers || fail \"$(cat $end.numbers)\"
    grep -q 'received_second: Traffic { v4: PacketVolume { packets: [1-9]' $end.numbers ||
        fail \"$(cat $end.numbers)\"
done
receive=$(of_thread 1 tacit-receive) || fail no thread
[ \"$(cpus ${receive%/comm})\" = \"$(cpus /proc/self)\" ] || fail \"on $(cpus ${receive%/comm})\"";

/// The interfaces divide batches of datagrams, so that the capture shows each.
const DIVIDE: &str = "ip link set w0 gso_max_segs 1; far ip link set w1 gso_max_segs 1";

/// With the keys, every packet of the capture is decrypted; with another key none is.
const DECRYPT: &str = include_str!("decrypt.sh");

/// `PACKET_LOST` and `PACKET_MEGABYTES` replace the percentage of lost datagrams and the length.
const LOSSY: &str = "
python3 proxy.py 4600 4601 10.99.0.2 ${PACKET_LOST:-10} 5 10 >proxy.out 2>&1 &
until_true grep -q ready proxy.out
python3 talk.py stream 10.2.0.1 ${PACKET_MEGABYTES:-10} >client.out 2>&1 || fail stream
for end in near far; do
    statistics $end >$end.numbers
    grep -q 'Replayed' $end.numbers || fail \"no repetition: $(cat $end.numbers)\"
    ! grep -q 'Integrity\\|Malformed\\|TooOld' $end.numbers || fail \"$(cat $end.numbers)\"
done";

fn run(cipher: &str, peers: [&str; 2], steps: &str) {
    run_with("default", cipher, peers, steps);
}

fn run_with(threads: &str, cipher: &str, peers: [&str; 2], steps: &str) {
    let script = concat!(include_str!("../peers/processes.sh"), include_str!("begin.sh"))
        .replace("@TAP@", include_str!("tap.py"))
        .replace("@TALK@", include_str!("talk.py"))
        .replace("@PROXY@", include_str!("proxy.py"))
        .replace("@CIPHER@", cipher)
        .replace("@FAR@", peers[0])
        .replace("@NEAR@", peers[1])
        .replace("@DRIVER@", &std::env::current_exe().unwrap().to_string_lossy());
    let mut command = Command::new("timeout");
    let script = format!("{script}\n{steps}\n");
    command.args(["--kill-after=5", "400", "unshare", "-rnm", "bash", "-c", &script]);
    command.env("PACKET_THREADS", threads);
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
}
