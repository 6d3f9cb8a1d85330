"""Owns the search in the source of a Triton kernel for the arguments that the kernel writes to.

Runs nothing. Unknown code counts as a write: too many written arguments cost copies, too few would give silently wrong
results.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
import types
from collections.abc import Iterator
from typing import Any

# Functions of `triton.language` that write through their first argument.
_WRITING = ("store", "atomic_")
# Functions whose results are no pointers into their arguments.
_LOADING = ("load", "program_id", "num_programs")
# Functions with arbitrary code of the user.
_ASSEMBLY = ("inline_asm", "extern")
_LANGUAGE = ("triton.language", "builtins")


def written_arguments(function: types.FunctionType, callers: frozenset[object] = frozenset()) -> frozenset[str]:
    """Returns the names of the parameters that the kernel's Python function may write through."""
    parameters = frozenset(inspect.signature(function).parameters)
    if function in callers:  # recursion adds no writes
        return frozenset()
    tree = _source(function)
    if tree is None:
        return parameters
    return _Kernel(function, parameters, callers | {function}).writes(tree)


def _source(function: types.FunctionType) -> ast.Module | None:
    """Returns the parsed source of the function, if it is available and unchanged: files may have changed since
    import."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return None
    if len(tree.body) != 1 or not isinstance(tree.body[0], ast.FunctionDef):
        return None
    tree.body[0].decorator_list.clear()
    (code,) = (c for c in compile(tree, "", "exec", dont_inherit=True).co_consts if isinstance(c, types.CodeType))
    facts = ("co_code", "co_names", "co_varnames")
    same = all(getattr(code, fact) == getattr(function.__code__, fact) for fact in facts)
    return tree if same else None


class _Kernel:
    """A pass over a kernel's source, which finds the parameters that each name may point into, in any order of
    statements."""

    def __init__(self, function: types.FunctionType, parameters: frozenset[str], functions: frozenset[object]) -> None:
        self.functions = functions
        self.namespace = {**function.__globals__, **inspect.getclosurevars(function).nonlocals}
        #: for each name: the parameters that the name may point into
        self.points_into: dict[str, frozenset[str]] = {name: frozenset((name,)) for name in parameters}

    def writes(self, tree: ast.Module) -> frozenset[str]:
        """Follows assignments until nothing changes, then checks the calls."""
        assignments = [node for node in ast.walk(tree) if isinstance(node, _ASSIGNING)]
        while any(self._assign(node) for node in assignments):
            pass
        written: frozenset[str] = frozenset()
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                written = written.union(*map(self._reach, self._written_by(node)))
        return written

    def _assign(self, node: Any) -> bool:
        """Returns whether a name may now point into more parameters than before."""
        value = node.iter if isinstance(node, ast.For) else node.value
        reached = frozenset() if value is None else self._reach(value)
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        names = [name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]
        changed = [name for name in names if not reached <= self.points_into.get(name, frozenset())]
        for name in changed:
            self.points_into[name] = self.points_into.get(name, frozenset()) | reached
        return bool(changed)

    def _reach(self, node: ast.AST) -> frozenset[str]:
        """Returns the parameters that an expression may point into."""
        if isinstance(node, ast.Call) and self._language_name(node.func).startswith(_LOADING):
            return frozenset()
        if isinstance(node, ast.Name):
            return self.points_into.get(node.id, frozenset())
        return frozenset().union(*map(self._reach, ast.iter_child_nodes(node)))

    def _written_by(self, call: ast.Call) -> Iterator[ast.AST]:
        """Yields the expressions that a call may write through."""
        name = self._language_name(call.func)
        if name:
            if name.startswith(_WRITING):
                yield from call.args[:1]
                yield from (keyword.value for keyword in call.keywords if keyword.arg in (None, "pointer"))
            elif name.startswith(_ASSEMBLY):
                yield from ast.iter_child_nodes(call)
        elif isinstance(call.func, ast.Attribute) and self._object(call.func) is None:
            # A method of a value: `pointer.store(x)`, `x.to(tl.float32)`; the name decides whether it writes.
            if call.func.attr.startswith(_WRITING):
                yield call.func.value
        else:
            yield from self._written_by_function(call)

    def _written_by_function(self, call: ast.Call) -> Iterator[ast.AST]:
        """Yields the expressions that a call of another user function may write through; all arguments if the function
        is unknown."""
        arguments: list[ast.AST] = [*call.args, *(keyword.value for keyword in call.keywords)]
        function = getattr(self._object(call.func), "fn", None)
        if not isinstance(function, types.FunctionType):
            yield from arguments
            return
        try:
            named = {keyword.arg or "": keyword.value for keyword in call.keywords}
            bound = inspect.signature(function).bind_partial(*call.args, **named).arguments
        except (TypeError, ValueError):
            yield from arguments
            return
        written = written_arguments(function, self.functions)
        yield from (value for name, value in bound.items() if name in written and isinstance(value, ast.AST))

    def _language_name(self, function: ast.AST) -> str:
        """Returns the name of a function of Triton's language or of Python; "" for any other."""
        found = self._object(function)
        module = getattr(found, "__module__", None) or ""
        return str(getattr(found, "__name__", "")) if module.startswith(_LANGUAGE) and _is_primitive(found) else ""

    def _object(self, node: ast.AST) -> Any:
        """Returns the object that a dotted name has in the kernel's module; None for a value of the kernel itself."""
        if isinstance(node, ast.Attribute):
            owner = self._object(node.value)
            return None if owner is None else getattr(owner, node.attr, None)
        if isinstance(node, ast.Name) and node.id not in self.points_into:
            builtins = self.namespace["__builtins__"]
            found = builtins if isinstance(builtins, dict) else vars(builtins)
            return self.namespace.get(node.id, found.get(node.id))
        return None


_ASSIGNING = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.NamedExpr, ast.For)


def _is_primitive(found: Any) -> bool:
    """Returns whether a function is Triton's own, not a user's kernel."""
    function = getattr(found, "fn", found)
    module = getattr(function, "__module__", None) or ""
    return module.startswith(_LANGUAGE)
