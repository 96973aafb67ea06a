"""Writes testdata/: pickles by Python's own pickle module, and what each of them describes.

  make_testdata.py FOLDER

NAME.pkl is a pickle; NAME.txt its contents as read by Python's unpickler, with records in place of
everything that it would call. Malicious pickles are among them: they are never loaded otherwise.
"""

import argparse
import codecs
import collections
import io
import os
import pathlib
import pickle
import struct
import sys


class Record:
    """An object as data."""

    def __init__(self, called, args, kwargs=None):
        self.called, self.args, self.kwargs = called, args, kwargs
        self.state, self.items, self.entries = None, [], []


class Global:
    def __init__(self, name):
        self.name = name


class PersistentId:
    def __init__(self, pid):
        self.pid = pid


class Inert(pickle._Unpickler):
    """Python's unpickler, which builds records and calls nothing."""

    dispatch = dict(pickle._Unpickler.dispatch)

    def find_class(self, module, name):
        return Global(f"{module}.{name}")

    def persistent_load(self, pid):
        return PersistentId(pid)

    def load_reduce(self):
        args = self.stack.pop()
        self.stack[-1] = Record(self.stack[-1], args)

    def load_newobj_ex(self):
        kwargs, args = self.stack.pop(), self.stack.pop()
        self.stack[-1] = Record(self.stack[-1], args, kwargs)

    def _instantiate(self, called, args):
        self.append(Record(called, tuple(args)))

    def load_build(self):
        state = self.stack.pop()
        self.stack[-1].state = state

    def load_append(self):
        self._add([self.stack.pop()])

    def load_appends(self):
        self._add(self.pop_mark())

    def load_additems(self):
        items = self.pop_mark()
        self.stack[-1].update(items)

    def _add(self, items):
        top = self.stack[-1]
        (top.items if isinstance(top, Record) else top).extend(items)

    def load_setitem(self):
        self._set([self.stack.pop(-2), self.stack.pop()])

    def load_setitems(self):
        self._set(self.pop_mark())

    def _set(self, items):
        top = self.stack[-1]
        for key, value in zip(items[::2], items[1::2]):
            if isinstance(top, Record):
                top.entries.append((key, value))
            else:
                top[key] = value

    def load_stack_global(self):
        name, module = self.stack.pop(), self.stack.pop()
        self.append(self.find_class(module, name))

    dispatch[pickle.REDUCE[0]] = load_reduce
    dispatch[pickle.NEWOBJ[0]] = load_reduce
    dispatch[pickle.NEWOBJ_EX[0]] = load_newobj_ex
    dispatch[pickle.BUILD[0]] = load_build
    dispatch[pickle.APPEND[0]] = load_append
    dispatch[pickle.APPENDS[0]] = load_appends
    dispatch[pickle.ADDITEMS[0]] = load_additems
    dispatch[pickle.SETITEM[0]] = load_setitem
    dispatch[pickle.SETITEMS[0]] = load_setitems
    dispatch[pickle.STACK_GLOBAL[0]] = load_stack_global


def quoted(raw):
    shown = (chr(b) if 32 <= b < 127 and b not in b'"\\' else f"\\x{b:02x}" for b in raw)
    return '"' + "".join(shown) + '"'


class Renderer:
    """Text of a graph: a container is #N=... at first, #N where it occurs again."""

    def __init__(self):
        self.numbers = {}

    def __call__(self, value):
        if value is None or isinstance(value, bool):
            return str(value)
        if isinstance(value, int):
            return str(value) if -(2**63) <= value < 2**64 else "bigint"
        if isinstance(value, float):
            return "f" + struct.pack(">d", value).hex()
        if isinstance(value, str):
            return quoted(value.encode("utf-8", "surrogatepass"))
        if isinstance(value, (bytes, bytearray)):
            return "b" + quoted(value)
        if isinstance(value, Global):
            return f"<{value.name}>"
        if isinstance(value, PersistentId):
            return f"pid({self(value.pid)})"
        if value == ():
            return "()"
        if id(value) in self.numbers:
            return f"#{self.numbers[id(value)][0]}"
        number = len(self.numbers)
        self.numbers[id(value)] = (number, value)
        return f"#{number}=" + self.container(value)

    def container(self, value):
        if isinstance(value, tuple):
            return "(" + self.elements(value) + ")"
        if isinstance(value, list):
            return "[" + self.elements(value) + "]"
        if isinstance(value, (set, frozenset)):
            return "{" + ",".join(sorted(self(element) for element in value)) + "}"
        if isinstance(value, dict):
            return "{" + self.entries(value.items()) + "}"
        text = f"new {self(value.called)} {self(value.args)}"
        if value.kwargs is not None:
            text += f" kwargs {self(value.kwargs)}"
        if value.state is not None:
            text += f" state {self(value.state)}"
        if value.items:
            text += " items " + self.elements(value.items)
        if value.entries:
            text += " entries " + self.entries(value.entries)
        return text

    def elements(self, values):
        return ",".join(self(element) for element in values)

    def entries(self, items):
        return ",".join(f"{self(key)}:{self(value)}" for key, value in items)


class Point:
    def __init__(self, x, y):
        self.x, self.y = x, y


class Slotted:
    __slots__ = ("a", "b")

    def __init__(self):
        self.a, self.b = 1, [2]


class Keywords(tuple):
    def __getnewargs_ex__(self):
        return (1, 2), {"name": "value"}


class Storage:
    """Pickled by its persistent id."""


class Listed(list):
    pass


def values():
    return {
        "none": None,
        "bools": [True, False],
        "ints": [0, 1, -1, 255, 256, 65535, 65536, -32769, 2**31 - 1, -(2**31), 2**31, 2**32]
        + [2**63 - 1, -(2**63), 2**63, 2**64 - 1, 2**64, -(2**63) - 1, 0x1950A86A20F9469CFC6C]
        + [1 << 3000, -128, 127, 128, -129],
        "floats": [0.0, -0.0, 1.5, 1e300, 5e-324, float("inf"), float("-inf"), 0.1],
        "texts": ["", "a", "two\nlines \\ \u00e4\u20ac\U0001f600", "'\"", "\x00\x7f", "x" * 300],
        "tuples": [(), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), ((), ((),))],
        "dicts": [{}, {1: 2}, {(1, 2): "t", None: 1.5}],
    }


def objects():
    shared = [1, 2]
    cyclic = []
    cyclic.append(cyclic)
    around = {"self": None, "tuple": (cyclic,)}
    around["self"] = around
    ordered = collections.OrderedDict([("b", shared), ("a", shared)])
    ordered.note = "state"
    listed = Listed([1, 2, 3])
    listed.name = "items and state"
    return {
        "bytes": [b"", b"abc", b"\x00\xff" * 3, b"y" * 300, bytearray(b"mutable")],
        "sets": [set(), {1}, {1, 2, 3}, frozenset([1, 2])],
        "shared": (shared, shared),
        "cyclic": cyclic,
        "around": around,
        "ordered": ordered,
        "listed": listed,
        "defaults": collections.defaultdict(list, {"k": [1]}),
        "point": Point(1, (2, shared)),
        "slots": Slotted(),
        "keywords": Keywords(),
        "namespace": argparse.Namespace(lr=1e-3, name="run", layers=[1, 2]),
        "complex": 1 + 2j,
        "type": collections.OrderedDict,
        "function": codecs.encode,
        "storage": Storage(),
    }


class Pickler(pickle.Pickler):
    def persistent_id(self, obj):
        return ("storage", Global, "0", "cpu", 12) if isinstance(obj, Storage) else None


def dump(value, protocol):
    buffer = io.BytesIO()
    Pickler(buffer, protocol).dump(value)
    return buffer.getvalue()


def laughs(levels):
    """A list of ten times the list before it, and so on: 10 ** levels elements to walk."""
    data = b"\x80\x02]q\x00(" + b"K\x01" * 10 + b"e0"
    for level in range(1, levels + 1):
        data += b"]q" + bytes([level]) + b"(" + (b"h" + bytes([level - 1])) * 10 + b"e0"
    return data + b"h" + bytes([levels]) + b"."


HANDMADE = {
    "string_python2": b"(U\x03abcT\x04\x00\x00\x00long]t.",
    "obj": b"(c__main__\nPoint\nK\x01K\x02o.",
    "list_and_dict": b"(lq\x00K\x01a(dq\x01K\x02K\x03sh\x00\x87.",
    "frozen": b"\x80\x04(K\x01K\x02\x91\x8f(K\x03\x90\x86.",
    "pops": b"(K\x01K\x020(K\x05K\x061K\x0720t.",
    "long_put": b"]r\x00\x01\x00\x00j\x00\x01\x00\x00\x86.",
    "byte_array": b"\x80\x05\x96\x03\x00\x00\x00\x00\x00\x00\x00abc.",
    "bytes8": b"\x80\x04\x8e\x03\x00\x00\x00\x00\x00\x00\x00abc.",
    "unicode8": b"\x80\x04\x8d\x03\x00\x00\x00\x00\x00\x00\x00abc.",
    "bytes4": b"\x80\x03B\x03\x00\x00\x00abc.",
    "long4": b"\x8b\x02\x00\x00\x00\xff\x7f.",
    "long_empty": b"\x8a\x00.",
    "trailing": b"K\x01.K\x02.",
}

MALICIOUS = {
    "evil_system": b"cos\nsystem\n(X\x18\x00\x00\x00echo executed > executedtR.",
    "evil_posix": b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x07id > ix\x85R.",
    "evil_eval": b"c__builtin__\neval\n(X\x15\x00\x00\x00open('executed', 'w')tR.",
    "evil_newobj": b"\x80\x02csubprocess\nPopen\n(]U\x02ida\x85t\x81.",
    "evil_obj": b"(cos\nsystem\nU\x02ido.",
    "evil_build": b"\x80\x02c__main__\nPoint\n)\x81}U\x0c__setstate__cos\nsystem\nsbU\x02id\x85.",
    "evil_getattr": b"c__builtin__\ngetattr\n(c__builtin__\n__import__\n(U\x02ostRU\x06systemtR.",
    "evil_laughs": laughs(30),
    "evil_nested_tuples": b")" + b"\x85" * 1000 + b".",
    "evil_nested_lists": b"]" * 1000 + b"a" * 999 + b".",
}


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(exist_ok=True)
    sys.setrecursionlimit(50_000)
    pickles = dict(HANDMADE, **MALICIOUS)
    for protocol in (2, 5):
        pickles[f"values_p{protocol}"] = dump(values(), protocol)
    for protocol in range(2, 6):
        pickles[f"objects_p{protocol}"] = dump(objects(), protocol)
    many = {f"layers.{i}": (i, [i * 0.5]) for i in range(90)}
    pickles["many_p2"] = pickle.dumps(many, 2)  # memo indices above 255
    pickles["many_p4"] = pickle.dumps([1] * 1001, 4)  # batches of 1000
    for name, data in pickles.items():
        (folder / f"{name}.pkl").write_bytes(data)
        if name == "evil_laughs" or "nested" in name:
            continue  # too large to be rendered
        text = Renderer()(Inert(io.BytesIO(data), encoding="ascii").load())
        (folder / f"{name}.txt").write_text(text + "\n")
    assert not os.path.exists("executed")


if __name__ == "__main__":
    main()
