"""The share of tickets that are as they should be."""

from pathlib import Path

EXPECTED = {'3101.txt': "Ticket 3101\nFrom: [removed]\n\nThe door of gate 3 doesn't open.\nThanks!\n",
 '3102.txt': 'Ticket 3102\nFrom: [removed]\n\nMy order 71234 is late.\nThanks!\n',
 '3103.txt': "Ticket 3103\nFrom: [removed]\n\nThe door of gate 3 doesn't open.\nThanks!\n",
 '3104.txt': 'Ticket 3104\nFrom: [removed]\n\nMy order 71234 is late.\nThanks!\n',
 '3105.txt': 'Ticket 3105\nFrom: [removed]\n\nPrices are shown twice.\nThanks!\n',
 '3106.txt': "Ticket 3106\nFrom: [removed]\n\nThe door of gate 3 doesn't open.\nThanks!\n",
 '3107.txt': 'Ticket 3107\nFrom: [removed]\n\nPrices are shown twice.\nThanks!\n',
 '3108.txt': 'Ticket 3108\n'
             'From: [removed]\n'
             '\n'
             "The door of gate 3 doesn't open.\n"
             'I tried it with [removed] as you said, and again without.\n'
             'Thanks!\n',
 '3109.txt': 'Ticket 3109\n'
             'From: [removed]\n'
             '\n'
             'Prices are shown twice.\n'
             'Call me: [removed], not before ten.\n'
             'Thanks!\n',
 '3110.txt': 'Ticket 3110\n'
             'From: [removed]\n'
             '\n'
             "The door of gate 3 doesn't open.\n"
             'I tried it with [removed] as you said, and again without.\n'
             'Thanks!\n',
 '3111.txt': 'Ticket 3111\nFrom: [removed]\n\nPrices are shown twice.\nThanks!\n',
 '3112.txt': 'Ticket 3112\n'
             'From: [removed]\n'
             '\n'
             'My order 71234 is late.\n'
             'I tried it with [removed] as you said, and again without.\n'
             'Call me: [removed], not before ten.\n'
             'Thanks!\n'}


def text(name: str) -> str:
    """What was left under this name; a link, a device or something huge is as good as nothing."""
    path = Path(name)
    if path.is_symlink() or not path.is_file() or path.stat().st_size > 1_000_000:
        return ""
    return path.read_text("utf-8", "replace")


print(round(sum(text(f"tickets/{name}") == wanted for name, wanted in EXPECTED.items()) / len(EXPECTED), 3))
