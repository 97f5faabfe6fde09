"""Runs a command on a terminal of its own: prints what it prints, and types what comes from the standard input.

Exits with the code of the command. When the standard input ends, the command and what it started are killed.
"""

import os
import pty
import select
import signal
import sys


def main() -> int:
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvp(sys.argv[1], sys.argv[1:])
    while True:
        ready, _, _ = select.select([terminal, 0], [], [])
        if terminal in ready:
            try:
                printed = os.read(terminal, 65536)
            except OSError:  # All programs on the terminal have ended.
                break
            while printed:
                printed = printed[os.write(1, printed) :]
        if 0 in ready:
            typed = os.read(0, 1024)
            if not typed:
                # The command leads a session and a process group of its own.
                os.killpg(pid, signal.SIGKILL)
                break
            os.write(terminal, typed)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


sys.exit(main())
