"""A device without a GPU: tensors of the host that stand for those of a device, whose operations
run late, on streams, in no other order than the program has asked for.

An operation runs when somebody waits for an event behind it, in the thread that waits; until then,
its results are garbage, and its operands may still change. With `seed`, some run before.
The addresses that the library gets are such that it cannot reach the elements.
"""

import collections
import contextlib
import random
import threading
import unittest.mock

import torch
from tessera_ckpt import _copy_stream, _host_memory, _tensors
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

# Added to the addresses of what is on the device: no processor has such addresses.
FAR = 1 << 60


def _storage(tensor):
    return tensor.untyped_storage().data_ptr()


class Stream:
    """A queue of operations. One runs after all those that were enqueued before it."""

    def __init__(self, fake, name):
        self.fake, self.name = fake, name
        self.tasks = collections.deque()
        self.enqueued = self.done = 0

    def enqueue(self, task):
        with self.fake.lock:
            self.tasks.append(task)
            self.enqueued += 1
            if self.fake.random is not None and self.fake.random.random() < 0.3:
                self.run(self.done + self.fake.random.randint(0, len(self.tasks)))

    def run(self, until):
        """Runs the first operations, until so many are done."""
        with self.fake.lock, _disable_current_modes():
            while self.done < until:
                self.tasks.popleft()()
                self.done += 1

    def wait_event(self, event):
        stream, place = event.stream, event.place
        self.fake.log.append(f"{self.name} waits for {stream.name}")
        self.enqueue(lambda: stream.run(place))

    def synchronize(self):
        self.run(self.enqueued)


class Event:
    def __init__(self):
        self.stream = None

    def record(self, stream):
        self.stream, self.place = stream, stream.enqueued

    def synchronize(self):
        if self.stream is not None:
            self.stream.fake.gate.wait()
            self.stream.run(self.place)


class _Late(TorchDispatchMode):
    """Enqueues what reads or writes elements."""

    def __init__(self, fake, stream):
        super().__init__()
        self.fake, self.stream = fake, stream

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        returns, made = function._schema.returns, None
        if not function._schema.is_mutable:
            made = function(*args, **kwargs)
            if "empty" in function._schema.name or any(
                    _storage(each) == _storage(made) for each in args
                    if isinstance(each, torch.Tensor)):
                return made  # no element was read
            made.untyped_storage().fill_(0xee)
        self.fake.begin(function, args)
        in_inference = torch.is_inference_mode_enabled()

        def task():
            with torch.inference_mode(in_inference):
                if made is None:
                    function(*args, **kwargs)
                else:
                    made.copy_(function(*args, **kwargs))

        self.stream.enqueue(task)
        return made if made is not None else args[0] if returns else None


class FakeDevice:
    """The device, and its module of torch. Use as a context, in which tensors of `storages` are on
    it."""

    type = "fake"

    def __init__(self, seed=None, has_streams=True):
        self.lock = threading.RLock()
        self.random = None if seed is None else random.Random(seed)
        self.log = []  # what was enqueued
        self.failing = None  # a text in the name of operations that fail
        self.set_by = set()  # threads
        self.allocated = []  # sizes of page-locked memory
        self.gate = threading.Event()  # while it is not set, a wait for an event does not end
        self.gate.set()
        self._page_locked = set()  # addresses
        self.storages = {}  # by address, which nothing else gets while they are here
        self.default = Stream(self, "default")
        self.copying = None
        self._selected = threading.local()
        self._has_streams = has_streams

    def __str__(self):
        return "fake"

    # What a module of torch has.

    Event = Event

    def Stream(self, device):
        assert device is self and self.copying is None
        self.copying = Stream(self, "copies")
        return self.copying

    def current_stream(self, device):
        assert device is self
        return getattr(self._selected, "stream", self.default)

    def set_device(self, device):
        assert device is self
        self.set_by.add(threading.get_ident())

    @contextlib.contextmanager
    def stream(self, stream):
        before = self.current_stream(self)
        self._selected.stream = stream
        try:
            with _Late(self, stream):
                yield
        finally:
            self._selected.stream = before

    # What tests do.

    def put(self, tensor):
        """The tensor, which now is on the device, with all that share its memory."""
        self.storages[_storage(tensor)] = tensor.untyped_storage()
        return tensor

    def begin(self, function, args):
        """An operation is to be enqueued."""
        name = function._schema.name.replace("aten::", "")
        if self.failing and self.failing in name:
            raise RuntimeError(f"{name} has failed on the fake device")
        storages = [_storage(each) for each in args if isinstance(each, torch.Tensor)]
        if name == "copy_" and not self._page_locked.isdisjoint(storages):
            name = "to host" if storages[0] in self._page_locked else "to device"
        self.log.append(f"{name} {args[0].numel()}" if storages else name)

    def kernel(self, body):
        """Enqueues work of the program on its current stream."""
        self.current_stream(self).enqueue(body)

    def synchronize(self):
        for stream in (self.default, self.copying):
            if stream is not None:
                stream.synchronize()

    def _device_of(self, tensor):
        return self if _storage(tensor) in self.storages else tensor.device

    def __enter__(self):
        torch_memory, empty_bytes = _tensors._torch_memory, _host_memory.empty_bytes

        def memory_of(tensor, name, to_fill=False):
            memory = torch_memory(tensor, name, to_fill)
            far = memory.on_device is not None and 0 not in memory.shape
            return memory._replace(address=memory.address + FAR) if far else memory

        def allocate(size):
            if self.failing == "allocate":
                raise MemoryError("no memory on the fake device")
            self.allocated.append(size)
            made = empty_bytes(size)
            made.fill_(0xee)
            self._page_locked.add(_storage(made))
            return made

        self._context = contextlib.ExitStack()
        for where, replaced in (
                (_tensors, {"device_of": self._device_of, "_torch_memory": memory_of}),
                (_copy_stream, {"module_of": lambda device: self if self._has_streams else None,
                                "_streams": {}}),
                (_host_memory, {"empty_bytes": allocate})):
            self._context.enter_context(unittest.mock.patch.multiple(where, **replaced))
        return self

    def __exit__(self, *_):
        self._context.close()
