"""Messages between the processes of jax.distributed.

JAX sends no messages from one process to another. The key-value store of its coordinator tells each
process where the others listen, and the secret that a connection must know; messages take
connections of their own.
"""

from __future__ import annotations

import os
import queue
import socket
import struct
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from multiprocessing import AuthenticationError
from multiprocessing.connection import (Client, Connection, answer_challenge,
                                        deliver_challenge)
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

from ._library import DeadlineExceededError, UnavailableError
from ._transport import Transport

_CONNECT_SECONDS = 300
_ACCEPT_SECONDS = 1.0


class JaxTransport(Transport):
    """Messages between all processes: a thread for each of the others sends, and one receives."""

    def __init__(self, number: int) -> None:
        """Collective. `number`: how many were made before, the same on every process."""
        jax = sys.modules["jax"]
        # Nothing public has the store.
        from jax._src import distributed  # type: ignore[import-not-found,unused-ignore]
        self.rank, self.size = jax.process_index(), jax.process_count()
        self._lock, self._gone = threading.Lock(), set()  # type: Any, Set[int]
        self._connected: Set[int] = set()
        self._received: Dict[Tuple[int, int], "queue.Queue[Any]"] = {}
        state: Any = distributed.global_state
        store, prefix = state.client, f"tessera_ckpt/{number}"
        if self.rank == 0:
            store.key_value_set_bytes(f"{prefix}/secret", os.urandom(32))
        secret = store.blocking_key_value_get_bytes(f"{prefix}/secret", _CONNECT_SECONDS * 1000)
        listener = socket.create_server((_own_address(state.coordinator_address), 0),
                                        backlog=self.size)
        threading.Thread(target=self._accept, args=(listener, secret), daemon=True).start()
        store.key_value_set(f"{prefix}/{self.rank}", "{}:{}".format(*listener.getsockname()))
        self._senders: Dict[int, Tuple[Any, ThreadPoolExecutor]] = {}
        for peer in set(range(self.size)) - {self.rank}:
            address = store.blocking_key_value_get(f"{prefix}/{peer}", _CONNECT_SECONDS * 1000)
            host, _, port = address.rpartition(":")
            connection = Client((host, int(port)), authkey=secret)
            connection.send_bytes(struct.pack("<q", self.rank))
            self._senders[peer] = connection, ThreadPoolExecutor(1)

    def _accept(self, listener: socket.socket, secret: bytes) -> None:
        listener.settimeout(_ACCEPT_SECONDS)  # the others may all be there by then
        with listener:
            while len(self._connected) < self.size - 1:
                try:
                    accepted, _ = listener.accept()
                except OSError:
                    continue
                accepted.settimeout(None)
                threading.Thread(target=self._greet, args=(Connection(accepted.detach()), secret),
                                 daemon=True).start()

    def _greet(self, connection: Any, secret: bytes) -> None:
        """In a thread of its own: another program may connect, and stay silent."""
        try:
            deliver_challenge(connection, secret)
            answer_challenge(connection, secret)
            peer, = struct.unpack("<q", connection.recv_bytes(8))
        except (AuthenticationError, EOFError, OSError):
            connection.close()  # it was another program
            return
        self._connected.add(peer)
        self._read(connection, peer)

    def _read(self, connection: Any, peer: int) -> None:
        try:
            while True:
                tag, = struct.unpack("<q", connection.recv_bytes(8))
                self._queue(peer, tag).put(connection.recv_bytes())
        except (EOFError, OSError):
            with self._lock:
                self._gone.add(peer)
                for (source, _), messages in self._received.items():
                    if source == peer:
                        messages.put(None)

    def _queue(self, source: int, tag: int) -> "queue.Queue[Any]":
        with self._lock:
            if (source, tag) not in self._received:
                messages = self._received[source, tag] = queue.Queue()
                if source in self._gone:
                    messages.put(None)
            return self._received[source, tag]

    def send(self, data: bytes, destination: int, tag: int) -> Callable[[float], None]:
        connection, thread = self._senders[destination]

        def body() -> None:
            connection.send_bytes(struct.pack("<q", tag))
            connection.send_bytes(data)

        sent = thread.submit(body)

        def wait(seconds: float) -> None:
            try:
                sent.result(max(seconds, 0))
            except FutureTimeoutError:
                raise DeadlineExceededError(f"missing ranks: {destination}") from None
            except OSError as error:
                raise UnavailableError(f"rank {destination} is gone: {error}") from None

        return wait

    def receive(self, size: int, source: int, tag: int) -> Callable[[float], Any]:
        messages = self._queue(source, tag)

        def wait(seconds: float) -> Any:
            try:
                message = messages.get(timeout=max(seconds, 0))
            except queue.Empty:
                raise DeadlineExceededError(f"missing ranks: {source}") from None
            if message is None:
                messages.put(None)
                raise UnavailableError(f"rank {source} is gone")
            return message

        return wait


def _own_address(coordinator: str) -> str:
    """The address from which this process reaches the coordinator: there others reach it."""
    host, _, port = coordinator.rpartition(":")
    family, kind, protocol, _, address = socket.getaddrinfo(
        host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(address)  # sends nothing
        address_here: str = probe.getsockname()[0]
        return address_here


_made: List[JaxTransport] = []
_shared: List[JaxTransport] = []


def transport(own: bool) -> Optional[Transport]:
    """That of all processes of jax.distributed, where it is initialized and there are several.
    `own`: a new one. Collective where it is new."""
    jax: Any = sys.modules.get("jax")
    if jax is None or not jax.distributed.is_initialized() or jax.process_count() == 1:
        return None
    if not own and _shared:
        return _shared[0]
    try:
        _made.append(JaxTransport(len(_made)))
    except Exception as error:
        raise UnavailableError(f"a process of jax.distributed is missing: {error}") from error
    if not own:
        _shared.append(_made[-1])
    return _made[-1]
