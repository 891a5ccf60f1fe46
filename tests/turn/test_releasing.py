"""The smallest leg that frees a handle. What the task does: ``tests/e2e/test_release.py``."""

from dataclasses import replace

import msgspec
import pytest

from router.engines import nixl
from router.fleet.node import Engine, Role, node_of
from router.turn.releasing import release_body

PARAMS = (
    b'{"do_remote_decode":true,"do_remote_prefill":false,"remote_block_ids":[[1,2,3]],"remote_engine_id":"e",'
    b'"remote_request_id":"r","remote_host":"h","remote_port":1,"remote_num_tokens":48,"future_key":[1.50]}'
)
P = node_of("http://p:8000", Role.PREFILL)


def test_it_computes_one_token_and_reads_nothing() -> None:
    body = release_body(replace(P, engine=Engine(models=("base", "lora"))), PARAMS)
    read = msgspec.json.decode(body)
    params = read.pop("kv_transfer_params")
    assert read == {"model": "base", "prompt": [1], "max_tokens": 1, "stream": False}
    assert (params["remote_num_tokens"], params["remote_block_ids"]) == (0, [[]])
    assert b'"future_key":[1.50]' in body, "what is not ours goes as it came"
    kept = msgspec.json.decode(PARAMS)
    assert {name: value for name, value in params.items() if kept[name] == value}.keys() == kept.keys() - {
        "remote_num_tokens",
        "remote_block_ids",
    }


def test_a_node_whose_models_are_not_known_gets_its_default() -> None:
    assert "model" not in msgspec.json.decode(release_body(P, PARAMS))


def test_params_that_are_none() -> None:
    with pytest.raises(nixl.NotParams):
        release_body(P, b"[]")
