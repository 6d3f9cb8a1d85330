"""The comparison of peaks reports each exceeded limit, and its models run."""

import pytest
import torch

import minidynamo
from benchmarks import model_peaks, peaks, random_peaks
from benchmarks.model_peaks import ModelPeak, measure, misses
from benchmarks.peak_models import MODELS, Model
from tests.models.cases import rotating


def peak_of(shares, name="net"):
    return ModelPeak(name, 2, 1000, {backend: round(1000 * share) for backend, share in shares.items()})


def test_a_peak_above_eagers_is_a_miss():
    found = [peak_of({"native": 1.0, "aot_eager": 1.001}), peak_of({"native": 0.9, "torch.compile": 2.0})]
    assert misses(found) == ["net, batch 2, aot_eager: 1,001 bytes, eager 1,000"]


def test_the_mean_counts_over_all_models():
    shares = {"native": 0.9, "aot_eager": 0.8, "torch.compile": 0.9}
    assert misses([peak_of(shares)]) == []
    (line,) = misses([peak_of(shares, name) for name in MODELS])
    assert line.startswith("geometric mean, native: 0.900")


def test_the_step_is_measured_with_its_gradients():
    model = Model(lambda: torch.nn.Linear(64, 32, bias=False), lambda batch: {"input": torch.ones(batch, 64)})
    gradient, results = 64 * 32 * 4, 2 * 32 * 4
    found = measure("linear", 2, ["aot_eager"], model)
    assert gradient < found.eager < gradient + 4 * results
    assert gradient < found.compiled["aot_eager"] <= found.eager


def table(monkeypatch, capsys, share, *arguments):
    """Returns the exit status and the text of the tables, with models of a constant share."""
    monkeypatch.setattr(
        model_peaks, "measure", lambda name, batch, backends: peak_of(dict.fromkeys(backends, share), name)
    )
    with pytest.raises(SystemExit) as ended:
        peaks.main(["--backend", "aot_eager", *arguments])
    return ended.value.code, capsys.readouterr().out


def test_the_table_has_models_and_random_programs(monkeypatch, capsys):
    code, text = table(monkeypatch, capsys, 0.8, "--programs", "3")
    assert code == 0 and all(name in text for name in MODELS)
    row = next(line for line in text.splitlines() if line.startswith("│ aot_eager"))
    assert [cell.strip() for cell in row.strip("│").split("│")][:3] == ["aot_eager", "3", "0"]


def test_an_exceeded_limit_of_a_model_fails(monkeypatch, capsys):
    code, text = table(monkeypatch, capsys, 1.01, "--models", "ViT", "--batch", "2", "--programs", "0")
    assert code == 1 and "above the limit: ViT, batch 2, aot_eager: 1,010 bytes" in text


def test_an_exceeded_limit_of_a_random_program_fails(monkeypatch, capsys):
    found = [random_peaks.Peak(seed, 1000, size) for seed, size in ((5, 1050), (6, 1051))]
    monkeypatch.setattr(random_peaks, "peaks", lambda *_: iter(found))
    code, text = table(monkeypatch, capsys, 1.0, "--models", "--programs", "2")
    assert (
        code == 1 and "above the limit: aot_eager, seed 6" in text and "above the limit: aot_eager, seed 5" not in text
    )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("batch", model_peaks.BATCHES)
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("native", marks=pytest.mark.cpp)])
@pytest.mark.parametrize("name", rotating(MODELS))
def test_no_model_needs_more_memory_than_in_eager(name, backend, batch, md_reset):
    with minidynamo.config.patch(graph_cache=False):
        assert misses([measure(name, batch, [backend])]) == []
