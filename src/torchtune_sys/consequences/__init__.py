"""Judge fixes before they are printed: apply a fix to the facts and run the same rules again.

``effects`` says what an action makes of a snapshot, ``named`` finds the actions that a sentence names, ``judging`` marks each fix that
a rule would find fault with before anybody sees it. Pure.
"""

from torchtune_sys.consequences.judging import with_consequences

__all__ = ["with_consequences"]
