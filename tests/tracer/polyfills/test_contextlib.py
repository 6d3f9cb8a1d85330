import contextlib

import pytest

from minidynamo.tracer.polyfills.libraries import leave_stack


class Stack(contextlib.ExitStack):
    __exit__ = leave_stack


def callback(log, name, answer):
    def leave(kind, error, traceback):
        log.append((name, kind, str(error)))
        if isinstance(answer, BaseException):
            raise answer
        return answer

    return leave


@pytest.mark.parametrize("answers", [(), (None, True), (True, None), (KeyError("a"), None), (True, KeyError("a"))])
@pytest.mark.parametrize("error", [None, ValueError("v")])
def test_leaving_a_stack(answers, error):
    def run(cls):
        log = []
        try:
            with cls() as stack:
                for name, answer in enumerate(answers):
                    stack.push(callback(log, name, answer))
                if error is not None:
                    raise error
        except Exception as raised:
            log.append((type(raised), str(raised), str(raised.__context__)))
        return log

    assert run(Stack) == run(contextlib.ExitStack)


def test_several_errors_are_not_traced():
    with pytest.raises(NotImplementedError, match="several errors"), Stack() as stack:
        stack.push(callback([], "a", KeyError()))
        stack.push(callback([], "b", KeyError()))
