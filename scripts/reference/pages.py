"""All pages of the reference."""

from scripts.reference.command_line import command_line_page
from scripts.reference.errors import errors_page
from scripts.reference.headers import headers_page
from scripts.reference.markdown import Incomplete
from scripts.reference.plans import plans_page
from scripts.reference.routes import routes_page
from scripts.reference.settings import settings_page

__all__ = ["FOLDER", "Incomplete", "pages"]

FOLDER = "docs/reference"


def pages() -> dict[str, str]:
    """File name → text. Raises Incomplete where something that the code has is described nowhere."""
    return {
        "settings.md": settings_page(),
        "commands.md": command_line_page(),
        "routes.md": routes_page(),
        "headers.md": headers_page(),
        "plans.md": plans_page(),
        "errors.md": errors_page(),
    }
