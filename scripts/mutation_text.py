"""Which parts of ``rules/`` only make words for people: mutants there are not made.

Read from the syntax tree of libcst, which mutmut mutates. A place holds words if it is

* ``subject``, ``seen``, ``wanted`` or ``source`` of ``Evidence(…)``, the subject or the wish of ``unsure(…)``;
* an argument of ``NotApplicable(…)``, ``ValueError(…)``, ``BadConfig(…)`` or ``UnknownName(…)``;
* all but the reason of ``Missing(…)``, the source of a ``Budget(…)``;
* the body of a function, or the value of a local variable or parameter, that is used in such places alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import libcst as cst
from mutmut.mutation.file_mutation import Mutation

WORDS: dict[str, Callable[[int, str], bool]] = {
    "Evidence": lambda position, keyword: keyword != "verdict",
    "unsure": lambda position, keyword: keyword != "missing" and (position != 1 or bool(keyword)),
    "NotApplicable": lambda position, keyword: True,
    "ValueError": lambda position, keyword: True,
    "BadConfig": lambda position, keyword: True,
    "UnknownName": lambda position, keyword: True,
    "Budget": lambda position, keyword: keyword == "source",
    "Missing": lambda position, keyword: keyword != "why" and (position != 0 or bool(keyword)),
}
"""Per callable: whether the argument at this position, or of this keyword, is words."""


def called(node: cst.CSTNode) -> str:
    return node.func.value if isinstance(node, cst.Call) and isinstance(node.func, cst.Name) else ""


class Words:
    """The nodes of all modules that hold nothing but words; a fixed point over variables and functions used by words alone."""

    def __init__(self, modules: list[cst.Module]) -> None:
        self.nodes: set[int] = set()
        self.word_arguments: dict[int, set[int]] = {}
        """Positions of the arguments that are words, by call."""
        self._parameters: dict[str, tuple[str, list[str]]] = {}
        self._module = ""
        self._functions = {
            self._named(f.name.value, str(id(m))) for m in modules for f in m.body if isinstance(f, cst.FunctionDef)
        }
        self._wordy: set[tuple[str, str]] = set()
        while True:
            self._used: dict[tuple[str, str], bool] = defaultdict(lambda: True)
            self._assigned: set[tuple[str, str]] = set()
            for module in modules:
                self._module = str(id(module))
                self._walk(module, "", False)
            found = {key for key, words in self._used.items() if words and (key[0] == "" or key in self._assigned)}
            found = {key for key in found if key[0] or (key[1] in self._functions and "_judge_" not in key[1])}
            if found == self._wordy:
                return
            self._wordy = found

    def only_words(self, module: cst.Module, name: str) -> bool:
        """Whether a name that a module gives outside functions is used to make words alone."""
        return self._used.get(("", self._named(name, str(id(module)))), True)

    @staticmethod
    def _named(function: str, module: str) -> str:
        """Private functions of two modules may share a name."""
        return f"{module}{function}" if function.startswith("_") else function

    def _walk(self, node: cst.CSTNode, function: str, words: bool) -> None:
        if isinstance(node, (cst.Annotation, cst.Import, cst.ImportFrom)):
            return
        if isinstance(node, cst.FunctionDef) and not function:
            name = self._named(node.name.value, self._module)
            parameters = [parameter.name.value for parameter in (*node.params.params, *node.params.kwonly_params)]
            self._parameters[name] = (str(id(node)), parameters)
            self._assigned.update((str(id(node)), parameter) for parameter in parameters)
            wordy = ("", name) in self._wordy
            for child in node.body.children:
                self._walk(child, str(id(node)), wordy)
            return
        if words:
            self.nodes.add(id(node))
        if isinstance(node, cst.Assign) and len(node.targets) == 1 and isinstance(node.targets[0].target, cst.Name):
            self._assignment(node, node.targets[0].target.value, function, words)
        elif isinstance(node, cst.Call):
            self._call(node, function, words)
        elif isinstance(node, cst.Name):
            self._use((function, node.value), words)
            self._use(("", self._named(node.value, self._module)), words)
        elif isinstance(node, cst.Attribute):
            self._walk(node.value, function, words)
            self._use(("", node.attr.value), words)
        else:
            for child in node.children:
                self._walk(child, function, words)

    def _call(self, node: cst.Call, function: str, words: bool) -> None:
        holds = self.word_arguments[id(node)] = {
            position
            for position, arg in enumerate(node.args)
            if self._holds_words(called(node), position, arg.keyword.value if arg.keyword else "")
        }
        self._walk(node.func, function, words)
        for position, arg in enumerate(node.args):
            self._walk(arg.value, function, words or position in holds)

    def _holds_words(self, name: str, position: int, keyword: str) -> bool:
        if name in WORDS:
            return WORDS[name](position, keyword)
        function, parameters = self._parameters.get(self._named(name, self._module), ("", []))
        parameter = keyword or (parameters[position] if position < len(parameters) else "")
        return (function, parameter) in self._wordy

    def _assignment(self, node: cst.Assign, name: str, function: str, words: bool) -> None:
        self._assigned.add((function, name))
        words = words or (function, name) in self._wordy
        if words:
            self.nodes.add(id(node))
        self._walk(node.value, function, words)

    def _use(self, key: tuple[str, str], words: bool) -> None:
        self._used[key] = self._used[key] and words


def judges(mutation: Mutation, words: Words) -> bool:
    """Whether a mutation can change a verdict, and says something that another one of its place does not."""
    old, new = mutation.original_node, mutation.mutated_node
    if id(old) in words.nodes:
        return False
    if isinstance(old, cst.SimpleString) and isinstance(new, cst.SimpleString):
        return "XX" in new.value and "XX" not in old.value
    if isinstance(old, cst.Call) and isinstance(new, cst.Call) and words.word_arguments.get(id(old)):
        holds = words.word_arguments[id(old)]
        kept = [arg for position, arg in enumerate(old.args) if position not in holds]
        return len(new.args) == len(old.args) and [arg for i, arg in enumerate(new.args) if i not in holds] != kept
    return True
