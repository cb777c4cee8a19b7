"""From the file of a CUDA memory snapshot to plain data, with nothing in the file trusted.

A pickle is a program. Snapshots need the part of its language that builds data, which has no globals, calls
or persistent ids. A file that uses any other part is refused before it is run, and a second guard refuses it
as it runs. `torch.cuda._memory_viz._read` is not used: it is an unrestricted `pickle.load`.

Limits, for files made to exhaust this process. At worst, reading takes 20 bytes of memory for each byte of a
file and 160 for each part: 4 GB in all.

    bytes of a file    MAX_FILE_BYTES
    parts              MAX_PARTS lists, dicts and strings
    tuples             Of one to three whole numbers, as torch writes. Python hashes the keys of a dict by
                       recursion in C: tuples in tuples would take the stack, or for ever.
    whole numbers      9 bytes; an address has 8.
    memo slots         Fewer than the bytes before them: the number of a slot alone could ask for GBs.

Lists and dicts may nest as deep as they like: they are built, and freed, without recursion.
"""

import io
import pickle
import pickletools
import re
from pathlib import Path
from typing import NoReturn

from ...utils.durable_io import open_regular
from ...utils.errors import UserError

MAX_FILE_BYTES = 128 * 2**20
MAX_PARTS = 8_000_000

_LONG1 = b"|".join(rb"%b.{%d}" % (bytes([size]), size) for size in range(10))
_WHOLE_NUMBER = rb"(?:K.|M.{2}|J.{4}|\x8a(?:%b))" % _LONG1
# Whole numbers, and the tuple (\x85, \x86, \x87: of one, two, three) that may close over the last of them.
_NUMBERS = rb"%b(?:\x85|%b(?:[\x85\x86]|%b++[\x85-\x87]?+)?+)?+" % (3 * (_WHOLE_NUMBER,))
# None, booleans, MARK, MEMOIZE, filling of lists and dicts | BINGET, BINPUT | LONG_BINGET | BINFLOAT | FRAME.
_PLAIN = rb"[N\x88\x89(\x94aesu]++|[hq].|j.{4}|G.{8}|\x95.{8}"
_RUN = re.compile(rb"(?:%b|%b)*+" % (_PLAIN, _NUMBERS), re.DOTALL)

_PROTO, _STOP, _LONG_BINPUT = 0x80, ord("."), ord("r")
_LISTS_AND_DICTS = frozenset(b"]}")
_SIZE_OF_LENGTH = {
    0x8C: 1,
    ord("X"): 4,
    0x8D: 8,
}  # opcodes of strings: SHORT_BINUNICODE, BINUNICODE, BINUNICODE8
_CUT_SHORT = frozenset(
    b"KMJ\x8ahqjG\x95"
)  # opcodes of _RUN that lack their argument where _RUN stops at them
_BROKEN = (
    pickle.UnpicklingError,
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    TypeError,
    ValueError,
)
"""What the unpickler raises on data opcodes in an order that makes no sense."""


def load(path: Path, max_bytes: int = MAX_FILE_BYTES) -> object:
    """Return the data of a snapshot file: dicts, lists, tuples, strings, numbers, booleans and None only.

    Parts may be shared, and may contain themselves.

    Cost: 0.3 s and 35 MB for each 100,000 blocks.

    Args:
        path: A file as `torch.cuda.memory._dump_snapshot` writes it, in pickle protocol 2 to 5.
        max_bytes: Size over which the file is not read.

    Raises:
        UserError: If the file cannot be read, is over a limit, is cut off, or is anything but plain data.
    """
    data = _read(path, max_bytes)
    check_opcodes(data, path)
    try:
        return PlainUnpickler(io.BytesIO(data)).load()
    except _BROKEN as error:
        raise UserError(f"{path} is damaged: {type(error).__name__}. Remove it, or save it again.") from error


class PlainUnpickler(pickle.Unpickler):
    """The second guard: an unpickler that knows no name."""

    def find_class(self, module_name: str, global_name: str, /) -> NoReturn:
        """Refuse what would import `module_name`."""
        raise pickle.UnpicklingError("a memory snapshot names no global")

    def persistent_load(self, pid: object, /) -> NoReturn:
        """Refuse a reference to something outside the file."""
        raise pickle.UnpicklingError("a memory snapshot has no persistent ids")


def check_opcodes(data: bytes, path: Path) -> None:
    """Refuse a pickle that does more than build data, or takes more memory than this module's limits allow.

    One pass without building anything. A regular expression eats what has a fixed form, 10 times as fast as
    `pickletools.genops`; lists, dicts and strings are counted and measured one by one.

    Args:
        data: The whole file.
        path: Its name, for messages.

    Raises:
        UserError: If the pickle breaks a limit, holds another opcode, or has no end.
    """
    if data[:1] != bytes([_PROTO]) or len(data) < 2:
        raise UserError(f"{path} is not a snapshot: it does not begin as a binary pickle does.")
    position, parts = 2, 0
    while position < len(data):
        found = _RUN.match(data, position)
        assert found is not None  # it may match nothing
        position = found.end()
        if position == len(data):
            break
        opcode = data[position]
        if opcode == _STOP:
            return
        parts += opcode != _LONG_BINPUT
        if parts > MAX_PARTS:
            raise UserError(
                f"{path} holds over {MAX_PARTS:,} lists, dicts and strings, the most that are read."
            )
        if opcode in _LISTS_AND_DICTS:
            position += 1
        else:
            position = _after_argument(data, position, path)
    _refuse_cut(path, len(data))


def _after_argument(data: bytes, position: int, path: Path) -> int:
    """Return the position after a string or a memo slot, maybe past the end; refuse other opcodes."""
    opcode = data[position]
    if opcode in _SIZE_OF_LENGTH:
        start = position + 1 + _SIZE_OF_LENGTH[opcode]
        return start + int.from_bytes(data[position + 1 : start], "little")
    if opcode == _LONG_BINPUT:
        slot = int.from_bytes(data[position + 1 : position + 5], "little")
        if slot >= position:
            raise UserError(f"{path} is refused: at byte {position} it asks for memo slot {slot:,}.")
        return position + 5
    if opcode in _CUT_SHORT:
        _refuse_opcode_or_cut(data, position, path)
    _refuse_opcode(data, position, path)


def _refuse_opcode_or_cut(data: bytes, position: int, path: Path) -> NoReturn:
    """Refuse an opcode of fixed form: it is cut off, or it is a whole number of over 9 bytes."""
    if data[position] == 0x8A and position + 1 < len(data) and data[position + 1] > 9:
        raise UserError(f"{path} is refused: at byte {position} it holds a whole number of over 9 bytes.")
    _refuse_cut(path, len(data))


def _refuse_opcode(data: bytes, position: int, path: Path) -> NoReturn:
    """Refuse an opcode that no snapshot needs, by its name."""
    names = {opcode.code: opcode.name for opcode in pickletools.opcodes}
    name = names.get(chr(data[position]), f"{data[position]:#04x}")
    raise UserError(
        f"{path} is refused: at byte {position} it uses the opcode {name}, and a snapshot is plain data."
    )


def _refuse_cut(path: Path, size: int) -> NoReturn:
    """Refuse a file that ends too early."""
    raise UserError(f"{path} is cut off after {size:,} bytes. Remove it, or save it again.")


def _read(path: Path, max_bytes: int) -> bytes:
    """Return the file's bytes; refuse what is too large, empty, unreadable or no file."""
    try:
        with open_regular(path) as file:
            data = file.read(max_bytes + 1)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from error
    if len(data) > max_bytes:
        raise UserError(
            f"{path} has over {max_bytes:,} bytes, the most that are read. Record it with a bounded history: "
            "torch.cuda.memory._record_memory_history(max_entries=100_000)."
        )
    if not data:
        raise UserError(f"{path} is empty. Remove it, or save it again.")
    return data
