"""Iteration logs of a finished run in one compressed file, from which each comes back byte for byte.

Consecutive logs show nearly the same context, so they are compressed together (zstd with long-distance matching), in
groups: reading one log unpacks its group and nothing else. Writing and reading take the same memory however many logs
there are, and however large they are.

    "SIALOG1\\n" · one zstd frame per group · zstd frame of the index (JSON) · offset of the index (8 bytes)

The index lists, for each file, `[name, offset of the group, start in it, length, CRC-32, bytes that it had]`, and says
what was left out. A file that does not fit into its group goes on in those that follow. What is packed may come from
an instance: it is never interpreted here.
"""

from __future__ import annotations

import io
import json
import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import zstandard

from orchestrator.errors import Failed

MAGIC = b"SIALOG1\n"
GROUP_BYTES = 32 * 1024 * 1024  # of plain logs in one group
INDEX_CAP = 64 * 1024 * 1024  # bytes of an unpacked index: a million iterations
SIZE_CAP = 512 * 1024 * 1024  # bytes of an archive: 10,000 iterations of 300 kB take 8 MB
CHUNK = 1024 * 1024
_LEVEL = 3
_CUTS_ROOM = 1024 * 1024  # of the index, for what it says of that which was left out
_TAIL = struct.Struct("<Q")


@dataclass(frozen=True)
class Packed:
    """What was packed: how many files, their bytes, and the bytes of the archive."""

    files: int
    plain: int
    size: int


class Packer:
    """Writes an archive. Use `with`: it is complete when the block ends, and gone if the block raises.

    Each file is begun (`start`), then written piece by piece. Raises OSError if that can't be done.
    """

    def __init__(self, target: Path) -> None:
        self._target, self._temporary = target, target.with_name(f".{target.name}.new")
        parameters = zstandard.ZstdCompressionParameters.from_level(_LEVEL, enable_ldm=True, window_log=25)
        self._compressor = zstandard.ZstdCompressor(compression_params=parameters)
        self._group: zstandard.ZstdCompressionObj | None = None
        self._filled = 0  # plain bytes in the open group
        self._at = 0  # where the open group begins
        self._index = bytearray()  # JSON of the files that are complete
        self._entry: list[Any] | None = None  # of the file that is being written
        self._cuts: list[str] = []
        self._files = self._plain = 0
        self.packed: Packed | None = None

    def __enter__(self) -> Packer:
        self._file = self._temporary.open("wb")
        self._file.write(MAGIC)
        self._at = self._file.tell()
        return self

    @property
    def full(self) -> str | None:
        """Why no more should be packed; None while there is room."""
        if self._file.tell() > SIZE_CAP:
            return f"it takes more than {SIZE_CAP:,} bytes, compressed"
        return "it has too many names" if len(self._index) > INDEX_CAP - _CUTS_ROOM else None

    @property
    def plain(self) -> int:
        """Bytes of the files that were packed so far."""
        return self._plain

    def start(self, name: str, size: int) -> None:
        """Begin a file of `size` bytes; its name must be new. If fewer are written, readers are told."""
        self._end_file()
        self._entry = [name, self._at, self._filled, 0, 0, size]
        self._files += 1

    def write(self, piece: bytes) -> None:
        """The next piece of the file that was begun."""
        assert self._entry is not None
        self._entry[3] += len(piece)
        self._entry[4] = zlib.crc32(piece, self._entry[4])
        self._plain += len(piece)
        view = memoryview(piece)
        while view:
            if self._group is None:
                self._group = self._compressor.compressobj()
            room = GROUP_BYTES - self._filled
            self._file.write(self._group.compress(view[:room]))
            self._filled += len(view[:room])
            view = view[room:]
            if self._filled >= GROUP_BYTES:
                self._close_group()

    def add(self, name: str, content: bytes) -> None:
        """One more file, whole."""
        self.start(name, len(content))
        self.write(content)

    def left_out(self, what: str) -> None:
        """Say in the index what is not in the archive: a sentence for whoever reads it."""
        self._cuts.append(what[:2000])

    def _end_file(self) -> None:
        if self._entry is not None:
            self._index += (b"," if self._index else b"") + json.dumps(self._entry).encode()
            self._entry = None

    def _close_group(self) -> None:
        if self._group is not None:
            self._file.write(self._group.flush())
            self._group, self._filled, self._at = None, 0, self._file.tell()

    def __exit__(self, failed: type[BaseException] | None, *_: object) -> None:
        try:
            if failed is None:
                self._end_file()
                self._close_group()
                cuts = json.dumps(self._cuts[:20]).encode()
                self._file.write(self._compressor.compress(b'{"cuts":%b,"files":[%b]}' % (cuts, bytes(self._index))))
                self._file.write(_TAIL.pack(self._at))
                self.packed = Packed(self._files, self._plain, self._file.tell())
        finally:
            self._file.close()
            if self.packed is None:
                self._temporary.unlink(missing_ok=True)
        if self.packed is not None:
            self._temporary.replace(self._target)


def pack(files: Iterable[tuple[str, bytes]], target: Path) -> Packed:
    """Pack (name, content) pairs. Raises OSError if that can't be written; there is then no archive."""
    with Packer(target) as packer:
        for name, content in files:
            packer.add(name, content)
    assert packer.packed is not None
    return packer.packed


@dataclass(frozen=True)
class _Place:
    """Where a file begins, and what it must be. Archives of before have no checksum."""

    at: int
    start: int
    length: int
    checksum: int | None = None
    size: int | None = None


class LogArchive:
    """An archive for reading. Raises Failed where it is damaged. `cuts` says in words what was left out of it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                if file.read(len(MAGIC)) != MAGIC:
                    raise self._damaged("it does not begin as one")
                file.seek(-_TAIL.size, 2)
                end = file.tell()
                (self._end,) = _TAIL.unpack(file.read(_TAIL.size))
                if not len(MAGIC) <= self._end <= end:
                    raise self._damaged("its index is missing")
                text = b"".join(self._unpacked(file, self._end, end, 0, INDEX_CAP + 1))
                if len(text) > INDEX_CAP:
                    raise self._damaged("its index unpacks to too much")
                index = json.loads(text)
            files, cuts = (index, []) if isinstance(index, list) else (index["files"], index["cuts"])
            self._places = {str(name): _Place(*map(int, values)) for name, *values in files}
            self.cuts = tuple(str(cut) for cut in cuts)
        except (OSError, ValueError, TypeError, KeyError, RecursionError, struct.error) as error:
            raise self._damaged(str(error)) from None

    @property
    def names(self) -> list[str]:
        """The packed files, in the order in which they were packed."""
        return list(self._places)

    def missing(self, name: str) -> int:
        """How many bytes at the end of a file were left out."""
        place = self._places[name]
        return 0 if place.size is None else max(0, place.size - place.length)

    def read(self, name: str) -> bytes:
        """One file, byte for byte. Raises KeyError if there is none with this name."""
        return b"".join(self.pieces(name))

    def pieces(self, name: str) -> Iterator[bytes]:
        """The same in pieces, for files of any size. Damage may only be noticed, and raised, after the last of them."""
        place = self._places[name]
        found = checksum = 0
        with self.path.open("rb") as file:
            for piece in self._unpacked(file, place.at, self._end, place.start, place.length):
                found, checksum = found + len(piece), zlib.crc32(piece, checksum)
                yield piece
        if found != place.length or place.checksum not in (None, checksum):
            raise self._damaged(f"{name} is not whole")

    def _unpacked(self, file: BinaryIO, begin: int, end: int, skip: int, most: int) -> Iterator[bytes]:
        """What the frames between two offsets hold, without the first `skip` bytes, and no more than `most`."""
        file.seek(begin)
        unpacker = zstandard.ZstdDecompressor(max_window_size=1 << 26)
        try:
            reader = unpacker.stream_reader(io.BufferedReader(_Part(file, end - begin)), read_across_frames=True)
            while skip and (piece := reader.read(min(CHUNK, skip))):
                skip -= len(piece)
            while most and (piece := reader.read(min(CHUNK, most))):
                most -= len(piece)
                yield piece
        except zstandard.ZstdError as error:
            raise self._damaged(str(error)) from None

    def _damaged(self, why: str) -> Failed:
        return Failed(f"the archive of iteration logs can't be read: {why}", where=str(self.path), fix="restore it")


class _Part(io.RawIOBase):
    """The next `length` bytes of a file."""

    def __init__(self, file: BinaryIO, length: int) -> None:
        self._file, self._left = file, length

    def readable(self) -> bool:
        """Nothing else."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill what there is room for."""
        data = self._file.read(min(len(buffer), self._left))
        buffer[: len(data)] = data
        self._left -= len(data)
        return len(data)
