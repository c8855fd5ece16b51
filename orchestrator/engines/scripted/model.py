"""A compiled policy as a model: request in, answer out."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Generator, Iterator

from lxml import etree

from orchestrator.engines.beginnings import shared_beginning
from orchestrator.engines.scripted.expressions import Values
from orchestrator.engines.scripted.faults import Faults, spoil
from orchestrator.engines.scripted.policy import Policy
from orchestrator.engines.serve import EngineError, Hangup, Line
from orchestrator.protocol import EngineUsage, Request, clean

NO_RULE = "<reasoning>No rule applies.</reasoning>"
_OPTIONS = {"resolve_entities": False, "no_network": True, "load_dtd": False, "encoding": "utf-8"}


class ScriptedModel:
    """Implements `engines.serve.Model`."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    def token_limit(self) -> int:
        """`[tokens] limit`."""
        return self.policy.limit

    def token_count(self, request: Request) -> int:
        """Characters of all that a prompt holds, over `[tokens] chars_per_token`."""
        turns = sum(len(turn.text) for turn in request.turns)
        texts = (request.system, request.schema, request.context or "", request.prefix)
        return math.ceil((sum(map(len, texts)) + turns) / self.policy.chars_per_token)

    def infer(self, request: Request, line: Line) -> Generator[bytes, None, EngineUsage]:
        """The policy's answer, with its faults, as a stream."""
        prompt = self.token_count(request)
        if prompt > self.policy.limit:
            raise EngineError("too_long", f"{prompt} tokens, the limit is {self.policy.limit}")
        seed = line.inferences if request.seed is None else request.seed
        answer, faults, happened = self._answer(request, seed)
        most = int((request.max_tokens or self.policy.limit) * self.policy.chars_per_token)
        finish = "length" if len(answer) > most or "truncated" in happened else "stop"
        answer = clean(answer[:most])
        usage = self._usage(request, line, prompt, len(answer), finish)
        if "stall" in happened:
            _wait(line, faults.stall_sec)
        if "silence" in happened:
            _wait(line, math.inf)
        if "flood" in happened:
            yield from _flood(faults.flood_mb)
            _wait(line, math.inf)
        if "drop" in happened or "crash" in happened:
            yield answer[: max(1, len(answer) // 2)].encode("utf-8", "replace")
            if "crash" in happened:
                os._exit(70)
            raise Hangup
        yield from self._pieces(answer.encode("utf-8", "replace"))
        return usage

    def _answer(self, request: Request, seed: int) -> tuple[str, Faults, frozenset[str]]:
        root, malformed = document(request)
        built_in = {
            "system": request.system,
            "schema": request.schema,
            "prefix": request.prefix,
            "malformed": malformed,
            "seed": seed,
        }
        values = Values(root, built_in)
        try:
            choice = next(filter(None, (rule.choose(values, seed) for rule in self.policy.rules)), None)
            answer = choice.answer.fill(values) if choice else NO_RULE
        except (etree.XPathError, ValueError) as error:
            raise EngineError("engine", f"a rule can't be evaluated: {error}") from None
        faults = choice.rule.faults if choice else Faults({})
        happened = faults.happen(seed, choice.rule.key) if choice else frozenset()
        if happened:
            answer = spoil(answer, happened)
        return answer.removeprefix(request.prefix), faults, happened

    def _usage(self, request: Request, line: Line, prompt: int, answer: int, finish: str) -> EngineUsage:
        per_token, price = self.policy.chars_per_token, self.policy.cost_per_1k
        completion = math.ceil(answer / per_token)
        shown = f"{request.system}{request.schema}{request.context or ''}{''.join(turn.text for turn in request.turns)}"
        cached = int(shared_beginning(line.memory.get("shown", ""), shown) / per_token)
        line.memory["shown"] = shown
        cost = None if price is None else round((prompt + completion) * price / 1000, 9)
        return EngineUsage(prompt, completion, min(cached, prompt), cost, finish)

    def _pieces(self, answer: bytes) -> Iterator[bytes]:
        policy = self.policy
        at = 0
        while at < len(answer):
            end = min(len(answer), at + policy.chunk) if policy.chunk else len(answer)
            while not policy.split_utf8 and end < len(answer) and answer[end] & 0xC0 == 0x80:
                end += 1
            if policy.split_utf8:
                end = next((i + 1 for i in range(at, end) if answer[i] >= 0xC0), end)
            if at and policy.delay:
                time.sleep(policy.delay)
            yield answer[at:end]
            at = end


def document(request: Request) -> tuple[etree._Element, str]:
    """The context document that rules see, and why it is not well-formed (empty if it is)."""
    if request.context is not None:
        return _read(request.context)
    root, malformed, answered = etree.Element("context"), "", ""
    for turn in request.turns:
        if turn.role == "assistant":
            answered = turn.text
            continue
        fault = _take_turn(root, turn.text, answered)
        malformed, answered = malformed or fault, ""
    return root, malformed


def _take_turn(root: etree._Element, text: str, answered: str) -> str:
    """Put what a user turn shows under the root; the fault of a context in it that is not well-formed, else empty."""
    whole = text.lstrip().startswith("<context")
    part, fault = _read(text if whole else f"<context>{text}</context>")
    if not whole and (fault or not len(part)):
        etree.SubElement(root, "turn", role="user").text = text
        return ""
    outer = part if whole else etree.Element("context")
    for child in list(part):
        if child.tag == "context":
            root.attrib.update(child.attrib)
            root.extend(list(child))
        else:
            root.append(child)
            child.tail = None
            _complete(child, answered)
            answered = ""
    root.attrib.update(outer.attrib)
    return fault if whole else ""


def _complete(entry: etree._Element, answered: str) -> None:
    """An entry that does not repeat what the assistant had answered: fill it in, so that rules find it there."""
    if not answered:
        return
    if entry.tag == "parse_error":
        if entry.find("content") is None:
            etree.SubElement(entry, "content").text = clean(answered)
        return
    action, _ = _read(answered)
    inner = next((child for child in action if child.tag == entry.tag), None)
    if inner is not None and not (entry.text or "").strip():
        entry.text = inner.text


def _read(text: str) -> tuple[etree._Element, str]:
    encoded, malformed = text.encode("utf-8", "replace"), ""
    try:
        root = etree.fromstring(encoded, etree.XMLParser(remove_comments=True, remove_pis=True, **_OPTIONS))  # type: ignore[arg-type]
    except etree.XMLSyntaxError as error:
        malformed = str(error)[:200]
        parser = etree.XMLParser(remove_comments=True, remove_pis=True, recover=True, **_OPTIONS)  # type: ignore[arg-type]
        try:
            found = etree.fromstring(encoded, parser)
        except etree.XMLSyntaxError:
            found = None
        root = etree.Element("context") if found is None else found
    if root.tag != "context":
        outer = etree.Element("context")
        outer.append(root)
        root = outer
    return root, malformed


def _wait(line: Line, seconds: float) -> None:
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        if line.closed():
            raise Hangup
        time.sleep(min(0.05, left))


def _flood(megabytes: float) -> Iterator[bytes]:
    piece = b"<reasoning>and so on, and so on. " * 2000
    sent = 0
    while sent < megabytes * 1e6:
        yield piece
        sent += len(piece)
