"""Addresses of artifacts."""

from retarget.core.tracking import address_below


def test_a_path_is_appended_before_the_query() -> None:
    assert address_below("mlflow-artifacts:/1", "r/artifacts") == "mlflow-artifacts:/1/r/artifacts"
    assert address_below("s3://bucket/", "r") == "s3://bucket/r"
    assert address_below("mysql://host/db?driver=x", "r") == "mysql://host/db/r?driver=x"
