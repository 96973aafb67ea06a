"""A job of several ranks of one library, and what its ranks answer."""

import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))


class PythonLibrary:
    """Ranks are processes of rank.py, started without a launcher."""

    def __init__(self, name):
        self.name = name

    def commands(self, scratch, mode, tensors, ranks):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        return [[sys.executable, "-B", os.path.join(HERE, "rank.py"), self.name, scratch, mode,
                 str(tensors), str(rank), str(ranks), str(port)] for rank in range(ranks)]


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
    name = "tessera"
    title = "Tessera"
    mode = "sync"
    note = ("`ckpt::Save` and `ckpt::Load` of `//checkpoint` with default options, asynchronous: "
            "`ckpt::AsyncSaver`, over MPI (`mpirun --enable-recovery`: the launcher does not end "
            "ranks). A restart is that of `train`: `ContinueFromSaved`. The lock by "
            "which `train` keeps a second run out of a folder is not taken.")

    def __init__(self, program):
        self.program = os.path.abspath(program)

    def commands(self, scratch, mode, tensors, ranks):
        root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        return [["mpirun", "-n", str(ranks), "--oversubscribe", "--bind-to", "none", *root,
                 "--enable-recovery", self.program, scratch, mode, str(tensors)]]

    def versions(self):
        return "this tree"

    def step_folder(self, folder, step):
        return os.path.join(folder, f"step-{step:08d}")


def version_of(package):
    from importlib.metadata import version
    return f"{package} {version(package)}"


def is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


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
        env = {**os.environ, "TMPDIR": self.scratch, "JAX_PLATFORMS": "cpu",
               "OMPI_MCA_btl_vader_backing_directory": self.scratch}
        self.log = open(os.path.join(self.scratch, "log"), "wb")
        self.processes = [
            subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log,
                             env=env, start_new_session=True)
            for command in library.commands(self.scratch, mode, tensors, ranks)]
        if not self.read(lambda: all(self.answers.values()), 180):
            raise RuntimeError(f"{library.title} did not start: {self.log_text()}")
        self.pids = {rank: int(lines[0].split()[1]) for rank, lines in self.answers.items()}

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
        for rank in self.ranks if ranks is None else ranks:
            self.answers[rank] = []
            os.write(self.pipes[rank, "in"], f"{command}\n".encode())

    def last(self, rank):
        """A rank's answer to the last command: None until it has ended."""
        lines = [line for line in self.answers[rank] if line != "begun"]
        return lines[-1] if lines else None if is_alive(self.pids[rank]) else "died"

    def wait(self, limit, grace, ranks=None):
        """Answers of all ranks. Where one has failed, the others get `grace` seconds more."""
        ranks = self.ranks if ranks is None else ranks
        answered = lambda: all(self.last(rank) for rank in ranks)
        failed = lambda: any((self.last(rank) or "").startswith(("error", "died"))
                             for rank in ranks)
        self.read(lambda: answered() or failed(), limit)
        if failed():
            self.read(answered, grace)
        return [self.last(rank) or "silent" for rank in ranks]

    def kill(self, ranks=None):
        for rank in self.ranks if ranks is None else ranks:
            if is_alive(self.pids[rank]):
                os.kill(self.pids[rank], signal.SIGKILL)

    def end(self):
        """Kills what is left. Returns the last answers, also those from just before the kill."""
        self.kill()
        for process in self.processes:
            process.kill()
            process.wait()
        while any(is_alive(pid) for pid in self.pids.values()):
            time.sleep(0.01)
        self.read(lambda: False, 0.1)
        self.log.close()
        for pipe in self.pipes.values():
            os.close(pipe)
        shutil.rmtree(self.scratch, ignore_errors=True)
        return [self.last(rank) for rank in self.ranks]
