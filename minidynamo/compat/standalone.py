"""Owns forms of torch's fake tensor mode, `make_fx` and printer that do not import torch.compile.

Why: these functions of torch read a few settings of the package `torch._dynamo`, which is torch.compile. The import of
the package takes longer than a small compile, and minidynamo does not need anything else of it.

How: a function of Python looks its global names up in a dictionary. `_without` creates a second function from the code
of a function of torch and from a dictionary of its own, `_Globals`. There, the name `torch` and the statement `import`
lead to views of torch. A view of a module knows the names that such functions read, with their defaults; any other
name imports the module. Likewise, the printer does not import DTensors.

When: the second function runs until the program imports `torch._dynamo` for whatever reason. After that, torch's own
function runs. So the program's own changes of settings count, as only a program with the package can change them.

Where a private name of torch is missing, the import of this module fails. `torch_forms` has the same names then. The
views do not know the variables of the environment that set the package's settings (docs/differences.md).
"""

from __future__ import annotations

import builtins
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import sys
import types
import typing

import torch
import torch._subclasses.fake_tensor
import torch.fx.experimental.proxy_tensor

from minidynamo.compat.python import in_thread

FakeTensorMode = torch._subclasses.fake_tensor.FakeTensorMode

_DYNAMO = "torch._dynamo"
_DTENSOR = "torch.distributed.tensor._api"
_fake_tensor: typing.Any = torch._subclasses.fake_tensor
_proxy_tensor: typing.Any = torch.fx.experimental.proxy_tensor

# The settings that are read, with their defaults.
_FAKE_TENSORS = {
    "fake_tensor_cache_enabled": True,
    "fake_tensor_cache_crosscheck_enabled": False,
    "_custom_ops_profile": None,
}


class _View(types.ModuleType):
    """A module with other values for some attributes."""

    def __init__(self, name: str, **values: object) -> None:
        super().__init__(name)
        vars(self).update(values)

    def __getattr__(self, name: str) -> typing.Any:
        return getattr(importlib.import_module(self.__name__), name)


class _Source:
    """The origin of a tensor with constant sizes, which nothing reads."""

    def __init__(self, *parts: object, **named: object) -> None: ...


_sources = _View("torch._dynamo.source", ConstantSource=_Source, AttrSource=_Source, RandomValueSource=())
_dynamo = _View("torch._dynamo", config=_View("torch._dynamo.config", **_FAKE_TENSORS), source=_sources)


def _merge_equal_sizes(graph: torch.fx.Graph) -> None:
    """Merges nodes of equal symbolic numbers; most graphs have none."""
    if any(isinstance(node.meta.get("val"), torch.types.py_sym_types) for node in graph.nodes):
        importlib.import_module(_merge.__name__).dedupe_symints(graph)


_merge = _View("torch._inductor.fx_passes.dedupe_symint_uses", dedupe_symints=_merge_equal_sizes)
_bisector = types.SimpleNamespace(disable_subsystem=lambda *args: False)
_bisecting = _View("torch._inductor.compiler_bisector", CompilerBisector=_bisector)
_tracing = types.SimpleNamespace(provenance_tracking_level=0)
_settings = _View("torch._inductor.config", trace=_tracing, emulate_precision_casts=False)
_inductor = _View("torch._inductor", config=_settings)
_torch = _View("torch", _dynamo=_dynamo, _inductor=_inductor)
_VIEWS = {view.__name__: view for view in (_dynamo, _dynamo.config, _sources, _inductor, _merge, _bisecting)}


def _import(name: str, scope: typing.Any, variables: object, names: typing.Any, level: int) -> typing.Any:
    """Implements the import statement. `import torch.a.b` binds the name `torch`."""
    if name in _VIEWS and not level:
        return _VIEWS[name] if names else _torch
    if name == _DTENSOR and name not in sys.modules:
        raise ModuleNotFoundError(name=name)
    found = __import__(name, dict(scope), None, names, level)
    return _torch if found is torch else found


class _Globals(dict[str, typing.Any]):
    """The globals of a module, with other values for some."""

    def __init__(self, module: types.ModuleType, **values: object) -> None:
        super().__init__(values, torch=_torch, __builtins__={**vars(builtins), "__import__": _import})
        self["__name__"], self["__package__"] = module.__name__, module.__package__
        self.module = module

    def __missing__(self, name: str) -> typing.Any:
        return vars(self.module)[name]


def _without(package: str, own: typing.Any, **values: object) -> typing.Any:
    """Returns a function that runs as the function `own` of torch. As long as the program has not imported `package`,
    the code of `own` runs with the views as globals, and with `values` for further globals.
    """
    scope = _Globals(sys.modules[own.__module__], **values)
    changed = types.FunctionType(own.__code__, scope, own.__name__, own.__defaults__, own.__closure__)
    changed.__kwdefaults__ = own.__kwdefaults__

    @functools.wraps(own)
    def function(*args: typing.Any, **kwargs: typing.Any) -> typing.Any:
        return (own if package in sys.modules else changed)(*args, **kwargs)

    return function


# Each class below has the methods, of a class of torch, that read settings. A method that creates objects of another
# such class finds the class below in its globals.


class _MetaConverter(_fake_tensor.MetaConverter):
    meta_tensor = _without(_DYNAMO, _fake_tensor.MetaConverter.meta_tensor)


class _Converter(_fake_tensor.FakeTensorConverter):
    __init__ = _without(_DYNAMO, _fake_tensor.FakeTensorConverter.__init__, MetaConverter=_MetaConverter)
    from_real_tensor = _without(_DYNAMO, _fake_tensor.FakeTensorConverter.from_real_tensor)


class StandaloneFakeTensorMode(FakeTensorMode):
    """Runs operations on tensors without data."""

    __init__ = _without(_DYNAMO, FakeTensorMode.__init__, FakeTensorConverter=_Converter)
    _dispatch_impl = _without(_DYNAMO, FakeTensorMode._dispatch_impl)


class _ProxyMode(_proxy_tensor.ProxyTorchDispatchMode):
    __init__ = _without(_DYNAMO, _proxy_tensor.ProxyTorchDispatchMode.__init__)
    __torch_dispatch__ = _without(
        _DYNAMO,
        inspect.unwrap(_proxy_tensor.ProxyTorchDispatchMode.__torch_dispatch__),
        proxy_call=_without(
            _DYNAMO, _proxy_tensor.proxy_call, maybe_handle_decomp=_without(_DYNAMO, _proxy_tensor.maybe_handle_decomp)
        ),
    )


class _Tracer(_proxy_tensor._MakefxTracer):
    _construct_modes_with_fx_tracer = _without(
        _DYNAMO, _proxy_tensor._MakefxTracer._construct_modes_with_fx_tracer, ProxyTorchDispatchMode=_ProxyMode
    )
    _trace_inner = _without(
        _DYNAMO,
        _proxy_tensor._MakefxTracer._trace_inner,
        dispatch_trace=_without(_DYNAMO, _proxy_tensor.dispatch_trace.__wrapped__),
        trace_structured=lambda *args, **kwargs: None,  # the record of a failure imports the package
    )


# Traces a function into a graph of ATen operations.
make_fx = _without(_DYNAMO, _proxy_tensor.make_fx, _MakefxTracer=_Tracer)


# Python rules of torch are excluded from torch.compile. The first call of a rule imports `torch._dynamo` for that, and
# keeps the excluded function in an attribute of the rule.
_EXCLUDED = "__dynamo_disable"
_wrapper: typing.Any = torch._disable_dynamo(lambda: None).__code__
_RULES = ("torch._refs", "torch._decomp", "torch._prims", "torch._meta_registrations", "torch.fx.experimental")


def _rules(functions: typing.Iterable[object]) -> typing.Iterator[typing.Any]:
    """Yields the rules that these functions wrap, or call as a variable of an enclosing function."""
    if _EXCLUDED not in _wrapper.co_consts or "fn" not in _wrapper.co_freevars:
        return
    found, todo = set(), [*functions]
    while todo:
        function = todo.pop()
        if not isinstance(function, types.FunctionType) or function in found:
            continue
        found.add(function)
        cells = dict(zip(function.__code__.co_freevars, function.__closure__ or ()))
        todo.append(vars(function).get("__wrapped__"))
        todo += [cell.cell_contents for cell in cells.values() if cell != types.CellType()]
        if function.__code__ is _wrapper:
            yield cells["fn"].cell_contents


class _OutsideOfModes(importlib.abc.Loader):
    """Runs a package, which calls functions of torch, outside of the modes of a trace."""

    def __init__(self, loader: typing.Any) -> None:
        self._loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType | None:
        module: types.ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        assert module.__spec__ is not None
        module.__loader__ = module.__spec__.loader = self._loader
        with torch.utils._python_dispatch._disable_current_modes():
            self._loader.exec_module(module)


class _UnloadedDynamo:
    """Lets rules run without `torch._dynamo`: without the package, there is nothing to exclude them from.

    As a finder of modules, it restores the rules when the package is about to be imported.
    """

    def __init__(self) -> None:
        self._changed: list[typing.Any] = []

    def call_directly(self, functions: typing.Iterable[object]) -> None:
        """Lets the rules that these functions wrap run directly."""
        if _DYNAMO in sys.modules:
            return
        for rule in _rules(functions):
            if not hasattr(rule, _EXCLUDED):
                setattr(rule, _EXCLUDED, rule)
                self._changed.append(rule)
        if self not in sys.meta_path:
            sys.meta_path.insert(0, typing.cast(typing.Any, self))

    def find_spec(self, name: str, path: typing.Any = None, target: object = None) -> typing.Any:
        """Returns the package, and None for other modules."""
        if name != _DYNAMO:
            return None
        sys.meta_path.remove(typing.cast(typing.Any, self))
        for rule in self._changed:
            vars(rule).pop(_EXCLUDED, None)
        spec = importlib.util.find_spec(name)
        if spec is not None:
            spec.loader = _OutsideOfModes(spec.loader)
        return spec


_unloaded_dynamo = _UnloadedDynamo()


class TorchDispatchMode(torch.utils._python_dispatch.TorchDispatchMode):
    """Sees every operation of torch below autograd."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()  # type: ignore[no-untyped-call]
        _unloaded_dynamo.call_directly([vars(cls).get("__torch_dispatch__")])


@functools.cache
def load_fake_tensors() -> None:
    """Imports the dependencies of the first fake mode, in a thread: the import keeps all frames below it alive."""
    modules = [module for name, module in [*sys.modules.items()] if name.startswith(_RULES)]
    _unloaded_dynamo.call_directly(each for module in modules for each in [*vars(module).values()])
    classes = [*StandaloneFakeTensorMode.__mro__, *_ProxyMode.__mro__]
    _unloaded_dynamo.call_directly(vars(cls).get("__torch_dispatch__") for cls in classes)
    in_thread(lambda: __import__("torch.fx.experimental.symbolic_shapes"))
    in_thread(lambda: __import__("torch._higher_order_ops.triton_kernel_wrap"))
    in_thread(StandaloneFakeTensorMode)


_print = _without(_DTENSOR, torch.fx.graph.CodeGen._gen_python_code)


def readable_text(gm: torch.fx.GraphModule) -> str:
    """Returns the text that `gm.print_readable` prints."""
    printers = [part.graph._codegen for part in gm.modules() if isinstance(part, torch.fx.GraphModule)]
    plain = [printer for printer in printers if type(printer) is torch.fx.graph.CodeGen]
    for printer in plain:
        vars(printer)["_gen_python_code"] = functools.partial(_print, printer)
    try:
        return gm.print_readable(print_output=False)
    finally:
        for printer in plain:
            vars(printer).pop("_gen_python_code", None)
