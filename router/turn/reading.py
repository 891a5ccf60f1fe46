"""What the router reads in an engine's answer, streamed or whole: how it ended, its token ids, its usage.

Reading never changes anything and never fails: what is not understood is counted, and the answer passes all
the same. Unknown members are skipped, known ones of the wrong type make their document unreadable.
"""

from __future__ import annotations

from array import array
from typing import NamedTuple, TypeAlias

import msgspec

from router.turn.documents import (
    ChoiceOfIds,
    DocumentOfIds,
    decode,
    decode_ids,
    decode_usage,
    decode_with_ids,
)
from router.values import value

TokenIds: TypeAlias = "array[int]"
"""Token ids as `array("I")`, four bytes each: cheap to keep, compare and digest."""

EMPTY = frozenset({b"null", b"", b'""', b"[]", b"{}", b"false"})
"""JSON values that say nothing."""


_UNSOUND = frozenset({"abort", "error"})


@value
class Usage:
    """Token counts as the engine reports them; None where it does not."""

    prompt_tokens: int | None
    completion_tokens: int | None
    cached_tokens: int | None


@value(kw_only=True)
class Answer:
    """What the router reads in an answer.

    `params` are the engine's `kv_transfer_params` as raw JSON: the handle if the engine is the decode node.
    The last ones that are not null count. None if there were none, and for an answer with several choices
    (n > 1, a list of prompts): one object for all of them is of no use to any.

    `answer_token_ids` are those of choice 0. If the engine left ids out somewhere (a gap), they end there:
    they are always a true prefix of what was generated. `error` is the raw error object of an answer that
    failed after HTTP 200. `finish_reasons` go by choice. `unreadable` counts events or bodies that are not
    JSON in a shape that the router understands.
    """

    params: bytes | None
    several_choices: bool
    finish_reasons: tuple[str, ...]
    prompt_token_ids: TokenIds | None
    answer_token_ids: TokenIds | None
    usage: Usage | None
    error: bytes | None
    unreadable: int

    @property
    def unsound_finish(self) -> str | None:
        """The first finish reason by which an engine says that a choice did not come to its end."""
        for reason in self.finish_reasons:
            if reason in _UNSOUND:
                return reason
        return None


class Seen(NamedTuple):
    """What one document held: generated content, members for token ids, those of them that are not null."""

    content: bool
    id_members: int
    id_lists: int
    ends: bool = False
    """Whether a choice says why it has ended."""
    params: bytes | None = None
    """Its ``kv_transfer_params``, where they are not null; of several, the last."""


# A RecursionError: nesting that is deeper than the parser's stack.
_NOT_READ = (msgspec.MsgspecError, RecursionError, UnicodeError)


class Reading:
    """What has been read of one answer so far. `read` its documents (events, or the one body) in their order.

    `params` are set by whoever takes them out of the document.
    """

    __slots__ = (
        "_answer",
        "_answer_token_ids",
        "_error",
        "_finish_reasons",
        "_gap",
        "_lift_token_ids",
        "_prompt_token_ids",
        "_several_choices",
        "_usage",
        "params",
        "saw_content",
        "unreadable",
    )

    def __init__(self, *, lift_token_ids: bool) -> None:
        self._lift_token_ids = lift_token_ids
        self._answer: Answer | None = None
        self._several_choices = False
        self._finish_reasons: dict[int, str] = {}
        self._prompt_token_ids: TokenIds | None = None
        self._answer_token_ids: TokenIds | None = None
        self._gap = False
        self._usage: Usage | None = None
        self._error: bytes | None = None
        self.params: bytes | None = None
        self.saw_content = False
        self.unreadable = 0

    def read(self, data: bytes) -> Seen:
        """Reads one JSON document of the answer. Members for token ids are counted where they are lifted."""
        self._answer = None
        try:
            document = decode_with_ids(data) if self._lift_token_ids else decode(data)
        except _NOT_READ:
            self.unreadable += 1
            self._gap = True
            return Seen(content=False, id_members=0, id_lists=0)
        params: bytes | None = None
        if document.error is not msgspec.UNSET and (error := bytes(document.error)) not in EMPTY:
            self._error = error
        if document.usage is not msgspec.UNSET and (usage := bytes(document.usage)) not in EMPTY:
            self._usage = _usage(usage) or self._usage
        if document.kv_transfer_params is not msgspec.UNSET:
            params = bytes(document.kv_transfer_params)
            params = None if params == b"null" else params
        ids: list[bytes] = []
        if isinstance(document, DocumentOfIds):
            ids.append(bytes(document.prompt_token_ids))
            self._read_prompt(ids[0])
        any_content = ends = False
        for choice in document.choices or ():
            content = bool(choice.text) or (choice.delta is not None and _has_content(choice.delta))
            any_content = any_content or content
            index = choice.index or 0
            if choice.finish_reason:
                self._finish_reasons[index] = choice.finish_reason
                ends = True
            if index:
                self._several_choices = True
            if isinstance(choice, ChoiceOfIds):
                prompt_ids, answer_ids = bytes(choice.prompt_token_ids), bytes(choice.token_ids)
                ids += (prompt_ids, answer_ids)
                if not index:
                    self._read_prompt(prompt_ids)
                    self._read_answer(answer_ids, content=content)
        self.saw_content = self.saw_content or any_content
        present = len(ids) - ids.count(b"")
        return Seen(any_content, present, present - ids.count(b"null"), ends, params)

    def answer(self) -> Answer:
        """What has been read so far."""
        answer = self._answer
        if answer is None or not (self._several_choices or answer.params is self.params):
            answer = self._answer = self._told()
        return answer

    def _told(self) -> Answer:
        reasons = self._finish_reasons
        in_order = sorted(reasons.items()) if len(reasons) > 1 else reasons.items()
        return Answer(
            params=None if self._several_choices else self.params,
            several_choices=self._several_choices,
            finish_reasons=tuple([reason for _, reason in in_order]),
            prompt_token_ids=self._prompt_token_ids,
            answer_token_ids=None if self._answer_token_ids is None else self._answer_token_ids[:],
            usage=self._usage,
            error=self._error,
            unreadable=self.unreadable,
        )

    def _read_answer(self, value: bytes, *, content: bool) -> None:
        if self._gap:
            return
        try:
            ids = _ids(value)
        except ValueError:
            self._gap = True
            return
        if ids is None:
            # Content without its tokens: an echoed prompt, hidden reasoning, an engine that cannot tell.
            self._gap = content
        elif self._answer_token_ids is None:
            self._answer_token_ids = ids
        else:
            self._answer_token_ids.extend(ids)

    def _read_prompt(self, value: bytes) -> None:
        if self._prompt_token_ids is None:
            try:
                self._prompt_token_ids = _ids(value)
            except ValueError:
                self.unreadable += 1


def _has_content(delta: dict[str, msgspec.Raw]) -> bool:
    for key, said in delta.items():  # noqa: SIM110 - without a generator's frame
        if key != "role" and bytes(said) not in EMPTY:
            return True
    return False


def _usage(raw: bytes) -> Usage | None:
    try:
        usage = decode_usage(raw)
    except _NOT_READ:
        return None
    details = usage.prompt_tokens_details
    return Usage(usage.prompt_tokens, usage.completion_tokens, details.cached_tokens if details else None)


def _ids(value: bytes) -> TokenIds | None:
    """Raises `ValueError` when it is something else than token ids or nothing."""
    if value in (b"", b"null"):
        return None
    try:
        return array("I", decode_ids(value))
    except (msgspec.MsgspecError, OverflowError) as error:
        raise ValueError("not a list of token ids") from error
