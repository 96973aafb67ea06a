#!/bin/sh
# Compares ids with those of the original programs: tokenizer_check.py. TESSERA_TOKENIZERS adds
# paths of tokenizers, separated by spaces, to the arguments.
python="${TESSERA_PYTHON:-python3}"
if ! "$python" -c "import sentencepiece, tiktoken, tokenizers"; then
  echo "$python has no tokenizers, tiktoken or sentencepiece: TESSERA_PYTHON names another" >&2
  exit 1
fi
# shellcheck disable=SC2086
exec "$python" tests/interop/tokenizer_check.py "$@" $TESSERA_TOKENIZERS
