"""Every Triton kernel that a test of the code generator starts is compiled for GPUs as well, which needs none."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest

from minidynamo.codegen.runtime import triton_launch
from minidynamo.codegen.runtime.triton_launch import LaunchSpec


@pytest.fixture(autouse=True)
def machine_code(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Compile behind the test what it has launched through `compile_graph` or `launchers`."""
    printed: list[tuple[str, LaunchSpec]] = []
    original = triton_launch.launchers

    def recording(source: str, specs: Sequence[LaunchSpec], *, interpret: bool) -> dict[str, Callable[..., None]]:
        printed.extend((source, spec) for spec in specs)
        return original(source, specs, interpret=interpret)

    monkeypatch.setattr(triton_launch, "launchers", recording)
    yield
    for source, spec in printed:
        assert triton_launch.check_offline(source, spec) == ("cubin", "cubin", "hsaco")
