"""Moves bytes as fast as TCP lets it: ``python socket_load.py receive`` and ``python socket_load.py send HOST SECONDS``.

A separate program, without imports from Grace, so that it starts at once. The receiver prints JSON: bytes, seconds.
"""

import json
import socket
import sys
import time

PORT = 5201
CHUNK = 1 << 20
WARM = 0.2  # of the time, left out: the connection's start


def receive() -> None:
    """Counts what arrives after the first fifth of the time."""
    with socket.create_server(("", PORT)) as server:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        connection, _ = server.accept()
    with connection:
        seconds = float(connection.recv(16).decode())
        buffer = memoryview(bytearray(CHUNK))
        begin = time.perf_counter()
        start, counted, last = 0.0, 0, begin
        while size := connection.recv_into(buffer):
            now = time.perf_counter()
            if start:
                counted += size
                last = now
            elif now - begin > WARM * seconds:
                start = last = now
    sys.stdout.write(json.dumps({"bytes": counted, "seconds": last - start if start else 0.0}) + "\n")


def send(host: str, seconds: float) -> None:
    """Sends for so many seconds."""
    block = bytes(CHUNK)
    with socket.create_connection((host, PORT), timeout=10) as connection:
        connection.sendall(f"{seconds:16.6f}".encode())
        connection.settimeout(None)
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            connection.sendall(block)


if __name__ == "__main__":
    if sys.argv[1] == "receive":
        receive()
    else:
        send(sys.argv[2], float(sys.argv[3]))
