"""A job of several ranks of one library, and what its ranks answer."""

import atexit
import contextlib
import os
import random
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
START = 700  # seconds


def free_port():
    """One that the kernel gives to nobody who asks for any, so that it is free until it is used."""
    while True:
        with socket.socket() as free, contextlib.suppress(OSError):
            port = random.randrange(10000, 32000)
            free.bind(("127.0.0.1", port))
            return port


class PythonLibrary:
    """Ranks are forks of one rank.py, which has imported the library: that takes long."""
    shares_launcher = True

    def __init__(self, name):
        self.name = name
        self.launcher = None

    def start(self, scratch, mode, tensors, ranks):
        if not self.launcher:
            env = {**os.environ, "JAX_PLATFORMS": "cpu", "OPENBLAS_NUM_THREADS": "1"}
            self.launcher = subprocess.Popen(
                [sys.executable, "-B", os.path.join(HERE, "rank.py"), self.name],
                stdin=subprocess.PIPE, env=env, start_new_session=True)
            atexit.register(os.killpg, self.launcher.pid, signal.SIGKILL)
        port = free_port()
        lines = "".join(f"{scratch} {mode} {tensors} {rank} {ranks} {port}\n"
                        for rank in range(ranks))
        os.write(self.launcher.stdin.fileno(), lines.encode())
        return self.launcher


class Dcp(PythonLibrary):
    title = "PyTorch DCP"
    mode = "sync"
    note = ("`dcp.save(state, checkpoint_id=FOLDER/step-N)` with its default `FileSystemWriter` "
            "(`sync_files=True, overwrite=True`), DTensors over gloo; asynchronous: `async_save` "
            "with a gloo group of its own. A restart takes the last `step-N` with a `.metadata`, "
            "as torchtitan does.")

    def versions(self):
        return version_of("torch")

    def step_folder(self, folder, step):
        return os.path.join(folder, f"step-{step}")


class Orbax(PythonLibrary):
    title = "Orbax"
    mode = "async"  # its default
    note = ("`CheckpointManager(FOLDER)` with default options, `StandardSave`, `StandardRestore`, "
            "`jax.distributed` on CPUs; synchronous: `enable_async_checkpointing=False`. A restart "
            "restores `latest_step()` with a new manager. `save()` of a step that is there "
            "returns False, which counts as an error here.")

    def versions(self):
        return ", ".join(map(version_of, ("orbax-checkpoint", "jax", "tensorstore")))

    def step_folder(self, folder, step):
        return os.path.join(folder, str(step))


class Tessera:
    """Ranks are processes of tessera_rank under an mpirun that leaves the others alone."""
    shares_launcher = False
    name = "tessera"
    title = "Tessera"
    mode = "sync"
    note = ("`CheckpointFolder::Save()` and `Checkpoint::Load()` of `//checkpoint` with default "
            "options, asynchronous: `AsyncSaver`, over MPI (`mpirun --enable-recovery`: the "
            "launcher does not end ranks). A restart is that of `train`: "
            "`CheckpointManager::TryResume()`. The lock by which `train` keeps a second run out of "
            "a folder is not taken.")

    def __init__(self, program):
        self.program = os.path.abspath(program)

    def start(self, scratch, mode, tensors, ranks):
        root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        env = {**os.environ, "TMPDIR": scratch, "OMPI_MCA_btl_vader_backing_directory": scratch}
        with open(os.path.join(scratch, "log"), "wb") as log:
            return subprocess.Popen(
                ["mpirun", "-n", str(ranks), "--oversubscribe", "--bind-to", "none", *root,
                 "--enable-recovery", self.program, scratch, mode, str(tensors)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env, start_new_session=True)

    def versions(self):
        here = os.path.dirname(os.path.realpath(__file__))
        return "commit " + subprocess.run(
            ["git", "-c", "safe.directory=*", "-C", here, "describe", "--always", "--dirty",
             "--abbrev=12"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()

    def step_folder(self, folder, step):
        return os.path.join(folder, f"step-{step:08d}")


def version_of(package):
    from importlib.metadata import version
    return f"{package} {version(package)}"


class Job:
    """Ranks that wait for commands. `answers` of a rank are the lines since the last command."""

    def __init__(self, library, mode, tensors, ranks):
        self.scratch = tempfile.mkdtemp(prefix="peers-", dir="/tmp")
        self.ranks = range(ranks)
        self.answers = {rank: [] for rank in self.ranks}
        self.partial = {rank: b"" for rank in self.ranks}
        self.pipes = {}
        for rank in self.ranks:
            for way in ("in", "out"):
                path = os.path.join(self.scratch, f"{rank}.{way}")
                os.mkfifo(path)
                self.pipes[rank, way] = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        self.library, self.launcher = library, library.start(self.scratch, mode, tensors, ranks)
        self.told = None  # the last command
        self.read(lambda: all(self.answers.values()) or self.launcher.poll() is not None, START)
        if not all(lines and lines[0].startswith("ready") for lines in self.answers.values()):
            raise RuntimeError(f"{library.title} did not start: {self.answers} {self.log_text()}")
        self.handles = {rank: os.pidfd_open(int(lines[0].split()[1]))
                        for rank, lines in self.answers.items()}

    def is_alive(self, rank):
        return not select.select([self.handles[rank]], [], [], 0)[0]

    def log_text(self):
        with open(os.path.join(self.scratch, "log"), encoding="utf-8", errors="replace") as file:
            return file.read()[-3000:]

    def read(self, done, seconds):
        """Takes in answers until done(), or for so long. Returns whether it is done."""
        deadline = time.monotonic() + seconds
        rank_of = {self.pipes[rank, "out"]: rank for rank in self.ranks}
        while not done():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            for pipe in select.select(list(rank_of), [], [], min(left, 0.05))[0]:
                rank = rank_of[pipe]
                *lines, self.partial[rank] = (self.partial[rank] + os.read(pipe, 65536)).split(
                    b"\n")
                self.answers[rank] += [line.decode() for line in lines]
        return True

    def tell(self, command, ranks=None):
        self.told = command
        for rank in self.ranks if ranks is None else ranks:
            self.answers[rank] = []
            os.write(self.pipes[rank, "in"], f"{command}\n".encode())

    def last(self, rank):
        """A rank's answer to the last command: None until it has ended."""
        lines = [line for line in self.answers[rank] if line != "begun"]
        return lines[-1] if lines else None if self.is_alive(rank) else "died"

    def wait(self, limit, ranks=None):
        """Answers of all ranks. Where one has failed, the others get as many seconds more."""
        ranks = self.ranks if ranks is None else ranks
        answered = lambda: all(self.last(rank) for rank in ranks)
        failed = lambda: any((self.last(rank) or "").startswith(("error", "died"))
                             for rank in ranks)
        self.read(lambda: answered() or failed(), limit)
        if failed():
            self.read(answered, limit)
        return [self.last(rank) or "silent" for rank in ranks]

    def kill(self, ranks=None):
        for rank in self.ranks if ranks is None else ranks:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.handles[rank], signal.SIGKILL)

    def end(self):
        """Kills what is left. Returns the last answers, also those from just before the kill."""
        self.kill()
        if not self.library.shares_launcher:
            self.launcher.kill()
            self.launcher.wait()
        while any(self.is_alive(rank) for rank in self.ranks):
            time.sleep(0.01)
        self.read(lambda: False, 0.1)
        answers = [self.last(rank) for rank in self.ranks]
        for file in (*self.pipes.values(), *self.handles.values()):
            os.close(file)
        shutil.rmtree(self.scratch, ignore_errors=True)
        return answers
