#!/bin/bash
# install.sh [FOLDER]: installs the libraries of third_party/packages.txt for 64-bit ARM, and a
# Python, in a new folder: /opt/tessera/arm64, which bazelw looks for, or another one for
# TESSERA_ARM64_ROOT to name. They are unpacked, and none of their programs is run. Needs root and
# debootstrap; to build with it, binutils-aarch64-linux-gnu.
set -euo pipefail

place="${1:-/opt/tessera/arm64}"
readonly place="${place%/}"
readonly folder="$place.part"
readonly list="$(dirname "$(readlink -f "$0")")/../packages.txt"
readonly libraries="$(sed -n '/^# Libraries/,/^$/p' "$list" | grep -vE '^#|openmpi-bin')"
packages="python3,python3-numpy,libc6-dev,libstdc++-12-dev"
for library in $libraries; do packages+=",$library"; done
[[ ! -e "$place" ]] || { echo "install.sh: $place exists" >&2; exit 1; }
mkdir -p "$(dirname "$place")"
debootstrap --arch=arm64 --foreign --variant=minbase --include="$packages" bookworm "$folder"
for archive in "$folder"/var/cache/apt/archives/*.deb; do
  dpkg-deb --fsys-tarfile "$archive" | tar -x --keep-directory-symlink -C "$folder"
done
# What a script of the package links.
readonly libraries_folder="$folder/usr/lib/aarch64-linux-gnu"
ln -sfn openmpi/lib/libmpi.so "$libraries_folder/libmpi.so"
ln -sfnr "$libraries_folder/openmpi/include" "$folder/usr/include/aarch64-linux-gnu/mpi"
# Links from the root folder would lead to this machine's.
find "$folder" -type l -lname '/*' -print0 | while IFS= read -r -d '' link; do
  ln -sfnr "$folder$(readlink "$link")" "$link"
done
# Bazel looks at the folder once.
mv "$folder" "$place"
