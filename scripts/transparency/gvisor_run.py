"""Runs gVisor's test programs: gvisor_run.py EXCLUDED PROGRAM...

Prints a line of JSON for each test. A test that takes too long or ends its program has failed; then
the program is restarted with the remaining tests. EXCLUDED is a gtest filter.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

TEST_SECONDS = 60
PROGRAM_SECONDS = 600


def kill(process):
    """Kills a program and its children, which keep its output open."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def run_once(program, excluded, seconds):
    """Runs the tests of a program until one hangs; returns the results by name."""
    flags = Path(f"{program.name}.flags").resolve()
    # The filter is in a file, because the length of an argument is limited.
    flags.write_text(f"--gtest_brief=1\n--gtest_filter=*-{':'.join(excluded)}\n")
    process = subprocess.Popen([program, f"--gtest_flagfile={flags}"], stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, start_new_session=True)
    found = {}
    whole = threading.Timer(seconds, kill, [process])
    single = threading.Timer(TEST_SECONDS, kill, [process])
    whole.start()
    for line in process.stdout:
        text = line.decode(errors="replace")
        # Output of a test without a newline may precede the result.
        start = text.find('{"test"')
        if start < 0:
            print(text, end="", flush=True)
            continue
        entry = json.loads(text[start:])
        found[entry["test"]] = entry["result"]
        single.cancel()
        if entry["result"] == "begin":
            single = threading.Timer(TEST_SECONDS, kill, [process])
            single.start()
    single.cancel()
    whole.cancel()
    kill(process)
    process.wait()
    return found


def run(program, excluded):
    done = []
    end = time.monotonic() + PROGRAM_SECONDS
    while (seconds := end - time.monotonic()) > 0:
        found = run_once(program, excluded + done, seconds)
        for test, result in found.items():
            # A test that started but did not end has hung, or has ended the program.
            print(json.dumps({"test": f"{program.name}.{test}",
                              "result": "fail" if result == "begin" else result}), flush=True)
        done += found
        if "begin" not in found.values():
            return
    print(f"{program.name}: cut off after {PROGRAM_SECONDS} s", flush=True)


os.chdir(os.environ["TMPDIR"])
os.environ["TEST_TMPDIR"] = os.environ["TMPDIR"]
for path in sys.argv[2:]:
    run(Path(path), [pattern for pattern in sys.argv[1].split(":") if pattern])
