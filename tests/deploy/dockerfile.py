"""Reads a Dockerfile into its stages and steps: as much of the format as ours use."""

import json
import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Step:
    """One instruction, in capitals, and what follows it on its line and those that continue it."""

    instruction: str
    text: str

    def words(self) -> list[str]:
        """A command in its JSON form. Raises ValueError where it is in another one."""
        found = json.loads(self.text)
        if not isinstance(found, list):
            raise ValueError(f"{self.instruction}: not a list")
        return [str(word) for word in found]


def stages(dockerfile: Path) -> list[list[Step]]:
    """Each stage's steps, ``FROM`` first; an ``ARG`` before the first stage is put in where it is used."""
    steps = []
    lines = [line for line in dockerfile.read_text().splitlines() if not line.lstrip().startswith("#")]
    for line in re.sub(r"\\\n", " ", "\n".join(lines)).splitlines():
        if line.strip():
            instruction, _, text = line.strip().partition(" ")
            steps.append(Step(instruction.upper(), text.strip()))
    arguments: dict[str, str] = {}
    found: list[list[Step]] = []
    for step in steps:
        if step.instruction == "FROM":
            text = re.sub(r"\$\{(\w+)\}", lambda match: arguments[match[1]], step.text)
            found.append([Step("FROM", text)])
        elif found:
            found[-1].append(step)
        elif step.instruction == "ARG":
            name, _, value = step.text.partition("=")
            arguments[name] = value
        else:
            raise ValueError(f"{step.instruction} before any FROM")
    return found


def environment(steps: list[Step]) -> dict[str, str]:
    """What a stage's ``ENV`` steps set, as written."""
    return dict(
        pair.split("=", 1) for step in steps if step.instruction == "ENV" for pair in step.text.split()
    )
