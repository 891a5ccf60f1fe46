"""An engine's own error answer, on its way to the client."""

from router.engines.upstream import Answer


class Refused(Exception):
    """An engine answered an error of its own, which goes to the client unchanged."""

    def __init__(self, role: str, node: str, answer: Answer) -> None:
        super().__init__(f"{role} node {node} answered {answer.status}")
        self.role, self.node, self.answer = role, node, answer

    @property
    def is_full(self) -> bool:
        """Whether it was the engine that had no room: another one may have."""
        return self.answer.status == 429
