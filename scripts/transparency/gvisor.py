"""Builds and runs gVisor's socket tests (C++) without gVisor's build system.

The environment variable GVISOR names a checkout; PROGRAMS selects some of the test programs. Objects
and programs are kept in target/transparency/gvisor for each checkout, and rebuilt if a source or a
header is newer.
"""

import hashlib
import os
import time
from pathlib import Path

from suite import HERE, PYTHON, TARGET, SetupError, Skipped, Suite, checked

COMPILER = ["nice", "-n", "10", "c++", "-std=c++17", "-O0", "-w"]
LIBRARIES = """gmock gtest absl_synchronization absl_time absl_str_format_internal absl_strings
absl_strings_internal absl_int128 absl_status absl_statusor absl_base absl_raw_logging_internal
absl_throw_delegate absl_spinlock_wait absl_raw_hash_set absl_hash absl_city absl_low_level_hash
absl_time_zone absl_cord absl_bad_optional_access absl_bad_variant_access""".split()
UTILITIES = """errno_safe_allocator cgroup_util epoll_util fs_util linux_capability_util logging
multiprocess_util posix_error proc_util rlimit_util save_util save_util_linux signal_util
socket_util socket_util_impl temp_path test_util time_util timer_util uid_util""".split()
HELPERS = """base_poll_test ip_socket_test_util socket_netlink_util socket_netlink_route_util
unix_domain_socket_test_util""".split()
# The test programs, each with the sources of its test cases.
PROGRAMS = {
    "tcp_socket": [],
    "socket_inet_loopback": [],
    "socket_inet_loopback_nogotsan": [],
    "socket_ip_tcp_generic_loopback": ["socket_ip_tcp_generic"],
    "socket_ip_tcp_loopback": ["socket_generic_test_cases"],
    "socket_ip_tcp_loopback_blocking": ["socket_stream_blocking"],
    "socket_ip_tcp_loopback_nonblock": ["socket_non_blocking"],
    "socket_ip_loopback_blocking": ["socket_blocking"],
    "socket_ip_unbound": [],
    "socket_ip_udp_loopback": ["socket_generic_test_cases", "socket_ip_udp_generic",
                               "socket_non_stream"],
    "socket_ip_udp_loopback_blocking": ["socket_non_stream_blocking"],
    "socket_ip_udp_loopback_nonblock": ["socket_non_blocking"],
    "socket_ipv4_udp_unbound_loopback": ["socket_ipv4_udp_unbound"],
    "udp_socket": [],
    "accept_bind": [],
    "poll": [],
    "select": [],
    "epoll": [],
}
# Excluded tests, which wait 10 s or more for a multicast that a run drops; one of each kind is kept.
EXCLUDED = ["*IpMulticastLoopbackI*", "*IpMulticastLoopbackNic*", "*TestMcastReceptionWhen*",
            "*IpMulticastIPPacketInfo/0"]


class Gvisor(Suite):
    """gVisor's tests of sockets."""

    timeout_seconds = 3600

    def prepare(self):
        if not os.environ.get("GVISOR"):
            raise Skipped("GVISOR is not set to a checkout; fix: clone google/gvisor, then run "
                          "GVISOR=DIRECTORY make transparency SUITE=gvisor")
        self.checkout = Path(os.environ["GVISOR"]).resolve()
        self.tests = self.checkout / "test" / "syscalls" / "linux"
        if not (self.tests / "tcp_socket.cc").exists():
            raise SetupError(f"GVISOR={self.checkout}: test/syscalls/linux/tcp_socket.cc is missing"
                             "\n  fix: name the root of a checkout of google/gvisor")
        self.programs = os.environ.get("PROGRAMS", "").split() or list(PROGRAMS)
        if unknown := set(self.programs) - set(PROGRAMS):
            raise SetupError(f"unknown program {', '.join(sorted(unknown))} of the suite gvisor: "
                             f"use some of {', '.join(PROGRAMS)}")
        digest = hashlib.sha256(bytes(self.checkout)).hexdigest()[:8]
        self.place = TARGET / "gvisor" / digest
        self.place.mkdir(parents=True, exist_ok=True)
        headers = [*self.tests.glob("*.h"), *(self.checkout / "test" / "util").glob("*.h")]
        self.newest_header = max(path.stat().st_mtime for path in headers)
        self.build()

    def build(self):
        """Compiles and links missing programs one after the other, because they need much memory."""
        util = self.checkout / "test" / "util"
        shared = [self.compile(HERE / "gvisor_main.cc")]
        shared += [self.compile(util / f"{name}.cc") for name in UTILITIES]
        shared += [self.compile(self.tests / f"{name}.cc") for name in HELPERS]
        for name in self.programs:
            cases = PROGRAMS[name]
            objects = [self.compile(self.tests / f"{part}.cc") for part in [name, *cases]] + shared
            program = self.place / name
            if is_older(program, max(path.stat().st_mtime for path in objects)):
                checked([*COMPILER, "-o", str(program), *map(str, objects), "-Wl,--as-needed",
                         *(f"-l{library}" for library in LIBRARIES), "-lpthread"],
                        f"gvisor's {name}")

    def compile(self, source):
        """The object of a source."""
        target = self.place / f"{source.stem}.o"
        if not source.exists():
            raise SetupError(f"{source} is missing: this suite needs a version of gVisor from 2026")
        if is_older(target, max(source.stat().st_mtime, self.newest_header)):
            begin = time.monotonic()
            checked([*COMPILER, "-I", str(self.checkout), "-include", str(HERE / "gvisor_absl.h"),
                     "-c", "-o", str(target), str(source)], f"gvisor's {source.name}")
            print(f"  gvisor builds {source.name}: {time.monotonic() - begin:.0f} s", flush=True)
        return target

    def command(self, results):
        programs = [str(self.place / name) for name in self.programs]
        return [PYTHON, "-B", str(HERE / "gvisor_run.py"), ":".join(EXCLUDED), *programs]


def is_older(path, moment):
    return not path.exists() or path.stat().st_mtime < moment
