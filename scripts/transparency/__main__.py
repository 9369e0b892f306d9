"""Runs test suites of other projects with and without `tacit run`, and reports every difference.

    python3 scripts/transparency [SUITE]...

Each suite runs three times in a private network: natively, with every destination captured, and with
every destination except loopback captured. `own` also runs on another host, through a link with each
transport. A difference counts if it is repeatable. Exit status 0 if
the differences are those in docs/transparency.md, 1 if not, 2 if a suite cannot run. A suite whose
sources the user has not provided is skipped, which does not change the exit status.
"""

import fnmatch
import json
import os
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

from suite import HERE, TARGET, SetupError, Skipped
from suites import SUITES

LIST = HERE.parent.parent / "docs" / "transparency.md"
# A debug build needs three times as long for each connection, which the times of `own` would show.
TACIT = HERE.parent.parent / "target" / "release" / "tacit"
POLICIES = ("captured", "plain")
LINKS = ("link-unix", "link-tcp", "link-machine")
# What one line of the table in the document may name.
GROUPS = {"both": POLICIES, "links": LINKS, "all": POLICIES + LINKS}
PROGRESS_SECONDS = 10
POLL_SECONDS = 0.1
# Rounds of the times of `own`.
ROUNDS = int(os.environ.get("TIMES", "9"))


def known():
    """The table in the document: by (suite, policy, pattern), whether the difference is occasional."""
    found = {}
    for line in LIST.read_text().splitlines():
        cells = [cell.strip().strip("`") for cell in line.strip("|").split("|")]
        if len(cells) != 6 or cells[0] not in SUITES:
            continue
        for policy in GROUPS.get(cells[1], [cells[1]]):
            found[cells[0], policy, cells[2]] = cells[5].startswith("sometimes")
    return found


def ways(name):
    """How a suite runs under tacit."""
    return POLICIES + LINKS if SUITES[name].uses_links else POLICIES


def run(name, way, attempt):
    """The result of each test of a suite."""
    suite = SUITES[name]
    folder = TARGET / "results"
    folder.mkdir(parents=True, exist_ok=True)
    stem = folder / f"{name}.{way}.{attempt}"
    results = Path(f"{stem}.xml")
    results.unlink(missing_ok=True)
    environment = os.environ | {
        "TACIT": str(TACIT),
        "TIMEOUT_SECONDS": str(suite.timeout_seconds),
        "WORKING_DIRECTORY": str(suite.directory),
    } | suite.environment()
    command = ["unshare", "-rnm", "--kill-child", str(HERE / "network.sh"), way,
               *suite.command(results)]
    begin = shown = time.monotonic()
    with open(f"{stem}.out", "wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output,
                                   stderr=subprocess.STDOUT, env=environment)
        while process.poll() is None:
            time.sleep(POLL_SECONDS)
            if time.monotonic() - shown > PROGRESS_SECONDS:
                shown = time.monotonic()
                print(f"  {name} {way}: {shown - begin:.0f} s", flush=True)
    if process.returncode in (2, 124, 125):
        # Status 2 may also mean failed tests; a suite with results has run.
        if process.returncode != 2 or not results.exists():
            raise SetupError(f"{name} {way}: status {process.returncode}; see {stem}.out")
    found = suite.read(Path(f"{stem}.out").read_text(errors="replace"), results)
    if not found:
        raise SetupError(f"{name} {way}: no results; see {stem}.out")
    print(f"  {name} {way}: {len(found)} tests, {time.monotonic() - begin:.0f} s", flush=True)
    return found


def differences(suite, native, inside):
    """The tests with different results, as (native, under tacit run)."""
    return {
        test: (result, inside.get(test, "absent"))
        for test, result in native.items()
        if inside.get(test) != result and not (suite.passes_natively and result == "fail")
    }


def compare(name):
    """Runs a suite; returns its differences for each policy, and whether some are occasional."""
    suite = SUITES[name]
    suite.prepare()
    native = run(name, "native", 1)
    again = None
    found = {}
    for policy in ways(name):
        first = differences(suite, native, run(name, policy, 1))
        if first:
            again = again or run(name, "native", 2)
            second = differences(suite, again, run(name, policy, 2))
            for test in sorted(set(first) - set(second)):
                print(f"  {name} {policy}: {test} differed in one of two runs: {first[test]}")
            first = {test: both for test, both in first.items() if test in second}
        found[policy] = first
    return native, found


def judge(expected, native, found):
    """Compares the differences with the patterns in the document; returns error messages."""
    for test, (left, right) in sorted(found.items()):
        if not any(fnmatch.fnmatchcase(test, pattern) for pattern in expected):
            yield f"{test}: not listed: {left}, under run {right}"
    for pattern, rare in sorted(expected.items()):
        if not rare and fnmatch.filter(native, pattern) and not fnmatch.filter(found, pattern):
            yield f"{pattern}: listed, but gone"


def figures():
    """Prints how much longer the programs of `own` take under `tacit run`; this is not asserted.

    Each round runs them natively and with each policy in turn, so that other work of the machine
    affects all alike.
    """
    times = {way: {} for way in ("native", *POLICIES)}
    for attempt in range(1, ROUNDS + 1):
        for way in times:
            run("own", way, f"round{attempt}")
            text = (TARGET / "results" / f"own.{way}.round{attempt}.out").read_text(errors="replace")
            for entry in map(json.loads, re.findall(r'^\{"test".*$', text, re.M)):
                times[way].setdefault(entry["test"], []).append(entry["ms"])
    native = {test: statistics.median(all_ms) for test, all_ms in times["native"].items()}
    for policy in POLICIES:
        more = {
            test: statistics.median(all_ms) - native[test]
            for test, all_ms in times[policy].items() if test in native
        }
        late = sorted((test for test in more if more[test] > 5), key=more.get, reverse=True)
        print(f"  own {policy}: {len(more) - len(late)} of {len(more)} within native + 5 ms")
        for test in late:
            print(f"    {test}: {native[test]:.1f} ms natively, {more[test]:+.1f} ms")


def main(names):
    unknown = set(names) - set(SUITES)
    if unknown:
        raise SetupError(f"unknown suite {', '.join(sorted(unknown))}: use one of {', '.join(SUITES)}")
    if not TACIT.exists():
        raise SetupError(f"{TACIT} does not exist\n  fix: cargo build --release -p tacit")
    listed = known()
    wrong, summary = [], []
    for name in names or SUITES:
        try:
            native, found = compare(name)
        except Skipped as reason:
            print(f"  {name} skipped: {reason}", flush=True)
            summary += [(name, policy, "skipped", "-") for policy in ways(name)]
            continue
        for policy in ways(name):
            expected = {key[2]: rare for key, rare in listed.items() if key[:2] == (name, policy)}
            wrong += [f"{name} {policy} {line}" for line in judge(expected, native, found[policy])]
            summary.append((name, policy, len(native), len(found[policy])))
        if name == "own":
            figures()
    print(f"\n{'suite':10} {'policy':12} {'tests':>7} {'differences':>12}")
    for name, policy, tests, count in summary:
        print(f"{name:10} {policy:12} {tests:>7} {count:>12}")
    print("\n".join(wrong) or "Every difference is in docs/transparency.md.")
    return 1 if wrong else 0


try:
    sys.exit(main(sys.argv[1:]))
except SetupError as error:
    print(f"transparency: {error}", file=sys.stderr)
    sys.exit(2)
