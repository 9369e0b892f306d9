"""Examines the logs of agents, runs and load for lines that must not be there."""

import collections
import re
from datetime import datetime
from pathlib import Path

# A log line may report a kill up to this long afterwards.
EXPLAINED_S = 15
# Words that must not be logged, and the processes whose kill explains them.
FAULTS = {
    "panicked": (),
    "internal": (),
    "Traceback": (),
    "files-not-hidden": ("tacit-helper", "tacit"),
}
LINE = re.compile(r"(\d{4}-\d\d-\d\dT\S+)Z (error|warn) (\S+)")


def look(files, killed):
    """Counts errors and warnings by event, and returns the unexplained lines."""
    events, faults = collections.Counter(), []
    for path in files:
        for line in Path(path).read_text(errors="replace").splitlines():
            found = LINE.match(line)
            if found:
                events[f"{found[2]} {found[3]}"] += 1
            for word, names in FAULTS.items():
                if word in line and not is_explained(found, names, killed):
                    faults.append(f"{path.name}: {line}")
    return events, faults


def is_explained(found, names, killed) -> bool:
    if not found:
        return False
    logged = datetime.fromisoformat(found[1] + "+00:00").timestamp()
    ends = [when for when, name, _ in killed.values() if name in names]
    return any(0 <= logged - when <= EXPLAINED_S for when in ends)
