"""Answers of models that no grammar guides: one action taken out of a fence or the prose around it, nothing else."""

from __future__ import annotations

import re
from collections.abc import Callable

_FENCE = "```"
_OPENING = re.compile(rf"{_FENCE}[a-zA-Z]*\s*\n")


def unwrapped(answer: str, prefix: str, fault: Callable[[str], str | None]) -> str:
    """What follows the prefix in a valid answer, if one is in there; else the answer as it came.

    `fault` says why a whole answer is not valid. A model that was told a prefix often writes it again. Only text that
    stands alone in a fence, or alone between prose, is taken; if there are two such texts, none is.
    """
    for candidate in (prefix + answer, answer):
        if fault(candidate.strip()) is None and candidate.strip().startswith(prefix.lstrip()):
            return candidate.strip()[len(prefix.lstrip()) :]
    found = _alone(answer)
    good = [text for text in found if fault(text) is None and text.startswith(prefix.lstrip())]
    return good[0][len(prefix.lstrip()) :] if len(good) == 1 == len(found) else answer


def meant(answer: str, prefix: str) -> str:
    """The text that an answer most likely means as the action: what an error should be about."""
    found = _alone(answer)
    return found[0] if len(found) == 1 and found[0].startswith(prefix.lstrip()) else (prefix + answer).strip()


def _alone(answer: str) -> list[str]:
    return _fenced(answer) or _elements(answer)


def _fenced(answer: str) -> list[str]:
    """What stands in fences. Each place is looked at once: models that run on write newlines by the thousand."""
    found = []
    opening = _OPENING.search(answer)
    while opening and (end := answer.find(_FENCE, opening.end())) >= 0:
        found.append(answer[opening.end() : end].strip())
        opening = _OPENING.search(answer, end + len(_FENCE))
    return found


def _elements(answer: str) -> list[str]:
    """The text from the first `<` to the last `>`."""
    start, end = answer.find("<"), answer.rfind(">")
    return [answer[start : end + 1]] if 0 <= start < end else []
