"""What a client is told of an engine's fault."""

import json
from typing import Any

import pytest

from router.engines.upstream import Answer, NeverSent, Stale, TimedOut, UpstreamError
from router.errors import RequestError, UpstreamBroken, UpstreamTimeout, error_row
from router.turn.refusal import Refused
from router.turn.telling import answered, told
