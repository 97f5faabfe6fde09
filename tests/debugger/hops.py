"""Runs a program under gdb and records which hops its threads reach.

HOPS_ADDRESSES names a file with lines of a hop's number and an address of the program's file. HOPS_HITS names the file that
gets a line with the number of a hop for each time that a thread reaches it, in the order in which threads do. The program
continues at once, and signals reach it as if no debugger were there.
"""

import os

import gdb


class Hop(gdb.Breakpoint):
    """A breakpoint that never stops the program for longer than it takes to write a line."""

    def __init__(self, number, address, hits):
        super().__init__(f"*{address:#x}", internal=True)
        self.silent = True
        self.hop = number
        self.hits = hits

    def stop(self):
        self.hits.write(f"{self.hop}\n")
        return False


def mapped():
    """The address at which the program's file is mapped, and the range of its code."""
    program = os.path.realpath(gdb.current_progspace().filename)
    starts, code = [], []
    with open(f"/proc/{gdb.selected_inferior().pid}/maps") as maps:
        for line in maps:
            fields = line.split(maxsplit=5)
            if len(fields) == 6 and fields[5].rstrip("\n") == program:
                start, end = (int(address, 16) for address in fields[0].split("-"))
                starts.append(start)
                if "x" in fields[1]:
                    code.append((start, end))
    return min(starts), code


for command in [
    "set pagination off",
    "set confirm off",
    "set print thread-events off",
    "set startup-with-shell off",
    "handle all nostop noprint pass",
    "starti",
]:
    gdb.execute(command, to_string=True)
base, code = mapped()
# Each line is written at once, because the test reads the file while the program runs.
hits = open(os.environ["HOPS_HITS"], "a", buffering=1)
with open(os.environ["HOPS_ADDRESSES"]) as addresses:
    for line in addresses:
        number, address = line.split()
        address = base + int(address, 16)
        # The linker removes unused functions, but leaves their lines, which then begin at zero.
        if any(start <= address < end for start, end in code):
            Hop(number, address, hits)
gdb.execute("continue")
