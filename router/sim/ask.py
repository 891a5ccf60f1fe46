"""Reading a request: what vLLM takes, what it refuses and in which words.

Error texts, types and parameters are those that vLLM 0.32.0 answers with.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from router.sim.config import EngineConfig
from router.sim.model import Ask
from router.sim.plugin import STAY_FIELD
from router.sim.sequence import Prompt
from router.sim.template import TemplateError, render_chat
from router.sim.tokens import encode


class BadRequest(Exception):
    """The request is refused; as an answer it is vLLM's error object."""

    def __init__(
        self, message: str, *, status: int = 400, kind: str = "BadRequestError", param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.kind, self.param = status, kind, param


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One request to generate: its prompts, and how its answer is to look."""

    chat: bool
    model: str
    adapter: str
    prompts: tuple[Prompt, ...]
    ask: Ask
    n: int
    stream: bool
    include_usage: bool
    continuous_usage: bool
    logprobs: int | None
    """How many alternatives to each token; None for no log-probabilities."""
    prompt_logprobs: int | None
    echo: bool
    return_token_ids: bool
    params: dict[str, Any] | None
    stays: bool
    """``vllm_xargs`` ask the plugin for a handle of a turn that has no params."""
    salt: str


def _whole(fields: Mapping[str, Any], name: str, default: int | None = None) -> int | None:
    value = fields.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadRequest(
            f"1 validation error:\n  {{'type': 'int_type', 'loc': 'body.{name}', "
            f"'msg': 'Input should be a valid integer'}}",
            kind="Bad Request",
            param=f"body.{name}",
        )
    return value


def missing(name: str, fields: Mapping[str, Any]) -> BadRequest:
    return BadRequest(
        f"1 validation error:\n  {{'type': 'missing', 'loc': 'body.{name}', 'msg': 'Field required', "
        f"'input': '<dict of {len(fields)} items>'}}",
        kind="Bad Request",
        param=f"body.{name}",
    )


def check_model(fields: Mapping[str, Any], config: EngineConfig) -> tuple[str, str]:
    """The model's name, and the adapter it means (empty for the base model)."""
    name = fields.get("model") or config.model
    if name == config.model:
        return name, ""
    if name in config.adapters:
        return name, str(name)
    aliases = ", ".join((config.model, *config.adapters))
    raise BadRequest(
        f"The model `{name}` does not exist. Valid aliases: {aliases}.",
        status=404,
        kind="NotFoundError",
        param="model",
    )


def longest_tokens(config: EngineConfig) -> int:
    """The longest prompt and answer together: the model's limit, or all that the KV blocks hold."""
    return min(config.max_model_len, (config.num_blocks - 2) * config.block_size)


def chat_prompt(fields: Mapping[str, Any], config: EngineConfig) -> Prompt:
    messages = fields.get("messages")
    if messages is None:
        raise missing("messages", fields)
    if not isinstance(messages, list) or not messages or not all(isinstance(m, dict) for m in messages):
        raise BadRequest("messages must be a list of objects that is not empty", param="messages")
    if fields.get("continue_final_message") and fields.get("add_generation_prompt"):
        raise BadRequest("Cannot set both `continue_final_message` and `add_generation_prompt` to True.")
    try:
        rendered = render_chat(fields, config.template)
    except TemplateError as error:
        raise BadRequest(str(error)) from None
    return Prompt.of(encode(rendered.text), rendered.media, config.template.media_tokens)


def completion_prompts(fields: Mapping[str, Any]) -> tuple[Prompt, ...]:
    given = fields.get("prompt")
    if given is None:
        raise missing("prompt", fields)
    listed = isinstance(given, list) and bool(given) and not isinstance(given[0], int)
    return tuple(_one_prompt(one) for one in (given if listed else [given]))


def _one_prompt(given: object) -> Prompt:
    if isinstance(given, str):
        return Prompt.of(encode(given))
    if isinstance(given, list) and given:
        try:
            return Prompt.of(array("I", given))
        except (TypeError, OverflowError):
            raise BadRequest("Token ids are out of vocabulary", param="prompt") from None
    raise BadRequest("prompt must be text or a list of token ids", param="prompt")


def _truncated(prompt: Prompt, fields: Mapping[str, Any], config: EngineConfig, *, chat: bool) -> Prompt:
    keep = _whole(fields, "truncate_prompt_tokens")
    if keep is None:
        return prompt
    if keep < 0:  # as much as the answer leaves room for
        keep = longest_tokens(config) - (_asked_tokens(fields, chat=chat) or 0)
    return prompt.last(max(keep, 1))


def read_job(fields: Mapping[str, Any], config: EngineConfig, *, chat: bool) -> Job:
    """Read a chat or completions request. Raises BadRequest."""
    model, adapter = check_model(fields, config)
    options = fields.get("stream_options") or {}
    if options and not fields.get("stream"):
        raise BadRequest(
            "Stream options can only be defined when `stream=True`. (parameter=stream_options)",
            param="stream_options",
        )
    temperature = fields.get("temperature")
    if isinstance(temperature, int | float) and temperature < 0:
        raise BadRequest(
            f"temperature must be non-negative, got {float(temperature)}. "
            f"(parameter=temperature, value={float(temperature)})",
            param="temperature",
        )
    prompts = (chat_prompt(fields, config),) if chat else completion_prompts(fields)
    params = fields.get("kv_transfer_params") or None
    if params is not None and not isinstance(params, dict):
        raise BadRequest("kv_transfer_params must be an object", param="kv_transfer_params")
    if params and params.get("prompt_token_ids") and len(prompts) == 1 and not _has_media(prompts[0]):
        params = dict(params)
        prompts = (_one_prompt(params.pop("prompt_token_ids")),)
    prompts = tuple(_truncated(prompt, fields, config, chat=chat) for prompt in prompts)
    longest = max(len(prompt.ids) for prompt in prompts)
    max_tokens = _max_tokens(fields, config, longest, chat=chat)
    return Job(
        chat=chat,
        model=model,
        adapter=adapter,
        prompts=prompts,
        ask=_ask(fields, config, max_tokens, chat=chat),
        n=_whole(fields, "n", 1) or 1,
        stream=bool(fields.get("stream")),
        include_usage=bool(options.get("include_usage")),
        continuous_usage=bool(options.get("include_usage") and options.get("continuous_usage_stats")),
        logprobs=_logprobs(fields, chat=chat),
        prompt_logprobs=_whole(fields, "prompt_logprobs"),
        echo=bool(fields.get("echo")),
        return_token_ids=bool(fields.get("return_token_ids")),
        params=params,
        stays=_stays(fields),
        salt=str(fields.get("cache_salt") or ""),
    )


def _stays(fields: Mapping[str, Any]) -> bool:
    xargs = fields.get("vllm_xargs")
    return isinstance(xargs, dict) and xargs.get(STAY_FIELD) in (True, 1, "1", "true")


def _has_media(prompt: Prompt) -> bool:
    return prompt.content is not prompt.ids


def _logprobs(fields: Mapping[str, Any], *, chat: bool) -> int | None:
    if not chat:
        return _whole(fields, "logprobs")
    top = _whole(fields, "top_logprobs", 0)
    if top and not fields.get("logprobs"):
        raise BadRequest("when using `top_logprobs`, `logprobs` must be set to true.", param="top_logprobs")
    return top if fields.get("logprobs") else None


def _asked_tokens(fields: Mapping[str, Any], *, chat: bool) -> int | None:
    """How long an answer the client asks for; None where it leaves that to the engine."""
    asked = _whole(fields, "max_tokens", None if chat else 16)
    return _whole(fields, "max_completion_tokens", asked) if chat else asked


def _max_tokens(fields: Mapping[str, Any], config: EngineConfig, prompt_tokens: int, *, chat: bool) -> int:
    longest = longest_tokens(config)
    if prompt_tokens >= longest:
        raise BadRequest(
            f"This model's maximum context length is {longest} tokens. However, your prompt contains "
            f"{prompt_tokens} input tokens, which exceeds this limit even without any output tokens. Please "
            f"reduce the length of the input prompt. (parameter=input_tokens, value={prompt_tokens})",
            param="input_tokens",
        )
    asked = _asked_tokens(fields, chat=chat)
    if asked is None:
        return longest - prompt_tokens
    if asked < 1 and (chat or not fields.get("echo")):
        raise BadRequest(
            f"max_tokens must be at least 1, got {asked}. (parameter=max_tokens, value={asked})",
            param="max_tokens",
        )
    if asked > config.max_model_len:
        raise BadRequest(
            f"max_tokens={asked} cannot be greater than max_model_len={config.max_model_len}. Please request "
            f"fewer output tokens. (parameter=max_tokens, value={asked})",
            param="max_tokens",
        )
    if prompt_tokens + asked > longest:
        raise BadRequest(
            f"This model's maximum context length is {longest} tokens. However, you requested {asked} output "
            f"tokens and your prompt contains {prompt_tokens} input tokens, for a total of "
            f"{prompt_tokens + asked} tokens.",
            param="max_tokens",
        )
    least = _whole(fields, "min_tokens", 0) or 0
    if least > asked:
        raise BadRequest(f"min_tokens must be less than or equal to max_tokens={asked}, got {least}.")
    return asked


def _ask(fields: Mapping[str, Any], config: EngineConfig, max_tokens: int, *, chat: bool) -> Ask:
    stop = fields.get("stop") or ()
    tools = tuple(
        tool["function"]
        for tool in fields.get("tools") or ()
        if chat and isinstance(tool, dict) and isinstance(tool.get("function"), dict)
    )
    choice = fields.get("tool_choice")
    if chat and choice not in (None, "none") and not tools:
        raise BadRequest("When using `tool_choice`, `tools` must be set.", param="tool_choice")
    if isinstance(choice, dict):
        choice = str((choice.get("function") or {}).get("name"))
    messages = fields.get("messages") or [{}]
    kwargs = fields.get("chat_template_kwargs") or {}
    wanted = fields.get("response_format") or {}
    continued = bool(fields.get("continue_final_message"))
    return Ask(
        chat=chat,
        max_tokens=max_tokens,
        min_tokens=_whole(fields, "min_tokens", 0) or 0,
        ignore_eos=bool(fields.get("ignore_eos")),
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        stop_token_ids=tuple(fields.get("stop_token_ids") or ()),
        include_stop=bool(fields.get("include_stop_str_in_output")),
        tools=tools,
        tool_choice=str(choice or ("auto" if tools else "none")),
        parallel_calls=fields.get("parallel_tool_calls") is not False,
        after_user=messages[-1].get("role") == "user",
        thinking=chat and config.reasoning and not continued and kwargs.get("enable_thinking") is not False,
        json_answer=isinstance(wanted, dict) and str(wanted.get("type", "")).startswith("json"),
    )


def bound_tokens(ask: Ask, config: EngineConfig) -> int:
    """The most that an answer can come to, for the blocks that are taken at a request's start."""
    if ask.ignore_eos:
        return ask.max_tokens
    schemas = [(tool.get("parameters") or {}).get("properties") or () for tool in ask.tools]
    for_calls = 48 + 60 * max(map(len, schemas)) if schemas else 0
    natural = 160 + 8 * config.answer_words[1] + 4 * ask.min_tokens + for_calls
    return min(ask.max_tokens, natural)
