"""Tensors of a state that share memory, whole or in part: a load is right only if the checkpoint
has the same elements for what they share."""

from __future__ import annotations

import itertools
from typing import Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional, Tuple

from ._library import MismatchError
from ._tensors import Elements, contiguous_strides, item_bytes, span_of

_FORMATS: Dict[int, Any] = {1: "B", 2: "H", 4: "I", 8: "Q"}

# Of as many parts or places, it is not found out whether they overlap: they may.
_MANY = 64


class Part(NamedTuple):
    """A box of a tensor, and where its elements are."""

    name: str
    offset: Tuple[int, ...]
    elements: Elements


_Read = Callable[[Part], Optional[bytearray]]


def check(parts: Iterable[Part], read: _Read) -> None:
    """Raises an error if an element in memory would get two values. `read` returns the elements
    that a part would get, in row-major order, or None if it would get none; it is called only for
    parts that may overlap."""
    group: List[Part] = []
    end: Tuple[str, int] = ("", 0)
    for part in sorted(parts, key=lambda part: (part.elements.device, span_of(part.elements))):
        first, last = span_of(part.elements)
        if (part.elements.device, first) >= end or part.elements.device != end[0]:
            _check_group(group, read)
            group = []
            end = (part.elements.device, last)
        group.append(part)
        end = max(end, (part.elements.device, last))
    _check_group(group, read)


def _check_group(group: List[Part], read: _Read) -> None:
    each = [part.elements for part in group]
    if len(group) < _MANY and not any(map(_may_overlap_itself, each)) and not any(
            _may_overlap(a, b) for a, b in itertools.combinations(each, 2)):
        return
    spans = [span_of(part.elements) for part in group]
    begin = min(first for first, _ in spans)
    image = bytearray(max(last for _, last in spans) - begin)
    for part in group:
        for target, source in _lines(part.elements, image, begin, read(part)):
            target[:] = source
    for part in group:  # read again, because all of them may be much
        if any(target != source
               for target, source in _lines(part.elements, image, begin, read(part))):
            names = sorted({part.name for part in group})
            raise MismatchError(
                f"tensor {part.name}: has elements in memory that another place of "
                f"{', '.join(names[:10])} has, too, and the checkpoint has different values for "
                "them: load into tensors with memory of their own")


def _may_overlap_itself(elements: Elements) -> bool:
    reach = 0
    for stride, extent in sorted(zip(map(abs, elements.strides), elements.shape)):
        if extent > 1 and stride <= reach:
            return True
        reach += stride * (extent - 1)
    return False


def _may_overlap(a: Elements, b: Elements) -> bool:
    """Exact for two parts of one tensor, such as columns of a matrix."""
    if a.strides != b.strides or a.dtype != b.dtype:
        return True
    dims = [(stride * item_bytes(a.dtype), 1 - extent, other - 1)
            for stride, extent, other in zip(a.strides, a.shape, b.shape)]
    return _reaches(a.address - b.address, sorted(dims, reverse=True), item_bytes(a.dtype))


def _reaches(distance: int, dims: List[Tuple[int, int, int]], size: int) -> bool:
    """Whether a sum of strides, each times a number between two others, may be nearer to a distance
    than the size of an element."""
    if not dims:
        return abs(distance) < size
    (stride, low, high), rest = dims[0], dims[1:]
    if stride <= 0:
        return True
    reach = size - 1 + sum(other * max(-least, most) for other, least, most in rest)
    times = range(max(low, -((reach - distance) // stride)),
                  min(high, (reach + distance) // stride) + 1)
    return len(times) > _MANY or any(
        _reaches(distance - n * stride, rest, size) for n in times)


def _lines(elements: Elements, image: bytearray, begin: int, whole: Optional[bytearray]
           ) -> Iterator[Tuple[memoryview, memoryview]]:
    """The elements of a part in an image of the memory and as they were read, in as few pieces as
    two memoryviews of one dim can be."""
    if whole is None:
        return
    size = item_bytes(elements.dtype)
    if elements.negative:
        whole[size - 1::size] = bytes(byte ^ 0x80 for byte in whole[size - 1::size])
    offset = elements.address - begin
    usable = (len(image) - offset % size) // size * size
    in_image = memoryview(image)[offset % size:][:usable].cast(_FORMATS[size])
    in_whole = memoryview(whole).cast(_FORMATS[size])
    dims = list(zip(elements.shape, elements.strides, contiguous_strides(elements.shape)))
    # The longest dim is that of the pieces, unless its elements are one.
    extent, stride, step = max((dim for dim in dims if dim[1] != 0), default=(1, 1, 1))
    if (extent, stride, step) in dims:
        dims.remove((extent, stride, step))
    for index in itertools.product(*(range(dim[0]) for dim in dims)):
        at = offset // size + sum(i * dim[1] for i, dim in zip(index, dims))
        row = sum(i * dim[2] for i, dim in zip(index, dims))
        end = at + stride * extent
        yield in_image[at:end if end >= 0 else None:stride], in_whole[row:row + step * extent:step]
