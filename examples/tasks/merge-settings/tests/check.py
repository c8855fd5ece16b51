"""The share of right values; a value too many costs one."""

import json
from pathlib import Path

EXPECTED = {'cache': {'size': '512'},
 'log': {'file': '-', 'level': 'warning'},
 'mail': {'retries': '3', 'sender': 'office@example.org'},
 'server': {'host': '0.0.0.0', 'port': '9443', 'workers': '8'}}


def text(name: str) -> str:
    """What was left under this name; a link, a device or something huge is as good as nothing."""
    path = Path(name)
    if path.is_symlink() or not path.is_file() or path.stat().st_size > 1_000_000:
        return ""
    return path.read_text("utf-8", "replace")


try:
    given = json.loads(text("settings.json"))
    values = {(section, key): value for section, keys in given.items() for key, value in keys.items()}
except (ValueError, AttributeError):
    values = {}
wanted = {(section, key): value for section, keys in EXPECTED.items() for key, value in keys.items()}
right = sum(values.get(place) == value for place, value in wanted.items())
print(round(max(0, right - len(values.keys() - wanted.keys())) / len(wanted), 3))
