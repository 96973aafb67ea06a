#!/usr/bin/env python3
"""Installs the wheel in new virtual environments and tries it.

  wheel_test.py WHEEL [PYTHON...]

By default with the Python that runs this; others must be 3.9 or later. First without numpy, with an
object store, and beside another C++ standard library; then with the system's numpy: all tests of
checkpoints_test.py, groups_test.py and async_saver_test.py.
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import textwrap

WITHOUT_NUMPY = textwrap.dedent('''
    import array, ctypes, os, sys
    import tessera_ckpt
    from tessera_ckpt import _library, _tensors
    assert "numpy" not in sys.modules and "torch" not in sys.modules
    assert "site-packages" in tessera_ckpt.__file__, tessera_ckpt.__file__
    assert "TESSERA_CHECKPOINT_LIBRARY" not in os.environ

    class Tensor:
        """Speaks DLPack, as libraries in C do."""

        def __init__(self, values):
            self.memory = array.array("d", values)
            self.shape = (len(values),)
            self.extents = (ctypes.c_int64 * 1)(len(values))
            self.tensor = _tensors._DLTensor(
                data=self.memory.buffer_info()[0], device_type=1, ndim=1, code=2, bits=64, lanes=1,
                shape=self.extents)

        def __dlpack_device__(self):
            return (1, 0)

        def __dlpack__(self):
            new = ctypes.pythonapi.PyCapsule_New
            new.restype = ctypes.py_object
            new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
            return new(ctypes.addressof(self.tensor), b"dltensor", None)

    state = {"w": Tensor([1.5, 2.5]), "step": 3}
    tessera_ckpt.save("runs", 3, state)
    loaded = {"w": Tensor([0, 0]), "step": 0}
    tessera_ckpt.load("runs", loaded)
    assert list(loaded["w"].memory) == [1.5, 2.5] and loaded["step"] == 3
    out = Tensor([0])
    tessera_ckpt.open("runs").read("w", out, offset=(1,), shape=(1,))
    assert out.memory[0] == 2.5
    try:
        tessera_ckpt.open("runs").read("w")
    except tessera_ckpt.UnimplementedError as error:
        assert "numpy or torch" in str(error)
    else:
        raise AssertionError("without numpy")
    assert tessera_ckpt.verify("runs", digests=True)
    print(sys.version.split()[0], "without numpy: good;", tessera_ckpt.__version__)
''')


# An object store that refuses everything: libcurl has been there, or is missed at once.
OBJECT_STORE = textwrap.dedent('''
    import http.server, os, sys, threading
    import tessera_ckpt

    class Refuses(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_error(403)
        do_HEAD = do_GET
        def log_message(self, *_):
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Refuses)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    os.environ.update(AWS_ACCESS_KEY_ID="key", AWS_SECRET_ACCESS_KEY="secret", NO_PROXY="127.0.0.1")
    try:
        tessera_ckpt.open("s3://bucket/runs", s3_endpoint=f"http://127.0.0.1:{server.server_port}")
    except tessera_ckpt.TesseraError as error:
        print("S3:", error)
        assert any(text in str(error) for text in sys.argv[1:]), error
    else:
        raise AssertionError("a store that refuses")
''')


def run(*command, **options):
    subprocess.run([str(word) for word in command], check=True, stdin=subprocess.DEVNULL,
                   timeout=280, **options)


def environment():
    """Nothing of this test's own."""
    return {name: value for name, value in os.environ.items()
            if not name.startswith(("PYTHON", "TESSERA", "VIRTUAL", "LD_"))}


def try_object_store(python, scratch):
    missing = "object stores need libcurl: "
    run(python, "-c", OBJECT_STORE, "answers 403", missing, cwd=scratch, env=environment())
    hidden = scratch / "hidden"
    hidden.mkdir()
    (hidden / "libcurl.so.4").write_text("no library")
    run(python, "-c", OBJECT_STORE, missing, cwd=scratch,
        env=environment() | {"LD_LIBRARY_PATH": str(hidden)})


def try_command(python, scratch):
    """`ckpt`, as a module and as a script."""
    for command in ([python, "-m", "tessera_ckpt"], [python.with_name("tessera-ckpt")]):
        def ckpt(*words, code=0, **options):
            done = subprocess.run([*command, *words], check=False, cwd=scratch, env=environment(),
                                  stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                                  timeout=60, **({"stdout": subprocess.PIPE} | options))
            assert done.returncode == code, done
            return done.stdout or done.stderr

        version = pathlib.Path(sys.argv[1]).name.split("-")[1]
        assert ckpt("--version").startswith(f"ckpt {version}, checkpoint format")
        assert "step-00000003" in ckpt("ls", "runs")
        ckpt("verify", "runs/step-00000003")
        assert "none" in ckpt("inspect", "none", code=2)
        with open("/dev/full", "w") as full:
            assert "cannot write to stdout" in ckpt("ls", "runs", code=2, stdout=full)


def try_beside_standard_library(python, scratch):
    """In a process with another C++ standard library, which every library finds first, none of the
    wheel takes a symbol of it or gives it one."""
    output = scratch / "bindings"
    run(python, "-c", "import tessera_ckpt; assert tessera_ckpt.list_checkpoints('runs')",
        cwd=scratch, env=environment() | {
            "LD_PRELOAD": "libstdc++.so.6", "LD_BIND_NOW": "1", "LD_DEBUG": "bindings",
            "LD_DEBUG_OUTPUT": str(output)})
    lines = [line for file in scratch.glob("bindings.*")
             for line in file.read_text(errors="replace").splitlines()]
    ours, other = "/tessera_ckpt/lib/lib", "/libstdc++.so.6 "
    if not any(other in line for line in lines):
        print("there is no other C++ standard library: it has not been tried beside one")
    assert any(ours in line for line in lines)
    if shared := [line for line in lines if ours in line and other in line]:
        raise AssertionError("\n".join(shared))


def try_wheel(python, wheel, tests, scratch):
    venv = scratch / "venv"
    run(python, "-m", "venv", venv, env=environment())
    installed = venv / "bin/python"
    run(installed, "-m", "pip", "install", "--quiet", "--no-index", "--disable-pip-version-check",
        wheel, env=environment())
    run(installed, "-c", WITHOUT_NUMPY, cwd=scratch, env=environment())
    try_command(installed, scratch)
    try_object_store(installed, scratch)
    try_beside_standard_library(installed, scratch)
    config = venv / "pyvenv.cfg"
    config.write_text(config.read_text().replace("include-system-site-packages = false",
                                                 "include-system-site-packages = true"))
    has_numpy = subprocess.run([installed, "-c", "import numpy"], check=False,
                               stderr=subprocess.DEVNULL, env=environment()).returncode == 0
    if has_numpy:
        for test in ("checkpoints_test.py", "groups_test.py", "async_saver_test.py"):
            run(installed, tests / test, cwd=scratch, env=environment())
    else:
        print(f"{python} has no numpy: only what works without was tried")


def main():
    wheel, *pythons = sys.argv[1:]
    tests = pathlib.Path(__file__).resolve().parent
    for python in pythons or [sys.executable]:
        with tempfile.TemporaryDirectory() as scratch:
            try_wheel(python, os.path.realpath(wheel), tests, pathlib.Path(scratch))


if __name__ == "__main__":
    main()
