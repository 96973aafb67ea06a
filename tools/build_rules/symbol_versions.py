"""Which versions of other libraries' symbols a 64-bit shared library of ELF asks for, changed in
place: the tables keep their sizes."""

import pathlib
import re
import struct

VERSION_TABLE, NEEDED_VERSIONS, DEFINED_VERSIONS, SYMBOLS = 0x6FFFFFFF, 0x6FFFFFFE, 0x6FFFFFFD, 11
UNVERSIONED = 1
GLOBAL, WEAK, UNIQUE = 1, 2, 10  # bindings of symbols
FUNCTION, PROTECTED = 2, 3  # a type, and a visibility


def hash_of(name):
    """The hash of the System V ABI, by which versions are found."""
    value = 0
    for byte in name.encode():
        value = (value << 4) + byte
        value = (value ^ (value & 0xF0000000) >> 24) & 0x0FFFFFFF
    return value


class Library:
    """The file's tables; save() writes it."""

    def __init__(self, path):
        self.path = pathlib.Path(path)
        self.data = bytearray(self.path.read_bytes())
        if self.data[:6] != b"\x7fELF\2\1":
            raise ValueError(f"{path} is no 64-bit file of ELF in little-endian order")
        self.machine, = self.read("<H", 18)  # as ELF numbers it
        at, = self.read("<Q", 40)
        size, count = self.read("<HH", 58)
        headers = [self.read("<IIQQQQIIQQ", at + i * size) for i in range(count)]
        # Of each type: offset, size, and the offset of the section of its texts.
        self.sections = {h[1]: (h[4], h[5], headers[h[6]][4]) for h in headers if h[6] < count}

    def read(self, form, at):
        return struct.unpack_from(form, self.data, at)

    def write(self, form, at, *values):
        struct.pack_into(form, self.data, at, *values)

    def text(self, at):
        return self.data[at:self.data.index(0, at)].decode()

    def save(self):
        self.path.write_bytes(self.data)

    def symbols(self):
        """(name, version's index, whether it is defined here, where its entry is), of each one that
        is not local."""
        begin, size, texts = self.sections[SYMBOLS]
        versions = self.sections[VERSION_TABLE][0] if VERSION_TABLE in self.sections else None
        for i in range(size // 24):
            name, info, _, section = self.read("<IBBH", begin + 24 * i)
            if info >> 4 != 0:
                index = self.read("<H", versions + 2 * i)[0] & 0x7FFF if versions else UNVERSIONED
                yield self.text(texts + name), index, section != 0, i

    def needed(self):
        """(version, its index, where its entry is), of each one that is asked for."""
        if NEEDED_VERSIONS not in self.sections:
            return
        library, _, texts = self.sections[NEEDED_VERSIONS]
        while True:
            _, _, _, first, following = self.read("<HHIII", library)
            at = library + first
            while True:
                _, _, index, name, step = self.read("<IHHII", at)
                yield self.text(texts + name), index, at
                if step == 0:
                    break
                at += step
            if following == 0:
                return
            library += following

    def drop_versions(self, versions, instead):
        """Asks for the symbols of these versions under whichever version there is. Returns their
        names. Libraries are asked for the version `instead`, which is no longer than the others."""
        dropped = {index: at for name, index, at in self.needed() if name in versions}
        names = set()
        for name, index, _, i in self.symbols():
            if index in dropped:
                self.write("<H", self.sections[VERSION_TABLE][0] + 2 * i, UNVERSIONED)
                names.add(name)
        texts = {self._name_of(at) for at in dropped.values()}
        for at in dropped.values():
            self.write("<I", at, hash_of(instead))
        for at in texts:
            self._replace(at, instead)
        return names

    def _name_of(self, needed):
        return self.sections[NEEDED_VERSIONS][2] + self.read("<I", needed + 8)[0]

    def _replace(self, at, text):
        if len(text) > len(self.text(at)):
            raise ValueError(f"{self.path}: {text} is longer than {self.text(at)}")
        self.data[at:at + len(text) + 1] = text.encode() + b"\0"

    def rename_versions(self, prefixes):
        """Gives versions that are asked for, and those that are defined, other prefixes of the same
        lengths."""
        names = {}  # where each text is, and what it becomes

        def rename(hash_at, text_at):
            prefix, separator, rest = self.text(text_at).partition("_")
            names[text_at] = prefixes.get(prefix, prefix) + separator + rest
            self.write("<I", hash_at, hash_of(names[text_at]))

        for _, _, at in self.needed():
            rename(at, self._name_of(at))
        if DEFINED_VERSIONS in self.sections:
            at, _, texts = self.sections[DEFINED_VERSIONS]
            while True:
                first, following = self.read("<II", at + 12)
                rename(at + 8, texts + self.read("<I", at + first)[0])
                if following == 0:
                    break
                at += following
        for at, name in names.items():
            self._replace(at, name)

    def keep_apart(self):
        """What other libraries of a process may have, too, is not shared with them: objects of
        which a process has one, whoever defines it, and the functions of C++'s standard library
        that this one has copies of."""
        begin = self.sections[SYMBOLS][0]
        for name, _, defined, i in self.symbols():
            at = begin + 24 * i + 4
            info, visibility = self.read("<BB", at)
            if info >> 4 == UNIQUE:
                self.write("<B", at, GLOBAL << 4 | info & 15)
            elif defined and info == WEAK << 4 | FUNCTION and re.match("_ZN?K?St", name):
                self.write("<B", at + 1, visibility & ~3 | PROTECTED)
