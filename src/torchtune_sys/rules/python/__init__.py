"""The Python interpreter: can it hold a torch."""

from __future__ import annotations

from torchtune_sys.rules.python import byte_code
from torchtune_sys.rules.python.interpreter import (
    environment_on_network_filesystem,
    glibc_too_old,
    interpreter_does_not_start,
    no_wheel_for_python,
    packages_of_another_python,
    pip_leftovers,
)

RULES = (
    interpreter_does_not_start,
    no_wheel_for_python,
    glibc_too_old,
    pip_leftovers,
    packages_of_another_python,
    environment_on_network_filesystem,
    *byte_code.RULES,
)
