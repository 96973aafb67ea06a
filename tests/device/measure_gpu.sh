#!/usr/bin/env bash
# Measures what docs/gpus.md tells of a GPU, in 585 seconds at most, the most valuable first.
#
# measure_gpu.sh [STEP...]
#
# Runs in the unpacked archive of //trainer/app:train_bundle, without a network. The steps are
# check, measure, train and pytorch, all of them unless some are named, and choices and save, only
# if named.
# The folder results/ gets what each of them prints, its JSON, and the GPU's clocks and power of
# every second. One file has all of it as each step ends, and every ten seconds, so that it outlives
# the script: results.tar.gz, or what $ARCHIVE names. The results of an earlier run are moved to
# results-TIME. A step that fails, or does not end in its time, is named at the end, and the next
# one runs; so is an archive that cannot be written.
set -u
archive=$(realpath -m "${ARCHIVE:-$(dirname "$0")/results.tar.gz}")
cd "$(dirname "$0")" || exit 1
case $archive in
  "$(pwd -P)"/results/*) echo "$archive is in results/, which it is to have" >&2 && exit 2 ;;
esac
[ ! -e results ] || mv results "results-$(date +%Y%m%d-%H%M%S-%N)" || exit 1
mkdir results || exit 1
export XDG_CACHE_HOME="$PWD/results/cache"
failed=""
unpacked=""

# One at a time, by a lock of this folder, which tar inherits. A file that grows meanwhile is status
# 1, and in the archive as far as it was.
pack() (
  flock 9
  tar -czf "$archive.new" results
  [ $? -le 1 ] && mv "$archive.new" "$archive" && exit
  rm -f "$archive.new"
  exit 1
) 9<.

# Runs beside the steps, and ends with what it has started, also where the script has been killed.
observe() {
  if command -v nvidia-smi; then
    nvidia-smi --format=csv --loop=1 \
      --query-gpu=timestamp,index,clocks.sm,clocks.mem,power.draw,temperature.gpu \
      >results/clocks.csv &
  fi
  while sleep 10; do
    pack
    kill -0 $$ || break
  done
  kill $(jobs -p)
}

set -m # The observer is a group of processes.
observe >/dev/null 2>&1 &
observer=$!
set +m
finish() {
  kill -- "-$observer" 2>/dev/null
  wait "$observer" 2>/dev/null
  rm -f "$archive.new"
  [ -z "$unpacked" ] || pack
}
trap finish EXIT

# step NAME SECONDS COMMAND...
step() {
  local name=$1 seconds=$2 start=$SECONDS
  shift 2
  unpacked=" archive"
  timeout --kill-after=1 "$seconds" "$@" >"results/$name.txt" 2>&1
  local status=$?
  echo "$name: exit status $status, $((SECONDS - start)) s"
  tail -n 40 "results/$name.txt"
  [ "$status" -eq 0 ] || failed="$failed $name"
  pack && unpacked=""
}

# A deadline ends before the time of its step, with what was measured.
device() {
  local name=$1 seconds=$2
  shift 2
  step "$name" "$seconds" ./check_device --deadline=$((seconds - 15)) --json="results/$name.json" \
    "$@"
}

# trains NAME SECONDS CONFIG [FLAG...]: some steps, on random text.
trains() {
  local name=$1 seconds=$2 config=$3
  shift 3
  step "$name" "$seconds" ./train --config="configs/$config.textproto" --train-iters=12 \
    --lr-warmup-iters=5 --lr-decay-style=constant --train-data-path='data/train_*.bin' \
    --valid-data-path='data/val_*.bin' --eval-interval=0 --save-interval=0 \
    "--run-dir=results/$name" "$@"
}

# GPT-2 124M without the table that was measured, and with it; then larger models, in steps of four
# micro-batches.
train() {
  local table="$XDG_CACHE_HOME/tessera/products" with=""
  mkdir -p data
  head -c 11000000 /dev/urandom | base64 >data/text.txt
  step prepare 15 ./prepare_data --input=data/text.txt --output_dir=data --tokenizer=byte \
    --format=llama3
  trains train 35 gpt2_124m_gpu
  if [ -e "$table" ]; then
    with="--product-table=$table"
    trains train_with_table 35 gpt2_124m_gpu "$with"
  else
    echo "train: no table, which the step measure makes"
  fi
  trains train_1558m 55 gpt2_1558m_gpu --global-batch-size=64 ${with:+"$with"}
  trains train_llama3_1b 55 llama3_1b_gpu --global-batch-size=32 ${with:+"$with"}
}

# 124M, and 1558M, whose compilation takes minutes, in what is left of the time.
pytorch() {
  device pytorch_124m 75 --only=pytorch_124m
  local left=$((585 - SECONDS))
  if [ "$left" -ge 120 ]; then
    device pytorch_1558m "$left" --only=pytorch_1558m
  else
    echo "pytorch_1558m: left out, $left s are left"
  fi
}

for name in ${*:-check measure train pytorch}; do
  case $name in
    check) device check 160 --pytorch=no ;;
    measure) device measure 155 --measure=configs/gpt2_124m_gpu.textproto ;;
    train) train ;;
    pytorch) pytorch ;;
    choices) device choices 240 --choices ;;
    save) device save 150 --only=save_1558m ;;
    *) echo "no step is named $name" >&2 && exit 2 ;;
  esac
done
for json in results/*.json; do
  [ -e "$json" ] && python3 gpus_table.py "$json"
done
[ -z "$failed$unpacked" ] || { echo "failed:$failed$unpacked" && exit 1; }
