"""The test suites: what each needs, its command, and the parser of its results."""

import os
import re
from pathlib import Path
from xml.etree import ElementTree

from gvisor import Gvisor
from kafka import Kafka
from suite import HERE, PYTHON, TARGET, SetupError, Suite, checked

TORNADO_VERSION = "6.6.1"

CPYTHON_MODULES = """test_socket test_asyncio test_ssl test_httplib test_ftplib test_smtplib
test_poplib test_imaplib test_urllib2_localnet test_httpservers test_select test_selectors
test_epoll test_poll test_xmlrpc test_docxmlrpc test_logging test_wsgiref""".split()
TORNADO_MODULES = """httpclient httpserver iostream netutil simple_httpclient tcpclient tcpserver
websocket web""".split()


class Own(Suite):
    """The programs of own.py."""

    passes_natively = False
    uses_links = True

    def prepare(self):
        TARGET.joinpath("own").mkdir(parents=True, exist_ok=True)
        checked(["go", "build", "-o", str(TARGET / "own" / "fetch"), str(HERE / "fetch.go")],
                "the client in Go", env=os.environ | {"CGO_ENABLED": "0"})

    def command(self, results):
        return [PYTHON, str(HERE / "own.py")]


class CPython(Suite):
    """The tests of the system's Python, from the package libpythonX.Y-testsuite."""

    def prepare(self):
        checked([PYTHON, "-c", "import test.test_socket"], "the tests of Python")

    def command(self, results):
        return [PYTHON, "-m", "test", "-j4", "--timeout", "300", "--junit-xml", str(results),
                # It hangs in some virtual machines, also natively.
                "--ignore", "*VSOCK*", *CPYTHON_MODULES]

    def read(self, output, results):
        if not results.exists():
            raise SetupError("the tests of Python wrote no results: see their output")
        found = {}
        for case in ElementTree.parse(results).iter("testcase"):
            parts = {part.tag for part in case}
            failed = parts & {"failure", "error"}
            result = "fail" if failed else "skip" if "skipped" in parts else "pass"
            found[case.get("name")] = result
        return found


class Go(Suite):
    """The tests of Go's own packages, which come with its compiler."""

    def __init__(self, package):
        self.package = package
        self.binary = TARGET / "go" / (package.replace("/", "-") + ".test")

    def prepare(self):
        self.root = Path(checked(["go", "env", "GOROOT"], "Go"))
        self.directory = self.root / "src" / self.package
        self.binary.parent.mkdir(parents=True, exist_ok=True)
        checked(["nice", "go", "test", "-c", "-o", str(self.binary), self.package],
                f"the tests of Go's {self.package}")

    def command(self, results):
        return [str(self.binary), "-test.v", "-test.short", "-test.timeout=15m"]

    def environment(self):
        return {"GO_DIRECTORY": str(self.root / "bin")}

    def read(self, output, results):
        words = {"PASS": "pass", "SKIP": "skip", "FAIL": "fail"}
        lines = re.findall(r"^\s*--- (PASS|SKIP|FAIL): (\S+)", output, re.M)
        return {name: words[word] for word, name in lines}


class Tornado(Suite):
    """The tests of tornado, a server and client library, from pip."""

    place = TARGET / "tornado"

    def prepare(self):
        if not (self.place / "tornado").exists():
            checked([PYTHON, "-m", "pip", "install", "--quiet", "--target", str(self.place),
                     f"tornado=={TORNADO_VERSION}"], "tornado")

    def command(self, results):
        modules = [f"tornado.test.{module}_test" for module in TORNADO_MODULES]
        return [PYTHON, str(HERE / "lines.py"), *modules]

    def environment(self):
        return {"PYTHONPATH": str(self.place), "ASYNC_TEST_TIMEOUT": "20"}


SUITES = {
    "own": Own(),
    "cpython": CPython(),
    "go-net": Go("net"),
    "go-http": Go("net/http"),
    "tornado": Tornado(),
    "gvisor": Gvisor(),
    "kafka": Kafka(),
}
