"""Runs programs of gvisor_main.cc: gvisor_run.py EXCLUDED PROGRAM...

Prints a line of JSON for each test. A test that takes too long, or ends its program, has failed;
the program starts again without the tests that have run. EXCLUDED is a filter of gtest.
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
    """Kills a program and what it has started, which holds its output open."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def run_once(program, excluded, seconds):
    """Runs the tests of a program until one does not end; their results by name."""
    flags = Path(f"{program.name}.flags").resolve()
    # A file, because an argument has a greatest length.
    flags.write_text(f"--gtest_brief=1\n--gtest_filter=*-{':'.join(excluded)}\n")
    process = subprocess.Popen([program, f"--gtest_flagfile={flags}"], stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, start_new_session=True)
    found = {}
    whole = threading.Timer(seconds, kill, [process])
    single = threading.Timer(TEST_SECONDS, kill, [process])
    whole.start()
    for line in process.stdout:
        text = line.decode(errors="replace")
        # What a test prints without an end of line stands in front.
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
            # One that has begun and not ended hung, or ended the program.
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
