//! Contains the namespace tests. Each test uses a network namespace: the program is inside this
//! namespace, and the agent is outside.

use std::io::Read;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use tacit_sys::netlink::interfaces::{self, Assigned, Interface};
use tacit_sys::netlink::nft::Element;
use tacit_sys::netlink::route::{self, Families, SourceAddresses};
use tacit_sys::netlink::{IpProtocol, diag, nft};
use tacit_sys::spawn::{LauncherState, SpawnError, SpawnStep};
use tacit_sys::syn_log::Copies;
use tacit_sys::{IpVersion, owner, socket, transparent};

use super::launcher::{BOTH, Program, Run, accept, element, start_error, wait};
use super::program::POURED_BYTES;
use super::tunnels::{
    flows_of_a_group_leave_by_the_tun_device_and_all_others_as_before,
    flows_of_a_group_reach_no_host_without_a_tun_device,
};

/// Declares each scenario, and the test that runs it as each kind of user.
macro_rules! scenarios {
    ($(#[test] fn $name:ident;)*) => {
        pub(crate) const ALL: &[(&str, fn(&LauncherState))] = &[$((stringify!($name), $name)),*];
        mod tests {
            $(#[test] fn $name() { crate::as_each_user(stringify!($name)); })*
        }
    };
}

scenarios! {
    #[test] fn a_captured_connection_arrives_with_its_original_destination;
    #[test] fn large_writes_travel_in_large_packets_by_a_control_that_does_not_pace;
    #[test] fn what_is_not_captured_is_refused_and_the_sets_change_at_run_time;
    #[test] fn a_change_is_one_stroke_also_where_old_and_new_overlap;
    #[test] fn loopback_is_captured_where_a_rule_names_it_and_the_program_does_not_serve_there;
    #[test] fn a_syn_is_held_and_released_without_a_log_of_packets_too;
    #[test] fn a_dead_agent_means_refused;
    #[test] fn the_hosts_addresses_stand_inside_and_behave_as_loopback_does;
    #[test] fn an_absent_family_is_unreachable;
    #[test] fn datagrams_arrive_with_their_destination_and_answers_come_from_there;
    #[test] fn name_queries_go_to_the_agent_unless_the_program_answers_itself;
    #[test] fn a_program_sees_the_clients_own_address;
    #[test] fn the_owner_of_a_connection_is_known;
    #[test] fn a_helper_that_was_killed_is_replaced_in_the_same_namespaces;
    #[test] fn a_program_has_no_rights_and_only_confined_sockets;
    #[test] fn hidden_files_read_as_empty;
    #[test] fn the_mounts_of_a_program_are_those_in_which_files_are_hidden;
    #[test] fn a_failed_start_says_whose_failure_it_is;
    #[test] fn large_sets_are_installed_and_replaced;
    #[test] fn a_run_works_inside_a_run;
    #[test] fn a_refused_namespace_names_the_setting;
    #[test] fn flows_of_a_group_leave_by_the_tun_device_and_all_others_as_before;
    #[test] fn flows_of_a_group_reach_no_host_without_a_tun_device;
}

const REFUSED: &str = "errno 111";
const UNREACHABLE: &str = "errno 101";
const UNSUPPORTED: &str = "errno 97";
const NOT_IMPLEMENTED: &str = "errno 38";

fn a_captured_connection_arrives_with_its_original_destination(original: &LauncherState) {
    let mut run = Run::new(BOTH, original);
    let captured = [
        element(IpProtocol::Tcp, "10.9.8.0", "10.9.8.255", [8080, 8080]),
        element(IpProtocol::Tcp, "2001:db8::77", "2001:db8::77", [8000, 9000]),
    ];
    run.change(&[], &captured).unwrap();
    let mut program = run.start(&["tcp 10.9.8.7:8080", "tcp [2001:db8::77]:8443"]);
    let (stream, to) = accept(&run.sockets.tcp4);
    assert_eq!(to, "10.9.8.7:8080".parse().unwrap());
    let from = socket::peer_address(stream.as_fd()).unwrap().unwrap();
    let from = SocketAddr::try_from(from).unwrap();
    assert_eq!(from.ip().to_string(), "10.0.2.15");
    assert_eq!(program.answer(), format!("from {from}"));
    let (stream, to) = accept(run.sockets.tcp6.as_ref().unwrap());
    assert_eq!(to, "[2001:db8::77]:8443".parse().unwrap());
    let from = socket::peer_address(stream.as_fd()).unwrap().unwrap();
    assert_eq!(program.answer(), format!("from {}", SocketAddr::try_from(from).unwrap()));
}

fn large_writes_travel_in_large_packets_by_a_control_that_does_not_pace(original: &LauncherState) {
    let mut run = Run::new(BOTH, original);
    let captured = [
        element(IpProtocol::Tcp, "10.9.8.7", "10.9.8.7", [8080, 8080]),
        element(IpProtocol::Tcp, "2001:db8::77", "2001:db8::77", [8080, 8080]),
    ];
    run.change(&[], &captured).unwrap();
    let mut program = run.start(&["pour 10.9.8.7:8080", "pour [2001:db8::77]:8080"]);
    for listener in [&run.sockets.tcp4, run.sockets.tcp6.as_ref().unwrap()] {
        let (stream, _) = accept(listener);
        let mut stream = std::net::TcpStream::from(stream);
        stream.set_nonblocking(false).unwrap();
        let mut poured = vec![0; POURED_BYTES];
        stream.read_exact(&mut poured).unwrap();
        let answer = program.answer();
        let (bytes, control) = answer.split_once(" bytes by ").unwrap();
        // The count includes acknowledgements, which have no payload.
        assert!(bytes.parse::<usize>().unwrap() > 1 << 16, "{answer}");
        let agents = socket::congestion_control(stream.as_fd()).unwrap();
        assert!(["cubic", "reno"].contains(&control) && agents == control, "{answer}, {agents}");
    }
}

fn what_is_not_captured_is_refused_and_the_sets_change_at_run_time(original: &LauncherState) {
    let mut run = Run::new(BOTH, original);
    let everywhere = ["tcp 10.9.8.7:8080", "tcp [2001:db8::77]:8443", "udp 10.9.8.7:8080"];
    assert_eq!(run.answers(&everywhere), [REFUSED; 3]);
    let one = [element(IpProtocol::Tcp, "10.9.8.7", "10.9.8.7", [8080, 8081])];
    run.change(&[], &one).unwrap();
    let answers = run.answers(&["tcp 10.9.8.7:8081", "tcp 10.9.8.7:8082", "udp 10.9.8.7:8080"]);
    assert!(answers[0].starts_with("from 10.0.2.15:"), "{answers:?}");
    assert_eq!(answers[1..], [REFUSED; 2]);
    let again = run.change(&[], &one).unwrap_err();
    assert_eq!(again.errno(), Some(libc::EEXIST), "{again}");
    run.change(&one, &[]).unwrap();
    assert_eq!(run.answers(&everywhere), [REFUSED; 3]);
    let gone = run.change(&one, &[]).unwrap_err();
    assert_eq!(gone.errno(), Some(libc::ENOENT), "{gone}");
    run.change(&[], &one).unwrap();
    let other = [element(IpProtocol::Tcp, "2001:db8::", "2001:db8::ffff", [1, 65535])];
    run.replace_all(&other).unwrap();
    let answers = run.answers(&everywhere);
    assert_eq!([&answers[0], &answers[2]], [REFUSED; 2]);
    assert!(answers[1].starts_with("from [100::15]:"), "{answers:?}");
    run.remove_rules();
    assert_eq!(run.answers(&everywhere), [REFUSED; 3], "without rules nothing leaves either");
}

fn a_change_is_one_stroke_also_where_old_and_new_overlap(original: &LauncherState) {
    let mut run = Run::new(BOTH, original);
    let whole = element(IpProtocol::Tcp, "10.9.8.0", "10.9.8.255", [80, 90]);
    let part = element(IpProtocol::Tcp, "10.9.8.7", "10.9.8.7", [85, 85]);
    let other = element(IpProtocol::Tcp, "10.9.9.0", "10.9.9.255", [80, 80]);
    let change = |run: &mut Run<'_>, remove: &[Element], add: &[Element]| run.change(remove, add);
    change(&mut run, &[], &[whole]).unwrap();
    change(&mut run, &[whole], &[part, other]).unwrap();
    let orders = ["tcp 10.9.8.7:85", "tcp 10.9.9.1:80", "tcp 10.9.8.8:85"];
    let answers = run.answers(&orders);
    assert!(answers[..2].iter().all(|answer| answer.starts_with("from ")), "{answers:?}");
    assert_eq!(answers[2], REFUSED);
    // A refused change has no effect: neither of these elements exists after it.
    let refused = change(&mut run, &[part, whole], &[]).unwrap_err();
    assert_eq!(refused.errno(), Some(libc::ENOENT), "{refused}");
    let refused = change(&mut run, &[part], &[whole, other]).unwrap_err();
    assert_eq!(refused.errno(), Some(libc::EEXIST), "{refused}");
    assert_eq!(run.answers(&orders)[2], REFUSED);
    change(&mut run, &[part, other], &[whole]).unwrap();
    assert!(run.answers(&orders)[2].starts_with("from "));
}

fn loopback_is_captured_where_a_rule_names_it_and_the_program_does_not_serve_there(
    original: &LauncherState,
) {
    let mut run = Run::new(BOTH, original);
    let ports = [5432, 5434];
    let captured = [
        element(IpProtocol::Tcp, "127.0.0.1", "127.0.0.1", ports),
        element(IpProtocol::Tcp, "::1", "::1", ports),
        element(IpProtocol::Udp, "127.0.0.1", "127.0.0.1", ports),
        element(IpProtocol::Udp, "::1", "::1", ports),
    ];
    run.change(&[], &captured).unwrap();
    // These are not the ports on which the program serves below, because the helper may keep its
    // copy of a spoofed-source socket a little longer.
    for (to, version) in [("127.0.0.1:5434", IpVersion::V4), ("[::1]:5434", IpVersion::V6)] {
        let mut program = run.start(&[&format!("tcp {to}"), &format!("udp {to}")]);
        let listener = run.listener(version);
        assert_eq!(accept(listener).1, to.parse().unwrap());
        assert!(program.answer().starts_with("from "), "{to}");
        let receiver = run.receiver(version);
        wait(receiver.as_fd());
        let datagram = transparent::receive(receiver.as_fd(), &mut [0; 64]).unwrap();
        assert_eq!(datagram.destination, to.parse().unwrap());
        let answering = run.spoofed_source_socket(IpProtocol::Udp, version);
        transparent::bind_spoofed_source(answering.as_fd(), datagram.destination, datagram.source)
            .unwrap();
        socket::write(answering.as_fd(), b"answer").unwrap();
        assert_eq!(program.answer(), "answer", "{to}");
    }
    let closed = ["tcp 127.0.0.1:5431", "tcp [::1]:5431", "udp 127.0.0.1:5431", "udp [::1]:5431"];
    assert_eq!(run.answers(&closed), [REFUSED; 4], "a closed port is the kernel's own refusal");
    for (at, own) in [("127.0.0.1:5432", "0.0.0.0:5433"), ("[::1]:5432", "[::]:5433")] {
        let reached = own.replace("0.0.0.0", "127.0.0.1").replace("[::]", "[::1]");
        let orders = [
            format!("listen {at}"),
            format!("tcp {at}"),
            format!("listen {own}"),
            format!("tcp {reached}"),
            format!("answer {at}"),
        ];
        let orders: Vec<_> = orders.iter().map(String::as_str).collect();
        let answers = run.answers(&orders);
        assert!(answers[1].starts_with("from ") && answers[3].starts_with("from "), "{answers:?}");
        assert_eq!(answers[4], "mine");
    }
    for listener in [&run.sockets.tcp4, run.sockets.tcp6.as_ref().unwrap()] {
        assert!(socket::accept(listener.as_fd()).is_err(), "the program took its own");
    }
    run.end_agent();
    let orders = ["tcp 127.0.0.1:5432", "tcp [::1]:5432", "udp 127.0.0.1:5432", "udp [::1]:5432"];
    assert_eq!(run.answers(&orders), [REFUSED; 4], "without an agent");
}

fn a_syn_is_held_and_released_without_a_log_of_packets_too(original: &LauncherState) {
    let mut run = Run::with_copies(BOTH, original, Copies::OfInterface).unwrap();
    let captured = [
        element(IpProtocol::Tcp, "10.9.8.7", "10.9.8.7", [8080, 8080]),
        element(IpProtocol::Tcp, "2001:db8::77", "2001:db8::77", [8080, 8080]),
    ];
    run.change(&[], &captured).unwrap();
    let orders = [
        "tcp 10.9.8.7:8080",
        "tcp [2001:db8::77]:8080",
        "tcp 10.9.8.7:8081",
        "listen 127.0.0.1:7000",
        "tcp 127.0.0.1:7000",
    ];
    let answers = run.answers(&orders);
    assert!(answers[0].starts_with("from 10.0.2.15:"), "{answers:?}");
    assert!(answers[1].starts_with("from [100::15]:"), "{answers:?}");
    assert_eq!(answers[2], REFUSED);
    assert!(answers[4].starts_with("from 127.0.0.1:"), "{answers:?}");
    run.end_agent();
    assert_eq!(run.answers(&orders[..2]), [REFUSED; 2]);
}

fn a_dead_agent_means_refused(original: &LauncherState) {
    let mut run = Run::new(BOTH, original);
    let captured = [
        element(IpProtocol::Tcp, "10.9.8.7", "10.9.8.7", [8080, 8080]),
        element(IpProtocol::Udp, "10.9.8.7", "10.9.8.7", [8080, 8080]),
        element(IpProtocol::Tcp, "2001:db8::77", "2001:db8::77", [8080, 8080]),
    ];
    run.change(&[], &captured).unwrap();
    run.end_agent();
    let answers = run.answers(&[
        "listen [::]:8080",
        "tcp 10.9.8.7:8080",
        "tcp [2001:db8::77]:8080",
        "udp 10.9.8.7:8080",
        "udp 127.0.0.53:53",
        "tcp 8.8.8.8:53",
        "udp [::1]:53",
        "tcp 127.0.0.1:8080",
    ]);
    assert_eq!(answers[1..7], [REFUSED; 6], "not even to its own listener: {answers:?}");
    assert!(answers[7].starts_with("from 127.0.0.1:"), "its own loopback is its own: {answers:?}");
}

fn the_hosts_addresses_stand_inside_and_behave_as_loopback_does(original: &LauncherState) {
    let mut run = Run::new(BOTH, original);
    let own: [IpAddr; 2] = ["198.51.100.2", "2001:db8:99::2"].map(|text| text.parse().unwrap());
    let [v4, v6] = own.map(|address| Assigned { address, prefix_bits: 24 });
    let given = Interface { name: "eth7".to_owned(), addresses: vec![v4, v6] };
    nft::set_own(&mut run.netfilter, &own).unwrap();
    interfaces::give(&mut run.route, std::slice::from_ref(&given)).unwrap();
    let [IpAddr::V4(v4), IpAddr::V6(v6)] = own else { unreachable!() };
    let sources = SourceAddresses { v4, v6, unique_local: v6 };
    route::allow(&mut run.route, BOTH, sources).unwrap();
    assert!(interfaces::interfaces(&mut run.route).unwrap().contains(&given));
    let captured = [
        element(IpProtocol::Tcp, "198.51.100.7", "198.51.100.7", [80, 80]),
        element(IpProtocol::Tcp, "2001:db8:99::7", "2001:db8:99::7", [80, 80]),
    ];
    run.change(&[], &captured).unwrap();
    for (own, neighbour) in
        [("198.51.100.2", "198.51.100.7"), ("[2001:db8:99::2]", "[2001:db8:99::7]")]
    {
        let orders = [
            format!("listen {own}:7000"),
            format!("tcp {own}:7000"),
            format!("tcp {own}:7001"),
            format!("udp {own}:7001"),
            format!("tcp {neighbour}:80"),
        ];
        let orders: Vec<_> = orders.iter().map(String::as_str).collect();
        let answers = run.answers(&orders);
        let from = format!("from {own}:");
        assert_eq!(answers[0], "listening");
        assert!(answers[1].starts_with(&from) && answers[4].starts_with(&from), "{answers:?}");
        assert_eq!(answers[2..4], [REFUSED; 2]);
    }
    // Addresses that the host no longer has are removed. A run without copied addresses has its
    // own.
    route::allow(&mut run.route, BOTH, SourceAddresses::default()).unwrap();
    interfaces::take_others(&mut run.route, &[]).unwrap();
    let left = interfaces::interfaces(&mut run.route).unwrap();
    assert!(left.iter().all(|interface| interface.name != "eth7"), "{left:?}");
    assert!(run.answers(&["tcp 198.51.100.7:80"])[0].starts_with("from 10.0.2.15:"));
}

fn an_absent_family_is_unreachable(original: &LauncherState) {
    let orders = ["tcp 10.9.8.7:8080", "tcp [2001:db8::77]:8443", "udp [2001:db8::77]:53"];
    let run = Run::new(Families { v4: true, v6: false }, original);
    assert_eq!(run.answers(&orders), [REFUSED, UNREACHABLE, UNREACHABLE]);
    let run = Run::new(Families { v4: false, v6: true }, original);
    assert_eq!(run.answers(&orders[..2]), [UNREACHABLE, REFUSED]);
    // The run's own loopback has both families, whatever the host can reach.
    assert_eq!(run.answers(&["tcp 127.0.0.1:9", "tcp [::1]:9"]), [REFUSED; 2]);
}

fn datagrams_arrive_with_their_destination_and_answers_come_from_there(original: &LauncherState) {
    let mut run = Run::new(BOTH, original);
    for (to, version) in [("10.9.8.7:5000", IpVersion::V4), ("[2001:db8::77]:5000", IpVersion::V6)]
    {
        let destination: SocketAddr = to.parse().unwrap();
        let address = destination.ip().to_string();
        let captured = [element(IpProtocol::Udp, &address, &address, [5000, 5000])];
        run.change(&[], &captured).unwrap();
        let mut program = run.start(&[&format!("udp {to}")]);
        let receiver = run.receiver(version);
        wait(receiver.as_fd());
        let mut buffer = [0; 4];
        let datagram = transparent::receive(receiver.as_fd(), &mut buffer).unwrap();
        assert_eq!((datagram.destination, &buffer), (destination, b"ques"));
        assert!(datagram.is_cut, "the buffer was too small for the question");
        let nothing = transparent::receive(receiver.as_fd(), &mut buffer).unwrap_err();
        assert_eq!(nothing.kind(), std::io::ErrorKind::WouldBlock);
        let answering = run.spoofed_source_socket(IpProtocol::Udp, version);
        let source = datagram.source;
        assert!(transparent::bind_spoofed_source(answering.as_fd(), destination, source).unwrap());
        socket::write(answering.as_fd(), b"answer").unwrap();
        assert_eq!(program.answer(), "answer", "read on a socket connected to {to}");
    }
}

fn name_queries_go_to_the_agent_unless_the_program_answers_itself(original: &LauncherState) {
    let mut run = Run::new(BOTH, original);
    for to in ["127.0.0.53:53", "127.0.0.1:53", "8.8.8.8:53", "[::1]:53", "[2001:db8::53]:53"] {
        let destination: SocketAddr = to.parse().unwrap();
        let version = IpVersion::of(destination.ip());
        let mut program = run.start(&[&format!("udp {to}"), &format!("tcp {to}")]);
        let receiver = run.receiver(version);
        wait(receiver.as_fd());
        let datagram = transparent::receive(receiver.as_fd(), &mut [0; 64]).unwrap();
        assert_eq!((datagram.destination, datagram.bytes), (destination, 8));
        let answering = run.spoofed_source_socket(IpProtocol::Udp, version);
        transparent::bind_spoofed_source(answering.as_fd(), destination, datagram.source).unwrap();
        socket::write(answering.as_fd(), b"address").unwrap();
        assert_eq!(program.answer(), "address", "{to}");
        let listener = run.listener(version);
        assert_eq!(accept(listener).1, destination);
        assert!(program.answer().starts_with("from "), "{to}");
    }
    let own = run.answers(&["answer 127.0.0.1:53", "listen 127.0.0.1:53", "tcp 127.0.0.1:53"]);
    assert_eq!(own[..2], ["mine", "listening"], "a low port, and its own queries");
    let nothing = transparent::receive(run.sockets.udp4.as_fd(), &mut [0; 64]).unwrap_err();
    assert_eq!(nothing.kind(), std::io::ErrorKind::WouldBlock);
    assert!(socket::accept(run.sockets.tcp4.as_fd()).is_err(), "the program took it itself");
}

fn a_program_sees_the_clients_own_address(original: &LauncherState) {
    let mut run = Run::new(BOTH, original);
    for (at, client) in [
        ("0.0.0.0:80", "203.0.113.9:40000"),
        ("[::]:8080", "[2001:db8::9]:40001"),
        ("127.0.0.1:81", "203.0.113.9:40002"),
    ] {
        let mut program = run.start(&[&format!("serve {at}")]);
        let wanted: SocketAddr = at.parse().unwrap();
        run.wait_for_listener(wanted);
        let version = IpVersion::of(wanted.ip());
        let loopback = if version == IpVersion::V4 { "127.0.0.1" } else { "::1" };
        let to = SocketAddr::new(loopback.parse().unwrap(), wanted.port());
        let dialled = run.spoofed_source_socket(IpProtocol::Tcp, version);
        transparent::bind_spoofed_source(dialled.as_fd(), client.parse().unwrap(), to).unwrap();
        assert_eq!(program.answer(), format!("peer {client}"));
    }
}

fn the_owner_of_a_connection_is_known(original: &LauncherState) {
    let mut run = Run::new(BOTH, original);
    let captured = [
        element(IpProtocol::Tcp, "10.9.8.7", "10.9.8.7", [8080, 8080]),
        element(IpProtocol::Udp, "10.9.8.7", "10.9.8.7", [8080, 8080]),
    ];
    run.change(&[], &captured).unwrap();
    let program = run.start(&["tcp 10.9.8.7:8080", "send 10.9.8.7:8080"]);
    let (stream, to) = accept(&run.sockets.tcp4);
    let from = socket::peer_address(stream.as_fd()).unwrap().unwrap();
    let from = SocketAddr::try_from(from).unwrap();
    wait(run.sockets.udp4.as_fd());
    let datagram = transparent::receive(run.sockets.udp4.as_fd(), &mut [0; 64]).unwrap();
    for (protocol, from) in [(IpProtocol::Tcp, from), (IpProtocol::Udp, datagram.source)] {
        let found = diag::owner(&mut run.diagnosis, protocol, from, to).unwrap().unwrap();
        assert_eq!(found.uid, rustix::process::geteuid().as_raw());
        let holder = owner::holder(std::process::id(), found.inode);
        assert_eq!(holder, Some(program.child.id()), "{protocol:?}");
    }
}

fn a_helper_that_was_killed_is_replaced_in_the_same_namespaces(original: &LauncherState) {
    // No family yet: the second helper configures it.
    let mut run = Run::new(Families { v4: false, v6: true }, original);
    let captured = [element(IpProtocol::Tcp, "10.9.8.7", "10.9.8.7", [8080, 8080])];
    run.change(&[], &captured).unwrap();
    let mut before = run.start(&["serve 0.0.0.0:80"]);
    assert_eq!(run.answers(&["tcp 10.9.8.7:8080"]), [UNREACHABLE]);
    run.replace_helper();
    let answers = run.answers(&["tcp 10.9.8.7:8080", "tcp 10.9.8.7:8081"]);
    for answer in &answers {
        assert!(answer.starts_with("from 10.0.2.15:"), "{answers:?}");
        accept(&run.sockets.tcp4);
    }
    // Its sockets have foreign addresses, and reach a program that was started before.
    run.wait_for_listener("0.0.0.0:80".parse().unwrap());
    let dialled = run.spoofed_source_socket(IpProtocol::Tcp, IpVersion::V4);
    let client = "203.0.113.9:40000".parse().unwrap();
    transparent::bind_spoofed_source(dialled.as_fd(), client, "127.0.0.1:80".parse().unwrap())
        .unwrap();
    assert_eq!(before.answer(), "peer 203.0.113.9:40000");
}

fn a_program_has_no_rights_and_only_confined_sockets(original: &LauncherState) {
    let is_root = rustix::process::geteuid().is_root();
    let mask = {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap().trim().to_owned()
    };
    let before = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    tacit_sys::process::raise_descriptor_limit().unwrap();
    let run = Run::new(BOTH, original);
    let answers = run.answers(&[
        "status CapEff",
        "status CapAmb",
        "status NoNewPrivs",
        "status Seccomp",
        "status SigBlk",
        "status Uid",
        "status descriptors",
    ]);
    let effective = u64::from_str_radix(&answers[0], 16).unwrap();
    if is_root {
        let net_admin_net_raw_sys_admin_ptrace = 1 << 12 | 1 << 13 | 1 << 21 | 1 << 19;
        assert_eq!(effective & net_admin_net_raw_sys_admin_ptrace, 0, "{answers:?}");
    } else {
        assert_eq!(effective, 0, "{answers:?}");
    }
    assert_eq!(answers[1], "0000000000000000");
    assert_eq!(answers[2], "0", "set-uid programs work as far as their user is mapped");
    assert_eq!(answers[3], "2", "a filter is in place");
    assert_eq!(answers[4], mask);
    let uid = rustix::process::geteuid().as_raw();
    assert_eq!(answers[5], format!("{uid} {uid} {uid} {uid}"));
    assert_eq!(answers[6], format!("{before:?}"), "the limit it was started with");

    let [vsock, bluetooth, packet, alg] = [40, 31, 17, 38];
    for family in [vsock, bluetooth, packet, alg] {
        assert_eq!(run.answers(&[&format!("socket {family}")]), [UNSUPPORTED], "{family}");
    }
    for family in [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6] {
        assert_eq!(run.answers(&[&format!("socket {family}")]), ["made"], "{family}");
    }
    assert_eq!(run.answers(&["uring"]), [NOT_IMPLEMENTED]);
}

fn hidden_files_read_as_empty(original: &LauncherState) {
    let run = Run::new(BOTH, original);
    let name = format!("tacit-hidden-{}", std::process::id());
    let directory = std::env::temp_dir().join(name);
    std::fs::create_dir(&directory).unwrap();
    let key = directory.join("key");
    std::fs::write(&key, "secret").unwrap();
    let keys = directory.join("keys");
    std::fs::create_dir(&keys).unwrap();
    std::fs::write(keys.join("one"), "secret").unwrap();
    let hide = [key.clone(), keys.clone(), PathBuf::from("/nowhere/at/all")];
    let orders = [format!("read {}", key.display()), format!("list {}", keys.display())];
    let orders = [orders[0].as_str(), orders[1].as_str()];
    let mut program = run.start_hiding(&orders, &hide);
    assert_eq!([program.answer(), program.answer()], ["", "0"]);
    assert_eq!(run.answers(&orders), ["secret", "1"], "hidden from that program only");
    assert_eq!(std::fs::read_to_string(&key).unwrap(), "secret");
    drop(program);
    std::fs::remove_dir_all(directory).unwrap();
}

fn the_mounts_of_a_program_are_those_in_which_files_are_hidden(original: &LauncherState) {
    let run = Run::new(BOTH, original);
    assert!(run.start(&[]).mounts.is_none(), "the launcher's");
    let number = |path: String| std::fs::metadata(path).unwrap().ino();
    let own = number("/proc/self/ns/mnt".to_owned());
    let of = |program: &Program| number(format!("/proc/{}/ns/mnt", program.child.id()));
    let given = |program: &Program| {
        number(format!("/proc/self/fd/{}", program.mounts.as_ref().unwrap().as_raw_fd()))
    };
    let hide = ["/etc/passwd".into()];
    let program = run.start_hiding(&[], &hide);
    assert_eq!(given(&program), of(&program));
    assert_ne!(given(&program), own);
    let mut apart = run.start_hiding(&["take-mounts"], &hide);
    assert_eq!(apart.answer(), "taken");
    assert!(![own, of(&apart), of(&program)].contains(&given(&apart)));
}

fn a_failed_start_says_whose_failure_it_is(original: &LauncherState) {
    let mut run = Run::new(BOTH, original);
    match start_error(&run, "/nowhere/at/all") {
        SpawnError::Program(error) => assert_eq!(error.kind(), std::io::ErrorKind::NotFound),
        other => panic!("{other}"),
    }
    run.sockets.network = std::fs::File::open("/dev/null").unwrap().into();
    match start_error(&run, "true") {
        SpawnError::Setup { step: SpawnStep::JoinNetwork, error } => {
            assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
        }
        other => panic!("{other}"),
    }
}

fn large_sets_are_installed_and_replaced(original: &LauncherState) {
    let mut run = Run::new(BOTH, original);
    let address = |number: usize| format!("2001:db8::{:x}:{:x}", number >> 16, number & 0xffff);
    let count = 2 * nft::ELEMENTS_PER_BATCH_MAX + 7;
    let many: Vec<_> = (0..count)
        .map(|number| element(IpProtocol::Tcp, &address(number), &address(number), [443, 443]))
        .collect();
    run.change(&[], &many).unwrap();
    let last = format!("tcp [{}]:443", address(count - 1));
    let next = format!("tcp [{}]:443", address(count));
    let answers = run.answers(&[&last, &next]);
    assert!(answers[0].starts_with("from "), "{answers:?}");
    assert_eq!(answers[1], REFUSED);
    run.replace_all(&many[1..]).unwrap();
    let first = format!("tcp [{}]:443", address(0));
    let answers = run.answers(&[&first, &last]);
    assert_eq!(answers[0], REFUSED);
    assert!(answers[1].starts_with("from "), "{answers:?}");
    run.change(&many[1..], &[]).unwrap();
    assert_eq!(run.answers(&[&last]), [REFUSED]);
}

fn a_run_works_inside_a_run(original: &LauncherState) {
    let run = Run::new(BOTH, original);
    if rustix::process::geteuid().is_root() {
        // Root inside a run has no right to create namespaces, and gets an error that explains
        // this.
        let [refused] = &run.answers(&["nest"])[..] else { panic!("one answer") };
        let wanted = "tacit runs as root without CAP_SYS_ADMIN, for example in";
        assert!(refused.contains(wanted), "{refused}");
        return;
    }
    // Three levels: the innermost run captures as the outermost does.
    assert_eq!(run.answers(&["nest nest"]), ["10.9.8.7:8080"]);
}

/// A program inside the run starts a run itself; `deeper` are the commands of its program.
pub(crate) fn nest(deeper: &str) -> String {
    let original = LauncherState::capture();
    let mut run = match Run::try_new(BOTH, &original) {
        Ok(run) => run,
        Err(reason) => return reason,
    };
    if !deeper.is_empty() {
        return run.answers(&[deeper]).remove(0);
    }
    let captured = [element(IpProtocol::Tcp, "10.9.8.7", "10.9.8.7", [8080, 8080])];
    run.change(&[], &captured).unwrap();
    let _program = run.start(&["tcp 10.9.8.7:8080"]);
    accept(&run.sockets.tcp4).1.to_string()
}

fn a_refused_namespace_names_the_setting(original: &LauncherState) {
    // In a user namespace of its own, this process may change the limit for the namespaces below
    // it. SAFETY: takes no pointers; this process has one thread.
    assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWUSER) }, 0);
    std::fs::write("/proc/sys/user/max_user_namespaces", "0").unwrap();
    let reason = Run::try_new(BOTH, original).err().unwrap();
    assert!(reason.contains("user.max_user_namespaces is 0"), "{reason}");
}
