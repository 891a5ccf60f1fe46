from typing import Any

import pytest

from router.sim.template import TemplateError, TemplateOptions, render_chat

CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at":"sea"}'}}


def render(*messages: dict[str, Any], options: TemplateOptions | None = None, **fields: Any) -> str:
    return render_chat({"messages": list(messages), **fields}, options or TemplateOptions()).text


def test_turns_and_the_generation_prompt() -> None:
    text = render({"role": "system", "content": "s"}, {"role": "user", "content": "u"})
    assert text == ("<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nu<|im_end|>\n<|im_start|>assistant\n")


def test_reasoning_goes_once_a_user_message_follows() -> None:
    thought = {"role": "assistant", "content": "a", "reasoning": "hm"}
    asked = {"role": "user", "content": "u"}
    assert "<think>\nhm\n</think>\n\na" in render(asked, thought)
    assert "hm" not in render(asked, thought, asked)
    assert "hm" in render(asked, thought, asked, options=TemplateOptions(strip_reasoning=False))


def test_reasoning_stays_within_a_loop_of_tool_calls() -> None:
    thought = {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [CALL]}
    result = {"role": "tool", "content": "42", "tool_call_id": "c1"}
    text = render({"role": "user", "content": "u"}, thought, result)
    assert '<think>\nhm\n</think>\n\n<tool_call>\n{"name": "look", "arguments": {"at": "sea"}}' in text


def test_tool_calls_are_written_anew_and_results_grouped() -> None:
    calling = {"role": "assistant", "content": "so", "tool_calls": [CALL, CALL]}
    result = {"role": "tool", "content": "42"}
    text = render({"role": "user", "content": "u"}, calling, result, result)
    assert text.count('{"name": "look", "arguments": {"at": "sea"}}') == 2
    assert text.count("<|im_start|>user") == 2
    assert text.count("<tool_response>\n42\n</tool_response>") == 2


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tools", [{"type": "function", "function": {"name": "f"}}]),
        ("documents", [{"text": "d"}]),
        ("reasoning_effort", "low"),
        ("chat_template", "{{ other }}"),
        ("chat_template_kwargs", {"tone": "dry"}),
        ("chat_template_kwargs", {"enable_thinking": False}),
        ("add_generation_prompt", False),
    ],
)
def test_fields_that_shape_the_prompt(field: str, value: object) -> None:
    asked = {"role": "user", "content": "u"}
    fields: dict[str, Any] = {field: value}
    assert render(asked, **fields) != render(asked)


def test_the_final_message_stays_open() -> None:
    text = render(
        {"role": "user", "content": "u"}, {"role": "assistant", "content": "I"}, continue_final_message=True
    )
    assert text.endswith("<|im_start|>assistant\nI")


def test_different_images_look_alike_in_text_but_not_in_their_digests() -> None:
    def shown(url: str) -> dict[str, Any]:
        image = {"type": "image_url", "image_url": {"url": url}}
        return {"role": "user", "content": [{"type": "text", "text": "see"}, image]}

    one, two = (render_chat({"messages": [shown(url)]}, TemplateOptions()) for url in ("a", "b"))
    assert one.text == two.text
    assert one.text.count("<|image_pad|>") == TemplateOptions().media_tokens
    assert one.media != two.media


def test_what_cannot_be_rendered() -> None:
    with pytest.raises(TemplateError):
        render({"role": "user", "content": [{"type": "hologram"}]})
