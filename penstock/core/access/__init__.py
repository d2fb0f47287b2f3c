"""Authentication and authorization: keys, tokens and certificates are turned into a caller with grants.

    credentials --> Gate --> Caller --> require("produce", stream), require("consume", view), require_room()

`gate` authenticates requests; the tiers use only `caller`. API keys are stored in a file in the data directory
(`keys`). Everything else is configured in an access file (`policy`): tokens from other issuers (`tokens`), and TLS and
client certificates (`certificates`).
"""

from penstock.core.access.api_keys import KeyFile, KeyStore
from penstock.core.access.caller import ANYONE, CALLER, Caller, RowRule, caller_of
from penstock.core.access.certificates import CERTIFIED, NOT_CERTIFIED, Certified, certified
from penstock.core.access.gate import NO_POLICY, Gate, subprotocol
from penstock.core.access.grants import EVERYTHING, Grants
from penstock.core.access.policy import Policy, read_policy

__all__ = [
    "ANYONE",
    "CALLER",
    "CERTIFIED",
    "EVERYTHING",
    "NOT_CERTIFIED",
    "NO_POLICY",
    "Caller",
    "Certified",
    "Gate",
    "Grants",
    "KeyFile",
    "KeyStore",
    "Policy",
    "RowRule",
    "caller_of",
    "certified",
    "read_policy",
    "subprotocol",
]
