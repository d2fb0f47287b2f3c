"""The dashboard: one page of static files that shows any app through the public API.

It has no server side of its own. `routes` gives the page and its assets with strict headers; everything on the page
comes from `/v1/app` and `/v1/live`, as for any other client.
"""

from penstock.dashboard.assets import HEADERS, Asset, load
from penstock.dashboard.routes import CLIENT_PATHS, routes

__all__ = ["CLIENT_PATHS", "HEADERS", "Asset", "load", "routes"]
