#!/usr/bin/env python3
"""Builds the programs of examples/outside_bazel in a Bazel workspace of their own.

workspace_test.py SDK [--build]: with the SDK; with the sources of this repository, too, of which
--build compiles all.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]  # the test runs outside the sandbox
EXAMPLE = SOURCE / "examples/outside_bazel"
TMP = pathlib.Path(os.environ["TEST_TMPDIR"])
COLUMNS = "".join(f"{4 * row + column}\n" for row in range(8) for column in (1, 2))
QUIET = ("--noshow_progress", "--nosandbox_debug")
SDK, BUILD = None, False


def bazel(workspace, *words):
    result = subprocess.run(["bazel", f"--output_user_root={TMP}/bazel", *words], cwd=workspace,
                            check=False, capture_output=True, text=True)
    if result.returncode != 0:
        raise AssertionError(f"{words}: {result.stderr[-4000:]}")
    return result.stdout


class WorkspaceTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        # One workspace, whose Bazel starts once.
        cls.workspace = TMP / "workspace"
        shutil.copytree(EXAMPLE, cls.workspace)
        cls.text = (cls.workspace / "WORKSPACE").read_text()
        cls.addClassCleanup(bazel, cls.workspace, "shutdown")
        with tarfile.open(SDK) as archive:
            archive.extractall(TMP / "unpacked")
        cls.sdk = next((TMP / "unpacked").iterdir())

    def use(self, tessera, before=""):
        self.assertEqual(self.text.count("/path/to/tessera"), 1)
        text = before + self.text.replace("/path/to/tessera", str(tessera))
        (self.workspace / "WORKSPACE").write_text(text)

    def run_program(self, program):
        folder = TMP / self.id() / program.name
        output = subprocess.run([program, folder], check=True, capture_output=True,
                                text=True).stdout
        self.assertEqual(output.removeprefix("step-00000100\n"), COLUMNS)

    def run_programs(self):
        for name in ("columns", "columns_c"):
            self.run_program(self.workspace / "bazel-bin" / name)

    def compile_programs(self):
        """With the sources' headers and messages, and some of the sources. Linked with the SDK."""
        bazel(self.workspace, "build", *QUIET, "--output_groups=compilation_outputs", "//...",
              "@tessera//layout", "@tessera//checkpoint/save")
        paths = {**os.environ, "PKG_CONFIG_PATH": f"{self.sdk}/lib/pkgconfig"}
        for name, package in (("columns", "tessera-checkpoint"),
                              ("columns_c", "tessera-checkpoint-c")):
            program = TMP / f"{name} of the sources"
            flags = subprocess.run(["pkg-config", "--libs", package], check=True, env=paths,
                                   capture_output=True, text=True).stdout.split()
            subprocess.run(["g++", *(self.workspace / f"bazel-bin/_objs/{name}").glob("*.o"), "-o",
                            program, *flags], check=True)
            self.run_program(program)

    def actions(self, kind, *options):
        """The command lines of the actions that //... needs."""
        text = bazel(self.workspace, "aquery", *options, f'mnemonic("{kind}", deps(//...))')
        return [action for action in text.split("\n\n") if f"Mnemonic: {kind}" in action]

    def links(self):
        found = [action for action in self.actions("CppLink")
                 if re.search(r"Outputs: \[[^]]*/bin/columns(_c)?\]", action)]
        self.assertEqual(len(found), 2)
        return found

    def test_with_the_sdk(self):
        self.use(self.sdk)
        bazel(self.workspace, "build", *QUIET, "--features=layering_check", "--repo_env=CC=clang",
              "//...")
        self.run_programs()
        subprocess.run(["g++", "-std=c++20", "-Wall", "-Wextra", "-Werror", "-fsyntax-only",
                        f"-I{self.sdk}/include", EXAMPLE / "columns.cc"], check=True)

    def test_the_sdk_refuses_another_abseil(self):
        self.use(self.sdk, 'local_repository(name = "com_google_absl", path = "theirs")\n')
        with self.assertRaisesRegex(AssertionError, "the SDK is built with Debian's Abseil"):
            bazel(self.workspace, "query", "//:columns")

    def test_files_of_the_page(self):
        page = (SOURCE / "docs/library.md").read_text()
        blocks = re.findall(r"^```python (\S+)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
        self.assertEqual([name for name, _ in blocks], ["WORKSPACE", "BUILD.bazel"])
        for name, text in blocks:
            self.assertIn(text, (EXAMPLE / name).read_text())

    def test_with_the_sources(self):
        self.use(SOURCE)
        if BUILD:
            bazel(self.workspace, "build", *QUIET, "//...")
            self.run_programs()
        else:
            self.compile_programs()
        compiled = [action for action in self.actions("CppCompile")
                    if re.search(r"Target: @tessera//(?!.*proto)", action)]
        self.assertGreater(len(compiled), 20)
        for action in compiled:
            self.assertEqual(re.findall(r"-std=([\w+]+)", action)[-1], "c++20", action)
        for link in self.links():
            self.assertIn("-l:libabsl_status.a", link)
            self.assertIn("-lprotobuf", link)

    def test_with_abseil_and_protobuf_of_the_workspace(self):
        targets = re.findall(r'"//(absl/.*)",', (SOURCE / "third_party/absl/archives.bzl")
                             .read_text())
        self.assertGreater(len(targets), 10)
        for target in targets:
            package, _, name = target.partition(":")
            build = TMP / "their_absl" / package / "BUILD.bazel"
            build.parent.mkdir(parents=True, exist_ok=True)
            with build.open("a") as file:
                file.write(f'cc_library(name = "{name or build.parent.name}", linkopts = '
                           '["-ltheirs"], visibility = ["//visibility:public"])\n')
        (TMP / "their_absl/WORKSPACE").write_text("")
        protobuf = (SOURCE / "third_party/protobuf/protobuf.BUILD").read_text()
        (self.workspace / "protobuf.BUILD").write_text(protobuf.replace("-lprotobuf", "-ltheirs"))
        self.use(SOURCE, f'local_repository(name = "com_google_absl", path = "{TMP}/their_absl")\n'
                 'new_local_repository(name = "com_google_protobuf", path = "/usr", '
                 'build_file = "//:protobuf.BUILD")\n')
        for link in self.links():
            self.assertIn("-ltheirs", link)
            self.assertNotIn("-lprotobuf", link)
            self.assertNotIn("libabsl", link)


if __name__ == "__main__":
    BUILD = "--build" in sys.argv
    sys.argv = [argument for argument in sys.argv if argument != "--build"]
    SDK = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main()
