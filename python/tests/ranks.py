"""Ranks as threads of one process."""

import queue
import threading

import tessera_ckpt
from tessera_ckpt import DeadlineExceededError


class _Hub:
    def __init__(self):
        self._lock, self._queues = threading.Lock(), {}

    def queue(self, *key):
        with self._lock:
            return self._queues.setdefault(key, queue.Queue())


class ThreadTransport(tessera_ckpt.Transport):
    """Messages between threads."""

    def __init__(self, hub, rank, size, number=0):
        self._hub, self.rank, self.size = hub, rank, size
        self._number, self._duplicates = number, 0

    def duplicate(self):
        self._duplicates += 1
        return ThreadTransport(self._hub, self.rank, self.size,
                               100 * self._number + self._duplicates)

    def send(self, data, destination, tag):
        self._hub.queue(self._number, self.rank, destination, tag).put(bytes(data))
        return lambda seconds: None

    def receive(self, size, source, tag):
        messages = self._hub.queue(self._number, source, self.rank, tag)

        def wait(seconds):
            try:
                return messages.get(timeout=max(seconds, 0))
            except queue.Empty:
                raise DeadlineExceededError(f"missing ranks: {source}") from None
        return wait


def run_ranks(size, body):
    """Calls body(transport) on as many threads. Returns what they returned, or raised, by rank."""
    hub, results = _Hub(), [None] * size

    def run(rank):
        try:
            results[rank] = body(ThreadTransport(hub, rank, size))
        except Exception as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results
