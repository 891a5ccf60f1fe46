"""``python -m scripts.reference``: write the pages anew."""

import sys
from pathlib import Path

from scripts.reference.pages import FOLDER, Incomplete, pages


def main() -> int:
    """The exit code: 1 where something that the code has is described nowhere."""
    try:
        written = pages()
    except Incomplete as error:
        print(f"scripts/reference: {error}", file=sys.stderr)
        return 1
    folder = Path(__file__).parent.parent.parent / FOLDER
    for name, text in written.items():
        (folder / name).write_text(text, encoding="utf-8")
        print(f"{FOLDER}/{name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
