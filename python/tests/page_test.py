#!/usr/bin/env python3
"""Runs the Python of pages, block after block, as one program in an empty folder.

  page_test.py PAGE... [--torch] [--jax]    without these, blocks that need them are left out
"""

import importlib
import os
import pathlib
import re
import sys
import tempfile


def main():
    flags = [word for word in sys.argv[1:] if word.startswith("--")]
    pages = {word: pathlib.Path(word).read_text(encoding="utf-8")
             for word in sys.argv[1:] if word not in flags}
    # The names of the package and its library may be relative.
    sys.path[:] = map(os.path.abspath, sys.path)
    importlib.import_module("tessera_ckpt")
    names, count = {}, 0
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for page, text in pages.items():
            for match in re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
                line = text.count("\n", 0, match.start()) + 1
                needs = [name for name in ("torch", "jax") if f"--{name}" not in flags
                         and name in match[1].replace(f'to="{name}"', "")]
                if needs:
                    print(f"{page}:{line}: needs {needs[0]}: left out")
                    continue
                # Errors name the line of the page.
                exec(compile("\n" * line + match[1], page, "exec"), names)
                count += 1
    print(f"{count} blocks have run")
    if count < 12:
        sys.exit("there should be more")


if __name__ == "__main__":
    main()
