"""Runs a program on a separate terminal and types like a user.

Arguments: a list of steps as JSON, then the command. A step sends text and waits until the output since the previous step contains
another text; nothing is typed ahead. Prints the output without cursor movements, and exits with the code of the program.
"""

import json
import os
import pty
import re
import select
import sys
import time

PATIENCE_S = 30
ESCAPES = re.compile(rb"\x1b\[[0-9;?]*[a-zA-Z]|\x1b[=>]|\r")


def main() -> int:
    steps, command = json.loads(sys.argv[1]), sys.argv[2:]
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(command[0], command)
    shown, seen = b"", 0

    def read_until(expected: bytes) -> None:
        nonlocal shown, seen
        until = time.monotonic() + PATIENCE_S
        while True:
            at = shown.find(expected, seen)
            if at >= 0:
                seen = at + len(expected)
                return
            if time.monotonic() > until:
                sys.exit(f"{expected!r} did not come; shown was:\n{shown.decode(errors='replace')}")
            if select.select([terminal], [], [], 0.1)[0]:
                try:
                    more = os.read(terminal, 65536)
                except OSError:  # The other end is closed.
                    sys.exit(f"it ended before {expected!r} came; shown was:\n{shown.decode(errors='replace')}")
                shown += ESCAPES.sub(b"", more)

    for step in steps:
        os.write(terminal, step.get("send", "").encode())
        if "expect" in step:
            read_until(step["expect"].encode())
        time.sleep(step.get("pause_s", 0))
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        try:
            more = os.read(terminal, 65536)
        except OSError:
            break
        if not more:
            break
        shown += ESCAPES.sub(b"", more)
    _, status = os.waitpid(pid, 0)
    print(shown.decode(errors="replace"))
    return os.waitstatus_to_exitcode(status)


sys.exit(main())
