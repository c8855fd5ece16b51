"""1 if the file says what was asked for, else 0."""

from pathlib import Path

NAME, EXPECTED = "sorted.txt", "Aiko Belen Imani Lars Nora Tomas"


def text(name: str) -> str:
    """What was left under this name; a link, a device or something huge is as good as nothing."""
    path = Path(name)
    if path.is_symlink() or path.parent.is_symlink() or not path.is_file() or path.stat().st_size > 10_000:
        return ""
    return path.read_text("utf-8", "replace")


print(int(text(NAME).split() == EXPECTED.split()))
