"""One archive of programs that runs on machines with a GPU and none of Debian's packages."""

load("//third_party/cuda:cuda.bzl", "CUDA_ONLY")

def train_bundle(name, programs, files, max_bytes):
    """NAME.tar.gz with the programs, the libraries that they need, and files in folders.

    Args:
      name: also that of the folder in the archive.
      programs: labels of executables.
      files: {folder in the bundle: labels}.
      max_bytes: of the archive; the build fails above it.
    """
    placed = " ".join([
        "$$(for file in $(locations %s); do echo --file=%s:$$file; done)" % (label, folder)
        for folder, labels in files.items()
        for label in labels
    ])
    native.genrule(
        name = name,
        testonly = True,
        srcs = programs + [label for labels in files.values() for label in labels],
        outs = [name + ".tar.gz"],
        cmd = "PYTHONPATH=. python3 -B $(location make_bundle.py) --output=$@ " +
              "--max_bytes=%d %s %s" %
              (max_bytes, placed, " ".join(["$(location %s)" % program for program in programs])),
        # It packs libraries of this machine, which Bazel does not know as inputs.
        tags = [
            "cuda",
            "no-cache",
        ],
        target_compatible_with = CUDA_ONLY,
        tools = [
            "make_bundle.py",
            "//tools/build_rules:portable.py",
        ],
    )
