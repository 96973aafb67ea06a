"""Arrays of JAX that are sharded over devices and processes.

  jax_check.py                  one process with eight devices, and two processes with four each
  jax_check.py --speed=MIB      saving and loading beside Orbax
"""

import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time

DEVICES = int(os.environ.get("JAX_CHECK_DEVICES", "8"))
os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={DEVICES}"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np
import optax
import tessera_ckpt
from jax.sharding import NamedSharding, PartitionSpec as P


def mesh_of(*shape):
    return jax.sharding.Mesh(np.array(jax.devices()).reshape(shape), ("data", "model")[:len(shape)])


def placed(array, mesh, spec):
    """An array of all processes, of which every one has the elements."""
    elements = np.asarray(array)
    return jax.make_array_from_callback(elements.shape, NamedSharding(mesh, spec),
                                        lambda index: elements[index])


OPTIMIZER = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-2))
KERNEL, BIAS = (64, 16), (16,)


def training(mesh, kernel, bias, seed, dtype=jnp.float32):
    """The state of a training whose weights are sharded so."""
    rng = np.random.default_rng(seed)
    params = {"dense": {
        "kernel": placed(rng.normal(size=KERNEL).astype(dtype), mesh, kernel),
        "bias": placed(rng.normal(size=BIAS).astype(dtype), mesh, bias)}}
    state = {"params": params, "optimizer": OPTIMIZER.init(params)}
    for _ in range(2):
        state = step(state)
    return state


@jax.jit
def step(state):
    def loss(params):
        x = jnp.linspace(-1, 1, KERNEL[0], dtype=params["dense"]["kernel"].dtype)
        return ((x @ params["dense"]["kernel"] + params["dense"]["bias"]) ** 2).sum()

    updates, optimizer = OPTIMIZER.update(jax.grad(loss)(state["params"]), state["optimizer"],
                                          state["params"])
    return {"params": optax.apply_updates(state["params"], updates), "optimizer": optimizer}


def check_equal(found, expected, layout_of=None):
    """The same elements; and the sharding and the class of what was there before."""
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for (path, a), b, like in zip(jax.tree_util.tree_leaves_with_path(found),
                                  jax.tree.leaves(expected),
                                  jax.tree.leaves(expected if layout_of is None else layout_of)):
        where = jax.tree_util.keystr(path)
        assert a.dtype == b.dtype, where
        assert a.sharding == like.sharding, (where, a.sharding, like.sharding)
        assert getattr(like, "weak_type", False) == getattr(a, "weak_type", False), where
        if jax.dtypes.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        elements = np.asarray(b)
        for shard in a.addressable_shards:
            assert np.asarray(shard.data).tobytes() == elements[shard.index].tobytes(), where


def described(state):
    return jax.tree.map(lambda a: jax.ShapeDtypeStruct(
        a.shape, a.dtype, sharding=a.sharding, weak_type=getattr(a, "weak_type", False)), state)


LAYOUTS = {
    "data and model": ((4, 2), P("data", "model"), P("model")),
    "one axis": ((8,), P("data"), P()),
    "two axes in one dim": ((2, 4), P(("model", "data")), P("data")),
    "replicas": ((8,), P(), P()),
    "columns": ((2, 4), P(None, "model"), P("model")),
}


def layouts(folder):
    """Saved under each sharding, loaded under each other: into arrays, and where only their shapes
    and shardings are given. Replicas are saved once."""
    for number, (name, (shape, *specs)) in enumerate(LAYOUTS.items()):
        saved = training(mesh_of(*shape), *specs, seed=1)
        report = tessera_ckpt.save(f"{folder}/{number}", 2, saved)
        elements = sum(leaf.nbytes for leaf in jax.tree.leaves(saved))
        assert elements <= report.bytes_written < elements + 20_000, report
        for other, specs_of_other in LAYOUTS.items():
            state = training(mesh_of(*specs_of_other[0]), *specs_of_other[1:], seed=2)
            before = jax.tree.leaves(state)[0]
            contents = np.array(before)
            for template in (state, described(state)):
                restored = jax.tree.map(lambda leaf: leaf, template)
                tessera_ckpt.load(f"{folder}/{number}", restored, verify_digests=True)
                check_equal(restored, saved, state)
            assert (np.array(before) == contents).all()  # arrays of JAX do not change
            step(restored)  # what is loaded goes on to be trained
        print(f"{name}: {report.bytes_written} bytes, loaded under {len(LAYOUTS)} shardings")


def dtypes(folder):
    mesh = mesh_of(4, 2)
    for dtype in ("bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "int8", "uint32", "bool"):
        elements = np.arange(64).reshape(16, 4) % 7
        state = {"w": placed(elements.astype(dtype), mesh, P("data", "model")),
                 "one": jnp.asarray(elements[0].astype(dtype))}
        tessera_ckpt.save(f"{folder}/{dtype}", 1, state)
        restored = {name: jnp.zeros_like(value) for name, value in state.items()}
        tessera_ckpt.load(folder + f"/{dtype}", restored)
        check_equal(restored, state)
        assert not restored["one"].committed  # it goes with arrays on any device
        assert str(tessera_ckpt.open(f"{folder}/{dtype}").tensors["w"].dtype) == dtype
    for dtype in ("complex64", "int4", "float8_e4m3b11fnuz"):
        try:
            tessera_ckpt.save(f"{folder}/refused", 1, {"a": {"w": jnp.zeros(8, dtype)}})
        except tessera_ckpt.UnimplementedError as error:
            assert f"a.w: elements of dtype {dtype} are not supported" in str(error), error
        else:
            raise AssertionError(dtype)
    print("dtypes: bit for bit, or refused by name")


def keys(folder):
    """Keys of random numbers are saved as their words."""
    mesh = mesh_of(8)
    for number, kind in enumerate(("threefry2x32", "rbg")):
        state = {"key": jax.random.key(3, impl=kind),
                 "old": jax.random.PRNGKey(4),
                 "each": jax.device_put(jax.random.split(jax.random.key(5, impl=kind), 8),
                                        NamedSharding(mesh, P("data")))}
        tessera_ckpt.save(f"{folder}/{number}", 1, state)
        other = {"key": jax.random.key(0, impl=kind), "old": jax.random.PRNGKey(0),
                 "each": jax.device_put(jax.random.split(jax.random.key(0, impl=kind), 8),
                                        NamedSharding(mesh, P("data")))}
        for restored in (dict(other), described(other)):
            tessera_ckpt.load(f"{folder}/{number}", restored)
            check_equal(restored, state)
            assert (jax.random.normal(restored["key"], 3) == jax.random.normal(state["key"], 3)
                    ).all()
    try:
        tessera_ckpt.load(f"{folder}/0", other)
    except tessera_ckpt.MismatchError as error:
        assert "key" in str(error), error
    else:
        raise AssertionError("a key of another kind was loaded")
    print("keys: the same numbers, and those of another kind refused")


def train_states(folder):
    """flax's TrainState is an object: its state dict is saved."""
    try:
        import flax
        from flax.training.train_state import TrainState
    except ImportError:
        print("flax is not installed: not tried")
        return
    mesh = mesh_of(4, 2)

    def make(seed):
        params = training(mesh, P("data", "model"), P("model"), seed)["params"]
        return TrainState.create(apply_fn=None, params=params, tx=OPTIMIZER)

    saved, other = make(1), make(2)
    state = flax.serialization.to_state_dict(saved)
    tessera_ckpt.save(folder, 1, state)
    state = flax.serialization.to_state_dict(other)
    tessera_ckpt.load(folder, state)
    restored = flax.serialization.from_state_dict(other, state)
    check_equal(restored.params, saved.params)
    check_equal(restored.opt_state, saved.opt_state)
    try:
        tessera_ckpt.save(f"{folder}/refused", 1, {"train": saved})
    except tessera_ckpt.UnimplementedError as error:
        assert "train" in str(error), error
    else:
        raise AssertionError("a TrainState was saved")
    print(f"flax {flax.__version__}: a TrainState is restored")


def errors(folder):
    """What has no elements is refused by its name."""
    array = jnp.arange(6.0)
    tessera_ckpt.save(folder, 1, {"w": array})
    gone = jnp.arange(6.0) + 1
    gone.delete()
    for value, error, text in (
            (jax.ShapeDtypeStruct((6,), jnp.float32), tessera_ckpt.InvalidArgumentError,
             "a.w: a ShapeDtypeStruct has no elements"),
            (gone, tessera_ckpt.UnimplementedError, "a.w: the elements of a ArrayImpl cannot")):
        try:
            tessera_ckpt.save(f"{folder}/refused", 1, {"a": {"w": value}})
        except error as found:
            assert text in str(found), found
        else:
            raise AssertionError(text)
    with tessera_ckpt.AsyncSaver(f"{folder}/async", lazy_copy=True) as saver:
        state = {"w": jnp.arange(1e6)}
        saver.save(1, state)
        jax.jit(lambda w: w * 0, donate_argnums=0)(state["w"]).block_until_ready()
    restored = {"w": jax.ShapeDtypeStruct((1_000_000,), jnp.float32)}
    tessera_ckpt.load(f"{folder}/async", restored)
    assert (restored["w"] == jnp.arange(1e6)).all()
    sharded = placed(np.arange(1e4, dtype="float32"), mesh_of(8), P("data"))
    tied = {"embedding": sharded, "head": sharded, "other": sharded + 0}
    tessera_ckpt.save(f"{folder}/tied", 1, tied)
    tensors = tessera_ckpt.open(f"{folder}/tied").tensors
    assert [tensors[name].alias_of for name in tied] == [None, "embedding", None]
    again = {name: value * 0 for name, value in tied.items()}
    tessera_ckpt.load(f"{folder}/tied", again)
    check_equal(again, tied)
    # The replicas of what is loaded have one memory, which none may overwrite.
    replicas = {"w": jax.ShapeDtypeStruct((1_000_000,), jnp.float32,
                                          sharding=NamedSharding(mesh_of(8), P()))}
    tessera_ckpt.load(f"{folder}/async", replicas)
    one, *others = [shard.data for shard in replicas["w"].addressable_shards]
    jax.jit(lambda w: w * 0, donate_argnums=0)(one).block_until_ready()
    assert all((np.asarray(other) == np.arange(1e6)).all() for other in others)
    print("errors: by name; memory of a save in flight is not given to another array")


def rank(port, folder, phase, number):
    """One of two processes, each of which has the elements of its own devices alone."""
    jax.distributed.initialize(f"127.0.0.1:{port}", 2, int(number))
    assert len(jax.devices()) == 2 * len(jax.local_devices()) == 8
    layouts_of_two = LAYOUTS if phase == "save" else dict(reversed(LAYOUTS.items()))
    state = {name: training(mesh_of(*shape), *specs, seed=1 if phase == "save" else 2)
             for name, (shape, *specs) in layouts_of_two.items()}
    here, rest = jax.local_devices()[0], [d for d in jax.devices() if d.process_index == 1]
    second = NamedSharding(jax.sharding.Mesh(np.array(rest), ("data",)), P("data"))
    state["on the second"] = jax.make_array_from_callback(
        (8,), second, lambda index: np.arange(8.0)[index] * (phase == "save"), dtype=jnp.float32)
    state["mine"] = jax.device_put(jnp.full(3, float(number)), here)
    state["count"] = jnp.int32(7 if phase == "save" else 0)
    if phase == "save":
        tessera_ckpt.save(folder, 1, state, per_rank=["mine"])
        with tessera_ckpt.AsyncSaver(folder) as saver:
            saver.save(2, state, per_rank=["mine"])
        try:
            tessera_ckpt.save(folder, 3, {"key": jax.random.key(int(number))})
        except tessera_ckpt.MismatchError as error:
            assert "key: ranks 0 and 1 have different elements" in str(error), error
        else:
            raise AssertionError("one of two keys was saved")
    else:
        expected = {name: training(mesh_of(*LAYOUTS[name][0]), *LAYOUTS[name][1:], seed=1)
                    for name in LAYOUTS}
        for path in (folder, f"{folder}/step-00000001"):
            restored = jax.tree.map(lambda leaf: leaf, state)
            report = tessera_ckpt.load(path, restored)
            for name in LAYOUTS:
                for a, b in zip(jax.tree.leaves(restored[name]), jax.tree.leaves(expected[name])):
                    assert a.sharding == b.sharding
                    for one, other in zip(a.addressable_shards, b.addressable_shards):
                        assert (np.asarray(one.data) == np.asarray(other.data)).all(), name
            assert (restored["mine"] == int(number)).all() and restored["count"] == 7
            for shard in restored["on the second"].addressable_shards:
                assert (np.asarray(shard.data) == np.arange(8.0)[shard.index]).all()
        if number == "0":
            print(f"two processes: {report.bytes_read} bytes read")


def processes(folder):
    """Saved by two processes of jax.distributed, loaded by two others and by this one."""
    for phase in ("save", "load"):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        ranks = [subprocess.Popen([sys.executable, __file__, "--rank", str(port), folder, phase,
                                   str(number)], env=dict(os.environ, JAX_CHECK_DEVICES="4"))
                 for number in range(2)]
        codes = [process.wait(timeout=100) for process in ranks]
        assert codes == [0, 0], (phase, codes)
    shape, *specs = LAYOUTS["data and model"]
    state = {"columns": training(mesh_of(*shape), *specs, seed=3)}
    tessera_ckpt.load(folder, state, allow_unexpected=True)
    expected = training(mesh_of(*shape), *specs, seed=1)["params"]["dense"]["kernel"]
    found = state["columns"]["params"]["dense"]["kernel"]
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), atol=1e-6)
    assert tessera_ckpt.verify(folder, digests=True)
    print("two processes: saved, loaded by two others and by one")


def evict(folder):
    """Out of the page cache."""
    for path in pathlib.Path(folder).rglob("*"):
        if path.is_file():
            handle = os.open(path, os.O_RDONLY)
            os.fsync(handle)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(handle)


def speed(folder, mib):
    """One state, saved and loaded by each in turn; the best of four, and the last pairs' ratios."""
    import orbax.checkpoint as ocp
    mesh, rng = mesh_of(4, 2), np.random.default_rng(1)
    shape = (1024, mib * (1 << 20) // 4 // 32 // 1024)
    state = {"params": {f"layer_{i}": placed(rng.random(shape, "float32"), mesh,
                                             P("data", "model")) for i in range(32)}}
    orbax = ocp.StandardCheckpointer()
    calls = {
        "orbax": (lambda: (orbax.save(f"{folder}/orbax", state), orbax.wait_until_finished()),
                  lambda: orbax.restore(f"{folder}/orbax", described(state))),
        "tessera_ckpt": (lambda: tessera_ckpt.save(f"{folder}/ours", 1, state),
                         lambda: loaded(f"{folder}/ours", described(state)))}

    def loaded(path, template):
        tessera_ckpt.load(path, template)
        return template

    seconds = {name: ([], []) for name in calls}
    for _ in range(4):
        for name, (save, load) in calls.items():
            shutil.rmtree(f"{folder}/orbax", ignore_errors=True)
            shutil.rmtree(f"{folder}/ours", ignore_errors=True)
            os.sync()
            begin = time.perf_counter()
            save()
            seconds[name][0].append(time.perf_counter() - begin)
            evict(folder)
            begin = time.perf_counter()
            found = jax.block_until_ready(load())
            seconds[name][1].append(time.perf_counter() - begin)
            check_equal(found, state)
    print(f"{mib} MiB of float32 in 32 arrays on 8 devices, seconds (all of 4), orbax "
          f"{ocp.__version__}:")
    for name, (saves, loads) in seconds.items():
        print(f"  {name:13s} save {min(saves):.2f} {[round(t, 2) for t in saves]}  "
              f"load {min(loads):.2f} {[round(t, 2) for t in loads]}")


def main():
    if sys.argv[1:2] == ["--rank"]:
        rank(*sys.argv[2:])
        return
    flags = dict(flag.split("=") for flag in sys.argv[1:])
    with tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR")) as folder:
        if "--speed" in flags:
            speed(folder, int(flags["--speed"]))
            return
        for scenario in (layouts, dtypes, keys, train_states, errors, processes):
            scenario(f"{folder}/{scenario.__name__}")
    print(f"jax {jax.__version__}, optax {optax.__version__}: all good")


if __name__ == "__main__":
    main()
