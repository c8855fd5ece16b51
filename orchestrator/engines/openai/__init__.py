"""Any server that speaks the OpenAI chat interface (extra `openai`): `python -m orchestrator.engines.openai MODEL …`.

Where the server takes a grammar (llama.cpp, vLLM, SGLang) answers are guided by the schema. Where it does not, an
answer is checked before it is passed on, and asked for again with what is wrong with it. A wrong key or model name ends
the program with a reason, so that no trial is blamed for it.
"""
