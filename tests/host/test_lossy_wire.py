"""A wire tells from what the kernel counts whether its way loses packets."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

PROGRAM = """
import asyncio
from torchtune_sys.host.peers.wire import Gone, call, handshake

async def echo(reader, writer):
    wire = await handshake(reader, writer, b"secret", first=False)
    try:
        while True:
            wire.send(await wire.receive(20))
    except Gone:
        wire.close()

async def main():
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    wire = await call("127.0.0.1", server.sockets[0].getsockname()[1], b"secret", 20)
    wire.send({"text": "a stranger's first line is short"})
    await wire.receive(60)
    began = asyncio.get_running_loop().time()
    while not wire.loses and asyncio.get_running_loop().time() < began + 4:
        wire.send({"text": "x" * 3000})
        await wire.receive(60)
        await asyncio.sleep(0.01)
    print(wire.loses)
    wire.close()

asyncio.run(main())
"""
DROPPING = (
    "table inet t {{ chain in {{ type filter hook input priority 0; tcp dport > 0 numgen random mod 100 < {percent} drop; }}; }}"
)


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("nft") is None, reason="needs root and nft")
@pytest.mark.parametrize(("percent", "loses"), [(20, "True"), (0, "False")])
def test_whether_packets_get_lost(percent: int, loses: str) -> None:
    words = f"ip link set lo up; nft '{DROPPING.format(percent=percent)}' || exit 77; exec \"$@\""
    done = subprocess.run(
        ["unshare", "--net", "sh", "-c", words, "sh", sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120
    )
    if done.returncode == 77:
        pytest.skip(f"no packets can be dropped here: {done.stderr}")
    assert done.stdout.strip() == loses, done.stderr
