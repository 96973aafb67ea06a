"""Which way dependencies point, proved from Bazel's own graph; what sources leave to one home.

architecture_test.py GRAPH: GRAPH is the output of `genquery --output=xml` over every target of the
repository that is neither a test nor for tests alone. Run in the source tree.
"""

import collections
import pathlib
import re
import sys
import unittest
import xml.etree.ElementTree

OURS = (
    "base", "checkpoint", "comm", "compute", "convert", "layout", "models", "operations", "python",
    "sdk", "storage", "tensor", "tests", "tokenizer", "tools", "trainer",
)

# (from, to): no path, of any length, leads from one folder to the other. A folder stands for what
# is below it, too.
_ABOVE = ("convert", "models", "operations", "python", "sdk", "tests", "tools", "trainer")
NO_PATH = (
    ("base", tuple(sorted(set(OURS) - {"base"}))),
    ("layout", tuple(sorted(set(OURS) - {"base", "layout"}))),
    ("storage", tuple(sorted(set(OURS) - {"base", "storage"}))),
    ("tensor", tuple(sorted(set(OURS) - {"base", "layout", "tensor"}))),
    ("comm", ("checkpoint", "compute", "storage") + _ABOVE),
    ("tokenizer", ("checkpoint", "comm", "compute", "storage") + _ABOVE),
    ("checkpoint", ("comm", "compute", "tensor") + _ABOVE),
    ("checkpoint/format", ("storage",)),
    ("checkpoint/plan", ("storage",)),
    ("compute", ("checkpoint", "convert", "models", "operations", "storage", "tests", "tools",
                 "trainer")),
    ("compute/kernels", ("comm", "compute/parallel")),
    ("models", ("checkpoint", "convert", "operations", "storage", "tests", "tools", "trainer")),
    ("convert", ("operations", "python", "tests", "tools", "trainer")),
    ("operations", ("python", "tests", "tools", "trainer")),
    ("python", ("tests", "tools", "trainer")),
    ("trainer", ("tests", "tools")),
)
# Folders that only their own targets may use.
ENDS = ("trainer/app", "tools", "tests", "python", "sdk")

# What the repository builds for use, apart from tests.
RULES = ("cc_binary", "cc_folder", "cc_library", "cc_proto")
# Rules for tests alone, and those that are not analysed without the CUDA toolkit.
LEFT_OUT_RULES = ("testonly = True", "target_compatible_with = CUDA_ONLY")
LEFT_OUT = "compute/kernels/cuda"  # nothing of it is analysed without the toolkit

GRAPH = pathlib.Path()


def package_of(label):
    return label[2:].split(":")[0]


def is_in(package, folder):
    return package == folder or package.startswith(folder + "/")


class Graph:
    """Rules and what they depend on, as labels."""

    def __init__(self, path):
        self.rules = set()
        self.uses = collections.defaultdict(set)
        for rule in xml.etree.ElementTree.parse(path).getroot().iter("rule"):
            name = rule.get("name")
            if not name.startswith("//") or package_of(name).split("/")[0] not in OURS:
                continue
            self.rules.add(name)
            inputs = {i.get("name") for i in rule.iter("rule-input")}
            self.uses[name] = {i for i in inputs if i.startswith("//")}

    def edges(self):
        """Between rules of ours in different packages."""
        for user in sorted(self.rules):
            for used in sorted(self.uses[user] & self.rules):
                if package_of(user) != package_of(used):
                    yield user, used

    def path(self, source, target):
        """The labels from a rule below `source` to one below `target`; none where no path leads."""
        start = [r for r in sorted(self.rules) if is_in(package_of(r), source)]
        before = {r: None for r in start}
        waiting = collections.deque(start)
        while waiting:
            label = waiting.popleft()
            if is_in(package_of(label), target):
                labels = []
                while label is not None:
                    labels.insert(0, label)
                    label = before[label]
                return labels
            for used in sorted(self.uses[label] & self.rules):
                if used not in before:
                    before[used] = label
                    waiting.append(used)
        return []


def declared_rules():
    """Labels of the rules in the BUILD files that are neither tests nor for tests alone."""
    for folder in OURS:
        for build in sorted(pathlib.Path(folder).glob("**/BUILD.bazel")):
            text = build.read_text()
            if "default_testonly = True" in text:
                continue
            for kind, body in re.findall(r"^(\w+)\(\n(.*?)^\)", text, re.MULTILINE | re.DOTALL):
                name = re.search(r'^    name = "([^"]+)",', body, re.MULTILINE)
                left_out = any(words in body for words in LEFT_OUT_RULES)
                if kind in RULES and not left_out:
                    named = name.group(1) if name else build.parent.name  # a folder's own library
                    for end in ("_proto", "_cc_proto") if kind == "cc_proto" else ("",):
                        yield f"//{build.parent.as_posix()}:{named}{end}"


def lines_of_packages():
    """The lines of ARCHITECTURE.md's "The arrows", counted from the top, by package or folder."""
    text = pathlib.Path("ARCHITECTURE.md").read_text().split("## The arrows")[1]
    lines = {}
    for number, line in enumerate(text.split("```")[1].splitlines()[1:]):
        names = line.split()
        if not line.startswith(" "):
            folder = names.pop(0)
        for name in names:
            lines[folder if name in ("*", "//checkpoint") else f"{folder}/{name}"] = number
    return lines


class ArchitectureTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.graph = Graph(GRAPH)

    def test_the_graph_is_whole(self):
        declared = {r for r in declared_rules() if not is_in(package_of(r), LEFT_OUT)}
        self.assertGreater(len(declared), 80)
        missing = sorted(declared - self.graph.rules)
        self.assertEqual(
            missing, [], "not in the graph: add them to `scope` in tests/architecture/BUILD.bazel"
        )

    def test_forbidden_paths(self):
        for source, targets in NO_PATH:
            for target in targets:
                with self.subTest(source=source, target=target):
                    self.assertEqual(self.graph.path(source, target), [])

    def test_arrows_point_down_in_the_document(self):
        lines = lines_of_packages()

        def place(label):
            parts = package_of(label).split("/")
            return next((p for p in ("/".join(parts[:2]), parts[0])
                         if p in lines and (p != "checkpoint" or len(parts) == 1)), None)

        wrong = set()
        for user, used in self.graph.edges():
            ends = place(user), place(used)
            if is_in(package_of(used), "base") or ends[0] == ends[1] is not None:
                continue
            if None in ends or lines[ends[0]] >= lines[ends[1]]:
                wrong.add(f"{user} -> {used}")
        self.assertEqual(sorted(wrong), [])

    def test_ends_are_used_by_themselves_alone(self):
        wrong = [
            (user, used)
            for user, used in self.graph.edges()
            for end in ENDS
            if is_in(package_of(used), end) and not is_in(package_of(user), end)
        ]
        self.assertEqual(wrong, [])

    def test_no_two_folders_use_each_other(self):
        edges = collections.defaultdict(list)
        for user, used in self.graph.edges():
            edges[package_of(user), package_of(used)].append(f"{user} -> {used}")
        both_ways = [
            text
            for (user, used), labels in sorted(edges.items())
            if user < used and (used, user) in edges
            for text in labels + edges[used, user]
        ]
        self.assertEqual(both_ways, [])


class PicturesTest(unittest.TestCase):
    def test_the_files_that_they_pass_through_are_there(self):
        text = pathlib.Path("ARCHITECTURE.md").read_text().split("## Where to add")[0]
        named = re.findall(r"`(\w+/[\w/.-]+\.(?:cc|h))`", text)
        self.assertGreater(len(named), 40)
        self.assertEqual([file for file in named if not pathlib.Path(file).exists()], [])


# The recipes of ARCHITECTURE.md's "Where to add", and the folders that followed them: what a recipe
# names is in each of these, is a path of the tree, or is declared in a header.
RECIPES = {
    "A model": ("models/gpt2", "models/llama3"),
    "A kernel": ("compute/kernels",),
    "A storage": ("storage/s3",),
    "A transport": ("comm/threads", "comm/mpi"),
    "A foreign format": ("convert/formats/dcp", "convert/formats/gguf"),
}


class RecipesTest(unittest.TestCase):
    def recipes(self):
        """The words in backticks of each recipe, by its name."""
        text = pathlib.Path("ARCHITECTURE.md").read_text().split("## Where to add")[1]
        recipe = r"^\*\*(.+?)\.\*\* (.*?)(?=^\*\*|^## |\Z)"
        found = re.findall(recipe, text, re.MULTILINE | re.DOTALL)
        return {name: [word for word in re.findall(r"`([^`]+)`", recipe) if word[0] != "-"]
                for name, recipe in found}

    def is_in(self, folder, word):
        """Whether the folder has files of this name, or a folder."""
        return any(any(folder.glob(f"{word.rstrip('/')}{end}")) for end in ("", ".*"))

    def test_each_has_an_example(self):
        self.assertEqual(sorted(self.recipes()), sorted(RECIPES))

    def test_what_they_name_is_there(self):
        headers = [path.read_text() for path in pathlib.Path().glob("[a-z]*/**/*.h")
                   if not path.parts[0].startswith("bazel-")]
        for name, words in self.recipes().items():
            for word in words:
                with self.subTest(recipe=name, word=word):
                    if re.fullmatch(r"[A-Z]\w+(\(\))?", word):
                        self.assertTrue(any(word.rstrip("()") in header for header in headers))
                        continue
                    parents = [pathlib.Path(folder).parent for folder in RECIPES[name]]
                    if any(self.is_in(folder, word) for folder in [pathlib.Path(), *parents]):
                        continue
                    for folder in RECIPES[name]:
                        self.assertTrue(self.is_in(pathlib.Path(folder), word),
                                        f"{folder} has no {word}")


# What has one home, and the files that may do it nevertheless: a name, a pattern, text of a
# statement that makes it harmless, those files.
HOMES = (
    # Whatever opens a file goes through base/files.h: it never waits for a pipe or a device.
    ("opens a file", r"(?<![\w.>])(::)?(open|openat|open64)\((?!\))|\bfopen\(|\b[io]?fstream\b",
     ("O_DIRECTORY", "kDirectoryFlags", "kFlags", "O_TMPFILE", '"/dev/null"'),
     ("base/files.cc", "base/program.cc", "trainer/metrics/input_stream.cc")),
    # Print() of base/program.h escapes what a terminal would obey.
    ("prints", r"\b(printf|fprintf|fputs|fputc|fwrite|puts|putchar)\(|\bstd::(cout|cerr)\b", (),
     ("base/program.cc", "tools/ckpt/program.cc", "trainer/metrics/progress.cc",
      "trainer/data/prepare_data_main.cc",  # a progress line of its own words
      "trainer/app/launch.cc")),            # a rank's log
    # StartThread() of base/threads.h reports what the system refuses, and missing memory.
    ("starts a thread", r"\bstd::(jthread\(|thread\(|thread \w+\(|async\()", (),
     ("base/threads.cc",)),
    # SecondsSince() of base/steady_time.h.
    ("counts seconds", r"duration<double>[^;]*\bnow\(\) -|ToDoubleSeconds\(SteadyNow\(\) -", (),
     ("base/steady_time.h",)),
    # RunProgram() of base/program.h sets them.
    ("sets a signal", r"\bsigaction\(|\bstd::signal\(|(?<![\w.])signal\(SIG", (),
     ("base/program.cc", "trainer/app/signals.cc")),
)


def sources_of_programs():
    """Sources of ours that are neither tests, for tests alone nor examples."""
    apart = {"testing", "simulation", "example", "tests"}
    for folder in OURS:
        for source in sorted(pathlib.Path(folder).glob("**/*")):
            if source.suffix not in (".cc", ".h", ".cu") or apart & set(source.parts):
                continue
            if source.stem.endswith(("_test", "_test_main")) or str(source) in FOR_TESTS:
                continue
            yield source


FOR_TESTS = {"tests/worlds/power/durable_files.cc", "base/testing.h", "tools/ckpt/ckpt_run.h",
             "trainer/data/test_files.h"}


def without_comments(text):
    return re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL)


class SourcesTest(unittest.TestCase):
    def found(self, text, pattern, harmless):
        statements = re.split(r"[;{}]", without_comments(text))
        return [" ".join(s.split()) for s in statements
                if re.search(pattern, s) and not any(words in s for words in harmless)]

    def test_what_has_one_home_is_done_there(self):
        wrong = [f"{source} {what}: {statement}"
                 for source in sources_of_programs()
                 for what, pattern, harmless, homes in HOMES if str(source) not in homes
                 for statement in self.found(source.read_text(), pattern, harmless)]
        self.assertEqual(wrong, [])

    def test_homes_are_needed(self):
        for what, pattern, harmless, homes in HOMES:
            for home in homes:
                text = pathlib.Path(home).read_text()
                self.assertNotEqual(self.found(text, pattern, ()), [], f"{home} no longer {what}")

    def test_no_setting_hides_a_folder_in_which_a_clone_may_be(self):
        settings = pathlib.Path(".bazelrc").read_text()
        self.assertNotIn("sandbox_tmpfs_path", settings)
        self.assertNotIn("sandbox_block_path", settings)

    def test_all_sources_are_compiled_with_warnings(self):
        """Those of examples by other build systems."""
        settings = pathlib.Path(".bazelrc").read_text()
        ours, = re.findall(r"--per_file_copt=(\S+)@-Wall,-Wextra,-Werror,", settings)
        folders = [folder for folder in pathlib.Path().iterdir() if folder.is_dir()
                   and not folder.is_symlink() and folder.name not in (".git", "examples")]
        sources = [str(source) for folder in folders for source in folder.glob("**/*.cc")]
        self.assertGreater(len(sources), 800)
        self.assertEqual([source for source in sources if not any(
            re.search(pattern, source) for pattern in ours.split(","))], [])

    def test_programs_begin_with_run_program(self):
        mains = [s for s in sources_of_programs() if re.search(r"^int main\(", s.read_text(),
                                                               re.MULTILINE)]
        self.assertGreater(len(mains), 4)
        for main in mains:
            self.assertIn("tessera::RunProgram(", main.read_text(), main)


class GraphTest(unittest.TestCase):
    """That the test would find what it looks for."""

    def test_paths(self):
        graph = Graph.__new__(Graph)
        graph.rules = {"//a/b:x", "//c:y", "//d:z"}
        graph.uses = collections.defaultdict(set)
        graph.uses["//a/b:x"] = {"//c:y"}
        graph.uses["//c:y"] = {"//d:z", "//third_party:t"}
        self.assertEqual(graph.path("a", "d"), ["//a/b:x", "//c:y", "//d:z"])
        self.assertEqual(graph.path("d", "a"), [])
        self.assertEqual(graph.path("a/bb", "d"), [])
        self.assertEqual(list(graph.edges()), [("//a/b:x", "//c:y"), ("//c:y", "//d:z")])


if __name__ == "__main__":
    GRAPH = pathlib.Path(sys.argv.pop(1))
    unittest.main()
