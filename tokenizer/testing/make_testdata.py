"""Writes testdata/: small vocabularies, and the ids that the original programs give to texts.

  make_testdata.py FOLDER

Needs tokenizers, tiktoken, sentencepiece and transformers. The vocabularies are trained on the
Perl manual (Debian's perl-doc).
"""

import base64
import io
import json
import pathlib
import random
import sys

import sentencepiece
import tiktoken
from tokenizers import (
    AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
)
from tokenizers.trainers import BpeTrainer
from transformers import LlamaTokenizer
from transformers.convert_slow_tokenizer import generate_merges

SEED = 20240801
VOCABULARY = 1200
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
R50K = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"
CL100K = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"
    r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
)
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")

# What tests pre-tokenisation: each is likely to meet any other in a random text.
PARTS = (
    ["'s", "'S", "'\u017f", "'t", "'LL", "'ll", "'ve", "'RE", "'d", "'m", "'x", "''", "'"]
    + [" ", "  ", "   ", "\t", "\n", "\r\n", "\r", "\n\n", " \n", "\u00a0", "\u3000", "\u2028"]
    + ["\u0085", "\x0b", "\x0c", "\x1c", "\x00", "\x7f", "\ufeff", "\u200b", "\u200d", "\u202e"]
    + ["1", "22", "4444", "\u0663", "\u216b", "\u00bd", "\u00b2", "\U0001d7d9", "\u0f33"]
    + ["a", "Word", "HTTP", "\u00e9", "e\u0301", "\u0130", "\u00df", "\ufb01", "\u01c5", "\u02b0"]
    + ["\u4e2d\u6587", "\u3053\u3093", "\ud55c\uad6d", "\u0627\u0644", "\u05d0\u05b8"]
    + ["\u0e44\u0e17\u0e22", "\u0939\u093f\u0928\u094d\u0926\u0940", "\u0395\u03bb"]
    + ["\u0420\u0443", "\u10d0", "\U00010400"]
    + ["\U0001f600", "\U0001f468\u200d\U0001f469", "\u2764\ufe0f", "\U0001f1e9\U0001f1ea", "\u20ac"]
    + ["\U0002ebf0", "\U00010d4a", "\u1c89", "\U0001ccf0", "\U000e0041", "\ue000", "\uffff"]
    + ["#", "##", "...", "!?", "_", "://", "<|endoftext|>", "<|end_of_text|>", "<|"]
    + ["\u3002", "\u2014"]
)

TEXTS = [
    "",
    "Hello, world! It's what they'll say: we've DONE IT'S 'tis.",
    "The year 2024 had 366 days, 8784 hours; pi is 3.14159265.",
    "def f(x):\n    if x:\n        return x  # done\n\n\n\nprint(f(3))\n",
    "line one\r\nline two\r\n\r\n  indented\r\n",
    "a" * 300 + " " * 300 + "b" + "\n" * 40 + " " * 7 + "\n" * 3 + "\t\t\tx",
    "ab" * 200 + "abc" * 50,
    "=" * 100 + "-" * 77 + "\n" + "*" * 33 + " trailing   ",
    "ends in spaces   ",
    "ends in lines \n \n  ",
    " \n\t ",
    "\u4e2d\u6587\u6e2c\u8a66\uff0c\u3053\u308c\u306f\u30c6\u30b9\u30c8\u3067\u3059\u3002\ud55c\uad6d\uc5b4\ub3c4.",
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440! \u0393\u03b5\u03b9\u03ac \u03c3"
    "\u03bf\u03c5 \u03ba\u03cc\u03c3\u03bc\u03b5. \u0645\u0631\u062d\u0628\u0627 \u05e9\u05dc"
    "\u05d5\u05dd",
    "emoji \U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466"
    " and flags \U0001f1e9\U0001f1ea\U0001f1eb\U0001f1f7!",
    "<|endoftext|>text<|begin_of_text|><|end_of_text|><|endoftext",
    "".join(chr(c) for c in range(1, 256)),
]

# Of vocabularies that mark spaces.
MARKED = [
    "<s>begins</s> and <unk> ends</s>",
    " <s> a</s>  b",
    "</s>",
    " one",
    "  two",
    "\u2581one \u2581 \u2581",
    "a\u2581b",
    "<0x0A><0x41>\n",
    "##  ## HTTP HTTPS...",
]


def cases():
    chooser = random.Random(SEED)
    for length in range(1, 61):
        yield "".join(chooser.choice(PARTS) for _ in range(length))


def corpus():
    paths = sorted(pathlib.Path("/usr/share/perl").glob("*/pod/*.pod"))
    return [p.read_text(errors="replace") for p in paths[:25]]


def split_by(expression):
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(expression), "isolated", invert=False),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def train(pre_tokenizer, special, ignore_merges=False):
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=VOCABULARY,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=special,
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    return tokenizer


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def save(tokenizer, folder):
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)


def hugging_face_ids(tokenizer, texts):
    tokenizer.encode_special_tokens = True
    ordinary = [tokenizer.encode(t, add_special_tokens=False).ids for t in texts]
    tokenizer.encode_special_tokens = False
    special = [tokenizer.encode(t, add_special_tokens=False).ids for t in texts]
    return {"ordinary": ordinary, "special": special}


def tiktoken_ids(encoding, texts):
    special = [encoding.encode(t, allowed_special="all") for t in texts]
    return {"ordinary": [encoding.encode_ordinary(t) for t in texts], "special": special}


def write_ids(folder, name, ids):
    write(folder / f"{name}.ids.json", json.dumps(ids, separators=(",", ":")))


def byte_alphabet():
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}


def gpt2(folder, texts):
    tokenizer = train(pre_tokenizers.ByteLevel(add_prefix_space=False), [])
    tokenizer.model.save(str(make(folder / "gpt2")))
    vocabulary = json.loads((folder / "gpt2/vocab.json").read_text())
    vocabulary["<|endoftext|>"] = len(vocabulary)
    write(folder / "gpt2/vocab.json", json.dumps(vocabulary, separators=(",", ":")))
    model = models.BPE.from_file(
        str(folder / "gpt2/vocab.json"), str(folder / "gpt2/merges.txt")
    )
    whole = Tokenizer(model)
    whole.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    whole.decoder = decoders.ByteLevel()
    whole.post_processor = processors.ByteLevel(trim_offsets=False)
    # As in GPT-2's own file, it is searched for after normalisation.
    whole.add_special_tokens([AddedToken("<|endoftext|>", normalized=True)])
    save(whole, folder / "gpt2_json")
    ids = hugging_face_ids(whole, texts)
    write_ids(folder, "gpt2", ids)
    digits(folder, texts)
    return tokenizer


def digits(folder, texts):
    """GPT-2's vocabulary with the pre-tokenizers of StarCoder and SmolLM."""
    tokenizer = Tokenizer.from_file(str(folder / "gpt2_json/tokenizer.json"))
    for name, individual in (("gpt2_digits", True), ("gpt2_numbers", False)):
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
        write_ids(folder, name, hugging_face_ids(tokenizer, texts))


def make(folder):
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def llama3(folder, texts):
    special = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>"]
    tokenizer = train(split_by(LLAMA3), [], ignore_merges=True)
    tokenizer.add_special_tokens([AddedToken(t, normalized=False) for t in special])
    begin = tokenizer.token_to_id(special[0])
    tokenizer.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(
                single=f"{special[0]} $A",
                pair=f"{special[0]} $A {special[0]}:1 $B:1",
                special_tokens=[(special[0], begin)],
            ),
        ]
    )
    save(tokenizer, folder / "llama3")
    write_ids(folder, "llama3", hugging_face_ids(tokenizer, texts))
    normalized(folder, "llama3", {"type": "NFC"}, texts)


def normalized(folder, name, normalizer, texts):
    """The ids of a vocabulary that is there, with a normalizer."""
    file = json.loads((folder / name / "tokenizer.json").read_text())
    tokenizer = Tokenizer.from_str(json.dumps(file | {"normalizer": normalizer}))
    write_ids(folder, f"{name}_normalized", hugging_face_ids(tokenizer, texts))


def added(folder, texts):
    """Tokens that are found in any text, some before others and some within others."""
    tokenizer = train(split_by(QWEN2), ["<|endoftext|>"])
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t in ("##", "...a", "\n\n\n", "  ")])
    tokenizer.add_tokens([AddedToken(t, normalized=True) for t in ("#", "...", "\u4e2d", "HTTP")])
    save(tokenizer, folder / "added")
    write_ids(folder, "added", hugging_face_ids(tokenizer, texts))
    steps = [{"type": "NFD"}, {"type": "NFKC"}]
    normalized(folder, "added", {"type": "Sequence", "normalizers": steps}, texts)


def tiktoken_file(folder, texts, trained):
    alphabet = byte_alphabet()
    merges = [m if isinstance(m, list) else m.split(" ") for m in
              json.loads(trained.to_str())["model"]["merges"]]
    tokens = [bytes([b]) for b in range(256)]
    tokens += [bytes(alphabet[c] for c in left + right) for left, right in merges]
    lines = [f"{base64.b64encode(t).decode()} {rank}\n" for rank, t in enumerate(tokens)]
    write(folder / "small.tiktoken", "".join(lines))
    for name, expression in (("r50k", R50K), ("cl100k", CL100K), ("tiktoken_llama3", LLAMA3)):
        encoding = tiktoken.Encoding(
            name,
            pat_str=expression,
            mergeable_ranks={t: rank for rank, t in enumerate(tokens)},
            special_tokens={"<|endoftext|>": len(tokens) + 3},
        )
        write_ids(folder, name, tiktoken_ids(encoding, texts))


def sentencepiece_characters():
    """Vocabulary and merges of a BPE model of SentencePiece, as transformers converts it."""
    lines = [line for text in corpus()[:12] for line in text.split("\n") if line.strip()]
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, model_type="bpe", vocab_size=700,
        byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False,
        num_threads=1, minloglevel=2
    )
    judge = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    pieces = [(judge.id_to_piece(i), judge.get_score(i)) for i in range(judge.get_piece_size())]
    vocabulary = {piece: i for i, (piece, _) in enumerate(pieces)}
    return vocabulary, generate_merges(vocabulary, dict(pieces))


def characters(folder, texts):
    """Llama-2's tokenizer.json as transformers 5 writes it, as published, and another one."""
    vocabulary, merges = sentencepiece_characters()
    LlamaTokenizer(vocab=vocabulary, merges=merges).save_pretrained(str(folder / "llama2"))
    for path in (folder / "llama2").iterdir():
        if path.name != "tokenizer.json":
            path.unlink()
    whole = json.loads((folder / "llama2/tokenizer.json").read_text())
    write(folder / "llama2/tokenizer.json", json.dumps(whole, separators=(",", ":")))
    texts = texts + MARKED

    def save_ids(name, file):
        ids = hugging_face_ids(Tokenizer.from_str(json.dumps(file)), texts)
        stages = {name: value for name, value in file.items() if name != "model"}
        write_ids(folder, name, {"texts": MARKED, "stages": stages} | ids)

    save_ids("llama2", whole)
    published = Tokenizer.from_str(json.dumps(whole))
    published.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    file = json.loads(published.to_str()) | {"pre_tokenizer": None}
    for token in file["added_tokens"]:
        token["normalized"] = token["content"] == "</s>"
    save_ids("llama2_published", file)
    published.add_tokens([AddedToken("##", normalized=False), AddedToken("HTTP", normalized=True)])
    file = json.loads(published.to_str()) | {"normalizer": {"type": "NFC"}}
    file["pre_tokenizer"] |= {"prepend_scheme": "always", "split": True}
    save_ids("llama2_split", file)


def classes(folder):
    """The code points of each class, as ranges, on which both programs agree."""
    points = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    result = {}
    for name in (r"\p{L}", r"\p{N}", r"\s"):
        split = pre_tokenizers.Split(Regex(name), "removed", invert=True)
        judge = tiktoken.Encoding(
            "x", pat_str=name, mergeable_ranks={bytes([i]): i for i in range(256)},
            special_tokens={}
        )
        found, also = set(), set()
        for i in range(0, len(points), 4096):
            text = "".join(map(chr, points[i : i + 4096]))
            found.update(ord(c) for s, _ in split.pre_tokenize_str(text) for c in s)
            also.update(map(ord, bytes(judge.encode_ordinary(text)).decode()))
        assert found == also, name
        ranges = []
        for c in sorted(found):
            if ranges and ranges[-1][1] == c - 1:
                ranges[-1][1] = c
            else:
                ranges.append([c, c])
        result[name] = ranges
    write(folder / "classes.json", json.dumps(result, separators=(",", ":")))


def main():
    folder = pathlib.Path(sys.argv[1])
    texts = TEXTS + list(cases())
    write(folder / "texts.json", json.dumps(texts))
    trained = gpt2(folder, texts)
    llama3(folder, texts)
    added(folder, texts)
    tiktoken_file(folder, texts, trained)
    characters(folder, texts)
    classes(folder)


if __name__ == "__main__":
    main()
