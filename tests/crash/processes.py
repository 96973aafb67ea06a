"""A run of several processes, and its sudden death."""

import ctypes
import os
import signal
import subprocess
import time

TOKEN = "TESSERA_CRASH_CAMPAIGN"  # in the environment of every process that the campaign starts
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
NOT_OF_A_JOB = set()  # ids of child processes that outlive jobs


def adopt_orphans():
    """Ranks that outlive mpirun become children of this process, so that none is lost sight of."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def children():
    """The ids of living child processes."""
    found = set()
    for name in os.listdir("/proc"):
        try:
            with open(f"/proc/{int(name)}/stat", encoding="utf-8", errors="replace") as file:
                state, parent = file.read().rpartition(")")[2].split()[:2]
            if int(parent) == os.getpid() and state != "Z":
                found.add(int(name))
        except (ValueError, OSError):
            pass
    return found


def kill_quietly(pid):
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def environment(pid):
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return dict(entry.partition(b"=")[::2] for entry in file.read().split(b"\0"))
    except OSError:
        return {}


class Job:
    """mpirun and its ranks, writing to `out` and `err`."""

    def __init__(self, ranks, command, folder, scratch):
        self.out, self.err = os.path.join(folder, "stdout"), os.path.join(folder, "stderr")
        self.command = ["mpirun", "-n", str(ranks), "--oversubscribe", "--bind-to", "none",
                        *(["--allow-run-as-root"] if os.geteuid() == 0 else []), *command]
        self.token = f"{os.getpid()}.{time.monotonic_ns()}"
        self.known = {}  # ranks by process id
        # Temporary files of a killed mpirun go to a folder that the campaign cleans up.
        env = {**os.environ, TOKEN: self.token, "TMPDIR": scratch,
               "OMPI_MCA_btl_vader_backing_directory": scratch}
        with open(self.out, "wb") as out, open(self.err, "wb") as err:
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=env,
                start_new_session=True,
                preexec_fn=lambda: ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL))

    def ended(self):
        return self.process.poll() is not None

    def members(self):
        """Every process of this job but mpirun: its rank (None: a helper of mpirun's) by its id."""
        members = {}
        for name in os.listdir("/proc"):
            if not name.isdigit() or int(name) == self.process.pid:
                continue
            variables = environment(name)
            if variables.get(TOKEN.encode()) == self.token.encode():
                rank = variables.get(b"OMPI_COMM_WORLD_RANK")
                members[int(name)] = None if rank is None else int(rank)
        return members

    def find(self, count):
        """Looks for the ranks until there are `count`: a kill at a given moment has no time to."""
        if len(self.known) < count:
            self.known = {pid: rank for pid, rank in self.members().items() if rank is not None}

    def kill(self, victim, rank):
        """SIGKILL to one "rank", to all "ranks", to "mpirun" or to "all". Returns the victim."""
        if victim == "mpirun" or not self.known:
            chosen = [self.process.pid]
            victim = "mpirun"
        elif victim == "rank":
            chosen = [pid for pid, number in self.known.items() if number == rank]
            chosen = chosen or list(self.known)[:1]
        else:
            chosen = [self.process.pid] * (victim == "all") + list(self.known)
        for pid in chosen:
            if pid == self.process.pid or self.has_token(pid):
                kill_quietly(pid)
        return victim

    def has_token(self, pid):
        return environment(pid).get(TOKEN.encode()) == self.token.encode()

    def wait_for_end(self, seconds):
        """Whether mpirun and everything under it ended by itself in this time."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self.ended() and not self.reap():
                return True
            time.sleep(0.01)
        return False

    def reap(self):
        """Collects dead orphans. Returns whether any child of a job is alive."""
        try:
            while os.waitpid(-1, os.WNOHANG)[0] != 0:
                pass
        except ChildProcessError:
            return False
        return bool(children() - NOT_OF_A_JOB)

    def clean_up(self):
        """Ends what is left, until nothing is. Returns how many processes that were."""
        left = set()
        while True:
            members = set(self.members())
            if not self.ended():
                members.add(self.process.pid)
            left |= members
            for pid in members:
                kill_quietly(pid)
            if self.ended() and not self.reap() and not members:
                return len(left)
            time.sleep(0.01)

    def output(self):
        return read_text(self.out)

    def errors(self):
        return read_text(self.err)


def read_text(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except FileNotFoundError:
        return ""
