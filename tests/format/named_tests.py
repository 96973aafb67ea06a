"""Names each test that tests/resume/README.md names and that does not exist.

A test is SuiteTest.Name, or SuiteTest.Begin... for one whose name begins so; .Name is of the suite
before it.
"""

import pathlib
import re

PAGE = "tests/resume/README.md"
SHORT = {"CT": "TrainCommandTest", "MT": "ManagerCommandTest"}
DEFINED = re.compile(r"^\w*TEST\w*\((\w+), (\w+)", re.MULTILINE)
NAMED = re.compile(r"(CT|MT|\w+Test)?\.([A-Z]\w+)(\.\.\.)?")


def faults():
    """Faults of the page."""
    folders = [path for path in pathlib.Path().iterdir()
               if path.is_dir() and not path.name.startswith(("bazel-", "."))]
    tests = {pair for folder in folders for path in folder.glob("**/*_test.cc")
             for pair in DEFINED.findall(path.read_text())}
    for number, line in enumerate(pathlib.Path(PAGE).read_text().splitlines(), 1):
        suite = None
        for named, name, begins in NAMED.findall(line):
            suite = SHORT.get(named, named) or suite
            if not any(suite == of and (name == test or begins and test.startswith(name))
                       for of, test in tests):
                yield f"{PAGE}:{number}: there is no test {suite}.{name}{begins}"
