#!/usr/bin/env python3
"""Tensors on a device, which is a fake one whose operations run late (fake_device.py)."""

import ctypes
import functools
import math
import os
import random
import tempfile
import threading
import types
import unittest
import unittest.mock

import tessera_ckpt
from generated_states import TORCH_DTYPES, bits, torch
from ranks import run_ranks
from tessera_ckpt import (Box, FlatShard, _copy_stream, _device, _host_memory, _library, _state,
                          _tensors)

if torch is not None:
    from fake_device import FakeDevice

    BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


def number_of(dtype):
    return _tensors.DTYPES[str(dtype).replace("torch.", "")]


class Host:
    """Host memory that the callbacks have allocated, and copies as the library starts them."""

    def __init__(self, size):
        self.size, self.pointer = size, ctypes.c_void_p()
        self.check(_device.CALLBACKS.allocate(None, size, self.pointer))
        assert self.pointer.value % 4096 == 0

    def close(self):
        _device.CALLBACKS.free(None, self.pointer)

    @staticmethod
    def check(code):
        if code != 0:
            raise _library.error_of(code, _library.lib._message().decode())

    def start(self, boxes, to_device):
        """`boxes`: (handle, offset, shape, place, dtype)."""
        copies = (_library.BoxCopy * len(boxes))(*(
            (handle, len(shape), _library.numbers(offset), _library.numbers(shape),
             self.pointer.value + place, number_of(dtype))
            for handle, offset, shape, place, dtype in boxes))
        pending = ctypes.c_void_p()
        self.check(_device.CALLBACKS.start_copies(None, copies, len(boxes), to_device, pending))
        return pending

    def finish(self, pending):
        self.check(_device.CALLBACKS.wait(None, pending))
        _device.CALLBACKS.release(None, pending)

    def contents(self):
        return ctypes.string_at(self.pointer, self.size)

    def put(self, contents, place=0):
        ctypes.memmove(self.pointer.value + place, contents, len(contents))


@unittest.skipUnless(torch, "no torch (needs: torch)")
class DeviceCase(unittest.TestCase):
    def fake(self, **options):
        fake = FakeDevice(**options)
        self.enterContext(fake) if hasattr(self, "enterContext") else (
            fake.__enter__(), self.addCleanup(fake.__exit__))
        return fake

    def host(self, size):
        host = Host(size)
        self.addCleanup(host.close)
        return host


def data_of(value):
    """The tensor of a leaf."""
    return value if isinstance(value, torch.Tensor) else value.data


def random_bits(rng, dtype, count):
    data = bytearray(rng.randbytes(max(count, 1) * dtype.itemsize))
    if dtype == torch.bool:
        data = bytearray(byte & 1 for byte in data)
    return torch.frombuffer(data, dtype=dtype)[:count].clone()


def random_view(rng, fake):
    """A tensor on the device: any dtype, any strides, the negative of its memory, in inference
    mode."""
    dtype = rng.choice(TORCH_DTYPES)
    shape = [rng.choice((1, 2, 3, 5, 0 if rng.random() < 0.1 else 7))
             for _ in range(rng.randrange(4))]
    with torch.inference_mode(rng.random() < 0.2):
        base = fake.put(random_bits(rng, dtype, 4000))
        if dtype in (torch.float32, torch.float64) and rng.random() < 0.4:
            base = torch.view_as_complex(base.view(-1, 2)).conj().imag
        strides, step = [0] * len(shape), rng.choice((1, 1, 2))
        for dim in rng.sample(range(len(shape)), len(shape)):
            strides[dim] = step
            step *= max(shape[dim], 1)
        if shape and rng.random() < 0.2:
            strides[rng.randrange(len(shape))] = 0
        return base.as_strided(shape, [stride * base.stride(0) for stride in strides])


class CopiesTest(DeviceCase):
    def test_random_boxes(self):
        for seed in range(200):
            rng = random.Random(seed)
            with self.subTest(seed), FakeDevice(
                    seed=rng.choice((None, seed)), has_streams=rng.random() < 0.8) as fake:
                self.copy_boxes(rng, fake)

    def copy_boxes(self, rng, fake):
        shards, boxes, views, place = _device.Shards(), [], [], rng.randrange(9)
        for _ in range(rng.randint(1, 9)):
            tensor = random_view(rng, fake)
            shape = [rng.randint(0, extent) for extent in tensor.shape]
            offset = [rng.randint(0, extent - part) for extent, part in zip(tensor.shape, shape)]
            view = tensor[tuple(slice(o, o + s) for o, s in zip(offset, shape))]
            boxes.append((shards.add(tensor), offset, shape, place, tensor.dtype))
            views.append(view)
            place += view.numel() * tensor.element_size() + rng.choice((0, 0, 0, 5))
        before = [bits(view) for view in views]
        host = Host(place + 1)
        host.finish(host.start(boxes, False))
        expected = bytearray(b"\xee" * host.size)
        for (_, _, _, begin, _), elements in zip(boxes, before):
            expected[begin:begin + len(elements)] = elements
        self.assertEqual(host.contents(), bytes(expected))

        others = [bits(random_bits(rng, view.dtype, 1)) * view.numel() if 0 in view.stride() else
                  bits(random_bits(rng, view.dtype, view.numel())) for view in views]
        for (_, _, _, begin, _), elements in zip(boxes, others):
            host.put(elements, begin)
        host.finish(host.start(boxes, True))
        self.assertEqual([bits(view) for view in views], others)
        host.close()

    def test_dtypes_are_converted_on_the_device(self):
        fake = self.fake()
        for saved, wanted in ((F32, BF16), (F32, F16), (BF16, F32), (F16, F32)):
            for strides in ((16, 1), (1, 64)):
                elements = random_bits(random.Random(1), saved, 1024).nan_to_num()
                target = fake.put(torch.zeros(1024, dtype=wanted)).as_strided((64, 16), strides)
                shards, host = _device.Shards(), self.host(elements.nbytes)
                host.put(bits(elements))
                host.finish(host.start([(shards.add(target), (0, 0), (64, 16), 0, saved)], True))
                self.assertEqual(bits(target), bits(elements.to(wanted)))

    def test_small_tensors_cross_the_bus_together(self):
        fake = self.fake()
        tensors = [fake.put(torch.full((n, 3), n, dtype=F32)) for n in range(1, 50)]
        large = fake.put(torch.ones(1 << 17))
        shards, boxes, place = _device.Shards(), [], 0
        for tensor in tensors[:30] + [large] + tensors[30:]:
            boxes.append((shards.add(tensor), (0, 0)[:tensor.dim()], tuple(tensor.shape), place,
                          F32))
            place += tensor.nbytes
        host = self.host(place)
        host.finish(host.start(boxes, False))
        self.assertEqual([each for each in fake.log if "to host" in each],
                         [f"to host {size}" for size in (
                             12 * sum(range(1, 31)), 1 << 19, 12 * sum(range(31, 50)))])
        fake.log.clear()
        for tensor in tensors + [large]:
            tensor.zero_()
        host.finish(host.start(boxes, True))
        self.assertEqual(sum(each.startswith("to device") for each in fake.log), 3)
        self.assertEqual([each for each in fake.log if "foreach" in each], ["_foreach_copy_"] * 2)
        self.assertEqual([tensor.max() for tensor in tensors], list(range(1, 50)))
        self.assertEqual(large.min(), 1)

    def test_the_order_on_the_device(self):
        """Behind what the program has enqueued before, before what it enqueues behind a wait."""
        fake = self.fake()
        a, b = (fake.put(torch.zeros(1000)) for _ in range(2))
        fake.kernel(lambda: a.fill_(1))
        fake.kernel(lambda: b.fill_(1))
        shards = _device.Shards()
        handles = [shards.add(a), shards.add(b)]
        fake.kernel(lambda: self.assertEqual(a.max(), 1))
        host = self.host(8000)
        pending = [host.start([(handle, (0,), (1000,), 4000 * i, F32)], False)
                   for i, handle in enumerate(handles)]
        self.assertEqual(fake.log.count("copies waits for default"), 1)
        self.assertEqual(fake.copying.done, 0)
        shards.wait_here(a[5:])
        shards.wait_here(torch.zeros(3))  # which is not of the state
        fake.kernel(lambda: a.fill_(2))
        self.assertEqual(fake.log.count("default waits for copies"), 1)
        fake.default.synchronize()
        self.assertEqual((a.max(), b.max(), host.contents()[4000:]), (2, 1, b"\xee" * 4000))
        shards.wait_here()
        fake.kernel(lambda: b.fill_(2))
        fake.default.synchronize()
        self.assertEqual(host.contents(), bits(torch.ones(2000)))
        for each in pending:
            host.finish(each)
        # An order of its own for each state: this one comes behind the last kernels.
        other = _device.Shards()
        host.finish(host.start([(other.add(a), (0,), (1000,), 0, F32)], False))
        self.assertEqual(host.contents()[:4000], bits(torch.full((1000,), 2.0)))

    def test_callbacks_come_from_many_threads(self):
        fake = self.fake(seed=5)
        tensors = [fake.put(torch.full((500 + n,), n, dtype=F32)) for n in range(40)]
        shards, failed = _device.Shards(), []
        handles = [shards.add(tensor) for tensor in tensors]

        def work(number):
            try:
                for n in range(number, 40, 8):
                    host = Host(4 * (500 + n))
                    host.finish(host.start([(handles[n], (0,), (500 + n,), 0, F32)], False))
                    assert host.contents() == bits(tensors[n])
                    host.put(bits(tensors[n] + 100))
                    pending = host.start([(handles[n], (0,), (500 + n,), 0, F32)], True)
                    _device.CALLBACKS.release(None, pending)  # instead of a wait
                    assert (tensors[n] == n + 100).all()
                    host.close()
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(fake.set_by, {thread.ident for thread in threads})
        host = Host(400)
        host.finish(host.start([(handles[0], (0,), (100,), 0, F32)], False))
        self.assertNotIn(threading.get_ident(), fake.set_by)
        host.close()
        self.assertEqual((failed, _device._pending, _device._allocations._tensors), ([], {}, []))

    def test_errors_become_codes_and_messages(self):
        fake = self.fake()
        tensor = fake.put(torch.ones(100, 2).t())
        shards, host = _device.Shards(), self.host(800)
        box = (shards.add(tensor), (0, 0), (2, 100), 0, F32)
        for failing, to_device in (("contiguous", False), ("copy_", False), ("copy_", True)):
            fake.failing = failing
            with self.subTest(failing), self.assertRaisesRegex(
                    tessera_error(14), f"{failing} has failed on the fake device"):
                host.start([box], to_device)
            self.assertEqual(fake.copying.done, fake.copying.enqueued)
        fake.failing = "allocate"
        with self.assertRaisesRegex(tessera_error(14), "no memory on the fake device"):
            Host(4096)
        fake.failing = None
        with self.assertRaisesRegex(tessera_error(14), "KeyError"):
            host.start([(12345678, *box[1:])], False)
        del shards
        with self.assertRaisesRegex(tessera_error(14), "KeyError"):  # its state is gone
            host.start([box], False)
        self.assertEqual(_device._pending, {})
        self.assertEqual(_library.guarded(lambda: exec("raise KeyboardInterrupt"), False), 14)

    def test_memory_that_cannot_be_had(self):
        with self.assertRaisesRegex(tessera_error(8), "of host memory for copies of tensors"):
            Host(1 << 62)

    def test_much_memory_is_registered_with_cuda(self):
        """Of torch's own, a power of two would be locked."""
        size, cudart = (96 << 20) + 4096, unittest.mock.Mock()
        patches = (unittest.mock.patch.object(_host_memory, "devices", lambda: [
            types.SimpleNamespace(type="cuda")]),
            unittest.mock.patch.object(torch.cuda, "device", lambda device: torch.no_grad()),
            unittest.mock.patch.object(torch.cuda, "cudart", lambda: cudart))
        for patch in patches:
            patch.start()
            self.addCleanup(patch.stop)
        for code in (0, 2):
            cudart.reset_mock()
            cudart.cudaHostRegister.return_value = code
            allocations = _host_memory.Allocations()
            address = allocations.allocate(size)
            cudart.cudaHostRegister.assert_called_once_with(unittest.mock.ANY, size, 1)
            self.assertEqual(allocations.bytes_at(address + size - 8, 8).fill_(3).tolist(), [3] * 8)
            allocations.free(address)
            self.assertEqual(cudart.cudaHostUnregister.mock_calls,
                             [] if code else [unittest.mock.call(address)])
            allocations.free(allocations.allocate(64 << 20))
            self.assertEqual(cudart.cudaHostRegister.call_count, 1)

    def test_a_forked_process_leaves_the_device_alone(self):
        fake = self.fake()
        tensor = fake.put(torch.ones(100))
        shards, host = _device.Shards(), self.host(400)
        pending = host.start([(shards.add(tensor), (0,), (100,), 0, F32)], False)
        child = os.fork()
        if child == 0:
            queued = fake.copying.enqueued - fake.copying.done
            _device._release(None, pending.value)
            _device._free(None, host.pointer.value)
            shards.wait_here()
            del shards
            is_left = queued == len(fake.copying.tasks) > 0 and not _copy_stream._streams
            os._exit(0 if is_left else 1)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        host.finish(pending)
        self.assertEqual(host.contents(), bits(tensor))


class StateTest(DeviceCase):
    """Saves and loads of the library."""

    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = scratch.name + "/runs"

    def state(self, fake, number):
        """Tensors of which each crosses the bus in another way."""
        rng = random.Random(number)
        base = fake.put(random_bits(rng, torch.float32, 6000))
        return {
            "large": fake.put(torch.full((3 << 20,), number, dtype=torch.int64)),
            "transposed": base[:600].view(20, 30).t(), "step": base[600], "empty": base[:0],
            "negative": torch.view_as_complex(base[700:800].view(-1, 2)).conj().imag,
            "expanded": base[800:801].expand(7), "tied": base[800:801].expand(7),
            "box": Box(base[1000:1600].view(30, 20), (0, 0), (30, 20)),
            "flat": FlatShard(base[2000:2059], 0, (59,)),
            "on the host": torch.full((100,), number),
            **{f"small.{n}": base[3000 + 9 * n:3000 + 9 * n + n % 9] for n in range(300)},
            **{str(dtype): fake.put(random_bits(rng, dtype, 77)) for dtype in TORCH_DTYPES}}

    def contents(self, state):
        return {name: bits(data_of(value)) for name, value in state.items()}

    def saved(self, folder=None):
        """The contents of the newest checkpoint, in the memory of the host."""
        found = tessera_ckpt.load(folder or self.folder, framework="torch")
        return {name: bits(value) for name, value in found.items()}

    def assert_same(self, one, other):
        self.assertEqual(one.keys(), other.keys())
        self.assertEqual([name for name in one if one[name] != other[name]], [])

    def test_a_state_is_saved(self):
        for has_streams in (True, False):
            with self.subTest(has_streams), FakeDevice(has_streams=has_streams) as fake:
                state = self.state(fake, 3)
                tessera_ckpt.save(self.folder, int(has_streams), state)
                if has_streams:
                    self.assert_bounded(fake.log, "to host")
                self.assert_same(self.saved(), self.contents(state))
                self.assertEqual(tessera_ckpt.open(self.folder).tensors["tied"].alias_of,
                                 "expanded")
                self.assertTrue(tessera_ckpt.verify(self.folder, digests=True))

    def assert_bounded(self, log, direction):
        """All elements cross once, in one direction, few of them at a time."""
        crossing = [each for each in log if each.startswith("to ")]
        sizes = [int(each[len(direction):]) for each in crossing]
        self.assertEqual({each[:len(direction)] for each in crossing}, {direction})
        self.assertLessEqual(max(sizes), 16 << 20)
        self.assertTrue(24 << 20 < sum(sizes) < 25 << 20, sum(sizes))
        self.assertLess(len(crossing), 60)

    def test_a_range_of_a_flattened_tensor(self):
        fake = self.fake()
        for shape, begin, end in (((5, 4, 3), 7, 50), ((5, 4, 3), 13, 14), ((5, 4, 3), 0, 60),
                                  ((59,), 3, 40), ((1, 7), 2, 5), ((2, 1, 9), 4, 13)):
            boxes = list(_state._boxes_of_range(shape, begin, end))
            whole = torch.arange(math.prod(shape)).view(shape)
            parts = [whole[tuple(slice(o, o + n) for o, n in zip(offset, box))].reshape(-1)
                     for offset, box in boxes]
            self.assertEqual(torch.cat(parts).tolist(), list(range(begin, end)))
            self.assertLess(len(boxes), 2 * len(shape))
        self.assertEqual(list(_state._boxes_of_range((), 0, 1)), [((), ())])

        def part(rank, number):
            begin, end = (0, 23, 41, 60)[rank:rank + 2]
            elements = torch.arange(begin, end) if number is None else torch.zeros(end - begin)
            return {"w": FlatShard(fake.put(elements.to(F32)), begin, (5, 4, 3))}

        def save(transport):
            tessera_ckpt.save(self.folder, 1, part(transport.rank, None), transport)

        self.assertEqual(run_ranks(3, save), [None] * 3)
        self.assertEqual(tessera_ckpt.open(self.folder).read("w").reshape(-1).tolist(),
                         list(range(60)))

        def load(transport):
            mine = part(transport.rank, 0)
            tessera_ckpt.load(self.folder, mine, transport)
            self.assertEqual(bits(mine["w"].data), bits(part(transport.rank, None)["w"].data))

        self.assertEqual(run_ranks(3, load), [None] * 3)

    def test_copies_come_after_what_describing_the_state_enqueues(self):
        """As the result of a collective does, for which the current stream waits then."""
        class Collective(torch.Tensor):
            def wait(self):
                fake.kernel(lambda: self.result.fill_(7))
                return self.result

        with FakeDevice() as fake:
            first, result = fake.put(torch.ones(1000)), fake.put(torch.zeros(1000))
            last = result.as_subclass(Collective)
            last.result = result
            tessera_ckpt.save(self.folder, 1, {"first": first, "last": last})
        saved = {"first": torch.zeros(1000), "last": torch.zeros(1000)}
        tessera_ckpt.load(self.folder, saved)
        self.assertEqual([float(saved[name].sum()) for name in saved], [1000, 7000])

    def test_an_asynchronous_save_waits_for_no_copy(self):
        """The program's stream does: its later work changes nothing that is saved."""
        for lazy in (False, True):
            with FakeDevice() as fake, tessera_ckpt.AsyncSaver(
                    f"{self.folder}/{lazy}", lazy_copy=lazy) as saver:
                state = self.state(fake, 5)
                expected = self.contents(state)
                fake.kernel(lambda: state["large"].fill_(7))  # of the step before
                for step in range(1, 4):
                    changed = self.state(fake, 10 + step)
                    fake.gate.clear()
                    saver.save(step, state)
                    if lazy:
                        saver.wait_copied(state["large"])
                        fake.kernel(lambda: state["large"].fill_(8))
                        if step == 2:  # the stream is faster than the library
                            fake.default.synchronize()
                        saver.wait_copied(state["small.8"])
                        saver.wait_copied(state["empty"])
                        saver.wait_copied()
                    fake.kernel(functools.partial(self.fill, state, changed))
                    if step == 1:
                        self.assertEqual(fake.default.done, 0)
                    elif step == 2:
                        fake.default.synchronize()
                    fake.gate.set()
                    self.assertEqual([outcome.result().step for outcome in saver.finish()], [step])
                    if step == 1:
                        allocated = len(fake.allocated)
                    fake.synchronize()
                    if step == 1:
                        expected["large"] = bits(torch.full((3 << 20,), 7))
                    self.assert_same(self.saved(f"{self.folder}/{lazy}"), expected)
                    expected = {**self.contents(changed),
                                "on the host": expected["on the host"]}
                self.assertEqual(len(fake.allocated), allocated)

    def fill(self, state, other):
        for name, value in state.items():
            if name != "on the host":
                target, source = data_of(value), data_of(other[name])
                if target.stride() == (0,):
                    target, source = target[:1], source[:1]
                target.copy_(source)

    def test_errors_of_a_save(self):
        fake = self.fake()
        state = self.state(fake, 3)
        for failing, message in (("copy_", "copy_ has failed on the fake"),
                                 ("allocate", "no memory on the fake")):
            fake.failing = failing
            with self.assertRaisesRegex(tessera_ckpt.UnavailableError, message):
                tessera_ckpt.save(self.folder, 1, state)
            with tessera_ckpt.AsyncSaver(self.folder) as saver:
                saver.save(1, state)
                outcome, = saver.finish()
                self.assertRegex(str(outcome.error), message)
            self.assertIsNone(tessera_ckpt.latest(self.folder))
        self.assertEqual((_device._pending, _device._allocations._tensors), ({}, []))

    def test_a_state_is_loaded(self):
        for has_streams in (True, False):
            with self.subTest(has_streams), FakeDevice(has_streams=has_streams) as fake:
                state, loaded = self.state(fake, 3), self.state(fake, 4)
                tessera_ckpt.save(self.folder, int(has_streams), state)
                del fake.log[:]
                tessera_ckpt.load(self.folder, loaded)
                if has_streams:
                    self.assert_bounded(fake.log, "to device")
                self.assert_same(self.contents(state), self.contents(loaded))
                tessera_ckpt.load(self.folder, loaded, verify_digests=True)

    def test_errors_of_a_load(self):
        fake = self.fake()
        state = self.state(fake, 3)
        tessera_ckpt.save(self.folder, 1, state)
        for failing, message in (("copy_", "copy_ has failed on the fake"),
                                 ("allocate", "no memory on the fake")):
            fake.failing = failing
            with self.assertRaisesRegex(tessera_ckpt.UnavailableError, message):
                tessera_ckpt.load(self.folder, state)
            fake.failing = None
            tessera_ckpt.load(self.folder, state)
            self.assertEqual((_device._pending, _device._allocations._tensors), ({}, []))

    def test_every_conversion_has_the_bits_of_the_host(self):
        fake, floats = self.fake(), [F32, BF16, F16, torch.float64]
        rng = random.Random(8)
        for step, saved in enumerate(floats):
            source = random_bits(rng, saved, 5000)
            source = torch.where(source.isnan(), torch.zeros_like(source), source)
            tessera_ckpt.save(self.folder, step, {"w": source, "v": source.clone()})
            for wanted in floats:
                host, device = torch.zeros(5000, dtype=wanted), fake.put(
                    torch.zeros(10000, dtype=wanted))
                tessera_ckpt.load(self.folder, {"w": host, "v": device[::2]}, allow_overflow=True)
                self.assertEqual(bits(host), bits(device[::2]), (saved, wanted))

    def test_ranks_have_small_whole_tensors_alike(self):
        fake = self.fake()

        def save(transport, number):
            counts = {f"n{i}": fake.put(torch.full((5, i), number if i == 2 else 7))
                      for i in range(4)}
            tessera_ckpt.save(self.folder, 1, counts, transport)

        errors = run_ranks(2, lambda transport: save(transport, transport.rank))
        self.assertRegex(str(errors[0]), "tensor n2: ranks 0 and 1 have different elements")
        self.assertEqual(run_ranks(2, lambda transport: save(transport, 0)), [None] * 2)

    def test_a_tensor_is_read_to_the_device(self):
        fake = self.fake()
        tessera_ckpt.save(self.folder, 1, {"w": torch.arange(12.0).view(3, 4)})
        out = fake.put(torch.zeros(4, 3)).t()
        tessera_ckpt.open(self.folder).read("w", out)
        self.assertEqual(out.tolist(), torch.arange(12.0).view(3, 4).tolist())
        self.assertFalse([each for each in fake.log if "to host" in each])


def tessera_error(code):
    return type(_library.error_of(code, ""))


if __name__ == "__main__":
    unittest.main()
