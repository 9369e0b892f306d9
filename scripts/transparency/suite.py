"""The base class of test suites, and shared functions."""

import json
import subprocess
from pathlib import Path

HERE = Path(__file__).resolve().parent
TARGET = HERE.parent.parent / "target" / "transparency"
PYTHON = "/usr/bin/python3"


class SetupError(Exception):
    """A suite cannot be prepared; the text says what to do."""


class Skipped(Exception):
    """A suite needs something that only the user can provide, so it is skipped."""


def checked(command, what, **options):
    """Runs a command that prepares a suite."""
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              check=False, **options)
    except FileNotFoundError as error:
        raise SetupError(f"{what}: {error}\n  fix: scripts/install-deps.sh transparency") from error
    if done.returncode:
        text = done.stdout.decode(errors="replace").strip()
        raise SetupError(f"{what}: {' '.join(command)}: status {done.returncode}\n{text}")
    return done.stdout.decode().strip()


class Suite:
    """A test suite. `timeout_seconds` limits one run."""

    timeout_seconds = 1200
    directory = HERE
    # Whether a test that fails natively is left out.
    passes_natively = True
    # Whether it also runs through links.
    uses_links = False

    def prepare(self):
        """Downloads and builds what the suite needs, below target/."""

    def command(self, results):
        """The command to run; it may write the file `results`."""
        raise NotImplementedError

    def read(self, output, results):
        """The result of each test by name."""
        return read_json(output)

    def environment(self):
        return {}


def read_json(output):
    """Parses the lines of JSON in the output of a suite."""
    found = {}
    for line in output.splitlines():
        if line.startswith('{"test"'):
            entry = json.loads(line)
            # A test with subtests has failed if one of them has.
            if found.get(entry["test"]) != "fail":
                found[entry["test"]] = entry["result"]
    return found
