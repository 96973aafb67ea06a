"""The lists of BUILD files that are sets: in buildifier's order, each entry once.

Files come first, then labels of the package (`:local`), then those of others (`//...`, `@...`). A
comment belongs to the entry below it. No list of three entries or more is written twice.
"""

import ast
import re

SETS = {"apart", "data", "deps", "exclude", "files", "hdrs", "srcs", "tools", "visibility"}
# Rules that put their sources one after the other.
IN_GIVEN_ORDER = {"genrule", "html_page"}
PHASES = (":", "//", "@")


def order(entry):
    """The key by which buildifier sorts."""
    phase = next((i for i, start in enumerate(PHASES, 1) if entry.startswith(start)), 0)
    return phase, re.split("[:.]", entry), entry


def lists(text):
    """The lists of strings that are sets, from the first one to the last."""
    found = {}
    for call in ast.walk(ast.parse(text)):
        for argument in call.keywords if isinstance(call, ast.Call) else ():
            rule = getattr(call.func, "id", "")
            if argument.arg in SETS - ({"srcs"} if rule in IN_GIVEN_ORDER else set()):
                for node in ast.walk(argument.value):
                    if isinstance(node, ast.List) and node.elts and all(
                            isinstance(entry, ast.Constant) for entry in node.elts):
                        found[node.lineno, node.col_offset] = node
    return [found[place] for place in sorted(found)]


def faults(name, text):
    """Lists that fix() mends, and those that stand twice."""
    known = {}
    for found in lists(text):
        entries = [entry.value for entry in found.elts]
        if entries != sorted(set(entries), key=order):
            yield f"{name}:{found.lineno}: not in buildifier's order, or an entry twice"
        first = known.setdefault(tuple(entries), found.lineno)
        if len(entries) > 2 and first != found.lineno:
            yield f"{name}:{found.lineno}: the list of line {first} again: give it a name"


def fix(text):
    """The text with its lists in order, of lists on one line and of those with a line an entry."""
    lines = text.split("\n")
    for found in reversed(lists(text)):
        first, last = found.lineno, found.end_lineno
        if first == last:
            line, entries = lines[first - 1], {entry.value for entry in found.elts}
            lines[first - 1] = (line[:found.col_offset + 1] +
                                ", ".join(f'"{entry}"' for entry in sorted(entries, key=order)) +
                                line[found.end_col_offset - 1:])
        elif len({first, last, *(entry.lineno for entry in found.elts)}) == len(found.elts) + 2:
            blocks, begin = {}, first
            for entry in found.elts:
                end, column = entry.lineno, entry.end_col_offset
                line = lines[end - 1]
                lines[end - 1] = line[:column] + "," + line[column:].removeprefix(",")
                blocks.setdefault(entry.value, lines[begin:end])
                begin = end
            lines[first:begin] = [line for entry in sorted(blocks, key=order)
                                  for line in blocks[entry]]
    return "\n".join(lines)
