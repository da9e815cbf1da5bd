"""``torchrun --rdzv-backend torchtune-sys``: the agents are pre-flighted, then torch's own c10d rendezvous takes over.

Every torchrun loads this module, also where the rendezvous is not chosen: it imports nothing, and says nothing.
"""


def creator():  # type: ignore[no-untyped-def]
    """Return what the entry point names: called without arguments it returns the function that makes a handler."""
    return create


def create(params):  # type: ignore[no-untyped-def]
    """Make the handler for what torchrun was given."""
    from torchtune_sys.torchrun.handler import Handler

    return Handler(params)
