"""The queues of handles that wait: in order, whatever leaves from where."""

from random import Random

from router.ledger.branch import Branch
from router.ledger.store import Finish, Pinned, Trace
from router.ledger.waiting import Waiting
from tests.ledger.play import handle_of

DECODE = "http://d:8200"


def branch(name: str, finish: Finish = Finish.STOP, *, tokens: int = 50, deadline_s: float = 100.0) -> Branch:
    made = Branch(name, Trace("p", DECODE, tokens, 100, 0, 0.0, finish))
    made.handle = handle_of(tokens, deadline_s, answer_tokens=0)
    return made


def add(waiting: Waiting, one: Branch, now_s: float = 0.0) -> None:
    assert one.handle is not None
    waiting.add(one, one.handle, now_s)


def remove(waiting: Waiting, one: Branch) -> None:
    assert one.handle is not None
    waiting.remove(one, one.handle)


def test_the_first_of_each_queue_is_the_one_that_waits_longest() -> None:
    """Beside a plain list, over random comings and goings."""
    waiting, random = Waiting(), Random(7)
    expected: dict[Finish, list[Branch]] = {finish: [] for finish in Finish}
    for number in range(3_000):
        finish = random.choice(list(Finish))
        queue = expected[finish]
        if queue and random.random() < 0.45:
            remove(waiting, queue.pop(random.randrange(len(queue))))
        else:
            one = branch(str(number), finish, tokens=number + 1, deadline_s=random.uniform(0, 500))
            queue.append(one)
            add(waiting, one, now_s=float(number))
        for kind, held in expected.items():
            assert waiting.oldest(DECODE, kind) is (held[0] if held else None)
        everything = [one for held in expected.values() for one in held]
        assert len(waiting) == len(everything)
        tokens = sum(one.handle.tokens for one in everything if one.handle is not None)
        assert waiting.pinned().get(DECODE, Pinned(0, 0)) == Pinned(tokens, len(everything))


def test_a_node_that_nothing_waits_on_is_forgotten() -> None:
    waiting = Waiting()
    one = branch("one")
    add(waiting, one)
    remove(waiting, one)
    assert waiting.pinned() == {}
    assert waiting.oldest(DECODE, Finish.STOP) is None


def test_what_is_due() -> None:
    waiting = Waiting()
    branches = [branch(str(number), deadline_s=10.0 + number) for number in range(5)]
    for one in branches:
        add(waiting, one)
    due = []
    for one in waiting.due(13.0, limit=100):
        due.append(one)
        remove(waiting, one)
    assert due == branches[:3]
    assert len(waiting) == 2
