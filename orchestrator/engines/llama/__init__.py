"""A local model in GGUF, by xllamacpp (extra `llama`): `python -m orchestrator.engines.llama MODEL [OPTIONS]`.

MODEL is a name of `sia engines list` or a path. One loaded model serves all lines. Prompts are token ids: what comes
from a context is tokenised as plain text, so it can't forge a turn of the conversation. Answers are guided by the
schema, from the prefix on; one that is cut off at the token limit is ended the shortest valid way.
"""
