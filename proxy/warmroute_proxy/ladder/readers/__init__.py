"""One reader for each foreign log: lines in, reports out. A line that it cannot read is passed over, and counted.

lines    what a reader is, and how a log's format is told
litellm  LiteLLM's spend logs, one row a line
otel     spans in OTLP's JSON, one export a line
sglang   SGLang's request log
vllm     vLLM's log with `--enable-log-requests` at the level DEBUG
"""
