//! Tests what a program under `tacit run` cannot do: leave the run's network, or access sockets and
//! files of the agent.

use crate::network::Network;

/// Asks for sockets of every family, in each way a program can, and for io_uring.
const FAMILIES: &str = r#"
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

static int native(int family) {
    int got = socket(family, SOCK_DGRAM, 0), error = got < 0 ? errno : 0;
    if (got >= 0) close(got);
    return error;
}
static int pair(int family) {
    int both[2], got = socketpair(family, SOCK_DGRAM, 0, both), error = got < 0 ? errno : 0;
    if (got == 0) { close(both[0]); close(both[1]); }
    return error;
}
#ifdef __x86_64__
static long i386(long number, long first, long second, long third) {
    long got;
    __asm__ volatile("int $0x80" : "=a"(got) : "a"(number), "b"(first), "c"(second), "d"(third)
                     : "memory", "r8", "r9", "r10", "r11");
    return (int)got;
}
static int i386_socket(int family) {
    long got = i386(359, family, SOCK_DGRAM, 0);
    if (got >= 0) close(got);
    return got < 0 ? -got : 0;
}
static int i386_socketcall(int family) {
    uint32_t *arguments = mmap(0, 4096, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
    arguments[0] = family; arguments[1] = SOCK_DGRAM; arguments[2] = 0;
    long got = i386(102, 1, (long)arguments, 0);
    if (got >= 0) close(got);
    munmap(arguments, 4096);
    return got < 0 ? -got : 0;
}
#endif
static void all(const char *name, int (*ask)(int)) {
    printf("%s:", name);
    for (int family = 0; family < 46; family++) {
        int error = ask(family);
        if (error != EAFNOSUPPORT) printf(" %d=%d", family, error);
    }
    printf("\n");
}
int main(void) {
    all("native", native);
    all("pair", pair);
#ifdef __x86_64__
    all("i386", i386_socket);
    all("socketcall", i386_socketcall);
    int error = -i386(425, 1, 0, 0);
    printf("i386 io_uring %d\n", error);
#endif
    printf("io_uring %d\n", syscall(425, 1, 0) < 0 ? errno : 0);
    return 0;
}
"#;

#[test]
fn only_four_families_of_sockets_are_there() {
    let network = Network::new(&[], "").with_build(&format!(
        "cat >families.c <<'END'\n{FAMILIES}\nEND\ncc -o families families.c"
    ));
    for network in network.for_each_user() {
        let said = network.ok("direct ./families; echo; run ./families");
        let (direct, inside) = said.split_once("\n\n").unwrap();
        // AF_PACKET and AF_VSOCK exist on this machine, if only for those who may.
        assert!(direct.contains(" 17="), "{direct}");
        let native = inside.lines().find(|line| line.starts_with("native:")).unwrap();
        assert_eq!(native, "native: 1=0 2=0 10=0 16=0", "{inside}");
        let pair = inside.lines().find(|line| line.starts_with("pair:")).unwrap();
        // Others than UNIX have no pairs: EOPNOTSUPP.
        assert_eq!(pair, "pair: 1=0 2=95 10=95 16=95", "{inside}");
        assert!(!direct.contains("io_uring 38"), "{direct}");
        assert!(inside.lines().any(|line| line == "io_uring 38"), "{inside}");
        for way in ["i386:", "socketcall:"] {
            if let Some(line) = inside.lines().find(|line| line.starts_with(way)) {
                // Some kernels have no 32-bit calls: ENOSYS for all.
                assert!(!line.contains(" 17=") && !line.contains(" 40="), "{line}");
            }
        }
    }
}

#[test]
fn raw_sockets_marks_and_transparency_are_not_permitted() {
    let attempts = r#"/usr/bin/python3 -c 'if True:
        import errno, socket
        def try_to(what, *how):
            try: what(*how); print("ok")
            except OSError as error: print(errno.errorcode[error.errno])
        for family in socket.AF_INET, socket.AF_INET6:
            try_to(socket.socket, family, socket.SOCK_RAW, 1)
            try_to(socket.socket, family, socket.SOCK_RAW, 255)
        stream = socket.socket()
        try_to(stream.setsockopt, socket.SOL_SOCKET, 36, 0x7ac1)
        try_to(stream.setsockopt, socket.IPPROTO_IP, 19, 1)
        try_to(stream.setsockopt, socket.SOL_SOCKET, 5, 1)'"#;
    let network = Network::new(&[], "");
    for network in network.clone().for_each_user() {
        let said = network.ok(&format!("run {attempts}"));
        let wanted = ["EPERM"; 6].into_iter().chain(["ok"]).collect::<Vec<_>>();
        assert_eq!(said.lines().collect::<Vec<_>>(), wanted);
    }
    let root = network.with_root().ok(&format!("direct {attempts}"));
    assert!(!root.contains("EPERM"), "{root}");
}

/// The program is a copy, without the rights that the original's file may carry: what carries
/// rights that a run withholds is not executed at all by root.
#[test]
fn echo_requests_are_dropped() {
    let network = Network::new(&[], "").with_rules(
        "[[rule]]\nname = \"all\"\ndirection = \"outbound\"\nremote = \"10.9.8.0/24\"\n\
         permit = true\n",
    );
    for network in network.for_each_user() {
        let said = network.ok("cat $(command -v ping) >plain-ping; chmod 755 plain-ping
             ping -q -c 1 -W 2 10.9.8.7 >/dev/null && echo answered
             run ./plain-ping -c 2 -i 0.2 -W 1 10.9.8.7; echo status $?
             run ./plain-ping -q -c 1 -W 2 127.0.0.1 >/dev/null && echo own loopback");
        assert!(said.starts_with("answered\n"), "{said}");
        assert!(said.contains("2 packets transmitted, 0 received"), "{said}");
        assert!(said.contains("status 1") && said.contains("own loopback"), "{said}");
    }
}

#[test]
fn policy_keys_and_trust_read_as_empty() {
    let rules = "[identity.me]\ncert = \"alice.pem\"\nkey = \"alice.key\"\n\
                 [[rule]]\nname = \"with-key\"\ndirection = \"outbound\"\n\
                 remote = \"10.9.8.7\"\ntls = { trust = \"ca\", identity = \"me\" }\n";
    let network = Network::new(&[], "").with_rules(rules);
    for (network, owner) in network.for_each_user().into_iter().zip(["54321", "0"]) {
        let said = network.ok(&format!(
            "chown {owner} alice.key
             direct cat run.toml ca.pem alice.key | grep -c .
             run cat run.toml ca.pem alice.key; echo status $?
             run bash -c 'echo changed >>alice.key'; grep -c changed alice.key
             run bash -c 'ls -d $TMPDIR/tacit-run-* | wc -l; ls -A $TMPDIR/tacit-run-*'"
        ));
        let lines: Vec<_> = said.lines().collect();
        assert!(lines[0].parse::<u32>().unwrap() > 20, "{said}");
        assert_eq!(lines[1..], ["status 0", "0", "1"], "{said}");
    }
}
