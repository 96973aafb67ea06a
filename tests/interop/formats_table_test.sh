#!/bin/bash
# Runs the commands in docs/convert.md's table "By command" on what the frameworks have written, and
# compares it with the table of what each format has.
set -eu

ckpt="$PWD/$1"
fixtures="$PWD/tests"
guide="$PWD/docs/convert.md"
work="$TEST_TMPDIR"

fail() {
  echo "FAILED: $1" >&2
  cat "$work/out" "$work/err" >&2
  exit 1
}

mkdir -p "$work/theirs" "$work/new"
cd "$work"
: > out
: > err
cp -rL "$fixtures/interop/pytorch/gpt2.hf" theirs/hf
cp -L "$fixtures/interop/pytorch/gpt2.model.bin" theirs/llmc
cp -rL "$fixtures/interop/state_dict/gpt2" theirs/torch
cp -rL "$fixtures/interop/state_dict/numbered_dcp" theirs/dcp
mkdir theirs/safetensors
cp -L "$fixtures/interop/pytorch/gpt2.hf/model.safetensors" theirs/safetensors
cp -rL "$fixtures/interop/deepspeed/zero2_bf16" theirs/deepspeed
cp -rL "$fixtures/interop/megatron/gpt2_tp2_pp2" theirs/megatron
cp -rL "$fixtures/interop/internevo/llama_tp2_zo2" theirs/internevo
cp -rL "$fixtures/interop/infinitrain/gpt2_dp2/checkpoint_step_000002" theirs/infinitrain
cp -L "$fixtures/../convert/formats/gguf/testdata/gpt2/model.gguf" theirs/gguf
cp -rL "$fixtures/interop/paddle/testdata/mp2_pp2" theirs/paddle

# The command in a cell, less its quotes; empty where there is none.
command_of() {
  echo "$1" | sed -n 's/^ *`ckpt \(.*\)` *$/\1/p'
}

# The cell's command must succeed, and the checkpoint must have that format afterwards.
check() { # command, checkpoint, format
  # shellcheck disable=SC2086  # words of a command
  "$ckpt" $1 > out 2> err || fail "ckpt $1"
  "$ckpt" inspect "$2" > out 2> err || fail "ckpt inspect $2"
  if [[ $3 == tessera ]]; then
    grep -q "written by" out || fail "$2 is not Tessera's"
  else
    grep -q "^format      $3 " out || fail "$2 is not in the format $3"
  fi
}

formats=""
while IFS='|' read -r _ name read write _; do
  read_command="$(command_of "$read")"
  write_command="$(command_of "$write")"
  [[ -n $read_command ]] || fail "no command that reads $name"
  format="${read_command##*/}"
  if [[ $format == "inspect mine" ]]; then
    format=tessera
    check "$write_command" mine tessera
    check "$read_command" mine tessera
  else
    check "$read_command" "theirs/$format" "$format"
    if [[ -n $write_command ]]; then
      check "$write_command" "new/$format" "$format"
      [[ $write_command == *"--to=$format" ]] || fail "the command that writes $name"
    elif [[ $write != " no " ]]; then
      fail "the cell \"$write\" of $name"
    fi
  fi
  written=yes
  [[ -n $write_command ]] || written=no
  formats+="$format $written"$'\n'
done < <(sed -n '/^## By command/,/^## [^B]/p' "$guide" | grep '^|.*`ckpt ')

# "hf yes" for each row: whether its cell "written" is more than "no".
documented="$(sed -n '/^| format /,/^$/p' "$guide" | grep -v '`ckpt ' | grep -E '\(`[a-z]+`\)' |
  while IFS='|' read -r _ name _ write _; do
    [[ ${write//[ |]/} == no ]] && written=no || written=yes
    echo "$(sed -E 's/^[^(]*\(`([a-z]+)`\).*$/\1/' <<< "$name") $written"
  done)"
diff <(sort <<< "${formats%$'\n'}") <(sort <<< "$documented") ||
  fail "the tables of $guide list other formats"
[[ $(grep -c . <<< "$formats") -ge 8 ]] || fail "$guide has no table of commands"
