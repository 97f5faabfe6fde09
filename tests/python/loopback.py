"""Brings up the loopback interface of a new network namespace, says so, and keeps the namespace until the standard input ends."""

import fcntl
import socket
import struct
import sys

SIOCSIFFLAGS = 0x8914
IFF_UP = 1

with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
    fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sH22x", b"lo", IFF_UP))
print("up", flush=True)
sys.stdin.read()
