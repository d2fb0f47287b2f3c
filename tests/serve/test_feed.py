"""A feed is a channel like the stream or view that it filters."""

from __future__ import annotations

import pytest

from penstock.serve.channels import stream as stream_module
from penstock.serve.channels.feed import FeedChannel
from tests.contracts.channel import FAR, ChangeChannelContract, ChangeChannelHome, OpenChannel
from tests.serve.test_stream import NumbersInStream
from tests.serve.test_view import NumbersInView


class TestFeedOfStream(ChangeChannelContract):
    @pytest.fixture(params=["n >= 0", None], ids=["filtered", "whole"])
    def open_home(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> OpenChannel:
        monkeypatch.setattr(stream_module, "STALL_EVENTS", FAR)

        def opened(heartbeat_s: float) -> ChangeChannelHome:
            home = NumbersInStream(heartbeat_s, None)
            home.channel = FeedChannel(home.channel, request.param, "n", source="s")
            return home

        return opened


class TestFeedOfView(ChangeChannelContract):
    @pytest.fixture(params=["v >= 0", None], ids=["filtered", "whole"])
    def open_home(self, request: pytest.FixtureRequest) -> OpenChannel:
        def opened(heartbeat_s: float) -> ChangeChannelHome:
            home = NumbersInView(heartbeat_s, None)
            home.channel = FeedChannel(home.channel, request.param, "v", source="v")
            return home

        return opened
