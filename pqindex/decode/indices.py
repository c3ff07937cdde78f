"""Dictionary indices of many pages, unpacked together and looked up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from pqindex.decode.runs import MAX_BIT_WIDTH, PADDING, Run, fill_runs, packed_header, parse_runs, unpack
from pqindex.decode.signals import BadPageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pqindex.decode.headers import Buffer

Place: TypeAlias = tuple[int, int, int]
"""Number of the read, number of the column, and byte of the page in its chunk."""


class _Task(NamedTuple):
    """A page whose values are to be looked up.

    Attributes
    ----------
    place : Place
    dictionary : ndarray
    runs : list of Run or None
        All values of the page; None where they are one packed run.
    n_values : int
    first : int
        Where its packed values begin among those of its bit width, once they are unpacked.
    skip : int
        Values of the page before the first that is wanted.
    out : ndarray
        Gets the wanted values.
    """

    place: Place
    dictionary: npt.NDArray[Any]
    runs: list[Run] | None
    n_values: int
    first: int
    skip: int
    out: npt.NDArray[Any]


class _Width:
    """The pages of one bit width: what is to be unpacked, and what is then to be done."""

    __slots__ = ("n_groups", "packed", "tasks")

    def __init__(self) -> None:
        self.packed: list[Buffer] = []
        self.n_groups = 0
        self.tasks: list[_Task] = []


class IndexBatch:
    """Pages with dictionary indices, collected until `finish`. Not for several threads at once.

    Attributes
    ----------
    n_dictionary_bytes : int
        Of the dictionaries that are held; one that pages share counts for each.
    """

    def __init__(self) -> None:
        self._widths: dict[int, _Width] = {}
        self.n_dictionary_bytes = 0

    def add(
        self,
        place: Place,
        page: tuple[Buffer, int, int],
        bit_width: int,
        n_values: int,
        dictionary: npt.NDArray[Any],
        skip: int,
        out: npt.NDArray[Any],
    ) -> None:
        """Add a page whose runs are at ``(buffer, start, stop)``; what it says of itself is checked now.

        Raises
        ------
        BadPageError, NotDirectError
            As `parse_runs`; a bit width that no index has; a dictionary without values.
        """
        buffer, start, stop = page
        if bit_width > MAX_BIT_WIDTH:
            raise BadPageError("indices are too wide", expected=f"at most {MAX_BIT_WIDTH}", found=bit_width)
        if not len(dictionary):
            raise BadPageError("a dictionary is empty", expected="values", found="none")
        width = self._widths.get(bit_width)
        if width is None:
            width = self._widths[bit_width] = _Width()
        self.n_dictionary_bytes += dictionary.nbytes
        first = 8 * width.n_groups
        one = packed_header(n_values)
        n_groups = (n_values + 7) // 8
        begin = start + len(one)
        if stop - begin == n_groups * bit_width and buffer[start:begin] == one:  # as most pages are
            width.packed.append(buffer[begin:stop])
            width.n_groups += n_groups
            width.tasks.append(_Task(place, dictionary, None, n_values, first, skip, out))
            return
        runs = parse_runs(buffer, start, stop, bit_width=bit_width, n_values=n_values)
        for run in runs:
            if run.value < 0:
                if bit_width:
                    width.packed.append(buffer[run.start : run.stop])
                width.n_groups += (run.n_values + 7) // 8
        width.tasks.append(_Task(place, dictionary, runs, n_values, first, skip, out))

    def finish(self) -> Iterator[tuple[Place, BadPageError]]:
        """Look up everything; yield the places of pages with an index beyond their dictionary, and what is wrong."""
        for bit_width, width in self._widths.items():
            if not width.tasks:
                continue
            if width.n_groups and bit_width:
                unpacked = unpack(b"".join((*width.packed, PADDING)), bit_width, width.n_groups)
                top = int(unpacked.max())
            else:
                unpacked, top = np.zeros(8 * width.n_groups, np.uint32), 0
            for task in width.tasks:
                wrong = _look_up(task, unpacked, top)
                if wrong is not None:
                    yield task.place, wrong


def _look_up(task: _Task, unpacked: npt.NDArray[Any], top: int) -> BadPageError | None:
    """Write a page's values into its out; `top` is the greatest of all that was unpacked, padding too."""
    _, dictionary, runs, n_values, first, skip, out = task
    if runs is None:
        indices = unpacked[first : first + n_values]
    elif len(runs) == 1 and runs[0].value >= 0:
        value = runs[0].value
        if value >= len(dictionary):
            return _beyond(value, dictionary)
        out[:] = dictionary[value]
        return None
    else:
        indices = fill_runs(runs, unpacked, first)
        top = max(top, *(run.value for run in runs))
    if top >= len(dictionary) and (greatest := int(indices.max())) >= len(dictionary):
        return _beyond(greatest, dictionary)
    wanted = indices if len(out) == n_values else indices[skip : skip + len(out)]
    # The indices are known to be good, and "clip" is the fastest way to take them.
    out[:] = dictionary.take(wanted, mode="clip")
    return None


def _beyond(index: int, dictionary: npt.NDArray[Any]) -> BadPageError:
    return BadPageError(
        "an index lies beyond the dictionary", expected=f"less than {len(dictionary)}", found=index
    )
