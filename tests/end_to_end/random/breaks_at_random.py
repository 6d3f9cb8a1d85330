"""Owns the insertion of graph breaks into the text of a program: before statements, and inside expressions.

Neither writes programs nor runs them. `passed` returns its argument after a graph break: the stack holds the values
that the surrounding expression has computed so far.
"""

from __future__ import annotations

import ast
import random
from typing import Any

import minidynamo

STATEMENTS = ["minidynamo.graph_break()", "print('here')", "passed(0)"]


@minidynamo.disable
def passed(value: Any) -> Any:
    """Returns the value, after a graph break."""
    return value


def printed(value: Any) -> Any:
    """Returns the value, after a graph break in a traced function."""
    print("printed")
    return value


def with_breaks(source: str, seed: int) -> str:
    """Returns the program with one to five breaks, and with the names `passed`, `printed` and `minidynamo`."""
    counted = _Insertion(random.Random(seed), frozenset(), frozenset())
    counted.visit(ast.parse(source))
    chosen = random.Random(seed)
    expressions = frozenset(chosen.randrange(max(1, counted.expressions)) for _ in range(chosen.choice([1, 1, 2, 3])))
    statements = frozenset(chosen.randrange(max(1, counted.statements)) for _ in range(chosen.choice([0, 0, 1, 2])))
    changed = _Insertion(chosen, expressions, statements).visit(ast.parse(source))
    return ast.unparse(ast.fix_missing_locations(changed)) + "\n"


class _Insertion(ast.NodeTransformer):
    """Wraps the numbered expressions, and precedes the numbered statements."""

    def __init__(self, choices: random.Random, wrapped: frozenset[int], preceded: frozenset[int]) -> None:
        self.random, self.wrapped, self.preceded = choices, wrapped, preceded
        self.expressions = self.statements = 0

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, (ast.JoinedStr, ast.pattern, ast.arguments, ast.Global, ast.Nonlocal)):
            return node  # no expressions inside
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super":
            return node
        if isinstance(node, ast.Module):
            node.body = [self.visit(statement) for statement in node.body]  # runs once, and not in a program
            return node
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            node.body = self.block(node.body)  # decorators and base classes stay
            return node
        if hasattr(node, "body") and isinstance(node.body, list):
            for name in ("body", "orelse", "finalbody"):
                if getattr(node, name, None):
                    setattr(node, name, self.block(getattr(node, name)))
            for name in ("handlers", "cases", "items"):
                for child in getattr(node, name, ()):
                    self.visit(child)
            for name in ("test", "iter", "subject", "guard"):
                if getattr(node, name, None) is not None:
                    setattr(node, name, self.visit(getattr(node, name)))
            return node
        return self.expression(self.generic_visit(node))

    def block(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        found: list[ast.stmt] = []
        for statement in statements:
            if self.statements in self.preceded and not isinstance(statement, (ast.Global, ast.Nonlocal)):
                found += ast.parse(self.random.choice(STATEMENTS)).body
            self.statements += 1
            found.append(self.visit(statement))
        return found

    def expression(self, node: ast.AST) -> ast.AST:
        is_read = isinstance(getattr(node, "ctx", ast.Load()), ast.Load)
        if not isinstance(node, ast.expr) or isinstance(node, (ast.Starred, ast.Slice)) or not is_read:
            return node
        self.expressions += 1
        if self.expressions - 1 not in self.wrapped:
            return node
        function = self.random.choice(["passed", "passed", "printed"])
        return ast.Call(ast.Name(function, ast.Load()), [node], [])
