"""Starts a run on as many processes as its settings ask for.

  launch.py TRAIN PREPARE_DATA CONFIG [--hostfile FILE] FLAGS...

TRAIN says how many processes that is, flags on top of the config counted; with more than one, this
starts mpirun. Inside a world that srun or mpirun has started, each process becomes TRAIN itself.

What a person at a terminal expects of one process holds for all of them together: one live line,
Ctrl-C and SIGTERM end the run after the step (a second one at once), the exit code is that of the
run, errors are printed once, and the terminal is left as it was.

Environment: TESSERA_HOSTFILE, as --hostfile. TESSERA_MPIRUN_FLAGS, more flags for mpirun.
TESSERA_DATA_DIR, where text is prepared for settings that name no data.
"""

# Until a job has been started, Ctrl-C ends this program only, without a traceback.
import signal
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import contextlib
import ctypes
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import termios
import threading

# Closed streams are connected to /dev/null: otherwise a pipe could get their descriptors.
for stream in ("stdin", "stdout", "stderr"):
    if getattr(sys, stream) is None:
        null = os.open(os.devnull, os.O_RDWR)
        setattr(sys, stream, os.fdopen(null, "r" if stream == "stdin" else "w"))

# Variables that tell a process that a launcher has started it in a world of several.
WORLD_VARIABLES = ("OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK")

# Sent to ranks in place of SIGINT and SIGTERM: mpirun forwards these, whereas SIGINT and SIGTERM
# end its job at once.
FORWARDED = {signal.SIGINT: signal.SIGUSR1, signal.SIGTERM: signal.SIGUSR2}
# The meaning of these signals when sent to the launcher, as by Slurm's --signal before the time
# limit, or by a terminal that is closed.
MEANT = {signal.SIGUSR1: signal.SIGINT, signal.SIGUSR2: signal.SIGTERM,
         signal.SIGHUP: signal.SIGTERM}
# mpirun forwards a signal to the ranks that it has started so far: it is repeated for those that
# start later.
SECONDS_TO_REPEAT = 1


def write(stream, data):
    """Writes to stdout or stderr, if anybody reads it: a job does not need a reader."""
    data = memoryview(data if isinstance(data, bytes) else data.encode(errors="replace"))
    try:
        while data:
            data = data[os.write(stream.fileno(), data):]
    except OSError:
        pass


def say(text):
    write(sys.stderr, f"train: {text}\n")


def fail(text, code=1):
    say(text)
    sys.exit(code)


def inside_a_world():
    step_of_several = (int(os.environ.get("SLURM_STEP_NUM_TASKS", "1")) > 1
                       and "SLURM_PROCID" in os.environ)
    return step_of_several or any(name in os.environ for name in WORLD_VARIABLES)


def take_hostfile(flags):
    """Removes --hostfile from the flags; returns the file, or None, and the rest."""
    hostfile = os.environ.get("TESSERA_HOSTFILE") or None
    rest = []
    words = iter(flags)
    for word in words:
        if word == "--hostfile":
            hostfile = next(words, "")
        elif word.startswith("--hostfile="):
            hostfile = word.partition("=")[2]
        else:
            rest.append(word)
    if hostfile is not None and not os.path.isfile(hostfile):
        fail(f"hostfile={hostfile}: no such file", 2)
    return hostfile, rest


def describe(command):
    """Returns TRAIN's description of these settings; exits with its message if it refuses them."""
    result = subprocess.run(command + ["--print-launch"], check=False, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True)
    if result.returncode != 0:
        write(sys.stderr, result.stderr)
        sys.exit(result.returncode if result.returncode > 0 else 128 - result.returncode)
    try:
        return json.loads(result.stdout)
    except ValueError:
        # Help was requested.
        write(sys.stdout, result.stdout)
        sys.exit(0)


def default_data(prepare_data, launch, may_prepare):
    """Flags for settings without training data: bytes of a system package's text, prepared once."""
    if not launch["needs_data"]:
        return []
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    data = os.environ.get("TESSERA_DATA_DIR") or os.path.join(cache, "tessera")
    folder = os.path.abspath(os.path.join(data, "bytes"))
    if not os.path.exists(os.path.join(folder, "dataset.json")):
        if not may_prepare:
            return []
        say(f"no train_data_path: preparing the text of Debian's perl-doc in {folder}, this once")
        code = subprocess.run([prepare_data, "--tokenizer=byte", f"--output_dir={folder}"],
                              check=False, stdout=sys.stderr).returncode
        if code != 0:
            sys.exit(code if code > 0 else 128 - code)
    flags = [f"--train-data-path={folder}/train_*.bin"]
    if not launch["valid_data_path"]:
        flags.append(f"--valid-data-path={folder}/val_*.bin")
    if not launch["tokenizer_model"] and launch["vocab_size"] == 257:
        flags.append(f"--tokenizer-model={folder}/tokenizer.bin")
    return flags


def physical_cores():
    """The number of slots that mpirun counts on this machine."""
    cores = set()
    for cpu in os.sched_getaffinity(0):
        topology = f"/sys/devices/system/cpu/cpu{cpu}/topology/"
        try:
            with open(topology + "physical_package_id", encoding="ascii") as package, \
                 open(topology + "core_id", encoding="ascii") as core:
                cores.add((package.read(), core.read()))
        except OSError:
            cores.add(cpu)
    return len(cores)


def mpirun_command(processes, gpus, hostfile):
    if shutil.which("mpirun") is None:
        fail(f"{processes} processes need mpirun, which is not installed (Debian: openmpi-bin)")
    # Called by its bare name: from an absolute path mpirun would derive its location on other
    # hosts.
    command = ["mpirun", "--bind-to", "none"]
    elsewhere = hostfile is not None or "SLURM_JOB_ID" in os.environ
    reasons = []
    if processes == 0 and not elsewhere:
        processes = gpus or physical_cores()
    if processes > 0:  # otherwise one for each slot of the hosts
        command += ["-n", str(processes)]
    if hostfile is not None:
        command += ["--hostfile", hostfile]
    if not elsewhere and processes > physical_cores():
        command.append("--oversubscribe")
        reasons.append(f"{physical_cores()} cores for all of them")
    if os.geteuid() == 0:
        command.append("--allow-run-as-root")
        reasons.append("as root")
    command += shlex.split(os.environ.get("TESSERA_MPIRUN_FLAGS", ""))
    count = f"{processes} processes" if processes > 0 else "a process for each slot"
    say(f"{count}{': ' + ', '.join(reasons) if reasons else ''}: {shlex.join(command)}")
    # Ranks write to a pseudo-terminal of mpirun: whether the launcher's stdout is a terminal, and
    # how wide, must be passed on.
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    if os.environ.get("TERM", "") in ("", "dumb"):
        columns = 0
    command += ["-x", f"TESSERA_TERMINAL_COLUMNS={columns}"]
    # Ranks on other hosts inherit nothing else from this environment.
    if "TESSERA_CPU" in os.environ:
        command += ["-x", "TESSERA_CPU"]
    return command


class ErrorOutput:
    """stderr of mpirun: passes what the ranks print, and drops mpirun's words about an end that a
    rank has explained."""

    KNOWN = re.compile(r"MPI_ABORT was invoked|Primary job +terminated normally|"
                       r"processes exited with non-zero status|"
                       r"sent help message help-mpi-api.txt|ORTE_ERROR_LOG: .*show_help|"
                       r"^mpirun: Forwarding signal")
    DEATH = re.compile(r"process rank (\d+) with PID \d+ on node (\S+) exited on\s+signal (\d+)")
    RULE = re.compile(r"^-{60,}$")

    def __init__(self):
        self.block = None  # lines since a rule
        self.deaths = []
        self.spoken = False

    def line(self, line):
        text = line.rstrip("\r\n")
        if self.RULE.match(text):
            if self.block is None:
                self.block = []
            else:
                self.end_block()
        elif self.block is not None:
            self.block.append(text)
        elif not self.KNOWN.search(text):
            self.write(text)

    def end_block(self):
        text, self.block = "\n".join(self.block or []), None
        death = self.DEATH.search(text.replace("\n", " "))
        if death:
            self.deaths.append(death.groups())
        elif text and not self.KNOWN.search(text):
            self.write(text)

    def write(self, text):
        self.spoken = True
        write(sys.stderr, text + "\n")

    def close(self):
        self.end_block()


def die_with_parent():
    """Runs in the child: when this launcher ends, so do mpirun and the ranks."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)


class Job:
    """A running mpirun in a session of its own: the terminal's Ctrl-C reaches it through us."""

    def __init__(self, command):
        self.asked_to_stop = None  # the first signal
        self.asked_twice = False
        self.terminated = False  # mpirun has got SIGTERM
        self.process = None
        for number in (*FORWARDED, *MEANT):
            # nohup ignores the hangup of a terminal.
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self.on_signal)
        # mpirun ends a job whose output cannot be written: what it prints comes here.
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, start_new_session=True,
                                        preexec_fn=die_with_parent)
        if self.asked_to_stop is not None:
            self.terminate()

    def terminate(self):
        self.terminated = True
        self.process.terminate()

    def on_signal(self, number, _frame):
        first = self.asked_to_stop is None
        # A shell and the kernel both send the SIGHUP of a terminal that is closed, and batch
        # systems may repeat theirs.
        if not first and number in MEANT:
            return
        self.asked_to_stop = self.asked_to_stop or MEANT.get(number, number)
        self.asked_twice = not first
        if self.process is not None and self.process.poll() is None:
            if first:
                self.process.send_signal(FORWARDED[self.asked_to_stop])
            else:
                self.terminate()

    def wait_for_mpirun(self):
        while True:
            try:
                return self.process.wait(timeout=SECONDS_TO_REPEAT)
            except subprocess.TimeoutExpired:
                if self.asked_to_stop is not None and not self.asked_twice:
                    self.process.send_signal(FORWARDED[self.asked_to_stop])

    def wait(self):
        """Returns the exit code, after all messages of the ranks."""
        output = ErrorOutput()

        def read_errors():
            for line in self.process.stderr:
                output.line(line.decode(errors="replace"))

        def read_output():
            while data := os.read(self.process.stdout.fileno(), 1 << 16):
                write(sys.stdout, data)

        readers = [threading.Thread(target=read, daemon=True) for read in (read_errors,
                                                                           read_output)]
        for reader in readers:
            reader.start()
        code = self.wait_for_mpirun()
        for reader in readers:
            reader.join(timeout=5)
        output.close()
        if code < 0:
            code = 128 - code
        # The codes of a rank that has saved, or that the signal has met before it could. mpirun,
        # once it was terminated itself, ends with any code. Other codes are those of failures.
        stopped = {0, *(128 + number for number in (*FORWARDED, *MEANT))}
        if self.asked_to_stop is not None and (self.terminated or code in stopped):
            return 128 + self.asked_to_stop if code != 0 else 0
        for rank, node, number in output.deaths:
            say(f"rank {rank} on {node} was killed by signal {number} ({signal_name(int(number))})")
        if code != 0 and not output.deaths and not output.spoken:
            by_signal = ""
            if code > 128:
                by_signal = f", as after signal {code - 128} ({signal_name(code - 128)})"
            say(f"mpirun ended with exit code {code}{by_signal}")
        return code


def signal_name(number):
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"


def run(command):
    terminal = None
    if sys.stdout.isatty():
        terminal = termios.tcgetattr(sys.stdout)
    try:
        return Job(command).wait()
    finally:
        if terminal is not None:
            with contextlib.suppress(termios.error):  # it was closed
                termios.tcsetattr(sys.stdout, termios.TCSANOW, terminal)


def main():
    train, prepare_data, config = sys.argv[1:4]
    hostfile, flags = take_hostfile(sys.argv[4:])
    command = [train, f"--config={config}"]
    in_world = inside_a_world()
    alone = "--dry-run" in flags or "--dry_run" in flags
    launch = describe(command + flags)
    command += default_data(prepare_data, launch, may_prepare=not (in_world or alone)) + flags
    if launch["processes"] == 1 or in_world or alone:
        # Python ignores SIGPIPE, which TRAIN would inherit.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.execv(train, command)
    sys.exit(run(mpirun_command(launch["processes"], launch["gpus"], hostfile) + command))


if __name__ == "__main__":
    main()
