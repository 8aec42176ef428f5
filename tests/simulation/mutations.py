"""What may be changed in the code that owns a group: mutmut's mutants of some modules, and how one is put into this process.

Called by `mutants`, which draws some and runs schedules with each. All of it is text until `plant`: a mutant replaces the code
of one function that is loaded already, so that a forked child costs nothing but its schedules.
"""

from __future__ import annotations

import ast
import difflib
import functools
import importlib
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import libcst as cst
from mutmut.mutation.file_mutation import Mutation, create_mutations, deep_replace

PACKAGE = Path(__file__).resolve().parents[2] / "operator" / "shardherd"

CORE = (
    "group/balance",
    "group/checkpoints",
    "group/discovery",
    "group/eligible",
    "group/fsm",
    "group/grants",
    "group/group",
    "group/growth",
    "group/heartbeats",
    "group/lineage",
    "group/liveness",
    "group/notes",
    "group/rebalance",
    "group/rebuild",
    "group/resets",
    "group/state",
    "group/timers",
)
COORDINATOR = (
    "commits",
    "copies",
    "items",
    "mailbox",
    "parking",
    "restrictions",
    "runner",
    "runtime",
    "storage",
    "stored",
    "together",
)
MODULES = tuple(f"core/{name}" for name in CORE) + tuple(f"coordinator/{name}" for name in COORDINATOR)
"""A group's ownership and what runs it. The coordinator's HTTP surface, its threads and its metrics are not among them."""


@dataclass(frozen=True)
class Mutant:
    """One change of one function. `source` is the changed function, from the margin on.

    `lines` are those of its file of which one must be run for the change to matter; none if that is not known.
    """

    module: str
    function: str
    change: str
    source: str
    lines: frozenset[int] = frozenset()

    def __str__(self) -> str:
        return f"{self.module}: {self.function}: {self.change}"


Made = Callable[[], Mutant]
"""A mutant that is not written down yet: to write down thousands takes half a minute."""


def every(modules: Iterable[str]) -> tuple[list[Made], int]:
    """All mutants of these modules, and how many more there are that change nothing but a text for people."""
    found: list[Made] = []
    texts = 0
    for module in modules:
        path = PACKAGE / f"{module}.py"
        tree, mutations, _, _ = create_mutations(str(path), path.read_text())
        classes = _classes(tree)
        words: dict[cst.FunctionDef, frozenset[int]] = {}
        for mutation in mutations:
            function = mutation.contained_by_top_level_function
            if not isinstance(function, cst.FunctionDef):
                continue
            if function not in words:
                words[function] = _words(function)
            if _is_text(mutation, words[function]):
                texts += 1
                continue
            found.append(functools.partial(_mutant, module, tree, function, classes.get(function, ""), mutation))
    return found, texts


def plant(mutant: Mutant) -> None:
    """Put a mutant into this process, for good."""
    module = importlib.import_module(f"shardherd.{mutant.module.replace('/', '.')}")
    namespace: dict[str, Any] = dict(vars(module))
    exec(compile("from __future__ import annotations\n" + mutant.source, f"<{mutant}>", "exec"), namespace)
    new = namespace[mutant.function.rpartition(".")[2]]
    live = _live(module, mutant.function)
    live.__code__ = new.__code__
    live.__defaults__ = new.__defaults__
    live.__kwdefaults__ = new.__kwdefaults__


def _live(module: ModuleType, function: str) -> FunctionType:
    owner: Any = module
    *classes, name = function.split(".")
    for each in classes:
        owner = getattr(owner, each)
    found = vars(owner)[name]
    found = getattr(found, "__func__", found)
    if not isinstance(found, FunctionType):
        raise TypeError(f"{module.__name__}.{function} is a {type(found).__name__}, not a function")
    return found


def _classes(tree: cst.Module) -> dict[cst.FunctionDef, str]:
    """The class of every method."""
    return {
        method: each.name.value
        for each in tree.body
        if isinstance(each, cst.ClassDef)
        for method in each.body.body
        if isinstance(method, cst.FunctionDef)
    }


def _mutant(module: str, tree: cst.Module, function: cst.FunctionDef, owner: str, mutation: Mutation) -> Mutant:
    bare = function.with_changes(decorators=(), leading_lines=())
    changed = deep_replace(bare, mutation.original_node, mutation.mutated_node)
    assert isinstance(changed, cst.FunctionDef)
    before, after = tree.code_for_node(bare), tree.code_for_node(changed)
    name = f"{owner}.{function.name.value}" if owner else function.name.value
    old, new = before.splitlines(), after.splitlines()
    gone: list[int] = []
    come: list[int] = []
    for tag, low, high, first, last in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag != "equal":
            gone += range(low, high)
            come += range(first, last)
    change = " ".join(old[at].strip() for at in gone) + " -> " + " ".join(new[at].strip() for at in come)
    return Mutant(module, name, change, textwrap.dedent(after), _statements(module, name, gone))


def _statements(module: str, function: str, lines: Iterable[int]) -> frozenset[int]:
    """The lines, in its file, of the statements of a function that are on these lines of its text.

    Of a statement that has others in it only its head counts. Whatever is in the head of the function is always run.
    """
    starts, ends = _statements_of(module)[function]
    found: set[int] = set()
    for line in lines:
        at = starts + line
        around = [(low, high) for low, high in ends if low <= at <= high]
        if not around:
            return frozenset()
        low, high = min(around, key=lambda each: each[1] - each[0])
        found.update(range(low, high + 1))
    return frozenset(found)


@functools.cache
def _statements_of(module: str) -> dict[str, tuple[int, list[tuple[int, int]]]]:
    """The first line of every function of a module, and from which line to which each of its statements goes."""
    found: dict[str, tuple[int, list[tuple[int, int]]]] = {}
    for owner, function in _functions(ast.parse((PACKAGE / f"{module}.py").read_text())):
        ranges = []
        for each in ast.walk(function):
            if isinstance(each, ast.stmt) and each is not function:
                body = getattr(each, "body", None) or list(getattr(each, "cases", []))
                inner = min((_first(child) for child in body), default=None)
                end = each.end_lineno or each.lineno
                ranges.append((each.lineno, end if inner is None else max(each.lineno, inner - 1)))
        found[f"{owner}{function.name}"] = (function.lineno, ranges)
    return found


def _first(node: ast.stmt | ast.match_case) -> int:
    return node.pattern.lineno if isinstance(node, ast.match_case) else node.lineno


def _functions(tree: ast.Module) -> Iterable[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for each in tree.body:
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
            yield "", each
        elif isinstance(each, ast.ClassDef):
            for method in each.body:
                if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield f"{each.name}.", method


# Texts.


def _is_text(mutation: Mutation, words: frozenset[int]) -> bool:
    """Whether it changes only what people read: a message of a log, an error, an event or a condition, a task's name."""
    before, after = mutation.original_node, mutation.mutated_node
    if id(before) in words:
        return True
    if isinstance(before, cst.SimpleString) and " " in str(before.evaluated_value).strip():
        return True
    if isinstance(before, cst.Call) and isinstance(after, cst.Call):
        gone = [each for each in before.args if each not in after.args]
        return len(before.args) == len(after.args) and len(gone) == 1 and id(gone[0].value) in words
    return False


class _Texts(cst.CSTVisitor):
    """Collects the nodes that are part of a text, and where each name is read and assigned."""

    def __init__(self) -> None:
        self.roots: list[cst.CSTNode] = []
        self.read: list[cst.Name] = []
        self.assigned: dict[str, list[cst.BaseExpression]] = {}

    def visit_Call(self, node: cst.Call) -> None:  # noqa: N802
        texts = _texts_of(node)
        self.roots += texts
        if (
            texts
            and isinstance(node.func, cst.Attribute)
            and isinstance(node.func.value, cst.Name)
            and node.func.value.value == "log"
        ):
            self.roots.append(node)

    def visit_Name(self, node: cst.Name) -> None:  # noqa: N802
        self.read.append(node)

    def visit_Assign(self, node: cst.Assign) -> None:  # noqa: N802
        if len(node.targets) == 1 and isinstance(node.targets[0].target, cst.Name):
            self.assigned.setdefault(node.targets[0].target.value, []).append(node.value)


def _texts_of(call: cst.Call) -> list[cst.CSTNode]:
    """The arguments of this call that are texts for people."""
    function = call.func
    name = (
        function.value if isinstance(function, cst.Name) else function.attr.value if isinstance(function, cst.Attribute) else ""
    )
    positional = [argument.value for argument in call.args if argument.keyword is None]
    if isinstance(function, cst.Attribute) and isinstance(function.value, cst.Name) and function.value.value == "log":
        return [argument.value for argument in call.args]
    named: list[cst.CSTNode] = [
        argument.value for argument in call.args if argument.keyword is not None and argument.keyword.value == "name"
    ]
    if name == "create_task":
        return named
    if name.endswith("Error"):
        return list(positional[:1])
    if name in ("GroupEvent", "Condition"):
        return list(positional[1:2])
    return list(positional[2:3]) if name == "record" else []


def _words(function: cst.FunctionDef) -> frozenset[int]:
    """The ids of all nodes of a function that are part of a text, also by way of a variable that is used for nothing else."""
    visitor = _Texts()
    function.visit(visitor)
    words = {id(node) for root in visitor.roots for node in _nodes(root)}
    while True:
        used = [name for name in visitor.assigned if _reads(visitor, name, words)]
        more = {id(node) for name in used for value in visitor.assigned[name] for node in _nodes(value)} - words
        if not more:
            return frozenset(words)
        words |= more


def _reads(visitor: _Texts, name: str, words: set[int]) -> bool:
    """Whether a variable is read, and only in texts."""
    times = [node for node in visitor.read if node.value == name]
    outside = [node for node in times if id(node) not in words]
    return len(times) > len(visitor.assigned[name]) and len(outside) == len(visitor.assigned[name])


def _nodes(root: cst.CSTNode) -> Iterable[cst.CSTNode]:
    stack = [root]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(node.children)
