"""Recognise torch's TCPStore (which c10d's rendezvous uses) by its protocol."""

from __future__ import annotations

import asyncio
import contextlib

from torchtune_sys.host.peers.streams import connect

MAGIC = (0x3C85F7CE).to_bytes(4, "little")
"""What a client says first, after a zero (torch/csrc/distributed/c10d/TCPStoreBackend.hpp, QueryType::VALIDATE and validationMagicNumber)."""
QUESTION = b"\0" + MAGIC + b"\7"
"""How many keys are there (QueryType::GETNUMKEYS)? A client of c10d's never asks this first."""
_ANSWER_SIZE = 8
_BUFFER = 512
_PATIENCE_S = 2.0


async def answers(host: str, port: int) -> bool:
    """Whether a store answers there: another program that listens at the port does not know the question."""
    with contextlib.suppress(OSError, asyncio.TimeoutError, asyncio.IncompleteReadError):
        reader, writer = await asyncio.wait_for(connect(host, port, _BUFFER), _PATIENCE_S)
        try:
            writer.write(QUESTION)
            answer = await asyncio.wait_for(reader.readexactly(_ANSWER_SIZE), _PATIENCE_S)
            return 0 <= int.from_bytes(answer, "little") < 1 << 32
        finally:
            writer.close()
    return False
