import enum
import json
import os
import re
import string
import struct
import sys
import textwrap

import torch

from tests.end_to_end.programs import Programs

programs = Programs()
test_same_as_eager = programs.test()


SAID = []


class Loud(enum.Enum):
    """An enum with texts computed by the program."""

    A = 1

    def __str__(self):
        SAID.append("str")
        return "loud"

    def __repr__(self):
        SAID.append("repr")
        return "<loud>"

    def __format__(self, how):
        SAID.append(how)
        return f"loud{how}"


class Named:
    def __str__(self):
        return "named"


NAMED = Named()


WORD = re.compile(r"([a-z]+)(\d+)$")


@programs(graphs=0)
class Cases:
    percent_and_format = lambda x: (x, "%d %s" % (3, "a"), "{} {name:>4}".format(1, name="b"), "%.2f" % 1.234)

    fields_for_objects = lambda x: (x, "%s" % NAMED, "<%s-%s>" % (NAMED, 3), "%s" % [Loud.A])

    @programs(breaks=None, graphs=None)
    def texts_with_objects(x):
        return x, "%s-%d" % (NAMED, 3), "%%s %s" % NAMED, "{}".format(NAMED), "{!s:>8}|".format(NAMED)

    text_comparison = lambda x: (x, "a" < "b", "a" == "a", "abc" >= "abd", sorted(["b", "a"]), max("hello"))

    def nested_format(x):
        width = 6
        return x, f"{3.14159:{width}.{2}f}", f"{'mid':^{width}}"

    def join_and_split(x):
        return x, "-".join(["a", "b"]), ["a", "b", "c"], "a=b=c".partition("="), ",".join([str(i) for i in range(3)])

    @programs(breaks=None, graphs=None)
    def texts_of_members(x):
        SAID.clear()
        texts = ["%s %r %5s %%" % (Loud.A, Loud.A, Loud.A), "%(a)s" % {"a": Loud.A}]
        texts += ["%s" % [Loud.A], "%s" % ((Loud.A,),)]
        texts += ["{} {!s} {:>3} {a.name} {b[0]!r}".format(Loud.A, Loud.A, Loud.A, a=Loud.A, b=[Loud.A])]
        texts += ["{a}".format_map({"a": Loud.A}), f"{[Loud.A]} {Loud.A}"]
        texts += [repr((Loud.A, {Loud.A: Loud.A})), ascii(Loud.A)]
        return x, texts, [*SAID]

    def slicing_text(x):
        s = "abcdef"
        return x, s[1:3], s[::-1], s[-1], len(s), s * 2, s + "g", "c" in s, s[2]

    def iterating_text(x):
        out = []
        for c in "abc":
            out.append(c + "!")
        return x, out, list("xy"), [c for c in "pq"], dict(zip("ab", [x, 1]))

    @programs(lambda: (torch.ones(2), "relu"), lambda: (torch.ones(2), "tanh"), graphs=2, recompiles=1)
    def text_argument_is_guarded(x, name):
        return getattr(torch, name)(x)

    def text_of_constants(x):
        made = x, str(None), str(True), repr("a"), str((1, "b")), repr([1.0])
        return *made, str({"a": 1}), ascii("é"), chr(65), ord("A")

    def encode_and_decode(x):
        return x, "hé".encode(), b"abc".decode(), b"abc"[1], b"a" + b"b", "12".zfill(4), "a1".isalnum(), "7".isdigit()

    @programs(graphs=1, breaks=0)
    def text_of_a_tensor(x):
        y = x * 0
        return f"{y}"


@programs()
class OfOneVector:
    def f_strings(x):
        n = x.shape[0]
        return x + 1, f"{n}", f"{n:>5}|{n!r}|{n + 1:03d}", f"{1.5:.3f} {'a'!s} {'b'!r}", f"{x.dtype}", f"{[1, 2]}"

    def string_methods(x):
        s = "Hello, World"
        made = x * 2, s.upper(), s.lower(), s.split(","), s.replace("l", "L")
        return *made, s.startswith("He"), s.find("W"), s.strip("Hd")

    def text_decides(x):
        mode = "mul"
        table = {"mul": x * 2, "add": x + 2}
        return table[mode] if mode.startswith("m") else table["add"]

    def key_made_by_f_string(x):
        table = {f"layer{i}": x * i for i in range(3)}
        return table["layer2"] + table[f"layer{1}"]

    def more_text_methods(x):
        s = "Hello World"
        return (
            (
                *(x + 1, s.casefold(), s.center(20, "*"), s.count("l"), s.endswith(("d", "x")), s.expandtabs()),
                s.index("W"),
            ),
            (
                *(s.isalpha(), s.islower(), s.ljust(15), s.lstrip("H"), s.removeprefix("He"), s.removesuffix("ld")),
                s.rfind("o"),
            ),
            (s.rjust(20), s.rpartition("o")[2], s.rsplit("o", 1), s.splitlines(), s.swapcase(), s.title(), s.zfill(20)),
            (s.translate({72: "J"}), str.maketrans("a", "b"), s.isidentifier(), s.encode("utf8").hex(), s[1:-1:2]),
            (
                *(bytes.fromhex("00ff"), b"ab".upper(), b"a,b".split(b","), bytes("é", "utf8"), str(b"a", "ascii")),
                b"%d" % 3,
            ),
            ("{0}-{a}".format(1, a=2), "{a}".format_map({"a": 1}), "{:,}".format(12345), "%(k)s" % {"k": 3}),
            (
                "".join(map(str, [1, 2])),
                "".join(c for c in s if c.isupper()),
                str(b"\xe9", encoding="latin1"),
                sys.intern("a"),
            ),
        )

    def patterns(x):
        found = []
        for name in ["layer1", "conv22", "fc"]:
            match = re.match(r"([a-z]+)(\d+)$", name)
            if match:
                found.append(
                    [match.group(1), int(match.group(2)), match[0], match.start(), match.end(), match.lastindex]
                )
        return (
            (x + len(found), found, WORD.match("a12").groups(), WORD.sub(r"\2", "a1"), WORD.pattern, WORD.groups),
            (re.sub("a", "b", "banana"), re.findall(r"\d", "a1b2"), re.split(",", "a,b"), re.escape("a.b")),
            (
                bool(re.fullmatch("a+", "aaa", re.IGNORECASE)),
                re.search("z", "a") is None,
                re.compile("q") is re.compile("q"),
            ),
            [m.group() for m in re.finditer("a.", "abac")] + [m.span() for m in WORD.finditer("ab1")],
        )

    def wrapped_text_and_paths(x):
        return (
            (x + 1, textwrap.dedent("  a\n  b"), textwrap.fill("aa bb", 3), textwrap.indent("a\nb", "  ")),
            (
                os.path.join("a", "b"),
                os.path.basename("a/b.c"),
                os.path.splitext("a.b")[1],
                os.path.dirname("a/b"),
                os.sep,
            ),
            (json.dumps({"a": [1, None]}), json.loads('{"a": [1, 2.5]}'), string.capwords("a b"), struct.pack("<I", 3)),
        )
