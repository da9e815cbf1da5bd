"""Where the page of a rule, a family or a cause lies in the checkout; the site has the same pages below the same names."""

from __future__ import annotations

RULES = "docs/rules"
CAUSES = "docs/causes"


def rule_page(rule_id: str) -> str:
    """Return the path of a rule's page."""
    return f"{RULES}/{rule_id}.md"


def family_page(family: str) -> str:
    """Return the path of the page that lists the rules of a family."""
    return f"{RULES}/families/{family}.md"


def cause_page(cause: str) -> str:
    """Return the path of a cause's page."""
    return f"{CAUSES}/{cause}.md"
