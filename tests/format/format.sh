#!/bin/bash
# format.sh check | fix: the form of every source file that git knows. `check` names each fault and
# ends with status 1; `fix` mends what a program can mend, files not yet added to git included.
set -uo pipefail

readonly MAX_FILE_BYTES=1000000
readonly MAX_COLUMNS=100
readonly FIX_COMMAND="./bazelw run //tests/format:fix"

# Kept byte for byte, whatever they look like. The folders of tests/interop/NAME are what the
# program of that name wrote.
is_fixture() {
  [[ "$1" =~ (^|/)(corpus|fixtures|golden|testdata)/ || "$1" =~ ^tests/interop/[^/]+/[^/]+/ ]]
}
is_cpp() { [[ "$1" =~ \.(cc|h|cu|cuh|proto)$ ]]; }
is_wrapped() {
  ! is_fixture "$1" && [[ "$1" =~ (\.(cc|h|cu|cuh|proto|py|sh|bzl|bazel|md|textproto)|/\.ci/run)$ ]]
}
is_text() { ! is_fixture "$1" && { [[ ! -s "$1" ]] || grep -qI . "$1"; }; }

# Source files, one a line; git's own arguments choose which. Without a repository, as in an
# unpacked archive: all files.
list_files() {
  if git -c safe.directory='*' rev-parse --is-inside-work-tree >/dev/null 2>&1; then
    git -c safe.directory='*' -c core.quotePath=false ls-files "$@" | sort -u
  else
    find . -type f -not -path './bazel-*' -not -path './runs/*' -printf '%P\n' | sort
  fi
}

faults=0
fault() {
  printf '%s\n' "$1"
  faults=$((faults + 1))
}

# TESSERA_PATH_FILE_H_ in the #ifndef, the #define and after the last #endif. What is compiled once
# for each of Highway's targets has the guard that its toggle turns.
check_header_guard() {
  local file="$1" guard
  guard="TESSERA_$(tr '[:lower:]/.' '[:upper:]__' <<<"$file" | tr -c '[:alnum:]\n' _)_"
  if [[ "$file" == *-inl.h ]]; then
    grep -qx "#if defined($guard) == defined(HWY_TARGET_TOGGLE)" "$file" ||
      fault "$file: the header guard is not $guard, toggled"
    return
  fi
  local found
  found="$(grep -m 2 -E '^#(ifndef|define)' "$file"; tail -n 1 "$file")"
  [[ "$found" == "#ifndef $guard"$'\n'"#define $guard"$'\n'"#endif  // $guard" ]] ||
    fault "$file: the header guard is not $guard"
}

check_text() {
  local file="$1" line
  line="$(grep -nE -m 1 $'[ \t\r]+$' "$file" | cut -d: -f1)"
  [[ -z "$line" ]] || fault "$file:$line: trailing whitespace"
  [[ ! -s "$file" || -z "$(tail -c 1 "$file")" ]] || fault "$file: no newline at the end"
}

# A table's row cannot be wrapped in Markdown, nor can a word.
check_columns() {
  local file="$1" line
  line="$(LC_ALL=C.UTF-8 grep -nE "^.{$((MAX_COLUMNS + 1))}" "$file" |
    grep -vE '^[0-9]+:(\|.*\||[ #/*-]*[^ ]+)$' | head -n 1 | cut -d: -f1)"
  [[ -z "$line" ]] || fault "$file:$line: more than $MAX_COLUMNS columns"
}

# Packages are private; what they offer is widened target by target. The public ones: the system
# libraries, what is in base, and the interface of the checkpoint library.
check_visibility() {
  local file="$1" line
  case "$file" in
    third_party/* | checkpoint/BUILD.bazel | convert/BUILD.bazel) return ;;
  esac
  if grep -q 'default_visibility' "$file" &&
    ! grep -q 'default_visibility = \["//visibility:private"\]' "$file"; then
    fault "$file: the default visibility of a package is private"
  fi
  case "$file" in
    base/* | convert/*) return ;;
  esac
  line="$(grep -n -m 1 '//visibility:public' "$file" | cut -d: -f1)"
  [[ -z "$line" ]] || fault "$file:$line: //visibility:public; name the packages that need it"
}

# Comments that one understands only at the second reading: "null where there is none", "a text that
# is no number", "the size is that of the file", "Of the first group."; and lines of a comment that
# stand twice.
readonly ODD_COMMENTS='
    FNR == 1 { comment = ""; line = "" }
    {
      before = comment
      comment = match($0, /(^|[ \t])\/\/[\/!]? /) ? substr($0, RSTART + RLENGTH) : ""
      if (comment ~ /(^| )(is|are) (none|that of|those of)([ ,.;:)]|$)/ ||
          comment ~ /(^| )(is|are) no [a-z]/ &&
          comment !~ /[Tt]here (is|are) no |no (longer|more) / ||
          comment ~ /^Of / && before !~ /[a-z,(]$/)
        print FILENAME ":" FNR ": hard to read: " comment
      if (length(comment) > 3 && $0 == line) print FILENAME ":" FNR ": twice: " comment
      line = $0
    }'

check() {
  local -a files cpp=()
  local file size output
  mapfile -t files < <(list_files)
  for file in "${files[@]}"; do
    [[ -f "$file" && ! -L "$file" ]] || continue  # deleted, but not yet in git
    size="$(stat -c %s "$file")"
    ((size <= MAX_FILE_BYTES)) ||
      fault "$file: $size bytes; at most $MAX_FILE_BYTES belong into git"
    ! is_cpp "$file" || cpp+=("$file")
    ! is_text "$file" || check_text "$file"
    ! is_wrapped "$file" || check_columns "$file"
    case "$file" in
      *.h | *.cuh) check_header_guard "$file" ;;
      BUILD | BUILD.bazel | */BUILD | */BUILD.bazel) check_visibility "$file" ;;
    esac
  done
  if ((${#files[@]} == 0)); then fault "no source files found in $PWD"; fi
  if ((${#cpp[@]} > 0)); then
    # One short write a batch, so that lines of the two processes do not mix.
    output="$(printf '%s\0' "${cpp[@]}" |
      xargs -0 -n 16 -P 2 sh -c '
        faults="$(clang-format --dry-run -Werror --ferror-limit=1 "$@" 2>&1)" || {
          printf "%s\n" "$faults" | grep "error:" || printf "clang-format: %s\n" "$faults"
        }' clang-format)"
    [[ -z "$output" ]] || fault "$(sort <<<"$output")"
    output="$(printf '%s\0' "${cpp[@]}" | xargs -0 awk "$ODD_COMMENTS")"
    [[ -z "$output" ]] || fault "$output"
    output="$(python3 -B tests/format/local_names.py)"
    [[ -z "$output" ]] || fault "$output"
  fi
  if ((faults > 0)); then
    echo "Formatting and trailing whitespace are mended by: $FIX_COMMAND"
    return 1
  fi
  echo "${#files[@]} files, ${#cpp[@]} of them formatted by clang-format: all well"
}

fix() {
  local -a files cpp=() text=()
  local file
  mapfile -t files < <(list_files --cached --others --exclude-standard)
  for file in "${files[@]}"; do
    [[ -f "$file" && ! -L "$file" ]] || continue
    ! is_text "$file" || text+=("$file")
    ! is_cpp "$file" || cpp+=("$file")
  done
  # Only files that need it are written, so that nothing is rebuilt for nothing.
  for file in "${text[@]}"; do
    ! grep -qE $'[ \t\r]+$' "$file" || sed -i -E $'s/[ \t\r]+$//' "$file"
    [[ ! -s "$file" || -z "$(tail -c 1 "$file")" ]] || echo >>"$file"
  done
  ((${#cpp[@]} == 0)) || printf '%s\0' "${cpp[@]}" | xargs -0 -n 16 -P 2 clang-format -i
}

main() {
  # The test runs outside the sandbox, where its own path leads back to the source tree; `bazel run`
  # names the tree.
  local root="${BUILD_WORKSPACE_DIRECTORY:-}"
  [[ -n "$root" ]] || root="$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.."
  cd "$root" || exit 1
  die() { echo "$1"; exit 1; }
  [[ -e WORKSPACE ]] || die "$PWD is not the source tree: run this test outside the sandbox"
  command -v clang-format >/dev/null || die "clang-format is missing: run ./bazelw once"
  case "${1:-}" in
    check | fix) "$1" ;;
    *) echo "usage: format.sh check | fix"; exit 2 ;;
  esac
}

main "$@"
