from __future__ import annotations

import dataclasses

import pytest

from minidynamo.config import Config, Settings
from minidynamo.errors import ArgumentError, Diagnostic, UnknownName


def test_patch_changes_settings_inside_the_block_only():
    settings = Settings(Config())
    with settings.patch(fuse=False, threads=2):
        assert (settings.fuse, settings.threads) == (False, 2)
    assert (settings.fuse, settings.threads) == (True, 0)


def test_patch_restores_after_an_error():
    settings = Settings(Config())
    with pytest.raises(KeyError), settings.patch(fuse=False):
        raise KeyError
    assert settings.fuse


def test_patch_works_as_a_decorator():
    settings = Settings(Config())

    @settings.patch(verbose=True)
    def read():
        return settings.verbose

    assert read() and read()
    assert not settings.verbose


def test_a_decorator_complains_before_its_function_is_called():
    with pytest.raises(UnknownName, match="Did you mean 'fuse'"):
        Settings(Config()).patch(fus=True)


def test_attributes_can_be_set():
    settings = Settings(Config())
    settings.threads = 3
    assert settings.current == Config(threads=3)


@pytest.mark.parametrize("name", ["fus", "thread"])
def test_an_unknown_setting_names_the_nearest(name):
    settings = Settings(Config())
    with pytest.raises(UnknownName, match=rf"{name}(?s:.*)Did you mean '{name}\w'"), settings.patch(**{name: 1}):
        pass
    with pytest.raises(AttributeError, match="Did you mean"):
        getattr(settings, name)


def test_a_value_of_the_wrong_type_is_refused():
    with pytest.raises(ArgumentError, match=r"MD101.*`fuse` must be bool, not int"), Settings(Config()).patch(fuse=1):
        pass


@pytest.mark.parametrize(("text", "value"), [("1", True), ("true", True), ("0", False), ("off", False), ("", False)])
def test_switches_are_read_from_the_environment(monkeypatch, text, value):
    monkeypatch.setenv("MINIDYNAMO_FUSE", text)
    assert Config.from_environment().fuse is value


def test_numbers_and_texts_are_read_from_the_environment(monkeypatch):
    monkeypatch.setenv("MINIDYNAMO_THREADS", "4")
    monkeypatch.setenv("MINIDYNAMO_BACKEND", "eager")
    assert (Config.from_environment().threads, Config.from_environment().backend) == (4, "eager")


@pytest.mark.parametrize("variable", ["MINIDYNAMO_FUSE", "MINIDYNAMO_THREADS"])
def test_an_unreadable_environment_value_is_refused(monkeypatch, variable):
    monkeypatch.setenv(variable, "many")
    with pytest.raises(UnknownName, match=f"{variable}='many'"):
        Config.from_environment()


def test_the_cache_key_follows_the_settings_that_change_code():
    assert Config(fuse=False).code_key() != Config().code_key()
    assert Config(verbose=True, cache_dir="x").code_key() == Config().code_key()


def test_there_are_few_settings_and_each_is_described():
    fields = dataclasses.fields(Config)
    assert len(fields) <= 23
    assert all(field.metadata["doc"] for field in fields)
    assert len(Config().describe().splitlines()) == len(fields)


def test_printed_it_shows_what_is_in_force():
    settings = Settings(Config(threads=3))
    assert "threads = 3: threads of a CPU kernel" in str(settings) and "fuse = True: " in str(settings)
    assert repr(settings) == "minidynamo.config(threads=3)" and {"threads", "patch"} <= set(dir(settings))


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"stance": "eagr_on_recompile"}, UnknownName, "Did you mean 'eager_on_recompile'"),
        ({"progress": "maybe"}, UnknownName, "Use one of auto, 0, 1"),
        ({"threads": -1}, ArgumentError, "at least 0, not -1"),
        ({"activation_budget": 2}, ArgumentError, "from 0 to 1, not 2"),
        ({"activation_budget": float("nan")}, ArgumentError, "not nan"),
        ({"activation_budget": True}, ArgumentError, "must be float, not bool"),
    ],
)
def test_a_value_out_of_range_is_refused(changes, error, says):
    settings = Settings(Config())
    with pytest.raises(error, match=f"MD101(?s:.*){says}"), settings.patch(**changes):
        pass
    assert settings.current == Config()


def test_whole_numbers_do_for_others():
    settings = Settings(Config())
    settings.activation_budget = 0
    assert settings.current == Config(activation_budget=0.0) and type(settings.activation_budget) is float


def test_a_value_that_its_reader_refuses_is_not_kept():
    settings = Settings(Config())

    def refuse():
        if settings.logs:
            raise UnknownName(Diagnostic("MD101", "no such log"))

    settings.on_change(refuse)
    for change in (lambda: setattr(settings, "logs", "nothing"), lambda: settings.patch(logs="nothing").__enter__()):
        with pytest.raises(UnknownName):
            change()
        assert settings.logs == ""


def test_a_mistyped_variable_is_refused_instead_of_ignored(monkeypatch):
    monkeypatch.setenv("MINIDYNAMO_TREADS", "3")
    with pytest.raises(UnknownName, match=r"no setting MINIDYNAMO_TREADS\. Did you mean 'MINIDYNAMO_THREADS'"):
        Config.from_environment()
