#!/bin/bash
# run.sh PROGRAM [ARGUMENT...]: runs a test of --config=arm64 on a machine of another kind. Programs
# for 64-bit ARM run in qemu-aarch64, also those that the test starts: Linux 6.7 or later registers
# the emulator in a user namespace of the test's own; for an older one, Debian's qemu-user-binfmt
# must have registered it. left_out.txt has what is skipped.
set -euo pipefail

left_out=""
while read -r label cases reason; do
  [[ "${TEST_TARGET:-}" == $label ]] || continue
  echo "SKIPPED $cases: $reason"
  [[ "$cases" != all ]] || exit 0
  left_out+=":$cases"
done <"$TEST_SRCDIR/$TEST_WORKSPACE/third_party/arm64/left_out.txt"
if [[ -n "$left_out" ]]; then
  chosen="${TESTBRIDGE_TEST_ONLY:-*}"
  [[ "$chosen" == *-* ]] || left_out="-${left_out#:}"
  export GTEST_FILTER="$chosen$left_out"
fi

readonly root="${TESSERA_ARM64_ROOT:?names no folder of third_party/arm64/install.sh}"
emulator="$(command -v qemu-aarch64)" || {
  echo "run.sh: there is no qemu-aarch64 (Debian's qemu-user)" >&2
  exit 1
}
export QEMU_LD_PREFIX="$root" QEMU_CPU="${QEMU_CPU:-max}"
# What mpirun, a program of this machine, has in memory with ranks would have other offsets there;
# and an emulated process cannot read the memory of another.
export PMIX_MCA_gds=hash OMPI_MCA_btl_vader_single_copy_mechanism=none

# The beginning of an ELF file: 64 bits, little-endian, an executable or a shared object, AArch64.
readonly magic='\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00'
readonly mask='\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff'
# The emulator looks for every path in a folder first: it gets one with libraries alone.
readonly namespace=(unshare --user --map-root-user --mount -- bash -euc '
  mount -t binfmt_misc binfmt_misc /proc/sys/fs/binfmt_misc
  printf "%s" "$1" >/proc/sys/fs/binfmt_misc/register
  first="$QEMU_LD_PREFIX/run"
  mount -t tmpfs tmpfs "$first"
  mkdir "$first/usr"
  for folder in lib usr/lib; do ln -s "$QEMU_LD_PREFIX/$folder" "$first/$folder"; done
  export QEMU_LD_PREFIX="$first"
  exec unshare --user --map-user="$2" --map-group="$3" -- "${@:4}"
' bash ":arm64:M::$magic:$mask:$emulator:P" "$UID" "$(id -g)")

# Python loads the library of the C interface: it is that machine's, too.
if [[ "${TEST_TARGET:-}" == //python/tests:* ]]; then
  readonly libraries="$root/usr/lib/aarch64-linux-gnu"
  export QEMU_SET_ENV="LD_LIBRARY_PATH=$libraries/blas:$libraries/lapack"
  set -- env "PATH=$root/usr/bin:$PATH" "$@"
fi
"${namespace[@]}" true 2>/dev/null && exec "${namespace[@]}" "$@"
[[ "$(od -An -tx1 -j18 -N2 "$1")" != " b7 00" ]] || exec "$emulator" "$@"
exec "$@"
