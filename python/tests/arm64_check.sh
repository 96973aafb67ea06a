#!/bin/bash
# arm64_check.sh WHEEL CHECKPOINT...: with the wheel for 64-bit ARM, verifies checkpoints that
# another machine wrote, and saves and loads one. Python is that of the folder that
# TESSERA_ARM64_ROOT names (third_party/arm64/install.sh), and runs in qemu-aarch64.
set -euo pipefail

readonly wheel="$1" root="${TESSERA_ARM64_ROOT:?names no folder of third_party/arm64/install.sh}"
shift
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT
python3 -m zipfile -e "$wheel" "$scratch/package"
readonly python="$scratch/python"
readonly libraries="$root/usr/lib/aarch64-linux-gnu"
cat >"$python" <<END
#!/bin/sh
exec qemu-aarch64 -L "$root" -E "LD_LIBRARY_PATH=$libraries/blas:$libraries/lapack" \\
  "$root/usr/bin/python3" "\$@"
END
chmod +x "$python"
export PYTHONPATH="$scratch/package" PYTHONDONTWRITEBYTECODE=1
"$python" -c 'import platform; print(platform.machine(), platform.python_version())'
for checkpoint in "$@"; do
  "$python" -m tessera_ckpt verify --digests "$checkpoint"
done
"$python" - "$scratch/runs" <<'END'
import sys
import numpy as np
import tessera_ckpt

draw = np.random.default_rng(1)
state = {"w": draw.standard_normal((257, 33)).astype("float32"), "n": draw.integers(0, 9, 5001),
         "h": draw.standard_normal(70001).astype("float16"), "step": 3}
tessera_ckpt.save(sys.argv[1], 3, state)
loaded = {"w": np.zeros((257, 33), "float32"), "n": np.zeros(5001, "int64"),
          "h": np.zeros(70001, "float16"), "step": 0}
tessera_ckpt.load(sys.argv[1], loaded)
for name, value in state.items():
    assert np.array_equal(loaded[name], value), name
assert tessera_ckpt.verify(sys.argv[1], digests=True)
END
echo "saved, loaded and verified"
