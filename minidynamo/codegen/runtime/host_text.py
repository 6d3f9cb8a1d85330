"""Owns the record of a printed host program, from which a process that finds the graph in the cache loads the function.

`printers/host.py` writes the statements.
"""

from __future__ import annotations

import types
from typing import Any

from minidynamo.core.records import record
from minidynamo.graph.boxed import UNBOXED
from minidynamo.graph.boxed_text import BoxedText, load


@record(frozen=True)
class HostText:
    """The text of a host program."""

    #: the name of the program
    name: str
    #: the name of the list argument
    args: str
    #: the statements
    body: BoxedText
    #: the name of the argument that receives results; "" if the program hands over none
    receiver: str = ""
    #: the name of `run_steps` among the globals; "" if the program does not run in steps
    run_steps: str = ""

    def source(self) -> str:
        """Returns the text of the boxed function `call(args)`, or `call(args, receiver)`."""
        args, inputs = self.args, self.body.inputs
        parameters = f"{args}, {self.receiver}=None" if self.receiver else args
        lines = [f"if {args}.__class__ is not list:"]
        lines.append(f"    raise TypeError({UNBOXED!r}.format({args}.__class__.__name__))")
        lines += [f"{', '.join(inputs)}{',' if len(inputs) == 1 else ''} = {args}"] * bool(inputs)
        lines += [f"{args}.clear()", *map(str, self.body.lines), f"return {self.body.result}"]
        head = f"def steps({args}):" if self.run_steps else f"def call({parameters}):"
        text = [f"# The host program of {self.name}.", head, *(f"    {line}" for line in lines), "", ""]
        if self.run_steps:
            text += [f"def call({parameters}):", f"    return {self.run_steps}(steps({args}), {self.receiver})", "", ""]
            text.append("call._steps = steps")
        text.append("call._boxed_call = True")
        text += ["call._hands_over = True"] * bool(self.receiver)
        return "\n".join([*text, ""])

    def load(self, namespace: dict[str, Any]) -> types.FunctionType:
        """Returns the function, with these globals."""
        return load("host", self.name, self.source(), None if self.receiver else self.body, namespace, "call")
