"""Compares the ids of our tokenizers with those of tokenizers, tiktoken and sentencepiece.

  tokenizer_check.py ENCODE_STREAM TOKENIZER...

TOKENIZER is a folder with tokenizer.json, one with vocab.json and merges.txt, a .tiktoken file with
a well-known number of tokens, or a SentencePiece model. The text is every file below the folders in
TESSERA_TEXT, separated by colons, at most TESSERA_TEXT_MB of it; compressed files are unpacked.
The tokenizer.json that we write of each, where it can be one, must give the same ids.
"""

import array
import gzip
import os
import pathlib
import subprocess
import sys
import tempfile
import time

TEXT = os.environ.get("TESSERA_TEXT", "/usr/share/doc:/usr/share/locale:/usr/share/perl")
LIMIT = int(os.environ.get("TESSERA_TEXT_MB", "1000")) * 10**6
BATCH = 16 * 10**6
GPT2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"
CL100K = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"
    r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
)
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PATTERNS = {50256: GPT2, 50280: GPT2, 100256: CL100K, 128000: LLAMA3}


def texts():
    total = 0
    for folder in TEXT.split(":"):
        for path in sorted(pathlib.Path(folder).rglob("*")):
            if not path.is_file() or path.is_symlink():
                continue
            try:
                data = path.read_bytes()
                data = gzip.decompress(data) if path.suffix == ".gz" else data
            except (OSError, EOFError) as error:
                print(f"skipped {path}: {error}")
                continue
            total += len(data)
            yield data.decode("utf-8", errors="replace")
            if total > LIMIT:
                return


def batches():
    batch, size = [], 0
    for text in texts():
        batch.append(text)
        size += len(text)
        if size > BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def hugging_face(tokenizer):
    tokenizer.encode_special_tokens = True
    return lambda batch: [e.ids for e in tokenizer.encode_batch(batch, add_special_tokens=False)]


def judge(path):
    from tokenizers import Tokenizer, models, pre_tokenizers

    if (path / "tokenizer.json").exists():
        return hugging_face(Tokenizer.from_file(str(path / "tokenizer.json")))
    if (path / "vocab.json").exists():
        files = (str(path / "vocab.json"), str(path / "merges.txt"))
        tokenizer = Tokenizer(models.BPE.from_file(*files))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        return hugging_face(tokenizer)
    try:
        import tiktoken
        from tiktoken.load import load_tiktoken_bpe

        ranks = load_tiktoken_bpe(str(path))
        encoding = tiktoken.Encoding(
            path.name, pat_str=PATTERNS[len(ranks)], mergeable_ranks=ranks, special_tokens={}
        )
        return lambda batch: encoding.encode_ordinary_batch(batch, num_threads=os.cpu_count())
    except ValueError:
        import sentencepiece

        model = sentencepiece.SentencePieceProcessor(model_file=str(path))
        return lambda batch: model.encode(batch)


def written(program, path, folder):
    """A judge by the file that we write; None where a tokenizer cannot be written so."""
    run = subprocess.run([program, str(path), "files", folder], stderr=subprocess.PIPE, text=True)
    if run.returncode != 0:
        print(f"{path}: {run.stderr.strip()}")
        return None
    return judge(pathlib.Path(folder))


def ours(program, path, batch):
    encoded = [text.encode() for text in batch]
    with tempfile.TemporaryFile() as sent:
        for text in encoded:
            sent.write(len(text).to_bytes(4, "little") + text)
        sent.seek(0)
        run = subprocess.run(
            [program, str(path)],
            stdin=sent, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=True
        )
    words = array.array("i", run.stdout)
    result, at = [], 0
    for _ in batch:
        result.append(words[at + 1 : at + 1 + words[at]].tolist())
        at += 1 + words[at]
    assert at == len(words)
    return result, run.stderr.decode().strip()


def main():
    program, paths = sys.argv[1], [pathlib.Path(p) for p in sys.argv[2:]]
    judges = {path: [judge(path)] for path in paths}
    for path in paths:
        with tempfile.TemporaryDirectory() as folder:
            judges[path] += filter(None, [written(program, path, folder)])
    ids = {path: 0 for path in paths}
    size, seconds, rate = 0, {path: 0.0 for path in paths}, {}
    for batch in batches():
        # U+2581 is a space for SentencePiece, but not for our tokenizers.
        batch = [text.replace("\u2581", "_") for text in batch]
        size += sum(len(text.encode()) for text in batch)
        for path in paths:
            begin = time.monotonic()
            expected = judges[path][0](batch)
            seconds[path] += time.monotonic() - begin
            for other in judges[path][1:]:
                assert other(batch) == expected, f"{path}: the tokenizer.json that we write"
            found, rate[path] = ours(program, path, batch)
            for text, a, b in zip(batch, expected, found):
                if a != b:
                    first = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), len(a))
                    sys.exit(f"{path}: {text[:60]!r}... differs at id {first}: "
                             f"{a[first:first + 5]} and ours {b[first:first + 5]}")
                ids[path] += len(a)
    if size < 10**6:
        sys.exit(f"only {size} bytes of text below {TEXT}")
    for path in paths:
        print(f"{path}: {ids[path]} ids of {size / 1e6:.0f} MB are equal; the original "
              f"{size / 1e6 / seconds[path]:.1f} MB/s, ours {rate[path]} on one thread "
              "(last batch)")


if __name__ == "__main__":
    main()
