"""What a fix would do to the host that was judged: the same rules are asked of the facts as they would be then.

``effects`` says what an action makes of a snapshot, ``named`` finds the actions that a sentence names, ``judging`` marks each fix that
a rule would find fault with before anybody sees it. Pure.
"""

from torchtune_sys.consequences.judging import weighed

__all__ = ["weighed"]
