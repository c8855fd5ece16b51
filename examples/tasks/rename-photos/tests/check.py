"""The share of pictures that are where the rules want them, unchanged. Copies left behind cost as much as they gain."""

from pathlib import Path

EXPECTED = {'2031-07-20-harbour.jpg': 'picture 01: Harbour\n',
 '2031-07-27-old-town.jpg': 'picture 02: Old Town\n',
 '2031-07-29-market-hall.jpg': 'picture 03: market hall\n',
 'edited/2031-07-16-light-house.jpg': 'picture 04: Light House\n',
 '2031-07-19-ferry.jpg': 'picture 05: ferry\n',
 '2031-07-14-rope-walk.jpg': 'picture 06: Rope walk\n',
 '2031-07-06-north-pier.jpg': 'picture 07: North Pier\n',
 'edited/2031-07-05-cafe.jpg': 'picture 08: cafe\n',
 '2031-07-07-fish-stall.jpg': 'picture 09: Fish Stall\n',
 '2031-07-10-gulls.jpg': 'picture 10: gulls\n',
 '2031-07-06-sunset.jpg': 'picture 11: Sunset\n',
 'edited/2031-07-01-crane.jpg': 'picture 12: crane\n',
 '2031-07-30-dry-dock.jpg': 'picture 13: Dry dock\n',
 '2031-07-11-bridge.jpg': 'picture 14: bridge\n',
 '2031-07-03-town-hall.jpg': 'picture 15: Town hall\n',
 'edited/2031-07-16-net-loft.jpg': 'picture 16: Net Loft\n',
 '2031-07-16-tram.jpg': 'picture 17: tram\n',
 '2031-07-01-ice-house.jpg': 'picture 18: Ice house\n',
 '2031-07-18-customs.jpg': 'picture 19: Customs\n',
 'edited/2031-07-19-slipway.jpg': 'picture 20: Slipway\n',
 '2031-07-23-beacon.jpg': 'picture 21: beacon\n',
 '2031-07-25-chandler.jpg': 'picture 22: Chandler\n',
 '2031-07-17-mole.jpg': 'picture 23: Mole\n',
 'edited/2031-07-04-quay.jpg': 'picture 24: Quay\n'}


def text(name: str) -> str:
    """What was left under this name; a link, a device or something huge is as good as nothing."""
    path = Path(name)
    if path.is_symlink() or not path.is_file() or path.stat().st_size > 1_000_000:
        return ""
    return path.read_text("utf-8", "replace")


there = {str(path.relative_to("photos")) for path in Path("photos").rglob("*") if not path.is_dir()}
right = sum(text(f"photos/{name}") == content for name, content in EXPECTED.items())
surplus = max(0, len(there) - len(EXPECTED))
print(max(0, right - surplus) / len(EXPECTED))
