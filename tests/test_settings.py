"""Settings come from one table and from the environment, and an invalid value is explained."""

from __future__ import annotations

from dataclasses import fields

import pytest

from penstock.core.errors import DeclarationError
from penstock.core.settings import Settings, from_environment


def test_a_variable_overrides_a_default() -> None:
    chosen = from_environment({"PENSTOCK_PARTITIONS": "5", "PENSTOCK_KEEP_DAYS": "0.5", "OTHER": "x"})
    assert (chosen.partitions, chosen.keep_days) == (5, 0.5)
    assert chosen.page_events == Settings().page_events


@pytest.mark.parametrize("value", ["many", "", "-1", "1.5"])
def test_a_bad_value_is_refused_with_its_name(value: str) -> None:
    with pytest.raises(DeclarationError, match="PENSTOCK_PARTITIONS"):
        from_environment({"PENSTOCK_PARTITIONS": value})


def test_a_misspelt_setting_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(DeclarationError, match=r"PARTITION is not a Penstock setting.*mean PENSTOCK_PARTITIONS"):
        from_environment({"PENSTOCK_PARTITION": "5"})
    with pytest.raises(DeclarationError, match=r"PENSTOCK_XYZZY is not a Penstock setting.*docs/settings\.md"):
        from_environment({"PENSTOCK_XYZZY": "5"})


def test_the_variables_of_tests_are_no_settings() -> None:
    assert from_environment({"PENSTOCK_TEST_GAPS": "1", "PENSTOCK_FAILPOINTS": ""}) == Settings()


def test_every_setting_has_a_unit_and_a_meaning() -> None:
    assert [
        setting.name
        for setting in fields(Settings)
        if not setting.metadata.get("unit") or not setting.metadata.get("help")
    ] == []


def test_networks_are_taken_as_they_are_and_what_is_none_is_refused() -> None:
    assert (
        from_environment({"PENSTOCK_WEBHOOK_PRIVATE": "10.1.0.0/16, ::1/128"}).webhook_private == "10.1.0.0/16, ::1/128"
    )
    assert from_environment({"PENSTOCK_WEBHOOK_PRIVATE": ""}).webhook_private == ""
    for text in ("localhost", "10.1.0.0/99", "10.1.0.1/16", "10.0.0.0/8; ::1"):
        with pytest.raises(DeclarationError, match="PENSTOCK_WEBHOOK_PRIVATE"):
            from_environment({"PENSTOCK_WEBHOOK_PRIVATE": text})
