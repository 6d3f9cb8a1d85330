from tests.end_to_end.programs import Programs

programs = Programs()
test_same_as_eager = programs.test()


class Own(Exception):
    def __init__(self, code, *args):
        super().__init__(code + 1, *args)
        self.code = code


class WithoutSuper(KeyError):
    def __init__(self, code):
        self.code = code


class ArgsProperty(Exception):
    @property
    def args(self):
        return ("own",)


@programs()
class Cases:
    def texts(x):
        made = [
            Exception(),
            ValueError("a"),
            KeyError("a"),
            KeyError("a", "b"),
            KeyError(),
            Own(1, "b"),
            WithoutSuper("c"),
        ]
        return x + 1, [str(error) for error in made], [repr(error) for error in made]

    def attributes(x):
        error = Own(1)
        error.more = x
        found = [error.args, error.code, error.__cause__, error.__context__, error.__traceback__]
        return error.more + 1, found, error.__suppress_context__, StopIteration(3).value, StopIteration().value

    def names_of_name_errors(x):
        return x + 1, NameError("a").name, AttributeError("a").obj

    def overridden_arguments(x):
        return x + 1, ArgsProperty(1).args

    @programs(breaks=None, graphs=None)
    def keywords(x):
        return x + 1, AttributeError("a", name="b").name

    @programs(breaks=None, graphs=None)
    def wrong_keywords(x):
        try:
            ValueError("a", b=1)
        except TypeError as error:
            return x + 1, str(error)

    @programs(breaks=None, graphs=None)
    def text_of_a_tensor(x):
        return x + 1, str(ValueError(x))

    @programs(breaks=None, graphs=None)
    def changed_arguments(x):
        error = ValueError("a")
        error.args = ("b",)
        return x + 1, str(error)
