"""The share of regions with the right total, if the table has the right form."""

from pathlib import Path

EXPECTED = {'North': '128548.77', 'South': '97290.16', 'East': '120923.13', 'West': '129042.52', 'Centre': '104012.78', 'Islands': '127225.39'}


def text(name: str) -> str:
    """What was left under this name; a link, a device or something huge is as good as nothing."""
    path = Path(name)
    if path.is_symlink() or not path.is_file() or path.stat().st_size > 1_000_000:
        return ""
    return path.read_text("utf-8", "replace")


lines = [line.strip() for line in text("totals.csv").splitlines() if line.strip()]
found = dict(line.split(",", 1) for line in lines[1:] if "," in line)
well_formed = lines[:1] == ["region,total"] and list(found) == sorted(EXPECTED) and len(lines) == 1 + len(EXPECTED)
print(sum(found[region] == total for region, total in EXPECTED.items()) / len(EXPECTED) if well_formed else 0)
