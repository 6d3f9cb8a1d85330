"""Locale-dependent text is formatted by Python, when the program runs; all further text while tracing."""

import datetime
import locale

import torch

import minidynamo
from minidynamo.tracer.handlers.texts import depends_on_locale
from tests.end_to_end.programs import Programs

programs = Programs()
test_same_as_eager = programs.test()
DAY = datetime.date(2020, 1, 2)


@programs()
class Cases:
    @programs(breaks=1)
    def name_of_a_day(x):
        y = x + 1
        return y, f"{DAY:%A}"

    @programs(breaks=1)
    def name_of_a_month(x):
        y = x + 1
        text = "{when:%B}"
        return y, text.format(when=DAY)

    @programs(breaks=1)
    def date_that_formats_itself(x):
        y = x + 1
        return y, DAY.__format__("%B")

    @programs(breaks=1)
    def number_with_signs_between_digits(x):
        y = x + 1
        return y, f"{12345:n}"

    def text_that_is_the_same_everywhere(x):
        texts = f"{DAY}", "{0} {a:>5}".format(1, a="x"), f"{3.5:.2f}", "{a}".format_map({"a": 1}), f"{0.5:%}"
        return x + 1, texts

    def formats_that_do_not_fit(x):
        found = []
        for text in ("{:d}", "{} {}", "{a}", "{"):
            try:
                text.format("x")
            except (ValueError, LookupError) as error:
                found.append(str(error))
        return x + 1, found


def test_which_text_is_local():
    assert depends_on_locale(DAY, "%A") and depends_on_locale(5, "n") and depends_on_locale(0.5, "010n")
    assert not depends_on_locale(DAY, "") and not depends_on_locale(0.5, ".1%") and not depends_on_locale(5, "d")


def test_the_locale_of_the_second_call_counts(monkeypatch):
    def f(x, how):
        return x + 1, f"{12345:n}"

    compiled = minidynamo.compile(f, backend="eager")
    before = locale.setlocale(locale.LC_NUMERIC)
    compiled(torch.ones(2), "n")
    try:
        locale.setlocale(locale.LC_NUMERIC, "C.UTF-8")
        assert compiled(torch.ones(2), "n")[1] == f"{12345:n}"
    finally:
        locale.setlocale(locale.LC_NUMERIC, before)
