"""Types a line and a TAB at zsh in a terminal, in the directory of a lab.

zsh.py LINE: prints the words of the line after completion. ./runtime/tacit-program is tacit, and
./agent.sock the control socket of the agent that knows names.
"""

import os
import pty
import re
import select
import shutil
import sys
import time

PATIENCE = 20
if not shutil.which("zsh"):
    sys.exit("zsh is needed: scripts/install-deps.sh installs it")

shell, terminal = pty.fork()
if shell == 0:
    os.environ.update(HOME=os.getcwd(), PS1="prompt> ", TERM="dumb")
    os.execlp("zsh", "zsh", "-f", "-i")
shown = ""


def wait_for(wanted):
    """Reads what the terminal shows until it shows this."""
    global shown
    end = time.monotonic() + PATIENCE
    while not (found := re.search(wanted, shown)):
        if time.monotonic() > end or not select.select([terminal], [], [], PATIENCE)[0]:
            sys.exit(f"zsh did not show {wanted!r} but {shown!r}")
        shown += os.read(terminal, 4096).decode(errors="replace")
    shown = shown[found.end() :]
    return found


def type_in(text):
    os.write(terminal, text.encode())


wait_for("prompt> ")
# Its commands print the words that they get; names come from the agent.
type_in(
    "unsetopt zle_bracketed_paste beep 2>/dev/null; autoload -Uz compinit && compinit -u -D;"
    " source <(./runtime/tacit-program completions zsh);"
    " tacit() { if [[ $1 == names ]]; then (( $# > 2 )) || set -- \"$@\" --control ./agent.sock;"
    " ./runtime/tacit-program \"$@\";"
    " else print -r -- \"com\"\"pleted: tacit $*.\"; fi }; print rea''dy\n"
)
wait_for("ready")
wait_for("prompt> ")
type_in(sys.argv[1] + "\t")
# The shell reads on when it has completed the word.
type_in("\n")
print(wait_for(r"completed: ([^\r\n]*)\.").group(1))
type_in("exit\n")
