"""A disk that forgets what was not flushed when its power goes: an image with a file system.

  disk.py FOLDER

FUSE serves the image as a file, a loop device makes a block device of that file, and each flush of
the device arrives as an fsync of the file. The server keeps two images: what has been written, and
what is durable. It copies the first to the second at an fsync. When the power goes, the server is
killed, and of the blocks written since the last flush, any may have reached the disk.
"""

import ctypes
import errno
import os
import shutil
import signal
import stat
import struct
import subprocess
import sys
import time

import processes
import store

KINDS = {"ext4": ("e2fsprogs", ["-q", "-F"]), "xfs": ("xfsprogs", ["-q"]),
         "btrfs": ("btrfs-progs", ["-q"])}
IMAGE_BYTES = 1 << 30  # sparse
CLONE_NEWNS = 0x20000
BLOCK_BYTES = 4096  # reaches the disk as a whole or not at all
RECORD = struct.Struct("<QQ")  # of the log of unflushed writes: offset and size
MOST_WRITEBACK = 0.02  # seconds
PATIENCE = 60  # seconds until a mount is there, or gone


def why_not(kind):
    """What this machine lacks for a disk with such a file system; empty if nothing."""
    if os.geteuid() != 0:
        return "only root can mount file systems"
    for device in ("/dev/fuse", "/dev/loop-control"):
        if not os.path.exists(device):
            return f"there is no {device}"
    with open("/proc/filesystems", encoding="utf-8") as file:
        if kind not in file.read().split():
            return f"the kernel has no {kind} (/proc/filesystems); modprobe {kind} may add it"
    package, _ = KINDS[kind]
    try:
        import fusepy  # pylint: disable=import-outside-toplevel,unused-import
    except (ImportError, OSError):
        return "there is no FUSE for Python: apt-get install python3-fusepy"
    if shutil.which(f"mkfs.{kind}") is None:
        return f"there is no mkfs.{kind}: apt-get install {package}"
    return ""


def hide_mounts():
    """Moves this process to a mount namespace of its own: a sandbox that another program starts
    would otherwise hold copies of the mounts, which keep the device busy."""
    if ctypes.CDLL(None).unshare(CLONE_NEWNS) != 0:
        raise RuntimeError("there can be no mount namespace")
    command(["mount", "--make-rprivate", "/"])


class Images:
    """What was written, what is durable, and a log of the writes in between, as files."""

    def __init__(self, folder, create=False):
        flags = os.O_RDWR | (os.O_CREAT if create else 0)
        self.current, self.durable, self.log = (
            os.open(os.path.join(folder, name), flags, 0o600)
            for name in ("current", "durable", "unflushed"))

    def write(self, data, offset):
        # The log first: a server that is killed in between has changed nothing that is not in it.
        os.pwrite(self.log, RECORD.pack(offset, len(data)), os.fstat(self.log).st_size)
        return os.pwrite(self.current, data, offset)

    def unflushed(self):
        """The offsets of blocks that were written since the last flush."""
        log = os.pread(self.log, os.fstat(self.log).st_size, 0)
        return sorted({block * BLOCK_BYTES for offset, size in RECORD.iter_unpack(log)
                       for block in range(offset // BLOCK_BYTES,
                                          (offset + size - 1) // BLOCK_BYTES + 1)})

    def settle(self, reaches_disk=lambda: True):
        """Makes blocks durable that have reached the disk, and forgets what was in others."""
        for offset in self.unflushed():
            source, to = self.current, self.durable
            if not reaches_disk():
                source, to = to, source
            os.pwrite(to, os.pread(source, BLOCK_BYTES, offset), offset)
        os.ftruncate(self.log, 0)

    def close(self):
        for file in (self.current, self.durable, self.log):
            os.close(file)


class Disk(store.Folder):
    """A folder in such a file system, which is mounted at `mount`."""

    loses_power = True

    def __init__(self, kind, folder, mount, path, random):
        super().__init__(path)
        self.kind, self.folder, self.mount, self.random = kind, folder, mount, random
        self.served = os.path.join(folder, "served")
        self.server, self.device = None, None
        for directory in (folder, self.served, mount):
            os.makedirs(directory)
        images = Images(folder, create=True)
        current, durable = (os.path.join(folder, name) for name in ("current", "durable"))
        os.ftruncate(images.current, IMAGE_BYTES)
        images.close()
        command([f"mkfs.{kind}", *KINDS[kind][1], current])
        command(["cp", "--sparse=always", current, durable])
        self.power_on()

    def power_on(self):
        self.server = subprocess.Popen(
            [sys.executable, "-B", os.path.abspath(__file__), self.folder],
            preexec_fn=lambda: ctypes.CDLL(None).prctl(processes.PR_SET_PDEATHSIG, signal.SIGKILL))
        processes.NOT_OF_A_JOB.add(self.server.pid)
        image = os.path.join(self.served, "image")
        wait_until(lambda: os.path.exists(image), "the FUSE server does not start")
        self.device = command(["losetup", "--find", "--show", image]).strip()
        command(["mount", "-t", self.kind, self.device, self.mount])

    def power_off(self):
        """From now on, nothing is read or written any more. Every other time the kernel has just
        begun to write back what was not synced."""
        if self.random.random() < 0.5:
            writeback = subprocess.Popen(["sync", "--file-system", self.mount],
                                         stderr=subprocess.DEVNULL)
            time.sleep(self.random.uniform(0, MOST_WRITEBACK))
            self.server.kill()
            writeback.wait()
        self.server.kill()

    def recover(self):
        """After power_off(). Of the blocks that were written and not flushed, none, some or most
        have reached the disk."""
        self.close()
        images = Images(self.folder)
        kept = self.random.choice((0, 0.5, 0.9))
        images.settle(lambda: self.random.random() < kept)
        images.close()
        self.power_on()

    def hint(self):
        return f" (mount -o loop {self.folder}/current {self.mount})"

    def close(self):
        unmount(self.mount)
        if self.device is not None:
            command(["losetup", "--detach", self.device])
            self.device = None
        unmount(self.served)
        if self.server is not None:
            self.server.wait()
            processes.NOT_OF_A_JOB.discard(self.server.pid)
            self.server = None


def command(arguments):
    return subprocess.run(arguments, check=True, stdout=subprocess.PIPE, text=True).stdout


def unmount(path):
    """While the device is still in use, that is repeated."""
    def is_unmounted():
        # A look at the path itself fails once the power is off.
        with open("/proc/mounts", encoding="utf-8") as file:
            if all(line.split()[1] != path for line in file):
                return True
        return subprocess.run(["umount", path], check=False,
                              stderr=subprocess.DEVNULL).returncode == 0
    wait_until(is_unmounted, f"{path} cannot be unmounted")


def wait_until(condition, complaint):
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(complaint)
        time.sleep(0.01)


def serve(folder):
    import fusepy  # pylint: disable=import-outside-toplevel

    class OneFile(fusepy.Operations):

        def __init__(self):
            self.images = Images(folder)

        def getattr(self, path, fh=None):
            if path == "/":
                return {"st_mode": stat.S_IFDIR | 0o700, "st_nlink": 2}
            if path != "/image":
                raise fusepy.FuseOSError(errno.ENOENT)
            return {"st_mode": stat.S_IFREG | 0o600, "st_nlink": 1, "st_size": IMAGE_BYTES}

        def read(self, path, size, offset, fh):
            return os.pread(self.images.current, size, offset)

        def write(self, path, data, offset, fh):
            return self.images.write(data, offset)

        def fsync(self, path, datasync, fh):
            self.images.settle()

    fusepy.FUSE(OneFile(), os.path.join(folder, "served"), foreground=True, nothreads=True,
                big_writes=True)


if __name__ == "__main__":
    serve(sys.argv[1])
