"""Writes texts and their normal forms as Python has them: [text, NFC, NFD, NFKC, NFKD], in JSON.

The texts are every character that a form changes or that is a mark, alone and between others, and
drawn ones. Characters that are newer than Unicode 9 divide a text.
"""

import json
import random
import re
import unicodedata

from tokenizer.bpe.make_unicode_tables import HANGUL, NEWER_FORMS, forms, points_of

FORMS = ("NFC", "NFD", "NFKC", "NFKD")


def main():
    newer = sorted(points_of(NEWER_FORMS))
    known_parts = re.compile(
        "[^" + "".join(f"{chr(first)}-{chr(last)}" for first, last in NEWER_FORMS) + "]+")
    known = [chr(point) for point, *_ in forms(unicodedata)]
    draw = random.Random(1)
    texts = [text for c in known + list(map(chr, HANGUL[::5])) for text in (c, f"a{c}\u0301")]
    kinds = (known, list(map(chr, range(0x1100, 0x1200))), list(map(chr, range(0x300, 0x370))),
             "aeo", list(map(chr, newer)))
    for _ in range(20000):
        texts.append("".join(draw.choice(draw.choice(kinds)) for _ in range(draw.randint(1, 8))))

    def normalized(form, text):
        return known_parts.sub(lambda part: unicodedata.normalize(form, part[0]), text)

    print(json.dumps([[text] + [normalized(form, text) for form in FORMS] for text in texts]))


if __name__ == "__main__":
    main()
