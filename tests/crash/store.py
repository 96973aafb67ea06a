"""Where a run saves: a folder, or an object store that keeps a copy of every object in a folder."""

import ctypes
import os
import signal
import subprocess

import processes

FAULT_PERIOD = 40  # requests


class Folder:
    """A folder of the file system."""

    loses_power = False

    def __init__(self, path):
        self.path = path  # to look at

    def name(self, path=""):
        """What programs call the folder, or something in it."""
        return path or self.path

    def flags(self):
        return []

    def hint(self):
        """How to look at it after close()."""
        return ""

    def close(self):
        pass


class ObjectStore(Folder):
    """An S3 server that refuses, tears and loses some of its answers."""

    def __init__(self, program, folder):
        self.root = os.path.join(folder, "store")
        super().__init__(os.path.join(self.root, "killed"))
        os.makedirs(self.root)
        command = [program, f"--mirror={self.root}", f"--fault_period={FAULT_PERIOD}"]
        self.server = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            preexec_fn=lambda: ctypes.CDLL(None).prctl(processes.PR_SET_PDEATHSIG, signal.SIGKILL))
        processes.NOT_OF_A_JOB.add(self.server.pid)
        self.endpoint = self.server.stdout.readline().strip()
        os.environ.update(AWS_ACCESS_KEY_ID="TESTKEY", AWS_SECRET_ACCESS_KEY="a/secret+key",
                          AWS_ENDPOINT_URL=self.endpoint)

    def name(self, path=""):
        return f"s3://bucket/{os.path.relpath(path or self.path, self.root)}"

    def flags(self):
        return [f"--s3-endpoint={self.endpoint}"]

    def close(self):
        self.server.stdin.close()
        self.server.wait()
        self.server.stdout.close()
        processes.NOT_OF_A_JOB.discard(self.server.pid)
