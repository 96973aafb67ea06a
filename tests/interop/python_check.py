"""The Python package with torch: FSDP2, tensor parallelism and FSDP1 on processes over gloo,
torch's own calls, torchtitan's manager, mpi4py, generated states, kills, damage, and speed beside
torch.

  python_check.py CKPT [--only=NAME] [--speed_mib=N] [--states=N]

CKPT: the program. Each scenario runs processes of python_ranks.py. torchtitan, mpi4py, JAX and
optax are tried where they are installed.
"""

import importlib.util
import json
import math
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

import safetensors.torch as safetensors
import tessera_ckpt
import torch
import torch.distributed.checkpoint as dcp
from tessera_ckpt import ALONE
from tessera_ckpt.dcp import Reader, Writer

RANKS = pathlib.Path(__file__).resolve().parent / "python_ranks.py"
STATES = "python/tests/state_property_test.py"
DEVICES = "python/tests/device_test.py"
CKPT = ""
SPEED_MIB = 1024
STATE_COUNT = 500


def start(size, *arguments, stdout=None):
    """The processes of a scenario."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
                  WORLD_SIZE=str(size), OMP_NUM_THREADS="1")
    return [subprocess.Popen([sys.executable, "-W", "ignore", RANKS, *map(str, arguments)],
                             env=dict(common, RANK=str(rank)), stdout=stdout,
                             text=True) for rank in range(size)]


def run(size, *arguments):
    codes = [process.wait(timeout=300) for process in start(size, *arguments)]
    assert codes == [0] * size, (arguments, codes)


def ckpt(*arguments):
    result = subprocess.run([CKPT, *map(str, arguments)], check=False, text=True,
                            capture_output=True)
    assert result.returncode == 0, (arguments, result.stdout, result.stderr)
    return result.stdout


def meshes(folder):
    """Saved on a 2-D mesh, loaded on others, and the other way round; with each of the calls."""
    run(4, "save", "fsdp2_tp2", f"{folder}/a", "plain")
    for size, mesh in ((4, "fsdp4"), (4, "hsdp2x2"), (2, "tp2"), (3, "fsdp3"), (1, "single")):
        run(size, "load", mesh, f"{folder}/a", "plain")
    run(3, "save", "fsdp3", f"{folder}/b", "async")
    run(4, "load", "fsdp2_tp2", f"{folder}/b", "plain")


def torch_calls(folder):
    """dcp.save and dcp.load, and everybody else's eyes on what they wrote."""
    run(4, "save", "fsdp2_tp2", f"{folder}/a", "dcp")
    run(3, "load", "fsdp3", f"{folder}/a", "dcp")
    run(1, "load", "single", f"{folder}/a", "plain")
    run(2, "save", "fsdp2", f"{folder}/b", "dcp_async")
    run(4, "load", "fsdp2_tp2", f"{folder}/b", "dcp")
    run(2, "save", "tp2", f"{folder}/c", "plain")
    run(4, "load", "hsdp2x2", f"{folder}/c", "dcp")
    assert json.loads(ckpt("verify", "--digests", "--json", f"{folder}/a"))["good"]
    ckpt("reshard", f"{folder}/a", f"{folder}/resharded", "--topology=dp2_tp2")
    run(2, "load", "tp2", move_golden(f"{folder}/a", f"{folder}/resharded"), "dcp")
    ckpt("convert", f"{folder}/a", f"{folder}/dcp", "--to=dcp")
    golden = torch.load(f"{folder}/a.golden", weights_only=False)
    state = {name: torch.zeros_like(value) for name, value in golden.items()
             if isinstance(value, torch.Tensor)}
    dcp.load(state, checkpoint_id=f"{folder}/dcp")  # torch's own reader
    for name, value in state.items():
        assert torch.equal(value, golden[name]), name
    print(f"ckpt verifies, reshards and converts what dcp.save wrote: {len(state)} tensors equal")
    # A tuple with a tensor, which torch pickles whole.
    dcp.save({"a": (torch.ones(2), 3)}, storage_writer=Writer(f"{folder}/pair", group=ALONE),
             no_dist=True)
    pair = {"a": (torch.zeros(2), 0)}
    dcp.load(pair, storage_reader=Reader(f"{folder}/pair", group=ALONE), no_dist=True)
    assert isinstance(pair["a"], tuple) and pair["a"][0].sum() == 2 and pair["a"][1] == 3, pair
    try:
        tessera_ckpt.load(f"{folder}/pair")
    except tessera_ckpt.UnimplementedError as error:
        assert "value a: torch has pickled it" in str(error), error
    else:
        raise AssertionError("a pickle was read")


def move_golden(old, new):
    shutil.copy(f"{old}.golden", f"{new}.golden")
    return new


def pipeline_stages(folder):
    run(3, "stages", "", f"{folder}/a", "save")
    for size in (2, 1):
        run(size, "stages", "", f"{folder}/a", "load")


def flat_parameters(folder):
    run(3, "flat_save", "fsdp1", f"{folder}/a", "")
    run(2, "flat_load", "fsdp1", f"{folder}/a", "")
    run(4, "flat_load", "fsdp2_tp2", f"{folder}/a", "")
    run(2, "flat_rest", "", f"{folder}/b", "save")
    run(2, "flat_rest", "", f"{folder}/b", "load")


def titan(folder):
    if importlib.util.find_spec("torchtitan") is None:
        print("torchtitan is not installed: not tried")
        return
    for mode in ("disabled", "async"):
        run(4, "titan", "save", f"{folder}/{mode}", mode)
        run(4, "titan", "load", f"{folder}/{mode}", mode)


MPI = """
import sys, numpy as np, tessera_ckpt
from mpi4py import MPI
comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()
whole = np.arange(size * 30.0).reshape(size * 5, 6)
mine = whole[5 * rank:5 * rank + 5].copy()
part = tessera_ckpt.Box(mine, (5 * rank, 0), whole.shape)
tessera_ckpt.save(sys.argv[1], 1, {"w": part}, comm)
with tessera_ckpt.AsyncSaver(sys.argv[1], comm) as saver:
    saver.save(2, {"w": part})
for step in (1, 2):
    everything = np.zeros_like(whole)
    tessera_ckpt.load(f"{sys.argv[1]}/step-0000000{step}", {"w": everything}, comm)
    assert (everything == whole).all()
if rank == 0: print(f"mpi4py: {size} ranks saved and loaded")
"""


def mpi(folder):
    if importlib.util.find_spec("mpi4py") is None or shutil.which("mpirun") is None:
        print("mpi4py or mpirun is not installed: not tried")
        return
    subprocess.run(["mpirun", "--oversubscribe", "-n", "3", sys.executable, "-c", MPI, folder],
                   check=True, timeout=200, env=dict(
                       os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1"))


def states(folder):
    """Generated states with torch, and those of optax: what is saved comes back."""
    subprocess.run([sys.executable, "-W", "ignore", STATES, "1000", str(STATE_COUNT)], check=True,
                   env=dict(os.environ, TMPDIR=folder))


def devices(folder):
    """Tensors on a device, which is a fake one."""
    subprocess.run([sys.executable, "-W", "ignore", DEVICES], check=True,
                   env=dict(os.environ, TMPDIR=folder))


def kills(folder):
    """All processes, or one, are killed in a save: the newest checkpoint is whole."""
    rng = random.Random(3)
    for attempt in range(3):
        place = f"{folder}/{attempt}"
        processes = start(4, "endless", "fsdp2_tp2", place, "", stdout=subprocess.PIPE)
        processes[0].stdout.readline()
        time.sleep(rng.uniform(0.05, 0.5))
        victims = processes if attempt != 1 else processes[2:3]
        for process in victims:
            process.send_signal(signal.SIGKILL)
        time.sleep(0.5)
        for process in processes:
            process.kill()
            process.communicate()
        found = tessera_ckpt.latest(place)
        assert tessera_ckpt.verify(place, digests=True)
        checkpoint = tessera_ckpt.open(place)
        big = checkpoint.read("big")
        assert float(big[0]) == float(big[-1]) == checkpoint.values["step"] == found.step
        print(f"killed {len(victims)} of 4: step {found.step} is whole")
    for scenario in ("survivors", "refused"):
        run(3, scenario, "", folder + "/x", "")
        assert tessera_ckpt.latest(folder + "/x") is None


def interrupt(folder):
    """SIGINT to all processes in a save, after which they save again."""
    processes = start(2, "interrupted", "", folder, "", stdout=subprocess.PIPE)
    processes[0].stdout.readline()
    time.sleep(2)  # the other process is done with its part
    for process in processes:
        process.send_signal(signal.SIGINT)
    codes = [process.wait(timeout=300) for process in processes]
    assert codes == [0, 0], codes
    assert [found.step for found in tessera_ckpt.list_checkpoints(folder)] == [2]
    assert tessera_ckpt.verify(folder, digests=True)
    print("interrupted in a save, both processes have saved again")


def damage(folder):
    """A flipped byte is refused by both calls, with its file and offset."""
    state = {"w": torch.arange(500_000.0), "b": torch.ones(3, dtype=torch.bfloat16)}
    path = tessera_ckpt.save(folder, 1, state).path
    file = next(pathlib.Path(path).glob("*.safetensors"))
    raw = bytearray(file.read_bytes())
    raw[1_234_567] ^= 1
    file.write_bytes(raw)
    for load in (lambda: tessera_ckpt.load(folder, state),
                 lambda: dcp.load(state, storage_reader=Reader(folder, group=ALONE), no_dist=True)):
        try:
            load()
        except BaseException as error:
            text = str(error)  # torch's CheckpointException is one of these
            assert file.name in text and "offset 1" in text, text
        else:
            raise AssertionError("damage was not noticed")
    print(f"a flipped byte: {text.splitlines()[-1].strip()[:150]}")


def evict(folder):
    """Out of the page cache."""
    for path in pathlib.Path(folder).rglob("*"):
        if path.is_file():
            handle = os.open(path, os.O_RDONLY)
            os.fsync(handle)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(handle)


def speed(folder):
    """Saving and loading one state, each program in turn; the best of several times. What torch
    and safetensors write has no checksums of tensors, and they do not wait for the disk: they are
    given an fsync, without which a checkpoint may be lost after it was reported."""
    count = 32
    elements = SPEED_MIB * (1 << 20) // 4 // count
    state = {f"layer.{i}": torch.randn(elements) for i in range(count)}
    target = {name: torch.zeros_like(value) for name, value in state.items()}
    times = {}

    def measure(name, what, call, before):
        before()
        begin = time.perf_counter()
        call()
        seconds = time.perf_counter() - begin
        times.setdefault(name, {}).setdefault(what, []).append(seconds)

    def torch_save():
        with open(f"{folder}/torch.pt", "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())

    def torch_load():
        for name, value in torch.load(f"{folder}/torch.pt", weights_only=True).items():
            target[name].copy_(value)

    def safetensors_save():
        safetensors.save_file(state, f"{folder}/whole.safetensors")
        with open(f"{folder}/whole.safetensors", "rb") as file:
            os.fsync(file.fileno())

    def safetensors_load():
        for name, value in safetensors.load_file(f"{folder}/whole.safetensors").items():
            target[name].copy_(value)

    calls = {
        "torch.save": (torch_save, torch_load),
        "safetensors": (safetensors_save, safetensors_load),
        "dcp.save": (lambda: dcp.save(state, checkpoint_id=f"{folder}/dcp", no_dist=True),
                     lambda: dcp.load(target, checkpoint_id=f"{folder}/dcp", no_dist=True)),
        "tessera_ckpt": (lambda: tessera_ckpt.save(f"{folder}/mine", 1, state, ALONE),
                         lambda: tessera_ckpt.load(f"{folder}/mine", target, ALONE)),
        "tessera_ckpt.dcp": (
            lambda: dcp.save(state, storage_writer=Writer(f"{folder}/writer", group=ALONE),
                             no_dist=True),
            lambda: dcp.load(target, storage_reader=Reader(f"{folder}/writer", group=ALONE),
                             no_dist=True)),
    }
    for _ in range(4):
        for name, (save, load) in calls.items():
            for old in ("torch.pt", "whole.safetensors", "dcp", "mine", "writer"):
                shutil.rmtree(f"{folder}/{old}", ignore_errors=True)
                pathlib.Path(f"{folder}/{old}").unlink(missing_ok=True)
            os.sync()
            measure(name, "save", save, lambda: None)
            measure(name, "load", load, lambda: evict(folder))
            measure(name, "load, cached", load, lambda: None)
            for key, value in state.items():
                assert torch.equal(target[key], value), (name, key)
                target[key].zero_()
    print(f"{SPEED_MIB} MiB of float32, seconds (the best of 4), and how many times as long as "
          "tessera_ckpt:")
    best = {name: {what: min(found) for what, found in by.items()} for name, by in times.items()}
    for name, by in best.items():
        print(f"  {name:17s}" + "".join(
            f"  {what} {seconds:6.2f} ({seconds / best['tessera_ckpt'][what]:4.1f})"
            for what, seconds in by.items()))


def value_speed(folder):
    """Saving and loading large values, as speed() does tensors."""
    rng = random.Random(5)
    for name, value in (("2 million ints", [rng.randrange(1 << 40) for _ in range(2_000_000)]),
                        ("2 million floats", [rng.random() for _ in range(2_000_000)]),
                        ("200 MB of bytes", rng.randbytes(200_000_000))):
        def torch_save(value=value):
            with open(f"{folder}/torch.pt", "wb") as file:
                torch.save({"x": value}, file)
                file.flush()
                os.fsync(file.fileno())

        calls = (torch_save, lambda: torch.load(f"{folder}/torch.pt", weights_only=False),
                 lambda value=value: tessera_ckpt.save(f"{folder}/mine", 1, {"x": value}, ALONE),
                 lambda: tessera_ckpt.load(f"{folder}/mine", None, ALONE))
        best = [math.inf] * len(calls)
        for _ in range(4):
            shutil.rmtree(f"{folder}/mine", ignore_errors=True)
            for i, call in enumerate(calls):
                begin = time.perf_counter()
                found = call()
                best[i] = min(best[i], time.perf_counter() - begin)
            assert found == {"x": value}
        print("{}, seconds: torch.save {:.2f}, load {:.2f}; tessera_ckpt.save {:.2f}, load {:.2f}"
              .format(name, *best))


TYPED = """
from typing import Any, Dict
import numpy as np
import tessera_ckpt

state = {"w": np.ones(3), "step": 1}
saved: tessera_ckpt.SaveReport = tessera_ckpt.save("runs", 1, state, keep=3)
loaded: tessera_ckpt.LoadReport = tessera_ckpt.load("runs", state, strict=False)
new: Dict[Any, Any] = tessera_ckpt.load("runs", framework="numpy")
again: Dict[Any, Any] = tessera_ckpt.open("runs").load()
with tessera_ckpt.AsyncSaver("runs", keep=2) as saver:
    saver.save(2, state)
    steps: list[int] = [outcome.step for outcome in saver.poll()]
"""


def types(folder):
    """mypy --strict finds nothing in the package, and knows what it returns. Adapters are left out:
    their frameworks need not be there."""
    if importlib.util.find_spec("mypy") is None:
        print("mypy is not installed: not tried")
        return
    program = pathlib.Path(folder) / "typed.py"
    program.write_text(TYPED, encoding="utf-8")
    package = pathlib.Path(tessera_ckpt.__file__).parent
    adapters = r"/(accelerate|lightning|megatron|torchtitan|transformers)\.py$"
    subprocess.run([sys.executable, "-m", "mypy", "--strict", f"--cache-dir={folder}/cache",
                    f"--exclude={adapters}", package, program], check=True)
    program.write_text(TYPED.replace("LoadReport", "SaveReport"), encoding="utf-8")
    wrong = subprocess.run([sys.executable, "-m", "mypy", "--strict", f"--cache-dir={folder}/cache",
                            program], check=False, capture_output=True, text=True)
    assert "LoadReport" in wrong.stdout and wrong.stdout.count(": error:") == 1, wrong.stdout


SCENARIOS = (meshes, torch_calls, pipeline_stages, flat_parameters, titan, mpi, states, devices,
             kills, interrupt, damage, types, speed, value_speed)


def main():
    global CKPT, SPEED_MIB, STATE_COUNT
    CKPT, *flags = sys.argv[1:]
    only = None
    for flag in flags:
        name, _, value = flag.partition("=")
        if name == "--only":
            only = value
        elif name == "--speed_mib":
            SPEED_MIB = int(value)
        elif name == "--states":
            STATE_COUNT = int(value)
        else:
            sys.exit(__doc__)
    for scenario in SCENARIOS:
        if only not in (None, scenario.__name__):
            continue
        with tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR")) as folder:
            print(f"== {scenario.__name__}", flush=True)
            scenario(folder)
            sys.stdout.flush()
    print(f"torch {torch.__version__}, tessera_ckpt {tessera_ckpt.__version__}: all good")


if __name__ == "__main__":
    main()
