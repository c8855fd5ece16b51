"""The share of damaged files that are listed; a sound file in the list costs one."""

from pathlib import Path

EXPECTED = ['scans/page-004.txt', 'scans/page-011.txt', 'scans/page-030.txt', 'scans/page-036.txt', 'scans/page-041.txt']


def text(name: str) -> str:
    """What was left under this name; a link, a device or something huge is as good as nothing."""
    path = Path(name)
    if path.is_symlink() or not path.is_file() or path.stat().st_size > 1_000_000:
        return ""
    return path.read_text("utf-8", "replace")


given = {line.strip() for line in text("damaged.txt").splitlines() if line.strip()}
print(max(0, len(given & set(EXPECTED)) - len(given - set(EXPECTED))) / len(EXPECTED))
