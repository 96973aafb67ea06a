#!/usr/bin/env python3
"""Compiles, parses or runs every code block of the documents.

  documents_test.py extract FILE...                     prints the C++ blocks as one source
  documents_test.py check TRAIN CKPT PREPARE_DATA COMPARE_RUNS
  documents_test.py stand_in NAME ARGUMENT...           is NAME in a block of commands

The word after a block's fence says what is done with it:

  c++        Bazel compiles it as it stands, together with the others (:blocks).
  textproto  `train` accepts it as a config; a part gets a model and a number of steps.
  sh         bash runs it, up to the first error, in a folder with a small run and checkpoints of
             other frameworks. `ckpt` and `compare_runs` do their work; `train` checks its settings
             against the checkpoint that it would load; of the others, targets and flags are looked
             up.
  python     It parses; //python/tests:page_test runs that of docs/python*.md.
  text       Nothing: a picture, a formula, or output.

A block of FORMAT.md with a file's name after that word is compared by
//checkpoint/format:format_doc_test; one of docs/library.md is run, or compared, by
//tests/outside. Flags and links outside of blocks are looked up, too.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(__file__).resolve().parents[2]  # the test runs outside the sandbox
TOOLS = ("train", "ckpt", "prepare_data", "compare_runs")
# What a block may start besides the stand-ins.
REAL_PROGRAMS = ("grep", "ls", "sort", "uniq")
# Flags of Bazel, mpirun and launch.py that the documents name.
FLAGS_OF_OTHERS = {"config", "cxxopt", "disk-cache", "enable-recovery", "features", "hostfile",
                   "test-arg", "test-env"}
# Where flags of programs that are not built for this test are declared.
OTHER_SOURCES = ("tests/worlds/jobs", "tests/crash", "tests/device/check", "tests/peers",
                 "tests/reshard", "tests/resume", "tests/support", "trainer/tools")
# Checkpoints of other frameworks, by the names that they have in the documents.
FOREIGN = {
    "models/gpt2": "tests/interop/state_dict/gpt2",
    "models/llama-3.2-1b": "tests/interop/pytorch/llama3_tied.hf",
    "runs/hybrid/checkpoint-3": "tests/interop/paddle/testdata/mp2_pp2",
    "runs/internevo/1000": "tests/interop/internevo/llama_tp2_zo2",
    "runs/megatron": "tests/interop/megatron/gpt2_tp2_pp2",
    "runs/nanogpt": "tests/interop/state_dict/nanogpt",
    "runs/theirs": "tests/interop/deepspeed/zero2_bf16",
}


class Fault(Exception):
    pass


def blocks(path):
    """The line of the fence, the words after it, and the text of each block."""
    text = path.read_text(encoding="utf-8")
    found = list(re.finditer(r"^```([^\n]*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
    if 2 * len(found) != len(re.findall(r"^\s*(?:```|~~~)", text, re.MULTILINE)):
        raise Fault(f"{path}: a fence is indented, or opens a block that does not end")
    for match in found:
        yield text.count("\n", 0, match.start()) + 1, match[1].split(), match[2]


def extract(*names):
    for name in names:
        for line, info, text in blocks(pathlib.Path(name)):
            if info == ["c++"]:
                print(f'#line {line + 1} "{name}"\n{text}')


def run(*command, good=(0,), **options):
    result = subprocess.run([str(word) for word in command], check=False, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True, **options)
    if result.returncode not in good:
        raise Fault(f"{' '.join(map(str, command))}: exit code {result.returncode}\n"
                    f"{result.stdout[-2000:]}")
    return result.stdout


def sources(package):
    return "".join(file.read_text() for pattern in ("*.py", "*.cc", "*.sh")
                   for file in (SOURCE / package).glob(pattern))


def check_flags(words, text):
    """Whether help or a source in `text` has the flags among these words."""
    known = re.findall(r"(?:--|FLAG\([\w:<>]+, )([a-z][\w-]*)", text)
    known = {name.replace("_", "-") for name in known} | FLAGS_OF_OTHERS
    for word in words:
        name = word.partition("=")[0].removeprefix("--").replace("_", "-")
        if word.startswith("--") and name not in known:
            raise Fault(f"no such flag: {word}")


def check_links(links, document):
    """Whether the files, and the headings in them, to which a document links exist."""
    for name, heading in links:
        file = document.parent / name if name else document
        if not file.exists():
            raise Fault(f"no such file: {name}")
        headings = re.findall(r"^#+ (.*)", file.read_text(), re.MULTILINE) if heading else ()
        if heading and heading not in {re.sub(r"[^\w -]", "", text.lower()).replace(" ", "-")
                                       for text in headings}:
            raise Fault(f"no such heading: {name}#{heading}")


def package_of(label):
    package, _, name = label.removeprefix("//").partition(":")
    if package.endswith("/...") and (SOURCE / package.removesuffix("/...")).is_dir():
        return package
    build = SOURCE / package / "BUILD.bazel"
    name = name or build.parent.name
    declared = build.read_text() if build.exists() else ""
    # A name, one of a list, the first of a tuple, or a key; or the program that cc_tests() makes.
    known = (re.search(rf'^ *((name = )?"{name}"(,$|: )|\("{name}", )', declared, re.MULTILINE) or
             name == "tests" and "cc_tests(" in declared)
    if not known and package != "...":
        raise Fault(f"no such target: {label}")
    return package


class StandIn:
    """The programs that a block of commands may start."""

    def bazelw(self, verb, *words):
        end = words.index("--") if "--" in words else len(words)
        labels = [word for word in words[:end] if word.startswith("//")]
        for word in words[:end]:
            configured = f"\nbuild{word.replace('--config=', ':')} " in (
                SOURCE / ".bazelrc").read_text()
            if word not in (*labels, "-c", "opt") and not configured and "--test_" not in word:
                raise Fault(f"./bazelw {verb} {word}")
        packages = [package_of(label) for label in labels]
        if verb == "run":
            name = labels[0].rpartition(":")[2]
            if packages == ["trainer/configs"]:
                flags = [word for word in words[end + 1:] if not word.startswith("--hostfile=")]
                self.train(f"--config={SOURCE}/trainer/configs/{name}.textproto", *flags)
            elif hasattr(self, name):
                getattr(self, name)(*words[end + 1:])
            else:
                check_flags(words[end + 1:], sources(packages[0]))
        elif verb not in ("build", "test"):
            raise Fault(f"./bazelw {verb}")

    def train(self, *words):
        run(os.environ["train"], *words, "--print-launch")
        # What a later command of the block reads is there: the small run.
        for word in words:
            if word.startswith("--run-dir=") and not os.path.exists(word[10:]):
                shutil.copytree("runs/mine", word[10:])

    def ckpt(self, command, *words):
        # A difference, as between two fixtures, is the answer to a right question.
        print(run(os.environ["ckpt"], command, *words, good=(0, 1) if command == "diff" else (0,)))

    def compare_runs(self, *words):
        print(run(os.environ["compare_runs"], *words))

    def prepare_data(self, *words):
        check_flags(words, run(os.environ["prepare_data"], "--help"))

    def check_device(self, *words):
        check_flags(words, sources("tests/device/check"))

    def mpirun(self, *words):
        words = list(words)
        while words[0].startswith("-"):
            del words[:1 if "=" in words[0] else 2]
        self.train(*words[1:])

    srun = mpirun

    def python(self, _, program):
        compile(program, "python -c", "exec")

    def tar(self, *_):
        pass


def make_world(world, tools):
    """A small run, checkpoints of other frameworks, and the stand-ins."""
    run(tools["prepare_data"], f"--input={SOURCE}/docs", "--vocab_size=400",
        f"--output_dir={world}/data/tokens")
    mine = world / "runs/mine"
    run(tools["train"], "--architecture=gpt2", "--num-layers=2", "--hidden-size=16",
        "--num-attention-heads=4", "--max-position-embeddings=32", "--vocab-size=400",
        "--train-iters=500", "--threads=1", f"--train-data-path={world}/data/tokens/train_*.bin",
        f"--run-dir={mine}", f"--save={mine}/checkpoints", "--save-interval=500",
        "--non-persistent-save-interval=0")
    shutil.copy(mine / "config.textproto", world / "mine.textproto")
    for name in ("a", "b", "other"):
        shutil.copytree(mine, world / "runs" / name)
    for name, fixture in FOREIGN.items():
        shutil.copytree(SOURCE / fixture, world / name)
    run(tools["ckpt"], "convert", mine / "checkpoints", world / "runs/llmc", "--to=llmc")
    programs = world / "bin"
    programs.mkdir()
    for name in REAL_PROGRAMS:
        (programs / name).symlink_to(shutil.which(name))
    for name in (name for name in vars(StandIn) if not name.startswith("_")):
        (programs / name).write_text(f"#!/bin/sh\nexec {sys.executable} -B "
                                     f'{pathlib.Path(__file__).resolve()} stand_in {name} "$@"\n')
        (programs / name).chmod(0o755)
    # The root is the source tree, what Bazel built, and the unpacked archive for GPUs, too.
    (world / "bazel-bin/trainer").mkdir(parents=True)
    (world / "tmp").mkdir()
    places = {"bazelw": "bin/bazelw", "check_device": "bin/check_device", "train": "bin/train",
              "train_bundle": ".", "tmp/train_bundle": "..", "bazel-bin/trainer/app": "../..",
              "train_bundle.tar.gz": "mine.textproto", "trainer": SOURCE / "trainer",
              "configs": SOURCE / "trainer/configs"}
    for name, target in places.items():
        (world / name).symlink_to(target)


def check_block(document, info, text, world, tools):
    if info == ["sh"]:
        with tempfile.TemporaryDirectory() as parent:
            root = shutil.copytree(world, f"{parent}/root", symlinks=True)
            # Absolute places, and buckets, are folders here.
            text = re.sub(r"(?<![\w.*}])/(data|models|path|runs|tmp)\b", rf"{root}/\1", text)
            text = text.replace("s3://bucket/", f"{root}/")
            run("/bin/bash", "-O", "expand_aliases", "-euo", "pipefail", "-c", "\n" + text,
                cwd=root, env={"PATH": f"{root}/bin", "N": "4", **tools})
    elif info == ["textproto"]:
        (world / "block.textproto").write_text(text)
        rest = [] if "train_iters" in text else ["--size=gpt2-tiny", "--train-iters=1"]
        run(tools["train"], f"--config={world}/block.textproto", *rest, "--print-launch")
    elif info == ["python"]:
        compile(text, str(document), "exec")
    elif info not in (["c++"], ["text"]) and (
            len(info) != 2 or document.name not in ("FORMAT.md", "library.md")):
        raise Fault(f'a block of the kind "{" ".join(info)}"; see {__file__}')


def check(*programs):
    tools = dict(zip(TOOLS, map(os.path.realpath, programs), strict=True))
    os.chdir(SOURCE)
    commands = re.findall(r"^  ckpt ([a-z]+) [A-Z]", run(tools["ckpt"], "--help"), re.MULTILINE)
    known = "".join([*(run(tool, "--help") for tool in tools.values()),
                     *(run(tools["ckpt"], "help", command) for command in commands[:-1]),
                     *map(sources, OTHER_SOURCES)])
    checked = faults = 0
    with tempfile.TemporaryDirectory() as folder:
        world = pathlib.Path(folder)
        make_world(world, tools)
        for document in (pathlib.Path("checkpoint/FORMAT.md"), *sorted(pathlib.Path().glob("*.md")),
                         *sorted(pathlib.Path("docs").glob("*.md"))):
            prose = re.sub(r"^```.*?^```$", "", document.read_text(encoding="utf-8"),
                           flags=re.MULTILINE | re.DOTALL)
            checks = [(1, check_flags, re.findall(r"(?<![\w-])--[a-z][\w-]*", prose), known)]
            links = re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]*))?\)", prose)
            checks.append((1, check_links, links, document))
            checks += [(line, check_block, document, info, text, world, tools)
                       for line, info, text in blocks(document)]
            for line, function, *arguments in checks:
                checked += 1
                try:
                    function(*arguments)
                except (Fault, SyntaxError) as fault:
                    faults += 1
                    print(f"{document}:{line}: {fault}", flush=True)
    print(f"{checked} blocks and documents checked, {faults} faults")
    return 1 if faults or checked < 50 else 0


if __name__ == "__main__":
    if sys.argv[1] == "stand_in":
        try:
            getattr(StandIn(), sys.argv[2])(*sys.argv[3:])
        except Fault as stand_in_fault:
            sys.exit(str(stand_in_fault))
    else:
        sys.exit({"extract": extract, "check": check}[sys.argv[1]](*sys.argv[2:]))
