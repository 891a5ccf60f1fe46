import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from router.setting_sources import SettingsError, load
from router.settings import Settings, flag_name, variable_name

POOLS: dict[str, object] = {"prefill": ["http://p:8100"], "decode": ["http://d:8200"]}
SECRET = "hunter2-sk-abcdef"


def error_of(**flags: object) -> str:
    with pytest.raises(SettingsError) as raised:
        load({**POOLS, **flags})
    return str(raised.value)


# Where a value comes from


@pytest.mark.parametrize(
    ("flag", "variable", "in_file", "expected"),
    [
        (None, None, None, 8000),
        (None, None, 1, 1),
        (None, "2", None, 2),
        (None, "2", 1, 2),
        ("3", None, None, 3),
        ("3", None, 1, 3),
        ("3", "2", None, 3),
        ("3", "2", 1, 3),
    ],
)
def test_flags_win_over_environment_over_file_over_default(
    flag: str | None,
    variable: str | None,
    in_file: int | None,
    expected: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = tmp_path / "boomerang.yaml"
    config.write_text("log_level: debug\n" + (f"port: {in_file}\n" if in_file else ""))
    if variable:
        monkeypatch.setenv("BOOMERANG_PORT", variable)
    settings = load({**POOLS, **({"port": flag} if flag else {})}, config=str(config))
    assert settings.port == expected
    assert settings.log_level == "debug"


def test_each_source_gives_the_same_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flags: dict[str, object] = {
        "prefill": ["http://a:1,http://b:2", "http://[::1]:3"],
        "decode": ["https://d"],
        "verify": "router",
        "expose_params": "true",
        "decode_ttl_s": "60",
        "first_token_timeout_s": "1.5",
        "idle_timeout_s": "none",
        "max_body_bytes": "2MiB",
    }
    from_flags = load(flags)
    config = tmp_path / "boomerang.yaml"
    config.write_text(
        "prefill: [http://a:1, 'http://b:2', 'http://[::1]:3']\n"
        "decode: https://d\nverify: router\nexpose_params: true\ndecode_ttl_s: 60\n"
        "first_token_timeout_s: 1.5\nidle_timeout_s: null\nmax_body_bytes: 2097152\n"
    )
    from_file = load({}, config=str(config))
    for name, value in flags.items():
        text = ",".join(value) if isinstance(value, list) else str(value)
        monkeypatch.setenv(variable_name(name), text)
    from_environment = load({})
    assert from_flags == from_file == from_environment
    assert from_flags.prefill == ("http://a:1", "http://b:2", "http://[::1]:3")
    assert from_flags.idle_timeout_s is None
    assert from_flags.max_body_bytes == 2 << 20


def test_the_environment_may_name_the_file_and_the_flag_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = tmp_path / "first.yaml", tmp_path / "second.yaml"
    first.write_text("port: 1\n")
    second.write_text("port: 2\n")
    monkeypatch.setenv("BOOMERANG_CONFIG", str(first))
    assert load(POOLS).port == 1
    assert load(POOLS, config=str(second)).port == 2


def test_an_empty_variable_and_an_empty_file_are_not_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = tmp_path / "empty.yaml"
    empty.write_text("# nothing yet\n")
    monkeypatch.setenv("BOOMERANG_PORT", "")
    assert load(POOLS, config=str(empty)).port == 8000


def test_settings_made_directly_read_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOOMERANG_PORT", "1")
    assert Settings(prefill=("http://p",), decode=("http://d",)).port == 8000
    with pytest.raises(ValidationError):
        Settings.model_validate({**POOLS, "prot": 1})


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("BOOMERANG_PORT", "tcp://10.0.0.7:8000"),
        ("BOOMERANG_PORT_8000_TCP_ADDR", "10.0.0.7"),
        ("BOOMERANG_SERVICE_HOST", "10.0.0.7"),
        ("BOOMERANG_SERVICE_PORT_HTTP", "8000"),
        ("BOOMERANG_PREFILL_PORT", "tcp://10.0.0.8:8100"),
        ("BOOMERANG_ENGINE_HOME", "/somewhere"),
    ],
)
def test_variables_of_kubernetes_services_and_of_our_scripts_are_not_settings(
    variable: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    assert load(POOLS).port == 8000


def test_whether_the_ttl_was_set_is_known_even_if_it_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not load(POOLS).decode_ttl_is_set
    assert load({**POOLS, "decode_ttl_s": "480"}).decode_ttl_is_set
    monkeypatch.setenv("BOOMERANG_DECODE_TTL_S", "480")
    assert load(POOLS).decode_ttl_is_set


# What is refused


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("port", "99999", "less than or equal to 65535 (got 99999)"),
        ("port", "-1", "greater than or equal to 0 (got -1)"),
        ("port", "http", "valid integer"),
        ("port", True, "not true or false"),
        ("prefill", [], "is required"),
        ("prefill", ["dns://engines"], "dns://NAME:PORT"),
        ("prefill", ["dns://a:1/x"], "no path"),
        ("prefill", ["http://a:1@12345"], "no user and password"),
        ("breaker_failures", 0, "greater than 0"),
        ("prefill", ["p:8100"], "begins with http:// or https:// (got p:8100)"),
        ("prefill", ["ftp://p:8100"], "begins with http:// or https://"),
        ("prefill", ["http://"], "needs a host name"),
        ("prefill", ["http://p:0"], "port is between 1 and 65535"),
        ("prefill", ["http://p:70000"], "not a valid origin"),
        ("prefill", ["http://[::1:80"], "not a valid origin"),
        ("prefill", ["http://::1:80"], "not a valid origin"),
        ("prefill", ["http://p q"], "needs a host name"),
        ("prefill", ["http://p:8100/v1"], "has no path"),
        ("prefill", ["http://p:8100?a=b"], "no query or fragment"),
        ("decode", ["http://d,http://D:80/"], "http://d is listed more than once"),
        ("decode", [1], "valid string"),
        ("verify", "maybe", "'auto', 'engine', 'router', 'lineage' or 'off' (got maybe)"),
        (
            "store",
            "redis://cache:6379/zero",
            "a database's number, and a cluster has none (got redis://cache:",
        ),
        ("store", "disk", "'memory' or an address of a Redis server: expected redis://HOST:PORT"),
        ("store_prefix", "a{b}", "1 to 64 letters"),
        ("workers", "4", "4 processes need a shared store"),
        ("otlp_endpoint", "collector:4318", "not an address like http://HOST:4318"),
        ("otlp_endpoint", "http://", "not an address"),
        ("otlp_endpoint", "http://c:4318/?key=1", "not an address"),
        ("otlp_endpoint", "http://u:p@c:4318", "OTEL_EXPORTER_OTLP_HEADERS"),
        ("otlp_sample_ratio", "1.1", "less than or equal to 1"),
        ("expose_params", "perhaps", "valid boolean"),
        ("identity_header", "X Tenant", "not a valid header name"),
        ("pull_timeout_s", "none", "valid number"),
        ("pull_timeout_s", "inf", "finite number"),
        ("idle_timeout_s", "nan", "finite number"),
        ("take_share", "1.5", "less than or equal to 1"),
        ("deadline_margin_s", "480", "shorter than decode_ttl_s (480)"),
        ("engine_api_key_file", "/no/such/file", "No such file"),
        ("host", "", "at least 1 character (got nothing)"),
        ("log_level", "loud", "'debug', 'info', 'warning' or 'error'"),
    ],
)
def test_a_wrong_value_is_told_in_one_line_that_names_the_setting(
    name: str, value: object, complaint: str
) -> None:
    message = error_of(**{name: value})
    assert message.startswith(f"{flag_name(name)} / {variable_name(name)} / {name}: ")
    assert complaint in message
    assert "\n" not in message
    assert "pydantic" not in message


MAY_BE_NONE_AT_ALL = {"stay_max_tokens", "release_per_s"}
LIMITS = sorted(
    name
    for name, field in Settings.model_fields.items()
    if name == "max_branches" or (name.endswith(("_s", "_bytes", "_tokens")) and field.annotation is not bool)
    if name not in MAY_BE_NONE_AT_ALL
)


@pytest.mark.parametrize("name", LIMITS)
@pytest.mark.parametrize("value", ["0", "-1"])
def test_every_limit_refuses_zero_and_less(name: str, value: str) -> None:
    assert error_of(**{name: value}).startswith(f"{flag_name(name)} / ")


def test_the_limits_are_found_by_their_names() -> None:
    assert {"drain_s", "max_ledger_bytes", "reuse_threshold_tokens", "first_token_timeout_s"} <= set(LIMITS)


def test_missing_pools_are_told_together() -> None:
    with pytest.raises(SettingsError) as raised:
        load({})
    message = str(raised.value)
    assert "--prefill / BOOMERANG_PREFILL / prefill: is required" in message
    assert "--decode / BOOMERANG_DECODE / decode: is required" in message
    assert "\n" not in message


def test_an_unknown_variable_is_refused_with_the_nearest_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOOMERANG_PULL_TIMEOUT", SECRET)
    message = error_of()
    assert (
        message == "BOOMERANG_PULL_TIMEOUT: there is no such setting; did you mean BOOMERANG_PULL_TIMEOUT_S?"
    )


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"prot: 1\n", "prot in {path}: there is no such setting; did you mean port?"),
        (b"pull-timeout-s: 1\n", "did you mean pull_timeout_s?"),
        (b"zzz: 1\n", "zzz in {path}: there is no such setting"),
        (b"1: 1\n", "1 in {path}: there is no such setting"),
        (b"- port\n", "has to be a mapping of settings to values"),
        (b"port: [1\nkey: %s\n" % SECRET.encode(), "is not valid YAML (line 2, column"),
        (b"port: \xff\n", "is not UTF-8 text"),
        (b"port: 0x\n", "--port / BOOMERANG_PORT / port: "),
        (b"port: {a: 1}\n", "--port / BOOMERANG_PORT / port: "),
        (b"pull_timeout_s: null\n", "--pull-timeout-s / BOOMERANG_PULL_TIMEOUT_S / pull_timeout_s: "),
    ],
)
def test_a_wrong_file_is_told_in_one_line(content: bytes, complaint: str, tmp_path: Path) -> None:
    config = tmp_path / "boomerang.yaml"
    config.write_bytes(content)
    with pytest.raises(SettingsError) as raised:
        load(POOLS, config=str(config))
    message = str(raised.value)
    assert complaint.format(path=config) in message
    assert "\n" not in message
    assert SECRET not in message


def test_a_file_that_cannot_be_read_is_told_in_one_line(tmp_path: Path) -> None:
    for path, complaint in (
        (tmp_path / "none.yaml", "No such file or directory"),
        (tmp_path, "Is a directory"),
    ):
        with pytest.raises(SettingsError) as raised:
            load(POOLS, config=str(path))
        assert str(raised.value) == f"--config / BOOMERANG_CONFIG: {path} cannot be read: {complaint}"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("prefill", [f"http://user:{SECRET}@p:8100"]),
        ("prefill", [f"http://{SECRET}@p:8100"]),
        ("prefill", [f"http://user:{SECRET}/x@p:8100"]),
        ("prefill", [f"user:{SECRET}@p:8100"]),
        ("prefill", [f"http://p:8100?key={SECRET}"]),
        ("prefill", [f"http://p:8100#{SECRET}"]),
        ("prefill", [f"http://user:{SECRET},word@p:8100"]),
        ("prefill", [f"http://user:{SECRET} word@p:8100"]),
        ("decode", [f"http://d,http://u:{SECRET}@d,http://d"]),
        ("store", f"redis://:{SECRET}@cache:6379/zero"),
        ("store", f"rediss://app:{SECRET}@cache:6379/0?password={SECRET}"),
        ("engine_api_key_file", SECRET),
        ("store_password_file", SECRET),
    ],
)
def test_a_secret_in_a_wrong_value_is_not_told(name: str, value: object) -> None:
    message = error_of(**{name: value})
    assert SECRET not in message
    assert message.startswith(flag_name(name))


def test_a_long_value_is_shortened() -> None:
    assert len(error_of(verify="x" * 10_000)) < 300


# What is taken


def test_the_engines_key_is_read_from_its_file_each_time(tmp_path: Path) -> None:
    key_file = tmp_path / "key"
    key_file.write_text("first\n")
    settings = load({**POOLS, "engine_api_key_file": str(key_file)})
    assert settings.engine_api_key() == "first"
    key_file.write_text("second\n")
    assert settings.engine_api_key() == "second"
    assert "second" not in repr(settings)
    assert load(POOLS).engine_api_key() is None


@pytest.mark.parametrize("content", [b"", b" \n", b"two keys\n", b"\xff\xfe"])
def test_a_key_file_without_one_key_is_refused(content: bytes, tmp_path: Path) -> None:
    key_file = tmp_path / "key"
    key_file.write_bytes(content)
    assert "--engine-api-key-file" in error_of(engine_api_key_file=str(key_file))


@pytest.mark.parametrize(
    ("flags", "warning"),
    [
        ({"verify": "lineage"}, "known to be wrong where templates strip reasoning or answers retokenise"),
        ({"decode_ttl_s": "481"}, "longer than vLLM's default of 480 s"),
        ({"prefill_lease_s": "31"}, "longer than vLLM's default of 30 s"),
        ({"engine_keepalive_s": "5"}, "not below vLLM's own 5 s"),
        ({"decode": ["http://p:8100"]}, "http://p:8100 is in both pools"),
    ],
)
def test_what_is_allowed_and_likely_wrong_gives_a_warning(flags: dict[str, object], warning: str) -> None:
    (found,) = load({**POOLS, **flags}).warnings()
    assert warning in found


def test_the_defaults_give_no_warning() -> None:
    assert load(POOLS).warnings() == ()


def test_every_setting_has_a_description_and_a_default_within_its_bounds() -> None:
    defaults: dict[str, Any] = load(POOLS).model_dump()
    for name, field in Settings.model_fields.items():
        assert field.description, name
        if name not in POOLS:
            assert defaults[name] == field.default, name
    assert not {name for name in os.environ if name in map(variable_name, Settings.model_fields)}


# Where nodes come from, and who may change them


def test_addresses_have_one_spelling() -> None:
    given = ["HTTP://A:8000@03", "dns://Engines.local:8000", "http://[::1]:80/"]
    assert load({**POOLS, "prefill": given}).prefill == (
        "http://a:8000@3",
        "dns://engines.local:8000",
        "http://[::1]",
    )


@pytest.mark.parametrize(
    "given",
    [
        {"nodes_file": "nodes.yaml"},
        {"kubernetes_prefill": "a=b", "kubernetes_decode": "a=c", "kubernetes_api": "http://api:6443"},
        {"prefill": "dns://p:8000", "decode": "dns://d:8000"},
    ],
)
def test_every_source_of_nodes_will_do(given: dict[str, object]) -> None:
    assert isinstance(load(given), Settings)


def test_a_pods_environment_says_where_the_api_server_is(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, object] = {**POOLS, "kubernetes_prefill": "app=vllm"}
    assert "kubernetes_api: is required outside of a pod" in error_of(**given)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    assert load(given).kubernetes_server == "https://[fd00::1]"


def test_the_admin_api_is_closed_or_on_loopback(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(f"{SECRET}\n")
    for host in ("0.0.0.0", "::", "10.0.0.1", "admin.local"):  # noqa: S104 - what is to be refused
        message = error_of(admin_port=9000, admin_host=host)
        assert message.startswith("--admin-host / BOOMERANG_ADMIN_HOST / admin_host: has to be a loopback")
        for secret in ({"admin_token": SECRET}, {"admin_token_file": str(token)}):
            guarded = load({**POOLS, "admin_port": 9000, "admin_host": host, **secret})
            assert guarded.admin_secret() == SECRET
            assert SECRET not in repr(guarded)
    for host in ("127.0.0.1", "127.8.8.8", "::1", "localhost"):
        assert load({**POOLS, "admin_port": 9000, "admin_host": host}).admin_secret() is None
    assert "is for one process" in error_of(admin_port=9000, workers=2, store="redis://cache")
    both = error_of(admin_token=SECRET, admin_token_file=str(token))
    assert "given twice" in both
    assert SECRET not in both
    assert SECRET not in error_of(admin_token_file=SECRET)
    rotating = load({**POOLS, "admin_token_file": str(token)})
    token.write_text("rotated")
    assert rotating.admin_secret() == "rotated"


@pytest.mark.parametrize("token", ["", " ", "two words"])
def test_an_admin_token_is_one_word(token: str) -> None:
    with pytest.raises(SettingsError, match="admin_token: has to be one word"):
        load({"prefill": "http://p:1", "decode": "http://d:1", "admin_port": "9", "admin_token": token})


@pytest.mark.parametrize(
    ("given", "endpoint"),
    [
        ("", ""),
        ("http://c:4318", "http://c:4318/v1/traces"),
        ("https://c/", "https://c/v1/traces"),
        ("http://c:4318/otlp/v1/traces", "http://c:4318/otlp/v1/traces"),
    ],
)
def test_a_collectors_address_gets_the_path_that_otlp_has(given: str, endpoint: str) -> None:
    assert load({**POOLS, "otlp_endpoint": given}).otlp_endpoint == endpoint


@pytest.mark.parametrize("missing", ["opentelemetry", "opentelemetry.sdk", "opentelemetry.exporter"])
def test_traces_without_their_extra_are_told_in_one_line(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = importlib.util.find_spec

    def without(name: str, package: str | None = None) -> object:
        if name == missing or name.startswith(f"{missing}."):
            if name != missing:  # as it is where the parent cannot be imported
                raise ModuleNotFoundError(name)
            return None
        return there(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", without)
    told = error_of(otlp_endpoint="http://collector:4318")
    assert "pip install 'boomerang-router[otel]'" in told
    assert "\n" not in told
    assert load(POOLS).otlp_endpoint == ""
