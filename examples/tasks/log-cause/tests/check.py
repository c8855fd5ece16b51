"""Half of the reward for each of the two findings."""

from pathlib import Path


def text(name: str) -> str:
    """What was left under this name; a link, a device or something huge is as good as nothing."""
    path = Path(name)
    if path.is_symlink() or not path.is_file() or path.stat().st_size > 1_000_000:
        return ""
    return path.read_text("utf-8", "replace")


given = [line.strip() for line in text("cause.txt").splitlines()]
print((given[:1] == ["change: CHG-4497"]) / 2 + (given[1:] == ["first failed request: cdaeea"]) / 2)
