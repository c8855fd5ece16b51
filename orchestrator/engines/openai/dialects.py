"""What servers want beyond the common interface: how a grammar and the beginning of an answer are given to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["llama.cpp", "vllm", "sglang", "none"]
_OWNERS: dict[str, Kind] = {"llamacpp": "llama.cpp", "vllm": "vllm", "sglang": "sglang"}


@dataclass(frozen=True)
class Dialect:
    """One kind of server. `prefills`: it goes on with a last message of the assistant."""

    kind: Kind
    prefills: bool
    guides: bool

    def extra(self, grammar: str | None, prefilled: bool) -> dict[str, Any]:
        """Fields of the request's body that only this kind of server knows."""
        fields: dict[str, Any] = {}
        if grammar is not None and self.kind == "llama.cpp":
            fields["grammar"] = grammar
        elif grammar is not None and self.kind == "vllm":
            fields["structured_outputs"] = {"grammar": grammar}
        elif grammar is not None and self.kind == "sglang":
            fields["ebnf"] = grammar
        if prefilled and self.kind == "vllm":
            fields |= {"continue_final_message": True, "add_generation_prompt": False}
        elif prefilled and self.kind == "sglang":
            fields["continue_final_message"] = True
        return fields


DIALECTS: dict[Kind, Dialect] = {
    "llama.cpp": Dialect("llama.cpp", prefills=True, guides=True),
    "vllm": Dialect("vllm", prefills=True, guides=True),
    "sglang": Dialect("sglang", prefills=True, guides=True),
    "none": Dialect("none", prefills=False, guides=False),
}


def dialect_of(owner: str) -> Dialect:
    """The dialect of a server by the owner that it names for its models."""
    return DIALECTS[_OWNERS.get(owner, "none")]
