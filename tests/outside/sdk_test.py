#!/usr/bin/env python3
"""Builds the programs of examples/outside_cmake by each way that docs/library.md names.

sdk_test.py SDK
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import unittest

TMP = pathlib.Path(os.environ["TEST_TMPDIR"])
PAGE = pathlib.Path("docs/library.md").read_text()
RANKS = pathlib.Path("checkpoint/example/ranks.cc").resolve()
EXAMPLE = pathlib.Path("examples/outside_cmake").resolve()
SDK = None
COMPILERS = {"gcc": "g++", "clang": "clang++"}
MPI = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
       "TMPDIR": str(TMP), "OMPI_MCA_btl_vader_backing_directory": str(TMP)}
WARNINGS = ["-Wall", "-Wextra", "-Werror"]
# What a program may ask for, and the headers keep.
STRICT = [*WARNINGS, "-pedantic", "-Wshadow", "-Wconversion", "-Wsign-conversion"]
INSTANCES = """
template absl::StatusOr<std::vector<float>> tessera::ckpt::Checkpoint::LoadTensor(
    std::string_view, const std::optional<tessera::Box>&) const;
"""
PACKAGES = {"libabsl-dev", "libprotobuf-dev", "libpugixml-dev", "libssl-dev", "liburing-dev"}
BOTH = """
#include <dlfcn.h>

#include "checkpoint/c/tessera_checkpoint.h"
#include "checkpoint/include/checkpoint.h"

int main(int, char** argv) {
  const std::vector<float> saved = {1, 2, 3};
  tessera::ckpt::ShardedTensor tensor = {.name = "t", .global_shape = {3}};
  tensor.shards = {tessera::ckpt::Shard::Of(saved, {.global_offset = {0}, .shape = {3}})};
  const auto folder = tessera::ckpt::CheckpointFolder::Open(argv[1], {.create_root = true});
  if (!folder->Save(1, {{tensor}}).ok()) return 1;

  void* const library = dlopen(argv[2], RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
  if (library == nullptr) return 2;
  const auto open = reinterpret_cast<decltype(&tessera_checkpoint_open)>(
      dlsym(library, "tessera_checkpoint_open"));
  const auto read = reinterpret_cast<decltype(&tessera_checkpoint_read_tensor)>(
      dlsym(library, "tessera_checkpoint_read_tensor"));
  tessera_checkpoint* checkpoint = nullptr;
  std::vector<float> loaded(3);
  if (open(argv[1], nullptr, &checkpoint) != TESSERA_OK) return 3;
  if (read(checkpoint, "t", TESSERA_F32, 1, nullptr, nullptr, nullptr, loaded.data(), 3,
           nullptr) != TESSERA_OK) {
    return 4;
  }
  return loaded == saved ? 0 : 5;
}
"""


def run(*command, fails=False, **options):
    """The output of a command that succeeds, or that fails."""
    result = subprocess.run(list(map(str, command)), check=False, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options)
    if (result.returncode != 0) != fails:
        raise AssertionError(f"{command}: exit code {result.returncode}\n{result.stdout[-4000:]}")
    return result.stdout


def environment(**variables):
    return {**os.environ, **variables}


def unpack(folder):
    folder.mkdir(parents=True)
    with tarfile.open(SDK) as archive:
        archive.extractall(folder)
    return next(folder.iterdir())


class SdkTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.sdk = unpack(TMP / "a folder")
        cls.headers = [path.relative_to(cls.sdk / "include").as_posix()
                       for path in sorted((cls.sdk / "include").rglob("*.h"))]

    def setUp(self):
        # With a space in its name.
        self.program = TMP / f"a program {self.id().rpartition('.')[2]}"
        shutil.copytree(EXAMPLE, self.program)

    def check_programs(self, folder):
        """One job, continued by the other program under other shards."""
        name = folder / "checkpoints"
        self.assertEqual(run(folder / "job", name, 25, 3),
                         "begins after step 0\nends after step 25 with 25\n")
        self.assertEqual(run(folder / "job_c", name, 47, 4),
                         "begins after step 25\nends after step 47 with 47\n")
        self.assertEqual(run(folder / "job", name, 48, 1),
                         "begins after step 47\nends after step 48 with 48\n")

    def test_cmake(self):
        """By clang; the commands of the page are by gcc."""
        build = self.program / "by clang"
        run("cmake", "-S", self.program, "-B", build, f"-DCMAKE_PREFIX_PATH={self.sdk}",
            f"-DCMAKE_CXX_FLAGS={' '.join(WARNINGS)}", "-DCMAKE_CXX_STANDARD=17",
            env=environment(CC="clang", CXX="clang++"))
        run("cmake", "--build", build)
        self.check_programs(build)

    def test_make(self):
        """The command for C++ is that of the page, which is run below."""
        make = ("make", "-C", self.program, "CC=clang", "CXX=g++")
        env = environment(PKG_CONFIG_PATH=f"{self.sdk}/lib/pkgconfig")
        run(*make, "job_c", env=env)
        told = run(*make, "--dry-run", "job", env=env)
        flags = run("pkg-config", "--cflags", "--libs", "tessera-checkpoint", env=env)
        words = told.replace("\\\n", " ").partition("g++")[2].partition("\nmake")[0].split()
        self.assertEqual(sorted(words), sorted(["job.cc", "-o", "job", *flags.split()]))
        name = self.program / "checkpoints"
        self.assertEqual(run(self.program / "job_c", name, 47, 4),
                         "begins after step 0\nends after step 47 with 47\n")

    def test_commands_of_the_page(self):
        """In order, with another folder in the place of /opt."""
        opt = TMP / "opt"
        opt.mkdir()
        packed = self.program / "bazel-bin/sdk/tessera-checkpoint.tar.gz"
        packed.parent.mkdir(parents=True)
        packed.symlink_to(SDK)
        commands = re.findall(r"^```sh (\S+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
        self.assertEqual([name for name, _ in commands], ["unpack", "cmake", "pkg-config", "mpi"])
        installed = set(re.findall(r"lib\S+-dev", commands[0][1]))
        self.assertEqual(installed, PACKAGES)
        for name, text in commands:
            text = re.sub(r"apt-get (.*\\\n)*.*\n", "", text).replace("/opt", str(opt))
            if name == "mpi":
                shutil.copy(RANKS, self.program)
                text = exports + text.replace("mpirun", "mpirun --oversubscribe --bind-to none")
            exports = "".join(re.findall(r"^export .*\n", text, re.MULTILINE))
            output = run("bash", "-euc", text, cwd=self.program, env=MPI)
            if name == "mpi":
                columns = [4 * row + column for row in range(8) for column in (2, 3)]
                self.assertEqual(output.split(), list(map(str, columns)))
            elif name != "unpack":
                self.check_programs(self.program / "build" if name == "cmake" else self.program)

    def test_file_of_the_page(self):
        text = PAGE.split("```cmake CMakeLists.txt\n")[1].split("```")[0]
        self.assertIn(text, (EXAMPLE / "CMakeLists.txt").read_text())

    def test_headers(self):
        """Each one, without a warning, before a program's own headers of the same names."""
        self.assertGreater(len(self.headers), 20)
        for header in self.headers:
            decoy = self.program / header
            decoy.parent.mkdir(parents=True, exist_ok=True)
            decoy.write_text('#error "the program\'s own"\n')
        (self.program / "all.cc").write_text("".join(
            f'#include "{self.sdk}/include/{header}"\n' for header in self.headers) + INSTANCES)
        mpi = ["-DOMPI_SKIP_MPICXX", *run("mpicxx", "--showme:compile").split()]
        for cxx in COMPILERS.values():
            run(cxx, "-std=c++20", *STRICT, *mpi, f"-I{self.program}", "-fsyntax-only",
                self.program / "all.cc")
        for cc in COMPILERS:
            run(cc, "-std=c99", *STRICT, "-x", "c", "-fsyntax-only",
                self.sdk / "include/checkpoint/c/tessera_checkpoint.h")

    def test_an_older_standard_is_refused(self):
        for cxx in COMPILERS.values():
            output = run(cxx, "-std=c++17", f"-I{self.sdk}/include", "-E", self.program / "job.cc",
                         "-o", os.devnull, fails=True)
            self.assertIn("C++20: compile with -std=c++20",
                          next(line for line in output.splitlines() if "error" in line))

    def test_missing_packages_are_named(self):
        cmake = ("cmake", "-S", self.program, f"-DCMAKE_PREFIX_PATH={self.sdk}")
        output = run(*cmake, "-B", self.program / "none", "-DCMAKE_DISABLE_FIND_PACKAGE_absl=ON",
                     "-DCMAKE_FIND_ROOT_PATH=/nowhere", "-DCMAKE_FIND_ROOT_PATH_MODE_LIBRARY=ONLY",
                     fails=True)
        self.assertEqual(set(re.findall(r"lib\S+-dev", output)), PACKAGES)
        self.assertIn("apt install libabsl-dev", " ".join(output.split()))
        lists = self.program / "CMakeLists.txt"
        lists.write_text(lists.read_text().replace(" 1.0 ", " 2.0 "))
        self.assertIn("version: 1.0.0", run(*cmake, "-B", self.program / "newer", fails=True))

        empty = environment(PKG_CONFIG_LIBDIR=f"{self.sdk}/lib/pkgconfig")
        output = run("pkg-config", "--cflags", "tessera-checkpoint", env=empty, fails=True)
        self.assertIn("'absl_status', required by 'tessera-checkpoint', not found", output)
        run("pkg-config", "--libs", "tessera-checkpoint-c", env=empty)

    def test_the_c_interface_needs_no_package(self):
        lists = self.program / "CMakeLists.txt"
        text = lists.read_text().replace("1.0 REQUIRED", "REQUIRED COMPONENTS c")
        lists.write_text(re.sub(r"add_executable\(job job.cc\)\n.*\n", "", text))
        build = self.program / "build"
        run("cmake", "-S", self.program, "-B", build, f"-DCMAKE_PREFIX_PATH={self.sdk}",
            "-DCMAKE_DISABLE_FIND_PACKAGE_absl=ON")
        run("cmake", "--build", build)
        loaded = run("ldd", build / "job_c")
        other = [line.split()[0] for line in loaded.splitlines() if str(self.sdk) not in line]
        self.assertEqual({re.sub(r"\.so.*", "", pathlib.Path(name).name) for name in other},
                         {"linux-vdso", "ld-linux-x86-64", "libc", "libdl", "libgcc_s", "libm",
                          "libpthread"})

    def test_a_program_of_both_interfaces(self):
        """The C interface is loaded apart, since both have the same messages of protobuf."""
        (self.program / "both.cc").write_text(BOTH)
        flags = run("pkg-config", "--cflags", "--libs", "tessera-checkpoint",
                    env=environment(PKG_CONFIG_PATH=f"{self.sdk}/lib/pkgconfig"))
        run("bash", "-euc", f"g++ both.cc -o both {flags}", cwd=self.program)
        run(self.program / "both", self.program / "checkpoints",
            self.sdk / "lib/libtessera_checkpoint.so")

    def test_exports(self):
        header = (self.sdk / "include/checkpoint/c/tessera_checkpoint.h").read_text()
        declared = set(re.findall(r"\b(tessera_[a-z_]+)\(", header))
        lines = run("nm", "-D", "--defined-only", "--extern-only",
                    self.sdk / "lib/libtessera_checkpoint.so").splitlines()
        exported = {line.split()[-1].partition("@")[0] for line in lines}
        # `python -m tessera_ckpt` calls it.
        self.assertEqual(exported, declared | {"tessera_command"})

    def test_documents(self):
        """This library's page, and what headers name."""
        named = {"docs/library.md"}
        for header in (self.sdk / "include").rglob("*.h"):
            named |= set(re.findall(r"\b(?:docs|checkpoint)/\w+\.md", header.read_text()))
        self.assertIn("checkpoint/FORMAT.md", named)
        self.assertEqual([name for name in sorted(named) if not (self.sdk / name).is_file()], [])

    def test_no_file_names_a_folder(self):
        for path in self.sdk.rglob("*"):
            if path.suffix in (".pc", ".cmake", ".bazel", ".bzl"):
                found = re.findall(r"(?<![\w@.}:/])/(?:\w+/)+", path.read_text())
                rules = re.compile("/usr/share/bazel/")  # Debian's packages of Bazel's rules
                self.assertEqual([name for name in found if not rules.match(name)], [], path)


if __name__ == "__main__":
    SDK = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main()
