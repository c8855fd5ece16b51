"""What a parser and a schema processor say, in words that a model can act on.

Each row: a pattern in the message of libxml2, and the words that replace it. `{0}`… are the groups of the pattern,
`{actions}` is the list of actions.
"""

from __future__ import annotations

import re

_CDATA = "Put text that holds & or < into a CDATA section: <![CDATA[ … ]]>"


def _table(*rows: tuple[str, str]) -> tuple[tuple[re.Pattern[str], str], ...]:
    return tuple((re.compile(pattern), words) for pattern, words in rows)


SYNTAX = _table(
    (
        r"Start tag expected",
        (
            "Text outside of an element. Answer with one action and nothing around it: no prose, no code fence. "
            "Actions: {actions}"
        ),
    ),
    (r"Extra content at the end", "More than one action, or text after the action. Answer with exactly one action"),
    (
        r"Opening and ending tag mismatch: (\S+) line (\d+) and (\S+?)(?:,|$)",
        (
            "The element '{0}' opened on line {1} is closed by '</{2}>'. Close it with '</{0}>'; put text with tags "
            "in it into a CDATA section"
        ),
    ),
    (r"Premature end of data in tag (\S+)", "The element '{0}' is never closed. End the answer with '</{0}>'"),
    (r"CData section not finished", "The CDATA section is never closed. End it with ']]>' before the end tag"),
    (r"xmlParseEntityRef|EntityRef: expecting", "A raw '&' in text. " + _CDATA),
    (r"Entity '(\S+)' not defined", "The entity '&{0};' is unknown. " + _CDATA),
    (r"StartTag: invalid element name", "A raw '<' in text. " + _CDATA),
    (
        r"PCDATA invalid Char value (\d+)|invalid character|Invalid char|Char 0x",
        "A control character that XML does not allow. Leave it out; in a script, write an escape: printf '\\033'",
    ),
    (r"surrogates not allowed|not proper UTF-8|Invalid bytes", "Text that is not valid Unicode"),
    (r"Sequence '\]\]>' not allowed", "A raw ']]>' in text: write it as ']]&gt;' outside of CDATA"),
)

SCHEMA = _table(
    (r"Element '(\S+)': The attribute '(\S+)' is required", "Missing required attribute '{1}' on element '{0}'"),
    (
        r"Element '(\S+)', attribute '(\S+)': The attribute '\S+' is not allowed",
        "Unknown attribute '{1}' on element '{0}'; an action carries only the attributes that the schema names",
    ),
    (r"Element '(\S+)': No matching global declaration", "'{0}' is not an action. Actions: {actions}"),
    (
        r"Element '(\S+)': Element content is not allowed",
        "The element '{0}' holds text only, no elements. Put text with tags in it into a CDATA section",
    ),
    (
        r"Element '(\S+)', attribute 'timeout': ",
        "Invalid value for attribute 'timeout' on element '{0}': seconds above 0, such as 5 or 0.5 (at most 99999)",
    ),
    (
        r"Element '(\S+)', attribute 'limit': ",
        "Invalid value for attribute 'limit' on element '{0}': a number of characters, such as 2000",
    ),
    (r"Element '(\S+)', attribute 'id': \[facet 'm", "Attribute 'id' on element '{0}' is not the id of an entry"),
    (r"Element '(\S+)': \[facet 'maxLength'\]", "The element '{0}' must be empty: <{0}/> without text"),
)
