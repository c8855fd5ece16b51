"""Iteration logs of a finished run in one compressed file, from which each comes back byte for byte.

Consecutive logs show nearly the same context, so they are compressed together (zstd with long-distance matching), in
groups: reading one log unpacks its group and nothing else.

    "SIALOG1\\n" · one zstd frame per group · zstd frame of the index (JSON) · offset of the index (8 bytes)

The index lists `[name, offset of the group, start in it, length]`. What is packed may come from an instance: it is
never interpreted here.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import zstandard

from orchestrator.errors import Failed

MAGIC = b"SIALOG1\n"
GROUP_BYTES = 32 * 1024 * 1024  # of plain logs; a group is closed by the file that reaches it
_LEVEL = 3
_INDEX_MAX = 64 * 1024 * 1024  # bytes of an unpacked index
_GROUP_MAX = 4 * GROUP_BYTES  # bytes of an unpacked group: the last file of it may be large
_TAIL = struct.Struct("<Q")


@dataclass(frozen=True)
class Packed:
    """What was packed: how many files, their bytes, and the bytes of the archive."""

    files: int
    plain: int
    size: int


class Packer:
    """Writes an archive. Use `with`: it is complete when the block ends, and gone if the block raises."""

    def __init__(self, target: Path) -> None:
        self._target, self._temporary = target, target.with_name(f".{target.name}.new")
        parameters = zstandard.ZstdCompressionParameters.from_level(
            _LEVEL, enable_ldm=True, window_log=25, write_content_size=True
        )
        self._compressor = zstandard.ZstdCompressor(compression_params=parameters)
        self._index: list[tuple[str, int, int, int]] = []
        self._group = bytearray()
        self._plain = 0
        self.packed: Packed | None = None

    def __enter__(self) -> Packer:
        self._file = self._temporary.open("wb")
        self._file.write(MAGIC)
        return self

    def add(self, name: str, content: bytes) -> None:
        """One more file; its name must be new."""
        self._index.append((name, self._file.tell(), len(self._group), len(content)))
        self._group += content
        self._plain += len(content)
        if len(self._group) >= GROUP_BYTES:
            self._close_group()

    def _close_group(self) -> None:
        if self._group:
            self._file.write(self._compressor.compress(self._group))
            self._group.clear()

    def __exit__(self, failed: type[BaseException] | None, *_: object) -> None:
        try:
            if failed is None:
                self._close_group()
                offset = self._file.tell()
                self._file.write(self._compressor.compress(json.dumps(self._index).encode()))
                self._file.write(_TAIL.pack(offset))
                self.packed = Packed(len(self._index), self._plain, self._file.tell())
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


def packed_on_the_way(files: Iterable[tuple[str, bytes]], packer: Packer) -> Iterator[tuple[str, bytes]]:
    """Hand files on, and pack each of them."""
    for name, content in files:
        packer.add(name, content)
        yield name, content


class LogArchive:
    """An archive for reading. Raises Failed where it is damaged."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                if file.read(len(MAGIC)) != MAGIC:
                    raise self._damaged("it does not begin as one")
                file.seek(-_TAIL.size, 2)
                end = file.tell()
                (offset,) = _TAIL.unpack(file.read(_TAIL.size))
                if not len(MAGIC) <= offset <= end:
                    raise self._damaged("its index is missing")
                file.seek(offset)
                index = json.loads(self._unpack(file.read(end - offset), _INDEX_MAX))
                self._places = {str(name): (int(at), int(start), int(length)) for name, at, start, length in index}
        except (OSError, ValueError, TypeError, struct.error) as error:
            raise self._damaged(str(error)) from None

    @property
    def names(self) -> list[str]:
        """The packed files, in the order in which they were packed."""
        return list(self._places)

    def read(self, name: str) -> bytes:
        """One file, byte for byte. Raises KeyError if there is none with this name."""
        at, start, length = self._places[name]
        after = min((other for other, _, _ in self._places.values() if other > at), default=None)
        with self.path.open("rb") as file:
            file.seek(at)
            group = self._unpack(file.read(-1 if after is None else after - at), _GROUP_MAX)
        if start + length > len(group):
            raise self._damaged(f"{name} is not whole")
        return group[start : start + length]

    def _unpack(self, data: bytes, most: int) -> bytes:
        try:
            unpacker = zstandard.ZstdDecompressor(max_window_size=1 << 26).decompressobj()
            if zstandard.frame_content_size(data) > most:
                raise self._damaged("a part of it unpacks to too much")
            return unpacker.decompress(data)
        except zstandard.ZstdError as error:
            raise self._damaged(str(error)) from None

    def _damaged(self, why: str) -> Failed:
        return Failed(f"the archive of iteration logs can't be read: {why}", where=str(self.path), fix="restore it")
