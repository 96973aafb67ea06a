#!/bin/bash
# Prints the values of TESSERA_CPU that limit this processor to less than it has, one per line.
set -euo pipefail
flags=" $(grep -m 1 '^flags' /proc/cpuinfo) "
has() {
  local flag
  for flag in "$@"; do [[ "$flags" == *" $flag "* ]] || return 1; done
}
if has avx2 fma bmi2 f16c; then echo sse4; fi
if has avx512f avx512bw avx512cd avx512dq avx512vl; then echo avx2; fi
if has avx512_bf16 || has amx_bf16; then echo avx512; fi
