#!/bin/bash
# old_system_check.sh WHEEL: wheel_test.py in a Debian 11 (glibc 2.31, Python 3.9), which is put
# into a new folder. TESSERA_OLD_SYSTEM names the folder of one that is there instead.
set -euo pipefail

export PATH="$PATH:/usr/sbin:/sbin"
readonly wheel="$1"
readonly packages="python3-numpy,python3-pip,python3-venv,libcurl4,libstdc++6"

((EUID == 0)) || { echo "only root can change the root folder"; exit 1; }
scratch="$(mktemp -d)"
trap 'rm -rf --one-file-system "$scratch"' EXIT
system="${TESSERA_OLD_SYSTEM:-$scratch/system}"
if [[ ! -e "$system/usr/bin/python3" ]]; then
  debootstrap --variant=minbase --include="$packages" bullseye "$system" >"$scratch/log" 2>&1 ||
    { tail -n 20 "$scratch/log"; exit 1; }
fi
mkdir -p "$system/tests"
cp -L "$wheel" python/tests/*.py "$system/tests"
# Mounted for this command and those that it starts alone.
unshare --mount --fork /bin/bash -euc 'mount -t proc proc "$1/proc"
  exec chroot "$1" /usr/bin/env -i PATH=/usr/bin:/bin HOME=/root LC_ALL=C.UTF-8 /bin/sh -euc "
    ldd --version | head -n 1
    python3 /tests/wheel_test.py /tests/$2"' - "$system" "$(basename "$wheel")"
