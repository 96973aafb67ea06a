"""Kernels in object files that nvcc wrote with --no-compress: their instructions and their loops.

Instructions of sm_70 and later have 16 bytes, in two words. The lowest 12 bits are the opcode.
"""

import dataclasses
import re
import struct
import subprocess

BRANCH, PRODUCT, LOAD_MATRICES = 0x947, 0x23C, 0x83B  # BRA, HMMA, LDSM
WARPGROUP_PRODUCTS = {0x9F0, 0xDF0}  # HGMMA, with its left matrix in memory or in registers
WARPGROUP_WAIT, EXPONENTIAL = 0x9C5, 0x308  # WARPGROUP.DEPBAR (or .ARRIVE), MUFU
# MOV, FSEL, FMNMX, FMUL, FADD, FFMA, F2FP and MUFU, in 9 bits; the others tell what operands are.
OF_FLOATS = {0x002, 0x008, 0x009, 0x020, 0x021, 0x023, 0x03E, 0x108}


@dataclasses.dataclass
class Kernel:
    name: str  # "AttentionForwardTiles<AttentionKind<(AttentionPass)0, 64, false, BFloat16>, ...>"
    architecture: str  # "sm_80"
    instructions: list  # the two words of each
    loop: list  # opcodes of the loop with the most products, the shortest one, along the longest
    # of its paths without a branch back; [] without products
    products: int  # of 16 x 16 by 16 x 8, in the loop


def short_names(mangled):
    """Names of kernels without namespaces and parameters, by their mangled names."""
    demangled = subprocess.run(
        ["c++filt"], input="\n".join(mangled), capture_output=True, text=True, check=True
    ).stdout.splitlines()
    names = {}
    for symbol, name in zip(mangled, demangled, strict=True):
        name = re.sub(r"\(anonymous namespace\)::|_GLOBAL__N__\w+::|\b\w+::|^void ", "", name)
        match = re.match(r"(.*?>)\(|([^(<]*)", name)
        names[symbol] = match[1] or match[2]
    return names


def branch_target(address, word, architecture):
    """Where the branch at an address goes."""
    distance = word >> 34
    distance -= (distance & 1 << 29) << 1
    if architecture >= "sm_90":
        distance = distance << 8 | word >> 16 & 0xFF
    return address + 16 + 4 * distance


def products(word):
    """How many products of 16 x 16 by 16 x 8 an instruction is, for each warp."""
    if word & 0xFFF in WARPGROUP_PRODUCTS:
        return (word >> 53 & 31) + 1
    return int(word & 0xFFF == PRODUCT)


def float_registers(word, second):
    """The registers of an instruction of floats, none of any other."""
    if word & 0x1FF not in OF_FLOATS:
        return set()
    right = {word >> 32 & 0xFF} if word >> 9 & 7 == 1 else set()  # not a constant
    return {word >> 16 & 0xFF, word >> 24 & 0xFF, second & 0xFF} | right


def running_registers(instructions):
    """For each instruction, the registers of products of warpgroups that may run beside it."""
    groups, queued = [], set()
    for word, second in instructions:
        yield queued.union(*groups)
        if word & 0xFFF in WARPGROUP_PRODUCTS:
            sums, left = word >> 16 & 0xFF, word >> 24 & 0xFF
            queued |= set(range(sums, sums + 4 * products(word)))
            queued |= set(range(left, left + 4)) if word & 0xFFF == 0xDF0 else set()
            if second >> 20 & 7 != 7:  # the last one of its group
                groups, queued = [*groups, queued], set()
        elif word & 0xFFF == WARPGROUP_WAIT and word >> 47 & 1:
            groups = groups[max(0, len(groups) - (second >> 8 & 0xFF)) :]


def is_conditional(word):
    return word >> 12 & 0xF != 7  # the predicate of the instruction; 7 is true


def longest_path(words, architecture):
    """The words along the longest path from the first to a branch back to it, over branches ahead
    alone."""
    paths = [(0, -1)] + [None] * (len(words) - 1)  # length, and the place before, of each place
    ends = []
    for i, word in enumerate(words):
        if paths[i] is None:
            continue
        following = [i + 1]
        if word & 0xFFF == BRANCH:
            target = branch_target(16 * i, word, architecture) // 16
            following = [i + 1] * is_conditional(word) + [target]
            ends += [i] * (target == 0)
        for next_place in following:
            if i < next_place < len(words):
                paths[next_place] = max(paths[next_place] or (0, -1), (paths[i][0] + 1, i))
    path, i = [], max(ends, key=lambda end: paths[end])
    while i >= 0:
        path.append(words[i])
        i = paths[i][1]
    return path[::-1]


def product_loop(words, architecture):
    """(opcodes of the loop, along its longest path; their products)"""
    counts = [0]  # of the instructions before each
    for word in words:
        counts.append(counts[-1] + products(word))
    best, most = [], 0
    for i, word in enumerate(words):
        if word & 0xFFF != BRANCH:
            continue
        first = branch_target(16 * i, word, architecture) // 16
        count = counts[i + 1] - counts[first] if 0 <= first <= i else 0
        if count > most or (count == most > 0 and i + 1 - first < len(best)):
            best, most = words[first : i + 1], count
    path = longest_path(best, architecture) if best else []
    return [word & 0xFFF for word in path], sum(products(word) for word in path)


def sections(elf):
    """(name, contents) of the sections of a 64-bit ELF file."""
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    size, count, names_index = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", elf, table + i * size) for i in range(count)]
    names = headers[names_index][4]
    for name, _, _, _, offset, length in headers:
        begin = names + name
        yield elf[begin : elf.index(b"\0", begin)].decode(), elf[offset : offset + length]


def kernels(contents):
    """The kernels of every architecture in the bytes of an object file."""
    found = []
    for match in re.finditer(rb"\x7fELF\x02\x01", contents):
        elf = contents[match.start() :]
        if struct.unpack_from("<H", elf, 18) != (190,):  # EM_CUDA
            continue
        (flags,) = struct.unpack_from("<I", elf, 48)
        number = flags >> 8 & 0xFF if elf[8] >= 8 else flags & 0xFF
        for name, code in sections(elf):
            if name.startswith(".text."):
                instructions = list(struct.iter_unpack("<QQ", code))
                architecture = f"sm_{number}"
                loop, count = product_loop([word for word, _ in instructions], architecture)
                found.append(Kernel(name[6:], architecture, instructions, loop, count))
    names = short_names(sorted({kernel.name for kernel in found}))
    for kernel in found:
        kernel.name = names[kernel.name]
    return found


def intermediate_code(contents):
    """[(kernel, its text)] of the PTX in the bytes of an object file."""
    found = []
    for match in re.finditer(rb"\.version \d+\.\d+\s+\.target [^\0]*", contents):
        for entry in match[0].decode().split(".entry ")[1:]:
            found.append((re.match(r"\w+", entry)[0], entry))
    names = short_names(sorted({name for name, _ in found}))
    return [(names[name], text) for name, text in found]
