r"""The scripted engine: a deterministic model made of rules. `python -m orchestrator.engines.scripted POLICY.toml`.

It answers what a written policy says, from nothing but the request. The same request with the same seed gets the same
answer, on any machine. `python -m orchestrator.engines.scripted --check POLICY.toml` only reads the policy.

The policy file (TOML, unknown keys are errors)
===============================================

    [[rule]]                                # in order; the first that applies gives the answer
    name = "read the message"               # optional, for error messages
    when = "not(read_stdin) and @stdin > 0" # XPath 1.0 over the context document; default: always
    answer = "<read_stdin/>"                # a template, or a list of templates of which the seed picks one
    rate = 1.0                              # applies only with this probability (by seed) where `when` holds

    [[rule]]
    when = "$file != '' and not(single[contains(., $file)])"
    answer = '''<single><![CDATA[cat {file:cdata}]]></single>'''
    [rule.let]                              # names → strings, for this rule's `when`, `answer` and nested rules
    message = "read_stdin[last()]"          # XPath
    file = { from = "read_stdin[last()]", regex = 'the file (\S+)', group = 1 }
    [rule.faults]                           # replaces single values of the top table [faults]
    unclosed = 0.2

    [let]                                   # the same for all rules
    [faults]                                # defaults for all rules; every fault is 0 unless given
    [stream]
    chunk = 4096                            # characters per write; 0 = all at once
    delay_ms = 0                            # pause between writes
    split_utf8 = false                      # cut between the bytes of a character
    [tokens]
    limit = 32768                           # longer prompts are refused as too_long
    chars_per_token = 4
    [usage]
    cost_per_1k = 0.002                     # US dollars per 1,000 tokens; left out = unknown, not 0

Context document
    The root is `<context>`, the context node of every expression is that root: `single[last()]/stdout`, `@stdin`,
    `//repeat`. Comments are gone. If the request has turns instead, the entries of all user turns are put under one
    `<context>` (its attributes are those of the last `<context>` that was seen) and text that is not XML is put into
    `<turn role="…">`; an entry that does not repeat the action in the assistant's turn before
    it gets that text. Markup that is not well-formed is read as far as it goes; then `$malformed` is the reason.

XPath
    Prefix `re` is EXSLT: `re:test(string, pattern, 'i')`, `re:replace(string, pattern, 'g', replacement)`,
    `re:match(string, pattern, flags)`. Variables: `$system`, `$schema`, `$prefix`, `$malformed` (strings), `$seed`
    (number), and every name of `[let]` and of the enclosing rules' `let`. In XPath `!=` between a node set and a string
    is true if *any* node differs: use `not(… = …)`.

let
    An XPath expression gives a string: of a node set the first node's text, of a number the shortest form, of a boolean
    `true` or `false`. A table takes `from` (XPath), `regex` (Python syntax, searched; `(?s)` and `(?m)` as usual),
    `group` (number or name, default 1 if the pattern has a group, else 0), `which` (`first`, `last` or `all`; default
    first), `join` (between all, default a newline) and `default` (where nothing matches, default empty). A let may use
    the ones above it as `$name`. A let is computed only when something needs it.

answer
    `{name}` is the value escaped for XML text or attributes, `{name:cdata}` for the inside of a CDATA section,
    `{name:sh}` quoted as one shell word and then escaped for XML, `{name:shcdata}` the same for CDATA, `{name:raw}` as
    it is. `{{` and `}}` are braces. The prefix of a request is not echoed: an answer that starts with it is sent
    without it.

Nested rules
    `[[rule.rule]]` tables inside a rule are tried, in order, only where the outer `when` holds; an outer rule needs an
    `answer` or nested rules. If no nested rule applies, its own `answer` does if it has one, else the search goes on
    behind it.

Faults (probability per answer, drawn by seed; those that change the text add up, in this order)
    wrong_id     the id in the answer is changed            two_actions  a <reasoning> comes before the action
    unclosed     the last closing tag is missing            truncated    only the first 60 % come (finish = length)
    prose        a sentence before the action               fences       ```xml … ``` around it
    garbage      NUL, ESC and U+FFFE in the middle
    stall        waits `stall_sec` (default 5) first        silence      never answers (until the line is closed)
    drop         closes the line in mid-answer              crash        the whole engine exits in mid-answer
    flood        answers without an end (`flood_mb`, default 200, then silence)

If no rule applies, the answer is `<reasoning>No rule applies.</reasoning>`.
Without a seed in the request (an agent that talks to the engine directly) the seed is the number of the inference on
its line.
"""
