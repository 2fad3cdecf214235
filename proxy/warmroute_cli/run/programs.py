"""The settings that send each program's requests to the proxy: variables, files, arguments. Data only.

Each program gets its own folder for what it would otherwise keep in the user's home: configuration, sessions, caches.
`settings` fills in the names after a `$`. In files, the values are escaped for double quotes in JSON, TOML and YAML.
No file holds the key, which is in the environment.

`$root`      the proxy's URL, without a path    `$key`      the API key
`$base_url`  the proxy's URL with /v1           `$model`    the model to ask for
`$folder`    the program's own folder           `$context`  the tokens of the model's context
`$git`       the user's Git settings, a file    `$session`  a session key that is new with each start
`$output`    the most tokens of an answer, which programs keep free in the context: a quarter of it, up to 32,000
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final


@dataclass(frozen=True, slots=True)
class Program:
    """The settings of one program. `model`: the model to ask for, if the proxy serves it.

    `cleared`: variables to unset, since they would send requests elsewhere. `sources`: documentation of the settings,
    or the version in which they were read. `older`: the Python package of an older program with this command, which
    does not read the settings.
    """

    command: str
    install: str
    model: str
    environment: Mapping[str, str]
    sources: tuple[str, ...]
    files: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    cleared: tuple[str, ...] = ()
    older: str = ""


_OPENCODE: Final = """{
  "$$schema": "https://opencode.ai/config.json",
  "autoupdate": false,
  "share": "disabled",
  "model": "warmroute/$model",
  "small_model": "warmroute/$model",
  "provider": {
    "warmroute": {
      "npm": "@ai-sdk/openai-compatible",
      "name": "warmroute",
      "options": {"baseURL": "$base_url", "apiKey": "{env:WARMROUTE_API_KEY}"},
      "models": {"$model": {"name": "$model", "limit": {"context": $context, "output": $output}}}
    }
  }
}
"""

_CODEX: Final = """model = "$model"
model_provider = "warmroute"
model_context_window = $context
check_for_update_on_startup = false

[model_providers.warmroute]
name = "warmroute"
base_url = "$base_url"
env_key = "WARMROUTE_API_KEY"
wire_api = "responses"
supports_websockets = true

[analytics]
enabled = false
"""

_GEMINI: Final = """{
  "security": {"auth": {"selectedType": "gemini-api-key"}},
  "general": {"enableAutoUpdate": false, "enableAutoUpdateNotification": false},
  "privacy": {"usageStatisticsEnabled": false},
  "model": {"name": "$model"}
}
"""

_QWEN: Final = """{
  "security": {"auth": {"selectedType": "openai"}},
  "general": {"enableAutoUpdate": false},
  "privacy": {"usageStatisticsEnabled": false},
  "model": {"name": "$model", "generationConfig": {"contextWindowSize": $context}}
}
"""

_AIDER_SETTINGS: Final = """- name: "openai/$model"
  extra_params:
    api_base: "$base_url"
    extra_headers:
      x-session-affinity: "$session"
"""
"""A repository's `.env` outranks the environment in aider, so `api_base` and `AIDER_OPENAI_API_KEY`, which aider reads
later, name the proxy and its key."""

_AIDER_METADATA: Final = """{
  "openai/$model": {"litellm_provider": "openai", "mode": "chat", "max_input_tokens": $context, "max_tokens": 8192}
}
"""

_MINI: Final = """model:
  model_name: "openai/$model"
  cost_tracking: ignore_errors
  model_kwargs:
    extra_headers:
      x-session-affinity: "$session"
"""

_VIBE: Final = """active_model = "warmroute"
enable_telemetry = false
enable_update_checks = false

[[providers]]
name = "warmroute"
api_base = "$base_url"
api_key_env_var = "WARMROUTE_API_KEY"

[[models]]
name = "$model"
provider = "warmroute"
alias = "warmroute"
max_context_length = $context
"""

_KIMI: Final = """default_model = "warmroute"
telemetry = false

[providers.warmroute]
type = "kimi"
base_url = "$base_url"
api_key_env = "WARMROUTE_API_KEY"

[models.warmroute]
provider = "warmroute"
model = "$model"
max_context_size = $context
max_output_size = $output

[loop_control]
reserved_context_size = $output
"""
"""Without `max_output_size`, Kimi Code asks for an answer as long as the context, which engines refuse, so
the proxy must ask twice in each turn. Without `reserved_context_size`, it compacts when 50,000 tokens are left.
"""

_PI: Final = """{
  "providers": {
    "warmroute": {
      "baseUrl": "$base_url",
      "api": "openai-completions",
      "apiKey": "$$WARMROUTE_API_KEY",
      "compat": {"supportsDeveloperRole": false},
      "models": [{"id": "$model", "contextWindow": $context, "maxTokens": $output}]
    }
  }
}
"""

_OTHER_THAN_ANTHROPIC: Final = (
    "ANTHROPIC_CUSTOM_HEADERS", "CLAUDE_CODE_OAUTH_TOKEN", "CLAUDE_CODE_USE_ANTHROPIC_AWS",
    "CLAUDE_CODE_USE_ANTHROPIC_GOOGLE_CLOUD", "CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_USE_FOUNDRY",
    "CLAUDE_CODE_USE_GATEWAY", "CLAUDE_CODE_USE_MANTLE", "CLAUDE_CODE_USE_VERTEX",
)  # fmt: skip
_OTHER_THAN_GEMINI: Final = (
    "GOOGLE_API_KEY", "GOOGLE_GENAI_USE_ENTERPRISE", "GOOGLE_GENAI_USE_GCA", "GOOGLE_GENAI_USE_VERTEXAI"
)  # fmt: skip
"""Variables by which clients of Anthropic's and Google's APIs ask another server, or send it another key."""

PROGRAMS: Final[Mapping[str, Program]] = {
    "opencode": Program(
        command="opencode",
        install="npm install -g opencode-ai",
        model="kimi-k2.5",
        environment={
            "GIT_CONFIG_GLOBAL": "$git",
            "OPENCODE_CONFIG": "$folder/opencode.json",
            "WARMROUTE_API_KEY": "$key",
            "XDG_CACHE_HOME": "$folder/cache",
            "XDG_CONFIG_HOME": "$folder/config",
            "XDG_DATA_HOME": "$folder/data",
            "XDG_STATE_HOME": "$folder/state",
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
        },
        files={"opencode.json": _OPENCODE},
        cleared=("OPENCODE_CONFIG_CONTENT", "OPENCODE_CONFIG_DIR"),
        sources=("https://opencode.ai/docs/config/", "https://opencode.ai/docs/cli/#environment-variables"),
    ),
    "claude": Program(
        command="claude",
        install="npm install -g @anthropic-ai/claude-code",
        model="claude-sonnet-4-5",
        environment={
            "ANTHROPIC_BASE_URL": "$root",
            "ANTHROPIC_AUTH_TOKEN": "$key",
            "ANTHROPIC_MODEL": "$model",
            "ANTHROPIC_DEFAULT_OPUS_MODEL": "$model",
            "ANTHROPIC_DEFAULT_SONNET_MODEL": "$model",
            "ANTHROPIC_DEFAULT_HAIKU_MODEL": "$model",
            "CLAUDE_CONFIG_DIR": "$folder",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
        },
        cleared=("ANTHROPIC_API_KEY", "ANTHROPIC_SMALL_FAST_MODEL", *_OTHER_THAN_ANTHROPIC),
        sources=("https://code.claude.com/docs/en/llm-gateway", "https://code.claude.com/docs/en/settings"),
    ),
    "codex": Program(
        command="codex",
        install="npm install -g @openai/codex",
        model="gpt-5.1-codex",
        environment={"CODEX_HOME": "$folder", "WARMROUTE_API_KEY": "$key"},
        files={"config.toml": _CODEX},
        sources=("https://developers.openai.com/codex/config-reference",),
    ),
    "gemini": Program(
        command="gemini",
        install="npm install -g @google/gemini-cli",
        model="gemini-2.5-pro",
        environment={
            "GEMINI_API_KEY": "$key",
            "GEMINI_CLI_HOME": "$folder",
            "GEMINI_MODEL": "$model",
            "GOOGLE_GEMINI_BASE_URL": "$root",
        },
        files={".gemini/settings.json": _GEMINI},
        cleared=_OTHER_THAN_GEMINI,
        sources=("https://geminicli.com/docs/reference/configuration/",),
    ),
    "qwen": Program(
        command="qwen",
        install="npm install -g @qwen-code/qwen-code",
        model="kimi-k2.5",
        environment={
            "OPENAI_API_KEY": "$key",
            "OPENAI_BASE_URL": "$base_url",
            "OPENAI_MODEL": "$model",
            "QWEN_HOME": "$folder",
        },
        files={"settings.json": _QWEN},
        cleared=("QWEN_MODEL", "QWEN_RUNTIME_DIR"),
        sources=("https://qwenlm.github.io/qwen-code-docs/en/users/configuration/settings/", "QWEN_HOME: 0.24.4"),
    ),
    "aider": Program(
        command="aider",
        install="python -m pip install aider-install && aider-install",
        model="kimi-k2.5",
        environment={
            "AIDER_ANALYTICS": "false",
            "AIDER_CHAT_HISTORY_FILE": "$folder/chat.history.md",
            "AIDER_CHECK_UPDATE": "false",
            "AIDER_GITIGNORE": "false",
            "AIDER_INPUT_HISTORY_FILE": "$folder/input.history",
            "AIDER_MODEL": "openai/$model",
            "AIDER_MODEL_METADATA_FILE": "$folder/model.metadata.json",
            "AIDER_MODEL_SETTINGS_FILE": "$folder/model.settings.yml",
            "AIDER_OPENAI_API_BASE": "$base_url",
            "AIDER_OPENAI_API_KEY": "$key",
            "AIDER_SHOW_MODEL_WARNINGS": "false",
            "AIDER_WEAK_MODEL": "openai/$model",
            "GIT_CONFIG_GLOBAL": "$git",
            "HOME": "$folder",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        },
        files={"model.settings.yml": _AIDER_SETTINGS, "model.metadata.json": _AIDER_METADATA},
        cleared=("OPENAI_BASE_URL",),
        sources=(
            "https://aider.chat/docs/config/options.html",
            "https://aider.chat/docs/config/adv-model-settings.html",
        ),
    ),
    "mini-swe-agent": Program(
        command="mini",
        install="python -m pip install mini-swe-agent",
        model="kimi-k2.5",
        environment={
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "MSWEA_CONFIGURED": "true",
            "MSWEA_GLOBAL_CONFIG_DIR": "$folder",
            "OPENAI_API_BASE": "$base_url",
            "OPENAI_API_KEY": "$key",
        },
        files={"warmroute.yaml": _MINI},
        arguments=("-c", "mini.yaml", "-c", "$folder/warmroute.yaml"),
        cleared=("OPENAI_BASE_URL", "MSWEA_MODEL_NAME"),
        sources=("https://mini-swe-agent.com/latest/advanced/global_configuration/",),
    ),
    "vibe": Program(
        command="vibe",
        install="python -m pip install mistral-vibe",
        model="kimi-k2.5",
        environment={"VIBE_HOME": "$folder", "WARMROUTE_API_KEY": "$key"},
        files={"config.toml": _VIBE},
        cleared=("VIBE_ACTIVE_MODEL",),
        sources=("https://docs.mistral.ai/mistral-vibe/", "config.toml: 3.0.2"),
    ),
    "gptme": Program(
        command="gptme",
        install="python -m pip install gptme",
        model="kimi-k2.5",
        environment={
            "GIT_CONFIG_GLOBAL": "$git",
            "GPTME_CONTEXT_LENGTH": "$context",
            "GPTME_NO_LOCAL_DISCOVERY": "1",
            "GPTME_TIKTOKEN_TIMEOUT": "0",
            "HOME": "$folder",
            "MODEL": "local/$model",
            "OPENAI_API_KEY": "$key",
            "OPENAI_BASE_URL": "$base_url",
        },
        cleared=("OPENAI_API_BASE", "XDG_DATA_HOME", "XDG_STATE_HOME"),
        sources=("https://gptme.org/docs/config.html", "GPTME_CONTEXT_LENGTH: 0.35.1"),
    ),
    "kimi": Program(
        command="kimi",
        install="npm install -g @moonshot-ai/kimi-code",
        model="kimi-k2.5",
        environment={"KIMI_CODE_HOME": "$folder", "KIMI_CODE_NO_AUTO_UPDATE": "1", "WARMROUTE_API_KEY": "$key"},
        files={"config.toml": _KIMI},
        cleared=("KIMI_CODE_BASE_URL", "KIMI_MODEL_NAME", "KIMI_SECONDARY_MODEL"),
        sources=("https://moonshotai.github.io/kimi-code/en/configuration/config-files.html", "api_key_env: 2.1.0"),
        older="kimi_cli",
    ),
    "pi": Program(
        command="pi",
        install="npm install -g @earendil-works/pi-coding-agent",
        model="kimi-k2.5",
        environment={
            "PI_CODING_AGENT_DIR": "$folder",
            "PI_OFFLINE": "1",
            "PI_TELEMETRY": "0",
            "WARMROUTE_API_KEY": "$key",
        },
        files={"models.json": _PI},
        arguments=("--provider", "warmroute", "--model", "$model"),
        cleared=("PI_CODING_AGENT_SESSION_DIR",),
        sources=("models.md, usage.md: 1.6.0",),
    ),
    "copilot": Program(
        command="copilot",
        install="npm install -g @github/copilot",
        model="gpt-5.1-codex",
        environment={
            "COPILOT_AUTO_UPDATE": "false",
            "COPILOT_HOME": "$folder",
            "COPILOT_MODEL": "$model",
            "COPILOT_OFFLINE": "true",
            "COPILOT_PROVIDER_API_KEY": "$key",
            "COPILOT_PROVIDER_BASE_URL": "$base_url",
            "COPILOT_PROVIDER_MAX_PROMPT_TOKENS": "$context",
            "COPILOT_PROVIDER_TRANSPORT": "websockets",
            "COPILOT_PROVIDER_TYPE": "openai",
            "COPILOT_PROVIDER_WIRE_API": "responses",
            "XDG_CACHE_HOME": "$folder/cache",
        },
        cleared=(
            "COPILOT_PROVIDER_API_KEY_COMMAND",
            "COPILOT_PROVIDER_BEARER_TOKEN",
            "COPILOT_PROVIDER_MODEL_ID",
            "COPILOT_PROVIDER_WIRE_MODEL",
        ),
        sources=("copilot help providers: 1.0.102",),
    ),
}

_ANY: Final[Mapping[str, str]] = {
    "OPENAI_BASE_URL": "$base_url",
    "OPENAI_API_BASE": "$base_url",
    "OPENAI_API_KEY": "$key",
    "OPENAI_MODEL": "$model",
    "ANTHROPIC_BASE_URL": "$root",
    "ANTHROPIC_API_KEY": "$key",
    "GOOGLE_GEMINI_BASE_URL": "$root",
    "GEMINI_API_KEY": "$key",
}


def any_program(command: str) -> Program:
    """A program that is not in the table gets only the variables that clients of all APIs read."""
    return Program(
        command=command,
        install="Install it, or name one of the programs that `warmroute run --help` lists.",
        model="",
        environment=_ANY,
        cleared=("ANTHROPIC_AUTH_TOKEN", *_OTHER_THAN_ANTHROPIC, *_OTHER_THAN_GEMINI),
        sources=(),
    )
