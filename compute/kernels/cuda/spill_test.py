"""Every kernel keeps within its budget (budgets.txt) on every architecture, and none spills
registers or uses local memory.

spill_test.py FILE...: for what was compiled at once, what ptxas -v said (.ptxas) and the object
(.o), as nvcc wrote them.
"""

import fnmatch
import pathlib
import re
import sys
import unittest

import machine_code

# Kernels with an array that is indexed by numbers that only the run knows: a part of their mangled
# names, and the bytes of stack that it takes. None is hot: they read a few partial results, or add
# the gradients of embeddings in EXACT numerics.
ALLOWED_STACK = {
    "CrossEntropyLoss": 384,
    "AddRunsILi2E": 16,
    "AddListsILb1E": 264,
    "AddPositionsBackwardBodyILb1E": 264,
}

ENTRY = re.compile(r"Compiling entry function '(\w+)' for '(sm_\d+)a?'")
PROPERTIES = re.compile(
    r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads"
)
USED = re.compile(r"Used (\d+) registers(?:.* (\d+) bytes smem)?")
ARCHITECTURES = {"sm_80", "sm_90"}
HOPPER_ONLY = re.compile(r"Attention\w+Warpgroups\b")

# Kernels that FAST numerics alone run, with functions by approximation.
APPROXIMATING = re.compile(
    r"\b(Gelu|GeluGradient|SwiGlu|SwiGluGradient|Attention\w*|CrossEntropy\w*)\b"
)
ARITHMETIC = re.compile(
    r"\b(?:add|sub|mul|mad|fma|div|rcp|sqrt|rsqrt|ex2|lg2|tanh|sin|cos)(?:\.\w+)*\.f(?:32|64)\b"
)


def entries(report):
    """(kernel, architecture, stack, stores, loads, registers, shared) of each compiled kernel."""
    kernel = None
    for line in report.splitlines():
        if match := ENTRY.search(line):
            kernel = match.groups()
        elif match := PROPERTIES.search(line):
            properties = tuple(map(int, match.groups()))
        elif (match := USED.search(line)) and kernel:
            yield (*kernel, *properties, int(match[1]), int(match[2] or 0))
            kernel = None


def budgets(text):
    """[(pattern, {what: limit})]"""
    lines = [line.split(None, 3) for line in text.splitlines() if line and line[0] != "#"]
    return [
        (
            pattern,
            {
                "registers": int(registers),
                "bytes of static shared memory": int(shared),
                "instructions for a product": float(instructions),
            },
        )
        for registers, shared, instructions, pattern in lines
    ]


def excess(table, kernel, architecture, used):
    """One sentence for each limit of its budget that a kernel exceeds."""
    limits = next(limits for pattern, limits in table if fnmatch.fnmatchcase(kernel, pattern))
    return [
        f"{kernel} on {architecture} takes {used[what]:.6g} {what}, of {limit:.6g}"
        for what, limit in limits.items()
        if used.get(what, 0) > limit
    ]


def early_uses(instructions):
    """Where registers of products of warpgroups are used by floats before these are waited for."""
    running = machine_code.running_registers(instructions)
    return [i for i, (now, words) in enumerate(zip(running, instructions))
            if now & machine_code.float_registers(*words)]


def inexact(text):
    """The instructions that do not round once, to the nearest: approximations, those that flush,
    and products and sums that ptxas may contract, as it does where they are not marked as
    rounded."""
    return sorted(
        {i for i in ARITHMETIC.findall(text) if not re.fullmatch(r"\w+\.rn\.f(32|64)", i)}
    )


class ExactTest(unittest.TestCase):
    """What EXACT numerics run computes by IEEE 754."""

    def test_every_instruction_rounds_once(self):
        kernels = [k for path in OBJECTS for k in machine_code.intermediate_code(path.read_bytes())]
        exact = [(name, text) for name, text in kernels if not APPROXIMATING.search(name)]
        self.assertEqual([(name, inexact(text)) for name, text in exact if inexact(text)], [])
        for part in ("ExactAttention", "ExactNorm", "ExactCrossEntropy", "ExactGelu",
                     "MultiplyChains", "SumRowBlocks", "SumGroups", "UpdateParts",
                     "ComputeExamples"):
            self.assertTrue(any(part in name and ".rn.f" in text for name, text in exact), part)

    def test_what_does_not_is_found(self):
        text = "fma.rn.f32 %f1; add.f32 %f2; mul.rn.ftz.f32; ex2.approx.f32; add.s32; sqrt.rn.f64"
        self.assertEqual(inexact(text), ["add.f32", "ex2.approx.f32", "mul.rn.ftz.f32"])


class SpillTest(unittest.TestCase):
    def test_no_kernel_spills(self):
        wrong = []
        for path in REPORTS:
            for kernel, architecture, stack, stores, loads, *_ in entries(path.read_text()):
                allowed = max((v for k, v in ALLOWED_STACK.items() if k in kernel), default=0)
                if stores or loads or stack > allowed:
                    wrong.append(
                        f"{kernel} on {architecture}: {stack} bytes of stack, {stores} bytes of "
                        f"spill stores, {loads} bytes of spill loads"
                    )
        self.assertEqual(wrong, [])

    def test_every_kernel_keeps_within_its_budget(self):
        table = budgets(pathlib.Path(__file__).with_name("budgets.txt").read_text())
        used = {}
        for path in REPORTS:
            found = list(entries(path.read_text()))
            names = machine_code.short_names(sorted({kernel for kernel, *_ in found}))
            for kernel, architecture, _, _, _, registers, shared in found:
                used[names[kernel], architecture] = {
                    "registers": registers,
                    "bytes of static shared memory": shared,
                }
        with_products = set()
        for path in OBJECTS:
            for kernel in machine_code.kernels(path.read_bytes()):
                if kernel.loop:
                    with_products.add((kernel.name, kernel.architecture))
                    used[kernel.name, kernel.architecture]["instructions for a product"] = (
                        len(kernel.loop) / kernel.products
                    )
        wrong = [text for key, value in used.items() for text in excess(table, *key, value)]
        self.assertEqual(wrong, [], "\n" + "\n".join(wrong))
        for pattern, limits in table:
            kept = {a for kernel, a in used if fnmatch.fnmatchcase(kernel, pattern)}
            expected = {"sm_90"} if HOPPER_ONLY.match(pattern) else ARCHITECTURES
            self.assertEqual(kept, expected, f"no kernel is named {pattern}")
            if limits["instructions for a product"] > 0:
                fits = {a for kernel, a in with_products if fnmatch.fnmatchcase(kernel, pattern)}
                self.assertEqual(fits, expected, f"{pattern}: no loop with products")
                most = max(used[key]["instructions for a product"] for key in with_products
                           if fnmatch.fnmatchcase(key[0], pattern))
                self.assertLess(limits["instructions for a product"] - most, 0.1, pattern)

    def test_no_product_of_warpgroups_waits_for_the_one_before(self):
        """ptxas makes them wait, and says so, where registers do not suffice or are used."""
        reports = {path.name: path.read_text() for path in REPORTS}
        self.assertTrue(any("for 'sm_90a'" in text for text in reports.values()))
        self.assertEqual([name for name, text in reports.items() if "serialized" in text], [])

    def test_products_of_warpgroups_are_waited_for(self):
        """Where their registers are used, but no earlier: most exponentials of d_q run beside them.
        """
        kernels = [k for path in OBJECTS for k in machine_code.kernels(path.read_bytes())
                   if HOPPER_ONLY.match(k.name)]
        self.assertEqual(len(kernels), 6)
        for kernel in kernels:
            self.assertEqual(early_uses(kernel.instructions), [], kernel.name)
            if kernel.name.startswith("AttentionBackwardQueries"):
                running = machine_code.running_registers(kernel.instructions)
                beside = [bool(now) for now, (word, _) in zip(running, kernel.instructions)
                          if word & 0xFFF == machine_code.EXPONENTIAL]
                self.assertGreater(sum(beside), 3 / 4 * len(beside), kernel.name)

    def test_every_architecture_is_there(self):
        found = {}
        for path in REPORTS:
            for kernel, architecture, *_ in entries(path.read_text()):
                found.setdefault(kernel, set()).add(architecture)
        self.assertGreaterEqual(len(found), 100)
        names = machine_code.short_names(sorted(found))
        for kernel, which in found.items():
            expected = {"sm_90"} if HOPPER_ONLY.match(names[kernel]) else ARCHITECTURES
            self.assertEqual(which, expected, kernel)


class EntriesTest(unittest.TestCase):
    """That the test would find what it looks for."""

    def test_a_spill_is_found(self):
        report = """ptxas info    : Compiling entry function '_Z1kPf' for 'sm_80'
ptxas info    : Function properties for _Z1kPf
    16 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 64 bytes smem, 400 bytes cmem[0]
"""
        self.assertEqual(list(entries(report)), [("_Z1kPf", "sm_80", 16, 8, 4, 255, 64)])

    def test_an_excess_is_found(self):
        table = budgets("# registers\n  168  0  8.5  A*<64>\n  128  16  0  *\n")
        used = {"registers": 169, "instructions for a product": 8.6}
        self.assertEqual(
            excess(table, "Ab<64>", "sm_80", used),
            [
                "Ab<64> on sm_80 takes 169 registers, of 168",
                "Ab<64> on sm_80 takes 8.6 instructions for a product, of 8.5",
            ],
        )
        self.assertEqual(excess(table, "B", "sm_80", {"registers": 128}), [])

    def test_loops_are_found(self):
        """Branches as ptxas encodes them."""
        other, product = 0x7210, 0x23C
        back = {"sm_80": (-12 & 2**30 - 1) << 34, "sm_90": (2**30 - 1) << 34 | 0xF4 << 16}
        for architecture, distance in back.items():
            words = [other, product, other, distance | 0x0947, product]
            loop = machine_code.product_loop(words, architecture)
            self.assertEqual(loop, ([word & 0xFFF for word in words[1:4]], 1))
            self.assertEqual(machine_code.product_loop(words[2:], architecture), ([], 0))
        # HGMMA of 64 x 96 x 16 from memory, and of 64 x 128 x 16 from registers.
        self.assertEqual(machine_code.products(0x01600000081879F0), 12)
        self.assertEqual(machine_code.products(0x41E0000458187DF0), 16)
        self.assertEqual(machine_code.branch_target(0x990, 0xFFFFFE3000008947, "sm_80"), 0x7D0)
        self.assertEqual(machine_code.branch_target(0xB10, 0xFFFFFFFC00888947, "sm_90"), 0x940)
        self.assertEqual(machine_code.branch_target(0x2A0, 0x00000004003C8947, "sm_90"), 0x7A0)

    def test_the_longest_of_two_paths_is_counted(self):
        other, shorter, product, always = 0x7210, 0x7212, 0x23C, 7

        def jump(instructions, predicate=0):  # from the next one on
            return (4 * instructions & 2**30 - 1) << 34 | predicate << 12 | 0x947

        words = [jump(2), other, jump(1, always), shorter, product, jump(-6)]
        path = [0x947, 0x210, 0x947, 0x23C, 0x947]
        self.assertEqual(machine_code.product_loop(words, "sm_80"), (path, 1))
        words[1:3] = [jump(1, always), other]  # nothing goes to `other`
        path = [0x947, 0x947, 0x212, 0x23C, 0x947]
        self.assertEqual(machine_code.product_loop(words, "sm_80"), (path, 1))
        words = [other, product, jump(-2), shorter, jump(-5)]  # with an inner loop
        self.assertEqual(machine_code.longest_path(words, "sm_80"), words)
        # The next iteration begins in the middle, after more or less than at the end.
        words = [jump(2), other, jump(-3, always), product, shorter, jump(-6)]
        self.assertEqual(machine_code.longest_path(words, "sm_80"), [words[0], *words[3:]])
        words = [jump(3), other, product, jump(-4, always), jump(-5)]
        self.assertEqual(machine_code.longest_path(words, "sm_80"), words[:4])

    def test_a_use_beside_a_product_is_found(self):
        product = (0x00E00000081879F0, 0x000FE60008001818)  # R24 to R55, the last one of its group
        from_registers = (0x40E0000818587DF0, 0x000FE60008001858)  # R88 to R119, and R24 to R27
        wait, wait_for_earlier = (0x00008000000079C5, 0x10000), (0x00008000000079C5, 0x10100)
        exponential = (0x0000003800387308, 0x000E240000000800)  # of R56
        scaled = (0x0000001C38177C23, 0x000FE2000800080C)  # R23 = R56 * UR28 + R12
        other = (product[0] & ~0xFF0000 | 56 << 16, product[1])
        self.assertEqual(early_uses([other, exponential, scaled, wait, exponential]), [1, 2])
        self.assertEqual(early_uses([product, exponential, scaled]), [])
        self.assertEqual(early_uses([other, product, wait_for_earlier, exponential]), [])
        self.assertEqual(early_uses([product, other, wait_for_earlier, exponential]), [3])
        queued = (other[0], other[1] | 7 << 20)  # in one group with the next
        self.assertEqual(early_uses([queued, product, wait_for_earlier, exponential]), [3])
        left = (0x0000002700187308, 0)  # R24
        self.assertEqual(early_uses([from_registers, left, wait, left]), [1])


if __name__ == "__main__":
    FILES = [pathlib.Path(name) for name in sys.argv[1:]]
    REPORTS = [path for path in FILES if path.suffix == ".ptxas"]
    OBJECTS = [path for path in FILES if path.suffix == ".o"]
    del sys.argv[1:]
    unittest.main()
