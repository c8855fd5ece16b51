"""Half of the reward for naming every service once, the other half for an order in which all of them can start."""

from pathlib import Path

NEEDS = [('backup', 'images'), ('billing', 'gateway'), ('cart', 'backup'), ('clock', 'images'), ('gateway', 'backup'),
 ('gateway', 'cart'), ('gateway', 'web'), ('images', 'audit'), ('mail', 'search'), ('metrics', 'stock'),
 ('orders', 'users'), ('prices', 'gateway'), ('queue', 'stock'), ('queue', 'users'), ('queue', 'web'),
 ('reports', 'cart'), ('reports', 'images'), ('search', 'gateway'), ('search', 'orders'), ('stock', 'images'),
 ('stock', 'users'), ('store', 'audit'), ('store', 'images'), ('store', 'web'), ('users', 'cart'),
 ('users', 'images'), ('users', 'web'), ('web', 'audit'), ('web', 'images')]


def text(name: str) -> str:
    """What was left under this name; a link, a device or something huge is as good as nothing."""
    path = Path(name)
    if path.is_symlink() or not path.is_file() or path.stat().st_size > 1_000_000:
        return ""
    return path.read_text("utf-8", "replace")


order = text("order.txt").split()
complete = sorted(order) == sorted({name for pair in NEEDS for name in pair})
works = complete and all(order.index(needed) < order.index(name) for name, needed in NEEDS)
print(complete / 2 + works / 2)
