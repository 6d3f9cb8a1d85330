"""Tests texts of tensors: a text that the program never reads is not formatted, and any other text is as in eager."""

import pytest
import torch

import minidynamo
from minidynamo.testing import assert_same_as_eager


def check(condition, message):
    torch._check_tensor_all(condition, lambda: message)


def vector():
    return torch.tensor([1.0, -2.0, 3.0])


MESSAGES = {
    "a tensor": lambda n: f"{n} of 3 are positive",
    "a number in a tensor": lambda n: f"{n.item()} of 3 are positive",
    "a format": lambda n: f"{n:>5d} of 3 are positive",
    "str": lambda n: str(n) + " are positive",
    "repr": lambda n: f"{n!r} of {n.dim() + 3}",
    "join": lambda n: " ".join([str(n), "are positive"]),
    "percent": lambda n: "%s are positive" % n,
    "a list": lambda n: f"{[n, 1]}",
    "a text of texts": lambda n: f"{f'{n}'}!",
}


@pytest.mark.parametrize("message", MESSAGES.values(), ids=MESSAGES)
def test_a_check_formats_its_message_only_if_it_fails(message):
    def fn(x):
        n = (x > 0).sum()
        check(n == 2, message(n))
        return x * 2

    assert_same_as_eager(fn, vector, fullgraph=True)
    assert_same_as_eager(fn, lambda: -vector())


KEPT = {
    "returned": lambda text, x: text,
    "in a list": lambda text, x: [text, (text, x + 1)],
    "in a function": lambda text, x: (lambda: text)(),
    "an attribute": lambda text, x: setattr(x, "text", text) or x + 1,
    "joined and returned": lambda text, x: f"<{text}>" + "!",
    "after a break": lambda text, x: minidynamo.graph_break() or text,
    "in an error": lambda text, x: ValueError(text),
}


@pytest.mark.parametrize("message", MESSAGES.values(), ids=MESSAGES)
@pytest.mark.parametrize("keep", KEPT.values(), ids=KEPT)
def test_a_text_that_is_kept_is_made_after_the_graph(keep, message):
    def fn(x):
        n = (x > 0).sum()
        return keep(message(n), x), n + 1

    compiled = assert_same_as_eager(fn, vector)
    assert "MD234" not in compiled.breaks()


READERS = {
    "returned": lambda text, x: text,
    "compared": lambda text, x: x + (text == "tensor([1., -2., 3.])"),
    "measured": lambda text, x: x + len(text),
    "searched": lambda text, x: x + text.find("3"),
    "a condition": lambda text, x: x + 1 if text else x,
    "a key": lambda text, x: {text: x},
    "in a list": lambda text, x: [text, x + 1],
    "in a function": lambda text, x: (lambda: text)(),
    "an attribute": lambda text, x: setattr(x, "text", text) or x + 1,
    "joined and returned": lambda text, x: f"<{text}>" + "!",
}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_a_text_that_is_read_shows_the_tensor_at_the_time_of_the_format(read):
    def fn(x):
        y = x + 1
        text = f"{y}"
        y.add_(1)
        return read(text, x), y

    assert_same_as_eager(fn, vector)


def test_a_read_text_breaks_the_graph_where_it_is_formatted():
    @minidynamo.compile(backend="eager")
    def fn(x):
        text = f"{x + 1}"
        return x * 2, text == "tensor"

    fn(vector())
    assert "MD234" in fn.breaks() and 'text = f"{x + 1}"' in fn.breaks()


def test_a_text_that_a_later_break_needs_is_as_in_eager():
    def fn(x):
        y = x + 1
        text = f"{y}"
        y.add_(1)
        minidynamo.graph_break()
        return text, y * 2

    assert_same_as_eager(fn, vector)


def test_a_caught_exception_keeps_its_text_unread():
    def fn(x):
        try:
            raise ValueError(f"bad: {x}")
        except ValueError:
            return x + 1

    assert_same_as_eager(fn, vector, fullgraph=True)


def test_the_message_of_a_caught_exception_can_be_read():
    def fn(x):
        try:
            raise ValueError(f"bad: {x}")
        except ValueError as error:
            return x + 1, str(error)

    assert_same_as_eager(fn, vector)


@pytest.mark.parametrize("how", [".2f", "d", "q"])
def test_a_format_that_a_tensor_refuses_raises_as_in_eager(how):
    def fn(x):
        f"{x:{how}}"
        return x + 1

    assert_same_as_eager(fn, vector)
    assert_same_as_eager(fn, lambda: torch.tensor(2.5))


def test_texts_in_a_loop_are_read_in_the_order_of_the_program():
    def fn(x):
        texts = []
        for k in range(3):
            x = x + k
            texts.append(f"{k}: {x}")
        return texts, x

    assert_same_as_eager(fn, vector)


PRINTED = {
    "a tensor": lambda y: f"loss {y.sum()}",
    "a number in a tensor": lambda y: f"loss {y.sum().item():.4f}",
    "str": lambda y: "loss " + str(y.sum()),
    "percent": lambda y: "loss %s" % y.sum(),
    "a percent format": lambda y: "loss %.3f" % y.sum(),
    "format": lambda y: "loss {:.3f}".format(y.sum().item()),
    "two": lambda y: f"loss {y.sum()} of {y.mean()}",
}


@pytest.mark.parametrize("text", PRINTED.values(), ids=PRINTED)
def test_a_printed_text_is_no_reason_to_compile_again(text, capsys):
    def fn(x):
        y = x.sin()
        print(text(y))
        return y * 2

    compiled = minidynamo.compile(fn, backend="eager")
    for number in range(4):
        x = vector() + number
        assert torch.equal(compiled(x), fn(x))
        shown, expected = capsys.readouterr().out.splitlines()
        assert shown == expected
    assert compiled.stats.recompiles == 0
