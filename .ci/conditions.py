"""What a test case may need that a machine, a build or a run may lack.

A case that is skipped names it in its reason, as in "(needs: mount, avx512)"; no other reason to
skip is accepted.

A condition is looked for here by itself, never taken from the test that was skipped.
"""

import ctypes
import errno
import os
import shutil
import subprocess
import tempfile

# TESSERA_CPU limits a run to less than the processor has.
LEVELS = ("sse4", "avx2", "avx512")


class Settings:
    """How a run was configured: the options that Bazel was given, those of --config included."""

    def __init__(self, options):
        self.instrumented = any("-fsanitize=" in option for option in options)
        self.level = None
        for option in options:
            if option.startswith("--test_env=TESSERA_CPU="):
                self.level = option.rpartition("=")[2]


def succeeds(*command):
    if shutil.which(command[0]) is None:
        return False
    return subprocess.run(command, check=False, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL).returncode == 0


def has_gpu(_settings):
    return any(name.removeprefix("nvidia").isdigit() for name in os.listdir("/dev")
               if name.startswith("nvidia"))


def may_mount(_settings):
    with tempfile.TemporaryDirectory() as folder:
        return succeeds("unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", folder)


def has_network_namespaces(_settings):
    return shutil.which("ip") is not None and succeeds("unshare", "--user", "--map-root-user",
                                                       "--net", "true")


def has_time_namespaces(_settings):
    return succeeds("unshare", "--user", "--map-root-user", "--time", "--fork", "--monotonic", "1",
                    "true")


def has_ipv6(_settings):
    try:
        with open("/proc/net/if_inet6", encoding="ascii") as file:
            return file.read() != ""
    except OSError:
        return False


def has_io_uring(_settings):
    """The call, with a bad address, is refused for that address alone."""
    libc = ctypes.CDLL(None, use_errno=True)
    io_uring_setup = 425
    return libc.syscall(io_uring_setup, 1, None) < 0 and ctypes.get_errno() == errno.EFAULT


def has_direct_io(_settings):
    with tempfile.TemporaryDirectory() as folder:
        try:
            os.close(os.open(os.path.join(folder, "f"), os.O_RDWR | os.O_CREAT | os.O_DIRECT))
        except OSError:
            return False
        return True


def has_shared_huge_pages(_settings):
    version = tuple(map(int, os.uname().release.split("-")[0].split(".")[:2]))
    return version >= (6, 1) and os.path.exists("/sys/kernel/mm/transparent_hugepage")


def uninstrumented(settings):
    return not settings.instrumented


def processor_flags():
    with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
        for line in file:
            if line.startswith("flags"):
                return set(line.partition(":")[2].split())
    return set()


def processor(level, *flags):
    """Has the flags, and the run may use instructions of that level; None: those of any."""
    def has(settings):
        held = settings.level in LEVELS and (
            level is None or LEVELS.index(settings.level) < LEVELS.index(level))
        return not held and processor_flags().issuperset(flags)
    return has


def has_cuda_toolkit(_settings):
    home = os.environ.get("CUDA_HOME") or "/usr/local/cuda"
    return os.access(os.path.join(home, "bin", "nvcc"), os.X_OK) or shutil.which("nvcc") is not None


def has_arm64(_settings):
    """An emulator, and a folder of third_party/arm64/install.sh."""
    root = os.environ.get("TESSERA_ARM64_ROOT", "/opt/tessera/arm64")
    return shutil.which("qemu-aarch64") is not None and os.path.exists(
        os.path.join(root, "usr/include/hwy/highway.h")) and os.path.exists(
            "/usr/bin/aarch64-linux-gnu-ld")


CONDITIONS = {
    "gpu": has_gpu,
    "chromium": lambda _settings: shutil.which("chromium") is not None,
    "cuda_toolkit": has_cuda_toolkit,
    "mount": may_mount,  # in a user namespace
    "shm": lambda _settings: os.access("/dev/shm", os.W_OK),
    "network_namespaces": has_network_namespaces,  # likewise; and the program `ip`
    "time_namespaces": has_time_namespaces,  # likewise
    "ipv6": has_ipv6,
    "io_uring": has_io_uring,
    "direct_io": has_direct_io,
    "shared_huge_pages": has_shared_huge_pages,  # MADV_COLLAPSE of memory that processes share
    "uninstrumented": uninstrumented,  # by no sanitizer
    "avx2": processor("avx2", "avx2", "fma"),
    "avx512": processor("avx512", "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"),
    "avx512_bf16": processor(None, "avx512_bf16"),
    "arm64": has_arm64,  # emulated
    "amx": processor(None, "amx_tile", "amx_bf16"),
}


def objection(needs, settings):
    """Why a case with these needs must not be skipped in such a run; empty where it rightly is."""
    if not needs:
        return "it names nothing that it needs"
    unknown = [name for name in needs if name not in CONDITIONS]
    if unknown:
        return f"no such condition: {', '.join(unknown)}"
    if all(CONDITIONS[name](settings) for name in needs):
        return "this run has all that it needs"
    return ""
