"""What programs print when something is wrong, and the causes that each kind of message stands for.

``data/messages.tsv`` has the messages themselves, extracted from the programs' sources (``scripts/catalogue``): program, releases, severity
and text with holes. ``data/message_families.csv`` groups them by what they say, and ``data/family_causes.csv`` says which causes a family
stands for and which facts decide among them.
"""

from torchtune_sys.knowledge.messages.causes import MessageCause, causes_of, holds_of
from torchtune_sys.knowledge.messages.index import CatalogueMessage, match

__all__ = ["MessageCause", "CatalogueMessage", "causes_of", "holds_of", "match"]
