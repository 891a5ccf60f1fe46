"""The Helm chart's schema of the router's settings, which needs no Helm to be compared."""

from deploy.helm import schema


def test_the_charts_schema_knows_the_settings_as_they_are() -> None:
    assert schema.written() == schema.SCHEMA.read_text(), "run python deploy/helm/schema.py"
