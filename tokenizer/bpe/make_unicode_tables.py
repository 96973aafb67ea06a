"""Writes unicode_tables.cc: the classes of characters as of Unicode 16, and their normal forms as
of Unicode 9.

  make_unicode_tables.py > unicode_tables.cc

The data is that of Python's unicodedata, of Unicode 14 to 16: what a newer version of Unicode has
than the older one is stated here. The properties of characters that are assigned never change
(https://www.unicode.org/policies/stability_policy.html).
"""

import sys
import unicodedata

# Letters and numbers that came with Unicode 15 to 16.
NEWER_LETTERS = [
    (0x1C89, 0x1C8A), (0xA7CB, 0xA7CD), (0xA7DA, 0xA7DC), (0x105C0, 0x105F3), (0x10D4A, 0x10D65),
    (0x10D6F, 0x10D85), (0x10EC2, 0x10EC4), (0x1123F, 0x11240), (0x11380, 0x11389),
    (0x1138B, 0x1138B), (0x1138E, 0x1138E), (0x11390, 0x113B5), (0x113B7, 0x113B7),
    (0x113D1, 0x113D1), (0x113D3, 0x113D3), (0x11BC0, 0x11BE0), (0x11F02, 0x11F02),
    (0x11F04, 0x11F10), (0x11F12, 0x11F33), (0x1342F, 0x1342F), (0x13441, 0x13446),
    (0x13460, 0x143FA), (0x16100, 0x1611D), (0x16D40, 0x16D6C), (0x18CFF, 0x18CFF),
    (0x1B132, 0x1B132), (0x1B155, 0x1B155), (0x1DF25, 0x1DF2A), (0x1E030, 0x1E06D),
    (0x1E4D0, 0x1E4EB), (0x1E5D0, 0x1E5ED), (0x1E5F0, 0x1E5F0), (0x2B739, 0x2B739),
    (0x2EBF0, 0x2EE5D), (0x31350, 0x323AF)]
NEWER_NUMBERS = [
    (0x10D40, 0x10D49), (0x116D0, 0x116E3), (0x11BF0, 0x11BF9), (0x11F50, 0x11F59),
    (0x16130, 0x16139), (0x16D70, 0x16D79), (0x1CCF0, 0x1CCF9), (0x1D2C0, 0x1D2D3),
    (0x1E4F0, 0x1E4F9), (0x1E5F1, 0x1E5FA)]

# Every character with a combining class or a decomposition that came with Unicode 10 to 16, and
# none that Unicode 9 has.
NEWER_FORMS = [
    (0x7FD, 0x7FD), (0x897, 0x8D3), (0x9FE, 0x9FE), (0xC3C, 0xC3C), (0xD3B, 0xD3C), (0xEBA, 0xEBA),
    (0x1715, 0x1715), (0x1ABF, 0x1ACE), (0x1DF6, 0x1DFA), (0x32FF, 0x32FF), (0xA7F2, 0xA7F4),
    (0xA82C, 0xA82C), (0xAB69, 0xAB69), (0x105C9, 0x107BA), (0x10D24, 0x10F85), (0x11070, 0x11070),
    (0x1133B, 0x1133B), (0x11383, 0x113D0), (0x1145E, 0x1145E), (0x11839, 0x11A99),
    (0x11D42, 0x1612F), (0x16D68, 0x16FF1), (0x1CCD6, 0x1CCF9), (0x1E030, 0x1E5EF),
    (0x1F16C, 0x1F16C), (0x1FBF0, 0x1FBF9)]

# What \s matches besides the separators (Z): controls.
CONTROLS = [*range(0x9, 0xE), 0x85]

HANGUL = range(0xAC00, 0xD7A4)  # which are computed


def points_of(ranges):
    return {point for first, last in ranges for point in range(first, last + 1)}


def class_ranges(unicode):
    """The ranges of letters, numbers and spaces: (first, last, class), in order."""
    newer = dict.fromkeys(points_of(NEWER_LETTERS), "L") | dict.fromkeys(
        points_of(NEWER_NUMBERS), "N")
    ranges = []
    for point in range(0x110000):
        major = newer.get(point) or unicode.category(chr(point))[0]
        kind = {"L": "kLetter", "N": "kNumber", "Z": "kSpace"}.get(
            "Z" if point in CONTROLS else major)
        if kind and ranges and ranges[-1][1:] == (point - 1, kind):
            ranges[-1] = (ranges[-1][0], point, kind)
        elif kind:
            ranges.append((point, point, kind))
    return ranges


def forms(unicode):
    """What normalization changes: (character, its combining class, its canonical decomposition,
    that of compatibility), in order."""
    newer = points_of(NEWER_FORMS)
    for point in sorted(set(range(0x110000)) - newer - set(HANGUL)):
        character = chr(point)
        combining = unicode.combining(character)
        parts = [unicode.normalize(form, character) for form in ("NFD", "NFKD")]
        if combining or parts != [character] * 2:
            yield (point, combining, *("" if text == character else text for text in parts))


def compositions(unicode, points):
    """The pairs of characters that are composed: (first, second, what they become), in order."""
    for point in points:
        raw = unicode.decomposition(chr(point))
        pair = raw.split()
        if "<" not in raw and len(pair) == 2 and unicode.normalize("NFC", chr(point)) == chr(point):
            yield int(pair[0], 16), int(pair[1], 16), point


def write(unicode):
    found = list(forms(unicode))
    texts = list(dict.fromkeys(text for _, _, *both in found for text in both if text))
    begin, pool = {"": 0}, []
    for text in texts:
        begin[text] = len(pool)
        pool += map(ord, text)
    print('#include "tokenizer/bpe/unicode_tables.h"\n\nnamespace tessera {\nnamespace {\n')
    print("constexpr ClassRange kClasses[] = {")
    for first, last, kind in class_ranges(unicode):
        print(f"{{{first:#x}, {last:#x}, CharacterClass::{kind}}},")
    print("};\n\nconstexpr NormalForm kForms[] = {")
    for point, combining, canonical, compatible in found:
        print(f"{{{point:#x}, {begin[canonical]}, {begin[compatible]}, {combining}, "
              f"{len(canonical)}, {len(compatible)}}},")
    print("};\n\nconstexpr char32_t kParts[] = {")
    print(*(f"{point:#x}," for point in pool), sep="\n")
    print("};\n\nconstexpr Composition kCompositions[] = {")
    for composition in sorted(compositions(unicode, [point for point, *_ in found])):
        print("{{{:#x}, {:#x}, {:#x}}},".format(*composition))
    print("};\n\n}  // namespace\n")
    for kind, name in (("ClassRange", "Classes"), ("NormalForm", "Forms"), ("char32_t", "Parts"),
                       ("Composition", "Compositions")):
        print(f"std::span<const {kind}> Unicode{name}() {{ return k{name}; }}")
    print("\n}  // namespace tessera")


def main():
    version = unicodedata.unidata_version
    if not 14 <= float(version[:4]) <= 16:
        sys.exit(f"Python's unicodedata is of Unicode {version}: this knows how 14 to 16 differ")
    write(unicodedata)


if __name__ == "__main__":
    main()
