"""The table of equal blocks."""

from __future__ import annotations

from benchmarks import blocks


def test_the_ratio_compares_with_the_fewest_blocks_and_eager_steps(monkeypatch):
    seconds = {2: 2.0, 24: 3.0}

    def measured(system, count):
        return [seconds[count], 0.1 * count, 0.0] if system == "eager" else [2 * seconds[count], 0.1 * count, 2.0]

    monkeypatch.setattr(blocks, "fresh_process", measured)
    rows = {(row[0], row[1]): row[2:] for row in blocks.table([2, 24], rounds=1)}
    assert rows["minidynamo native", "24"] == ["2", "6.00", "2.4000", "0.97"]
    assert rows["torch.compile inductor", "2"][-1] == "1.00"


def test_each_block_of_our_process_is_compiled_once(capsys, monkeypatch):
    monkeypatch.setattr(blocks, "WIDTH", 8)
    blocks.process("minidynamo aot_eager", 3)
    assert capsys.readouterr().out.split()[-1] == "2"
